#include "runtime/model/blocks/encoder/dense_modules.h"

#include <array>

namespace orrery::model::dense_modules {

namespace {

constexpr const char *kIn = "dense_2.weight", *kOut = "dense_3.weight";

}  // namespace

Status read(Reading& in) {
  const gguf::File& file = in.keys.file();
  int32_t& width = in.d.dense_width;
  if (const gguf::Tensor* t = file.find_tensor(kIn)) {
    if (t->dims[1] > kMaxWidth)
      return error(Code::bad_model, "%s: tensor '%s' has %llu rows, expected at most %llu", file.path().c_str(), kIn,
                   static_cast<unsigned long long>(t->dims[1]), static_cast<unsigned long long>(kMaxWidth));
    width = static_cast<int32_t>(t->dims[1]);
  }
  const struct {
    const char* key;
    int32_t expected;
  } sizes[] = {
      {"dense_2_feat_in", in.d.n_embd}, {"dense_2_feat_out", width}, {"dense_3_feat_in", width}, {"dense_3_feat_out", in.d.n_embd}};
  for (const auto& [key, expected] : sizes) {
    int32_t size = 0;
    ORRERY_TRY(in.keys.integer_or(key, 0, 0, kMaxWidth, &size));
    if (size != 0 && (width == 0 || size != expected))
      return error(Code::bad_model, "%s: key '%s' is %d, but %s", file.path().c_str(), in.keys.name(key).c_str(), size,
                   width == 0 ? "there is no tensor 'dense_2.weight'" : ("the tensors say " + std::to_string(expected)).c_str());
  }
  return ok_status();
}

Status find(Tensors* tensors, const Description& d, Weights* out) {
  ORRERY_TRY(tensors->on_host(kIn, d.dense_width, d.n_embd, true, &out->in));
  return tensors->on_host(kOut, d.n_embd, d.dense_width, true, &out->out);
}

namespace {

// out = matrix x; out.size() rows.
void multiply(const std::vector<float>& matrix, Span<const float> x, Span<float> out) {
  constexpr size_t kParts = 8;
  const float* row = matrix.data();
  for (size_t r = 0; r < out.size(); ++r, row += x.size()) {
    std::array<double, kParts> sums = {};
    size_t i = 0;
    for (; i + kParts <= x.size(); i += kParts)
      for (size_t part = 0; part < kParts; ++part) sums[part] += static_cast<double>(row[i + part]) * static_cast<double>(x[i + part]);
    for (; i < x.size(); ++i) sums[0] += static_cast<double>(row[i]) * static_cast<double>(x[i]);
    double sum = 0;
    for (const double part : sums) sum += part;
    out[r] = static_cast<float>(sum);
  }
}

}  // namespace

void apply(const Weights& w, Span<float> row) {
  std::vector<float> wide(w.in.size() / row.size());
  multiply(w.in, row, {wide.data(), wide.size()});
  multiply(w.out, {wide.data(), wide.size()}, row);
}

}  // namespace orrery::model::dense_modules

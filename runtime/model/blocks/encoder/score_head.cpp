#include "runtime/model/blocks/encoder/score_head.h"

#include <cmath>

namespace orrery::model::score_head {

Status read(Reading& in) {
  const gguf::File& file = in.keys.file();
  ScoreShape& shape = in.d.score;
  shape.dense = file.find_tensor("cls.output.weight") != nullptr && file.find_tensor("cls.weight") != nullptr;
  const gguf::Tensor* out = file.find_tensor("cls.output.weight");
  if (out == nullptr) out = file.find_tensor("cls.weight");
  if (out == nullptr)
    return error(Code::bad_model, "%s: key '%s' says that the model ranks texts, but there is no tensor 'cls.output.weight'",
                 file.path().c_str(), in.keys.name("pooling_type").c_str());
  const gguf::Value* labels = in.keys.find("classifier.output_labels");
  const uint64_t n = out->dims[1];
  const auto is = [&](uint64_t i, const char* name) {
    std::string_view label;
    return labels->at(i).as_string(&label) && label == name;
  };
  shape.n_labels = 1;
  if (n == 1) return ok_status();
  if (n == 2 && labels != nullptr && labels->is_array_of(gguf::ValueType::string) && labels->size() == 2)
    for (const uint64_t yes : {uint64_t{0}, uint64_t{1}})
      if (is(yes, "yes") && is(1 - yes, "no")) {
        shape.n_labels = 2, shape.yes = static_cast<int32_t>(yes), shape.no = static_cast<int32_t>(1 - yes);
        return ok_status();
      }
  return error(Code::unsupported_architecture,
               "%s: tensor '%s' has %llu labels; a model that ranks texts is run with one, or with 'yes' and 'no' in key '%s'",
               file.path().c_str(), gguf::printable(out->name).c_str(), static_cast<unsigned long long>(n),
               in.keys.name("classifier.output_labels").c_str());
}

Status find(Tensors* tensors, const Description& d, Weights* out) {
  const bool named = tensors->has("cls.output.weight");
  const std::string name = named ? "cls.output" : "cls";
  if (d.score.dense) {
    ORRERY_TRY(tensors->on_host("cls.weight", d.n_embd, d.n_embd, true, &out->dense));
    ORRERY_TRY(tensors->on_host("cls.bias", 1, d.n_embd, false, &out->dense_bias));
  }
  ORRERY_TRY(tensors->on_host(name + ".weight", d.score.n_labels, d.n_embd, true, &out->out));
  return tensors->on_host(name + ".bias", 1, d.score.n_labels, false, &out->out_bias);
}

namespace {

// Row `row` of `matrix` times x, and the row's bias.
double product(const std::vector<float>& matrix, const std::vector<float>& bias, size_t row, Span<const double> x) {
  double sum = bias.empty() ? 0.0 : static_cast<double>(bias[row]);
  for (size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(matrix[row * x.size() + i]) * x[i];
  return sum;
}

}  // namespace

double log_odds(const ScoreShape& shape, const Weights& w, Span<const float> row) {
  std::vector<double> x(row.begin(), row.end());
  if (shape.dense) {
    std::vector<double> y(x.size());
    for (size_t i = 0; i < y.size(); ++i) y[i] = std::tanh(product(w.dense, w.dense_bias, i, {x.data(), x.size()}));
    x = std::move(y);
  }
  const auto logit = [&](int32_t label) { return product(w.out, w.out_bias, static_cast<size_t>(label), {x.data(), x.size()}); };
  return logit(shape.yes) - (shape.no >= 0 ? logit(shape.no) : 0.0);
}

}  // namespace orrery::model::score_head

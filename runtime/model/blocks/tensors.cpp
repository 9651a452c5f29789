#include "runtime/model/blocks/tensors.h"

#include <string_view>

namespace orrery::model {

namespace {

std::string shape_text(int64_t n, int64_t rows, int64_t cols) {
  if (n != 1) return format("(%lld, %lld, %lld)", static_cast<long long>(n), static_cast<long long>(rows), static_cast<long long>(cols));
  return rows == 1 ? format("(%lld)", static_cast<long long>(cols))
                   : format("(%lld, %lld)", static_cast<long long>(rows), static_cast<long long>(cols));
}

// Tensors that change nothing, by the end of their names. Some exporters keep tables of rotary frequencies, although
// the frequencies follow from the base.
constexpr std::string_view kHarmlessTensors[] = {".attn_rot_embd", ".attn_rot_embd.weight", ".rotary_emb.inv_freq"};

// The towers of a file for images and sound beside text, and what leads from them to the model, by the beginning of their names. Text runs
// without them.
constexpr std::string_view kTowerTensors[] = {"v.", "a.", "mm."};

// The number N of "blk.N.NAME"; -1 for other names.
int64_t block_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (name.substr(0, kPrefix.size()) != kPrefix) return -1;
  int64_t n = 0;
  size_t at = kPrefix.size();
  for (; at < name.size() && at < kPrefix.size() + 6 && name[at] >= '0' && name[at] <= '9'; ++at) n = 10 * n + (name[at] - '0');
  return at > kPrefix.size() && at < name.size() && name[at] == '.' ? n : -1;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

Result<const gguf::Tensor*> Tensors::take(const std::string& name, int64_t n, int64_t rows, int64_t cols, bool required) {
  const gguf::Tensor* t = file_.find_tensor(name);
  if (t == nullptr) {
    if (!required) return t;
    return error(Code::bad_model, "%s: tensor '%s' %s is missing", file_.path().c_str(), name.c_str(), shape_text(n, rows, cols).c_str());
  }
  const bool as_expected = t->dims[0] == static_cast<uint64_t>(cols) && t->dims[1] == static_cast<uint64_t>(rows) &&
                           t->dims[2] == static_cast<uint64_t>(n) && t->dims[3] == 1;
  if (!as_expected) {
    Status s =
        error(Code::bad_model, "%s: tensor '%s' has shape %s, expected %s", file_.path().c_str(), name.c_str(),
              shape_text(static_cast<int64_t>(t->dims[2]), static_cast<int64_t>(t->dims[1]), static_cast<int64_t>(t->dims[0])).c_str(),
              shape_text(n, rows, cols).c_str());
    s.detail().offset = t->offset;
    return s;
  }
  used_[static_cast<size_t>(t - file_.tensors().data())] = true;
  return t;
}

Status Tensors::matrix(const std::string& name, int64_t rows, int64_t cols, bool required, Weight* out) {
  ORRERY_ASSIGN(const gguf::Tensor* t, take(name, 1, rows, cols, required));
  return t ? visitor_->matrix(*t, out) : ok_status();
}

Status Tensors::feed_forward(const std::string& name, int64_t rows, int64_t cols, FeedForwardPart part, FeedForwardMatrices* out) {
  ORRERY_ASSIGN(const gguf::Tensor* t, take(name, 1, rows, cols, true));
  return visitor_->feed_forward(*t, part, out);
}

Status Tensors::experts(const std::string& name, int64_t n_experts, int64_t parts, int64_t rows, int64_t cols, ExpertWeights* out) {
  ORRERY_ASSIGN(const gguf::Tensor* t, take(name, n_experts, rows, cols, true));
  return visitor_->matrices(*t, n_experts * parts, out);
}

Status Tensors::heads(const std::string& name, int64_t n_heads, int64_t rows, int64_t cols, Weight* out) {
  ORRERY_ASSIGN(const gguf::Tensor* t, take(name, n_heads, rows, cols, true));
  return visitor_->heads(*t, out);
}

Status Tensors::floats(const std::string& name, int64_t rows, int64_t cols, bool required, Ptr<const float>* out) {
  ORRERY_ASSIGN(const gguf::Tensor* t, take(name, 1, rows, cols, required));
  return t ? visitor_->vector(*t, out) : ok_status();
}

Status Tensors::factors(const std::string& name, int64_t n, bool required, std::vector<float>* out) {
  ORRERY_ASSIGN(const gguf::Tensor* t, take(name, 1, 1, n, required));
  return t ? visitor_->factors(*t, out) : ok_status();
}

Status Tensors::on_host(const std::string& name, int64_t rows, int64_t cols, bool required, std::vector<float>* out) {
  ORRERY_ASSIGN(const gguf::Tensor* t, take(name, 1, rows, cols, required));
  return t ? visitor_->on_host(*t, out) : ok_status();
}

Status Tensors::table(const std::string& name, int64_t rows, int64_t cols, Weight* out) {
  ORRERY_ASSIGN(const gguf::Tensor* t, take(name, 1, rows, cols, true));
  return visitor_->table(*t, out);
}

Status Tensors::number(const std::string& name, float* out) {
  ORRERY_ASSIGN(const gguf::Tensor* t, take(name, 1, 1, 1, false));
  return t ? visitor_->number(*t, out) : ok_status();
}

Status Tensors::refuse_the_rest(const Description& d) const {
  for (size_t i = 0; i < used_.size(); ++i) {
    const gguf::Tensor& t = file_.tensors()[i];
    const int64_t block = block_of(t.name);
    bool harmless = used_[i] || (block >= d.n_layers && block < d.n_layers + d.n_skipped_blocks);
    for (const std::string_view end : kHarmlessTensors) harmless = harmless || ends_with(t.name, end);
    for (const std::string_view start : kTowerTensors) harmless = harmless || t.name.compare(0, start.size(), start) == 0;
    if (harmless) continue;
    Status s = error(Code::unsupported_architecture, "%s: tensor '%s' is not a part of architecture '%s' with %d layers as it is run here",
                     file_.path().c_str(), gguf::printable(t.name).c_str(), d.family, d.n_layers);
    s.detail().offset = t.offset;
    return s;
  }
  return ok_status();
}

}  // namespace orrery::model

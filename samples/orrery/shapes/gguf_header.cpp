#include "shapes/gguf_header.h"

#include <cstring>

namespace orrery::tool {

namespace {
constexpr uint64_t kAlignment = 32;
constexpr uint32_t kU32 = 4, kI32 = 5, kFloat = 6, kBool = 7, kText = 8, kArray = 9;
}  // namespace

template <class T>
void GgufHeader::append(std::string* to, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  to->append(bytes, sizeof value);
}

void GgufHeader::append_text(std::string* to, const std::string& text) {
  append(to, uint64_t{text.size()});
  *to += text;
}

void GgufHeader::begin(const std::string& name, uint32_t type) {
  append_text(&keys_, name);
  append(&keys_, type);
  ++n_keys_;
}

void GgufHeader::begin_array(const std::string& name, uint32_t type, uint64_t n) {
  begin(name, kArray);
  append(&keys_, type);
  append(&keys_, n);
}

void GgufHeader::key(const std::string& name, const std::string& text) { begin(name, kText), append_text(&keys_, text); }
void GgufHeader::key(const std::string& name, uint32_t value) { begin(name, kU32), append(&keys_, value); }
void GgufHeader::key(const std::string& name, float value) { begin(name, kFloat), append(&keys_, value); }
void GgufHeader::key(const std::string& name, bool value) { begin(name, kBool), append(&keys_, static_cast<uint8_t>(value)); }
void GgufHeader::key(const std::string& name, const std::vector<int32_t>& values) {
  begin_array(name, kI32, values.size());
  for (const int32_t value : values) append(&keys_, value);
}
void GgufHeader::key(const std::string& name, const std::vector<bool>& values) {
  begin_array(name, kBool, values.size());
  for (const bool value : values) append(&keys_, static_cast<uint8_t>(value));
}
void GgufHeader::key(const std::string& name, const std::vector<std::string>& texts) {
  begin_array(name, kText, texts.size());
  for (const std::string& text : texts) append_text(&keys_, text);
}
void GgufHeader::key(const std::string& name, const std::vector<float>& values) {
  begin_array(name, kFloat, values.size());
  for (const float value : values) append(&keys_, value);
}

void GgufHeader::tensor(const std::string& name, const std::vector<uint64_t>& dims, const WeightType& type) {
  uint64_t n = 1;
  for (const uint64_t dim : dims) n *= dim;
  const uint64_t bytes = n / type.block * type.bytes;
  tensors_.push_back({name, dims, type, data_bytes_, bytes});
  data_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t GgufHeader::n_weights() const {
  uint64_t n = 0;
  for (const Tensor& t : tensors_) n += t.bytes / t.type.bytes * t.type.block;
  return n;
}

std::string GgufHeader::bytes() const {
  std::string out = "GGUF";
  append(&out, uint32_t{3});
  append(&out, uint64_t{tensors_.size()});
  append(&out, n_keys_);
  out += keys_;
  for (const Tensor& t : tensors_) {
    append_text(&out, t.name);
    append(&out, static_cast<uint32_t>(t.dims.size()));
    for (const uint64_t dim : t.dims) append(&out, dim);
    append(&out, t.type.id);
    append(&out, t.offset);
  }
  out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment);
  return out;
}

}  // namespace orrery::tool

// See gguf_builder.h. The writer shares no layout code with the loader, so that a mistake in one does not hide a mistake in the other.
#include "tests/support/gguf_builder.h"

#include <algorithm>

namespace orrery::testing {

size_t find_bytes(const Bytes& file, std::string_view text) {
  const auto* p = reinterpret_cast<const std::byte*>(text.data());
  return static_cast<size_t>(std::search(file.begin(), file.end(), p, p + text.size()) - file.begin());
}

GgufBuilder& GgufBuilder::raw_key(std::string_view name, uint32_t type, const Bytes& value) {
  keys_.text(name).put(type).raw(value.data(), value.size());
  ++n_keys_;
  return *this;
}

GgufBuilder& GgufBuilder::key(std::string_view name, std::string_view v) {
  return raw_key(name, static_cast<uint32_t>(gguf::ValueType::string), ByteWriter().text(v).bytes);
}

GgufBuilder& GgufBuilder::array(std::string_view name, const std::vector<std::string>& v) {
  ByteWriter w;
  w.put(gguf::ValueType::string).put(uint64_t{v.size()});
  for (const std::string& s : v) w.text(s);
  return raw_key(name, static_cast<uint32_t>(gguf::ValueType::array), w.bytes);
}

GgufBuilder& GgufBuilder::array(std::string_view name, const std::vector<bool>& v) {
  ByteWriter w;
  w.put(gguf::ValueType::boolean).put(uint64_t{v.size()});
  for (const bool b : v) w.put(static_cast<uint8_t>(b));
  return raw_key(name, static_cast<uint32_t>(gguf::ValueType::array), w.bytes);
}

GgufBuilder& GgufBuilder::alignment(uint32_t a) {
  alignment_ = a;
  return key("general.alignment", a);
}

GgufBuilder& GgufBuilder::tensor(std::string_view name, TensorType type, std::vector<uint64_t> dims, Bytes data) {
  if (data.empty()) {
    uint64_t n = 1;
    for (const uint64_t d : dims) n *= d;
    data.resize(row_bytes(type, n));
  }
  const auto n_dims = static_cast<uint32_t>(dims.size());
  tensors_.push_back({std::string(name), n_dims, std::move(dims), static_cast<uint32_t>(type), data_.size()});
  data_.insert(data_.end(), data.begin(), data.end());
  while (data_.size() % alignment_ != 0) data_.push_back(std::byte{0});
  return *this;
}

GgufBuilder& GgufBuilder::raw_tensor(std::string_view name, uint32_t n_dims, const std::vector<uint64_t>& dims, uint32_t type,
                                     uint64_t offset) {
  tensors_.push_back({std::string(name), n_dims, dims, type, offset});
  return *this;
}

Bytes GgufBuilder::build() const {
  ByteWriter w;
  w.raw("GGUF", 4).put(version_);
  w.put(claimed_tensors_.value_or(tensors_.size())).put(claimed_keys_.value_or(n_keys_));
  w.raw(keys_.bytes.data(), keys_.bytes.size());
  for (const Entry& t : tensors_) {
    w.text(t.name).put(t.n_dims);
    for (const uint64_t d : t.dims) w.put(d);
    w.put(t.type).put(t.offset);
  }
  if (!tensors_.empty())
    while (w.bytes.size() % alignment_ != 0) w.put(uint8_t{0});
  w.raw(data_.data(), data_.size());
  return std::move(w.bytes);
}

}  // namespace orrery::testing

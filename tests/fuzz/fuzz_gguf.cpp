// GGUF bytes through File::parse(); whatever is accepted is then used as a model loader would use it, and
// what parse() promises is checked: a broken promise traps.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/gguf.h"

using namespace orrery;
using namespace orrery::gguf;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Reads every byte of a value; gives a number that depends on all of them, so that no read is optimised away.
uint64_t touch(const Value& v, int depth) {
  uint64_t u = 0, sum = v.size();
  int64_t i = 0;
  double d = 0;
  bool b = false;
  std::string_view s;
  if (v.as_u64(&u)) sum += u;
  if (v.as_i64(&i)) sum += static_cast<uint64_t>(i);
  if (v.as_f64(&d)) sum += d > 0;
  if (v.as_bool(&b)) sum += b;
  if (v.as_string(&s))
    for (const char c : s) sum = sum * 31 + static_cast<uint8_t>(c);
  if (v.type() == ValueType::array) {
    require(depth < 100);
    for (uint64_t n = 0; n < v.size(); ++n) {
      require(v.at(n).type() == v.element_type());
      sum += touch(v.at(n), depth + 1);
    }
    sum += touch(v.at(v.size()), depth + 1);  // out of range
  }
  return sum;
}

void check_error(const ErrorDetail& e, size_t size) {
  require(e.code == Code::bad_model || e.code == Code::unsupported_quantization);
  require(e.message.compare(0, 5, "fuzz:") == 0 && e.message.size() < 2000);
  require(e.offset <= size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  Result<File> parsed = File::parse({bytes, size}, "fuzz");
  if (!parsed.ok()) {
    check_error(parsed.status().detail(), size);
    return 0;
  }
  const File& file = *parsed;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < file.n_keys(); ++i) {
    const std::string_view key = file.key(i);
    require(!key.empty() && file.find(key) != nullptr);
    require(file.find(key)->type() == file.value(i).type());
    sum += touch(file.value(i), 0);
    const auto u = file.get_u64(key, 0);
    const auto d = file.get_f64(key, 0);
    const auto b = file.get_bool(key, false);
    const auto s = file.get_string(key, "");
    if (!u.ok()) check_error(u.status().detail(), size);
    if (!d.ok()) check_error(d.status().detail(), size);
    if (!b.ok()) check_error(b.status().detail(), size);
    if (!s.ok()) check_error(s.status().detail(), size);
  }
  std::vector<float> block(256);
  for (const Tensor& t : file.tensors()) {
    require(file.find_tensor(t.name) == &t);
    require(t.data == bytes + t.offset && t.offset <= size && t.bytes <= size - t.offset);
    require(t.offset % file.alignment() == 0 && t.n_elements > 0);
    const TypeTraits* traits = type_traits(t.type);
    require(traits != nullptr && t.bytes == t.n_elements / traits->block_elements * traits->block_bytes);
    dequantize_row(t.type, t.data, block.data(), traits->block_elements);
    dequantize_row(t.type, t.data + t.bytes - traits->block_bytes, block.data(), traits->block_elements);
    sum += block[0] > 0;
  }
  uint8_t sampled[16], full[16];
  file.fingerprint(false, sampled);
  file.fingerprint(true, full);
  require(std::memcmp(sampled, full, 16) != 0);
  const volatile uint64_t sink = sum;
  (void)sink;
  return 0;
}

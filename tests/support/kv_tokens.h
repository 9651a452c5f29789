// Tokens of one KV head as the KV types define them, by gguf's own conversions: K, and V behind it in a type of its own.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/backend/kv.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/quantize.h"
#include "tests/support/random_blocks.h"

namespace orrery::testing {

// All types of the table.
inline const std::vector<KvType> kKvTypes = [] {
  std::vector<KvType> types;
  for (const KvTypeRow& row : kKvTypeRows) types.push_back(row.type);
  return types;
}();
inline bool stores(KvType type, int32_t dim) { return !in_blocks(type) || dim % 32 == 0; }

inline std::vector<float> read_key(KvType type, const std::byte* at, uint64_t dim) {
  std::vector<float> out(dim);
  gguf::dequantize_row(key_tensor_type(type), at, out.data(), dim);
  return out;
}
// at: where V lies, not its token.
inline std::vector<float> read_value(KvType type, const std::byte* at, uint64_t dim) { return read_key(value_type(type), at, dim); }
inline void write_key(KvType type, const float* x, uint64_t dim, std::byte* at) { gguf::quantize_row(key_tensor_type(type), x, at, dim); }
inline void write_value(KvType type, const float* x, uint64_t dim, std::byte* at) { write_key(value_type(type), x, dim, at); }

// n tokens one behind the other: (n, K and V).
inline std::vector<float> read_tokens(KvType type, const std::byte* at, uint64_t dim, uint64_t n = 1) {
  std::vector<float> out(2 * n * dim);
  for (float* to = out.data(); n > 0; --n, to += 2 * dim, at += key_bytes(type, dim) + value_bytes(type, dim)) {
    gguf::dequantize_row(key_tensor_type(type), at, to, dim);
    gguf::dequantize_row(value_tensor_type(type), at + key_bytes(type, dim), to + dim, dim);
  }
  return out;
}
inline void write_tokens(KvType type, const float* values, uint64_t dim, uint64_t n, std::byte* at) {
  for (; n > 0; --n, values += 2 * dim, at += key_bytes(type, dim) + value_bytes(type, dim)) {
    write_key(type, values, dim, at);
    write_value(type, values + dim, dim, at + key_bytes(type, dim));
  }
}
// Random tokens, without the floats: for benchmarks, which need many.
inline void fill_random_tokens(KvType type, std::byte* at, uint64_t dim, uint64_t n, uint64_t seed) {
  for (uint64_t i = 0; i < n; ++i, at += key_bytes(type, dim) + value_bytes(type, dim)) {
    fill_random_blocks(key_tensor_type(type), at, dim, 2 * (seed + i), 1.0f);
    fill_random_blocks(value_tensor_type(type), at + key_bytes(type, dim), dim, 2 * (seed + i) + 1, 1.0f);
  }
}

// One K, from one type to another. Types that are equal keep the bytes.
inline std::vector<std::byte> converted_key(const std::byte* from, KvType from_type, KvType to_type, uint64_t dim) {
  std::vector<std::byte> out(key_bytes(to_type, dim));
  if (key_type(from_type) == key_type(to_type)) std::copy_n(from, out.size(), out.begin());
  else write_key(to_type, read_key(from_type, from, dim).data(), dim, out.data());
  return out;
}
inline std::vector<std::byte> converted_value(const std::byte* from, KvType from_type, KvType to_type, uint64_t dim) {
  return converted_key(from, value_type(from_type), value_type(to_type), dim);
}
inline std::vector<std::byte> converted_tokens(const std::byte* from, KvType from_type, KvType to_type, uint64_t dim, uint64_t n = 1) {
  std::vector<std::byte> out;
  for (; n > 0; --n, from += key_bytes(from_type, dim) + value_bytes(from_type, dim))
    for (const auto& half :
         {converted_key(from, from_type, to_type, dim), converted_value(from + key_bytes(from_type, dim), from_type, to_type, dim)})
      out.insert(out.end(), half.begin(), half.end());
  return out;
}

}  // namespace orrery::testing

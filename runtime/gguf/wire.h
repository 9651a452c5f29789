// Scalars as GGUF stores them: little-endian, at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/gguf/gguf.h"

namespace orrery::gguf {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor data is used where it lies: little-endian only");

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Bytes of a scalar. 0 for strings, arrays, and numbers that name no type.
constexpr uint64_t scalar_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean: return 1;
    case ValueType::u16:
    case ValueType::i16: return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32: return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64: return 8;
    case ValueType::string:
    case ValueType::array: break;
  }
  return 0;
}

}  // namespace orrery::gguf

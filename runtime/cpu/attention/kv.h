// Reads K and V of any KV type as floats, a vector at a time. Written over V; include after a file of vectors/.
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

template <KvType kType>
struct OfType {
  static constexpr KvType value = kType;
};
// body(OfType<type>()), for a type of the table (backend/kv.h). Not kMixed: the caller asks for no type whose K and V differ.
template <bool kMixed = true, size_t kRow = 0, class Body>
auto with_kv_type(KvType type, const Body& body) {
  constexpr KvTypeRow row = kKvTypeRows[kRow];
  if constexpr (kRow + 1 < kKvTypeCount) {
    if constexpr (kMixed || row.key == row.value) {
      if (type != row.type) return with_kv_type<kMixed, kRow + 1>(type, body);
      return body(OfType<row.type>());
    } else {
      return with_kv_type<kMixed, kRow + 1>(type, body);
    }
  } else if constexpr (kMixed || row.key == row.value) {
    return body(OfType<row.type>());
  } else {
    return body(OfType<row.value>());  // not reached: no caller without mixed types asks for the last row, which is one
  }
}

template <KvType kType>
V::F load_chunk(const std::byte* vector, int i) {
  switch (kType) {
    case KvType::f32: return V::load(reinterpret_cast<const float*>(vector) + i * V::kLanes);
    case KvType::f16: return V::load_half(vector + 2 * i * V::kLanes);
    case KvType::q8_0: return V::load_q8(reinterpret_cast<const uint8_t*>(vector), i);
    default: return V::load_q4(reinterpret_cast<const uint8_t*>(vector), i);
  }
}
// The last dimensions, if they are less than a vector. Block formats have whole vectors only.
template <KvType kType>
V::F load_last(const std::byte* vector, int i, int n) {
  if (kType == KvType::f32) return V::load_part(reinterpret_cast<const float*>(vector) + i * V::kLanes, n);
  return V::load_half_part(vector + 2 * i * V::kLanes, n);
}

}  // namespace
}  // namespace orrery::cpu

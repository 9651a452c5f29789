// Reads K and V of any KV type as floats, a vector at a time. Written over V; include after a file of vectors/.
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

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

// Host memory: how Policy::host_bytes() counts it, and how settle() keeps to that.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orrery::policy {

// Bytes of n elements.
template <class T>
constexpr uint64_t bytes_of(uint64_t n) {
  return n * sizeof(T);
}

// Gives the vector n elements with any values. Where it must grow, it frees its old memory first, so that old and new are never there
// together.
template <class Vector>
void resize_discarding(Vector* vector, size_t n) {
  if (vector->capacity() < n) *vector = Vector();
  vector->resize(n);
}

}  // namespace orrery::policy

// Host memory as Policy::host_bytes() counts it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orrery::policy {

// Host memory as a table counts it.
template <class T>
constexpr uint64_t bytes_of(uint64_t n) {
  return n * sizeof(T);
}
// The vector has n elements, any; what it had before is given back first, so that both are never there at once.
template <class Vector>
void renew(Vector* vector, size_t n) {
  if (vector->capacity() < n) *vector = Vector();
  vector->resize(n);
}

}  // namespace orrery::policy

// Arithmetic on sizes that come from files and callers. Every operation returns false if it overflows.
// Use: `uint64_t n; if (!checked_mul(a, b, &n)) return error(...)`.
#pragma once

#include <cstdint>

namespace orrery {

[[nodiscard]] inline bool checked_add(uint64_t a, uint64_t b, uint64_t* out) { return !__builtin_add_overflow(a, b, out); }
[[nodiscard]] inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* out) { return !__builtin_mul_overflow(a, b, out); }
// Rounds up to a multiple of `alignment`, a power of two.
[[nodiscard]] inline bool checked_align(uint64_t n, uint64_t alignment, uint64_t* out) {
  uint64_t sum;
  if (!checked_add(n, alignment - 1, &sum)) return false;
  *out = sum & ~(alignment - 1);
  return true;
}
// For sizes that are known to be small enough: validated before, or the library's own.
constexpr uint64_t align_up(uint64_t n, uint64_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }
template <class T>
constexpr T div_up(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace orrery

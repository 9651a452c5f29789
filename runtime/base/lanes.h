// Loops over floats in vectors of a stated number of bytes, for code outside the backends: a compiler lowers them for any processor. The
// results do not depend on the vectors: every operation is a lane's own, in single roundings.
//
// A loop is a template over Lanes, always inlined. On x86-64 it is compiled twice, as ORRERY_LANES shows: for the oldest processor, and for
// AVX2.
#pragma once

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace orrery {

template <int kBytes>
struct Lanes {
  static constexpr size_t kFloats = kBytes / sizeof(float), kDoubles = kBytes / sizeof(double);
  typedef float Floats __attribute__((vector_size(kBytes)));
  typedef float HalfOfFloats __attribute__((vector_size(kBytes / 2)));
  typedef int32_t Ints __attribute__((vector_size(kBytes)));
  typedef double Doubles __attribute__((vector_size(kBytes)));
  typedef int64_t Longs __attribute__((vector_size(kBytes)));
};

#define ORRERY_LANES_INLINE [[gnu::always_inline]] inline

// ORRERY_LANES(result, name, (parameters), (arguments)): defines `name` by name_in<Lanes<...>>.
#if defined(__x86_64__) && !defined(ORRERY_OLDEST_LANES)  // a test asks for the oldest processor's form
inline bool has_avx2() { return __builtin_cpu_supports("avx2"); }
#define ORRERY_LANES(Result, name, parameters, arguments)                                          \
  [[gnu::target("avx2")]] Result name##_avx2 parameters { return name##_in<Lanes<32>> arguments; } \
  Result name##_any parameters { return name##_in<Lanes<16>> arguments; }                          \
  Result name parameters { return has_avx2() ? name##_avx2 arguments : name##_any arguments; }
#else
#define ORRERY_LANES(Result, name, parameters, arguments) \
  Result name parameters { return name##_in<Lanes<16>> arguments; }
#endif

// The loads of a logit: +infinity becomes the largest float. A NaN stays, and what follows says how it counts.
template <class L>
ORRERY_LANES_INLINE void load_numbers(const float* from, typename L::Floats* to) {
  typename L::Floats x;
  std::memcpy(&x, from, sizeof x);
  const typename L::Floats most = typename L::Floats{} + FLT_MAX;
  *to = most < x ? most : x;
}
template <class L>
ORRERY_LANES_INLINE void widen(const typename L::Floats& x, typename L::Doubles (&to)[2]) {
  typename L::HalfOfFloats halves[2];
  std::memcpy(halves, &x, sizeof x);
  to[0] = __builtin_convertvector(halves[0], typename L::Doubles);
  to[1] = __builtin_convertvector(halves[1], typename L::Doubles);
}

}  // namespace orrery

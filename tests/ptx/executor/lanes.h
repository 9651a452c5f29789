// Loops over a warp's lanes that the compiler turns into vector instructions. An operation is a struct with a function of one lane's
// values.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "tests/ptx/executor/machine.h"

// The lanes of the next loop do not depend on each other.
#if defined(__clang__)
#define ORRERY_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define ORRERY_IVDEP _Pragma("GCC ivdep")
#endif

namespace orrery::ptx {

// out[l] = F(in[l]...) for the lanes of `mask`; the other lanes keep what they had.
template <class F, class D, class... A>
inline void for_lanes(D* out, uint32_t mask, const A*... in) {
  if (mask == kAll) {
    ORRERY_IVDEP
    for (unsigned l = 0; l < kLanes; ++l) out[l] = F{}(in[l]...);
    return;
  }
  alignas(64) D all[kLanes];
  ORRERY_IVDEP
  for (unsigned l = 0; l < kLanes; ++l) all[l] = F{}(in[l]...);
  ORRERY_IVDEP
  for (unsigned l = 0; l < kLanes; ++l) out[l] = mask >> l & 1 ? all[l] : out[l];
}

// A bit for each lane whose word is not zero.
inline uint32_t lane_bits(const uint32_t* words) {  // each 0 or ~0
  uint32_t bits = 0;
#if defined(__AVX2__)
  for (unsigned i = 0; i < 4; ++i)
    bits |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(words) + i))))
            << 8 * i;
#else
  for (unsigned l = 0; l < kLanes; ++l) bits |= (words[l] & 1) << l;
#endif
  return bits;
}

// The executing functions of instructions with one destination, by the types of destination and sources.
template <class F, class D, class A>
void unary(Warp& w, const Instruction& i, uint32_t m) {
  for_lanes<F>(w.lanes<D>(i.operand[0]), m, w.lanes<const A>(i.operand[1]));
}
template <class F, class D, class A, class B = A>
void binary(Warp& w, const Instruction& i, uint32_t m) {
  for_lanes<F>(w.lanes<D>(i.operand[0]), m, w.lanes<const A>(i.operand[1]), w.lanes<const B>(i.operand[2]));
}
template <class F, class D, class A, class B = A, class C = A>
void ternary(Warp& w, const Instruction& i, uint32_t m) {
  for_lanes<F>(w.lanes<D>(i.operand[0]), m, w.lanes<const A>(i.operand[1]), w.lanes<const B>(i.operand[2]), w.lanes<const C>(i.operand[3]));
}
// F says true or false of two values: a predicate.
template <class F, class A>
void compare(Warp& w, const Instruction& i, uint32_t m) {
  alignas(64) uint32_t words[kLanes];
  const A *a = w.lanes<const A>(i.operand[1]), *b = w.lanes<const A>(i.operand[2]);
  for (unsigned l = 0; l < kLanes; ++l) words[l] = F{}(a[l], b[l]) ? ~0u : 0u;
  w.set_predicate(i.operand[0], lane_bits(words), m);
}

}  // namespace orrery::ptx

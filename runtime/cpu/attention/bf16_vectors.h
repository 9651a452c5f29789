// Prefill attention on vectors of bf16 pairs (attention/bf16_attend.h). Include after vectors/avx512.h.
//
// A block's sixteen sums take a register each: for sixteen keys, or for sixteen dimensions of the output. A pair of a key's
// dimensions, or of a dimension's keys, is repeated in all lanes and multiplied with a pair for each of sixteen queries. While
// these products hold the multiplying ports, the softmax of the block before uses the other ports.
//
// Measured on an AMD EPYC with AVX-512: tests/bench/results/cpu-avx512.md.
#pragma once

#include "runtime/cpu/attention/bf16_attend.h"
#include "runtime/cpu/products/bf16_products.h"

namespace orrery::cpu {
namespace {

template <int kSteps>
class VectorAttention : public BlockAttention<kSteps, VectorAttention<kSteps>> {
  using Base = BlockAttention<kSteps, VectorAttention<kSteps>>;
  friend Base;

 public:
  explicit VectorAttention(const PrefillTask& t) : Base(t) {}

 private:
  using Base::keys;
  using Base::kValueSteps;
  using Base::lanes;
  using Base::o;
  using Base::q;
  using Base::scores;
  using Base::values;
  using Base::weights;

  // sums[i] += row i (64 bytes of pairs) times sixteen vectors of pairs.
  static void add_products(const std::byte* rows, const std::byte* pairs, V::F (&sums)[kQueries]) {
    for (int pair = 0; pair < kQueries; ++pair) {
      const V::I x = V::load_i(pairs + pair * 64);
#pragma GCC unroll 16
      for (int i = 0; i < kQueries; ++i) sums[i] = add_pairs(sums[i], x, repeated_pair(rows + i * 64 + pair * 4));
    }
  }
  // Scores of the i-th sixteen keys. The number that makes them fixed point is added last. If it came first, each sum would be
  // rounded to its places.
  void multiply_keys(int64_t b, int i) {
    V::F sums[kQueries];
#pragma GCC unroll 16
    for (V::F& sum : sums) sum = V::zero();
#pragma GCC unroll 1
    for (int step = 0; step < kSteps; ++step) add_products(keys(step) + i * kTileBytes, q(b, step), sums);
    const V::F start = V::load(lanes(b).start);
#pragma GCC unroll 16
    for (int j = 0; j < kQueries; ++j) V::store(scores(b) + (i * kQueries + j) * kQueries, V::add(sums[j], start));
  }
  // Outputs of half a step's dimensions.
  void multiply_values(int64_t b, const std::byte* rows, const float* from, float* out) {
    V::F sums[kQueries];
#pragma GCC unroll 16
    for (int i = 0; i < kQueries; ++i) sums[i] = V::load(from + i * kQueries);
#pragma GCC unroll 1
    for (int half = 0; half < 2; ++half) add_products(rows + half * kTileBytes, weights(b) + half * kTileBytes, sums);
#pragma GCC unroll 16
    for (int i = 0; i < kQueries; ++i) V::store(out + i * kQueries, sums[i]);
  }

  template <bool kSoften, bool kNext, bool kLast>
  __m512i work(int64_t b) {
    constexpr int kSlots = (kNext ? 4 : 0) + (kLast ? 2 * kValueSteps : 0);
    __m512i seen = V::zero_i();
    int slot = 0;
    const auto soften = [&](int n_slots) {
      if (kSoften)
        seen = soften_pairs<false>(scores(b), kPairs * slot / n_slots, kPairs * (slot + 1) / n_slots, V::zero(), weights(b), seen);
      ++slot;
    };
    if (kSlots == 0) soften(1);
    for (int i = 0; i < 4 && kNext; ++i) {
      multiply_keys(b + 1, i);
      soften(kSlots);
    }
    if (kLast) add_weights(b - 1);
    for (int i = 0; i < 2 * kValueSteps && kLast; ++i) {
      float* out = o(b - 1, 0) + i * kQueries * kQueries;
      multiply_values(b - 1, values(0) + 2 * i * kTileBytes, out, out);
      soften(kSlots);
    }
    return seen;
  }

  void add_weights(int64_t b) {
    const V::I ones = V::set_i(0x3F803F80);
    V::F sums[4] = {V::load(lanes(b).sum), V::zero(), V::zero(), V::zero()};
    for (int pair = 0; pair < kPairs; pair += 4)
      for (int i = 0; i < 4; ++i) sums[i] = add_pairs(sums[i], V::load_i(weights(b) + (pair + i) * 64), ones);
    V::store(lanes(b).sum, V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
  }
  void add_values(int64_t b, int step, const std::byte* rows, float* out) {
    for (int half = 0; half < 2; ++half)
      multiply_values(b, rows + half * 2 * kTileBytes, o(b, step) + half * kQueries * kQueries, out + half * kQueries * kQueries);
  }
};

}  // namespace
}  // namespace orrery::cpu

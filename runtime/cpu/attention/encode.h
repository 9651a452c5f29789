// Codes of keys (runtime/backend/key_codes.h). Written over V. Sums run in kChains chains, and chains are added in a fixed order, so that
// every instruction set has the same bits.
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

constexpr int kChains = 16, kChainVectors = kChains / V::kLanes;

struct Chains {
  V::F sums[kChainVectors];
  Chains() {
    for (V::F& x : sums) x = V::zero();
  }
  void add(int v, V::F x, V::F y) { sums[v] = V::add(sums[v], V::mul(x, y)); }
  float total() const {
    alignas(64) float x[kChains];
    for (int v = 0; v < kChainVectors; ++v) V::store(x + v * V::kLanes, sums[v]);
    const auto four = [&](int i) { return (x[i] + x[i + 8]) + (x[i + 4] + x[i + 12]); };
    return (four(0) + four(2)) + (four(1) + four(3));
  }
};

// x (n; a multiple of two vectors) becomes (n / 2): the first number of each pair plus `weight` times the second.
inline void join_pairs(float* x, int n, float weight) {
  for (int i = 0; i < n; i += 2 * V::kLanes) {
    V::F a = V::load(x + i), b = V::load(x + i + V::kLanes);
    V::apart(a, b);
    V::store(x + i / 2, V::fma(b, V::set(weight), a));
  }
}

template <int kBits>
void encode_by(const EncodeTask& t) {
  constexpr int kEdges = (1 << kBits) - 1, kUnit = 128 / kBits;  // codes of a whole number of blocks of 32 groups
  constexpr int kMost = (kMostGroups * 4 / kBits + kUnit - 1) / kUnit * kUnit;
  constexpr auto kHalf = static_cast<int32_t>(KeyCodeFormat::kGroupBytes);
  const int dim = t.codes.head_dim, end = (dim + kChains - 1) / kChains * kChains, left = dim % kChains;
  alignas(64) float last[kChains] = {}, codes[kMost];
  __builtin_memcpy(last, t.key + (dim - left), static_cast<size_t>(left) * sizeof(float));
  const auto values = [&](int first) { return first + kChains <= dim ? t.key + first : last; };
  Chains squares, with_levels, of_levels;
  for (int first = 0; first < end; first += kChains)
    for (int v = 0; v < kChainVectors; ++v) {
      const V::F x = V::load(values(first) + v * V::kLanes);
      squares.add(v, x, x);
    }
  const float unit = __builtin_sqrtf(squares.total() / static_cast<float>(dim));
  V::F edges[kEdges];  // between a level and the next
  for (int i = 0; i < kEdges; ++i) edges[i] = V::set(unit * (.5f * (key_code_level(kBits, i) + key_code_level(kBits, i + 1))));
  for (int first = 0; first < end; first += kChains)
    for (int v = 0; v < kChainVectors; ++v) {
      const V::F x = V::load(values(first) + v * V::kLanes);
      V::F code = V::zero(), level = V::set(key_code_level(kBits, 0));
      for (int i = 0; i < kEdges; ++i) {
        const V::F beyond = V::sub(x, edges[i]);
        code = V::add(code, V::zero_below(V::set(1.0f), beyond, 1e-45f));
        level = V::add(level, V::zero_below(V::set(key_code_level(kBits, i + 1) - key_code_level(kBits, i)), beyond, 1e-45f));
      }
      if (const int n = dim - first - v * V::kLanes; n < V::kLanes) {  // beyond the key's end
        const int m = n > 0 ? n : 0;
        alignas(64) float both[2][V::kLanes];
        V::store(both[0], code), V::store(both[1], level);
        for (int i = m; i < V::kLanes; ++i) both[0][i] = both[1][i] = 0;
        code = V::load(both[0]), level = V::load(both[1]);
      }
      V::store(codes + first + v * V::kLanes, code);
      with_levels.add(v, x, level), of_levels.add(v, level, level);
    }
  int n = (end + kUnit - 1) / kUnit * kUnit;
  for (int i = end; i < n; ++i) codes[i] = 0;
  if (kBits == 1) join_pairs(codes, n, 2), join_pairs(codes, n /= 2, 4);
  if (kBits == 2) join_pairs(codes, n, 4);
  uint8_t* row = t.tile + t.at % kHalf;
  const int shift = t.at < kHalf ? 0 : 4, n_groups = t.codes.n_groups();
  const auto other = static_cast<uint8_t>(0xF0 >> shift);  // another key's bits
  for (int first = 0; first < n_groups; first += 32) {
    int8_t groups[32];
    int16_t sums[2];
    V::quantize32(V::load32(codes + first), 1.0f, groups, sums);
    for (int i = 0; i < 32 && first + i < n_groups; ++i, row += kHalf) *row = static_cast<uint8_t>((*row & other) | groups[i] << shift);
  }
  constexpr float kLargestHalf = 65504, kInfinite = __builtin_inff();
  const float factor = with_levels.total() / of_levels.total();
  *t.factor = !(unit < kInfinite) ? __builtin_nanf("") : factor < kLargestHalf ? factor : kLargestHalf;
}

void encode_key(const EncodeTask& task) {
  switch (task.codes.bits) {
    case 1: return encode_by<1>(task);
    case 2: return encode_by<2>(task);
    default: return encode_by<4>(task);
  }
}

}  // namespace
}  // namespace orrery::cpu

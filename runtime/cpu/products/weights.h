// Weights, as products for decode and prefill read them: their formats, rows that end within 256 columns, float types, and the
// stores of sums. Written over V; include after a file of vectors/ and the formats in registers.
#pragma once

#include <type_traits>

#include "runtime/cpu/formats/bands.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

// Calls `blocks` with the traits of a quantized format, or `floats` with the tag of a float type.
template <class Blocks, class Floats>
void by_type(TensorType type, const Blocks& blocks, const Floats& floats) {
  switch (type) {
    case TensorType::f32: return floats(std::integral_constant<TensorType, TensorType::f32>());
    case TensorType::f16: return floats(std::integral_constant<TensorType, TensorType::f16>());
    case TensorType::bf16: return floats(std::integral_constant<TensorType, TensorType::bf16>());
    case TensorType::q8_0: return blocks(Q8_0());
    case TensorType::q4_0: return blocks(Q4_0());
    case TensorType::q4_1: return blocks(Q4_1());
    case TensorType::q5_0: return blocks(Q5_0());
    case TensorType::q5_1: return blocks(Q5_1());
    case TensorType::q2_k: return blocks(Q2K());
    case TensorType::q3_k: return blocks(Q3K());
    case TensorType::q4_k: return blocks(Q4K());
    case TensorType::q5_k: return blocks(Q5K());
    case TensorType::q6_k: return blocks(Q6K());
    case TensorType::iq4_nl: return blocks(Iq4Nl());
    case TensorType::iq4_xs: return blocks(Iq4Xs());
    case TensorType::iq3_xxs: return blocks(Iq3Xxs());
    case TensorType::iq3_s: return blocks(Iq3S());
    case TensorType::iq2_xxs: return blocks(Iq2Xxs());
    case TensorType::iq2_xs: return blocks(Iq2Xs());
    case TensorType::iq2_s: return blocks(Iq2S());
    case TensorType::nvfp4: return blocks(Nvfp4());
    case TensorType::mxfp4: return blocks(Mxfp4());
  }
}

// Products over bands (formats/bands.h) of a format. products/bands_avx2.h specializes it for the formats that have them.
// kAsPrefill: whether they give the bits of prefill.
template <class Format>
struct Bands {
  static constexpr bool kHas = false, kAsPrefill = false;
};
// The same products by kernels of its own, where an instruction set has them for kFewest rows of activations and more
// (products/bands_avx512.h). 0: it has none.
template <class Format>
struct WideRows {
  static constexpr int kFewest = 0;
};
inline bool in_bands(TensorType type) {
  bool has = false;
  by_type(
      type, [&](auto format) { has = Bands<decltype(format)>::kHas; }, [](auto) {});
  return has;
}
inline bool bands_as_prefill(TensorType type) {
  bool as_prefill = false;
  by_type(
      type, [&](auto format) { as_prefill = Bands<decltype(format)>::kAsPrefill; }, [](auto) {});
  return as_prefill;
}

// The next 256 columns of a row, or as many as are left: formats with blocks of 32 or 64 may end within them.
template <class Format>
void unpack_next(const uint8_t* p, int64_t columns_left, Unpacked& u) {
  if constexpr (Format::kBlock < 256)
    if (columns_left < 256) return Format::unpack_part(p, static_cast<int>(columns_left / Format::kBlock), u);
  Format::unpack(p, u);
}
// Groups among these columns.
template <class Format>
int n_groups(int64_t columns_left) {
  return static_cast<int>((columns_left < 256 ? columns_left : 256) / Format::kGroup);
}

// Prefetches weights that are read once. Without this, processors stop their own prefetching at the end of every page. Rows follow
// each other, and a prefetch beyond the last row does nothing. kNear: the distance in bytes at which lines still stay in the
// first-level cache. In two stages, lines first go to the second-level cache, since processors can have few misses under way to the first
// level, and more to the second. At 35 GB/s a core has 6 KB under way, so kFar is more: with 4096, F16 read 40 GB/s where it now reads 69.
// kLight: the weights unpack in few instructions.
template <int kNear, bool kLight = false, class W = V>
void prefetch_stream(const void* p, int bytes) {
  constexpr int kFar = 8192;
  constexpr bool kTwoStages = kLight ? W::kLightInTwoStages : W::kTwoStages;
  for (int i = 0; i < bytes; i += 64) {
    const char* line = static_cast<const char*>(p) + i;
    __builtin_prefetch(line + (kTwoStages ? 1024 : kNear));
    if (kTwoStages) __builtin_prefetch(line + kFar, 0, 2);
  }
}

inline void store_outputs(const MatmulTask& t, int64_t row, int64_t o, const float* sums, int n) {
  float* out = t.out + row * t.out_stride + o;
  int i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) {
    V::F sum = V::load(sums + i);
    if (t.bias) sum = V::add(sum, V::load(t.bias + o + i));
    V::store(out + i, t.accumulate ? V::add(V::load(out + i), sum) : sum);
  }
  for (; i < n; ++i) {
    float sum = sums[i];
    if (t.bias) sum += t.bias[o + i];
    out[i] = t.accumulate ? out[i] + sum : sum;
  }
}

template <TensorType kType>
constexpr int kFloatBytes = kType == TensorType::f32 ? 4 : 2;
template <TensorType kType>
V::F load_weights(const std::byte* w, int64_t i) {
  if (kType == TensorType::f32) return V::load(reinterpret_cast<const float*>(w) + i);
  return kType == TensorType::f16 ? V::load_half(w + 2 * i) : V::load_bfloat(w + 2 * i);
}
template <TensorType kType>
V::F load_weights_part(const std::byte* w, int64_t i, int n) {
  if (kType == TensorType::f32) return V::load_part(reinterpret_cast<const float*>(w) + i, n);
  return kType == TensorType::f16 ? V::load_half_part(w + 2 * i, n) : V::load_bfloat_part(w + 2 * i, n);
}

}  // namespace
}  // namespace orrery::cpu

// The operations on rows of activations: quantize, norm, rope, swiglu, add; and KV vectors to their types. Written over V; include
// after a file of vectors/.
#pragma once

#include <cmath>

#include "runtime/cpu/formats/blocks.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

// e^x to about one unit in the last place (tests hold silu, with its division, to three). 0 below -104, infinity above 89, NaN for
// NaN. x = n ln 2 + r, with ln 2 in two parts so that r keeps its last bit. Then a polynomial for e^r on |r| <= ln 2 / 2.
inline V::F exponential(V::F x) {
  x = V::min(V::set(89.0f), V::max(V::set(-104.0f), x));  // this order keeps NaN
  const V::F n = V::nearest(V::mul(x, V::set(1.44269504088896f)));
  V::F r = V::fnma(n, V::set(0.693359375f), x);
  r = V::fnma(n, V::set(-2.12194440054690583e-4f), r);
  V::F p = V::set(1.0f / 5040);
  p = V::fma(p, r, V::set(1.0f / 720));
  p = V::fma(p, r, V::set(1.0f / 120));
  p = V::fma(p, r, V::set(1.0f / 24));
  p = V::fma(p, r, V::set(1.0f / 6));
  p = V::fma(p, r, V::set(0.5f));
  p = V::fma(p, r, V::set(1.0f));
  p = V::fma(p, r, V::set(1.0f));
  return V::scale_by_power(p, n);
}

inline void quantize_row(const float* x, int64_t n, std::byte* out) {
  const int64_t padded = padded_columns(n);
  int8_t* q = reinterpret_cast<int8_t*>(out);
  float* d = reinterpret_cast<float*>(out + padded);
  int16_t* sums = reinterpret_cast<int16_t*>(out + padded + padded / 32 * 4);
  for (int64_t i = 0; i < padded; i += 32, q += 32, ++d, sums += 2) {
    float tail[32] = {};
    const float* from = x + i;
    if (n - i < 32) {
      for (int64_t j = i; j < n; ++j) tail[j - i] = x[j];
      from = tail;
    }
    const V::Block32 block = V::load32(from);
    const uint32_t largest = V::largest_bits(block);
    float max;
    __builtin_memcpy(&max, &largest, sizeof max);
    float inverse = 0;
    *d = 0;
    if (largest >= 0x7F800000u) {
      *d = __builtin_nanf("");
    } else if (max >= kSmallestBlockMax) {
      *d = max / 127.0f;
      inverse = 127.0f / max;
    }
    if (inverse == 0) {
      __builtin_memset(q, 0, 32);
      sums[0] = sums[1] = 0;
    } else {
      V::quantize32(block, inverse, q, sums);
    }
  }
}

inline void rms_norm(const float* x, const float* weight, float* out, int64_t dim, float eps) {
  const double mean = V::sum_squares(x, dim) / static_cast<double>(dim);
  const V::F scale = V::set(static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps))));
  int64_t i = 0;
  if (!weight) {
    for (; i + V::kLanes <= dim; i += V::kLanes) V::store(out + i, V::mul(V::load(x + i), scale));
    if (i < dim) V::store_part(out + i, V::mul(V::load_part(x + i, static_cast<int>(dim - i)), scale), static_cast<int>(dim - i));
    return;
  }
  for (; i + V::kLanes <= dim; i += V::kLanes) V::store(out + i, V::mul(V::mul(V::load(x + i), scale), V::load(weight + i)));
  if (i < dim) {
    const int left = static_cast<int>(dim - i);
    V::store_part(out + i, V::mul(V::mul(V::load_part(x + i, left), scale), V::load_part(weight + i, left)), left);
  }
}

// R rows times T tiles of B, whose sums stay in registers. Every output is its own chain of sums, so its bits depend on neither R nor T.
template <int R, int T>
void add_low_rank_tiles(const AdapterTask& t, int64_t r, int64_t o) {
  constexpr int kVectors = T * static_cast<int>(kAdapterTile) / V::kLanes;
  const int64_t tile_floats = t.rank * kAdapterTile;
  const float* const b = t.b + o / kAdapterTile * tile_floats;
  V::F sums[R][kVectors];
  for (auto& row : sums)
    for (V::F& sum : row) sum = V::zero();
  for (int64_t k = 0; k < t.rank; ++k)
    for (int v = 0; v < kVectors; ++v) {
      constexpr int kOfTile = static_cast<int>(kAdapterTile) / V::kLanes;
      const float* const at = b + v / kOfTile * tile_floats + k * kAdapterTile + v % kOfTile * V::kLanes;
      if (R == 1 && v % kOfTile == 0) __builtin_prefetch(at + T * tile_floats);  // the next tiles' cache line
      const V::F weights = V::load(at);
      for (int i = 0; i < R; ++i) sums[i][v] = V::fma(weights, V::set(t.low[(r + i) * t.low_stride + k]), sums[i][v]);
    }
  const V::F scale = V::set(t.scale);
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = o + v * V::kLanes;
      float* const out = t.out + (r + i) * t.out_stride + at;
      if (at + V::kLanes <= t.last_out) {
        V::store(out, V::fma(scale, sums[i][v], V::load(out)));
      } else if (at < t.last_out) {
        const int left = static_cast<int>(t.last_out - at);
        V::store_part(out, V::fma(scale, sums[i][v], V::load_part(out, left)), left);
      }
    }
}

inline void add_low_rank(const AdapterTask& t) {
  constexpr int64_t kRows = 4, kTiles = 4;
  for (int64_t r = 0; r < t.n_rows;) {
    const int64_t n = t.n_rows - r >= kRows ? kRows : 1;
    int64_t o = t.first_out;
    if (n == 1)
      for (; o + kTiles * kAdapterTile <= t.last_out; o += kTiles * kAdapterTile) add_low_rank_tiles<1, kTiles>(t, r, o);
    for (; o < t.last_out; o += kAdapterTile) n == 1 ? add_low_rank_tiles<1, 1>(t, r, o) : add_low_rank_tiles<kRows, 1>(t, r, o);
    r += n;
  }
}

// Plain loops: the compiler vectorises them well.
inline void rope(float* x, const float* cosines, const float* sines, int32_t n_rot, bool interleaved, int32_t n_heads, int32_t head_dim) {
  const int32_t half = n_rot / 2;
  for (int32_t h = 0; h < n_heads; ++h, x += head_dim) {
    if (interleaved) {
      for (int32_t i = 0; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosines[i] - b * sines[i];
        x[2 * i + 1] = a * sines[i] + b * cosines[i];
      }
    } else {
      for (int32_t i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = a * sines[i] + b * cosines[i];
      }
    }
  }
}

// Butterflies of lanes h apart: a + b in the lane of a, a - b in the lane of b. sign: 1 in the lanes of a, -1 in the lanes of b.
inline V::F butterfly(V::F x, V::F sign, int h) { return V::fma(x, sign, V::partners(x, h)); }

inline void transform_heads(float* x, const float* shift, int32_t n_heads, int32_t head_dim, int32_t block) {
  const int32_t n = n_heads * head_dim;
  int32_t i = 0;
  if (shift) {
    for (; i + V::kLanes <= n; i += V::kLanes) V::store(x + i, V::sub(V::load(x + i), V::load(shift + i)));
    for (; i < n; ++i) x[i] -= shift[i];
  }
  if (block <= 1) return;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(block));
  if (block < V::kLanes) {
    for (int32_t h = 1; h < block; h *= 2)
      for (i = 0; i < n; ++i)
        if ((i & h) == 0) {
          const float a = x[i], b = x[i + h];
          x[i] = a + b, x[i + h] = a - b;
        }
    for (i = 0; i < n; ++i) x[i] *= scale;
    return;
  }
  V::F signs[5];  // for h = 1, 2, 4, ... lanes
  int n_signs = 0;
  for (int h = 1; h < V::kLanes; h *= 2) {
    alignas(64) float lanes[V::kLanes];
    for (int lane = 0; lane < V::kLanes; ++lane) lanes[lane] = (lane & h) == 0 ? 1.0f : -1.0f;
    signs[n_signs++] = V::load(lanes);
  }
  for (float* at = x; at < x + n; at += block) {
    for (i = 0; i < block; i += V::kLanes) {
      V::F y = V::load(at + i);
      for (int s = 0; s < n_signs; ++s) y = butterfly(y, signs[s], 1 << s);
      V::store(at + i, y);
    }
    for (int32_t h = V::kLanes; h < block; h *= 2)
      for (i = 0; i < block; i += 2 * h)
        for (int32_t j = i; j < i + h; j += V::kLanes) {
          const V::F a = V::load(at + j), b = V::load(at + j + h);
          V::store(at + j, V::add(a, b));
          V::store(at + j + h, V::sub(a, b));
        }
    for (i = 0; i < block; i += V::kLanes) V::store(at + i, V::mul(V::load(at + i), V::set(scale)));
  }
}

inline V::F swiglu_vector(V::F gate, V::F up) {
  const V::F one = V::set(1.0f);
  return V::mul(V::div(gate, V::add(one, exponential(V::sub(V::zero(), gate)))), up);
}

inline void swiglu(const float* gate, const float* up, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(out + i, swiglu_vector(V::load(gate + i), V::load(up + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    V::store_part(out + i, swiglu_vector(V::load_part(gate + i, left), V::load_part(up + i, left)), left);
  }
}

// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u).
inline V::F geglu_vector(V::F x, V::F up) {
  const V::F inner = V::mul(V::set(-2.0f * kGeluScale), V::fma(V::mul(V::mul(x, x), x), V::set(kGeluCube), x));
  return V::mul(V::div(x, V::add(V::set(1.0f), exponential(inner))), up);
}

inline void geglu(const float* gate, const float* up, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(out + i, geglu_vector(V::load(gate + i), V::load(up + i)));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    V::store_part(out + i, geglu_vector(V::load_part(gate + i, left), V::load_part(up + i, left)), left);
  }
}

// tanh(y) = 1 - 2 / (1 + e^(2 y)): near 0 its error is that of 1.
inline V::F soft_cap_vector(V::F x, V::F twice, V::F cap) {
  const V::F one = V::set(1.0f);
  return V::mul(cap, V::sub(one, V::div(V::set(2.0f), V::add(one, exponential(V::mul(x, twice))))));
}

inline void soft_cap(float* x, int64_t n, float cap) {
  const V::F twice = V::set(2.0f / cap), most = V::set(cap);
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(x + i, soft_cap_vector(V::load(x + i), twice, most));
  if (i < n) {
    const int left = static_cast<int>(n - i);
    V::store_part(x + i, soft_cap_vector(V::load_part(x + i, left), twice, most), left);
  }
}

inline void add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

// A block of Q8_0, with the same bits as store_kv(): ties round away from zero, where the vector conversion rounds them to even.
inline void store_q8_0_block(const float* x, std::byte* out) {
  const V::Block32 block = V::load32(x);
  const uint32_t bits = V::largest_bits(block);
  if (bits >= 0x7F800000) return store_kv(TensorType::q8_0, x, 32, out);  // a value is not finite
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof largest);
  const float d = largest / 127.0f, reciprocal = 1.0f / d, inverse = reciprocal <= 3.4028234e38f ? reciprocal : 0.0f;
  const V::F one = V::set(1.0f);
  for (int i = 0; i < 32; i += V::kLanes) {
    const V::F y = V::mul(V::load(x + i), V::set(inverse)), r = V::nearest(y), twice = V::mul(V::sub(y, r), V::set(2.0f));
    const V::F up = V::equal_select(twice, 1.0f, V::zero_below(one, y, 0.0f), V::zero());
    const V::F down = V::equal_select(twice, -1.0f, V::zero_below(one, V::sub(V::zero(), y), 0.0f), V::zero());
    V::store_bytes(out + 2 + i, V::sub(V::add(r, up), down));
  }
  alignas(32) std::byte scale[2 * V::kLanes];
  V::store_half(scale, V::set(d));
  __builtin_memcpy(out, scale, 2);
}

// F16 goes through vectors, with the same bits as the portable conversion. Q8_0 is above; the portable code stores the other types.
inline void store_kv_vector(KvType type, const float* x, int32_t n, std::byte* out) {
  if (type == KvType::f16 && n % V::kLanes == 0) {
    for (int32_t i = 0; i < n; i += V::kLanes) V::store_half(out + 2 * i, V::load(x + i));
    return;
  }
  if (type == KvType::q8_0) {
    for (int32_t i = 0; i < n; i += 32) store_q8_0_block(x + i, out + i / 32 * 34);
    return;
  }
  store_kv(type == KvType::f32 ? TensorType::f32 : type == KvType::f16 ? TensorType::f16 : TensorType::q4_0, x, n, out);
}

}  // namespace
}  // namespace orrery::cpu

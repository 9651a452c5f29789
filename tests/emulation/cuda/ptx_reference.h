// The warp instructions of cuda/device/ptx.h, by their definition in the PTX manual. Each lane shows its registers to the other lanes; what
// takes the registers of all, the lane that arrives last computes for all. Only the emulated build includes this header, in ptx.h.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "emulated_half.h"
#include "emulated_words.h"

namespace orrery::emulated {

// A kernel runs when the kernels before it have ended.
inline void wait_for_earlier_kernels() { ++n_waited_for_earlier; }

// Ends the program if the address is not 16-byte aligned, because a device would refuse the load.
inline const void* aligned_16(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16 == 0) return p;
  std::fprintf(stderr, "emulated kernel, block (%u, %u, %u), thread %u: 16 bytes that are not aligned\n", blockIdx.x, blockIdx.y,
               blockIdx.z, threadIdx.x);
  std::abort();
}

struct Halves {
  float operator()(uint32_t word, unsigned i) const { return __half2float({static_cast<uint16_t>(word >> 16 * i)}); }
};
struct Bfloats {
  float operator()(uint32_t word, unsigned i) const { return __uint_as_float((word >> 16 * i & 0xFFFFu) << 16); }
};
struct SignedBytes {
  float operator()(uint32_t word, unsigned i) const { return static_cast<float>(static_cast<int8_t>(word >> 8 * i)); }
};

// mma: A (16, K) row-major, B (K, 8), with E elements in a register of 32 bits. Register r of A in lane l: row l/4 + 8 (r%2), columns
// E (l%4) + 4 E (r/2) and on; register r of B: column l/4, rows E (l%4) + 4 E r and on. C: c0, c1 row l/4, columns 2 (l%4) + {0, 1}; c2, c3
// 8 rows on. Each sum is of K products in their order; of bytes it is exact in a float.
template <unsigned E, unsigned K, class At>
__attribute__((noinline)) void sums_of_warp(std::byte* values, At at) {
  typedef float Row __attribute__((vector_size(32)));  // of B and C: eight columns
  constexpr unsigned kB = K / (4 * E), kA = 2 * kB;    // registers
  float a[16][K];
  Row b[K], c[16];
  for (unsigned l = 0; l < kWarp; ++l) {
    uint32_t r[kA + kB];
    std::memcpy(r, values + l * kMostExchanged, sizeof r);
    for (unsigned i = 0; i < kA; ++i)
      for (unsigned e = 0; e < E; ++e) a[l / 4 + 8 * (i % 2)][E * (l % 4) + 4 * E * (i / 2) + e] = at(r[i], e);
    for (unsigned i = 0; i < kB; ++i)
      for (unsigned e = 0; e < E; ++e) b[E * (l % 4) + 4 * E * i + e][l / 4] = at(r[kA + i], e);
  }
  for (unsigned row = 0; row < 16; row += 4) {
    Row c0 = {}, c1 = {}, c2 = {}, c3 = {};
    for (unsigned k = 0; k < K; ++k) {
      c0 += a[row][k] * b[k];
      c1 += a[row + 1][k] * b[k];
      c2 += a[row + 2][k] * b[k];
      c3 += a[row + 3][k] * b[k];
    }
    c[row] = c0, c[row + 1] = c1, c[row + 2] = c2, c[row + 3] = c3;
  }
  for (unsigned l = 0; l < kWarp; ++l) {
    const Row &upper = c[l / 4], &lower = c[l / 4 + 8];
    const float own[4] = {upper[2 * (l % 4)], upper[2 * (l % 4) + 1], lower[2 * (l % 4)], lower[2 * (l % 4) + 1]};
    std::memcpy(values + l * kMostExchanged, own, sizeof own);
  }
}
template <unsigned E, unsigned K, class Sum, class At>
void mma(Sum* d, const uint32_t* a, const uint32_t* b, const Sum* c, At at) {
  constexpr unsigned kB = K / (4 * E);
  uint32_t mine[3 * kB];  // registers of A, then of B
  std::memcpy(mine, a, 2 * kB * sizeof *a);
  std::memcpy(mine + 2 * kB, b, kB * sizeof *b);
  const std::byte* values = exchange<sizeof mine>(mine, [&](std::byte* shown) { sums_of_warp<E, K>(shown, at); });
  float sums[4];
  std::memcpy(sums, values + lane() * kMostExchanged, sizeof sums);
  for (unsigned i = 0; i < 4; ++i) d[i] = c[i] + static_cast<Sum>(sums[i]);
}
inline void mma_f16(float* c, const uint32_t* a, const uint32_t* b) { mma<2, 16>(c, a, b, c, Halves()); }
inline void mma_bf16(float* c, const uint32_t* a, const uint32_t* b) { mma<2, 16>(c, a, b, c, Bfloats()); }
inline int dot_unsigned(uint32_t a, uint32_t b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<uint8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline void mma_s8(int32_t* d, const uint32_t* a, const uint32_t* b, const int32_t* c) { mma<4, 32>(d, a, b, c, SignedBytes()); }
inline void mma_s8_k16(int32_t* d, const uint32_t* a, uint32_t b, const int32_t* c) { mma<4, 16>(d, a, &b, c, SignedBytes()); }

// What `for (int i = 16; i > 0; i /= 2) x = op(x, __shfl_xor_sync(kAllLanes, x, i));` gives each lane, by one exchange.
template <class T, class Op>
__attribute__((noinline)) void butterfly_of_warp(std::byte* values, Op op) {
  T x[kWarp], y[kWarp];
  for (unsigned l = 0; l < kWarp; ++l) std::memcpy(&x[l], values + l * kMostExchanged, sizeof(T));
  for (unsigned i = kWarp / 2; i > 0; i /= 2) {
    for (unsigned l = 0; l < kWarp; ++l) y[l] = op(x[l], x[l ^ i]);
    std::memcpy(x, y, sizeof x);
  }
  for (unsigned l = 0; l < kWarp; ++l) std::memcpy(values + l * kMostExchanged, &x[l], sizeof(T));
}
template <class T, class Op>
T butterfly(T x, Op op) {
  const std::byte* values = exchange<sizeof x>(&x, [&](std::byte* shown) { butterfly_of_warp<T>(shown, op); });
  std::memcpy(&x, values + lane() * kMostExchanged, sizeof x);
  return x;
}

// ldmatrix: n matrices of 8 rows of 16 bytes; lane 8 m + r gives the address of row r of matrix m; lane l receives, of
// each matrix, the four bytes 4 (l%4) of row l/4; transposed: the halves (2 (l%4), l/4) and (2 (l%4) + 1, l/4).
template <size_t N>
void load_matrices(uint32_t* out, const void* row, bool transposed) {
  const std::byte* values = exchange<sizeof row>(&row);
  const unsigned l = lane();
  const auto row_of = [&](size_t matrix, unsigned r) {
    const std::byte* p;
    std::memcpy(&p, values + (8 * matrix + r) * kMostExchanged, sizeof p);
    return p;
  };
  for (size_t m = 0; m < N; ++m) {
    if (!transposed) {
      std::memcpy(&out[m], static_cast<const std::byte*>(aligned_16(row_of(m, l / 4))) + 4 * (l % 4), 4);
    } else {
      uint16_t low, high;
      std::memcpy(&low, row_of(m, 2 * (l % 4)) + 2 * (l / 4), 2);
      std::memcpy(&high, row_of(m, 2 * (l % 4) + 1) + 2 * (l / 4), 2);
      out[m] = low | uint32_t{high} << 16;
    }
  }
}

}  // namespace orrery::emulated

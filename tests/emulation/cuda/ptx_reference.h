// The warp instructions of cuda/kernels/ptx.h, by their definition in the PTX manual. Each lane shows its registers to the other lanes, and
// computes its own part of the result. Only the emulated build includes this header, in ptx.h.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "emulated_half.h"
#include "emulated_words.h"

namespace orrery::emulated {

// Ends the program if the address is not 16-byte aligned, because a device would refuse the load.
inline const void* aligned_16(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16 == 0) return p;
  std::fprintf(stderr, "emulated kernel, block (%u, %u, %u), thread %u: 16 bytes that are not aligned\n", blockIdx.x, blockIdx.y, blockIdx.z,
               threadIdx.x);
  std::abort();
}

template <size_t N>
struct Registers {
  uint32_t r[N];
};

// The contents of N registers of all lanes.
template <size_t N>
struct WarpRegisters {
  uint32_t r[kWarp][N];
  explicit WarpRegisters(const uint32_t* mine) {
    static_assert(N * 4 <= kMostExchanged, "");
    const std::byte* values = exchange(mine, N * 4);
    for (unsigned i = 0; i < kWarp; ++i) std::memcpy(r[i], values + i * kMostExchanged, N * 4);
  }
};

inline float half_at(uint32_t word, unsigned i) { return half_to_float(static_cast<uint16_t>(word >> 16 * i)); }
inline float bfloat_at(uint32_t word, unsigned i) { return __uint_as_float((word >> 16 * i & 0xFFFFu) << 16); }

// m16n8k16: A (16, 16) row-major, registers a0..a3 of lane l: rows l/4 and l/4 + 8, columns 2 (l%4) and, from a2 on, 8 more.
// B (16, 8): b0: rows 2 (l%4) + {0, 1}, column l/4; b1: 8 rows further. C: c0, c1 row l/4, columns 2 (l%4) + {0, 1}; c2, c3 8 rows on.
template <class At>
void mma_16816(float* c, const uint32_t* a, const uint32_t* b, At at) {
  const WarpRegisters<4> A(a);
  const WarpRegisters<2> B(b);
  const unsigned l = lane();
  float rows[2][16], columns[2][16];   // of A and B, as far as this lane needs them
  for (unsigned i = 0; i < 2; ++i)
    for (unsigned k = 0; k < 16; ++k) {
      rows[i][k] = at(A.r[l / 4 * 4 + k % 8 / 2][i + 2 * (k / 8)], k % 2);
      columns[i][k] = at(B.r[(2 * (l % 4) + i) * 4 + k % 8 / 2][k / 8], k % 2);
    }
  for (unsigned i = 0; i < 4; ++i) {
    float sum = 0.0f;
    for (unsigned k = 0; k < 16; ++k) sum += rows[i / 2][k] * columns[i % 2][k];
    c[i] += sum;
  }
}
inline void mma_f16(float* c, const uint32_t* a, const uint32_t* b) { mma_16816(c, a, b, half_at); }
inline void mma_bf16(float* c, const uint32_t* a, const uint32_t* b) { mma_16816(c, a, b, bfloat_at); }

// m16n8k32 of int8, and m16n8k16, which is its first half. The layout is as above, with four bytes in place of two halves.
template <size_t K>
void mma_bytes(int32_t* c, const uint32_t* a, const uint32_t* b) {
  const WarpRegisters<K / 8> A(a);
  const WarpRegisters<K / 16> B(b);
  const unsigned l = lane();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = l / 4 + 8 * (i / 2), column = 2 * (l % 4) + i % 2;
    int32_t sum = 0;
    for (unsigned k = 0; k < K; ++k) {
      const unsigned lane_a = row % 8 * 4 + k % 16 / 4, register_a = row / 8 + 2 * (k / 16);
      const unsigned lane_b = column * 4 + k % 16 / 4;
      sum += static_cast<int8_t>(A.r[lane_a][register_a] >> 8 * (k % 4)) * static_cast<int8_t>(B.r[lane_b][k / 16] >> 8 * (k % 4));
    }
    c[i] += sum;
  }
}
inline void mma_s8(int32_t* c, const uint32_t* a, const uint32_t* b) { mma_bytes<32>(c, a, b); }
inline void mma_s8_k16(int32_t* c, const uint32_t* a, uint32_t b) { mma_bytes<16>(c, a, &b); }

// ldmatrix: n matrices of 8 rows of 16 bytes; lane 8 m + r gives the address of row r of matrix m; lane l receives, of
// each matrix, the four bytes 4 (l%4) of row l/4; transposed: the halves (2 (l%4), l/4) and (2 (l%4) + 1, l/4).
template <size_t N>
void load_matrices(uint32_t* out, const void* row, bool transposed) {
  const std::byte* values = exchange(&row, sizeof row);
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

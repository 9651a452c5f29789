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

inline float half_at(uint32_t word, unsigned i) { return half_to_float(static_cast<uint16_t>(word >> 16 * i)); }
inline float bfloat_at(uint32_t word, unsigned i) { return __uint_as_float((word >> 16 * i & 0xFFFFu) << 16); }

// m16n8k16: A (16, 16) row-major, registers a0..a3 of lane l: rows l/4 and l/4 + 8, columns 2 (l%4) and, from a2 on, 8 more.
// B (16, 8): b0: rows 2 (l%4) + {0, 1}, column l/4; b1: 8 rows further. C: c0, c1 row l/4, columns 2 (l%4) + {0, 1}; c2, c3 8 rows on.
// Each lane converts its own registers: twelve floats, those of A first.
template <class At>
void mma_16816(float* c, const uint32_t* a, const uint32_t* b, At at) {
  float mine[12];
  for (unsigned k = 0; k < 8; ++k) mine[k] = at(a[k / 2], k % 2);
  for (unsigned k = 0; k < 4; ++k) mine[8 + k] = at(b[k / 2], k % 2);
  const std::byte* values = exchange<sizeof mine>(mine);
  const unsigned l = lane();
  float rows[2][16], columns[2][16];   // of A and B, as far as this lane needs them
  const auto copy_two = [&](float* out, unsigned of_lane, unsigned first) {
    std::memcpy(out, values + of_lane * kMostExchanged + first * sizeof(float), 2 * sizeof(float));
  };
  for (unsigned i = 0; i < 2; ++i)
    for (unsigned k = 0; k < 16; k += 2) {
      copy_two(&rows[i][k], l / 4 * 4 + k % 8 / 2, 2 * (i + 2 * (k / 8)));
      copy_two(&columns[i][k], (2 * (l % 4) + i) * 4 + k % 8 / 2, 8 + 2 * (k / 8));
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
void mma_bytes(int32_t* d, const uint32_t* a, const uint32_t* b, const int32_t* c) {
  uint32_t mine[K / 8 + K / 16];   // registers of A, then of B
  std::memcpy(mine, a, K / 2);
  std::memcpy(mine + K / 8, b, K / 4);
  const std::byte* values = exchange<sizeof mine>(mine);
  const unsigned l = lane();
  int8_t rows[2][K], columns[2][K];
  const auto copy_four = [&](int8_t* out, unsigned of_lane, unsigned which) { std::memcpy(out, values + of_lane * kMostExchanged + which * 4, 4); };
  for (unsigned i = 0; i < 2; ++i)
    for (unsigned k = 0; k < K; k += 4) {
      copy_four(&rows[i][k], l / 4 * 4 + k % 16 / 4, i + 2 * (k / 16));
      copy_four(&columns[i][k], (2 * (l % 4) + i) * 4 + k % 16 / 4, K / 8 + k / 16);
    }
  for (unsigned i = 0; i < 4; ++i) {
    int32_t sum = c[i];
    for (unsigned k = 0; k < K; ++k) sum += rows[i / 2][k] * columns[i % 2][k];
    d[i] = sum;
  }
}
inline void mma_s8(int32_t* d, const uint32_t* a, const uint32_t* b, const int32_t* c) { mma_bytes<32>(d, a, b, c); }
inline void mma_s8_k16(int32_t* d, const uint32_t* a, uint32_t b, const int32_t* c) { mma_bytes<16>(d, a, &b, c); }

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

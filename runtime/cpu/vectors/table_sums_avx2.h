// Sums of table entries that codes of 4 bits choose, for key codes (runtime/backend/key_codes.h). AVX2's byte shuffle looks up 32 entries
// at once. The V of vectors/avx2.h and of vectors/avx512.h inherit it; the latter looks up 64.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace orrery::cpu {
namespace {

struct TableSums {
  // For each query: sums (64) = for each key the sum of its entries in n tables of 16 bytes. Byte i of a row of 32: key i in the low half,
  // key i + 32 in the high half. The entries of kOfByte rows fit in a byte together. Words add up even keys with 256 times the odd ones,
  // and odd keys alone.
  template <int kQueries, int kOfByte>
  static void add_entries(const uint8_t* const* tables, const uint8_t* rows, int n, uint16_t (*sums)[64]) {
    __m256i both[kQueries][2], odd[kQueries][2];
    _Pragma("GCC unroll 4") for (int q = 0; q < kQueries; ++q) _Pragma("GCC unroll 4") for (int half = 0; half < 2; ++half) both[q][half] =
        odd[q][half] = _mm256_setzero_si256();
    int i = 0;
    for (; i + kOfByte <= n; i += kOfByte) add_rows<kQueries, kOfByte>(tables, rows, i, both, odd);
    for (; i < n; ++i) add_rows<kQueries, 1>(tables, rows, i, both, odd);
    _Pragma("GCC unroll 4") for (int q = 0; q < kQueries; ++q) _Pragma("GCC unroll 4") for (int half = 0; half < 2; ++half)
        store_words(both[q][half], odd[q][half], sums[q] + 32 * half);
  }
  // Adds the entries of kRows rows from row i on.
  template <int kQueries, int kRows>
  static void add_rows(const uint8_t* const* tables, const uint8_t* rows, int i, __m256i (*both)[2], __m256i (*odd)[2]) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i keys[kRows][2];
    _Pragma("GCC unroll 4") for (int r = 0; r < kRows; ++r) {
      const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + 32 * (i + r)));
      keys[r][0] = _mm256_and_si256(row, low), keys[r][1] = _mm256_and_si256(_mm256_srli_epi16(row, 4), low);
    }
    _Pragma("GCC unroll 4") for (int q = 0; q < kQueries; ++q) {
      __m256i entries[2];
      _Pragma("GCC unroll 4") for (int r = 0; r < kRows; ++r) {
        const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tables[q] + 16 * (i + r))));
        _Pragma("GCC unroll 4") for (int half = 0; half < 2; ++half) {
          const __m256i of_row = _mm256_shuffle_epi8(table, keys[r][half]);
          entries[half] = r == 0 ? of_row : _mm256_add_epi8(entries[half], of_row);
        }
      }
      _Pragma("GCC unroll 4") for (int half = 0; half < 2; ++half) {
        both[q][half] = _mm256_add_epi16(both[q][half], entries[half]);
        odd[q][half] = _mm256_add_epi16(odd[q][half], _mm256_srli_epi16(entries[half], 8));
      }
    }
  }
  // From `both` and `odd` of 32 keys to their sums.
  static void store_words(__m256i both, __m256i odd, uint16_t* sums) {
    const __m256i even = _mm256_sub_epi16(both, _mm256_slli_epi16(odd, 8));
    const __m256i first = _mm256_unpacklo_epi16(even, odd), last = _mm256_unpackhi_epi16(even, odd);
    auto* out = reinterpret_cast<__m256i*>(sums);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(first, last, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(first, last, 0x31));
  }
};

}  // namespace
}  // namespace orrery::cpu

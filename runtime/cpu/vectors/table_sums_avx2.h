// Sums of table entries that codes of 4 bits choose, for key codes (runtime/backend/key_codes.h). AVX2's byte shuffle looks up 32 entries at
// once, so wider instruction sets use it too. The V of vectors/avx2.h and of vectors/avx512.h inherit it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace orrery::cpu {
namespace {

struct TableSums {
  // sums (64) = for each key the sum of its entries in n tables of 16 bytes. Byte i of a row of 32: key i in the low half, key i + 32 in the
  // high half. Words add up even keys with 256 times the odd ones, and odd keys alone.
  static void add_entries(const uint8_t* tables, const uint8_t* rows, int n, uint16_t* sums) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i both[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, odd[2] = {both[0], both[0]};
    for (int i = 0; i < n; ++i) {
      const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tables + 16 * i)));
      const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + 32 * i));
      const __m256i entries[2] = {_mm256_shuffle_epi8(table, _mm256_and_si256(row, low)),
                                  _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(row, 4), low))};
      for (int half = 0; half < 2; ++half) {
        both[half] = _mm256_add_epi16(both[half], entries[half]);
        odd[half] = _mm256_add_epi16(odd[half], _mm256_srli_epi16(entries[half], 8));
      }
    }
    for (int half = 0; half < 2; ++half) {
      const __m256i even = _mm256_sub_epi16(both[half], _mm256_slli_epi16(odd[half], 8));
      const __m256i first = _mm256_unpacklo_epi16(even, odd[half]), last = _mm256_unpackhi_epi16(even, odd[half]);
      auto* out = reinterpret_cast<__m256i*>(sums + 32 * half);
      _mm256_storeu_si256(out, _mm256_permute2x128_si256(first, last, 0x20));
      _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(first, last, 0x31));
    }
  }
};

}  // namespace
}  // namespace orrery::cpu

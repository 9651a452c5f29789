// IQ3 and IQ2 in registers of 64-bit ARM, as blocks_neon.h has the other formats: magnitudes of a codebook (runtime/base/grids.h), with
// signs.
#pragma once

#include "runtime/base/grids.h"
#include "runtime/cpu/products/blocks_neon.h"

namespace orrery::cpu {
namespace {

constexpr grids::Eights<256> kIq2XxsEights(grids::kIq2XxsGrid, grids::iq2_magnitude);
constexpr grids::Eights<512> kIq2XsEights(grids::kIq2XsGrid, grids::iq2_magnitude);
constexpr grids::Eights<1024> kIq2SEights(grids::kIq2SGrid, grids::iq2_magnitude);
constexpr grids::Fours<256> kIq3XxsFours(grids::kIq3XxsGrid, grids::iq3_xxs_magnitude);
constexpr grids::Fours<512> kIq3SFours(grids::kIq3SGrid, grids::iq3_s_magnitude);

// 16 magnitudes. entry(i): the index of the i-th entry, of four or of two.
template <class Word, size_t n, class Entry>
uint8x16_t look_up(const grids::Magnitudes<Word, n>& table, const Entry& entry) {
  constexpr int kEntries = 16 / static_cast<int>(sizeof(Word));
  Word words[kEntries];
  for (int i = 0; i < kEntries; ++i) words[i] = table.entry[entry(i)];
  uint8_t bytes[16];
  __builtin_memcpy(bytes, words, 16);
  return vld1q_u8(bytes);
}
// Minus where a bit is set: bits 0-7 of `first` belong to bytes 0-7.
inline int8x16_t with_signs(uint8x16_t magnitudes, uint8_t first, uint8_t second) {
  const uint8_t each[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t minus = vtstq_u8(vcombine_u8(vdup_n_u8(first), vdup_n_u8(second)), vld1q_u8(each));
  return vreinterpretq_s8_u8(vsubq_u8(veorq_u8(magnitudes, minus), minus));
}
// d times an odd number; `unit` is a power of two.
inline float odd_scale(float d, uint32_t s, float unit) { return d * (static_cast<float>(2 * s + 1) * unit); }

struct Iq3Xxs : FormatTraits<98, 256, 32, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const float d = half_value(p);
    for (int g = 0; g < 8; ++g) {
      const uint32_t signs = word<uint32_t>(p + 66 + 4 * g);
      for (int j = 0; j < 2; ++j) {
        const uint8_t* q = p + 2 + 8 * g + 4 * j;
        const uint32_t two = signs >> (14 * j);
        u.q[2 * g + j] =
            with_signs(look_up(kIq3XxsFours, [q](int i) { return q[i]; }), grids::all_signs(two & 127), grids::all_signs(two >> 7 & 127));
      }
      u.scale[g] = odd_scale(d, signs >> 28, 0.25f);
    }
  }
};

struct Iq3S : FormatTraits<110, 256, 32, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const float d = half_value(p);
    for (int g = 0; g < 8; ++g) {
      const int ninth = p[66 + g];
      for (int j = 0; j < 2; ++j) {
        const uint8_t *q = p + 2 + 8 * g + 4 * j, *signs = p + 74 + 4 * g + 2 * j;
        u.q[2 * g + j] = with_signs(look_up(kIq3SFours, [=](int i) { return q[i] | (ninth >> (4 * j + i) & 1) << 8; }), signs[0], signs[1]);
      }
      u.scale[g] = odd_scale(d, p[106 + g / 2] >> (g % 2 * 4) & 15, 1.0f);
    }
  }
};

struct Iq2Xxs : FormatTraits<66, 256, 32, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const float d = half_value(p);
    for (int g = 0; g < 8; ++g) {
      const uint32_t signs = word<uint32_t>(p + 6 + 8 * g);
      for (int j = 0; j < 2; ++j) {
        const uint8_t* q = p + 2 + 8 * g + 2 * j;
        const uint32_t two = signs >> (14 * j);
        u.q[2 * g + j] =
            with_signs(look_up(kIq2XxsEights, [q](int i) { return q[i]; }), grids::all_signs(two & 127), grids::all_signs(two >> 7 & 127));
      }
      u.scale[g] = odd_scale(d, signs >> 28, 0.125f);
    }
  }
};

// The scales of IQ2_XS and IQ2_S, one for each 16 weights.
inline void iq2_scales(const uint8_t* p, const uint8_t* nibbles, Unpacked& u) {
  const float d = half_value(p);
  for (int g = 0; g < 16; ++g) u.scale[g] = odd_scale(d, nibbles[g / 2] >> (g % 2 * 4) & 15, 0.125f);
}

struct Iq2Xs : FormatTraits<74, 256, 16, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int h = 0; h < 16; ++h) {
      const uint32_t q[2] = {word<uint16_t>(p + 2 + 4 * h), word<uint16_t>(p + 4 + 4 * h)};  // entries, and seven signs
      u.q[h] =
          with_signs(look_up(kIq2XsEights, [&q](int i) { return q[i] & 511; }), grids::all_signs(q[0] >> 9), grids::all_signs(q[1] >> 9));
    }
    iq2_scales(p, p + 66, u);
  }
};

struct Iq2S : FormatTraits<82, 256, 16, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int h = 0; h < 16; ++h) {
      const uint8_t *q = p + 2 + 2 * h, *signs = p + 34 + 2 * h;
      const int upper = p[66 + h / 2] >> (h % 2 * 4);
      u.q[h] = with_signs(look_up(kIq2SEights, [=](int i) { return q[i] | (upper >> (2 * i) & 3) << 8; }), signs[0], signs[1]);
    }
    iq2_scales(p, p + 74, u);
  }
};

}  // namespace
}  // namespace orrery::cpu

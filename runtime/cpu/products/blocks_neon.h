// The quantized formats in registers of 64-bit ARM. `Unpacked` holds 256 weights: signed bytes in column order, with their offset
// already subtracted, and scales and minima as floats: weight = scale * code - min. Eight blocks of a 32-weight format are read at
// a time. Loads never leave the blocks.
#pragma once

#include "runtime/base/half.h"
#include "runtime/cpu/vectors/neon.h"

namespace orrery::cpu {
namespace {

struct Unpacked {
  int8x16_t q[16];
  float scale[16], min[16];  // one for each group
};

template <class T>
T word(const uint8_t* p) {
  T w;
  __builtin_memcpy(&w, p, sizeof w);
  return w;
}

inline uint8x16_t low_nibbles(uint8x16_t x) { return vandq_u8(x, vdupq_n_u8(15)); }
inline uint8x16_t high_nibbles(uint8x16_t x) { return vshrq_n_u8(x, 4); }
inline int8x16_t less(uint8x16_t x, int offset) { return vsubq_s8(vreinterpretq_s8_u8(x), vdupq_n_s8(static_cast<int8_t>(offset))); }
// Bit kBit of every byte, moved to bit kTo.
template <int kBit, int kTo>
uint8x16_t bit(uint8x16_t x) {
  const uint8x16_t only = vandq_u8(x, vdupq_n_u8(1 << kBit));
  return vshlq_u8(only, vdupq_n_s8(kTo - kBit));
}
// For each bit of a 16-bit word: byte i is 16 where bit i is set.
inline uint8x16_t fifth_bits(const uint8_t* p) {
  const uint8_t each[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t bytes = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));
  return vandq_u8(vtstq_u8(bytes, vld1q_u8(each)), vdupq_n_u8(16));
}
inline int8x16_t codebook(uint8x16_t nibbles) {
  const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return vqtbl1q_s8(vld1q_s8(values), nibbles);
}

// kBytes: bytes of 256 weights. kBlock: weights in a block of the format. kGroup: weights that share a scale.
template <int kBytesValue, int kBlockValue, int kGroupValue, bool kHasMinValue>
struct FormatTraits {
  static constexpr int kBytes = kBytesValue, kBlock = kBlockValue, kGroup = kGroupValue;
  static constexpr bool kHasMin = kHasMinValue;
};

// The formats with blocks of 32. Format::unpack_part() unpacks the last n <= 8 blocks of a row and leaves the other codes as they are.
template <class Format, class Traits>
struct Blocks32 : Traits {
  static void unpack(const uint8_t* p, Unpacked& u) { Format::unpack_part(p, 8, u); }
};

struct Q8_0 : Blocks32<Q8_0, FormatTraits<8 * 34, 32, 32, false>> {
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    for (int i = 0; i < n; ++i, p += 34) {
      for (int j = 0; j < 2; ++j) u.q[2 * i + j] = vreinterpretq_s8_u8(vld1q_u8(p + 2 + 16 * j));
      u.scale[i] = half_value(p);
    }
  }
};

struct Q4_0 : Blocks32<Q4_0, FormatTraits<8 * 18, 32, 32, false>> {
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    for (int i = 0; i < n; ++i, p += 18) {
      const uint8x16_t x = vld1q_u8(p + 2);
      u.q[2 * i] = less(low_nibbles(x), 8);
      u.q[2 * i + 1] = less(high_nibbles(x), 8);
      u.scale[i] = half_value(p);
    }
  }
};

struct Q4_1 : Blocks32<Q4_1, FormatTraits<8 * 20, 32, 32, true>> {
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    for (int i = 0; i < n; ++i, p += 20) {
      const uint8x16_t x = vld1q_u8(p + 4);
      u.q[2 * i] = vreinterpretq_s8_u8(low_nibbles(x));
      u.q[2 * i + 1] = vreinterpretq_s8_u8(high_nibbles(x));
      u.scale[i] = half_value(p);
      u.min[i] = -half_value(p + 2);
    }
  }
};

struct Q5_0 : Blocks32<Q5_0, FormatTraits<8 * 22, 32, 32, false>> {
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    for (int i = 0; i < n; ++i, p += 22) {
      const uint8x16_t x = vld1q_u8(p + 6);
      u.q[2 * i] = less(vorrq_u8(low_nibbles(x), fifth_bits(p + 2)), 16);
      u.q[2 * i + 1] = less(vorrq_u8(high_nibbles(x), fifth_bits(p + 4)), 16);
      u.scale[i] = half_value(p);
    }
  }
};

struct Q5_1 : Blocks32<Q5_1, FormatTraits<8 * 24, 32, 32, true>> {
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    for (int i = 0; i < n; ++i, p += 24) {
      const uint8x16_t x = vld1q_u8(p + 8);
      u.q[2 * i] = vreinterpretq_s8_u8(vorrq_u8(low_nibbles(x), fifth_bits(p + 4)));
      u.q[2 * i + 1] = vreinterpretq_s8_u8(vorrq_u8(high_nibbles(x), fifth_bits(p + 6)));
      u.scale[i] = half_value(p);
      u.min[i] = -half_value(p + 2);
    }
  }
};

struct Iq4Nl : Blocks32<Iq4Nl, FormatTraits<8 * 18, 32, 32, false>> {
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    for (int i = 0; i < n; ++i, p += 18) {
      const uint8x16_t x = vld1q_u8(p + 2);
      u.q[2 * i] = codebook(low_nibbles(x));
      u.q[2 * i + 1] = codebook(high_nibbles(x));
      u.scale[i] = half_value(p);
    }
  }
};

// The scale 2^(e - 127), halved: the values are doubled.
struct Mxfp4 : Blocks32<Mxfp4, FormatTraits<8 * 17, 32, 32, false>> {
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const int8x16_t values = vld1q_s8(doubled);
    for (int i = 0; i < n; ++i, p += 17) {
      const uint8x16_t x = vld1q_u8(p + 1);
      u.q[2 * i] = vqtbl1q_s8(values, low_nibbles(x));
      u.q[2 * i + 1] = vqtbl1q_s8(values, high_nibbles(x));
      const uint32_t bits = p[0] < 2 ? uint32_t{0x00200000} << p[0] : static_cast<uint32_t>(p[0] - 1) << 23;
      __builtin_memcpy(&u.scale[i], &bits, sizeof bits);
    }
  }
};

// Blocks of 64, whose scales are small floats: one for each 16 weights. Codes are doubled, and scales halved.
struct Nvfp4 : FormatTraits<4 * 36, 64, 16, false> {
  static void unpack(const uint8_t* p, Unpacked& u) { unpack_part(p, 4, u); }
  static void unpack_part(const uint8_t* p, int n, Unpacked& u) {
    const int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int i = 0; i < n; ++i, p += 36)
      for (int g = 0; g < 4; ++g) {
        const uint8x8_t x = vld1_u8(p + 4 + 8 * g);
        u.q[4 * i + g] = vqtbl1q_s8(vld1q_s8(values), vcombine_u8(vand_u8(x, vdup_n_u8(15)), vshr_n_u8(x, 4)));
        u.scale[4 * i + g] = ue4m3_to_float(p[g]) * 0.5f;
      }
  }
};

// Splits 32 bytes into their 2-bit fields, for four groups of 32 columns. Calls take(i, j, two) for half j of group i.
template <class Take>
void quarters(const uint8_t* p, const Take& take) {
  const uint8x16_t three = vdupq_n_u8(3);
  for (int j = 0; j < 2; ++j) {
    const uint8x16_t x = vld1q_u8(p + 16 * j);
    take(0, j, vandq_u8(x, three));
    take(1, j, vandq_u8(vshrq_n_u8(x, 2), three));
    take(2, j, vandq_u8(vshrq_n_u8(x, 4), three));
    take(3, j, vshrq_n_u8(x, 6));
  }
}

struct Q2K : FormatTraits<84, 256, 16, true> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int half = 0; half < 2; ++half)
      quarters(p + 16 + 32 * half, [&](int i, int j, uint8x16_t two) { u.q[8 * half + 2 * i + j] = vreinterpretq_s8_u8(two); });
    const float d = half_value(p + 80), dmin = half_value(p + 82);
    for (int g = 0; g < 16; ++g) {
      u.scale[g] = d * static_cast<float>(p[g] & 15);
      u.min[g] = dmin * static_cast<float>(p[g] >> 4);
    }
  }
};

struct Q3K : FormatTraits<110, 256, 16, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const uint8x16_t high[2] = {vld1q_u8(p), vld1q_u8(p + 16)};
    for (int half = 0; half < 2; ++half)
      quarters(p + 32 + 32 * half, [&](int i, int j, uint8x16_t two) {
        // The third bit is bit 4 * half + i of every byte.
        const uint8x16_t third = vandq_u8(vtstq_u8(high[j], vdupq_n_u8(static_cast<uint8_t>(1 << (4 * half + i)))), vdupq_n_u8(4));
        u.q[8 * half + 2 * i + j] = less(vorrq_u8(two, third), 4);
      });
    // 6-bit scales: lower nibbles in 8 bytes, then 4 bytes with the upper two bits of four scales each.
    const float d = half_value(p + 108);
    for (int g = 0; g < 16; ++g) {
      const int nibble = g < 8 ? p[96 + g] & 15 : p[88 + g] >> 4;
      const int upper = p[104 + g % 4] >> (g / 4 * 2) & 3;
      u.scale[g] = d * static_cast<float>((nibble | upper << 4) - 32);
    }
  }
};

// The twelve bytes that hold eight 6-bit scales and minima of Q4_K and Q5_K.
inline void scales_k4(const uint8_t* p, Unpacked& u) {
  const float d = half_value(p), dmin = half_value(p + 2);
  const uint8_t* s = p + 4;
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    const int min = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
    u.scale[g] = d * static_cast<float>(scale);
    u.min[g] = dmin * static_cast<float>(min);
  }
}

struct Q4K : FormatTraits<144, 256, 32, true> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 2; ++j) {
        const uint8x16_t x = vld1q_u8(p + 16 + 32 * i + 16 * j);
        u.q[4 * i + j] = vreinterpretq_s8_u8(low_nibbles(x));
        u.q[4 * i + 2 + j] = vreinterpretq_s8_u8(high_nibbles(x));
      }
    scales_k4(p, u);
  }
};

struct Q5K : FormatTraits<176, 256, 32, true> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int j = 0; j < 2; ++j) {
      const uint8x16_t high = vld1q_u8(p + 16 + 16 * j);
      pair<0>(p, j, high, u);
      pair<1>(p, j, high, u);
      pair<2>(p, j, high, u);
      pair<3>(p, j, high, u);
    }
    scales_k4(p, u);
  }
  template <int i>
  static void pair(const uint8_t* p, int j, uint8x16_t high, Unpacked& u) {
    const uint8x16_t x = vld1q_u8(p + 48 + 32 * i + 16 * j);
    u.q[4 * i + j] = vreinterpretq_s8_u8(vorrq_u8(low_nibbles(x), bit<2 * i, 4>(high)));
    u.q[4 * i + 2 + j] = vreinterpretq_s8_u8(vorrq_u8(high_nibbles(x), bit<2 * i + 1, 4>(high)));
  }
};

struct Q6K : FormatTraits<210, 256, 16, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    const uint8x16_t upper = vdupq_n_u8(0x30);
    for (int half = 0; half < 2; ++half)
      for (int j = 0; j < 2; ++j) {
        const uint8x16_t a = vld1q_u8(p + 64 * half + 16 * j), b = vld1q_u8(p + 64 * half + 32 + 16 * j),
                         h = vld1q_u8(p + 128 + 32 * half + 16 * j);
        int8x16_t* q = u.q + 8 * half + j;
        q[0] = less(vorrq_u8(low_nibbles(a), vandq_u8(vshlq_n_u8(h, 4), upper)), 32);
        q[2] = less(vorrq_u8(low_nibbles(b), vandq_u8(vshlq_n_u8(h, 2), upper)), 32);
        q[4] = less(vorrq_u8(high_nibbles(a), vandq_u8(h, upper)), 32);
        q[6] = less(vorrq_u8(high_nibbles(b), vandq_u8(vshrq_n_u8(h, 2), upper)), 32);
      }
    const float d = half_value(p + 208);
    for (int g = 0; g < 16; ++g) u.scale[g] = d * static_cast<float>(static_cast<int8_t>(p[192 + g]));
  }
};

struct Iq4Xs : FormatTraits<136, 256, 32, false> {
  static void unpack(const uint8_t* p, Unpacked& u) {
    for (int i = 0; i < 8; ++i) {
      const uint8x16_t x = vld1q_u8(p + 8 + 16 * i);
      u.q[2 * i] = codebook(low_nibbles(x));
      u.q[2 * i + 1] = codebook(high_nibbles(x));
    }
    // Scale g: its low nibble is nibble g of a 32-bit word, its upper two bits are at bit 2 g of a 16-bit word.
    const float d = half_value(p);
    const uint32_t low = word<uint32_t>(p + 4), high = word<uint16_t>(p + 2);
    for (int g = 0; g < 8; ++g)
      u.scale[g] = d * static_cast<float>(static_cast<int>((low >> (4 * g) & 15) | (high >> (2 * g) & 3) << 4) - 32);
  }
};

}  // namespace
}  // namespace orrery::cpu

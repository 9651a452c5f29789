// One function per block format: each function is the format's definition, read from top to bottom.
//
// A weight is a scale times a small integer, minus or plus an offset. The scale is a half; in K formats it is
// multiplied by a small integer of the sub-block. The order of the float32 operations is part of the definition:
// kernels are tested against these values, and a file must give the same numbers everywhere. Nothing here may be
// rearranged or contracted. The weights of IQ2 and IQ3 are a scale times a magnitude of a codebook (runtime/base/grids.h) with a sign.
#include "runtime/gguf/dequantize.h"

#include <cstring>

#include "runtime/base/grids.h"
#include "runtime/base/half.h"
#include "runtime/gguf/wire.h"

namespace orrery::gguf {

namespace {

constexpr int kSuper = 256;  // weights in a K, IQ4_XS, IQ3 or IQ2 block

// The 16 values of IQ4_NL and IQ4_XS codes: denser near zero, where most weights are.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

float half_at(const uint8_t* p) { return half_to_float(static_cast<uint16_t>(p[0] | p[1] << 8)); }
int u16_at(const uint8_t* p) { return p[0] | p[1] << 8; }
uint32_t u32_at(const uint8_t* p) { return load<uint32_t>(reinterpret_cast<const std::byte*>(p)); }
float to_float(int q) { return static_cast<float>(q); }

// Blocks of 32. The low nibbles of 16 bytes are weights 0..15, the high nibbles are weights 16..31. Q5 takes a fifth
// bit from a word.

void q8_0(const uint8_t* b, float* out) {  // half d, int8 q[32]
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) out[i] = to_float(static_cast<int8_t>(b[2 + i])) * d;
}

void q4_0(const uint8_t* b, float* out) {  // half d, nibbles[16]
  const float d = half_at(b);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * to_float((b[2 + i] & 15) - 8);
    out[i + 16] = d * to_float((b[2 + i] >> 4) - 8);
  }
}

void q4_1(const uint8_t* b, float* out) {  // half d, half m, nibbles[16]
  const float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * to_float(b[4 + i] & 15) + m;
    out[i + 16] = d * to_float(b[4 + i] >> 4) + m;
  }
}

// The five bits of weight i: nibbles at `q`, fifth bits in `high`.
int five_bits(const uint8_t* q, uint32_t high, int i) {
  const int low = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
  return low | static_cast<int>(high >> i & 1) << 4;
}

void q5_0(const uint8_t* b, float* out) {  // half d, u32 fifth bits, nibbles[16]
  const float d = half_at(b);
  const uint32_t high = u32_at(b + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * to_float(five_bits(b + 6, high, i) - 16);
}

void q5_1(const uint8_t* b, float* out) {  // half d, half m, u32 fifth bits, nibbles[16]
  const float d = half_at(b), m = half_at(b + 2);
  const uint32_t high = u32_at(b + 4);
  for (int i = 0; i < 32; ++i) out[i] = d * to_float(five_bits(b + 8, high, i)) + m;
}

void iq4_nl(const uint8_t* b, float* out) {  // half d, nibbles[16]: codes
  const float d = half_at(b);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * to_float(kIq4Values[b[2 + i] & 15]);
    out[i + 16] = d * to_float(kIq4Values[b[2 + i] >> 4]);
  }
}

// Blocks of 256. Two-bit planes are 32 bytes with four weights each, 32 apart. Four-bit planes are 32 bytes with two
// weights each.

void q2_k(const uint8_t* b, float* out) {  // scale and min nibbles[16], 2-bit q[64], half d, half dmin
  const uint8_t *scales = b, *q = b + 16;
  const float d = half_at(b + 80), dmin = half_at(b + 82);
  for (int i = 0; i < kSuper; ++i) {
    const int sub = i / 16;
    const float dl = d * to_float(scales[sub] & 15), ml = dmin * to_float(scales[sub] >> 4);
    const int bits = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    out[i] = dl * to_float(bits) - ml;
  }
}

void q3_k(const uint8_t* b, float* out) {  // third bits[32], 2-bit q[64], 6-bit scales[12], half d
  const uint8_t *high = b, *q = b + 32, *scales = b + 96;
  const float d = half_at(b + 108);
  float dl[16];
  for (int s = 0; s < 16; ++s) {  // four low bits in bytes 0..7 (low nibbles first), two high bits in bytes 8..11
    const int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    const int top = scales[8 + s % 4] >> (s / 4 * 2) & 3;
    dl[s] = d * to_float((low | top << 4) - 32);
  }
  for (int i = 0; i < kSuper; ++i) {
    const int bits = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    const int above = high[i % 32] >> (i / 32) & 1;  // bit set: no offset
    out[i] = dl[i / 16] * to_float(bits - (above ? 0 : 4));
  }
}

// The 6-bit scale and min of sub-block s (of eight). Q4_K and Q5_K share the layout of these twelve bytes.
void scale_min(const uint8_t* p, int s, int* scale, int* min) {
  if (s < 4) {
    *scale = p[s] & 63;
    *min = p[s + 4] & 63;
  } else {
    *scale = (p[s + 4] & 15) | (p[s - 4] >> 6) << 4;
    *min = p[s + 4] >> 4 | (p[s] >> 6) << 4;
  }
}

void q4_k(const uint8_t* b, float* out) {  // half d, half dmin, 6-bit scales and mins[12], nibbles[128]
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t* q = b + 16;
  for (int s = 0; s < 8; ++s) {
    int scale, min;
    scale_min(b + 4, s, &scale, &min);
    const float dl = d * to_float(scale), ml = dmin * to_float(min);
    for (int i = 0; i < 32; ++i) out[s * 32 + i] = dl * to_float(q[s / 2 * 32 + i] >> (s % 2 * 4) & 15) - ml;
  }
}

void q5_k(const uint8_t* b, float* out) {  // as Q4_K, with fifth bits[32] before the nibbles
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t *high = b + 16, *q = b + 48;
  for (int s = 0; s < 8; ++s) {
    int scale, min;
    scale_min(b + 4, s, &scale, &min);
    const float dl = d * to_float(scale), ml = dmin * to_float(min);
    for (int i = 0; i < 32; ++i) {
      const int bits = (q[s / 2 * 32 + i] >> (s % 2 * 4) & 15) | (high[i] >> s & 1) << 4;
      out[s * 32 + i] = dl * to_float(bits) - ml;
    }
  }
}

void q6_k(const uint8_t* b, float* out) {  // low nibbles[128], 2-bit high[64], int8 scales[16], half d
  const uint8_t *low = b, *high = b + 128, *scales = b + 192;
  const float d = half_at(b + 208);
  for (int i = 0; i < kSuper; ++i) {
    const int half = i / 128, in_half = i % 128;
    const int nibble = low[half * 64 + in_half % 64] >> (in_half / 64 * 4) & 15;
    const int top = high[half * 32 + in_half % 32] >> (in_half / 32 * 2) & 3;
    const float dl = d * to_float(static_cast<int8_t>(scales[i / 16]));
    out[i] = dl * to_float((nibble | top << 4) - 32);
  }
}

void iq4_xs(const uint8_t* b,
            float* out) {  // half d, u16 2-bit high scales, low scale nibbles[4], nibbles[128]: codes
  const float d = half_at(b);
  const int high = b[2] | b[3] << 8;
  const uint8_t *low = b + 4, *q = b + 8;
  for (int s = 0; s < 8; ++s) {
    const int scale = ((low[s / 2] >> (s % 2 * 4)) & 15) | (high >> (2 * s) & 3) << 4;
    const float dl = d * to_float(scale - 32);
    for (int i = 0; i < 16; ++i) {
      out[s * 32 + i] = dl * to_float(kIq4Values[q[s * 16 + i] & 15]);
      out[s * 32 + i + 16] = dl * to_float(kIq4Values[q[s * 16 + i] >> 4]);
    }
  }
}

// Blocks of 64, of four times 16. A scale is a small float; the reference keeps the values doubled and the scales halved.

constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(e - 128), also where that is a denormal number: half of MXFP4's scale, for values that are doubled.
float half_of_power(uint8_t e) {
  const uint32_t bits = e < 2 ? uint32_t{0x00200000} << e : static_cast<uint32_t>(e - 1) << 23;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

void mxfp4(const uint8_t* b, float* out) {  // exponent e, nibbles[16]: codes
  const float d = half_of_power(b[0]);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * to_float(kE2m1Doubled[b[1 + i] & 15]);
    out[i + 16] = d * to_float(kE2m1Doubled[b[1 + i] >> 4]);
  }
}

void nvfp4(const uint8_t* b, float* out) {  // UE4M3 d[4], nibbles[32]: codes, eight bytes for each 16 weights
  for (int s = 0; s < 4; ++s) {
    const float d = ue4m3_to_float(b[s]) * 0.5f;
    for (int i = 0; i < 8; ++i) {
      out[16 * s + i] = d * to_float(kE2m1Doubled[b[4 + 8 * s + i] & 15]);
      out[16 * s + i + 8] = d * to_float(kE2m1Doubled[b[4 + 8 * s + i] >> 4]);
    }
  }
}

// Codebooks: IQ3 and IQ2. Bit i of `signs` belongs to weight i; a set bit is a minus.

float with_sign(float x, int signs, int i) { return x * (signs >> i & 1 ? -1.0f : 1.0f); }

// Eight weights of IQ3: the magnitudes of two entries.
template <uint8_t (*magnitude)(uint32_t, int)>
void two_fours(float scale, uint32_t first, uint32_t second, int signs, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = with_sign(scale * to_float(magnitude(i < 4 ? first : second, i % 4)), signs, i);
}
// Eight weights of IQ2.
void eight(float scale, uint32_t entry, int signs, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = with_sign(scale * to_float(grids::iq2_magnitude(entry, i)), signs, i);
}

void iq3_xxs(const uint8_t* b, float* out) {  // half d, entries[64], a word of seven signs four times and a scale[8]
  const float d = half_at(b);
  for (int s = 0; s < 8; ++s) {
    const uint8_t* q = b + 2 + 8 * s;
    const uint32_t word = u32_at(b + 66 + 4 * s);
    const float scale = d * (0.5f + to_float(static_cast<int>(word >> 28))) * 0.5f;
    for (int l = 0; l < 4; ++l)
      two_fours<grids::iq3_xxs_magnitude>(scale, grids::kIq3XxsGrid[q[2 * l]], grids::kIq3XxsGrid[q[2 * l + 1]],
                                          grids::all_signs(word >> (7 * l) & 127), out + 32 * s + 8 * l);
  }
}

void iq3_s(const uint8_t* b, float* out) {  // half d, low bits of entries[64], ninth bits[8], signs[32], scale nibbles[4]
  const float d = half_at(b);
  const uint8_t *q = b + 2, *high = b + 66, *signs = b + 74, *scales = b + 106;
  for (int s = 0; s < 8; ++s) {
    const float scale = d * to_float(1 + 2 * (scales[s / 2] >> (s % 2 * 4) & 15));
    const auto entry = [&](int i) { return grids::kIq3SGrid[q[8 * s + i] | (high[s] >> i & 1) << 8]; };
    for (int l = 0; l < 4; ++l)
      two_fours<grids::iq3_s_magnitude>(scale, entry(2 * l), entry(2 * l + 1), signs[4 * s + l], out + 32 * s + 8 * l);
  }
}

float iq2_scale(float d, int nibble) { return d * (0.5f + to_float(nibble)) * 0.25f; }

void iq2_xxs(const uint8_t* b, float* out) {  // half d, then 8 times: entries[4], a word of seven signs four times and a scale
  const float d = half_at(b);
  for (int s = 0; s < 8; ++s) {
    const uint8_t* q = b + 2 + 8 * s;
    const uint32_t word = u32_at(q + 4);
    const float scale = iq2_scale(d, static_cast<int>(word >> 28));
    for (int l = 0; l < 4; ++l) eight(scale, grids::kIq2XxsGrid[q[l]], grids::all_signs(word >> (7 * l) & 127), out + 32 * s + 8 * l);
  }
}

void iq2_xs(const uint8_t* b, float* out) {  // half d, u16 entry and seven signs[32], scale nibbles[8]
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) {
    const int q = u16_at(b + 2 + 2 * i);
    const float scale = iq2_scale(d, b[66 + i / 4] >> (i % 4 / 2 * 4) & 15);
    eight(scale, grids::kIq2XsGrid[q & 511], grids::all_signs(static_cast<uint32_t>(q >> 9)), out + 8 * i);
  }
}

void iq2_s(const uint8_t* b, float* out) {  // half d, low bits of entries[32], signs[32], two high bits[8], scale nibbles[8]
  const float d = half_at(b);
  const uint8_t *q = b + 2, *signs = b + 34, *high = b + 66, *scales = b + 74;
  for (int i = 0; i < 32; ++i) {
    const float scale = iq2_scale(d, scales[i / 4] >> (i % 4 / 2 * 4) & 15);
    eight(scale, grids::kIq2SGrid[q[i] | (high[i / 4] >> (i % 4 * 2) & 3) << 8], signs[i], out + 8 * i);
  }
}

template <void (*block)(const uint8_t*, float*)>
void blocks(TensorType type, const std::byte* src, float* out, uint64_t n) {
  const TypeTraits t = *type_traits(type);
  const auto* p = reinterpret_cast<const uint8_t*>(src);
  for (uint64_t i = 0; i < n; i += t.block_elements, p += t.block_bytes) block(p, out + i);
}

}  // namespace

void dequantize_row(TensorType type, const std::byte* src, float* out, uint64_t n) {
  switch (type) {
    case TensorType::f32: std::memcpy(out, src, n * sizeof(float)); break;
    case TensorType::f16:
      for (uint64_t i = 0; i < n; ++i) out[i] = half_to_float(load<uint16_t>(src + 2 * i));
      break;
    case TensorType::bf16:
      for (uint64_t i = 0; i < n; ++i) out[i] = bfloat16_to_float(load<uint16_t>(src + 2 * i));
      break;
    case TensorType::q8_0: blocks<q8_0>(type, src, out, n); break;
    case TensorType::q4_0: blocks<q4_0>(type, src, out, n); break;
    case TensorType::q4_1: blocks<q4_1>(type, src, out, n); break;
    case TensorType::q5_0: blocks<q5_0>(type, src, out, n); break;
    case TensorType::q5_1: blocks<q5_1>(type, src, out, n); break;
    case TensorType::q2_k: blocks<q2_k>(type, src, out, n); break;
    case TensorType::q3_k: blocks<q3_k>(type, src, out, n); break;
    case TensorType::q4_k: blocks<q4_k>(type, src, out, n); break;
    case TensorType::q5_k: blocks<q5_k>(type, src, out, n); break;
    case TensorType::q6_k: blocks<q6_k>(type, src, out, n); break;
    case TensorType::iq4_nl: blocks<iq4_nl>(type, src, out, n); break;
    case TensorType::iq4_xs: blocks<iq4_xs>(type, src, out, n); break;
    case TensorType::iq3_xxs: blocks<iq3_xxs>(type, src, out, n); break;
    case TensorType::iq3_s: blocks<iq3_s>(type, src, out, n); break;
    case TensorType::iq2_xxs: blocks<iq2_xxs>(type, src, out, n); break;
    case TensorType::iq2_xs: blocks<iq2_xs>(type, src, out, n); break;
    case TensorType::iq2_s: blocks<iq2_s>(type, src, out, n); break;
    case TensorType::mxfp4: blocks<mxfp4>(type, src, out, n); break;
    case TensorType::nvfp4: blocks<nvfp4>(type, src, out, n); break;
  }
}

}  // namespace orrery::gguf

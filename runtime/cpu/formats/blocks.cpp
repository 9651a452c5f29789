// One function for each quantized format. It turns the bytes of a block into integers, scales and minima.
//
// Formats of 32 weights: a half d, sometimes a half m, then 16 bytes whose low nibbles are weights 0-15 and whose high nibbles are
// weights 16-31 (Q8_0: 32 signed bytes). Formats of 256 weights (K): groups of 16 or 32 with small integer scales, which are
// multiplied by d and dmin.
#include "runtime/cpu/formats/blocks.h"

#include <cmath>
#include <cstring>

#include "runtime/base/grids.h"
#include "runtime/base/half.h"

namespace orrery::cpu {

namespace {

float half_at(const uint8_t* p) { return half_to_float(static_cast<uint16_t>(p[0] | p[1] << 8)); }
uint32_t word_at(const uint8_t* p) {
  return p[0] | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
}
int8_t int8(int v) { return static_cast<int8_t>(v); }

constexpr int8_t kCodebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Nibble i of 32, in the order of the formats of 32 weights.
int nibble(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

void unpack_q8_0(const uint8_t* b, UnpackedBlock* out) {
  out->scale[0] = half_at(b);
  std::memcpy(out->q, b + 2, 32);
}

void unpack_q4_0(const uint8_t* b, UnpackedBlock* out) {
  out->scale[0] = half_at(b);
  for (int i = 0; i < 32; ++i) out->q[i] = int8(nibble(b + 2, i) - 8);
}

void unpack_q4_1(const uint8_t* b, UnpackedBlock* out) {
  out->scale[0] = half_at(b);
  out->min[0] = -half_at(b + 2);
  for (int i = 0; i < 32; ++i) out->q[i] = int8(nibble(b + 4, i));
}

void unpack_q5_0(const uint8_t* b, UnpackedBlock* out) {
  const uint32_t high = word_at(b + 2);
  out->scale[0] = half_at(b);
  for (int i = 0; i < 32; ++i) out->q[i] = int8((nibble(b + 6, i) | static_cast<int>(high >> i & 1) << 4) - 16);
}

void unpack_q5_1(const uint8_t* b, UnpackedBlock* out) {
  const uint32_t high = word_at(b + 4);
  out->scale[0] = half_at(b);
  out->min[0] = -half_at(b + 2);
  for (int i = 0; i < 32; ++i) out->q[i] = int8(nibble(b + 8, i) | static_cast<int>(high >> i & 1) << 4);
}

void unpack_iq4_nl(const uint8_t* b, UnpackedBlock* out) {
  out->scale[0] = half_at(b);
  for (int i = 0; i < 32; ++i) out->q[i] = kCodebook[nibble(b + 2, i)];
}

// Layout: scales and minima nibbles[16], 2-bit q[64], d, dmin. Each 32 bytes of q hold four runs of 32 weights.
void unpack_q2_k(const uint8_t* b, UnpackedBlock* out) {
  const float d = half_at(b + 80), dmin = half_at(b + 82);
  for (int g = 0; g < 16; ++g) {
    out->scale[g] = d * static_cast<float>(b[g] & 15);
    out->min[g] = dmin * static_cast<float>(b[g] >> 4);
  }
  const uint8_t* q = b + 16;
  for (int i = 0; i < 256; ++i) out->q[i] = int8(q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3);
}

// Layout: high bits[32] (a clear bit means minus 4), 2-bit q[64], 6-bit scales[12], d.
void unpack_q3_k(const uint8_t* b, UnpackedBlock* out) {
  const uint8_t *high = b, *q = b + 32, *s = b + 96;
  const float d = half_at(b + 108);
  for (int g = 0; g < 16; ++g) {
    const int low4 = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    const int high2 = s[8 + g % 4] >> (g / 4 * 2) & 3;
    out->scale[g] = d * static_cast<float>((low4 | high2 << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int two = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    out->q[i] = int8(two - ((high[i % 32] >> (i / 32) & 1) ? 0 : 4));
  }
}

// The eight 6-bit scales and minima that Q4_K and Q5_K pack into 12 bytes.
void unpack_scales_k4(const uint8_t* s, float d, float dmin, UnpackedBlock* out) {
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    const int min = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
    out->scale[g] = d * static_cast<float>(scale);
    out->min[g] = dmin * static_cast<float>(min);
  }
}

// Layout: d, dmin, scales[12], nibbles[128]; each 32 bytes of nibbles hold 64 weights.
void unpack_q4_k(const uint8_t* b, UnpackedBlock* out) {
  unpack_scales_k4(b + 4, half_at(b), half_at(b + 2), out);
  for (int i = 0; i < 256; ++i) out->q[i] = int8(b[16 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15);
}

// Layout: d, dmin, scales[12], fifth bits[32], nibbles[128].
void unpack_q5_k(const uint8_t* b, UnpackedBlock* out) {
  unpack_scales_k4(b + 4, half_at(b), half_at(b + 2), out);
  const uint8_t *high = b + 16, *q = b + 48;
  for (int i = 0; i < 256; ++i) out->q[i] = int8((q[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15) | (high[i % 32] >> (i / 32) & 1) << 4);
}

// Layout: nibbles[128], upper 2 bits[64], int8 scales[16], d. Each 128 weights have 64 bytes of nibbles and 32 of upper bits.
void unpack_q6_k(const uint8_t* b, UnpackedBlock* out) {
  const float d = half_at(b + 208);
  for (int g = 0; g < 16; ++g) out->scale[g] = d * static_cast<float>(static_cast<int8_t>(b[192 + g]));
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, run = i % 128 / 32, l = i % 32;
    const int low = b[half * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 15;
    const int high = b[128 + half * 32 + l] >> (run * 2) & 3;
    out->q[i] = int8((low | high << 4) - 32);
  }
}

// Layout: d, upper scale bits (u16), lower scale nibbles[4], codes[128].
void unpack_iq4_xs(const uint8_t* b, UnpackedBlock* out) {
  const float d = half_at(b);
  const int high = b[2] | b[3] << 8;
  for (int g = 0; g < 8; ++g) {
    const int scale = (b[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (g * 2) & 3) << 4;
    out->scale[g] = d * static_cast<float>(scale - 32);
    for (int i = 0; i < 32; ++i) out->q[g * 32 + i] = kCodebook[nibble(b + 8 + g * 16, i)];
  }
}

// IQ3 and IQ2: magnitudes of a codebook (runtime/base/grids.h), with the bits of `signs`. A scale is d times an odd number, of which
// IQ3_XXS takes a quarter, and IQ2 an eighth.
int8_t signed_int8(uint8_t magnitude, int signs, int i) { return int8(signs >> i & 1 ? -magnitude : magnitude); }
float odd_scale(float d, int nibble, float unit) { return d * (static_cast<float>(2 * nibble + 1) * unit); }
void put_four(uint8_t (*magnitude)(uint32_t, int), uint32_t entry, int signs, int8_t* q) {
  for (int i = 0; i < 4; ++i) q[i] = signed_int8(magnitude(entry, i), signs, i);
}
void put_eight(uint32_t entry, int signs, int8_t* q) {
  for (int i = 0; i < 8; ++i) q[i] = signed_int8(grids::iq2_magnitude(entry, i), signs, i);
}

// Layout: d, entries[64], then for each group a word: four times seven signs, and the scale in its upper four bits.
void unpack_iq3_xxs(const uint8_t* b, UnpackedBlock* out) {
  for (int g = 0; g < 8; ++g) {
    const uint32_t word = word_at(b + 66 + 4 * g);
    out->scale[g] = odd_scale(half_at(b), static_cast<int>(word >> 28), 0.25f);
    for (int j = 0; j < 8; ++j)
      put_four(grids::iq3_xxs_magnitude, grids::kIq3XxsGrid[b[2 + 8 * g + j]], grids::all_signs(word >> (j / 2 * 7) & 127) >> (j % 2 * 4),
               out->q + 32 * g + 4 * j);
  }
}

// Layout: d, entries[64], their ninth bits[8], signs[32], scale nibbles[4].
void unpack_iq3_s(const uint8_t* b, UnpackedBlock* out) {
  for (int g = 0; g < 8; ++g) {
    out->scale[g] = odd_scale(half_at(b), b[106 + g / 2] >> (g % 2 * 4) & 15, 1.0f);
    for (int j = 0; j < 8; ++j)
      put_four(grids::iq3_s_magnitude, grids::kIq3SGrid[b[2 + 8 * g + j] | (b[66 + g] >> j & 1) << 8], b[74 + 4 * g + j / 2] >> (j % 2 * 4),
               out->q + 32 * g + 4 * j);
  }
}

// Layout: d, then for each group: entries[4], and a word as in IQ3_XXS.
void unpack_iq2_xxs(const uint8_t* b, UnpackedBlock* out) {
  for (int g = 0; g < 8; ++g) {
    const uint32_t word = word_at(b + 6 + 8 * g);
    out->scale[g] = odd_scale(half_at(b), static_cast<int>(word >> 28), 0.125f);
    for (int j = 0; j < 4; ++j)
      put_eight(grids::kIq2XxsGrid[b[2 + 8 * g + j]], grids::all_signs(word >> (7 * j) & 127), out->q + 32 * g + 8 * j);
  }
}

// The scale nibbles of IQ2_XS and IQ2_S: one for each group of 16.
void unpack_iq2_scales(const uint8_t* b, const uint8_t* nibbles, UnpackedBlock* out) {
  for (int g = 0; g < 16; ++g) out->scale[g] = odd_scale(half_at(b), nibbles[g / 2] >> (g % 2 * 4) & 15, 0.125f);
}

// Layout: d, u16[32] of an entry (9 bits) and seven signs, scale nibbles[8].
void unpack_iq2_xs(const uint8_t* b, UnpackedBlock* out) {
  unpack_iq2_scales(b, b + 66, out);
  for (int j = 0; j < 32; ++j) {
    const uint32_t q = b[2 + 2 * j] | static_cast<uint32_t>(b[3 + 2 * j]) << 8;
    put_eight(grids::kIq2XsGrid[q & 511], grids::all_signs(q >> 9), out->q + 8 * j);
  }
}

// Layout: d, entries[32], signs[32], the entries' two upper bits[8], scale nibbles[8].
void unpack_iq2_s(const uint8_t* b, UnpackedBlock* out) {
  unpack_iq2_scales(b, b + 74, out);
  for (int j = 0; j < 32; ++j) put_eight(grids::kIq2SGrid[b[2 + j] | (b[66 + j / 4] >> (j % 4 * 2) & 3) << 8], b[34 + j], out->q + 8 * j);
}

constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Layout: an exponent e, nibbles[16]. The scale is 2^(e - 127), halved because the values are doubled.
void unpack_mxfp4(const uint8_t* b, UnpackedBlock* out) {
  const uint32_t bits = b[0] < 2 ? uint32_t{0x00200000} << b[0] : static_cast<uint32_t>(b[0] - 1) << 23;
  std::memcpy(&out->scale[0], &bits, sizeof bits);
  for (int i = 0; i < 32; ++i) out->q[i] = kE2m1Doubled[nibble(b + 1, i)];
}

// Layout: UE4M3 scales[4], codes[32]. Each 16 weights have eight bytes, of which the low nibbles are the first eight weights.
void unpack_nvfp4(const uint8_t* b, UnpackedBlock* out) {
  for (int g = 0; g < 4; ++g) out->scale[g] = ue4m3_to_float(b[g]) * 0.5f;
  for (int i = 0; i < 64; ++i) out->q[i] = kE2m1Doubled[b[4 + i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15];
}

constexpr BlockFormat kQ8_0{32, 34, 32, false, unpack_q8_0}, kQ4_0{32, 18, 32, false, unpack_q4_0}, kQ4_1{32, 20, 32, true, unpack_q4_1},
    kQ5_0{32, 22, 32, false, unpack_q5_0}, kQ5_1{32, 24, 32, true, unpack_q5_1}, kIq4Nl{32, 18, 32, false, unpack_iq4_nl},
    kQ2K{256, 84, 16, true, unpack_q2_k}, kQ3K{256, 110, 16, false, unpack_q3_k}, kQ4K{256, 144, 32, true, unpack_q4_k},
    kQ5K{256, 176, 32, true, unpack_q5_k}, kQ6K{256, 210, 16, false, unpack_q6_k}, kIq4Xs{256, 136, 32, false, unpack_iq4_xs},
    kIq3Xxs{256, 98, 32, false, unpack_iq3_xxs}, kIq3S{256, 110, 32, false, unpack_iq3_s}, kIq2Xxs{256, 66, 32, false, unpack_iq2_xxs},
    kIq2Xs{256, 74, 16, false, unpack_iq2_xs}, kIq2S{256, 82, 16, false, unpack_iq2_s}, kNvfp4{64, 36, 16, false, unpack_nvfp4},
    kMxfp4{32, 17, 32, false, unpack_mxfp4};

void store_half(uint8_t* p, float f) {
  const uint16_t h = float_to_half(f);
  p[0] = static_cast<uint8_t>(h & 255);
  p[1] = static_cast<uint8_t>(h >> 8);
}

float finite_or_zero(float x) { return std::isfinite(x) ? x : 0.0f; }

// d = max|x| / 127, q = x / d rounded to nearest, ties away from zero.
void store_q8_0(const float* values, uint8_t* b) {
  float x[32], largest = 0;
  for (int i = 0; i < 32; ++i) {
    x[i] = finite_or_zero(values[i]);
    largest = std::fmax(largest, std::fabs(x[i]));
  }
  const float d = largest / 127.0f;
  const float inverse = finite_or_zero(1.0f / d);
  store_half(b, d);
  for (int i = 0; i < 32; ++i) b[2 + i] = static_cast<uint8_t>(int8(static_cast<int>(std::round(x[i] * inverse))));
}

// d = (the value of largest magnitude) / -8, q = x / d + 8.5 truncated to an integer, at most 15.
void store_q4_0(const float* values, uint8_t* b) {
  float x[32], largest = -1, extreme = 0;  // -1: in a block of zeros, the first zero's sign counts, too
  for (int i = 0; i < 32; ++i) {
    x[i] = finite_or_zero(values[i]);
    if (std::fabs(x[i]) > largest) {
      largest = std::fabs(x[i]);
      extreme = x[i];
    }
  }
  const float d = extreme / -8.0f;
  const float inverse = finite_or_zero(1.0f / d);
  store_half(b, d);
  const auto code = [&](float v) {
    const int q = static_cast<int>(v * inverse + 8.5f);
    return q < 15 ? q : 15;
  };
  for (int i = 0; i < 16; ++i) b[2 + i] = static_cast<uint8_t>(code(x[i]) | code(x[i + 16]) << 4);
}

uint16_t half_bits_at(const std::byte* p, int64_t i) {
  uint16_t h;
  std::memcpy(&h, p + i * 2, 2);
  return h;
}

}  // namespace

const BlockFormat* block_format(TensorType type) {
  switch (type) {
    case TensorType::q8_0: return &kQ8_0;
    case TensorType::q4_0: return &kQ4_0;
    case TensorType::q4_1: return &kQ4_1;
    case TensorType::q5_0: return &kQ5_0;
    case TensorType::q5_1: return &kQ5_1;
    case TensorType::q2_k: return &kQ2K;
    case TensorType::q3_k: return &kQ3K;
    case TensorType::q4_k: return &kQ4K;
    case TensorType::q5_k: return &kQ5K;
    case TensorType::q6_k: return &kQ6K;
    case TensorType::iq4_nl: return &kIq4Nl;
    case TensorType::iq4_xs: return &kIq4Xs;
    case TensorType::iq3_xxs: return &kIq3Xxs;
    case TensorType::iq3_s: return &kIq3S;
    case TensorType::iq2_xxs: return &kIq2Xxs;
    case TensorType::iq2_xs: return &kIq2Xs;
    case TensorType::iq2_s: return &kIq2S;
    case TensorType::nvfp4: return &kNvfp4;
    case TensorType::mxfp4: return &kMxfp4;
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16: break;
  }
  return nullptr;
}

void dequantize(TensorType type, const std::byte* row, int64_t n, float* out) {
  if (const BlockFormat* format = block_format(type)) {
    UnpackedBlock block;
    for (int64_t i = 0; i < n; i += format->n_weights, row += format->n_bytes) {
      format->unpack(reinterpret_cast<const uint8_t*>(row), &block);
      for (int j = 0; j < format->n_weights; ++j) {
        const int g = j / format->group;
        const float value = block.scale[g] * static_cast<float>(block.q[j]);
        out[i + j] = format->has_min ? value - block.min[g] : value;
      }
    }
  } else if (type == TensorType::f32) {
    std::memcpy(out, row, static_cast<size_t>(n) * 4);
  } else if (type == TensorType::f16) {
    for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(half_bits_at(row, i));
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = bfloat16_to_float(half_bits_at(row, i));
  }
}

void load_kv(TensorType type, const std::byte* vector, int32_t head_dim, float* out) { dequantize(type, vector, head_dim, out); }

void store_kv(TensorType type, const float* x, int32_t head_dim, std::byte* vector) {
  uint8_t* out = reinterpret_cast<uint8_t*>(vector);
  switch (type) {
    case TensorType::f16:
      for (int32_t i = 0; i < head_dim; ++i) store_half(out + i * 2, x[i]);
      return;
    case TensorType::q8_0:
      for (int32_t i = 0; i < head_dim; i += 32) store_q8_0(x + i, out + i / 32 * 34);
      return;
    case TensorType::q4_0:
      for (int32_t i = 0; i < head_dim; i += 32) store_q4_0(x + i, out + i / 32 * 18);
      return;
    default: std::memcpy(out, x, static_cast<size_t>(head_dim) * 4); return;
  }
}

}  // namespace orrery::cpu

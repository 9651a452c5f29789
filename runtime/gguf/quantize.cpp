// The reference quantizers, one function per block format. quantize.h states their arithmetic.
#include "runtime/gguf/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/half.h"

namespace orrery::gguf {

namespace {

constexpr int kBlock = 32;

void put_half(uint8_t* p, float value) {
  const uint16_t h = float_to_half(value);
  std::memcpy(p, &h, sizeof h);
}

// A block whose d is denormal has no usable inverse, because its values are below anything a half can scale.
float inverse(float d) {
  const float id = d == 0 ? 0 : 1 / d;
  return std::isfinite(id) ? id : 0;
}

float largest(const float* x) {  // the first value of greatest magnitude
  float best = x[0];
  for (int i = 1; i < kBlock; ++i)
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  return best;
}

// Packs weights 0..15 into the low nibbles and 16..31 into the high nibbles. Returns the fifth bits, if any.
uint32_t pack_nibbles(const int* q, uint8_t* nibbles) {
  uint32_t high = 0;
  for (int i = 0; i < 16; ++i) nibbles[i] = static_cast<uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
  for (int i = 0; i < kBlock; ++i) high |= static_cast<uint32_t>(q[i] >> 4 & 1) << i;
  return high;
}

void q8_0(const float* x, uint8_t* b) {
  const float d = std::fabs(largest(x)) / 127;
  const float id = inverse(d);
  put_half(b, d);
  for (int i = 0; i < kBlock; ++i) b[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * id)));
}

// Q4_0 and Q5_0: codes 0 to 2 * Half - 1 stand for -Half to Half - 1.
template <int Half>
float symmetric(const float* x, int* q) {
  const float d = largest(x) / -Half;
  const float id = inverse(d);
  for (int i = 0; i < kBlock; ++i) q[i] = std::min(static_cast<int>(x[i] * id + (static_cast<float>(Half) + 0.5f)), 2 * Half - 1);
  return d;
}

// Q4_1 and Q5_1: codes 0 to Top stand for min to max.
template <int Top>
float affine(const float* x, int* q, float* min) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const float d = (*high - *low) / Top;
  const float id = inverse(d);
  for (int i = 0; i < kBlock; ++i) q[i] = std::min(static_cast<int>((x[i] - *low) * id + 0.5f), Top);
  *min = *low;
  return d;
}

void q4_0(const float* x, uint8_t* b) {
  int q[kBlock];
  put_half(b, symmetric<8>(x, q));
  pack_nibbles(q, b + 2);
}

void q5_0(const float* x, uint8_t* b) {
  int q[kBlock];
  put_half(b, symmetric<16>(x, q));
  const uint32_t high = pack_nibbles(q, b + 6);
  std::memcpy(b + 2, &high, sizeof high);
}

void q4_1(const float* x, uint8_t* b) {
  int q[kBlock];
  float min;
  put_half(b, affine<15>(x, q, &min));
  put_half(b + 2, min);
  pack_nibbles(q, b + 4);
}

void q5_1(const float* x, uint8_t* b) {
  int q[kBlock];
  float min;
  put_half(b, affine<31>(x, q, &min));
  put_half(b + 2, min);
  const uint32_t high = pack_nibbles(q, b + 8);
  std::memcpy(b + 4, &high, sizeof high);
}

template <void (*block)(const float*, uint8_t*)>
void blocks(TensorType type, const float* src, std::byte* dst, uint64_t n) {
  const uint32_t step = type_traits(type)->block_bytes;
  auto* p = reinterpret_cast<uint8_t*>(dst);
  for (uint64_t i = 0; i < n; i += kBlock, p += step) block(src + i, p);
}

template <uint16_t (*convert)(float)>
void scalars(const float* src, std::byte* dst, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    const uint16_t v = convert(src[i]);
    std::memcpy(dst + 2 * i, &v, sizeof v);
  }
}

}  // namespace

void quantize_row(TensorType type, const float* src, std::byte* dst, uint64_t n) {
  switch (type) {
    case TensorType::f32: std::memcpy(dst, src, n * sizeof(float)); break;
    case TensorType::f16: scalars<float_to_half>(src, dst, n); break;
    case TensorType::bf16: scalars<float_to_bfloat16>(src, dst, n); break;
    case TensorType::q8_0: blocks<q8_0>(type, src, dst, n); break;
    case TensorType::q4_0: blocks<q4_0>(type, src, dst, n); break;
    case TensorType::q4_1: blocks<q4_1>(type, src, dst, n); break;
    case TensorType::q5_0: blocks<q5_0>(type, src, dst, n); break;
    case TensorType::q5_1: blocks<q5_1>(type, src, dst, n); break;
    default: break;  // quantize.h names the types
  }
}

}  // namespace orrery::gguf

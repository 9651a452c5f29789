// What tests draw most, compiled as the rooms are: the tests themselves are hardly optimised.
#include "tests/support/random_blocks.h"

#include <cmath>
#include <cstring>

#include "runtime/base/half.h"

namespace orrery::testing {

float Random::normal() {
  constexpr uint64_t kEven = 0x0000FFFF0000FFFFu;
  uint64_t sums = 0;  // two, of 32 bits each
  for (int i = 0; i < 3; ++i) {
    const uint64_t four = bits();
    sums += (four & kEven) + (four >> 16 & kEven);
  }
  return static_cast<float>((sums & 0xFFFFFFFFu) + (sums >> 32)) * 0x1p-16f - 6.0f;
}

void fill_random_blocks(TensorType type, std::byte* dst, uint64_t n_elements, uint64_t seed, float scale) {
  Random random(seed * 0x2545F4914F6CDD1Du + static_cast<uint64_t>(type));
  const TypeTraits traits = *type_traits(type);
  for (uint64_t i = 0; i < n_elements; i += traits.block_elements, dst += traits.block_bytes) {
    const auto put_half = [&](uint64_t at, float value) {
      const uint16_t h = float_to_half(value);
      std::memcpy(dst + at, &h, sizeof h);
    };
    for (uint64_t b = 0; b < traits.block_bytes; ++b) dst[b] = static_cast<std::byte>(random.bits() >> 56);
    // Blocks differ in scale, as in real matrices: by up to a third more or less.
    const float s = scale * (0.67f + 0.66f * random.uniform());
    switch (type) {
      case TensorType::f32: {
        const float v = scale * random.normal();
        std::memcpy(dst, &v, sizeof v);
        break;
      }
      case TensorType::f16: put_half(0, scale * random.normal()); break;
      case TensorType::bf16: {
        const uint16_t v = float_to_bfloat16(scale * random.normal());
        std::memcpy(dst, &v, sizeof v);
        break;
      }
      // Divided by the standard deviation that random quants (and sub-scales) have at d = 1.
      case TensorType::q8_0: put_half(0, s / 73.9f); break;
      case TensorType::q4_0: put_half(0, s / 4.64f); break;
      case TensorType::q5_0: put_half(0, s / 9.25f); break;
      case TensorType::iq4_nl: put_half(0, s / 70.0f); break;
      case TensorType::mxfp4: {  // the scale is a power of two: the nearest one
        int exponent;
        const float share = std::frexp(s / 3.29f, &exponent);
        dst[0] = static_cast<std::byte>(share > 0.0f ? exponent - 1 + 127 + (share > 0.70710678f) : 0);
        break;
      }
      case TensorType::q4_1:
        put_half(0, s / 4.61f);
        put_half(2, -7.5f * s / 4.61f);
        break;
      case TensorType::q5_1:
        put_half(0, s / 9.23f);
        put_half(2, -15.5f * s / 9.23f);
        break;
      case TensorType::q2_k:  // offsets of 1.5 quants centre the values: dmin = 1.5 d
        put_half(80, s / 13.9f);
        put_half(82, 1.5f * s / 13.9f);
        break;
      case TensorType::q3_k: put_half(108, s / 42.7f); break;
      case TensorType::q4_k:
        put_half(0, s / 257.0f);
        put_half(2, 7.5f * s / 257.0f);
        break;
      case TensorType::q5_k:
        put_half(0, s / 527.0f);
        put_half(2, 15.5f * s / 527.0f);
        break;
      case TensorType::q6_k: put_half(208, s / 1367.0f); break;
      case TensorType::iq4_xs: put_half(0, s / 1290.0f); break;
      case TensorType::iq3_xxs: put_half(0, s / 142.6f); break;
      case TensorType::iq3_s: put_half(0, s / 140.1f); break;
      case TensorType::iq2_xxs: put_half(0, s / 53.3f); break;
      case TensorType::iq2_xs: put_half(0, s / 55.9f); break;
      case TensorType::nvfp4:  // four scales, a quarter of the largest and more
        for (uint64_t g = 0; g < 4; ++g) {
          const float wanted = s / 2.0f * 0.25f * static_cast<float>(g + 1);
          uint8_t code = 0;  // the nearest; 0x7F is not one
          while (code < 0x7E && ue4m3_to_float(code) + ue4m3_to_float(static_cast<uint8_t>(code + 1)) < 2 * wanted) ++code;
          dst[g] = static_cast<std::byte>(code);
        }
        break;
      case TensorType::iq2_s: put_half(0, s / 56.6f); break;
    }
  }
}

}  // namespace orrery::testing

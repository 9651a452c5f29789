// Moves the bits of a file's block, format by format, to the planes of a row (formats.h): put_block(). It works on words of several bytes at
// once: a model's load waits for it. The host calls it when it uploads weights, and a kernel for weights whose bytes come as in the file
// (kernels/weights.cu). runtime/cpu/formats/blocks.cpp explains the formats of the file, README.md the planes.
//
// Words that are taken and put by load() and store() are handled byte by byte alike: shifts stay within a byte. Where the order of the
// bytes counts, load_least_first() and store_least_first() serve in any byte order of the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/device/formats.h"
#include "cuda/device/host_device.h"

namespace orrery::cuda::file_blocks {

using Type = TensorType;

template <Type type>
struct FileBlock {
  static constexpr PlaneBytes kPlanes = plane_bytes(type);
  static constexpr int kBytes = static_cast<int>(type_traits(type)->block_bytes),
                       kGroups = static_cast<int>(type_traits(type)->block_elements / 32);
};

// Where the bytes of a block go, in each plane: those of its first group.
struct Planes {
  uint8_t *codes, *high, *group, *block;
};

ORRERY_HOST_DEVICE constexpr uint64_t each_byte(uint64_t byte) { return byte * 0x0101010101010101u; }

ORRERY_HOST_DEVICE inline uint8_t byte(unsigned x) { return static_cast<uint8_t>(x); }
ORRERY_HOST_DEVICE inline uint64_t load(const uint8_t* p) {
  uint64_t x;
  std::memcpy(&x, p, 8);
  return x;
}
ORRERY_HOST_DEVICE inline void store(uint8_t* p, uint64_t x) { std::memcpy(p, &x, 8); }
// Two words of four bytes that lie apart.
ORRERY_HOST_DEVICE inline uint64_t load_two(const uint8_t* first, const uint8_t* second) {
  uint8_t both[8];
  std::memcpy(both, first, 4), std::memcpy(both + 4, second, 4);
  return load(both);
}
ORRERY_HOST_DEVICE inline uint32_t load_least_first(const uint8_t* p) {
  return p[0] | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}
ORRERY_HOST_DEVICE inline void store_least_first(uint8_t* p, uint32_t x) {
  p[0] = byte(x), p[1] = byte(x >> 8), p[2] = byte(x >> 16), p[3] = byte(x >> 24);
}
// Exchanges the bits `mask` of a with the bits `mask` << shift of b, each in its byte.
ORRERY_HOST_DEVICE inline void exchange(uint64_t* a, uint64_t* b, int shift, uint64_t mask) {
  const uint64_t different = (*a >> shift ^ *b) & mask;
  *a ^= different << shift, *b ^= different;
}

// Codes of four bits -------------------------------------------------------------------------------------

// 32 bytes with two groups: the columns of `low` in the low nibbles.
ORRERY_HOST_DEVICE inline void put_nibbles(const uint8_t* p, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < 16; i += 8) {
    const uint64_t first = load(p + i), second = load(p + 16 + i);  // columns i .. and 16+i ..
    store(low + i, (first & each_byte(0x0F)) | (second & each_byte(0x0F)) << 4);
    store(high + i, (first >> 4 & each_byte(0x0F)) | (second & each_byte(0xF0)));
  }
}

// The low nibbles of four bytes, side by side.
ORRERY_HOST_DEVICE inline uint32_t pack_nibbles(uint32_t x) {
  x &= 0x0F0F0F0Fu;
  x = (x | x >> 4) & 0x00FF00FFu;
  return (x | x >> 8) & 0xFFFFu;
}
// The lowest two bits of four bytes, side by side.
ORRERY_HOST_DEVICE inline uint32_t pack_pairs(uint32_t x) {
  x &= 0x03030303u;
  x = (x | x >> 6) & 0x000F000Fu;
  return (x | x >> 12) & 0xFFu;
}

// A group of IQ4: 16 bytes with columns 0 .. 15 in the low nibbles.
ORRERY_HOST_DEVICE inline void put_selectors(const uint8_t* p, uint8_t* codes) {
  for (int i = 0; i < 16; i += 4) {
    const uint32_t x = load_least_first(p + i);
    store_least_first(codes + i, pack_nibbles(x) | pack_nibbles(x >> 4) << 16);
  }
}

// A group of NVFP4: eight bytes with columns 0 .. 7 in the low nibbles and 8 .. 15 in the high ones, then the same of columns 16 .. 31.
ORRERY_HOST_DEVICE inline void put_selectors_of_halves(const uint8_t* p, uint8_t* codes) {
  for (int i = 0; i < 8; i += 4) {
    const uint32_t x = load_least_first(p + i), y = load_least_first(p + 8 + i);
    store_least_first(codes + i, pack_nibbles(x) | pack_nibbles(y) << 16);
    store_least_first(codes + 8 + i, pack_nibbles(x >> 4) | pack_nibbles(y >> 4) << 16);
  }
}

// Codes of two bits, or the upper two of six -------------------------------------------------------------

// 32 bytes with four groups: those of group g in bits 2g and 2g+1 of each byte.
ORRERY_HOST_DEVICE inline void put_pairs(const uint8_t* p, uint8_t* to) {
  // x[i]: the words whose pairs go to bits 2i and 2i+1. The exchanges make group i of it: they transpose 4 x 4 pairs.
  uint64_t x[4] = {load_two(p + 16, p + 24), load_two(p + 20, p + 28), load_two(p, p + 8), load_two(p + 4, p + 12)};
  exchange(&x[0], &x[2], 4, each_byte(0x0F)), exchange(&x[1], &x[3], 4, each_byte(0x0F));
  exchange(&x[0], &x[1], 2, each_byte(0x33)), exchange(&x[2], &x[3], 2, each_byte(0x33));
  for (int g = 0; g < 4; ++g) store(to + 8 * g, x[g]);
}

// Single bits --------------------------------------------------------------------------------------------

// 32 bytes with eight groups: those of group g in bit g of each byte.
ORRERY_HOST_DEVICE inline void put_bits(const uint8_t* p, uint8_t* to) {
  // x[i]: the words whose bits go to bits i and 4+i. The exchanges make groups i and 4+i of them: they transpose 8 x 8 bits.
  uint64_t x[4];
  for (int i = 0; i < 4; ++i) x[i] = load_two(p + 16 + 4 * i, p + 4 * i);
  exchange(&x[0], &x[2], 2, each_byte(0x33)), exchange(&x[1], &x[3], 2, each_byte(0x33));
  exchange(&x[0], &x[1], 1, each_byte(0x55)), exchange(&x[2], &x[3], 1, each_byte(0x55));
  for (int i = 0; i < 4; ++i) {
    uint8_t both[8];
    store(both, x[i]);
    uint32_t low, high;
    std::memcpy(&low, both, 4), std::memcpy(&high, both + 4, 4);
    const uint32_t different = (low >> 4 ^ high) & 0x0F0F0F0Fu;
    low ^= different << 4, high ^= different;
    std::memcpy(to + 4 * i, &low, 4), std::memcpy(to + 4 * (4 + i), &high, 4);
  }
}

// 4 bytes with a group: bit i of column i.
ORRERY_HOST_DEVICE inline void put_bits_of_group(const uint8_t* p, uint8_t* to) {
  const uint32_t bits = load_least_first(p);
  uint32_t word = 0;
  for (int j = 0; j < 8; ++j) word |= ((bits >> 4 * j & 15u) * 0x00204081u & 0x01010101u) << single_bit(j);
  store_least_first(to, word);
}

// Numbers that eight groups share ------------------------------------------------------------------------

// Of Q4_K and Q5_K: d, dmin, and 12 bytes with scales and minima of six bits.
ORRERY_HOST_DEVICE inline void put_k4_scales(const uint8_t* p, uint8_t* block) {
  // Of groups 0 .. 3 the numbers themselves, with two more bits of groups 4 .. 7 above; then the nibbles of groups 4 .. 7.
  const uint32_t scales = load_least_first(p + 4), minima = load_least_first(p + 8), nibbles = load_least_first(p + 12);
  std::memcpy(block, p, 4);
  store_least_first(block + 4, pack_nibbles(scales) | pack_nibbles(nibbles) << 16);
  store_least_first(block + 8, pack_nibbles(minima) | pack_nibbles(nibbles >> 4) << 16);
  store_least_first(block + 12,
                    pack_pairs(scales >> 4) | pack_pairs(scales >> 6) << 8 | pack_pairs(minima >> 4) << 16 | pack_pairs(minima >> 6) << 24);
}

// Of Q3_K: d, and 12 bytes with 16 scales of six bits.
ORRERY_HOST_DEVICE inline void put_k3_scales(const uint8_t* p, const uint8_t* d, uint8_t* block) {
  uint32_t low[2] = {}, upper = 0;
  for (int s = 0; s < 16; ++s) {
    const int g = s / 2, k = s % 2;
    low[k] |= (s < 8 ? p[s] & 15u : p[s - 8] >> 4) << 4 * g;
    upper |= (p[8 + s % 4] >> (s / 4 * 2) & 3u) << (2 * g + 16 * k);
  }
  std::memcpy(block, d, 2), std::memset(block + 2, 0, 2);
  store_least_first(block + 4, low[0]), store_least_first(block + 8, low[1]), store_least_first(block + 12, upper);
}

// The blocks, format by format ---------------------------------------------------------------------------

template <Type type>
ORRERY_HOST_DEVICE void put_block(const uint8_t* p, const Planes& to) {
  if constexpr (type == Type::q8_0) {
    std::memcpy(to.group, p, 2);
    std::memcpy(to.codes, p + 2, 16), std::memcpy(to.high, p + 18, 16);
  } else if constexpr (type == Type::q4_0 || type == Type::q4_1 || type == Type::q5_0 || type == Type::q5_1) {
    constexpr int scales = FileBlock<type>::kPlanes.group, bits = FileBlock<type>::kPlanes.high;
    std::memcpy(to.group, p, scales);
    if constexpr (bits > 0) put_bits_of_group(p + scales, to.high);
    std::memcpy(to.codes, p + scales + bits, 16);  // they lie as in the file
  } else if constexpr (type == Type::iq4_nl) {
    std::memcpy(to.group, p, 2);
    put_selectors(p + 2, to.codes);
  } else if constexpr (type == Type::q2_k) {
    std::memcpy(to.group, p, 16);
    std::memcpy(to.block, p + 80, 4);
    put_pairs(p + 16, to.codes), put_pairs(p + 48, to.codes + 32);
  } else if constexpr (type == Type::q3_k) {
    put_bits(p, to.high);
    put_pairs(p + 32, to.codes), put_pairs(p + 64, to.codes + 32);
    put_k3_scales(p + 96, p + 108, to.block);
  } else if constexpr (type == Type::q4_k || type == Type::q5_k) {
    constexpr int bits = type == Type::q5_k ? 32 : 0;
    put_k4_scales(p, to.block);
    if constexpr (bits > 0) put_bits(p + 16, to.high);
    for (int g = 0; g < 8; g += 2) put_nibbles(p + 16 + bits + 16 * g, to.codes + 16 * g, to.codes + 16 * (g + 1));
  } else if constexpr (type == Type::q6_k) {
    for (int half = 0; half < 2; ++half) {
      uint8_t* const codes = to.codes + 64 * half;
      put_nibbles(p + 64 * half, codes, codes + 32), put_nibbles(p + 64 * half + 32, codes + 16, codes + 48);
      put_pairs(p + 128 + 32 * half, to.high + 32 * half);
    }
    std::memcpy(to.group, p + 192, 16);
    std::memcpy(to.block, p + 208, 2);
  } else if constexpr (type == Type::iq4_xs) {
    std::memcpy(to.block, p, 2);
    for (int g = 0; g < 8; ++g) {
      const unsigned scale = (p[4 + g / 2] >> (g % 2 * 4) & 15u) | (p[2 + g / 4] >> (g % 4 * 2) & 3u) << 4;
      to.group[g] = byte(scale - 32u);
      put_selectors(p + 8 + 16 * g, to.codes + 16 * g);
    }
  } else if constexpr (type == Type::mxfp4) {
    to.group[0] = p[0];
    put_selectors(p + 1, to.codes);
  } else if constexpr (type == Type::nvfp4) {
    std::memcpy(to.group, p, 4);
    for (int g = 0; g < 2; ++g) put_selectors_of_halves(p + 4 + 16 * g, to.codes + 16 * g);
  } else if constexpr (type == Type::iq3_xxs) {
    std::memcpy(to.block, p, 2);
    std::memcpy(to.codes, p + 2, 64), std::memcpy(to.high, p + 66, 32);
  } else if constexpr (type == Type::iq3_s) {
    std::memcpy(to.block, p, 2), std::memset(to.block + 2, 0, 2), std::memcpy(to.block + 4, p + 106, 4);
    std::memcpy(to.codes, p + 2, 64), std::memcpy(to.group, p + 66, 8), std::memcpy(to.high, p + 74, 32);
  } else if constexpr (type == Type::iq2_xxs) {
    std::memcpy(to.block, p, 2);
    for (int g = 0; g < 8; ++g) std::memcpy(to.codes + 4 * g, p + 2 + 8 * g, 4), std::memcpy(to.high + 4 * g, p + 6 + 8 * g, 4);
  } else if constexpr (type == Type::iq2_xs) {
    std::memcpy(to.block, p, 2);
    std::memcpy(to.codes, p + 2, 64), std::memcpy(to.group, p + 66, 8);
  } else if constexpr (type == Type::iq2_s) {
    std::memcpy(to.block, p, 2);
    std::memcpy(to.codes, p + 2, 32), std::memcpy(to.high, p + 34, 32);
    for (int g = 0; g < 8; ++g) to.group[2 * g] = p[66 + g], to.group[2 * g + 1] = p[74 + g];
  } else {
    static_assert(is_float(type), "a format without its blocks");
  }
}

}  // namespace orrery::cuda::file_blocks

// Rows of weights in the device's layout (cuda/device/formats.h), number by number: the oracle of repack_row(). read_block() takes a block
// of a file apart: codes, scales and minima. The put_ functions write these to the planes of a row, as cuda/device/README.md describes
// them.
#pragma once

#include <cstring>

#include "cuda/device/formats.h"

namespace orrery::testing::plain {

using Type = TensorType;
using cuda::pair_bit;
using cuda::pair_word;
using cuda::plane_bytes;
using cuda::PlaneBytes;
using cuda::RowPlanes;
using cuda::single_bit;

// One block of a file, with each number in a byte of its own. Codes are not negative: kernels subtract the format's offset.
struct Block {
  uint8_t code[256];
  uint8_t group[8][4];  // the bytes of plane `groups`
  uint8_t shared[4];    // d and dmin
  uint8_t six[8][2];    // pairs of 6-bit numbers
};

inline uint8_t byte(unsigned x) { return static_cast<uint8_t>(x); }
inline unsigned bit(const uint8_t* p, int i) { return p[i / 8] >> (i % 8) & 1u; }

inline void read_nibbles_32(const uint8_t* p, uint8_t* code) {
  for (int i = 0; i < 16; ++i) code[i] = p[i] & 15, code[i + 16] = p[i] >> 4;
}
// Each 32 bytes hold 64 codes.
inline void read_nibbles_256(const uint8_t* p, uint8_t* code) {
  for (int i = 0; i < 256; ++i) code[i] = byte(p[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15u);
}
// Each 32 bytes hold 128 codes.
inline void read_pairs_256(const uint8_t* p, uint8_t* code) {
  for (int i = 0; i < 256; ++i) code[i] = byte(p[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u);
}
inline void read_k4_scales(const uint8_t* p, Block* b) {
  const auto at = [p](int i) -> unsigned { return p[i]; };
  for (int g = 0; g < 8; ++g) {
    b->six[g][0] = byte(g < 4 ? at(g) & 63u : (at(g + 4) & 15u) | at(g - 4) >> 6 << 4);
    b->six[g][1] = byte(g < 4 ? at(g + 4) & 63u : at(g + 4) >> 4 | at(g) >> 6 << 4);
  }
}

inline void read_block(Type type, const uint8_t* p, Block* b) {
  switch (type) {
    case Type::q8_0:
      std::memcpy(b->group[0], p, 2);
      std::memcpy(b->code, p + 2, 32);
      break;
    case Type::q4_0:
    case Type::iq4_nl:
      std::memcpy(b->group[0], p, 2);
      read_nibbles_32(p + 2, b->code);
      break;
    case Type::q4_1:
      std::memcpy(b->group[0], p, 4);
      read_nibbles_32(p + 4, b->code);
      break;
    case Type::q5_0:
      std::memcpy(b->group[0], p, 2);
      read_nibbles_32(p + 6, b->code);
      for (int i = 0; i < 32; ++i) b->code[i] |= byte(bit(p + 2, i) << 4);
      break;
    case Type::q5_1:
      std::memcpy(b->group[0], p, 4);
      read_nibbles_32(p + 8, b->code);
      for (int i = 0; i < 32; ++i) b->code[i] |= byte(bit(p + 4, i) << 4);
      break;
    case Type::q2_k:
      for (int g = 0; g < 8; ++g) std::memcpy(b->group[g], p + 2 * g, 2);
      std::memcpy(b->shared, p + 80, 4);
      read_pairs_256(p + 16, b->code);
      break;
    case Type::q3_k:
      std::memcpy(b->shared, p + 108, 2);
      for (int s = 0; s < 16; ++s) {
        const unsigned low = s < 8 ? p[96 + s] & 15u : p[96 + s - 8] >> 4;
        b->six[s / 2][s % 2] = byte(low | (p[104 + s % 4] >> (s / 4 * 2) & 3u) << 4);
      }
      read_pairs_256(p + 32, b->code);
      for (int i = 0; i < 256; ++i) b->code[i] |= byte((p[i % 32] >> (i / 32) & 1u) << 2);
      break;
    case Type::q4_k:
      std::memcpy(b->shared, p, 4);
      read_k4_scales(p + 4, b);
      read_nibbles_256(p + 16, b->code);
      break;
    case Type::q5_k:
      std::memcpy(b->shared, p, 4);
      read_k4_scales(p + 4, b);
      read_nibbles_256(p + 48, b->code);
      for (int i = 0; i < 256; ++i) b->code[i] |= byte((p[16 + i % 32] >> (i / 32) & 1u) << 4);
      break;
    case Type::q6_k:
      std::memcpy(b->shared, p + 208, 2);
      for (int g = 0; g < 8; ++g) std::memcpy(b->group[g], p + 192 + 2 * g, 2);
      for (int i = 0; i < 256; ++i) {
        const int half = i / 128, run = i % 128 / 32, l = i % 32;
        const unsigned low = p[half * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 15u;
        b->code[i] = byte(low | (p[128 + half * 32 + l] >> (run * 2) & 3u) << 4);
      }
      break;
    case Type::iq4_xs:
      std::memcpy(b->shared, p, 2);
      for (int g = 0; g < 8; ++g) {
        const unsigned scale = (p[4 + g / 2] >> (g % 2 * 4) & 15u) | ((p[2] | unsigned{p[3]} << 8) >> (g * 2) & 3u) << 4;
        b->group[g][0] = byte(scale - 32u);
        read_nibbles_32(p + 8 + 16 * g, b->code + 32 * g);
      }
      break;
    case Type::mxfp4:
      b->group[0][0] = p[0];
      read_nibbles_32(p + 1, b->code);
      break;
    case Type::nvfp4:
      for (int g = 0; g < 2; ++g) b->group[g][0] = p[2 * g], b->group[g][1] = p[2 * g + 1];
      for (int i = 0; i < 64; ++i) b->code[i] = byte(p[4 + i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15u);
      break;
    case Type::iq3_xxs:
    case Type::iq3_s:
    case Type::iq2_xxs:
    case Type::iq2_xs:
    case Type::iq2_s:  // put_grid_block()
    case Type::f32:
    case Type::f16:
    case Type::bf16: break;
  }
}

// The least byte goes first, in any byte order of the host.
inline void put_word(uint8_t* p, uint32_t word) {
  for (int i = 0; i < 4; ++i) p[i] = byte(word >> 8 * i & 0xFFu);
}

// Writes the bits [from, from + 2) of columns 4j .. 4j+3 to the four bytes of word pair_word(j), from bit pair_bit(j) on.
inline void put_pairs(const uint8_t* code, int from, uint8_t* p) {
  std::memset(p, 0, 8);
  for (int i = 0; i < 32; ++i) p[pair_word(i / 4) * 4 + i % 4] |= byte((code[i] >> from & 3u) << pair_bit(i / 4));
}

inline void put_codes(Type type, const uint8_t* code, uint8_t* p) {
  if (type == Type::q8_0) {
    std::memcpy(p, code, 16);
  } else if (type == Type::iq4_nl || type == Type::iq4_xs || type == Type::nvfp4 || type == Type::mxfp4) {
    for (int j = 0; j < 4; ++j) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) word |= static_cast<uint32_t>(code[4 * j + i % 4 + i / 4 * 16]) << 4 * i;
      put_word(p + 4 * j, word);
    }
  } else if (plane_bytes(type).codes == 8) {
    put_pairs(code, 0, p);
  } else {
    for (int i = 0; i < 16; ++i) p[i] = byte((code[i] & 15u) | (code[i + 16] & 15u) << 4);
  }
}

inline void put_high(Type type, const uint8_t* code, uint8_t* p) {
  const int n = plane_bytes(type).high;
  if (n == 16) std::memcpy(p, code + 16, 16);
  if (n == 8) put_pairs(code, 4, p);
  if (n == 4) {
    uint32_t word = 0;
    const int at = plane_bytes(type).codes == 8 ? 2 : 4;  // this bit follows codes of two or four bits
    for (int i = 0; i < 32; ++i) word |= (code[i] >> at & 1u) << (i % 4 * 8 + single_bit(i / 4));
    put_word(p, word);
  }
}

inline void put_shared(Type type, const Block& b, uint8_t* p) {
  const int n = plane_bytes(type).block;
  if (n < 16) {
    if (n > 0) std::memcpy(p, b.shared, static_cast<size_t>(n));
    return;
  }
  std::memcpy(p, b.shared, 4);
  uint32_t low[2] = {}, upper = 0;
  for (int g = 0; g < 8; ++g)
    for (int k = 0; k < 2; ++k) {
      const uint32_t number = b.six[g][k];
      low[k] |= (number & 15u) << 4 * g;
      upper |= number >> 4 << (2 * g + 16 * k);
    }
  put_word(p + 4, low[0]), put_word(p + 8, low[1]), put_word(p + 12, upper);
}

// A block of a type with a codebook: only bytes move. Of each plane: where its bytes of the first group stand in the file's block, and how
// many bytes further on those of the next group.
inline void put_grid_block(Type type, const uint8_t* p, uint8_t* codes, uint8_t* high, uint8_t* group, uint8_t* block) {
  struct Source {
    int first, step;
  };
  const PlaneBytes n = plane_bytes(type);
  const auto put = [p](uint8_t* to, int bytes, Source from) {
    for (int g = 0; g < 8; ++g)
      for (int i = 0; i < bytes; ++i) to[g * bytes + i] = p[from.first + g * from.step + i];
  };
  block[0] = p[0], block[1] = p[1];
  put(codes, n.codes, {2, type == Type::iq2_xxs ? 8 : n.codes});
  if (type == Type::iq3_xxs) put(high, 4, {66, 4});
  if (type == Type::iq2_xxs) put(high, 4, {6, 8});
  if (type == Type::iq2_xs) put(group, 1, {66, 1});
  if (type == Type::iq3_s) {
    put(high, 4, {74, 4}), put(group, 1, {66, 1});
    for (int i = 0; i < 4; ++i) block[4 + i] = p[106 + i];
  }
  if (type == Type::iq2_s) {
    put(high, 4, {34, 4});
    for (int g = 0; g < 8; ++g) group[2 * g] = p[66 + g], group[2 * g + 1] = p[74 + g];
  }
}

// The bytes of a row on the device.
inline void repack_row(Type type, int64_t n_cols, const std::byte* from, std::byte* to) {
  const RowPlanes planes = cuda::row_planes(type, n_cols);
  if (cuda::is_float(type)) {
    const uint64_t n = row_bytes(type, static_cast<uint64_t>(n_cols));
    std::memcpy(to, from, n);
    std::memset(to + n, 0, static_cast<uint64_t>(planes.bytes) - n);
    return;
  }
  std::memset(to, 0, static_cast<size_t>(planes.bytes));
  const PlaneBytes bytes = plane_bytes(type);
  const TypeTraits& traits = *type_traits(type);
  const int n_groups = static_cast<int>(traits.block_elements / 32);
  const uint8_t* p = reinterpret_cast<const uint8_t*>(from);
  uint8_t* out = reinterpret_cast<uint8_t*>(to);
  Block block = {};
  for (int64_t first = 0; first < n_cols / 32; first += n_groups, p += traits.block_bytes) {
    if (cuda::is_grid(type)) {
      put_grid_block(type, p, out + first * bytes.codes, out + planes.high + first * bytes.high, out + planes.group + first * bytes.group,
                     out + planes.block + first / 8 * bytes.block);
      continue;
    }
    read_block(type, p, &block);
    for (int g = 0; g < n_groups; ++g) {
      const int64_t group = first + g;
      const uint8_t* code = block.code + 32 * g;
      put_codes(type, code, out + group * bytes.codes);
      if (bytes.high) put_high(type, code, out + planes.high + group * bytes.high);
      if (bytes.group) std::memcpy(out + planes.group + group * bytes.group, block.group[g], static_cast<size_t>(bytes.group));
    }
    if (bytes.block) put_shared(type, block, out + planes.block + first / 8 * bytes.block);
  }
}

}  // namespace orrery::testing::plain

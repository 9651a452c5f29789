// Conversion to and from bands. Words are copied one by one, at 12 GB/s, which is faster than a file is read.
#include "runtime/cpu/formats/bands.h"

#include <cstring>

#include "runtime/base/grids.h"
#include "runtime/base/half.h"
#include "runtime/cpu/formats/blocks.h"

namespace orrery::cpu {

namespace {

constexpr uint64_t kMostBlockBytes = 256;

struct Layout {
  uint64_t block, head, words;  // bytes, bytes, number
  explicit Layout(const TypeTraits& type) : block(type.block_bytes), head(type.block_bytes % 4), words(type.block_bytes / 4) {}
  uint64_t head_at(uint64_t row) const { return row * head; }
  uint64_t word_at(uint64_t i, uint64_t row) const { return kBandRows * head + 4 * (i * kBandRows + row); }
};

// ---- Bands of indices: IQ3 ----

// Four indices of an entry, a byte for each weight.
constexpr uint8_t index_of(uint32_t entry, int i) { return static_cast<uint8_t>(entry >> (3 * i) & 7); }
constexpr grids::Fours<256> kIq3XxsIndices(grids::kIq3XxsGrid, index_of);
constexpr grids::Fours<512> kIq3SIndices(grids::kIq3SGrid, index_of);

uint32_t word_at(const uint8_t* p) {
  return p[0] | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
}
void put_word(uint8_t* p, uint32_t x) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(x >> (8 * i) & 255);
}

// A group of a block in the file: the indices of its words of four weights with their signs in bit 3, and its odd number.
struct IndexGroup {
  uint32_t words[8];
  uint8_t odd;
};
IndexGroup index_group(TensorType type, const uint8_t* b, int g) {
  IndexGroup out;
  const uint8_t* q = b + 2 + 8 * g;
  uint32_t signs, nibble;
  if (type == TensorType::iq3_xxs) {
    const uint32_t word = word_at(b + 66 + 4 * g);
    signs = 0, nibble = word >> 28;
    for (int l = 0; l < 4; ++l) signs |= static_cast<uint32_t>(grids::all_signs(word >> (7 * l) & 127)) << (8 * l);
    for (int j = 0; j < 8; ++j) out.words[j] = kIq3XxsIndices.entry[q[j]];
  } else {
    signs = word_at(b + 74 + 4 * g), nibble = b[106 + g / 2] >> (g % 2 * 4) & 15;
    for (int j = 0; j < 8; ++j) out.words[j] = kIq3SIndices.entry[q[j] | (b[66 + g] >> j & 1) << 8];
  }
  for (int j = 0; j < 8; ++j) out.words[j] |= ((signs >> (4 * j) & 15) * 0x00204081u & 0x01010101u) << 3;
  out.odd = static_cast<uint8_t>(2 * nibble + 1);
  return out;
}

void make_index_band(TensorType type, const uint8_t* rows, int64_t n, uint8_t* band) {
  const uint64_t block = type_traits(type)->block_bytes, row_size = static_cast<uint64_t>(n) / 256 * block;
  for (int64_t c = 0; c < n; c += 256, rows += block, band += kIndexBandBytes)
    for (uint64_t r = 0; r < kBandRows; ++r) {
      const uint8_t* b = rows + r * row_size;
      std::memcpy(band + 2 * r, b, 2);
      for (int g = 0; g < 8; ++g) {
        const IndexGroup group = index_group(type, b, g);
        band[2 * kBandRows + kBandRows * g + static_cast<int>(r)] = group.odd;
        uint8_t* words = band + kIndexBandNibbles + 16 * kBandRows * g + 4 * r;
        for (int k = 0; k < 4; ++k) put_word(words + 4 * kBandRows * k, group.words[k] | group.words[4 + k] << 4);
      }
    }
}

void dequantize_index_band_row(TensorType type, const uint8_t* band, int r, int64_t n, float* out) {
  const bool xxs = type == TensorType::iq3_xxs;
  for (int64_t c = 0; c < n; c += 256, band += kIndexBandBytes)
    for (int g = 0; g < 8; ++g) {
      const float d = half_to_float(static_cast<uint16_t>(band[2 * r] | band[2 * r + 1] << 8));
      const float scale = d * (static_cast<float>(band[2 * kBandRows + kBandRows * g + r]) * (xxs ? 0.25f : 1.0f));
      const uint8_t* words = band + kIndexBandNibbles + 16 * kBandRows * g + 4 * r;
      for (int i = 0; i < 32; ++i) {
        const int nibble = words[i % 16 / 4 * 4 * kBandRows + i % 4] >> (i / 16 * 4) & 15;
        const int magnitude = xxs ? grids::kIq3XxsMagnitudes[nibble & 7] : grids::kIq3SMagnitudes[nibble & 7];
        out[c + 32 * g + i] = scale * static_cast<float>(nibble & 8 ? -magnitude : magnitude);
      }
    }
}

}  // namespace

void make_band(TensorType type, const std::byte* rows, int64_t n, std::byte* band) {
  if (bands_hold_indices(type)) return make_index_band(type, reinterpret_cast<const uint8_t*>(rows), n, reinterpret_cast<uint8_t*>(band));
  const TypeTraits& traits = *type_traits(type);
  const Layout layout(traits);
  const uint64_t n_blocks = static_cast<uint64_t>(n) / traits.block_elements, row_size = n_blocks * layout.block;
  for (uint64_t b = 0; b < n_blocks; ++b, rows += layout.block, band += kBandRows * layout.block) {
    for (uint64_t r = 0; r < kBandRows; ++r) std::memcpy(band + layout.head_at(r), rows + r * row_size, layout.head);
    for (uint64_t i = 0; i < layout.words; ++i)
      for (uint64_t r = 0; r < kBandRows; ++r) std::memcpy(band + layout.word_at(i, r), rows + r * row_size + layout.head + 4 * i, 4);
  }
}

void dequantize_band_row(TensorType type, const std::byte* band, int32_t row, int64_t n, float* out) {
  if (bands_hold_indices(type)) return dequantize_index_band_row(type, reinterpret_cast<const uint8_t*>(band), row, n, out);
  const TypeTraits& traits = *type_traits(type);
  const Layout layout(traits);
  const uint64_t r = static_cast<uint64_t>(row);
  std::byte block[kMostBlockBytes];
  for (int64_t at = 0; at < n; at += traits.block_elements, band += kBandRows * layout.block) {
    std::memcpy(block, band + layout.head_at(r), layout.head);
    for (uint64_t i = 0; i < layout.words; ++i) std::memcpy(block + layout.head + 4 * i, band + layout.word_at(i, r), 4);
    dequantize(type, block, traits.block_elements, out + at);
  }
}

}  // namespace orrery::cpu

// Conversion to and from bands. Words are copied one by one, at 12 GB/s, which is faster than a file is read.
#include "runtime/cpu/formats/bands.h"

#include <cstring>

#include "runtime/cpu/formats/blocks.h"

namespace orrery::cpu {

namespace {

constexpr uint64_t kMostBlockBytes = 256;

struct Layout {
  uint64_t block, head, words;  // bytes, bytes, number
  explicit Layout(const TypeTraits& type)
      : block(type.block_bytes), head(type.block_bytes % 4), words(type.block_bytes / 4) {}
  uint64_t head_at(uint64_t row) const { return row * head; }
  uint64_t word_at(uint64_t i, uint64_t row) const { return kBandRows * head + 4 * (i * kBandRows + row); }
};

}  // namespace

void make_band(TensorType type, const std::byte* rows, int64_t n, std::byte* band) {
  const TypeTraits& traits = *type_traits(type);
  const Layout layout(traits);
  const uint64_t n_blocks = static_cast<uint64_t>(n) / traits.block_elements, row_size = n_blocks * layout.block;
  for (uint64_t b = 0; b < n_blocks; ++b, rows += layout.block, band += kBandRows * layout.block) {
    for (uint64_t r = 0; r < kBandRows; ++r)
      std::memcpy(band + layout.head_at(r), rows + r * row_size, layout.head);
    for (uint64_t i = 0; i < layout.words; ++i)
      for (uint64_t r = 0; r < kBandRows; ++r)
        std::memcpy(band + layout.word_at(i, r), rows + r * row_size + layout.head + 4 * i, 4);
  }
}

void dequantize_band_row(TensorType type, const std::byte* band, int32_t row, int64_t n, float* out) {
  const TypeTraits& traits = *type_traits(type);
  const Layout layout(traits);
  const uint64_t r = static_cast<uint64_t>(row);
  std::byte block[kMostBlockBytes];
  for (int64_t at = 0; at < n; at += traits.block_elements, band += kBandRows * layout.block) {
    std::memcpy(block, band + layout.head_at(r), layout.head);
    for (uint64_t i = 0; i < layout.words; ++i)
      std::memcpy(block + layout.head + 4 * i, band + layout.word_at(i, r), 4);
    dequantize(type, block, traits.block_elements, out + at);
  }
}

}  // namespace orrery::cpu

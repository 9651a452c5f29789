// Weights in bands: the bytes of the file, with the bytes of eight rows interleaved.
//
// In the file's layout, the products of one row are spread over the lanes of a vector and must be summed across lanes for every
// block. In a band, lanes are rows: a lane's sum is a row's sum, and scales are vectors. An instruction set whose arithmetic takes
// longer than memory asks for bands (Kernels::in_bands), and the backend makes them when it places a matrix. For each block of
// eight rows a band holds, in this order:
//     the first block_bytes % 4 bytes of each block    [row][block_bytes % 4]
//     the 32-bit words of each block                   [word][row]
// A band has exactly the bytes of its rows, and no bit moves within a word.
//
// IQ3 is the exception: looking up a codebook takes several times as long as memory, so the bands of IQ3 hold what the look-ups give. A
// weight is four bits, the index of its magnitude and its sign. A weight takes 4.3 bits, where the file has 3.1 or 3.4. For each 256
// columns:
//     d of each row, halves                        [row]
//     the odd number of each group, times d        [group][row], bytes
//     for each group, 16 bytes of each row: columns 0-15 in the low nibbles, 16-31 in the high ones, as words    [group][word][row]
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/tensor_type.h"

namespace orrery::cpu {

constexpr int32_t kBandRows = 8;

// Whether the bands of a type hold indices of magnitudes, not the file's bytes.
constexpr bool bands_hold_indices(TensorType type) { return type == TensorType::iq3_xxs || type == TensorType::iq3_s; }
constexpr int32_t kIndexBandBytes = kBandRows * (2 + 8 + 128);  // of 256 columns
constexpr int32_t kIndexBandNibbles = kBandRows * (2 + 8);      // where the nibbles begin

// Bytes of a band of n columns: those of its rows, in the file or as indices.
constexpr uint64_t band_bytes(TensorType type, uint64_t n) {
  return bands_hold_indices(type) ? n / 256 * kIndexBandBytes : row_bytes(type, kBandRows * n);
}

// make_band(): builds a band from kBandRows rows of n columns. dequantize_band_row(): one row of a band as floats.
void make_band(TensorType type, const std::byte* rows, int64_t n, std::byte* band);
void dequantize_band_row(TensorType type, const std::byte* band, int32_t row, int64_t n, float* out);

}  // namespace orrery::cpu

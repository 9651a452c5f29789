// Weights in bands: the bytes of the file, with the bytes of eight rows interleaved.
//
// In the file's layout, the products of one row are spread over the lanes of a vector and must be summed across lanes for every
// block. In a band, lanes are rows: a lane's sum is a row's sum, and scales are vectors. An instruction set whose arithmetic takes
// longer than memory asks for bands (Kernels::in_bands), and the backend makes them when it places a matrix. For each block of
// eight rows a band holds, in this order:
//     the first block_bytes % 4 bytes of each block    [row][block_bytes % 4]
//     the 32-bit words of each block                   [word][row]
// A band has exactly the bytes of its rows, and no bit moves within a word.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/tensor_type.h"

namespace orrery::cpu {

constexpr int32_t kBandRows = 8;

// make_band(): builds a band from kBandRows rows of n columns. dequantize_band_row(): one row of a band as floats.
void make_band(TensorType type, const std::byte* rows, int64_t n, std::byte* band);
void dequantize_band_row(TensorType type, const std::byte* band, int32_t row, int64_t n, float* out);

}  // namespace orrery::cpu

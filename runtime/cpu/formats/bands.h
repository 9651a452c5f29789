// Weights in bands: the bytes of the file, those of eight rows side by side.
//
// As a row lies in the file, its products end up across the lanes of a vector and must be summed there, for every
// block anew.  Where that costs more than memory gives time for, a path asks for bands (Kernels::in_bands) and the
// backend makes them when it places a matrix: lanes are then rows, a lane's sum is a row's, and scales are vectors.
// Of each block of eight rows lie one after another
//     what leaves no whole 32-bit words, from the block's start   [row][block_bytes % 4]
//     its words                                                   [word][row]
// so a band takes what its rows took, and no bit within a word moves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/tensor_type.h"

namespace orrery::cpu {

constexpr int32_t kBandRows = 8;

// A band from kBandRows rows of n columns, and one row of a band as floats.
void make_band(TensorType type, const std::byte* rows, int64_t n, std::byte* band);
void dequantize_band_row(TensorType type, const std::byte* band, int32_t row, int64_t n, float* out);

}  // namespace orrery::cpu

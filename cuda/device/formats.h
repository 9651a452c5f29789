// The layout of weights on the device: row by row, and each row of block formats in up to four planes (README.md: "A row in planes").
// Neighbouring lanes load neighbouring 16 (8, 4, 2) bytes from a 16-byte aligned plane, for any block of the file's format.
//
// repack_row() makes a row on the host, at upload. kernels/blocks.cuh reads it. The values stay the same, and a row grows by padding alone:
// repack_row() only moves the bits of a block to other places.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/host_device.h"
#include "runtime/base/tensor_type.h"

namespace orrery::cuda {

struct PlaneBytes {
  int32_t codes, high, group;  // of a group of 32 columns
  int32_t block;               // of a block of eight groups
};
constexpr PlaneBytes plane_bytes(TensorType type) {
  switch (type) {
    case TensorType::q8_0: return {16, 16, 2, 0};
    case TensorType::q4_0:
    case TensorType::iq4_nl: return {16, 0, 2, 0};
    case TensorType::q4_1: return {16, 0, 4, 0};
    case TensorType::q5_0: return {16, 4, 2, 0};
    case TensorType::q5_1: return {16, 4, 4, 0};
    case TensorType::q2_k: return {8, 0, 2, 4};
    case TensorType::q3_k: return {8, 4, 0, 16};
    case TensorType::q4_k: return {16, 0, 0, 16};
    case TensorType::q5_k: return {16, 4, 0, 16};
    case TensorType::q6_k: return {16, 8, 2, 2};
    case TensorType::iq4_xs: return {16, 0, 1, 2};
    case TensorType::nvfp4: return {16, 0, 2, 0};
    case TensorType::mxfp4: return {16, 0, 1, 0};
    case TensorType::iq3_xxs: return {8, 4, 0, 2};
    case TensorType::iq3_s: return {8, 4, 1, 8};
    case TensorType::iq2_xxs: return {4, 4, 0, 2};
    case TensorType::iq2_xs: return {8, 0, 1, 2};
    case TensorType::iq2_s: return {4, 4, 2, 2};
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16: break;
  }
  return {};
}
// Where the further bits of columns 4j .. 4j+3 lie in each byte: one bit of a word; two bits of two words. The upper and the lower half of
// the columns are four bits apart, so one shift serves both (kernels/blocks.cuh).
ORRERY_HOST_DEVICE constexpr int single_bit(int j) { return j < 4 ? j + 4 : j - 4; }
ORRERY_HOST_DEVICE constexpr int pair_word(int j) { return j % 4 / 2; }
ORRERY_HOST_DEVICE constexpr int pair_bit(int j) { return 2 * (j % 2) + (j < 4 ? 4 : 0); }

constexpr bool is_float(TensorType type) { return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16; }
// Weights are entries of a codebook (runtime/base/grids.h).
constexpr bool is_grid(TensorType type) {
  return type == TensorType::iq3_xxs || type == TensorType::iq3_s || type == TensorType::iq2_xxs || type == TensorType::iq2_xs ||
         type == TensorType::iq2_s;
}

// The offsets of a row's planes, in bytes from the row's start (plane `codes`: 0), and the bytes from row to row.
struct RowPlanes {
  int32_t high = 0, group = 0, block = 0;
  int32_t reserved = 0;
  int64_t bytes = 0;
};
RowPlanes row_planes(TensorType type, int64_t n_cols);

bool supported(TensorType type);
// Bytes of a row of n_cols values on the device: a multiple of 16.
uint64_t device_row_bytes(TensorType type, int64_t n_cols);
// Converts one row from the file's layout to the device's, device_row_bytes() long.
void repack_row(TensorType type, int64_t n_cols, const std::byte* from, std::byte* to);

}  // namespace orrery::cuda

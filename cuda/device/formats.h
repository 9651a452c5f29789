// How a matrix lies on the device: row by row, and within a row in planes, each 16-byte aligned, so that neighbouring lanes
// load neighbouring 16 (8, 4, 2) bytes whatever the block of the file's format. repack_row() makes a row of it on the host, at
// upload; blocks.cuh reads it. Nothing is rounded, and next to nothing added: bytes of a block are dealt out anew.
//
// A group is 32 columns, a block 8 groups. The planes of a row of G groups, one behind the other:
//   codes   per group 16 bytes (8 of the two-bit types): word j's low nibbles are columns 4j .. 4j+3, its high ones 16 + those.
//           Two bits: word j/4 holds word j's pairs at bit 2 (j%4). Q8_0: columns 0 .. 15. IQ4: the nibbles of word j are
//           columns 4j .. 4j+3, then 16 + those, as a byte permutation wants its selectors.
//   high    the bits above: a word whose bits j, 8 + j, 16 + j, 24 + j belong to columns 4j .. 4j+3, or two words of pairs as
//           above. Q8_0: columns 16 .. 31.
//   groups  what a group has for itself: halves d (and m), or bytes: scales, of Q2_K scale | min << 4.
//   blocks  what eight groups share: halves d and dmin; Q3_K, Q4_K, Q5_K: 16 bytes, d and dmin and eight pairs of 6-bit
//           numbers (scale, min; Q3_K: two scales): low nibbles in a byte each, then upper bits in a nibble each.
// Floats lie as in the file, zeros behind them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/tensor_type.h"

namespace orrery::cuda {

struct PlaneBytes {
  int32_t codes, high, group;   // of a group
  int32_t block;                // of eight
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
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16: break;
  }
  return {};
}
constexpr bool is_float(TensorType type) { return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16; }

// Where the planes of a row begin, in bytes from its start (that of codes: 0), and where the next row does.
struct RowPlanes {
  int32_t high = 0, group = 0, block = 0;
  int32_t reserved = 0;
  int64_t bytes = 0;
};
RowPlanes row_planes(TensorType type, int64_t n_cols);

bool supported(TensorType type);
// Bytes of a row of n_cols values on the device: a multiple of 16.
uint64_t device_row_bytes(TensorType type, int64_t n_cols);
// One row: as the file has it -> as the device has it.
void repack_row(TensorType type, int64_t n_cols, const std::byte* from, std::byte* to);

}  // namespace orrery::cuda

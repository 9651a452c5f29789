// The codebooks of IQ2 and IQ3 on the device, and a group's codes: magnitudes of the codebook with signs, as signed bytes.
//
// A group looks up eight entries of IQ3 or four of IQ2. The tables are 1 to 8 KB, and stay in the first-level cache.
#pragma once

#include "cuda/device/formats.h"
#include "cuda/device/ptx.h"
#include "runtime/base/grids.h"

namespace orrery::cuda {

__device__ constexpr grids::Fours<256> kIq3XxsFours(grids::kIq3XxsGrid, grids::iq3_xxs_magnitude);
__device__ constexpr grids::Fours<512> kIq3SFours(grids::kIq3SGrid, grids::iq3_s_magnitude);
__device__ constexpr grids::Eights<256> kIq2XxsEights(grids::kIq2XxsGrid, grids::iq2_magnitude);
__device__ constexpr grids::Eights<512> kIq2XsEights(grids::kIq2XsGrid, grids::iq2_magnitude);
__device__ constexpr grids::Eights<1024> kIq2SEights(grids::kIq2SGrid, grids::iq2_magnitude);

// Each byte of `fields` has seven signs. The eighth one makes the number of set bits even.
__device__ __forceinline__ uint32_t all_signs(uint32_t fields) {
  uint32_t odd = fields ^ fields >> 4;  // what counts are the lowest bits of the bytes
  odd ^= odd >> 2;
  odd ^= odd >> 1;
  return fields | (odd & 0x01010101u) << 7;
}
// The low 28 bits are four times seven signs.
__device__ __forceinline__ uint32_t all_signs_of_word(uint32_t word) {
  return all_signs((word & 0x7Fu) | (word << 1 & 0x7F00u) | (word << 2 & 0x7F0000u) | (word << 3 & 0x7F000000u));
}
// Four magnitudes, minus where one of the low four bits of `signs` is set. No magnitude is zero, so no carry passes from byte to byte.
__device__ __forceinline__ uint32_t with_signs(uint32_t magnitudes, uint32_t signs) {
  const uint32_t minus = (signs & 15u) * 0x00204081u & 0x01010101u;
  return (magnitudes ^ minus * 0xFFu) + minus;
}

// code: eight words of four codes. codes, high, group: as they lie in the planes (device/README.md).
template <TensorType kType>
__device__ __forceinline__ void unpack_grid(const uint2& codes, uint32_t high, uint32_t group, uint32_t* code) {
  constexpr bool kFours = kType == TensorType::iq3_xxs || kType == TensorType::iq3_s;
  uint32_t signs = high;
  if constexpr (kType == TensorType::iq3_xxs || kType == TensorType::iq2_xxs) signs = all_signs_of_word(high);
  if constexpr (kType == TensorType::iq2_xs)  // the upper seven bits of four numbers of 16
    signs = all_signs(__byte_perm(codes.x >> 1, codes.y >> 1, 0x7531) & 0x7F7F7F7Fu);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if constexpr (kFours) {
      uint32_t entry = (j < 4 ? codes.x : codes.y) >> (8 * (j % 4)) & 0xFFu;
      if constexpr (kType == TensorType::iq3_s) entry |= group << (8 - j) & 0x100u;
      code[j] = __ldg((kType == TensorType::iq3_s ? kIq3SFours.entry : kIq3XxsFours.entry) + entry);
    } else if (j % 2 == 0) {
      const int i = j / 2;
      uint32_t entry = codes.x >> (8 * i) & 0xFFu;
      if constexpr (kType == TensorType::iq2_s) entry |= group << (8 - 2 * i) & 0x300u;
      if constexpr (kType == TensorType::iq2_xs) entry = (i < 2 ? codes.x : codes.y) >> (16 * (i % 2)) & 0x1FFu;
      const uint64_t* table = kType == TensorType::iq2_xxs  ? kIq2XxsEights.entry
                              : kType == TensorType::iq2_xs ? kIq2XsEights.entry
                                                            : kIq2SEights.entry;
      const uint64_t eight = __ldg(table + entry);
      code[j] = static_cast<uint32_t>(eight), code[j + 1] = static_cast<uint32_t>(eight >> 32);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) code[j] = with_signs(code[j], signs >> (4 * j));
}

}  // namespace orrery::cuda

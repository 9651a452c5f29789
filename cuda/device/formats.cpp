// See formats.h; file_blocks.h has the blocks.
#include "cuda/device/formats.h"

#include <cstring>

#include "cuda/device/file_blocks.h"

namespace orrery::cuda {

namespace {

using Type = TensorType;
using file_blocks::Planes;

template <Type type>
void put_blocks(int64_t n_groups, const uint8_t* from, Planes to) {
  using Block = file_blocks::FileBlock<type>;
  constexpr PlaneBytes bytes = Block::kPlanes;
  constexpr int of_block = Block::kGroups;
  for (int64_t group = 0; group < n_groups; group += of_block) {
    file_blocks::put_block<type>(from, to);
    from += Block::kBytes;
    to.codes += of_block * bytes.codes, to.high += of_block * bytes.high, to.group += of_block * bytes.group, to.block += bytes.block;
  }
}

void put_blocks(Type type, int64_t n_groups, const uint8_t* from, const Planes& to) {
  switch (type) {
    case Type::q8_0: return put_blocks<Type::q8_0>(n_groups, from, to);
    case Type::q4_0: return put_blocks<Type::q4_0>(n_groups, from, to);
    case Type::q4_1: return put_blocks<Type::q4_1>(n_groups, from, to);
    case Type::q5_0: return put_blocks<Type::q5_0>(n_groups, from, to);
    case Type::q5_1: return put_blocks<Type::q5_1>(n_groups, from, to);
    case Type::iq4_nl: return put_blocks<Type::iq4_nl>(n_groups, from, to);
    case Type::q2_k: return put_blocks<Type::q2_k>(n_groups, from, to);
    case Type::q3_k: return put_blocks<Type::q3_k>(n_groups, from, to);
    case Type::q4_k: return put_blocks<Type::q4_k>(n_groups, from, to);
    case Type::q5_k: return put_blocks<Type::q5_k>(n_groups, from, to);
    case Type::q6_k: return put_blocks<Type::q6_k>(n_groups, from, to);
    case Type::iq4_xs: return put_blocks<Type::iq4_xs>(n_groups, from, to);
    case Type::mxfp4: return put_blocks<Type::mxfp4>(n_groups, from, to);
    case Type::nvfp4: return put_blocks<Type::nvfp4>(n_groups, from, to);
    case Type::iq3_xxs: return put_blocks<Type::iq3_xxs>(n_groups, from, to);
    case Type::iq3_s: return put_blocks<Type::iq3_s>(n_groups, from, to);
    case Type::iq2_xxs: return put_blocks<Type::iq2_xxs>(n_groups, from, to);
    case Type::iq2_xs: return put_blocks<Type::iq2_xs>(n_groups, from, to);
    case Type::iq2_s: return put_blocks<Type::iq2_s>(n_groups, from, to);
    case Type::f32:
    case Type::f16:
    case Type::bf16: return;
  }
}

}  // namespace

RowPlanes row_planes(Type type, int64_t n_cols) {
  const auto aligned = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
  RowPlanes planes;
  if (is_float(type)) {
    planes.bytes = aligned(n_cols * static_cast<int64_t>(type_traits(type)->block_bytes));
    return planes;
  }
  const PlaneBytes b = plane_bytes(type);
  const int64_t n = n_cols / 32;
  const int64_t high = aligned(n * b.codes), group = high + aligned(n * b.high), block = group + aligned(n * b.group);
  planes.high = static_cast<int32_t>(high);
  planes.group = static_cast<int32_t>(group);
  planes.block = static_cast<int32_t>(block);
  planes.bytes = block + aligned((n + 7) / 8 * b.block);
  return planes;
}

bool supported(Type type) { return type_traits(type) != nullptr; }
uint64_t device_row_bytes(Type type, int64_t n_cols) { return static_cast<uint64_t>(row_planes(type, n_cols).bytes); }

void repack_row(Type type, int64_t n_cols, const std::byte* from, std::byte* to) {
  const RowPlanes planes = row_planes(type, n_cols);
  if (is_float(type)) {
    const uint64_t n = row_bytes(type, static_cast<uint64_t>(n_cols));
    std::memcpy(to, from, n);
    std::memset(to + n, 0, static_cast<uint64_t>(planes.bytes) - n);
    return;
  }
  uint8_t* const row = reinterpret_cast<uint8_t*>(to);
  const PlaneBytes bytes = plane_bytes(type);
  const int64_t n_groups = n_cols / 32;
  // The padding behind each plane.
  const auto pad = [row](int64_t used, int64_t end) { std::memset(row + used, 0, static_cast<size_t>(end - used)); };
  pad(n_groups * bytes.codes, planes.high);
  pad(planes.high + n_groups * bytes.high, planes.group);
  pad(planes.group + n_groups * bytes.group, planes.block);
  pad(planes.block + n_groups / 8 * bytes.block, planes.bytes);
  put_blocks(type, n_groups, reinterpret_cast<const uint8_t*>(from), {row, row + planes.high, row + planes.group, row + planes.block});
}

}  // namespace orrery::cuda

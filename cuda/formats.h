// How a matrix lies on the device: row by row, and within a row in planes, each 16-byte aligned, so that every load is one of 16
// bytes whatever the block of the file's format. repack() makes a row of it on the host, at upload.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/tensor_type.h"

namespace orrery::cuda {

bool supported(TensorType type);
// Bytes of a row of n_cols values on the device: a multiple of 16.
uint64_t device_row_bytes(TensorType type, int64_t n_cols);
// One row: as the file has it -> as the device has it.
void repack_row(TensorType type, int64_t n_cols, const std::byte* from, std::byte* to);

}  // namespace orrery::cuda

#include "cuda/formats.h"

#include <cstring>

namespace orrery::cuda {

bool supported(TensorType type) { return type == TensorType::f32; }
uint64_t device_row_bytes(TensorType type, int64_t n_cols) { return row_bytes(type, static_cast<uint64_t>(n_cols)); }
void repack_row(TensorType type, int64_t n_cols, const std::byte* from, std::byte* to) {
  std::memcpy(to, from, row_bytes(type, static_cast<uint64_t>(n_cols)));
}

}  // namespace orrery::cuda

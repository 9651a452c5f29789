// What AMX's tiles multiply: the "amx" path's prefill.  Everything else of it is AVX-512's (kernels_avx512.cpp).
#pragma once

#include "runtime/cpu/kernels.h"

namespace orrery::cpu {

// Kernels::pack_rows and matmul_prefill, in the scratch of the AVX-512 path.
void pack_rows_amx(const float* x, int64_t x_stride, int64_t n_rows, int64_t n, std::byte* out);
void matmul_prefill_amx(const MatmulTask& task);

}  // namespace orrery::cpu

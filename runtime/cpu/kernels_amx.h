// What AMX's tiles multiply: the "amx" path's prefill.  Everything else of it is AVX-512's (kernels_avx512.cpp).
#pragma once

#include "runtime/cpu/kernels.h"

namespace orrery::cpu {

// Kernels::matmul_prefill, in the scratch of the AVX-512 path.
void matmul_prefill_amx(const MatmulTask& task);

}  // namespace orrery::cpu

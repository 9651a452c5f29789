// Functions that kernels_avx2.cpp takes from kernels_avx2vnni.cpp for the table of AVX2 with AVX-VNNI.
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

// Kernels::matmul_decode, matmul_prefill (with the scratch of the AVX2 table), in_bands and bands_as_prefill.
void matmul_decode_avx2vnni(const MatmulTask& task);
void matmul_prefill_avx2vnni(const MatmulTask& task);
bool in_bands_avx2vnni(TensorType type);
bool bands_as_prefill_avx2vnni(TensorType type);

// Kernels::attend_decode for KV of Q8_0, Q4_0 and K8V4.
void attend_decode_avx2vnni(const DecodeTask& task);

}  // namespace orrery::cpu

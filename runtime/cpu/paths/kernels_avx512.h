// Functions that kernels_avx512.cpp takes from files compiled for other instructions, for the tables of AVX-512, AVX-512 with bf16,
// and AMX.
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

// Kernels::matmul_decode, Kernels::in_bands and Kernels::bands_as_prefill, of decode (kernels_avx512_decode.cpp).
void matmul_decode_avx512(const MatmulTask& task);
bool in_bands_avx512(TensorType type);
bool bands_as_prefill_avx512(TensorType type);

// Kernels::pack_rows, and Kernels::matmul_prefill with packed rows and the scratch of the AVX-512 table. ..._bf16
// (kernels_avx512bf16.cpp): on vectors, weights of F16 and BF16. ..._amx (kernels_amx.cpp): on AMX's tiles, all weight types but
// F32; it multiplies F32 as floats.
void pack_rows_bf16(const float* x, int64_t x_stride, int64_t n_rows, int64_t n, std::byte* out);
void matmul_prefill_bf16(const MatmulTask& task);
void matmul_prefill_amx(const MatmulTask& task);

// Kernels::attend_prefill with Q, K and V rounded to bf16, for all KV types but F32; on vectors, and on AMX's tiles.
void attend_prefill_bf16(const PrefillTask& task);
int32_t prefill_queries_bf16(int32_t head_dim);
int64_t attend_scratch_bytes_bf16(int32_t head_dim);
void attend_prefill_amx(const PrefillTask& task);
int32_t prefill_queries_amx(int32_t head_dim);
int64_t attend_scratch_bytes_amx(int32_t head_dim);

// Kernels::attend_decode for the tasks that attends_decode_amx() accepts.
bool attends_decode_amx(const DecodeTask& task);
void attend_decode_amx(const DecodeTask& task);

// Kernels::pack_basis and Kernels::rebuild_keys with both factors rounded to bf16, for keys whose KV type is not F32.
void pack_basis_bf16(const BasisTask& task);
void rebuild_keys_bf16(const RebuildTask& task);
void rebuild_keys_amx(const RebuildTask& task);

}  // namespace orrery::cpu

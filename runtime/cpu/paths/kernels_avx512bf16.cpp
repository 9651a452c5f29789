// AVX-512 with bf16: prefill products with weights of F16 and BF16, prefill attention, and low-rank keys, on vectors of bf16.
// Compiled for instructions that the machine may lack, so only the functions of kernels_avx512.h have external linkage.
#include "runtime/cpu/paths/kernels_avx512.h"

#include "runtime/cpu/vectors/avx512.h"
// These headers use V.
#include "runtime/cpu/attention/bf16_low_rank.h"
#include "runtime/cpu/products/bf16_products.h"
#include "runtime/cpu/attention/bf16_vectors.h"

namespace orrery::cpu {

void pack_rows_bf16(const float* x, int64_t x_stride, int64_t n_rows, int64_t n, std::byte* out) {
  pack_strip(x, x_stride, n_rows, n, out);
}

void matmul_prefill_bf16(const MatmulTask& t) {
  t.type == TensorType::bf16 ? multiply_floats<TensorType::bf16>(t) : multiply_floats<TensorType::f16>(t);
}

void attend_prefill_bf16(const PrefillTask& t) { attend_blocks<VectorAttention>(t); }

// A page's conversion then takes no longer than one block of queries. A task's queries and outputs fill a quarter of a second-level
// cache of 1 MB.
int32_t prefill_queries_bf16(int32_t head_dim) { return block_queries(head_dim, 512, int64_t{1} << 15); }
int64_t attend_scratch_bytes_bf16(int32_t head_dim) { return block_scratch_bytes(head_dim, prefill_queries_bf16(head_dim)); }

void pack_basis_bf16(const BasisTask& t) { pack_pairs(t); }
void rebuild_keys_bf16(const RebuildTask& t) { rebuild_by_vectors(t); }

}  // namespace orrery::cpu

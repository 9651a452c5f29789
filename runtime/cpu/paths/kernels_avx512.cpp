// AVX-512: the shared kernels over the vector of vectors/avx512.h, and the tables of AVX-512, AVX-512 with bf16, and AMX. Compiled
// for instructions that the machine may lack, so only the tables have external linkage.
#include "runtime/cpu/paths/kernels_avx512.h"
#include "runtime/cpu/vectors/avx512.h"
// These headers use V.
#include "runtime/cpu/attention/attend.h"
#include "runtime/cpu/attention/encode.h"
#include "runtime/cpu/attention/low_rank.h"
#include "runtime/cpu/attention/moves.h"
#include "runtime/cpu/products/prefill.h"
#include "runtime/cpu/products/rows.h"
#include "runtime/cpu/attention/scores.h"
#include "runtime/cpu/products/recurrent.h"
#include "runtime/cpu/paths/table.h"

namespace orrery::cpu {

namespace {

// KV types that are rounded themselves may be multiplied in bf16.
bool rounds(KvType type) { return type != KvType::f32; }
template <void (*kRounded)(const PrefillTask&)>
void attend_prefill_or(const PrefillTask& t) {
  rounds(t.kv.type) ? kRounded(t) : attend_prefill(t);
}
template <int32_t (*kRounded)(int32_t)>
int32_t prefill_queries_or(KvType type, int32_t head_dim) {
  return rounds(type) ? kRounded(head_dim) : prefill_queries(type, head_dim);
}
template <int64_t (*kRounded)(int32_t)>
int64_t attend_scratch_bytes_or(int32_t head_dim) {
  const int64_t floats = attend_scratch_bytes(head_dim), rounded = kRounded(head_dim);
  return floats > rounded ? floats : rounded;
}

#ifdef ORRERY_CPU_AMX
void attend_decode_or_amx(const DecodeTask& t) { attends_decode_amx(t) ? attend_decode_amx(t) : attend_decode(t); }
bool packs_all(TensorType type) { return type != TensorType::f32; }
#endif

void pack_basis_or_bf16(const BasisTask& t) { rounds(t.type) ? pack_basis_bf16(t) : pack_basis(t); }
template <void (*kRounded)(const RebuildTask&)>
void rebuild_keys_or(const RebuildTask& t) {
  rounds(t.type) ? kRounded(t) : rebuild_keys(t);
}

bool packs_floats(TensorType type) { return type == TensorType::f16 || type == TensorType::bf16; }
void matmul_prefill_or_bf16(const MatmulTask& t) { t.packed ? matmul_prefill_bf16(t) : matmul_prefill(t); }

constexpr Kernels avx512(const char* name) { return table(name, matmul_decode_avx512, in_bands_avx512, bands_as_prefill_avx512); }
// Products of bytes are twice as fast as products of bf16, so quantized weights keep them.
constexpr Kernels avx512bf16() {
  Kernels kernels = avx512("avx512bf16");
  kernels.pack_rows = pack_rows_bf16;
  kernels.packs = packs_floats;
  kernels.matmul_prefill = matmul_prefill_or_bf16;
  kernels.attend_prefill = attend_prefill_or<attend_prefill_bf16>;
  kernels.prefill_queries = prefill_queries_or<prefill_queries_bf16>;
  kernels.attend_scratch_bytes = attend_scratch_bytes_or<attend_scratch_bytes_bf16>;
  kernels.pack_basis = pack_basis_or_bf16;
  kernels.rebuild_keys = rebuild_keys_or<rebuild_keys_bf16>;
  return kernels;
}
#ifdef ORRERY_CPU_AMX
constexpr Kernels amx() {
  Kernels kernels = avx512("amx");
  kernels.pack_rows = pack_rows_bf16;
  kernels.packs = packs_all;
  kernels.matmul_prefill = matmul_prefill_amx;
  kernels.bands_as_prefill = [](TensorType) { return false; };  // prefill multiplies weights rounded to bf16
  kernels.tile_rows = kTileRows;
  kernels.attend_decode = attend_decode_or_amx;
  kernels.attend_prefill = attend_prefill_or<attend_prefill_amx>;
  kernels.prefill_queries = prefill_queries_or<prefill_queries_amx>;
  kernels.attend_scratch_bytes = attend_scratch_bytes_or<attend_scratch_bytes_amx>;
  kernels.pack_basis = pack_basis_or_bf16;
  kernels.rebuild_keys = rebuild_keys_or<rebuild_keys_amx>;
  kernels.rebuild_tokens = 16;
  return kernels;
}
#endif

}  // namespace

const Kernels kAvx512Kernels = avx512("avx512");
const Kernels kAvx512Bf16Kernels = avx512bf16();
#ifdef ORRERY_CPU_AMX
const Kernels kAmxKernels = amx();
#endif

}  // namespace orrery::cpu

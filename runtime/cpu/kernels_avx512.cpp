// The AVX-512 path, and what AMX's does without tiles: the shared kernels over simd_avx512.h's vector.  Compiled for instructions that the
// machine may lack, so everything but the table has internal linkage.
#include "runtime/cpu/kernels_avx512.h"
#include "runtime/cpu/simd_avx512.h"
// After the vector that they are written over.
#include "runtime/cpu/simd_attend.h"
#include "runtime/cpu/simd_low_rank.h"
#include "runtime/cpu/simd_prefill.h"
#include "runtime/cpu/simd_rows.h"
#include "runtime/cpu/simd_scores.h"
#include "runtime/cpu/simd_table.h"

namespace orrery::cpu {

namespace {

// Who keeps K and V as they are wants them multiplied so.
bool in_tiles(KvType type) { return type != KvType::f32; }
void attend_prefill_or_tiles(const PrefillTask& t) { in_tiles(t.kv.type) ? attend_prefill_amx(t) : attend_prefill(t); }
int32_t prefill_queries_or_tiles(KvType type, int32_t head_dim) {
  return in_tiles(type) ? prefill_queries_amx(head_dim) : prefill_queries(type, head_dim);
}
int64_t attend_scratch_bytes_or_tiles(int32_t head_dim) {
  const int64_t vectors = attend_scratch_bytes(head_dim), tiles = attend_scratch_bytes_amx(head_dim);
  return vectors > tiles ? vectors : tiles;
}

constexpr Kernels avx512(const char* name) { return table(name, matmul_decode_avx512, in_bands_avx512); }
constexpr Kernels amx() {
  Kernels kernels = avx512("amx");
  kernels.pack_rows = pack_rows_amx;
  kernels.matmul_prefill = matmul_prefill_amx;
  kernels.tile_rows = kTileRows;
  kernels.attend_prefill = attend_prefill_or_tiles;
  kernels.prefill_queries = prefill_queries_or_tiles;
  kernels.attend_scratch_bytes = attend_scratch_bytes_or_tiles;
  return kernels;
}

}  // namespace

const Kernels kAvx512Kernels = avx512("avx512");
const Kernels kAmxKernels = amx();

}  // namespace orrery::cpu

// AMX: prefill products, prefill attention, decode attention over Q8_0, and low-rank keys, on tiles. Compiled for instructions that
// the machine may lack, so only the functions of kernels_avx512.h have external linkage.
#include "runtime/cpu/paths/kernels_avx512.h"

#include "runtime/cpu/vectors/avx512.h"
// These headers use V.
#include "runtime/cpu/products/amx.h"
#include "runtime/cpu/attention/amx_attend.h"
#include "runtime/cpu/attention/amx_decode.h"
#include "runtime/cpu/attention/amx_low_rank.h"

namespace orrery::cpu {

void matmul_prefill_amx(const MatmulTask& t) {
  by_type(
      t.type, [&](auto format) { multiply_tiles(t, unpack_blocks<decltype(format)>); },
      [&](auto type) {
        if constexpr (decltype(type)::value == TensorType::f32) prefill_floats<TensorType::f32>(t);
        else multiply_tiles(t, unpack_floats<decltype(type)::value>);
      });
}

void attend_prefill_amx(const PrefillTask& t) { attend_blocks<TiledAttention>(t); }

// A page's conversion then takes a few percent of the time. A task's queries and outputs fill less than half of a second-level
// cache of 2 MB.
int32_t prefill_queries_amx(int32_t head_dim) { return block_queries(head_dim, 2048, int64_t{1} << 17); }
int64_t attend_scratch_bytes_amx(int32_t head_dim) {
  const int64_t prefill = block_scratch_bytes(head_dim, prefill_queries_amx(head_dim));
  return prefill > kTiledDecodeBytes ? prefill : kTiledDecodeBytes;
}

bool attends_decode_amx(const DecodeTask& t) { return decodes_by_tiles(t); }
void attend_decode_amx(const DecodeTask& t) { decode_by_tiles(t); }

void rebuild_keys_amx(const RebuildTask& t) { rebuild_by_tiles(t); }

}  // namespace orrery::cpu

// table(): the Kernels of an instruction set, made of the functions that the headers before this one define, in the order of
// Kernels. Include last.
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

constexpr Kernels table(const char* name, decltype(Kernels::matmul_decode) decode, decltype(Kernels::in_bands) wants_bands,
                        decltype(Kernels::bands_as_prefill) as_prefill) {
  return {
      name,
      quantize_row,
      decode,
      matmul_prefill,
      nullptr,
      nullptr,
      kTaskOut,
      kIntegerRows,
      sizeof(MatmulScratch),
      wants_bands,
      as_prefill,
      rms_norm,
      rope,
      transform_heads,
      swiglu,
      geglu,
      soft_cap,
      add,
      convolve_head,
      delta_head,
      mamba2_head,
      apply_gates,
      add_low_rank,
      load_kv_vector,
      store_kv_vector,
      move_tokens,
      attend_decode,
      merge_partials,
      1.0f,
      attend_prefill,
      prefill_queries,
      attend_scratch_bytes,
      widen,
      key_weights,
      encode_key,
      code_weights,
      code_values,
      key_scores,
      list_reaching,
      tile_shares,
      add_means,
      key_moments,
      add_gram,
      project_keys,
      pack_basis,
      rebuild_keys,
      kGemmRows,
      rotate_keys,
  };
}

}  // namespace
}  // namespace orrery::cpu

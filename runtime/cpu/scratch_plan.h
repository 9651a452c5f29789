// The layout of the backend's scratch memory, and the limits that it follows from.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/backend/device.h"
#include "runtime/backend/kv.h"
#include "runtime/backend/step.h"
#include "runtime/base/checked.h"
#include "runtime/cpu/experts.h"
#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/key_codes.h"
#include "runtime/cpu/low_rank.h"
#include "runtime/cpu/planners/attend.h"
#include "runtime/cpu/planners/rows.h"
#include "runtime/cpu/top_keys.h"

namespace orrery::cpu {

// Bytes for partial results. Decode steps of many rows attend in waves, so that their partial results fit.
inline constexpr uint64_t kPartialBytes = uint64_t{8} << 20;

// The layout of the scratch memory, in bytes from its start.
struct ScratchPlan {
  uint64_t quantized = 0;                         // (max_rows, or expert_rows) quantized rows, or packed strips
  uint64_t expert_inputs = 0, expert_groups = 0;  // (expert_rows, max_expert_in) floats; (n_experts) ExpertGroup
  int64_t expert_rows = 0;                        // slots whose products are computed at once
  uint64_t rope = 0;                              // (max_rows, rope_floats): each table's cosines, then its sines
  uint64_t runs = 0;                              // (max_rows) RowRun
  uint64_t partials = 0;                          // (wave_rows, n_heads, max_splits) partials
  uint64_t top_keys = 0;                          // top_keys_scratch
  uint64_t threads = 0;                           // (n_threads) thread_bytes each
  uint64_t thread_bytes = 0;
  uint64_t gathered = 0;  // (n_threads) gathered_bytes each: the tokens of a split that lie anywhere in pages
  uint64_t gathered_bytes = 0;
  uint64_t total = 0;
  int64_t wave_rows = 1, max_splits = 1;
  int32_t rope_floats = 0;  // floats of one row
  TopKeysScratch top_keys_scratch;

  ScratchPlan() = default;
  ScratchPlan(const StepLimits& limits, const Kernels& kernels, int32_t n_threads) {
    const uint64_t rows = static_cast<uint64_t>(std::max(limits.max_rows, 1));
    const auto take = [this](uint64_t bytes) {
      const uint64_t at = total;
      total += align_up(bytes, 64);
      return at;
    };
    const auto inputs = [&](int64_t n, int64_t width) {  // bytes of n rows, quantized or packed
      const auto strips = div_up<int64_t>(n, kPackedRows);
      return static_cast<uint64_t>(std::max(n * quantized_row_bytes(width), kernels.pack_rows ? strips * packed_strip_bytes(width) : 0));
    };
    if (limits.n_experts > 0)
      expert_rows = std::max<int64_t>(limits.max_rows, int64_t{std::min(limits.max_rows, kMostTogether)} * limits.n_used_experts);
    quantized = take(std::max(inputs(static_cast<int64_t>(rows), limits.max_in), inputs(expert_rows, limits.max_expert_in)));
    expert_inputs = take(static_cast<uint64_t>(expert_rows * limits.max_expert_in) * sizeof(float));
    expert_groups = take(static_cast<uint64_t>(limits.n_experts) * sizeof(ExpertGroup));
    rope_floats = static_cast<int32_t>(align_up(static_cast<uint64_t>(std::max(limits.head_dim, limits.rope_floats)), 2));
    rope = take(rows * static_cast<uint64_t>(rope_floats) * sizeof(float));
    runs = take(rows * sizeof(RowRun));
    max_splits = div_up<int64_t>(std::max(limits.max_context, 1), kSplitTokens) + 1;  // and a compensation token
    const uint64_t row_partials = static_cast<uint64_t>(limits.n_heads) * static_cast<uint64_t>(max_splits) *
                                  static_cast<uint64_t>(partial_floats(limits.head_dim)) * sizeof(float);
    const uint64_t fitting = row_partials ? kPartialBytes / row_partials : rows;
    wave_rows = static_cast<int64_t>(std::clamp<uint64_t>(fitting, 1, rows));
    partials = take(static_cast<uint64_t>(wave_rows) * row_partials);
    top_keys_scratch = TopKeysScratch(limits.max_top_keys, limits.group());
    top_keys = take(top_keys_scratch.bytes());
    const int32_t dim = limits.head_dim;
    thread_bytes = align_up(static_cast<uint64_t>(std::max({kernels.matmul_scratch_bytes, decode_scratch_bytes(limits.max_in),
                                                            kernels.attend_scratch_bytes(dim), low_rank_thread_bytes(dim),
                                                            key_code_thread_bytes(dim), limits.max_head_state * int64_t{sizeof(float)}})),
                            64);
    threads = take(static_cast<uint64_t>(n_threads) * thread_bytes);
    gathered_bytes = static_cast<uint64_t>(kSplitTokens) * KvFormat{KvType::f16, 1, 1, dim}.token_bytes();
    gathered = take(static_cast<uint64_t>(n_threads) * gathered_bytes);
  }
};

}  // namespace orrery::cpu

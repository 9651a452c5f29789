// The layout of the backend's scratch memory: the step's upload, the data that its kernels pass on, and the jobs between steps.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/kernels.h"
#include "cuda/device/step.h"
#include "cuda/device/tuning.h"
#include "runtime/backend/backend.h"
#include "runtime/base/checked.h"

namespace orrery::cuda {

inline constexpr size_t kMostMoves = 2048;  // of one list
// A list of moves, or the parts of a batch that fetches.
inline constexpr uint64_t kMovesBytes = std::max(kMostMoves * sizeof(KvMove), size_t{TopKeysPlan::kMostQueries} * sizeof(FetchPart));

// Offsets in the scratch memory, in bytes. A step's upload comes first and is one stretch, so that one copy carries it.
struct ScratchPlan {
  uint64_t rows = 0;  // uploaded
  // Uploaded: a block for each sequence of the step. Then, where its last block ends, the tiles of all heads, at most tiles_bytes.
  uint64_t sequences = 0, sequence_bytes = 0, tiles_bytes = 0;
  // From a block's start on; the block begins with a DeviceSequence. pages: max_pages of each KV group.
  uint64_t frequencies = 0, heads = 0, pages = 0, shortlist = 0;
  uint64_t upload_bytes = 0;
  uint64_t rope = 0, quantized = 0, attend = 0, moves = 0, moves_ahead = 0, top_keys = 0, cublas = 0, total = 0;
  uint64_t staging = 0, staging_half_bytes = 0, m_and_l = 0;  // of prompts' keys (staging.h): two halves; KeySegment::m_and_l
  TopKeysPlan top_keys_plan;
  CublasPlan cublas_plan;
  int32_t max_rows = 0, max_pages = 0, n_groups = 1, n_sequences = 0, n_heads = 0, rope_floats = 0;

  ScratchPlan() = default;
  // tuning: null without cuBLAS.
  ScratchPlan(const StepLimits& l, const DeviceShape& shape, const Tuning* tuning) {
    max_rows = std::max(l.max_rows, 1);
    const uint64_t n_rows = static_cast<uint64_t>(max_rows);
    const auto take = [this](uint64_t bytes) {
      const uint64_t at = total;
      total += align_up(bytes, 256);
      return at;
    };
    max_pages = div_up(std::max(l.max_context, 1), kPageTokens), n_groups = std::max(l.n_groups, 1);
    rope_floats = static_cast<int32_t>(align_up(static_cast<uint64_t>(std::max(l.head_dim, l.rope_floats)), 2));
    rows = take(n_rows * sizeof(Row));
    n_sequences = std::min(max_rows, kMostTogether);
    n_heads = std::max(l.n_layers, 0) * std::max(l.n_kv_heads, 0);
    const uint64_t n_pages = static_cast<uint64_t>(max_pages), all_pages = n_pages * static_cast<uint64_t>(n_groups),
                   all_heads = static_cast<uint64_t>(n_heads);
    frequencies = sizeof(DeviceSequence);
    heads = align_up(frequencies + static_cast<uint64_t>(rope_floats) / 2 * sizeof(float), alignof(DeviceHead));
    pages = heads + all_heads * sizeof(DeviceHead);
    shortlist = pages + all_pages * sizeof(uint64_t);
    sequence_bytes = align_up(shortlist + sizeof(DeviceShortlist), 64);
    tiles_bytes = all_heads * n_pages * sizeof(uint64_t);
    sequences = take(static_cast<uint64_t>(n_sequences) * sequence_bytes + tiles_bytes);
    upload_bytes = total;
    rope = take(n_rows * static_cast<uint64_t>(rope_floats) * sizeof(float));
    const int64_t n_slots = static_cast<int64_t>(n_rows) * l.n_used_experts;  // 0 without experts
    quantized = take(std::max(quantized_bytes(static_cast<int64_t>(n_rows), l.max_in), quantized_bytes(n_slots, l.max_expert_in)));
    attend = take(attend_scratch_bytes(shape, l));
    top_keys_plan = TopKeysPlan(l);
    moves = take(kMovesBytes);
    moves_ahead = take(kMovesBytes);
    top_keys = take(top_keys_plan.bytes);
    if (l.staging_bytes > 0) {
      const uint64_t page = kPageTokens * static_cast<uint64_t>(l.n_kv_heads) * 2 * static_cast<uint64_t>(l.head_dim) * sizeof(float);
      staging_half_bytes = std::min(std::max(l.staging_bytes / 2, page), static_cast<uint64_t>(max_pages) * page);
      staging = take(2 * staging_half_bytes);
      m_and_l = take(n_rows * static_cast<uint64_t>(l.n_heads) * KeySegment::kFloats * sizeof(float));
    }
    if (tuning) cublas_plan = CublasPlan(shape.architecture, tuning->blocks > 0, l);
    cublas = take(cublas_plan.bytes);
  }
};

}  // namespace orrery::cuda

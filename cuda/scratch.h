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

inline constexpr int32_t kMostSequences = 8;   // of one step
inline constexpr size_t kMostMoves = 2048;     // of one list

// Offsets in the scratch memory, in bytes. A step's upload comes first and is one stretch, so that one copy carries it.
struct ScratchPlan {
  uint64_t rows = 0, pages = 0, frequencies = 0, shortlist = 0, heads = 0;   // uploaded
  uint64_t tiles = 0;                                         // uploaded: the heads' tiles, as many as a step has
  uint64_t upload_bytes = 0;
  uint64_t rope = 0, quantized = 0, attend = 0, moves = 0, moves_ahead = 0, top_keys = 0, cublas = 0, total = 0;
  uint64_t staging = 0, staging_half_bytes = 0, m_and_l = 0;  // of prompts' keys (staging.h): two halves; KeySegment::m_and_l
  TopKeysPlan top_keys_plan;
  CublasPlan cublas_plan;
  int32_t max_pages = 0, n_sequences = 0, rope_floats = 0;

  ScratchPlan() = default;
  // tuning: null without cuBLAS.
  ScratchPlan(const StepLimits& l, const DeviceShape& shape, const Tuning* tuning) {
    const uint64_t n_rows = static_cast<uint64_t>(std::max(l.max_rows, 1));
    const auto take = [this](uint64_t bytes) {
      const uint64_t at = total;
      total += align_up(bytes, 256);
      return at;
    };
    max_pages = div_up(std::max(l.max_context, 1), kPageTokens);
    rope_floats = static_cast<int32_t>(align_up(static_cast<uint64_t>(l.head_dim), 2));
    rows = take(n_rows * sizeof(Row));
    n_sequences = std::min(std::max(l.max_rows, 1), kMostSequences);
    pages = take(static_cast<uint64_t>(n_sequences) * static_cast<uint64_t>(max_pages) * sizeof(uint64_t));
    frequencies = take(static_cast<uint64_t>(rope_floats) * sizeof(float));
    shortlist = take(sizeof(DeviceShortlist));
    const uint64_t n_heads = static_cast<uint64_t>(std::max(l.n_layers, 0)) * static_cast<uint64_t>(std::max(l.n_kv_heads, 0));
    heads = take(n_heads * sizeof(DeviceHead));
    tiles = take(n_heads * static_cast<uint64_t>(max_pages) * sizeof(uint64_t));
    upload_bytes = total;
    rope = take(n_rows * static_cast<uint64_t>(rope_floats) * sizeof(float));
    quantized = take(quantized_bytes(static_cast<int64_t>(n_rows), l.max_in));
    attend = take(attend_scratch_bytes(shape, l));
    top_keys_plan = TopKeysPlan(l);
    moves = take(kMostMoves * sizeof(KvMove));
    moves_ahead = take(kMostMoves * sizeof(KvMove));
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

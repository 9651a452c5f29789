// The operations of recurrent layers and of gated attention (backend/recurrent.h), cut into items.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/recurrent.h"
#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/trace.h"
#include "runtime/os/thread_pool.h"

namespace orrery::cpu {

struct RecurrentWork {
  const Kernels& kernels;
  ThreadPool* pool;
  StepTrace* trace;    // or null
  int64_t n_rows = 0;  // of all steps
  std::byte* threads;  // each thread's scratch memory: room for a head's state
  uint64_t thread_bytes;

  float* scratch(int32_t thread) const { return reinterpret_cast<float*>(threads + static_cast<uint64_t>(thread) * thread_bytes); }
};

void delta_net(const RecurrentWork& work, const DeltaNetShape& shape, const DeltaNetWeights& weights, const DeltaNetRows& rows,
               Span<const SequenceState> states, const StatePlace& at);
void mamba2(const RecurrentWork& work, const Mamba2Shape& shape, const Mamba2Weights& weights, const Mamba2Rows& rows,
            Span<const SequenceState> states, const StatePlace& at);
void short_conv(const RecurrentWork& work, const ShortConvShape& shape, const float* conv, const ShortConvRows& rows,
                Span<const SequenceState> states, const StatePlace& at);
void split_gates(const RecurrentWork& work, const float* x, int32_t n_heads, int32_t head_dim, float* q, int64_t q_stride, float* gates);
void apply_gates(const RecurrentWork& work, float* x, const float* gates, int64_t n);

}  // namespace orrery::cpu

// Mixtures of experts (backend/experts.h): the choice, the products of the chosen experts, their sum.
#pragma once

#include <cstdint>

#include "runtime/backend/experts.h"
#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/planners/experts.h"
#include "runtime/cpu/trace.h"
#include "runtime/os/thread_pool.h"

namespace orrery::cpu {

struct ExpertsWork {
  const Kernels& kernels;
  ThreadPool* pool;
  StepTrace* trace;    // or null
  int64_t n_rows = 0;  // of all steps
  bool decode = false;
  std::byte* quantized = nullptr;  // (most_rows) quantized rows, or packed strips
  float* inputs = nullptr;         // (most_rows, n_in): rows of floats, side by side
  ExpertGroup* groups = nullptr;   // (n_experts)
  int64_t most_rows = 0;           // at least n_rows
  std::byte* threads = nullptr;
  uint64_t thread_bytes = 0;
};

void route(const ExpertsWork& work, const float* logits, const float* bias, const float* scales, const RouterShape& shape,
           const RoutedRows& routed);
void multiply_experts(const ExpertsWork& work, Span<const ExpertProduct> products, const RouterShape& shape, const RoutedRows& routed,
                      const float* x, bool of_rows);
void add_experts(const ExpertsWork& work, float* x, const float* y, int64_t n, const RouterShape& shape, const RoutedRows& routed,
                 bool accumulate);
void clamped_swiglu(const ExpertsWork& work, const float* gate, const float* up, float* out, int64_t n);
void squared_relu(const ExpertsWork& work, float* x, int64_t n);
void gate_rows(const ExpertsWork& work, float* x, const float* gates, int64_t n);

}  // namespace orrery::cpu

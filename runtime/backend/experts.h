// Mixtures of experts. A router chooses n_used of n_experts for each row, and the row meets the matrices of these alone:
//   out = sum over the chosen experts e of weight_e * down_e(act(gate_e x) * (up_e x))
// A row with one of its experts is a slot. Slots are sorted by expert, and by row within an expert. So the rows of an expert lie side by
// side, and a product reads the expert's matrix once for all of them.
#pragma once

#include <cstdint>

#include "runtime/backend/memory.h"
#include "runtime/backend/step.h"
#include "runtime/base/span.h"

namespace orrery {

enum class Gating : uint8_t { softmax, sigmoid, softmax_of_chosen };

// p = softmax(logits) | sigmoid(logits) | logits. The chosen experts are those with the best p + bias; of equal ones, the lower index. A
// NaN is worse than all numbers. Their weights are p; for softmax_of_chosen the softmax of their logits. `normalised`: weights are divided
// by their sum, or by kLeastSum if that is larger. Then they are multiplied by `scale`.
struct RouterShape {
  static constexpr float kLeastSum = 0x1p-14f;
  int32_t n_experts = 0, n_used = 0;
  Gating gating = Gating::softmax;
  bool normalised = false;
  float scale = 1.0f;
};

// Where the router writes. All in device memory.
struct RoutedRows {
  Ptr<float> weights;         // (n_rows, n_used), the best expert first
  Ptr<int32_t> experts;       // (n_rows, n_used), in the same order
  Ptr<int32_t> slots;         // (n_rows, n_used): the slot of each choice
  Ptr<int32_t> rows, owners;  // (n_rows * n_used): the row of each slot, and its expert; -1: products write zeros or nothing there
  Ptr<int32_t> first_slots;   // (n_experts + 1); slots from the last number on have no expert
  // The slots that products compute: n_slots from first_slot on, all of some experts; -1: all.
  int32_t first_slot = 0, n_slots = -1;

  static uint64_t bytes(int64_t n_rows, const RouterShape& r) {
    return (5 * static_cast<uint64_t>(n_rows) * static_cast<uint64_t>(r.n_used) + static_cast<uint64_t>(r.n_experts) + 1) * 4;
  }
  static RoutedRows at(Ptr<std::byte> memory, int64_t n_rows, const RouterShape& r) {
    const uint64_t n = 4 * static_cast<uint64_t>(n_rows) * static_cast<uint64_t>(r.n_used);
    const auto part = [&](uint64_t i) { return memory.address + i * n; };
    return {{part(0)}, {part(1)}, {part(2)}, {part(3)}, {part(4)}, {part(5)}};
  }
};

// The matrices of all experts, (n_out, n_in) each. Matrix e begins e * stride bytes behind the first one; or, with `units`, `offset` bytes
// behind units[e], the place of all matrices of expert e. Only chosen experts need a place then, and `first` tells type and shape alone.
struct ExpertWeights {
  Weight first;
  uint64_t stride = 0;
  Ptr<const uint64_t> units = {};  // (n_experts), addresses in device memory; it may be written until the product begins
  uint64_t offset = 0;
  explicit operator bool() const { return static_cast<bool>(first); }
  // The second of two matrices that an expert has side by side in one tensor, `stride` bytes apart, and the first of them.
  ExpertWeights of_pair(bool second) const {
    ExpertWeights w = *this;
    if (second && units) w.offset += stride;
    if (second && !units) w.first.data = w.first.data + stride;
    w.stride = 2 * stride;
    return w;
  }
};

// out (n_slots, n_out) = each slot's input times its expert's matrix, transposed (+ the expert's bias).
struct ExpertProduct {
  const ExpertWeights* weights = nullptr;
  Ptr<const float> bias;  // (n_experts, n_out) or null
  Ptr<float> out;
};

class ExpertOperations {
 public:
  // logits: (n_rows, n_experts); bias: (n_experts) or null. scales: (n_experts) or null; they multiply the weights of their experts last,
  // so each expert's output.
  virtual void route(Ptr<const float> logits, Ptr<const float> bias, Ptr<const float> scales, const RouterShape& shape,
                     const RoutedRows& routed) = 0;
  // Products of the same input. of_rows: x is (n_rows, n_in), and slots take their rows; else x is (n_slots, n_in). A slot's result does
  // not depend on the other slots.
  virtual void multiply_experts(Span<const ExpertProduct> products, const RouterShape& shape, const RoutedRows& routed, Ptr<const float> x,
                                bool of_rows) = 0;
  // x (n_rows, n) += the sum of the row's slots of y (n_slots, n), each times its weight, the best expert first; or, unless `accumulate`, x
  // = it.
  virtual void add_experts(Ptr<float> x, Ptr<const float> y, int64_t n, const RouterShape& shape, const RoutedRows& routed,
                           bool accumulate) = 0;
  // out[i] = g sigmoid(1.702 g) (u + 1), g = min(gate[i], 7), u = up[i] within [-7, 7]; a row of n values each. As gpt-oss has it.
  virtual void clamped_swiglu(Ptr<const float> gate, Ptr<const float> up, Ptr<float> out, int64_t n) = 0;
  // x[i] = max(x[i], 0)^2, a row of n values each. As Nemotron-H has it.
  virtual void squared_relu(Ptr<float> x, int64_t n) = 0;
  // x (n_rows, n): row r times sigmoid(gates[r]).
  virtual void gate_rows(Ptr<float> x, Ptr<const float> gates, int64_t n) = 0;

 protected:
  ~ExpertOperations() = default;
};

}  // namespace orrery

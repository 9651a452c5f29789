// The products of experts are cut as other products are: a group of slots with one expert is a product of its own, by the same kernels.
// Where the inputs of all slots exceed the scratch memory, experts are computed in waves; each expert's matrix is read once in any case.
#include "runtime/cpu/experts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/base/checked.h"
#include "runtime/cpu/formats/bands.h"
#include "runtime/cpu/formats/blocks.h"
#include "runtime/cpu/items.h"

namespace orrery::cpu {

namespace {

// The probability of expert e by its logit; of a softmax up to its sum.
float probability(Gating gating, float logit, float largest) {
  switch (gating) {
    case Gating::softmax: return std::exp(logit - largest);
    case Gating::sigmoid: return 1.0f / (1.0f + std::exp(-logit));
    case Gating::softmax_of_chosen: break;
  }
  return logit;
}

// Chooses one row's experts, the best first, with their weights.
void choose(const float* logits, const float* bias, const RouterShape& s, int32_t* experts, float* weights) {
  float largest = -INFINITY, sum = 0.0f;
  for (int32_t e = 0; e < s.n_experts; ++e) largest = std::max(largest, logits[e]);
  for (int32_t e = 0; s.gating == Gating::softmax && e < s.n_experts; ++e) sum += std::exp(logits[e] - largest);
  const float share = s.gating == Gating::softmax ? 1.0f / sum : 1.0f;
  const auto score_of = [&](int32_t e) {
    if (!bias && s.gating == Gating::softmax) return logits[e];  // the same order, and no ties by rounding
    return probability(s.gating, logits[e], largest) * share + (bias ? bias[e] : 0.0f);
  };
  // Insertion into the best so far. `weights` has their scores meanwhile. A later expert must be better to come first.
  int32_t n = 0;
  for (int32_t e = 0; e < s.n_experts; ++e) {
    float score = score_of(e);
    if (std::isnan(score)) score = -INFINITY;
    if (n == s.n_used && !(score > weights[n - 1])) continue;
    int32_t at = n < s.n_used ? n++ : n - 1;
    for (; at > 0 && score > weights[at - 1]; --at) weights[at] = weights[at - 1], experts[at] = experts[at - 1];
    weights[at] = score, experts[at] = e;
  }
  float total = 0.0f;
  for (int32_t i = 0; i < n; ++i) {
    const float logit = logits[experts[i]];
    weights[i] =
        s.gating == Gating::softmax_of_chosen ? std::exp(logit - logits[experts[0]]) : probability(s.gating, logit, largest) * share;
    total += weights[i];
  }
  float factor = s.scale;
  if (s.gating == Gating::softmax_of_chosen) factor /= total;
  else if (s.normalised) factor /= std::max(total, RouterShape::kLeastSum);
  for (int32_t i = 0; i < n; ++i) weights[i] *= factor;
}

void add_scaled(float* x, const float* y, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += scale * y[i];
}

bool quantized_type(TensorType type) { return block_format(type) != nullptr; }

// The products of some experts' slots.
class Wave {
 public:
  Wave(const ExpertsWork& work, Span<const ExpertProduct> products, bool packs)
      : work_(work), products_(products), packs_(packs), n_in_(products[0].weights->first.n_cols) {}

  int64_t n_groups() const { return n_groups_; }
  // Adds an expert's slots. False: the wave has no room for their inputs.
  bool take(int32_t expert, int32_t first_slot, int32_t n_rows, bool shares_input) {
    const int64_t room = packs_ ? static_cast<int64_t>(align_up(static_cast<uint64_t>(n_rows), kPackedRows)) : n_rows;
    const int64_t most = packs_ ? static_cast<int64_t>(align_up(static_cast<uint64_t>(work_.most_rows), kPackedRows)) : work_.most_rows;
    if (!shares_input && n_inputs_ + room > most) return false;
    work_.groups[n_groups_++] = {expert, first_slot, n_rows, shares_input ? 0 : static_cast<int32_t>(n_inputs_), 0};
    n_inputs_ = shares_input ? 1 : n_inputs_ + room;
    return true;
  }

  // Brings the inputs into the form that the kernels take. row_of(slot) -> its row of x.
  template <class F>
  void prepare(const float* x, const F& row_of, bool gathers) {
    const int64_t quantized_stride = quantized_row_bytes(n_in_), strip_bytes = packed_strip_bytes(n_in_);
    const bool quantizes = !packs_ && std::any_of(products_.begin(), products_.end(),
                                                  [](const ExpertProduct& p) { return quantized_type(p.weights->first.type); });
    const bool shared = n_groups_ > 0 && n_inputs_ == 1;
    const int64_t n = shared ? 1 : n_groups_;
    // An item is a stretch of a group's rows.
    const auto each = [&](int64_t stretch, int64_t work_per_row, const auto& fn) {
      for_items(work_, n, stretch * work_per_row, [&](int64_t i) {
        const ExpertGroup& g = work_.groups[i];
        for (int64_t r = 0; r < g.n_rows; r += stretch) fn(g, r, std::min<int64_t>(stretch, g.n_rows - r));
      });
    };
    if (gathers) {
      each(1, n_in_, [&](const ExpertGroup& g, int64_t r, int64_t) {
        const float* from = x + row_of(g.first_slot + r) * n_in_;
        std::copy(from, from + n_in_, work_.inputs + (g.input + r) * n_in_);
      });
    }
    if (packs_) {
      each(kPackedRows, n_in_, [&](const ExpertGroup& g, int64_t r, int64_t n_rows) {
        const float* from = gathers ? work_.inputs + (g.input + r) * n_in_ : x + (g.first_slot + r) * n_in_;
        work_.kernels.pack_rows(from, n_in_, n_rows, n_in_, work_.quantized + (g.input + r) / kPackedRows * strip_bytes);
      });
    } else if (quantizes) {
      const StepTrace::Scope scope(work_.trace, Operation::quantize, static_cast<uint64_t>(n_inputs_ * n_in_) * sizeof(float));
      each(1, n_in_, [&](const ExpertGroup& g, int64_t r, int64_t) {
        work_.kernels.quantize_row(x + row_of(g.first_slot + r) * n_in_, n_in_, work_.quantized + (g.input + r) * quantized_stride);
      });
    }
  }

  void multiply(const float* x, bool gathers) {
    std::array<ExpertShape, ExpertsPlan::kMostProducts> shapes;
    for (size_t i = 0; i < products_.size(); ++i) {
      const Weight& w = products_[i].weights->first;
      const bool short_ones = !packs_ && w.repacked && work_.kernels.bands_as_prefill(w.type);
      shapes[i] = {w.n_rows, static_cast<int64_t>(placed_row_bytes(w)), w.repacked, short_ones, work_.decode};
    }
    const ExpertsPlan plan({shapes.data(), products_.size()}, {work_.groups, static_cast<size_t>(n_groups_)}, work_.kernels.tile_out,
                           work_.kernels.tile_rows, work_.pool->n_threads());
    const Weight& first = products_[0].weights->first;
    const StepTrace::Scope scope(work_.trace, Operation::product, static_cast<uint64_t>(plan.bytes()), first.type, first.n_rows, n_in_);
    work_.pool->run(plan.n_items(), [&](int64_t i, int32_t thread) {
      const StepTrace::Busy busy(work_.trace, thread);
      compute(plan.item(i), x, gathers, thread);
    });
  }

 private:
  // Bytes from row to row; in bands, an eighth of a band's.
  uint64_t placed_row_bytes(const Weight& w) const {
    const auto n = static_cast<uint64_t>(n_in_);
    return w.repacked ? band_bytes(w.type, n) / kBandRows : row_bytes(w.type, n);
  }
  void compute(const ExpertItem& item, const float* x, bool gathers, int32_t thread) const {
    const ExpertProduct& p = products_[item.part.product];
    const ExpertGroup& g = work_.groups[item.group];
    const Weight& w = p.weights->first;
    const int64_t quantized_stride = quantized_row_bytes(n_in_);
    MatmulTask task{};
    task.type = w.type;
    const auto expert = static_cast<uint64_t>(g.expert);
    task.weight = p.weights->units ? host(Ptr<const std::byte>{host(p.weights->units)[expert] + p.weights->offset})
                                   : host(w.data) + expert * p.weights->stride;
    task.in_bands = w.repacked;
    task.row_bytes = static_cast<int64_t>(placed_row_bytes(w)), task.n_columns = n_in_;
    task.first_out = item.part.first_out, task.last_out = item.part.last_out;
    task.x = gathers ? work_.inputs + g.input * n_in_ : x + g.first_slot * n_in_;
    task.x_stride = n_in_;
    task.quantized = work_.quantized + g.input * quantized_stride;
    task.quantized_stride = quantized_stride;
    task.packed = packs_ ? work_.quantized + g.input / kPackedRows * packed_strip_bytes(n_in_) : nullptr;
    task.first_row = item.part.first_row, task.last_row = item.part.last_row;
    task.bias = p.bias ? host(p.bias) + int64_t{g.expert} * w.n_rows : nullptr;
    task.out = host(p.out) + g.first_slot * w.n_rows, task.out_stride = w.n_rows;
    task.scratch = work_.threads + static_cast<uint64_t>(thread) * work_.thread_bytes;
    (item.decodes ? work_.kernels.matmul_decode : work_.kernels.matmul_prefill)(task);
  }

  const ExpertsWork& work_;
  const Span<const ExpertProduct> products_;
  const bool packs_;  // inputs are packed rows
  const int64_t n_in_;
  int64_t n_groups_ = 0, n_inputs_ = 0;
};

}  // namespace

void route(const ExpertsWork& work, const float* logits, const float* bias, const float* scales, const RouterShape& shape,
           const RoutedRows& routed) {
  const int64_t k = shape.n_used;
  int32_t *experts = host(routed.experts), *slots = host(routed.slots), *rows = host(routed.rows), *owners = host(routed.owners),
          *first = host(routed.first_slots);
  for_items(work, work.n_rows, 16 * int64_t{shape.n_experts}, [&](int64_t row) {
    float* const weights = host(routed.weights) + row * k;
    choose(logits + row * shape.n_experts, bias, shape, experts + row * k, weights);
    for (int64_t i = 0; scales && i < k; ++i) weights[i] *= scales[experts[row * k + i]];
  });
  std::fill_n(first, shape.n_experts + 1, 0);
  for (int64_t i = 0; i < work.n_rows * k; ++i) ++first[experts[i] + 1];
  for (int32_t e = 0; e < shape.n_experts; ++e) first[e + 1] += first[e];
  for (int64_t i = 0; i < work.n_rows * k; ++i) {  // first[e]: the next free slot
    slots[i] = first[experts[i]]++;
    rows[slots[i]] = static_cast<int32_t>(i / k), owners[slots[i]] = experts[i];
  }
  for (int32_t e = shape.n_experts; e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

void multiply_experts(const ExpertsWork& work, Span<const ExpertProduct> products, const RouterShape& shape, const RoutedRows& routed,
                      const float* x, bool of_rows) {
  if (products.empty()) return;
  const auto packed = [&](const ExpertProduct& p) {
    return !work.decode && work.kernels.packs && work.kernels.packs(p.weights->first.type);
  };
  const bool packs = packed(products[0]);
  for (size_t i = 1; i < products.size(); ++i)  // inputs exist in one form at a time
    if (packed(products[i]) != packs || i == ExpertsPlan::kMostProducts) {
      multiply_experts(work, products.first(i), shape, routed, x, of_rows);
      return multiply_experts(work, products.subspan(i, products.size() - i), shape, routed, x, of_rows);
    }
  const int32_t *first = host(routed.first_slots), *rows = host(routed.rows);
  const auto row_of = [&](int64_t slot) { return of_rows ? rows[slot] : slot; };
  const bool shares_input = of_rows && work.n_rows == 1;
  const bool gathers = of_rows && (packs || std::any_of(products.begin(), products.end(),
                                                        [](const ExpertProduct& p) { return !quantized_type(p.weights->first.type); }));
  const auto wanted = [&](int32_t e) {
    return first[e + 1] > first[e] &&
           (routed.n_slots < 0 || (first[e] >= routed.first_slot && first[e] - routed.first_slot < routed.n_slots));
  };
  for (int32_t e = 0; e < shape.n_experts;) {
    Wave wave(work, products, packs);
    for (; e < shape.n_experts; ++e)
      if (wanted(e) && !wave.take(e, first[e], first[e + 1] - first[e], shares_input)) break;
    if (wave.n_groups() == 0) return;
    wave.prepare(x, row_of, gathers);
    wave.multiply(x, gathers);
  }
}

void add_experts(const ExpertsWork& work, float* x, const float* y, int64_t n, const RouterShape& shape, const RoutedRows& routed,
                 bool accumulate) {
  constexpr int64_t kStretch = 1024;  // stays in the first-level cache
  const int64_t k = shape.n_used, stretches = div_up(n, kStretch);
  const int32_t* slots = host(routed.slots);
  const float* weights = host(routed.weights);
  const StepTrace::Scope scope(work.trace, Operation::add, static_cast<uint64_t>(work.n_rows * (k + 2) * n) * sizeof(float));
  for_items(work, work.n_rows * stretches, k * std::min(n, kStretch), [&](int64_t i) {
    const int64_t row = i / stretches, at = i % stretches * kStretch, width = std::min(kStretch, n - at);
    if (!accumulate) std::fill_n(x + row * n + at, width, 0.0f);
    for (int64_t j = row * k; j < (row + 1) * k; ++j) add_scaled(x + row * n + at, y + slots[j] * n + at, weights[j], width);
  });
}

void clamped_swiglu(const ExpertsWork& work, const float* gate, const float* up, float* out, int64_t n) {
  constexpr int64_t kStretch = 1024;
  constexpr float kLimit = 7.0f, kSlope = 1.702f;
  const int64_t total = work.n_rows * n;
  const StepTrace::Scope scope(work.trace, Operation::swiglu, static_cast<uint64_t>(3 * total) * sizeof(float));
  for_items(work, div_up(total, kStretch), 8 * kStretch, [&](int64_t item) {
    for (int64_t i = item * kStretch; i < std::min(total, (item + 1) * kStretch); ++i) {
      const float g = gate[i] > kLimit ? kLimit : gate[i], u = up[i] > kLimit ? kLimit : up[i] < -kLimit ? -kLimit : up[i];
      out[i] = g / (1.0f + std::exp(-kSlope * g)) * (u + 1.0f);
    }
  });
}

void squared_relu(const ExpertsWork& work, float* x, int64_t n) {
  constexpr int64_t kStretch = 4096;
  const int64_t total = work.n_rows * n;
  const StepTrace::Scope scope(work.trace, Operation::swiglu, static_cast<uint64_t>(2 * total) * sizeof(float));
  for_items(work, div_up(total, kStretch), kStretch, [&](int64_t item) {
    for (int64_t i = item * kStretch; i < std::min(total, (item + 1) * kStretch); ++i)
      x[i] = x[i] < 0.0f ? 0.0f : x[i] * x[i];  // a NaN stays one
  });
}

void gate_rows(const ExpertsWork& work, float* x, const float* gates, int64_t n) {
  for_items(work, work.n_rows, n, [&](int64_t row) {
    const float gate = 1.0f / (1.0f + std::exp(-gates[row]));
    for (int64_t i = 0; i < n; ++i) x[row * n + i] *= gate;
  });
}

}  // namespace orrery::cpu

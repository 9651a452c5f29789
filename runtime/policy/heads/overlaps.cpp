#include "runtime/policy/heads/overlaps.h"

#include <algorithm>

#include "runtime/policy/heads/roles.h"
#include "runtime/policy/select/sets.h"

namespace orrery::policy {

LayerOverlaps::LayerOverlaps(uint32_t n_heads, uint32_t n_steps)
    : n_heads_(n_heads), n_steps_(n_steps), prompt_sets_(n_heads), with_prompt_(size_t{n_steps} * n_heads, 0.0),
      with_other_(size_t{n_steps} * n_heads * (n_heads - 1) / 2, 0.0) {}

Result<LayerOverlaps> LayerOverlaps::make(uint32_t n_heads, uint32_t n_steps) {
  constexpr uint32_t kMaxSteps = 1024;
  if (n_heads == 0 || n_heads > kMaxKvHeads || n_steps == 0 || n_steps > kMaxSteps) {
    return error(Code::invalid_argument, "calibration of %u heads over %u steps: expected 1 to %u heads, 1 to %u steps", n_heads, n_steps,
                 kMaxKvHeads, kMaxSteps);
  }
  return LayerOverlaps(n_heads, n_steps);
}

size_t LayerOverlaps::pair_index(uint32_t i, uint32_t j) const { return size_t{i} * n_heads_ - size_t{i} * (i + 1) / 2 + (j - i - 1); }

Status LayerOverlaps::add(uint32_t step, Span<const Tokens> sets) {
  if (step != next_step_ || sets.size() != n_heads_) {
    return error(Code::invalid_argument, "calibration step %u with %zu heads: expected step %u with %u", step, sets.size(), next_step_,
                 n_heads_);
  }
  size_t n_tokens = marks_.size();
  for (const Tokens& set : sets)
    for (const uint32_t token : set) n_tokens = std::max(n_tokens, size_t{token} + 1);
  if (n_tokens > marks_.size()) marks_ = std::vector<uint8_t>(n_tokens);
  if (step == 0) {
    prompt_sets_.assign(sets.begin(), sets.end());
  } else {
    const size_t row = step - 1;
    const size_t n_pairs = size_t{n_heads_} * (n_heads_ - 1) / 2;
    for (uint32_t i = 0; i < n_heads_; ++i) {
      // Marks one set, and looks the others up in the marks: a sixth of the time of merging each pair (AVX2).
      for (const uint32_t token : sets[i]) marks_[token] = 1;
      const auto overlap_with = [&, marks = marks_.data()](const Tokens& other) {
        uint32_t n = 0;
        for (const uint32_t token : other) n += marks[token];
        return sets[i].empty() ? 1.0 : n / static_cast<double>(sets[i].size());
      };
      with_prompt_[row * n_heads_ + i] += overlap_with(prompt_sets_[i]);
      for (uint32_t j = i + 1; j < n_heads_; ++j) with_other_[row * n_pairs + pair_index(i, j)] += overlap_with(sets[j]);
      for (const uint32_t token : sets[i]) marks_[token] = 0;
    }
  }
  next_step_ = step == n_steps_ ? 0 : step + 1;
  n_texts_ += next_step_ == 0;
  return ok_status();
}

Status LayerOverlaps::check_complete() const {
  if (n_texts_ > 0 && next_step_ == 0) return ok_status();
  return error(Code::invalid_argument, "calibration stands before step %u of text %u: whole texts are needed", next_step_, n_texts_);
}

Result<std::vector<double>> LayerOverlaps::stability() const {
  ORRERY_TRY(check_complete());
  std::vector<double> out(n_heads_), series(n_steps_);
  for (uint32_t h = 0; h < n_heads_; ++h) {
    for (uint32_t t = 0; t < n_steps_; ++t) series[t] = with_prompt_[size_t{t} * n_heads_ + h] / n_texts_;
    out[h] = median(series);
  }
  return out;
}

Result<std::vector<double>> LayerOverlaps::with_prompt() const {
  ORRERY_TRY(check_complete());
  std::vector<double> out = with_prompt_;
  for (double& x : out) x /= n_texts_;
  return out;
}

template <class OverSteps>
Result<std::vector<double>> LayerOverlaps::pairwise(OverSteps over_steps) const {
  ORRERY_TRY(check_complete());
  const size_t n_pairs = size_t{n_heads_} * (n_heads_ - 1) / 2;
  std::vector<double> out(size_t{n_heads_} * n_heads_, 1.0), series(n_steps_);
  for (uint32_t i = 0; i < n_heads_; ++i) {
    for (uint32_t j = i + 1; j < n_heads_; ++j) {
      for (uint32_t t = 0; t < n_steps_; ++t) series[t] = with_other_[t * n_pairs + pair_index(i, j)] / n_texts_;
      out[size_t{i} * n_heads_ + j] = out[size_t{j} * n_heads_ + i] = over_steps(series);
    }
  }
  return out;
}

Result<std::vector<double>> LayerOverlaps::similarity() const {
  return pairwise([](const std::vector<double>& series) { return median(series); });
}

Result<std::vector<double>> LayerOverlaps::mean_similarity() const {
  return pairwise([](const std::vector<double>& series) {
    double sum = 0;
    for (const double x : series) sum += x;
    return sum / static_cast<double>(series.size());
  });
}

}  // namespace orrery::policy

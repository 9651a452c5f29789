#include "runtime/model/description/rope.h"

#include <algorithm>
#include <cmath>

namespace orrery::model {

namespace {

constexpr double kPi = 3.14159265358979323846;

// The pair (a real number) that makes `turns` rotations within the original context.
double pair_of_turns(const RopeParameters& r, double turns) {
  return r.n_rot * std::log(r.original_context / (turns * 2.0 * kPi)) / (2.0 * std::log(double{r.base}));
}

void apply_yarn(const RopeParameters& r, std::vector<double>* frequency) {
  const double first = pair_of_turns(r, r.beta_fast), last = pair_of_turns(r, r.beta_slow);
  const double low = std::max(0.0, r.whole_pairs ? std::floor(first) : first);
  const double high = std::min(r.n_rot - 1.0, r.whole_pairs ? std::ceil(last) : last);
  for (size_t i = 0; i < frequency->size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    (*frequency)[i] *= (1.0 - ramp) + ramp / r.factor;
  }
}

// Llama 3.1's published rule: it stretches long wavelengths by the factor, keeps short ones, and blends the rest.
void apply_llama3(const RopeParameters& r, std::vector<double>* frequency) {
  const double original = r.original_context;
  const double longest = original / r.low_frequency, shortest = original / r.high_frequency;
  for (double& f : *frequency) {
    const double wavelength = 2.0 * kPi / f;
    if (wavelength > longest) {
      f /= r.factor;
    } else if (wavelength >= shortest) {
      const double smooth = (original / wavelength - r.low_frequency) / (r.high_frequency - r.low_frequency);
      f *= (1.0 - smooth) / r.factor + smooth;
    }
  }
}

void divide(const std::vector<float>& factors, std::vector<double>* frequency) {
  for (size_t i = 0; i < frequency->size() && i < factors.size(); ++i) (*frequency)[i] /= factors[i];
}

}  // namespace

RopeTable make_rope_table(const RopeParameters& r, const RopeFactors& factors, uint32_t n_context) {
  const size_t n_pairs = static_cast<size_t>(r.n_rot / 2);
  std::vector<double> frequency(n_pairs);
  for (size_t i = 0; i < n_pairs; ++i) frequency[i] = std::pow(double{r.base}, -2.0 * static_cast<double>(i) / r.n_rot);

  double magnitude = r.attention_factor;
  switch (r.scaling) {
    case RopeScaling::none: break;
    case RopeScaling::linear:
      for (double& f : frequency) f /= r.factor;
      break;
    case RopeScaling::yarn:
      apply_yarn(r, &frequency);
      if (r.factor > 1.0f) {
        const double log = 0.1 * std::log(double{r.factor});
        magnitude *= (1.0 + log) / (1.0 + double{r.log_multiplier} * log);
      }
      break;
    case RopeScaling::llama3:
      if (factors.llama3.empty()) apply_llama3(r, &frequency);
      break;
    case RopeScaling::longrope: divide(n_context > r.original_context ? factors.long_context : factors.short_context, &frequency); break;
  }
  // The tensor is part of the model's training, so it applies with every scaling except an override to `none`.
  if (r.scaling != RopeScaling::none) divide(factors.llama3, &frequency);

  RopeTable table;
  table.inverse_frequency.resize(n_pairs);
  std::transform(frequency.begin(), frequency.end(), table.inverse_frequency.begin(), [](double f) { return static_cast<float>(f); });
  table.magnitude = static_cast<float>(magnitude);
  table.interleaved = r.interleaved;
  table.temperature = r.temperature;
  table.period = static_cast<int32_t>(std::min<uint32_t>(r.original_context, INT32_MAX));
  return table;
}

RopeTables::RopeTables(const Description& d, const RopeFactors& factors, uint32_t n_context) {
  for (const RopeParameters& r : d.ropes) tables_.push_back(make_rope_table(r, factors, n_context));
  for (const RopeTable& table : tables_) specs_.push_back(table.spec());
}

}  // namespace orrery::model

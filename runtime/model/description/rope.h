// Rotary frequencies. A model's scaling (none, linear, yarn, llama-3, longrope) becomes one inverse frequency per
// pair and one magnitude, computed once when a session opens. Backends know nothing of scaling.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/backend/step.h"
#include "runtime/base/status.h"
#include "runtime/model/description/description.h"

namespace orrery::model {

// Frequency divisors that the file stores as tensors, (n_rot / 2) each. Empty if the file has none.
struct RopeFactors {
  std::vector<float> llama3;         // rope_freqs.weight
  std::vector<float> long_context;   // rope_factors_long.weight
  std::vector<float> short_context;  // rope_factors_short.weight
};

struct RopeTable {
  std::vector<float> inverse_frequency;  // (n_rot / 2)
  float magnitude = 1.0f, temperature = 0.0f;
  bool interleaved = false;
  int32_t period = 0;  // RopeSpec

  RopeSpec spec() const {  // points into this table
    return {interleaved, static_cast<int32_t>(2 * inverse_frequency.size()), inverse_frequency.data(), magnitude, temperature, period};
  }
};

// The table for a session of `n_context` tokens. longrope takes its long factors if n_context exceeds the original
// context.
//   base_i = base^(-2i / n_rot)
//   linear   base_i / factor
//   yarn     base_i * ((1 - r_i) + r_i / factor), r a ramp between the pairs that make beta_fast and beta_slow rotations
//            in the original context; magnitude (1 + 0.1 ln factor) (YaRN, arXiv:2309.00071, eq. 19-22), or a ratio of two
//   llama3   base_i / rope_freqs_i; if requested without that tensor, the published smoothing by wavelength
//   longrope base_i / factors_i
RopeTable make_rope_table(const RopeParameters& r, const RopeFactors& factors, uint32_t n_context);

// The tables of Description::ropes for a session.
class RopeTables {
 public:
  RopeTables(const Description& d, const RopeFactors& factors, uint32_t n_context);
  RopeTables(const RopeTables&) = delete;
  RopeTables& operator=(const RopeTables&) = delete;

  Span<const RopeTable> tables() const { return tables_; }
  Span<const RopeSpec> specs() const { return specs_; }
  // The table of the layer's keys. Null: they are not rotated.
  const RopeTable* of(const LayerShape& layer) const {
    return layer.attention.rope < 0 ? nullptr : &tables_[static_cast<size_t>(layer.attention.rope)];
  }

 private:
  std::vector<RopeTable> tables_;
  std::vector<RopeSpec> specs_;  // they point into the tables
};

}  // namespace orrery::model

// How the top-k sets of a layer's heads overlap over the steps of a calibration: the stability of each head, the similarity of each pair.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

// One layer over one or several calibration texts. Step 0 is the prompt's last query; steps 1 to n_steps are decode steps. Each step gives
// the top-k set of every head over the prompt's keys.
class LayerOverlaps {
 public:
  static Result<LayerOverlaps> make(uint32_t n_heads, uint32_t n_steps);
  // Host memory for sets of at most k of n_tokens tokens.
  static uint64_t host_bytes(uint64_t n_heads, uint64_t n_steps, uint64_t k, uint64_t n_tokens) {
    return n_tokens * sizeof(uint8_t) + n_heads * (sizeof(Tokens) + k * sizeof(uint32_t)) +
           n_steps * n_heads * (n_heads + 1) / 2 * sizeof(double);
  }

  // sets: (n_heads) of token positions at `step`, each position at most once. The steps of a text come in order, 0 to n_steps; the next
  // text starts with 0 again.
  Status add(uint32_t step, Span<const Tokens> sets);

  // The results need at least one whole text (else invalid_argument). Each step's overlap is averaged over the texts first.
  // S_stable (eq. 2): median over steps 1 .. n of the overlap with step 0. (n_heads)
  Result<std::vector<double>> stability() const;
  // The overlap with step 0, step by step. (n_steps, n_heads)
  Result<std::vector<double>> with_prompt() const;
  // Median over steps 1 .. n of the pairwise overlap. (n_heads, n_heads), symmetric, 1 on the diagonal.
  Result<std::vector<double>> similarity() const;
  // Mean over steps 1 .. n of the pairwise overlap: SyncKV's eq. 2.
  Result<std::vector<double>> mean_similarity() const;

 private:
  LayerOverlaps(uint32_t n_heads, uint32_t n_steps);
  template <class OverSteps>
  Result<std::vector<double>> pairwise(OverSteps over_steps) const;
  Status check_complete() const;
  size_t pair_index(uint32_t i, uint32_t j) const;  // i < j

  uint32_t n_heads_, n_steps_;
  uint32_t next_step_ = 0, n_texts_ = 0;
  std::vector<Tokens> prompt_sets_;  // (n_heads) of the current text
  std::vector<uint8_t> marks_;       // (tokens) 1 for the tokens of the set that others are compared with; 0 between uses
  std::vector<double> with_prompt_;  // (n_steps, n_heads) sums over texts
  std::vector<double> with_other_;   // (n_steps, n_heads * (n_heads - 1) / 2) sums over texts
};

}  // namespace orrery::policy

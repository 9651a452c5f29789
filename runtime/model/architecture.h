// The architectures that we run, one row each: what a model family's layers have, and how its file names and fuses
// them.  Hyperparameters, weights and the forward pass are shared, and driven by the row.  To add a family whose
// parts exist, add a row; what it does not say (sizes, scaling, windows) is read from the file.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/span.h"

namespace orrery::model {

struct Architecture {
  const char* name;             // general.architecture
  bool rope_interleaved;        // rotary pairs are neighbours (NORM), else halves (NEOX)
  bool qk_norm;                 // RMS norm of each query and key head, before RoPE
  bool post_norms;              // RMS norm of the attention's and the FFN's output, before the residual sum
  bool fused_gate_up;           // ffn_up holds gate then up: (2 * n_ff, n_embd); else ffn_gate and ffn_up
  bool longrope;                // carries rope_factors_long and rope_factors_short
  bool windows;                 // attention.sliding_window means what it says; elsewhere the key is a leftover
};

// Null for an architecture that we do not run.
const Architecture* find_architecture(std::string_view name);
Span<const Architecture> architectures();

}  // namespace orrery::model

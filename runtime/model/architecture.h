// The table of supported architectures, one row each: the parts of a family's layers, and how its files name and fuse
// them. Hyperparameters, weights and the forward pass are shared code that the row controls. To add a family whose
// parts exist, add a row. Everything outside the row (sizes, scaling, windows) is read from the file.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/span.h"

namespace orrery::model {

struct Architecture {
  const char* name;             // general.architecture
  bool rope_interleaved;        // rotary pairs are neighbours (NORM), else halves (NEOX)
  bool qk_norm;                 // RMS norm of each query and key head, before RoPE
  bool post_norms;              // RMS norm of the attention's and the FFN's output, before the residual addition
  bool fused_gate_up;           // ffn_up holds gate then up: (2 * n_ff, n_embd); else ffn_gate and ffn_up
  bool longrope;                // carries rope_factors_long and rope_factors_short
  bool windows;                 // attention.sliding_window sets the window; in other families the key is a leftover
};

// Null for an unsupported architecture.
const Architecture* find_architecture(std::string_view name);
Span<const Architecture> architectures();

}  // namespace orrery::model

// DuoAttention's learned gates (arXiv:2410.10819) as a head profile.
//
// They are published as text, full_attention_heads.tsv: a line for each layer, in it a number of 0 to 1 for each KV head, separated by tabs
// or spaces. Empty lines are skipped. The text is not trusted: errors name line and column (in bytes, from 1).
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/policy/heads/profile.h"

namespace orrery::policy {

// How many of n heads keep everything: those whose gate is at least the quantile `sparsity` of all gates, interpolated as numpy.quantile
// does. The authors' code adds noise of 1e-6 to make gates distinct; here, of equal gates, the first counts as the larger.
uint32_t heads_above_quantile(uint32_t n, double sparsity);

// Heads above the quantile become volatile, and keep everything; the others become anchors, and stream. sparsity: 0 (every head keeps
// everything) to 1 (no head does).
Result<HeadProfile> import_gates(std::string_view text, double sparsity);

}  // namespace orrery::policy

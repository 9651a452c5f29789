// DuoAttention's learned gates (arXiv:2410.10819) as a head profile.
//
// They are published as text, full_attention_heads.tsv: a line for each layer, in it a number of 0 to 1 for each KV head, separated
// by tabs or spaces; empty lines count for nothing. Files are strangers' work: errors name line and column (in bytes, from 1).
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/policy/heads/profile.h"

namespace orrery::policy {

// How many of n heads keep everything: those whose gate is at least the quantile `sparsity` of all, interpolated as numpy.quantile
// does. The code adds noise of 1e-6 to all gates, so that no two are equal; here of equal ones the first count as the larger.
uint32_t heads_above_quantile(uint32_t n, double sparsity);

// Such heads are volatile, which keep everything, and all others anchors, which stream. sparsity: 0 (every head keeps everything) to 1 (none).
Result<HeadProfile> import_gates(std::string_view text, double sparsity);

}  // namespace orrery::policy

// Refresh: from the tokens that a head holds to the tokens that it should hold. Misses alone are fetched; a hit keeps its slot.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/resident/replacement.h"
#include "runtime/policy/policy.h"

namespace orrery::policy {

// `held`: the tokens of the slots from first_slot on, each once. `wanted`: as many tokens, each once, in any order, below marks->size().
// Misses in the order of `wanted` go to the slots of unwanted tokens, ascending. Allocates nothing: `marks` are 0 before and after, `misses`
// has room for all wanted tokens and one more.
void plan_misses(Span<const uint32_t> held, Span<const uint32_t> wanted, uint32_t first_slot, std::vector<uint8_t>* marks,
                 std::vector<Replacement>* misses);

// Plans the misses of the head's slots from first_slot on, schedules their refill, and counts them in the report. marks: (all tokens), 0
// between uses. misses: as plan_misses().
Status refill_selection(Heads* heads, uint32_t head, uint32_t first_slot, Span<const uint32_t> wanted, uint64_t visible_at,
                        std::vector<uint8_t>* marks, std::vector<Replacement>* misses, Report* report);

// Policy::refill_share() of policies whose refills are visible in the next step. That step waits for them anyway; half of the ring is
// filled while the other half is read.
inline constexpr double kNextStepShare = 1. / 32;

}  // namespace orrery::policy

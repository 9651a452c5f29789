// From what a head holds to what it should hold: which tokens are missing, and which slots they take.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/replacement.h"
#include "runtime/policy/policy.h"

namespace orrery::policy {

// From what a head holds to what it should hold, with fetches of misses only. `resident`: (n_slots) the token
// in each slot; `wanted`: as many tokens, in any order. Misses in the order of `wanted` go to the slots whose
// tokens are not wanted, ascending; what stays keeps its slot. invalid_argument where sizes differ or a token
// stands twice.
Result<std::vector<Replacement>> plan_refresh(Span<const uint32_t> resident, Span<const uint32_t> wanted);

// The same without allocating, for tokens below marks->size(), whose marks are 0 before and after: `held` are the
// slots from first_slot on. `misses` has room for all of them and one more.
void plan_misses(Span<const uint32_t> held, Span<const uint32_t> wanted, uint32_t first_slot,
                 std::vector<uint8_t>* marks, std::vector<Replacement>* misses);

// Policy::refill_share() where refills are visible in the next step: that step waits for them anyhow, and half of the ring
// is filled while the other half is read.
inline constexpr double kNextStepShare = 1. / 32;

// The head's slots from first_slot on become `wanted`, by fetching what is missing. marks: of all tokens, 0 between uses; misses: room
// for all that are wanted.
Status refill_selection(Heads* heads, uint32_t head, uint32_t first_slot, Span<const uint32_t> wanted, uint64_t visible_at,
                        std::vector<uint8_t>* marks, std::vector<Replacement>* misses, Report* report);

}  // namespace orrery::policy

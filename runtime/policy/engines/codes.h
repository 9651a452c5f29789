// Heads that hold, in each step, the tokens that the step's query finds by key codes (runtime/backend/key_codes.h): keycodes, auto. Base: tokens.h.
#pragma once

#include "runtime/policy/engines/tokens.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

inline constexpr OptionRow kCodeOptions[] = {
    {"bits", "(2, or 1 where the budget is small)", "of each dimension of a key's code: 1, 2 or 4"},
    {"reduce", "max", "of a group's softmaxes, or mean"},
    {"heads", "adaptive", "uniform: all heads hold as many tokens; adaptive: by what the last 16 queries attend to"},
    {"floor", ".75", "of adaptive heads: at least this part of the average"},
    {"compensation", "1", "evicted tokens stay as one compensation token, which each step weighs by their codes; 0: they are dropped"},
    {"stay", "(4, or 1 where heads hold less than an eighth)",
     "a resident token's score counts this many times, from 1 to 64: fewer tokens are fetched"},
    with(kSinksRow, "4"),
    with(kTokenWindowRow, "8"),
    with(kFirstLayersRow, "0"),
};

// The policy, with these options.
MadePolicy make_codes(const char* name, const Shape& shape, const Budget& budget, const Options& options);
// Whether codes have 2 bits by default: they take at most three quarters of the budget, and heads are not too wide for them. Else they have 1 bit.
bool two_bits_fit(const Shape& shape, const Budget& budget, bool compensation);

}  // namespace orrery::policy

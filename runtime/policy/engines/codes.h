// Heads that hold, in each step, the tokens that the step's query finds by key codes (runtime/backend/key_codes.h): keycodes, auto. Base:
// tokens.h.
//
// Where the device's memory is the reservoir's (Shape::in_place), nothing is copied: attention reads the found tokens in the reservoir.
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
    {"values", "0",
     "of each dimension of a value's code: 1 or 2 bits; then evicted tokens stay as the mean of their values' codes, by this step's "
     "weights, "
     "for each query head; 0: as the compensation token alone"},
    {"exact", "(read in place 64 with values of 2 bits, 128 with 1 bit; copied as many as the budget holds)",
     "with values: tokens of a head, beside the first and the last, that a step has exactly, on average of the heads"},
    {"stay", "(4, or 1 where heads hold less than an eighth)",
     "a resident token's score counts this many times, from 1 to 64: fewer tokens are fetched"},
    {"copy", "(0 where the device's memory is the reservoir's, and neither stay nor device_kv_type is given)",
     "1: found tokens are copied to the device, and the budget counts them; 0: they are read in place"},
    {"skip", "(1, or less where the budget is more than a quarter)",
     "read in place: tokens whose weight is less than this times the mean weight are left out, from 0 to 64"},
    {"least", "(.25, read in place)", "of the tokens, read in place: heads have room for at least this part, however small the budget"},
    with(kSinksRow, "4"),
    with(kTokenWindowRow, "8"),
    with(kFirstLayersRow, "0"),
};

// Copied tokens: below an eighth of F16's bytes a third more of them are worth more than V's last bits.
inline constexpr TypeBelow kCodesTypes[] = {{.125, KvType::k8v4}};

// The policy, with these options.
MadePolicy make_codes(const char* name, const Shape& shape, const Budget& budget, const Options& options);
// Whether codes of these bits take at most three quarters of the budget, or in place at most all of it, and heads are not too wide for
// them.
bool codes_fit(uint32_t bits, uint32_t value_bits, const Shape& shape, const Budget& budget, bool compensation, bool in_place);

}  // namespace orrery::policy

// Engine of the methods whose heads have one of two kinds for good: retrieving heads keep everything, streaming heads keep sinks and recent
// tokens. DuoAttention and RazorAttention differ in how many heads retrieve, and in what streaming heads keep:
//   score     none while a conversation lasts; heads are ranked once, by a head profile or by the prompt
//   allocate  `max_full` 1: as many retrieving heads as the budget holds beside the streaming heads' slots. Less: this share of the heads
//             retrieves, and the streaming heads get what that leaves
//   select    streaming heads: their first and most recent tokens; the newest replaces the oldest recent token. Evicted tokens are dropped, or
//             become a compensation token, the plain mean of K and of V that weighs as many tokens as were evicted
//   refresh   never
//
// Ranking. With DuoAttention's gates (heads/gates.h): by gate. With another head profile: volatile and pivot heads first, then the less stable
// heads (of imported profiles: the heads with the larger allocation). Without a profile, when the session settles: by what the gates learn,
// the attention of the prompt's last queries to keys that are neither sinks nor recent, which a streaming head would not see. A head is a KV
// head with all its query heads.
//
// Heads are trimmed once, after the whole prompt: the prompt's chunks do not show. In a streaming head a third of the slots at most are sinks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/policy/policy.h"
#include "runtime/policy/rows.h"

namespace orrery::policy {

struct StaticHeadSettings {
  uint32_t sinks = 128;
  bool compensation = false;
  double max_full = 1;   // share of the heads that retrieve, where full_share is not given; below 1: they take at most half of the budget
  double full_share = -1;   // the option: share of the heads that retrieve; below 0: not given
  uint32_t window = 32, tail = 0;
};

// The methods' option rows; the arguments are defaults.
constexpr std::array<OptionRow, 5> static_head_options(const char* full_share, const char* sinks, const char* compensation) {
  return {{{"full_share", full_share, "share of the heads that keep everything"},
           {"sinks", sinks, "first tokens that streaming heads keep, at most a third of their slots"},
           {"compensation", compensation, "1: a streaming head's evicted tokens become one compensation token, their mean"},
           {"window", "32", "last queries that rank heads without a head profile; at most 64"},
           kTailRow}};
}

Result<std::unique_ptr<Policy>> make_static_heads(const char* name, const StaticHeadSettings& defaults, const Shape& shape,
                                                  const Budget& budget, const Options& options, const SharedProfile& profile);

}  // namespace orrery::policy

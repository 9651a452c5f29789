// Engine of the methods whose heads have one of two kinds for good: retrieving heads keep everything, streaming heads keep sinks and recent
// tokens. DuoAttention and RazorAttention differ in how many heads retrieve, and in what streaming heads keep:
//   score     none while a conversation lasts; heads are ranked once, by a head profile or by the prompt
//   allocate  `max_full` 1: as many retrieving heads as the budget holds beside the streaming heads' slots. Less: this share of the heads
//             retrieves, and the streaming heads get what that leaves
//   select    streaming heads: their first and most recent tokens; the newest replaces the oldest recent token. Evicted tokens are dropped, or
//             become a compensation token, the plain mean of K and of V that weighs as many tokens as were evicted
//   refresh   never
//
// Ranking. With DuoAttention's gates (heads/gates.h): by gate. With a calibrated profile: by induction and echo scores (RazorAttention,
// section 3.2). With a profile that has neither: volatile and pivot heads first, then the less stable heads (of imported profiles: the
// heads with the larger allocation). Without a profile the policy refuses a budget under which some heads retrieve and others stream:
// measuring takes a thousand tokens of prefill, and a session takes no time and no memory that its plan does not say. rank=attention
// instead ranks heads when the session settles, by the attention of the prompt's last queries to keys that are neither sinks nor recent;
// that finds diffuse heads of early layers rather than retrieving ones (tests/bench/results/real-models.md). A head is a KV head with all
// its query heads.
//
// Heads are trimmed once, after the whole prompt: the prompt's chunks do not show. In a streaming head a third of the slots at most are
// sinks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/policy/policy.h"
#include "runtime/policy/rows.h"

namespace orrery::policy {

// How heads are ranked without a profile: not at all, or by the prompt.
enum class HeadRank : uint32_t { profile, attention };

struct StaticHeadSettings {
  uint32_t sinks = 128;
  bool compensation = false;
  double max_full = 1;     // share of the heads that retrieve, where full_share is not given; below 1: they take at most half of the budget
  double echo_share = 0;   // share of the retrieving heads that are ranked by echo alone; 0: all are, by induction and echo together
  double full_share = -1;  // the option: share of the heads that retrieve; below 0: not given
  uint32_t window = 32, tail = 0;
  HeadRank rank = HeadRank::profile;
};

// The methods' option rows; the arguments are defaults.
constexpr std::array<OptionRow, 6> static_head_options(const char* full_share, const char* sinks, const char* compensation) {
  return {{{"full_share", full_share, "share of the heads that keep everything"},
           {"sinks", sinks, "first tokens that streaming heads keep, at most a third of their slots"},
           {"compensation", compensation, "1: a streaming head's evicted tokens become one compensation token, their mean"},
           {"rank", "profile", "without a head profile: profile refuses the session, attention ranks heads by the prompt's last queries"},
           {"window", "32", "last queries of rank=attention; at most 64"},
           kTailRow}};
}

Result<std::unique_ptr<Policy>> make_static_heads(const char* name, const StaticHeadSettings& defaults, const Shape& shape,
                                                  const Budget& budget, const Options& options, const SharedProfile& profile);

}  // namespace orrery::policy

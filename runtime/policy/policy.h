// What a KV policy decides: how many tokens each head keeps on the device, which ones, and what goes where as the answer
// grows.  A policy holds decisions, never memory: the engine carries them out on a kv::HeadStore.
//
// Its life: when a prompt is complete (or the resident part has been invalidated), settle() and then select() for every
// head; slot_for() for every generated token and head; when that says kSettleAgain, settle() over everything, and on.
// Nothing of this allocates: it happens between tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::policy {

// What a policy works on, fixed when the session opens.
struct Shape {
  uint32_t n_layers = 0, n_kv_heads = 0;
  uint32_t n_context = 0;
  Span<const int32_t> window;   // (n_layers) sliding window of the layer in tokens, 0: none
};

// How much may be resident, as a share of full KV or in slots (a slot: one token of one head).
struct Budget {
  double share = 1.0;           // of the tokens present when settling, in each head of a layer without window
  uint64_t max_slots = 0;       // over all heads, whatever the share: what the plan has reserved
};

inline constexpr uint32_t kSettleAgain = UINT32_MAX;

class Policy {
 public:
  virtual ~Policy() = default;
  virtual const char* name() const = 0;
  // n_tokens are there: how many slots each head gets, (n_layers * n_kv_heads), at most max_slots together.
  virtual void settle(uint32_t n_tokens, Span<uint32_t> capacity) = 0;
  // Which of positions 0 .. n_tokens-1 stay in the head, at most `capacity` of them, in slot order. `out` has room for
  // n_context.
  virtual void select(uint32_t head, uint32_t n_tokens, uint32_t capacity, std::vector<uint32_t>* out) = 0;
  // The slot for the next token of head (layer * n_kv_heads + head), which holds `length` of `capacity` tokens.
  virtual uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) = 0;
  // A policy in the same state, for a fork.
  virtual std::unique_ptr<Policy> clone() const = 0;
};

// Slots that a head keeps at least, so that a short prompt under a small share still has room for an answer.
inline constexpr uint32_t kLeastSlots = 64;

// Options by name: ("sinks", "4").
using Options = std::vector<std::pair<std::string, std::string>>;

// Slots that `share` of a context of shape.n_context comes to, windowed layers at their window.
uint64_t slots_for_share(const Shape& shape, double share);

// Unknown names and options are invalid_argument and name the nearest right one.
Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const Shape& shape, const Budget& budget,
                                            const Options& options);

}  // namespace orrery::policy

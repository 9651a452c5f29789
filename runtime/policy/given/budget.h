// The numbers that a policy works with: the session's shape, and how much KV may be resident.
// A slot is one token of one KV head on the device.
#pragma once

#include <cstdint>

#include "runtime/base/span.h"

namespace orrery::policy {

// Fixed when the session opens.
struct Shape {
  uint32_t n_layers = 0, n_kv_heads = 0;
  uint32_t n_context = 0;
  Span<const int32_t> window;  // (n_layers) the layer's sliding window in tokens; 0: none
  uint64_t slot_bytes = 1;     // a slot, in the device's KV type
  uint64_t digest_bytes = 1;   // a page's digest of two vectors; a digest of one vector (PageDigest::mean) takes half
  uint32_t head_dim = 1;
  uint64_t compensation_token_bytes = 1;  // a head's compensation token
  // Tokens can be found by key codes and fetched within a step: the backend has codes, the reservoir is not behind a link, and the policy
  // need not draft.
  bool finds_by_codes = false;
  bool codes_values = false;  // key codes may have codes of values beside them
  uint32_t code_turns = 0;    // of a head's key codes (KeyCodeFormat::n_turns)
  // And attention may read these tokens in the reservoir, in place of slots (Policy::slots_in_place()).
  bool in_place = false;
};

// A share of full KV's bytes. Full KV takes kept_bytes for a token of one head: the reservoir's type. The device takes slot_bytes for it.
// The same share is the same device memory for every device type. A coarser type holds more tokens.
class KvShare {
 public:
  // A number alone: the device's type is the reservoir's.
  KvShare(double of_bytes = 1.0, uint64_t kept_bytes = 1, uint64_t slot_bytes = 1);
  double of_bytes() const { return of_bytes_; }
  double of_tokens() const { return of_tokens_; }  // at most 1
  // Slots of a head with n tokens. The share is rounded up to whole tokens of kept_bytes, except for the rounding of the share itself: .55
  // as a float is a little more than .55, which must not cost a token. Those bytes are filled with whole slots.
  uint64_t tokens(uint32_t n) const;
  // The smallest share, in thousandths, that holds `tokens` of n. Printed in errors: the printed number is enough.
  double least(uint64_t tokens, uint32_t n) const;

 private:
  double of_bytes_, of_tokens_;
  uint64_t kept_bytes_, slot_bytes_;
};

// How much KV may be resident.
struct Budget {
  KvShare share;            // of the tokens present when settling, in each head of a layer without window
  uint64_t max_slots = 0;   // of all heads together, whatever the share: what the plan has reserved
  uint64_t slot_bytes = 0;  // for errors: the budget was given in bytes, this many a slot; 0: as a share
};

// The least number of slots of a head: a short prompt under a small share still leaves room for an answer.
inline constexpr uint32_t kMinSlots = 64;

// Slots of all heads for `share` of a context of shape.n_context. A windowed layer's heads take their window; other heads at least
// kMinSlots.
uint64_t slots_for_share(const Shape& shape, const KvShare& share);

}  // namespace orrery::policy

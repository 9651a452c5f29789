// What a policy works on, and how much may be resident.
#pragma once

#include <cstdint>

#include "runtime/base/span.h"

namespace orrery::policy {

// What a policy works on, fixed when the session opens.
struct Shape {
  uint32_t n_layers = 0, n_kv_heads = 0;
  uint32_t n_context = 0;
  Span<const int32_t> window;   // (n_layers) sliding window of the layer in tokens, 0: none
  uint64_t slot_bytes = 1, digest_bytes = 1;   // of a token of one head on the device, of a page's digest (a mean: half of it)
  uint32_t head_dim = 1;
  uint64_t compensation_token_bytes = 1;      // of a head's mean of what it has let go (Policy::has_mean)
};

// A share of full KV's bytes, in which a token of one head takes kept_bytes, whatever it takes on the device: the same share is the
// same memory there for every type, and where slot_bytes are fewer it holds more of the tokens.
class KvShare {
 public:
  KvShare(double of_bytes = 1.0, uint64_t kept_bytes = 1, uint64_t slot_bytes = 1);   // of a number alone: tokens are as they are kept
  double of_bytes() const { return of_bytes_; }
  double of_tokens() const { return of_tokens_; }   // at most 1: there are no more
  // Of a head's n tokens. The share comes to whole tokens as they are kept, rounded up but for a rounding of the share itself (.55 as a
  // float is a little more, which must not cost a token); into their bytes fit so many whole ones of the device's.
  uint64_t tokens(uint32_t n) const;
  // The least share, in whole thousandths, that comes to so many of n: as it is printed it is enough.
  double least(uint64_t tokens, uint32_t n) const;

 private:
  double of_bytes_, of_tokens_;
  uint64_t kept_bytes_, slot_bytes_;
};

// How much may be resident, as a share of full KV or in slots (a slot: one token of one head, in the device's type).
struct Budget {
  KvShare share;                  // of the tokens present when settling, in each head of a layer without window
  uint64_t max_slots = 0;       // over all heads, whatever the share: what the plan has reserved
  uint64_t slot_bytes = 0;      // where it was given in bytes, for errors; 0: it is a share
};

// Slots that a head keeps at least, so that a short prompt under a small share still has room for an answer.
inline constexpr uint32_t kMinSlots = 64;

// Slots that `share` of a context of shape.n_context comes to, windowed layers at their window, other heads at kMinSlots at least.
uint64_t slots_for_share(const Shape& shape, const KvShare& share);

}  // namespace orrery::policy

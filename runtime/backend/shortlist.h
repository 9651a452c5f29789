// Sampling candidates: the numbers that a sampler needs from a row of logits. The row itself can stay on the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/memory.h"
#include "runtime/base/span.h"

namespace orrery {

// Asks for a row's shortlist. A NaN counts as -infinity, and +infinity as the largest float. Entries and tokens still get their
// original logits.
//
// A mask bans tokens. A banned token is not among the best, and has no weight in tempered sums, bands and entries. The plain sum is the
// model's own and counts all tokens.
struct ShortlistRequest {
  static constexpr int32_t kMostBest = 1024, kMostTokens = 2048;
  static constexpr int32_t kSumLogits = 256, kMostSums = 2048;  // logits in a block; maximum number of blocks
  int32_t n_best = 0;                                           // number of largest logits; at most kMostBest
  Span<const int32_t> tokens = {};                              // further tokens whose logits are wanted; at most kMostTokens
  double inverse_temperature = 0.0;                             // of tempered_sum; 0: tempered_sum is not wanted
  int32_t n_sums = 0;  // number of tempered sums of blocks of kSumLogits: all blocks of the row, or 0
  // (n + 31) / 32 words for n logits: bit i of word w allows token 32 w + i. Empty: all tokens are allowed.
  static constexpr int32_t kMostWords = kMostSums * kSumLogits / 32;
  Span<const uint32_t> mask = {};
};
inline bool mask_allows(Span<const uint32_t> mask, int32_t token) {
  return mask.empty() || (mask[static_cast<size_t>(token) / 32] >> (token & 31) & 1) != 0;
}
// A shortlist: this head; then n_sums doubles, first block first; room for n_best entries, largest logit first (equals: lower token
// first); a float for each of `tokens`.
struct ShortlistHead {
  double sum = 0;  // SumExp::sum() of the whole row, banned tokens included: of exp(x - most)
  double tempered_sum =
      0;           // of allowed x: sum of exp((x - most_allowed) / temperature), to 1e-12 relative, as are the blocks' sums; in any order
  float most = 0;  // the largest logit of the whole row; -infinity: no logit is a number, and the sums are undefined
  int32_t n_best = 0;  // number of entries: as requested, or all allowed logits of the row if it has fewer
  float most_allowed =
      0;  // the largest allowed logit; without a mask, `most`. -infinity: none is a number, and tempered sums are undefined
  int32_t reserved = 0;
};
struct ShortlistEntry {
  float logit = 0;
  int32_t token = -1;
};
inline uint64_t shortlist_result_bytes(const ShortlistRequest& request) {
  return sizeof(ShortlistHead) + static_cast<uint64_t>(request.n_sums) * sizeof(double) +
         static_cast<uint64_t>(request.n_best) * sizeof(ShortlistEntry) + request.tokens.size() * sizeof(float);
}

// The allowed logits that rank below one of the shortlist's entries, sorted into bands by their distance below it.
struct ShortlistTail {
  static constexpr int32_t kBands = 2048, kMostEntries = 4096;
  static constexpr double kUnit = 0x1.0p43;  // sums are whole, so that their order does not matter
  ShortlistEntry last;                       // the entry before the tail; its logit is a number
  float bands_per_logit = 0.0f;
  double inverse_temperature = 0.0;
  Span<const uint32_t> mask = {};  // as in the row's request
  // The band of a logit x. Computed in single roundings, so that every device gives the same band.
  int32_t band_of(float x) const {
    const float at = (last.logit - x) * bands_per_logit;
    return at < static_cast<float>(kBands - 1) ? static_cast<int32_t>(at) : kBands - 1;
  }
};
struct ShortlistTailEntries {
  int32_t n = 0, reserved = 0;                          // above kMostEntries: the bands hold more than the entries here
  ShortlistEntry entries[ShortlistTail::kMostEntries];  // in any order
};

// A row has n logits; `out` has Device::shortlist_bytes(n). Both are 16-byte aligned.
class ShortlistOperations {
 public:
  // Makes the row's shortlist at the start of `out`: once in a step; or once for each of the steps that are computed at once.
  virtual void shortlist(Ptr<const float> logits, int64_t n, const ShortlistRequest& request, Ptr<std::byte> out) = 0;
  // Between steps, of a row that has a shortlist, whose `out` is overwritten. Each band's sum of the weights exp((x - last.logit) /
  // temperature), each weight to 1e-12, times kUnit and rounded: sums (kBands), host memory.
  virtual void shortlist_bands(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, Ptr<std::byte> out, uint64_t* sums) = 0;
  // Between steps: the entries of one band, or of two. `entries` is host memory.
  virtual void shortlist_entries(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, int32_t band, int32_t other_band,
                                 Ptr<std::byte> out, ShortlistTailEntries* entries) = 0;

 protected:
  ~ShortlistOperations() = default;
};

}  // namespace orrery

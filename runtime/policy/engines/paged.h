// What policies share whose heads hold whole pages of the text, by digests of all of them that stay on the device (pages.cpp,
// raas.cpp; tokens.h: pages are single tokens, and low-rank keys their digests): which heads hold pages and which everything, how large pages are and how many of them a head has room for, and
// which of its slots are whose at first.
//
// A head's slots are pages in any order, the first ones, the last whole ones and those between, then the page that is being
// written. What a budget comes to counts digests: 1 / page of full KV in F16; of low-rank keys rank / (2 head_dim), and bases. First pages and window are at most a quarter of a
// head's slots each, a page is 16 or 8 tokens where a head would hold few of 32, and the first layers are only whole by themselves
// where they and the digests take no more than half of the budget.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/roomy.h"
#include "runtime/policy/host_bytes.h"
#include "runtime/policy/options.h"
#include "runtime/policy/policy.h"
#include "runtime/policy/select/rings.h"

namespace orrery::policy {

struct PageSettings {
  uint32_t page = 0;                   // 0: 32, or less
  uint32_t sinks = 512, window = 512, first_layers = 1;
  bool deviation = false;              // digests are middle and mean deviation
  uint32_t rank = 0;                   // pages are of one token, digests low-rank keys; 0: they are not
  // Those that every such policy has; given: by the options, and not by what the budget holds.
  Status read(OptionReader* reader);
  Status read_kept(OptionReader* reader);   // of these, what is kept whatever the scores
  bool first_layers_given = false;
};

class PagedPolicy : public Policy {
 public:
  PagedPolicy(const char* name, const Shape& shape, const Budget& budget, const PageSettings& settings);
  // Whether there is room for the smallest number of pages, at the context's end.
  Status check() const;
  const char* name() const override { return name_; }
  uint32_t n_full_heads() const override { return static_cast<uint32_t>(full_.size()); }
  uint32_t queries_wanted() const override { return 1; }
  PageDigests digests() const override { return {settings_.page, settings_.deviation ? PageDigest::deviation : PageDigest::range, heads_}; }
  void select(uint32_t head, uint32_t n_tokens, uint32_t, std::vector<uint32_t>* out) override;
  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (rings_.has(head)) return rings_.slot_for(head, length);
    return length < capacity ? length : kSettleAgain;
  }

 protected:
  // The beginning of settle(): capacities, and how many pages are whose. Where there are pages to be chosen, paged_, chosen_ is to
  // be filled in.
  void begin_settling(uint32_t n_tokens, Span<uint32_t> capacity);
  // So many pages from the first on stay, less than n_slots_ - n_last_.
  void keep_first(uint32_t n);
  // heads_[i] gets counts[i] pages between first and last, at least one, n_between_ on average.
  void spread(Span<const uint64_t> counts, Span<uint32_t> capacity);
  // Host memory of what is here, and of a question about each head.
  uint64_t paged_bytes() const;
  // heads_ of a layer, as [begin, end).
  std::pair<size_t, size_t> heads_of(uint32_t layer) const;
  // Whole pages of n tokens that are neither first nor last.
  uint32_t n_candidates(uint32_t n_tokens) const { return n_tokens / settings_.page - n_first_ - n_last_; }
  // Of heads_[i]: pages between first and last, and all whole ones.
  Span<uint32_t> chosen(size_t i) { return Span<uint32_t>(chosen_).subspan(first_chosen_[i], first_chosen_[i + 1] - first_chosen_[i]); }
  uint32_t n_slots(size_t i) { return n_first_ + static_cast<uint32_t>(chosen(i).size()) + n_last_; }

  const char* const name_;
  PageSettings settings_;
  WindowRings rings_;
  uint32_t n_layers_, n_kv_heads_, n_context_;
  std::vector<uint32_t> heads_, full_;   // that hold pages, and that hold everything
  // Since settling: whether there are more pages than a head holds, and how many it has for the first, the last whole, the others
  // (n_slots_, n_between_: on average).
  bool paged_ = false;
  uint32_t n_slots_ = 0, n_first_ = 0, n_last_ = 0, n_between_ = 0;

 private:
  // Slots that digests of n tokens take, of all heads.
  uint64_t digest_slots(uint32_t n_tokens, uint32_t page) const;
  // Tokens of a head, of a few pages: the one that is written, one behind it, one candidate, one more.
  uint64_t least_tokens() const { return 4 * std::max<uint64_t>(settings_.page, 4); }
  // Slots of all paged heads, digests included: what the plan has, and their share at n tokens.
  uint64_t room() const;
  uint64_t share_at(uint32_t n_tokens) const;
  // Of one head, without them. Where the context is far from full the plan has room for the smallest number of pages.
  uint64_t slots_at(uint32_t n_tokens) const;
  double least_share(uint64_t slots) const;

  std::vector<uint32_t> chosen_;         // of all heads_, one behind the other,
  std::vector<size_t> first_chosen_;     // (heads_ + 1) beginning here
  Budget budget_;                        // max_slots: without windows
  uint64_t slot_bytes_, digest_bytes_, head_dim_;
  bool everything_ = false;
};

}  // namespace orrery::policy

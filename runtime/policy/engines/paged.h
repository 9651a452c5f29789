// Base of the policies whose heads hold whole pages of the text, found by the digests of all pages, which stay on the device (pages.h,
// RaaS). TokenPolicy (tokens.h) specializes it: pages are single tokens, low-rank keys or key codes their digests.
//
// A head's slots are pages in any order - sink pages, window pages (the last whole ones) and selected pages - and behind them the page that
// is being written. The budget counts the digests: 1 / page of full KV in F16; low-rank keys take rank / (2 head_dim) and their bases; key
// codes take what KeyCodeFormat says. What papers give in tokens shrinks with the budget: sinks and window take at most a quarter of a
// head's slots each; a page is 16 or 8 tokens where a head would hold few pages of 32; the first layers are whole only where they and the
// digests take at most half of the budget.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/reserved_vector.h"
#include "runtime/policy/given/host_bytes.h"
#include "runtime/policy/options.h"
#include "runtime/policy/policy.h"
#include "runtime/policy/rows.h"
#include "runtime/policy/select/rings.h"

namespace orrery::policy {

struct PagedSettings {
  uint32_t page = 0;  // tokens; 0: 32, or less
  uint32_t sinks = 512, window = 512, first_layers = 1;
  bool deviation = false;           // digests are PageDigest::deviation, else range
  uint32_t rank = 0;                // not 0: pages are single tokens, digests low-rank keys
  uint32_t code_bits = 0;           // not 0: pages are single tokens, digests key codes of these bits
  bool compensation = false;        // with key codes: Policy::compensates_by_codes()
  uint32_t value_bits = 0;          // of a dimension of a value's code, with key codes; 0: no codes of values
  uint32_t exact = 0;               // with codes of values: tokens of a head beside sinks and window; 0: by least_share, or by the budget
  float stay = 0;                   // with key codes: how often the score of a resident token counts; 0: by the budget
  bool in_place = false;            // with key codes: Policy::slots_in_place()
  double least_share = 0;           // in place: of the tokens. A head has at least as many slots, however small the budget
  float skip = 0;                   // in place: tokens whose weight is less than this part of the candidates' mean are left out
  bool first_layers_given = false;  // by an option: the budget's size does not change it
  // Reads the options that all page policies have.
  Status read(OptionReader* reader);
  // Of these, the options of what stays whatever the scores: sinks, window, first_layers.
  Status read_kept(OptionReader* reader);
};

// Option rows with FreeKV's defaults.
inline constexpr OptionRow kPageRow = {"page", "auto", "tokens: 4, 8, 16, 32 or 64; auto: 32, or less where the budget holds few pages"};
inline constexpr OptionRow kDigestRow = {"digest", "range",
                                         "a page's digest: its keys' range, or their middle and mean deviation (deviation)"};
inline constexpr OptionRow kSinksRow = {"sinks", "512", "first tokens that always stay, at most a quarter"};
inline constexpr OptionRow kWindowRow = {"window", "512", "most recent tokens that always stay, at most a quarter, at least two pages"};
inline constexpr OptionRow kTokenWindowRow = {"window", "32", "most recent tokens that always stay, at most a quarter, at least two"};
inline constexpr OptionRow kFirstLayersRow = {"first_layers", "(1, where that is a tenth of the budget or less)",
                                              "layers, from the first, that keep everything"};
inline constexpr OptionRow kTwoFirstLayersRow = with(kFirstLayersRow, "(2, where that is a tenth of the budget or less)");

inline constexpr double kLeastHeadCount = 1e-3;  // of a head that no query attends to

class PagedPolicy : public Policy {
 public:
  PagedPolicy(const char* name, const Shape& shape, const Budget& budget, const PagedSettings& settings);
  // Whether there is room for the smallest number of pages at the end of the context.
  Status check() const;
  const char* name() const override { return name_; }
  uint32_t n_full_heads() const override { return static_cast<uint32_t>(full_.size()); }
  uint32_t queries_wanted() const override { return 1; }
  uint64_t slots_in_place() const override;
  PageDigests digests() const override { return {settings_.page, settings_.deviation ? PageDigest::deviation : PageDigest::range, heads_}; }
  void select(uint32_t head, uint32_t n_tokens, uint32_t, std::vector<uint32_t>* out) override;
  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (rings_.has(head)) return rings_.slot_for(head, length);
    return length < capacity ? length : kSettleAgain;
  }

 protected:
  // Begins settle(): capacities, and the numbers of pages. Where paged_ is set afterwards, the caller fills in selected().
  void begin_settling(uint32_t n_tokens, Span<uint32_t> capacity);
  // Changes the number of sink pages, to less than n_pages_ - n_window_pages_.
  void set_sink_pages(uint32_t n);
  // heads_[i] gets counts[i] selected pages, at least one; n_selected_pages_ on average.
  void set_selected_pages(Span<const uint64_t> counts, Span<uint32_t> capacity);
  // The state of this base. selects: selected() is a part of it. Of tokens in place, and of others: what the heads' slots hold, page by page.
  Status paged_state(StateBytes* s, const SavedMoment& at, bool selects);
  // heads=adaptive, in settle(): for each of the last queries (kPageQueries), counts whose the best pages of all heads are. Heads get room
  // in proportion to their counts, at least `floor` of the average. Working memory: dividing_bytes().
  Status divide_by_attention(Heads* heads, uint32_t n_tokens, double floor, Span<uint32_t> capacity);
  uint64_t dividing_bytes(uint32_t group) const;
  // Its end: heads get room in proportion to counts (heads_), of n candidates.
  Status divide_by_counts(Span<const double> counts, double floor, uint32_t n, Span<uint32_t> capacity);
  // Host memory of this base, and of one PageQuery for each head.
  uint64_t paged_bytes() const;
  // The heads_ of a layer, as [begin, end).
  std::pair<size_t, size_t> heads_of(uint32_t layer) const;
  // Whole pages of n tokens that are neither sink nor window pages.
  uint32_t n_candidates(uint32_t n_tokens) const { return n_tokens / settings_.page - n_sink_pages_ - n_window_pages_; }
  // The selected pages of heads_[i]; the number of its pages, without the page that is being written.
  Span<uint32_t> selected(size_t i) {
    return Span<uint32_t>(selected_).subspan(selected_begin_[i], selected_begin_[i + 1] - selected_begin_[i]);
  }
  uint32_t head_pages(size_t i) { return n_sink_pages_ + static_cast<uint32_t>(selected(i).size()) + n_window_pages_; }

  const char* const name_;
  PagedSettings settings_;
  WindowRings rings_;
  uint32_t n_layers_, n_kv_heads_, n_context_;
  std::vector<uint32_t> heads_, full_;  // heads that hold pages, and heads that hold everything
  // Since settle(): there are more pages than a head holds. Pages of a head, without the page that is being written: all of them, sinks,
  // window, selected (n_pages_ and n_selected_pages_ on average).
  bool paged_ = false;
  uint32_t n_pages_ = 0, n_sink_pages_ = 0, n_window_pages_ = 0, n_selected_pages_ = 0;

 private:
  // Slots whose bytes the digests of n tokens take, of all heads.
  uint64_t digest_slots(uint32_t n_tokens, uint32_t page) const;
  // Tokens of a head with the fewest pages: the page that is written, the one before it, a candidate, one more.
  uint64_t least_tokens() const { return 4 * std::max<uint64_t>(settings_.page, 4); }
  // Slots of all paged heads, digests included: in the plan, and for n tokens.
  uint64_t planned_slots() const;
  uint64_t budget_at(uint32_t n_tokens) const;
  // Slots of one head, without digests. Far from the end of the context the plan has room for the fewest pages. In place, slots and digests
  // take different memory: each may have the whole budget.
  uint64_t slots_at(uint32_t n_tokens) const;
  uint64_t least_in_place(uint32_t n_tokens) const {
    return settings_.in_place ? static_cast<uint64_t>(settings_.least_share * n_tokens) : 0;
  }
  double least_share(uint64_t slots) const;
  Status check_digests() const;

  std::vector<uint32_t> selected_;      // of all heads_, one after another
  std::vector<size_t> selected_begin_;  // (heads_ + 1) index of each head's in selected_
  Budget budget_;                       // max_slots: without windows
  uint64_t slot_bytes_, digest_bytes_, head_dim_;
  const uint32_t code_turns_;
  bool holds_all_ = false;
};

}  // namespace orrery::policy

// RaaS (arXiv:2502.11147): pages that the answer has not looked at for the longest time make room for what it writes.
//   score     bounds of this step's query with the pages that are there: softmax over these, mean over the group
//   allocate  evenly
//   keep      first pages, the last ones, and of the others those that were looked at latest
//   refresh   never: what is given up does not come back before all is chosen anew
// A page has the time of the last step that looked at it: those whose score exceeds `threshold` (stamp=threshold, the paper's alpha,
// 1e-4), or the better half by each query head (stamp=top, as in the authors' code). When a page is complete, the page with the oldest
// time goes; of several the first in the text.
//
// Where paper and code disagree, and what is done here:
//   - The paper keeps all of the prompt and has only generated pages compete: prompt=keep, where the budget holds them. A
//     share of a prompt never does, so that by itself all pages compete; the prompt's last query chooses which of them are there at first
//     and when they were looked at.
//   - Bounds are not divided by sqrt(head_dim), as in FreeKV's port.
// Ours: digests are those of all pages, in the order of the text, and the budget counts them: those of pages that are gone besides.
#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/policy/engines/paged.h"
#include "runtime/policy/methods/methods.h"

namespace orrery::policy {

namespace {

struct Settings : PageSettings {
  bool top = false, keep_prompt = false;
  double threshold = 1e-4, better = .5;
};

class Raas final : public PagedPolicy {
 public:
  Raas(const Shape& shape, const Budget& budget, const Settings& settings) : PagedPolicy("raas", shape, budget, settings), options_(settings) {}

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    if (!full_tail_) n_prompt_ = n_tokens;
    full_tail_ = false;
    begin_settling(n_tokens, capacity);
    if (!paged_) return ok_status();
    const uint32_t page = settings_.page, n_pages = n_tokens / page, of_prompt = div_up(n_prompt_, page);
    if (options_.keep_prompt && of_prompt + n_last_ < n_slots_ && of_prompt + n_last_ <= n_pages) keep_first(std::max(n_first_, of_prompt));
    const size_t n_rows = size_t{n_kv_heads_} * heads->group();
    bounds_.resize(n_rows * (n_context_ / page));
    rows_.resize(heads->group() * size_t{n_slots_});
    weights_.resize(n_slots_);
    pages_.resize(n_slots_);
    best_.reserve(n_slots_);
    stamps_.assign(heads_.size() * n_slots_, 0);
    queries_.reserve(n_kv_heads_);
    now_ = 1;

    std::vector<PageQuery> queries;
    queries.reserve(heads_.size());
    for (size_t i = 0; i < heads_.size(); ++i) queries.push_back({heads_[i], n_tokens - 1, n_first_, n_candidates(n_tokens), n_between_, chosen(i).data()});
    ORRERY_TRY(heads->top_pages(queries, {GroupReduce::mean, Pooling::none, 1, true, false}));
    return look(heads, n_tokens - 1, n_pages, [&](size_t i) {   // as select() will lay them out
      for (uint32_t slot = 0; slot < n_slots_; ++slot)
        pages_[slot] = slot < n_first_                ? slot
                       : slot < n_first_ + n_between_ ? chosen(i)[slot - n_first_]
                                                      : n_pages - (n_slots_ - slot);
    });
  }

  uint64_t host_bytes(const HostShape& host) const override {   // of pages that are held, which are at most all
    return paged_bytes() + bytes_of<float>((uint64_t{n_kv_heads_ + 1} * host.group + heads_.size() + 3) * (n_context_ / settings_.page));
  }

  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    const uint32_t slot = PagedPolicy::slot_for(head, length, capacity);
    full_tail_ = full_tail_ || slot == kSettleAgain;
    return slot;
  }

  Status after_step(Heads* heads, uint64_t, uint32_t position) override {
    if (!paged_) return ok_status();
    ++now_;
    const uint32_t page = settings_.page, n_pages = (position + 1) / page;
    const bool completed = (position + 1) % page == 0;
    const auto find_pages = [&](size_t i) {
      const Span<const uint32_t> held = heads->positions(heads_[i]);
      for (uint32_t slot = 0; slot < n_slots_; ++slot) pages_[slot] = held[size_t{slot} * page] / page;
    };
    ORRERY_TRY(look(heads, position, n_pages - completed, find_pages));
    for (size_t i = 0; completed && i < heads_.size(); ++i) {
      find_pages(i);
      uint32_t* stamps = &stamps_[i * n_slots_];
      uint32_t oldest = UINT32_MAX;
      for (uint32_t slot = 0; slot < n_slots_; ++slot) {
        if (pages_[slot] < n_first_ || pages_[slot] + n_last_ >= n_pages) continue;
        if (oldest == UINT32_MAX || std::pair(stamps[slot], pages_[slot]) < std::pair(stamps[oldest], pages_[oldest])) oldest = slot;
      }
      stamps[oldest] = now_;
      heads->move_last(heads_[i], page, oldest * page);
    }
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  // What a position's query looks at among the pages that each head holds, as find_pages(i) puts them into pages_, has now_ as its time.
  template <class FindPages>
  Status look(Heads* heads, uint32_t position, uint32_t n_pages, const FindPages& find_pages) {
    const uint32_t group = heads->group();
    for (uint32_t layer = 0; layer < n_layers_; ++layer) {
      const auto [begin, end] = heads_of(layer);
      if (begin == end) continue;
      queries_.clear();
      for (size_t i = begin; i < end; ++i)
        queries_.push_back({heads_[i], position, 0, n_pages, true, false, &bounds_[(i - begin) * group * n_pages]});
      ORRERY_TRY(heads->scores(queries_));
      for (size_t i = begin; i < end; ++i) {
        find_pages(i);
        uint32_t* stamps = &stamps_[i * n_slots_];
        for (uint32_t g = 0; g < group; ++g) {
          const Span<float> row = Span<float>(rows_).subspan(size_t{g} * n_slots_, n_slots_);
          for (uint32_t slot = 0; slot < n_slots_; ++slot) row[slot] = queries_[i - begin].out[size_t{g} * n_pages + pages_[slot]];
          if (!options_.top) {
            softmax(row, row);
          } else {
            top_k_ascending(row, static_cast<size_t>(options_.better * n_slots_ + 1e-9), &best_);
            for (const uint32_t slot : best_) stamps[slot] = now_;
          }
        }
        if (options_.top) continue;
        ORRERY_TRY(group_reduce(rows_, group, GroupReduce::mean, weights_));
        for (uint32_t slot = 0; slot < n_slots_; ++slot)
          if (static_cast<double>(weights_[slot]) > options_.threshold) stamps[slot] = now_;
      }
    }
    return ok_status();
  }

  const Settings options_;
  bool full_tail_ = false;               // settling is because of it
  uint32_t n_prompt_ = 0;                // tokens when it was last not
  // Since settling.
  uint32_t now_ = 0;
  std::vector<uint32_t> stamps_;         // (heads_, n_slots_)
  std::vector<uint32_t> pages_;          // (n_slots_) of a head
  std::vector<float> bounds_;            // (n_kv_heads, group, pages) of a layer
  std::vector<float> rows_, weights_;    // (group, n_slots_), (n_slots_) of a head
  Roomy<ScoresQuery> queries_;
  Roomy<uint32_t> best_;
};

}  // namespace

Result<std::unique_ptr<Policy>> make_raas(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  Settings s;
  s.page = 16;
  OptionReader reader("raas", options);
  static constexpr const char* kStamps[] = {"threshold", "top"};
  static constexpr const char* kPrompts[] = {"compete", "keep"};
  uint32_t stamp = 0, prompt = 0;
  ORRERY_TRY(s.read(&reader));
  ORRERY_TRY(reader.choice("stamp", {kStamps, 2}, &stamp));
  ORRERY_TRY(reader.fraction("threshold", &s.threshold));
  ORRERY_TRY(reader.fraction("top", &s.better));
  ORRERY_TRY(reader.choice("prompt", {kPrompts, 2}, &prompt));
  ORRERY_TRY(reader.finish());
  s.top = stamp == 1, s.keep_prompt = prompt == 1;
  auto policy = std::make_unique<Raas>(shape, budget, s);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy

// RaaS (arXiv:2502.11147): pages that the answer has not attended to for the longest time make room for generated tokens.
//   score     bounds of this step's query with the resident pages, by their digests; softmax over these pages, mean over the group
//   allocate  evenly
//   select    sink pages, window pages, and the pages with the latest time stamps
//   refresh   never: evicted pages do not come back before the next settlement
// A page's stamp is the last step that attended to it: pages whose score exceeds `threshold` (stamp=threshold, the paper's alpha, 1e-4), or
// each query head's better half (stamp=top, the authors' code). When a page is complete, the page with the oldest stamp is evicted; tie:
// the first in the text. Paper, code and this build: the page below. Base: engines/paged.
#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/policy/engines/paged.h"
#include "runtime/policy/select/top_k.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace raas_method {

struct RaasSettings : PagedSettings {
  bool stamp_top = false, keep_prompt = false;
  double threshold = 1e-4, top_share = .5;
};
constexpr RaasSettings kDefaults = {{16}};
constexpr OptionRow kOptions[] = {
    with(kPageRow, "16"),
    kDigestRow,
    kSinksRow,
    kWindowRow,
    kFirstLayersRow,
    {"stamp", "threshold", "pages that a step attends to: those whose weight exceeds the threshold, or each query head's best pages (top)"},
    {"threshold", ".0001", "weight of a page: the mean of its query heads' softmaxes over the resident pages"},
    {"top", ".5", "with stamp=top: the share of a head's pages that are a query head's best"},
    {"prompt", "compete", "keep: pages of the prompt stay, where the budget holds them and more"},
};
constexpr char kPage[] =
    "An answer may need again what it has attended to lately; it is done with what it has not attended to for long. Each page\n"
    "carries the stamp of the last step that attended to it. When a page of the answer is complete, the page with the oldest\n"
    "stamp is evicted.\n"
    "- A step attends to pages whose weight exceeds .0001 (the paper's alpha), or to each query head's better half (stamp=top,\n"
    "  the authors' code).\n"
    "- The paper keeps the prompt whole and spends the budget on the answer (prompt=keep, where it fits). A share of the prompt\n"
    "  never holds it, so by default all pages compete. The prompt's last query selects the first pages and gives them their\n"
    "  stamps.\n"
    "- Bounds are not divided by sqrt(head_dim), as in FreeKV's port.\n"
    "- Digests of evicted pages stay, and count.\n";

class Raas final : public PagedPolicy {
 public:
  Raas(const Shape& shape, const Budget& budget, const RaasSettings& settings)
      : PagedPolicy("raas", shape, budget, settings), options_(settings) {}

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    if (!full_tail_) n_prompt_ = n_tokens;
    full_tail_ = false;
    begin_settling(n_tokens, capacity);
    if (!paged_) return ok_status();
    const uint32_t page = settings_.page, n_pages = n_tokens / page, of_prompt = div_up(n_prompt_, page);
    if (options_.keep_prompt && of_prompt + n_window_pages_ < n_pages_ && of_prompt + n_window_pages_ <= n_pages)
      set_sink_pages(std::max(n_sink_pages_, of_prompt));
    make_room(heads->group());
    now_ = 1;

    std::vector<PageQuery> queries;
    queries.reserve(heads_.size());
    for (size_t i = 0; i < heads_.size(); ++i)
      queries.push_back({heads_[i], n_tokens - 1, n_sink_pages_, n_candidates(n_tokens), n_selected_pages_, selected(i).data()});
    ORRERY_TRY(heads->top_pages(queries, {GroupReduce::mean, Pooling::none, 1, true, false}));
    return stamp_pages(heads, n_tokens - 1, n_pages, [&](size_t i) {  // in the order of select()
      for (uint32_t slot = 0; slot < n_pages_; ++slot)
        pages_[slot] = slot < n_sink_pages_                       ? slot
                       : slot < n_sink_pages_ + n_selected_pages_ ? selected(i)[slot - n_sink_pages_]
                                                                  : n_pages - (n_pages_ - slot);
    });
  }

  uint64_t host_bytes(const HostShape& host) const override {  // a head holds at most all pages
    const uint64_t rows = (host.group + heads_.size() + 3) * (n_context_ / settings_.page);
    return paged_bytes() + bytes_of<ScoresQuery>(heads_.size()) + bytes_of<float>(rows + bounds_at_once(host.group));
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
      for (uint32_t slot = 0; slot < n_pages_; ++slot) pages_[slot] = held[size_t{slot} * page] / page;
    };
    ORRERY_TRY(stamp_pages(heads, position, n_pages - completed, find_pages));
    for (size_t i = 0; completed && i < heads_.size(); ++i) {
      find_pages(i);
      uint32_t* stamps = &stamps_[i * n_pages_];
      uint32_t oldest = UINT32_MAX;
      for (uint32_t slot = 0; slot < n_pages_; ++slot) {
        if (pages_[slot] < n_sink_pages_ || pages_[slot] + n_window_pages_ >= n_pages) continue;
        if (oldest == UINT32_MAX || std::pair(stamps[slot], pages_[slot]) < std::pair(stamps[oldest], pages_[oldest])) oldest = slot;
      }
      stamps[oldest] = now_;
      heads->move_last(heads_[i], page, oldest * page);
    }
    return ok_status();
  }

  Status state(StateBytes* s, const SavedMoment& at) override {
    ORRERY_TRY(s->number(&n_prompt_, uint64_t{at.n_tokens} + 1, "the prompt is longer than the session"));
    ORRERY_TRY(paged_state(s, at, false));
    if (!paged_) return ok_status();
    ORRERY_TRY(s->check(at.refills.empty(), "refills, where the policy has none"));
    for (size_t i = 0; s->reads() && i < heads_.size(); ++i)
      ORRERY_TRY(s->check(selected(i).size() == n_selected_pages_, "a head selects another number of pages"));
    if (s->reads()) make_room(at.group);
    ORRERY_TRY(s->value(&now_));
    return s->values(&stamps_, heads_.size() * n_pages_);
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  // The working memory of steps.
  void make_room(uint32_t group) {
    bounds_.resize(bounds_at_once(group));
    rows_.resize(group * size_t{n_pages_});
    weights_.resize(n_pages_);
    pages_.resize(n_pages_);
    best_.reserve(n_pages_);
    stamps_.assign(heads_.size() * n_pages_, 0);
    queries_.reserve(heads_.size());
  }

  // Floats of bounds_: rows of all heads, or of as many as kMostBounds floats hold.
  size_t bounds_at_once(uint32_t group) const {
    const size_t of_head = size_t{group} * (n_context_ / settings_.page);
    return std::min(heads_.size() * of_head, std::max(of_head, kMostBounds));
  }

  // Stamps with now_ the resident pages that the query at `position` attends to. find_pages(i) writes the pages of heads_[i] to pages_.
  template <class FindPages>
  Status stamp_pages(Heads* heads, uint32_t position, uint32_t n_pages, const FindPages& find_pages) {
    const uint32_t group = heads->group();
    const size_t of_head = size_t{group} * n_pages;
    for (size_t begin = 0, end = 0; begin < heads_.size(); begin = end) {
      end = std::min(heads_.size(), begin + bounds_.size() / of_head);
      queries_.clear();
      for (size_t i = begin; i < end; ++i)
        queries_.push_back({heads_[i], position, 0, n_pages, true, false, &bounds_[(i - begin) * of_head]});
      ORRERY_TRY(heads->scores(queries_));
      for (size_t i = begin; i < end; ++i) {
        find_pages(i);
        uint32_t* stamps = &stamps_[i * n_pages_];
        for (uint32_t g = 0; g < group; ++g) {
          const Span<float> row = Span<float>(rows_).subspan(size_t{g} * n_pages_, n_pages_);
          for (uint32_t slot = 0; slot < n_pages_; ++slot) row[slot] = queries_[i - begin].out[size_t{g} * n_pages + pages_[slot]];
          if (!options_.stamp_top) {
            softmax(row, row);
          } else {
            top_k_ascending(row, static_cast<size_t>(options_.top_share * n_pages_ + 1e-9), &best_);
            for (const uint32_t slot : best_) stamps[slot] = now_;
          }
        }
        if (options_.stamp_top) continue;
        ORRERY_TRY(group_reduce(rows_, group, GroupReduce::mean, weights_));
        for (uint32_t slot = 0; slot < n_pages_; ++slot)
          if (static_cast<double>(weights_[slot]) > options_.threshold) stamps[slot] = now_;
      }
    }
    return ok_status();
  }

  static constexpr size_t kMostBounds = size_t{1} << 20;
  const RaasSettings options_;
  bool full_tail_ = false;  // the next settle() is due to a full tail, not a new prompt
  uint32_t n_prompt_ = 0;   // tokens of the last prompt
  // Since settle():
  uint32_t now_ = 0;                   // the step's stamp
  std::vector<uint32_t> stamps_;       // (heads_, n_pages_) the last step that attended to the page
  std::vector<uint32_t> pages_;        // (n_pages_) of a head
  std::vector<float> bounds_;          // (heads, group, pages) of a question
  std::vector<float> rows_, weights_;  // (group, n_pages_), (n_pages_) of a head
  ReservedVector<ScoresQuery> queries_;
  ReservedVector<uint32_t> best_;
};

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  RaasSettings s = kDefaults;
  OptionReader reader("raas", options);
  static constexpr const char* kStamps[] = {"threshold", "top"};
  static constexpr const char* kPrompts[] = {"compete", "keep"};
  uint32_t stamp = 0, prompt = 0;
  ORRERY_TRY(s.read(&reader));
  ORRERY_TRY(reader.choice("stamp", kStamps, &stamp));
  ORRERY_TRY(reader.fraction("threshold", &s.threshold));
  ORRERY_TRY(reader.fraction("top", &s.top_share));
  ORRERY_TRY(reader.choice("prompt", kPrompts, &prompt));
  ORRERY_TRY(reader.finish());
  s.stamp_top = stamp == 1, s.keep_prompt = prompt == 1;
  auto policy = std::make_unique<Raas>(shape, budget, s);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace raas_method

constexpr Method kRaas = {{"raas", "RaaS", "arXiv:2502.11147",
                           /* score    */ "bounds by page digests, softmax over the resident pages, mean of the group",
                           /* allocate */ "evenly",
                           /* keep     */ "sink pages, recent pages, pages that were attended to latest",
                           /* refresh  */ "never; the page that was not attended to for the longest time is evicted",
                           /* device   */ "digests of all pages, the last query",
                           /* link     */ kSelectionOnLink, all(raas_method::kOptions), raas_method::kPage},
                          {1},
                          raas_method::make};

}  // namespace orrery::policy

// Pages that come and go with the query: every head has room for so many pages of the text, and what stands there follows
// what the query looks for, by digests of all pages that stay on the device.
//   score     bounds of the last query's products with a page's keys; softmax over the candidates, mean over the group
//   allocate  evenly
//   keep      first pages, the last ones with the one that is being written, and the best of those between; all of it stays
//             in the reservoir
//   refresh   every step, by its own query for the next one, or where the query has turned, for itself; misses alone are fetched
// As rows of one table of options:
//   freekv    FreeKV (arXiv:2505.13109): one step behind, and corrected; pages of 32
//   quest     Quest (arXiv:2406.10774): every step by its own query; pages of 16, no first ones
//
// Where FreeKV's paper and code disagree:
//   - Digests are the paper's, largest and smallest key by dimension; the code's fast path has middle and mean deviation
//     (digest=deviation).
//   - Bounds are not divided by sqrt(head_dim), as in the code; the paper is silent.
//   - The page that leaves the window is a candidate one step before, so that it can stay where it is.
//   - The first step has a selection, too: the prompt's last query makes it. (The paper: by its own query, waiting for all.)
// Where Quest's do: it is published for heads without groups; a group's mean of softmaxes orders pages as one head's bounds do. It keeps
// all KV on the device; here what is not selected is fetched, within the step that wants it. The last whole page always stays beside
// the one that is being written.
// Ours: the budget counts digests, 1 / page of full KV in F16. First pages and window are a quarter of a head's slots each where
// 512 tokens are more, a page is 16 or 8 tokens where a head would hold few of 32, and the first layer is only whole where it
// and the digests take no more than half of the budget.
#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/policy/parts.h"

namespace orrery::policy {

namespace {

constexpr uint32_t kLeastPages = 4;    // of a head: the one that is written, one behind it, one candidate, one more
constexpr uint32_t kFewPages = 16;     // fewer of them: pages are made smaller

struct Settings {
  uint32_t page = 0;                   // 0: 32, or less
  uint32_t sinks = 512, window = 512, first_layers = 1;
  bool deviation = false, refresh = true;
  double tau = 0;                      // cosine of two queries below which a step chooses by its own; 0: none does
};

class PagePolicy final : public Policy {
 public:
  PagePolicy(const char* name, const Shape& shape, const Budget& budget, const Settings& settings, bool first_layers_given)
      : name_(name), settings_(settings), rings_(shape), n_layers_(shape.n_layers), n_kv_heads_(shape.n_kv_heads), n_context_(shape.n_context),
        budget_(budget), slot_bytes_(shape.slot_bytes), digest_bytes_(shape.digest_bytes) {
    const uint64_t n = rings_.n_other_heads();
    budget_.max_slots -= std::min(budget.max_slots, rings_.slots());
    everything_ = budget.share >= 1.0 && budget_.max_slots >= n * n_context_;
    const auto find_heads = [&] {
      heads_.clear(), full_.clear();
      uint32_t layer = 0;
      for (uint32_t l = 0; l < shape.n_layers; ++l) {
        if (rings_.has(l * n_kv_heads_)) continue;
        const bool full = everything_ || layer++ < settings_.first_layers;
        for (uint32_t h = 0; h < n_kv_heads_; ++h) (full ? full_ : heads_).push_back(l * n_kv_heads_ + h);
      }
    };
    find_heads();
    if (!first_layers_given && !everything_ && 2 * (full_.size() * uint64_t{n_context_} + digest_slots(n_context_, 32)) > budget_.max_slots)
      settings_.first_layers = 0, find_heads();
    if (settings_.page == 0) {
      settings_.page = 32;
      while (settings_.page > 8 && slots_at(n_context_) < kFewPages * uint64_t{settings_.page} &&
             4 * digest_slots(n_context_, settings_.page / 2) < room())
        settings_.page /= 2;
    }
    marks_.resize(n_context_ / settings_.page + 1);
    queries_.reserve(heads_.size());
    misses_.reserve(n_context_ / settings_.page);
    similarity_.resize(n_kv_heads_);
  }

  // Whether there is room for the smallest number of pages, at the context's end.
  Status check() const {
    const uint64_t least = kLeastPages * uint64_t{settings_.page};
    if (full_.size() * uint64_t{n_context_} <= budget_.max_slots &&
        (heads_.empty() || slots_at(n_context_) >= std::min<uint64_t>(least, n_context_)))
      return ok_status();
    const uint64_t slots = rings_.slots() + full_.size() * uint64_t{n_context_} + heads_.size() * least + digest_slots(n_context_, settings_.page);
    if (budget_.slot_bytes > 0)
      return error(Code::invalid_argument,
                   "policy %s: %zu heads with %u pages of %u tokens, digests of %u tokens and %zu whole heads take %llu bytes of KV, which "
                   "a KV budget of %llu bytes does not hold",
                   name_, heads_.size(), kLeastPages, settings_.page, n_context_, full_.size(),
                   static_cast<unsigned long long>(slots * slot_bytes_),
                   static_cast<unsigned long long>((budget_.max_slots + rings_.slots()) * slot_bytes_));
    return error(Code::invalid_argument,
                 "policy %s: %zu heads with %u pages of %u tokens, digests of %u tokens and %zu whole heads take %llu slots, which a KV "
                 "budget of %g (%llu slots) does not hold; it must be at least %.3f",
                 name_, heads_.size(), kLeastPages, settings_.page, n_context_, full_.size(), static_cast<unsigned long long>(slots),
                 budget_.share, static_cast<unsigned long long>(budget_.max_slots + rings_.slots()), least_share(slots));
  }

  const char* name() const override { return name_; }
  uint32_t n_full_heads() const override { return static_cast<uint32_t>(full_.size()); }
  double refill_share() const override { return heads_.empty() || !settings_.refresh ? 0 : kNextStepShare; }
  uint32_t queries_wanted() const override { return 1; }
  PageDigests digests() const override { return {settings_.page, settings_.deviation, heads_}; }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    ++report_.n_settled;
    rings_.settle();
    for (uint32_t head = 0; head < capacity.size(); ++head) capacity[head] = rings_.capacity(head);
    for (const uint32_t head : full_) capacity[head] = n_context_;
    const uint32_t page = settings_.page;
    const auto slots = static_cast<uint32_t>(slots_at(n_tokens));
    for (const uint32_t head : heads_) capacity[head] = slots;
    n_slots_ = slots / page - 1;   // and the page that is being written
    paged_ = !heads_.empty() && n_tokens + 1 > slots;
    if (!paged_) return ok_status();
    n_first_ = std::max(std::min(settings_.sinks, slots / 4) / page, settings_.sinks > 0 && n_slots_ > 2 ? 1u : 0u);
    n_last_ = std::max(std::min(settings_.window, slots / 4) / page, 2u) - 1;
    n_best_ = n_slots_ - n_first_ - n_last_;
    best_.resize(heads_.size() * n_best_);
    free_.resize(n_slots_);
    corrected_.assign(n_layers_, 0);
    queries_.clear();
    for (size_t i = 0; i < heads_.size(); ++i) ask(i, n_tokens - 1, n_tokens);
    return choose(heads);
  }

  void select(uint32_t head, uint32_t n_tokens, uint32_t, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    out->clear();
    const uint32_t page = settings_.page, n_pages = n_tokens / page;
    const auto add = [&](uint32_t p) {
      for (uint32_t i = 0; i < page; ++i) out->push_back(p * page + i);
    };
    const auto found = std::lower_bound(heads_.begin(), heads_.end(), head);
    if (!paged_ || found == heads_.end() || *found != head) {
      for (uint32_t p = 0; p < n_tokens; ++p) out->push_back(p);
      return;
    }
    const size_t at = static_cast<size_t>(found - heads_.begin());
    for (uint32_t p = 0; p < n_first_; ++p) add(p);
    for (uint32_t i = 0; i < n_best_; ++i) add(best_[at * n_best_ + i]);
    for (uint32_t p = n_pages - n_last_; p < n_pages; ++p) add(p);
    for (uint32_t p = n_pages * page; p < n_tokens; ++p) out->push_back(p);
  }

  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (rings_.has(head)) return rings_.slot_for(head, length);
    return length < capacity ? length : kSettleAgain;
  }

  bool asks_before_attend() const override { return settings_.refresh && settings_.tau > 0 && !heads_.empty(); }

  // A layer whose query has turned chooses at once, with this one; heads that it is so far off wait for their pages.
  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    const auto [begin, end] = heads_of(layer);
    if (!paged_ || begin == end) return ok_status();
    ORRERY_TRY(heads->query_similarity(similarity_));
    const auto turned = [this](size_t i) { return static_cast<double>(similarity_[heads_[i] % n_kv_heads_]) < settings_.tau; };
    uint32_t n_turned = 0;
    for (size_t i = begin; i < end; ++i) n_turned += turned(i);
    report_.n_checks += end - begin;
    report_.n_triggers += n_turned;
    if (n_turned == 0) return ok_status();
    corrected_[layer] = 1;
    queries_.clear();
    for (size_t i = begin; i < end; ++i) ask(i, position, position);
    ORRERY_TRY(choose(heads));
    for (size_t i = begin; i < end; ++i)
      if (turned(i)) ORRERY_TRY(exchange(heads, i, position, false, step));
    return ok_status();
  }

  Status after_step(Heads* heads, uint64_t step, uint32_t position) override {
    if (!paged_) return ok_status();
    const uint32_t n_tokens = position + 1;
    queries_.clear();
    for (size_t i = 0; i < heads_.size() && settings_.refresh; ++i)
      if (!corrected_[heads_[i] / n_kv_heads_]) ask(i, position, n_tokens);
    ORRERY_TRY(choose(heads));
    std::fill(corrected_.begin(), corrected_.end(), uint8_t{0});
    for (size_t i = 0; i < heads_.size(); ++i) ORRERY_TRY(exchange(heads, i, n_tokens, n_tokens % settings_.page == 0, step + 1));
    return ok_status();
  }

  Report report() const override { return report_; }
  std::unique_ptr<Policy> clone() const override {
    auto copy = std::make_unique<PagePolicy>(*this);
    copy->report_ = report_.of_fork();
    return copy;
  }

 private:
  // Slots that digests of n tokens take, of all heads.
  uint64_t digest_slots(uint32_t n_tokens, uint32_t page) const {
    return div_up(heads_.size() * (n_tokens / page) * digest_bytes_, slot_bytes_);
  }
  // Slots of all paged heads, digests included: what the plan has, and their share at n tokens.
  uint64_t room() const { return budget_.max_slots - std::min(budget_.max_slots, full_.size() * uint64_t{n_context_}); }
  uint64_t share_at(uint32_t n_tokens) const {
    const double n = n_tokens, full = static_cast<double>(full_.size()), all = full + static_cast<double>(heads_.size());
    return std::min(static_cast<uint64_t>(std::max((budget_.share * all - full) * n + 1e-6, 0.0)), room());
  }
  // Of one head, without them. Where the context is far from full the plan has room for the smallest number of pages.
  uint64_t slots_at(uint32_t n_tokens) const {
    const auto left = [this](uint64_t slots, uint32_t n) {
      return (slots - std::min(slots, digest_slots(n, settings_.page))) / std::max<uint64_t>(heads_.size(), 1);
    };
    const uint64_t least = kLeastPages * uint64_t{settings_.page};
    return std::min({std::max(left(share_at(n_tokens), n_tokens), least), left(room(), n_context_), uint64_t{n_context_}});
  }
  double least_share(uint64_t slots) const {
    const uint64_t each = div_up(slots, uint64_t{rings_.n_other_heads()});
    return static_cast<double>((each - 1) * 1000 / n_context_ + 1) / 1000;
  }

  // heads_ of a layer, as [begin, end).
  std::pair<size_t, size_t> heads_of(uint32_t layer) const {
    const auto at = [this](uint32_t head) {
      return static_cast<size_t>(std::lower_bound(heads_.begin(), heads_.end(), head) - heads_.begin());
    };
    return {at(layer * n_kv_heads_), at((layer + 1) * n_kv_heads_)};
  }

  // Of n_tokens that are there, the best pages by the query of a position: into best_.
  void ask(size_t i, uint32_t position, uint32_t n_tokens) {
    const uint32_t n_candidates = n_tokens / settings_.page - n_first_ - n_last_;
    queries_.push_back({heads_[i], position, n_first_, n_candidates, n_best_, &best_[i * n_best_]});
  }
  Status choose(Heads* heads) {
    if (queries_.empty()) return ok_status();
    return heads->top_pages(queries_, {GroupReduce::mean, Pooling::none, 1, true, false});
  }

  // A head that holds n_tokens in part comes to hold the first, the best and the last of their pages, by fetching what is missing.
  // `completed`: the last of them has been written just now, and goes where another was.
  Status exchange(Heads* heads, size_t i, uint32_t n_tokens, bool completed, uint64_t visible_at) {
    const uint32_t head = heads_[i], page = settings_.page, n_pages = n_tokens / page;
    const Span<const uint32_t> held = heads->positions(head);
    const Span<const uint32_t> best{&best_[i * n_best_], n_best_};
    const auto for_each_wanted = [&](const auto& f) {   // but for the page that moves
      for (uint32_t p = 0; p < n_first_; ++p) f(p);
      for (const uint32_t p : best) f(p);
      for (uint32_t p = n_pages - n_last_; p < n_pages - completed; ++p) f(p);
    };
    for_each_wanted([&](uint32_t p) { marks_[p] = 1; });
    uint32_t n_free = 0;
    for (uint32_t slot = 0; slot < n_slots_; ++slot) {
      uint8_t& wanted = marks_[held[size_t{slot} * page] / page];
      if (!wanted) free_[n_free++] = slot;
      wanted = 0;
    }
    uint32_t next = completed ? 1 : 0;
    misses_.clear();
    for_each_wanted([&](uint32_t p) {
      if (marks_[p]) misses_.push_back({free_[next++] * page, p * page, page});
      marks_[p] = 0;
    });
    report_.wanted_tokens += best.size() * page;
    report_.missed_tokens += misses_.size() * page;
    if (completed) heads->move_last(head, page, free_[0] * page);
    return misses_.empty() ? ok_status() : heads->refill(head, misses_, visible_at);
  }

  const char* const name_;
  Settings settings_;
  WindowRings rings_;
  uint32_t n_layers_, n_kv_heads_, n_context_;
  Budget budget_;                        // max_slots: without windows
  uint64_t slot_bytes_, digest_bytes_;
  bool everything_ = false;
  std::vector<uint32_t> heads_, full_;   // that hold pages, and that hold everything
  Report report_;
  // Since settling: whether pages come and go, and how many a head has for the first, the last whole, the best.
  bool paged_ = false;
  uint32_t n_slots_ = 0, n_first_ = 0, n_last_ = 0, n_best_ = 0;
  std::vector<uint32_t> best_;           // (heads_, n_best_)
  std::vector<PageQuery> queries_;
  std::vector<uint8_t> marks_;           // (pages) 0 between uses
  std::vector<uint32_t> free_;           // (n_slots_)
  std::vector<Replacement> misses_;
  std::vector<float> similarity_;        // (n_kv_heads) of a layer's queries
  std::vector<uint8_t> corrected_;       // (n_layers) in this step
};

constexpr struct {
  const char* name;
  Settings settings;
} kMethods[] = {
    {"freekv", {0, 512, 512, 1, false, true, .8}},
    {"quest", {16, 0, 32, 2, false, true, 2}},
};

}  // namespace

Result<std::unique_ptr<Policy>> make_pages(const char* name, const Shape& shape, const Budget& budget, const Options& options) {
  const auto* method = kMethods;
  while (std::string(method->name) != name) ++method;
  Settings s = method->settings;
  OptionReader reader(name, options);
  static constexpr const char* kPages[] = {"auto", "4", "8", "16", "32", "64"};
  static constexpr const char* kDigests[] = {"range", "deviation"};
  uint32_t page = 0, digest = s.deviation;
  ORRERY_TRY(reader.choice("page", {kPages, 6}, &page));
  ORRERY_TRY(reader.choice("digest", {kDigests, 2}, &digest));
  ORRERY_TRY(reader.count("sinks", 0, 1u << 20, &s.sinks));
  ORRERY_TRY(reader.count("window", 1, 1u << 20, &s.window));
  ORRERY_TRY(reader.count("first_layers", 0, 4096, &s.first_layers));
  ORRERY_TRY(reader.flag("refresh", &s.refresh));
  ORRERY_TRY(reader.number("tau", 0, 2, &s.tau));
  ORRERY_TRY(reader.finish());
  if (reader.given("page")) s.page = page > 0 ? 2u << page : 0;
  s.deviation = digest == 1;
  auto policy = std::make_unique<PagePolicy>(method->name, shape, budget, s, reader.given("first_layers"));
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy

#include "runtime/policy/published/engines/chunks.h"

#include <algorithm>
#include <utility>

#include "runtime/base/checked.h"
#include "runtime/base/reserved_vector.h"
#include "runtime/policy/given/host_bytes.h"
#include "runtime/policy/options.h"
#include "runtime/policy/refresh/misses.h"
#include "runtime/policy/select/rings.h"

namespace orrery::policy {

namespace {

constexpr uint32_t kLeastChunks = 4;  // of a head: a candidate, a window chunk, the chunk that is written, a tail of one

class ChunkPolicy final : public Policy {
 public:
  ChunkPolicy(const char* name, const Shape& shape, const Budget& budget, const ChunkSettings& settings)
      : name_(name), settings_(settings), rings_(shape), n_layers_(shape.n_layers), n_kv_heads_(shape.n_kv_heads),
        n_context_(shape.n_context), head_dim_(shape.head_dim), budget_(budget), slot_bytes_(shape.slot_bytes),
        digest_bytes_(shape.digest_bytes) {
    budget_.max_slots -= std::min(budget.max_slots, rings_.slots());
    const uint64_t all = rings_.n_other_heads() * uint64_t{n_context_};
    holds_all_ = budget.share.of_tokens() >= 1 && budget_.max_slots >= all;
    for (uint32_t head = 0; head < n_layers_ * n_kv_heads_; ++head)
      if (!rings_.has(head)) (holds_all_ ? full_ : heads_).push_back(head);
    // By default low-rank keys and bases take at most a quarter of the budget.
    const uint64_t width = uint64_t{n_kv_heads_} * head_dim_;
    if (settings_.rank == 0) {
      const uint64_t one = rings_.n_other_heads() / n_kv_heads_ * (n_context_ + width) * digest_bytes_;  // at rank 1, as overhead_slots()
      const uint64_t fits = budget_.max_slots * slot_bytes_ * 2 * head_dim_ / 4 / std::max<uint64_t>(one, 1);
      settings_.rank = static_cast<uint32_t>(std::max<uint64_t>(std::min({uint64_t{160}, width * 5 / 32, fits}), 1));
    }
    if (settings_.rank >= width) settings_.rank = 0;
  }

  // Whether there is room for the smallest number of chunks at the end of the context.
  Status check() const {
    const uint64_t least = kLeastChunks * uint64_t{settings_.chunk};
    if (heads_.empty() || slots_at(n_context_) >= std::min<uint64_t>(least, n_context_)) return ok_status();
    const uint64_t slots = rings_.slots() + heads_.size() * least + overhead_slots(n_context_), has = budget_.max_slots + rings_.slots();
    if (budget_.slot_bytes > 0)
      return error(
          Code::invalid_argument,
          "policy %s: %zu heads with %u chunks of %u tokens, with landmarks and keys of rank %u of %u tokens, take %llu bytes of KV, "
          "which a KV budget of %llu bytes does not hold",
          name_, heads_.size(), kLeastChunks, settings_.chunk, settings_.rank, n_context_,
          static_cast<unsigned long long>(slots * slot_bytes_), static_cast<unsigned long long>(has * slot_bytes_));
    const uint64_t each = div_up(slots, uint64_t{rings_.n_other_heads()});
    return error(
        Code::invalid_argument,
        "policy %s: %zu heads with %u chunks of %u tokens, with landmarks and keys of rank %u of %u tokens, take %llu slots, which a "
        "KV budget of %g (%llu slots) does not hold; it must be at least %.3f",
        name_, heads_.size(), kLeastChunks, settings_.chunk, settings_.rank, n_context_, static_cast<unsigned long long>(slots),
        budget_.share.of_bytes(), static_cast<unsigned long long>(has), budget_.share.least(each, n_context_));
  }

  const char* name() const override { return name_; }
  uint32_t n_full_heads() const override { return static_cast<uint32_t>(full_.size()); }
  double refill_share() const override { return heads_.empty() ? 0 : kNextStepShare; }
  uint32_t queries_wanted() const override { return 1; }
  PageDigests digests() const override { return {settings_.chunk, PageDigest::mean, heads_, heads_.empty() ? 0 : settings_.rank}; }

  uint64_t host_bytes(const HostShape&) const override {
    const uint64_t n_chunks = n_context_ / settings_.chunk + 1, held = slots_at(n_context_) / settings_.chunk;
    return n_chunks * (sizeof(uint8_t) + sizeof(uint32_t) + sizeof(Replacement)) + bytes_of<uint32_t>((heads_.size() + 1) * held) +
           bytes_of<PageQuery>(heads_.size());
  }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    ++report_.n_settled;
    rings_.settle();
    for (uint32_t head = 0; head < capacity.size(); ++head) capacity[head] = rings_.capacity(head);
    for (const uint32_t head : full_) capacity[head] = n_context_;
    uint32_t tail = settings_.ages ? 0 : settings_.tail > 0 ? settings_.tail : std::clamp(n_tokens / 32, 16u, 256u);
    const auto slots = static_cast<uint32_t>(slots_at(std::min(n_tokens + tail, n_context_)));
    tail = std::min(tail, slots / 4);
    for (const uint32_t head : heads_) capacity[head] = slots;
    paged_ = !heads_.empty() && n_tokens + 1 > slots;
    if (!paged_) return ok_status();
    const uint32_t chunk = settings_.chunk, n_whole = settings_.ages ? slots / chunk - 1 : (slots - tail - n_tokens % chunk) / chunk;
    n_window_ = std::clamp(settings_.window / chunk, 1u, std::max(n_whole / 4, 1u));
    n_outliers_ = std::min(settings_.outliers, n_whole / 6);
    n_best_ = n_whole - n_window_ - n_outliers_;
    n_candidates_ = n_tokens / chunk - n_window_;
    make_room();
    for (size_t i = 0; i < heads_.size(); ++i) find_outliers(heads, i);
    if (settings_.rank > 0) ORRERY_TRY(heads->make_low_rank(n_tokens, true));
    return select_best(heads, 0, heads_.size(), n_tokens - 1);
  }

  void select(uint32_t head, uint32_t n_tokens, uint32_t, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    out->clear();
    const uint32_t chunk = settings_.chunk;
    uint32_t next = 0;
    if (paged_) {
      const size_t i = static_cast<size_t>(std::lower_bound(heads_.begin(), heads_.end(), head) - heads_.begin());
      const auto add = [&](Span<const uint32_t> chunks) {
        for (const uint32_t c : chunks)
          for (uint32_t t = 0; t < chunk; ++t) out->push_back(c * chunk + t);
      };
      add(best(i));
      add(outliers(i));
      next = n_candidates_ * chunk;
    }
    for (; next < n_tokens; ++next) out->push_back(next);
  }
  uint32_t rebuilt_slots(uint32_t head) const override {
    return paged_ && settings_.rank > 0 && !rings_.has(head) ? n_best_ * settings_.chunk : 0;
  }

  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (rings_.has(head)) return rings_.slot_for(head, length);
    return length < capacity ? length : kSettleAgain;
  }

  bool asks_before_attend() const override { return !heads_.empty(); }
  bool refills_its_layer() const override { return asks_before_attend(); }
  bool fetches_pages() const override { return refills_its_layer(); }

  Status before_attend(Heads* heads, uint32_t layer, uint64_t step, uint32_t position) override {
    const auto at = [this](uint32_t head) {
      return static_cast<size_t>(std::lower_bound(heads_.begin(), heads_.end(), head) - heads_.begin());
    };
    const size_t begin = at(layer * n_kv_heads_), end = at((layer + 1) * n_kv_heads_);
    if (!paged_ || begin == end) return ok_status();
    if (heads->fetches_pages()) {
      ask(begin, end, position);
      for (size_t i = begin; i < end; ++i) queries_[i - begin].excluded = outliers(i);
      report_.wanted_tokens += uint64_t{n_best_} * settings_.chunk * (end - begin);
      return heads->fetch_pages(queries_, kRule, {0, 0, 0});
    }
    ORRERY_TRY(select_best(heads, begin, end, position));
    for (size_t i = begin; i < end; ++i) ORRERY_TRY(refill_chunks(heads, i, step));
    return ok_status();
  }

  // When a chunk is complete, the oldest window chunk becomes a candidate.
  Status after_step(Heads* heads, uint64_t, uint32_t position) override {
    report_.missed_tokens += heads->take_fetched_tokens();
    if (!paged_ || !settings_.ages || (position + 1) % settings_.chunk != 0) return ok_status();
    if (settings_.rank > 0) ORRERY_TRY(heads->make_low_rank(position + 1, false));
    for (size_t i = 0; i < heads_.size(); ++i) age_chunk(heads, i);
    ++n_candidates_;
    return ok_status();
  }

  Status state(StateBytes* s, const SavedMoment& at) override;
  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  // The working memory of steps.
  void make_room() {
    resize_discarding(&best_, heads_.size() * n_best_);
    resize_discarding(&outliers_, heads_.size() * n_outliers_);
    free_.resize(n_best_);
    marks_.resize(n_context_ / settings_.chunk + 1);
    order_.reserve(marks_.size());
    queries_.reserve(heads_.size());
    misses_.reserve(marks_.size());
  }
  Status check_slots(StateBytes* s, const SavedMoment& at, size_t i);
  Span<uint32_t> best(size_t i) { return {best_.data() + i * n_best_, n_best_}; }
  Span<uint32_t> outliers(size_t i) { return {outliers_.data() + i * n_outliers_, n_outliers_}; }

  // Slots that the landmarks, low-rank keys and bases of n tokens take, of all heads.
  uint64_t overhead_slots(uint32_t n_tokens) const {
    const uint64_t width = uint64_t{n_kv_heads_} * head_dim_, n_layers = heads_.size() / n_kv_heads_;
    const uint64_t values = heads_.size() * (n_tokens / settings_.chunk) * head_dim_ + n_layers * settings_.rank * (n_tokens + width);
    return div_up(values * digest_bytes_, 2 * head_dim_ * slot_bytes_);  // digest_bytes_ are those of two vectors
  }
  // Slots of one head for n tokens, without that overhead: the share of the budget (all of it for a full share), at least the smallest
  // number of chunks, for which the plan has room.
  uint64_t slots_at(uint32_t n_tokens) const {
    const uint64_t n_heads = std::max<uint64_t>(heads_.size(), 1), least = kLeastChunks * uint64_t{settings_.chunk};
    const auto left = [&](uint64_t slots, uint32_t n) { return (slots - std::min(slots, overhead_slots(n))) / n_heads; };
    const double share = budget_.share.of_tokens() * static_cast<double>(n_heads) * static_cast<double>(n_tokens);
    const uint64_t now = std::min(static_cast<uint64_t>(share + 1e-6), budget_.max_slots),
                   most = std::min(left(budget_.max_slots, n_context_), uint64_t{n_context_});
    return budget_.share.of_tokens() >= 1 ? most : std::min(std::max(left(now, n_tokens), least), most);
  }

  // Whether chunk a is more of an outlier than chunk b.
  static bool is_more_outlying(Span<const float> cosines, uint32_t a, uint32_t b) {
    return cosines[a] != cosines[b] ? cosines[a] < cosines[b] : a < b;
  }
  void find_outliers(Heads* heads, size_t i) {
    const Span<const float> cosines = heads->page_cosines(heads_[i]);
    order_.resize(n_candidates_);
    for (uint32_t c = 0; c < n_candidates_; ++c) order_[c] = c;
    std::partial_sort(order_.begin(), order_.begin() + n_outliers_, order_.end(),
                      [&](uint32_t a, uint32_t b) { return is_more_outlying(cosines, a, b); });
    std::copy_n(order_.begin(), n_outliers_, outliers(i).begin());
    for (const uint32_t c : outliers(i)) heads->hide_page(heads_[i], c, true);
  }

  void ask(size_t begin, size_t end, uint32_t position) {
    queries_.clear();
    for (size_t i = begin; i < end; ++i) queries_.push_back({heads_[i], position, 0, n_candidates_, n_best_, best(i).data()});
  }
  // Writes the best chunks by the query at `position` to best_, for heads_[begin .. end).
  Status select_best(Heads* heads, size_t begin, size_t end, uint32_t position) {
    ask(begin, end, position);
    ORRERY_TRY(heads->top_pages(queries_, kRule));
    for (size_t i = begin; i < end; ++i) pass_over_outliers(i);
    return ok_status();
  }
  // Replaces outliers in best(i), which are found where too few other chunks have a weight, by the first other chunks.
  void pass_over_outliers(size_t i) {
    for (const uint32_t c : outliers(i)) marks_[c] = 1;
    for (const uint32_t c : best(i)) marks_[c] |= 2;
    uint32_t next = 0;
    for (uint32_t& c : best(i)) {
      if (marks_[c] != 3) continue;
      while (marks_[next]) ++next;
      c = next++;
    }
    std::sort(best(i).begin(), best(i).end());
    std::fill(marks_.begin(), marks_.begin() + n_candidates_, uint8_t{0});
  }

  // Schedules the misses among the best chunks, for the head's first slots.
  Status refill_chunks(Heads* heads, size_t i, uint64_t visible_at) {
    const uint32_t head = heads_[i], chunk = settings_.chunk;
    const Span<const uint32_t> held = heads->positions(head);
    for (const uint32_t c : best(i)) marks_[c] = 1;
    uint32_t n_free = 0;
    for (uint32_t slot = 0; slot < n_best_; ++slot) {
      uint8_t& wanted = marks_[held[size_t{slot} * chunk] / chunk];
      if (!wanted) free_[n_free++] = slot;
      wanted = 0;
    }
    misses_.clear();
    for (const uint32_t c : best(i)) {
      if (marks_[c]) misses_.push_back({free_[misses_.size()] * chunk, c * chunk, chunk});
      marks_[c] = 0;
    }
    report_.wanted_tokens += uint64_t{n_best_} * chunk;
    report_.missed_tokens += misses_.size() * chunk;
    return misses_.empty() ? ok_status() : heads->refill(head, misses_, visible_at);
  }

  // Chunk n_candidates_ leaves the window and becomes a candidate; or an outlier, and the least outlying outlier becomes a candidate. The
  // chunk that is now complete moves to the slots of the new candidate.
  void age_chunk(Heads* heads, size_t i) {
    const uint32_t head = heads_[i], chunk = settings_.chunk;
    const Span<const float> cosines = heads->page_cosines(head);
    const auto less = [&](uint32_t a, uint32_t b) { return is_more_outlying(cosines, a, b); };
    uint32_t leaving = n_candidates_;
    const auto last = std::max_element(outliers(i).begin(), outliers(i).end(), less);
    if (n_outliers_ > 0 && less(leaving, *last)) {
      heads->hide_page(head, leaving, true);
      heads->hide_page(head, *last, false);
      std::swap(leaving, *last);
    }
    const Span<const uint32_t> held = heads->positions(head);
    uint32_t slot = n_best_ * chunk;
    while (held[slot] != leaving * chunk) slot += chunk;
    heads->move_last(head, chunk, slot);
  }

  static constexpr ScoreRule kRule = {GroupReduce::max, Pooling::none, 1, true, true};
  const char* const name_;
  ChunkSettings settings_;
  WindowRings rings_;
  uint32_t n_layers_, n_kv_heads_, n_context_, head_dim_;
  Budget budget_;  // max_slots: without windows
  uint64_t slot_bytes_, digest_bytes_;
  bool holds_all_ = false;
  std::vector<uint32_t> heads_, full_;  // heads that hold chunks, and heads that hold everything
  // Since settle(): there are more chunks than a head holds; chunks of a head by kind; candidates and outliers together.
  bool paged_ = false;
  uint32_t n_best_ = 0, n_outliers_ = 0, n_window_ = 0, n_candidates_ = 0;
  std::vector<uint32_t> best_, outliers_;  // (heads_, n_best_), (heads_, n_outliers_)
  ReservedVector<PageQuery> queries_;
  std::vector<uint8_t> marks_;      // (chunks) 0 between uses
  ReservedVector<uint32_t> order_;  // (chunks)
  std::vector<uint32_t> free_;      // (n_best_)
  ReservedVector<Replacement> misses_;
};

// Each step selects for itself, before it attends. Outliers stay.
Status ChunkPolicy::state(StateBytes* s, const SavedMoment& at) {
  const uint32_t n_whole = at.n_tokens / settings_.chunk;
  const uint64_t end = uint64_t{n_whole} + 1;
  ORRERY_TRY(rings_.state(s, *at.slots));
  ORRERY_TRY(s->flag(&paged_, "whether heads hold chunks is neither yes nor no"));
  for (const uint32_t head : full_) ORRERY_TRY(s->check(at.slots->capacity[head] == n_context_, "a whole head has too few slots"));
  if (!paged_) return ok_status();
  ORRERY_TRY(s->check(!heads_.empty() && at.refills.empty(), "refills between two steps"));
  ORRERY_TRY(s->number(&n_best_, end, "heads have more chunks than the session"));
  ORRERY_TRY(s->number(&n_outliers_, end, "more outliers than chunks"));
  ORRERY_TRY(s->number(&n_window_, end, "more window chunks than chunks"));
  ORRERY_TRY(s->number(&n_candidates_, end, "more candidates than chunks"));
  ORRERY_TRY(s->check(
      n_best_ > 0 && n_window_ > 0 && uint64_t{n_best_} + n_outliers_ <= n_candidates_ &&
          (settings_.ages ? n_candidates_ == n_whole - std::min(n_window_, n_whole) : n_candidates_ + uint64_t{n_window_} <= n_whole),
      "a head's chunks do not add up"));
  if (s->reads()) make_room(), std::fill(best_.begin(), best_.end(), 0u);
  ORRERY_TRY(s->numbers(&outliers_, heads_.size() * n_outliers_, n_candidates_, "an outlier is no candidate"));
  for (size_t i = 0; s->reads() && i < heads_.size(); ++i) ORRERY_TRY(check_slots(s, at, i));
  return ok_status();
}

// The first slots hold whole candidates, each once. With `ages` outliers, window and the chunk that is written are behind them, and nothing
// else.
Status ChunkPolicy::check_slots(StateBytes* s, const SavedMoment& at, size_t i) {
  const uint32_t head = heads_[i], chunk = settings_.chunk, n_whole = at.n_tokens / chunk;
  const uint64_t n_held = uint64_t{n_best_} + n_outliers_ + n_window_, n_length = at.slots->length[head];
  ORRERY_TRY(s->check((n_held + settings_.ages) * chunk <= at.slots->capacity[head] && n_held * chunk <= n_length &&
                          (!settings_.ages || n_length == n_held * chunk + at.n_tokens % chunk),
                      "a head lacks chunks"));
  const Span<const uint32_t> held = at.slots->of(head);
  std::vector<uint8_t> marks(n_whole + size_t{1});
  for (const uint32_t c : outliers(i)) ORRERY_TRY(s->check(!std::exchange(marks[c], uint8_t{1}), "a chunk is twice an outlier"));
  for (size_t slot = 0; slot < (settings_.ages ? n_length : uint64_t{n_best_} * chunk); ++slot) {
    const uint32_t c = held[slot] / chunk;
    const bool begins = slot % chunk == 0, is_best = slot < uint64_t{n_best_} * chunk;
    ORRERY_TRY(s->check(held[slot] % chunk == slot % chunk && (begins || c == held[slot - 1] / chunk), "a head's slots are no chunks"));
    if (!begins) continue;
    // Bit 1: an outlier; bit 2: it was here.
    const bool wanted = is_best                  ? c < n_candidates_ && marks[c] == 0
                        : slot >= n_held * chunk ? c == n_whole
                                                 : marks[c] == 1 || (c >= n_candidates_ && c < n_whole && marks[c] == 0);
    ORRERY_TRY(s->check(wanted, "a head holds another chunk"));
    marks[c] |= 2;
  }
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Policy>> make_chunks(const char* name, bool ages, const Shape& shape, const Budget& budget, const Options& options) {
  ChunkSettings s;
  s.ages = ages;
  OptionReader reader(name, options);
  static constexpr const char* kChunks[] = {"4", "8", "16", "32", "64"};
  uint32_t chunk = 1;
  ORRERY_TRY(reader.choice("chunk", kChunks, &chunk));
  ORRERY_TRY(reader.count("rank", 0, 1u << 20, &s.rank));
  ORRERY_TRY(reader.count("outliers", 0, 1u << 20, &s.outliers));
  ORRERY_TRY(reader.count("local", 1, 1u << 20, &s.window));
  if (!s.ages) ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.finish());
  s.chunk = 4u << chunk;
  auto policy = std::make_unique<ChunkPolicy>(name, shape, budget, s);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy

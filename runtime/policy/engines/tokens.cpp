#include "runtime/policy/engines/tokens.h"

#include "runtime/policy/select/top_k.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace {
constexpr uint32_t kRankUnit = 4;          // values that devices read at once
constexpr size_t kWorthThreads = 1 << 13;  // tokens: comparing fewer takes less time than calling other threads
}  // namespace

uint32_t rank_of(uint32_t asked, double part, const Shape& shape, const Budget& budget) {
  if (asked == 0) {
    const WindowRings rings(shape);
    const uint64_t slots = budget.max_slots - std::min(budget.max_slots, rings.slots());
    const uint64_t of_one = rings.n_other_heads() * (uint64_t{shape.n_context} + shape.head_dim) * shape.digest_bytes;
    const uint64_t fits = slots * shape.slot_bytes * shape.head_dim / std::max<uint64_t>(of_one, 1);  // a digest is 2 head_dim values
    const uint64_t wanted = (static_cast<uint64_t>(part * shape.head_dim + 1e-9) + kRankUnit - 1) / kRankUnit * kRankUnit;
    asked = static_cast<uint32_t>(std::min(wanted, fits / kRankUnit * kRankUnit));
  }
  return std::min((std::max(asked, 1u) + kRankUnit - 1) / kRankUnit * kRankUnit, shape.head_dim);
}

uint32_t TokenPolicy::slot_for(uint32_t head, uint32_t length, uint32_t capacity) {
  if (settings_.in_place && paged_ && !rings_.has(head)) return std::min(length, capacity - 1);  // until hold()
  if (rings_.has(head) || length < capacity || !paged_) return PagedPolicy::slot_for(head, length, capacity);
  return capacity - n_window_pages_ - 1 + (n_window_pages_ + n_steps_) % (n_window_pages_ + 1);
}

Status TokenPolicy::settle_tokens(Heads* heads, const ScoreRule& rule, uint32_t n_tokens, Span<uint32_t> capacity) {
  begin_settling(n_tokens, capacity);
  if (!paged_) return ok_status();
  n_steps_ = 0, n_found_ = n_tokens;
  make_room();
  ORRERY_TRY(make_digests(heads, n_tokens, true));
  ORRERY_TRY(divide(heads, n_tokens, capacity));
  return select_best(heads, rule, 0, heads_.size(), n_tokens - 1, n_tokens);
}

void TokenPolicy::make_room() {
  plans_.resize(n_plans());
  for (Plan& plan : plans_) plan.marks.resize(n_context_), plan.misses.reserve(n_context_);
  queries_.reserve(heads_.size());
  n_read_.resize(settings_.in_place ? n_kv_heads_ : 0);
}

// Each step selects for itself, before it attends: what the last one has selected counts in the slots alone.
Status TokenPolicy::state(StateBytes* s, const SavedMoment& at) {
  ORRERY_TRY(paged_state(s, at, false));
  if (!paged_) return ok_status();
  ORRERY_TRY(s->check(at.refills.empty(), "refills between two steps"));
  ORRERY_TRY(s->value(&n_steps_));
  ORRERY_TRY(s->number(&n_found_, uint64_t{at.n_tokens} + 1, "more tokens can be found than the session has"));
  ORRERY_TRY(s->value(&stay_));
  ORRERY_TRY(s->check(stay_ >= 1 && stay_ <= 64, "the score of a resident token counts another number of times"));
  if (s->reads()) make_room();
  return ok_status();
}

void TokenPolicy::ask(size_t begin, size_t end, uint32_t position, uint32_t n_tokens) {
  queries_.clear();
  for (size_t i = begin; i < end; ++i)
    queries_.push_back(
        {heads_[i], position, n_sink_pages_, n_candidates(n_tokens), static_cast<uint32_t>(selected(i).size()), selected(i).data()});
}

Status TokenPolicy::select_best(Heads* heads, const ScoreRule& rule, size_t begin, size_t end, uint32_t position, uint32_t n_tokens) {
  ask(begin, end, position, n_tokens);
  return heads->top_pages(queries_, rule);
}

Status TokenPolicy::refill(Heads* heads, size_t begin, size_t end, uint32_t n_wanted, uint64_t visible_at) {
  for (size_t i = begin; i < end; ++i) {
    const Span<const Replacement> misses = plans_[i - begin].misses;
    report_.wanted_tokens += n_wanted;
    report_.missed_tokens += misses.size();
    if (!misses.empty()) ORRERY_TRY(heads->refill(heads_[i], misses, visible_at));
  }
  return ok_status();
}

Status TokenPolicy::fetch_best(Heads* heads, const ScoreRule& rule, uint32_t layer, uint64_t step, uint32_t position) {
  const auto [begin, end] = heads_of(layer);
  if (!paged_ || begin == end) return ok_status();
  if (settings_.in_place) {
    ask(begin, end, position, position);
    const float least = settings_.skip / static_cast<float>(n_candidates(position));
    for (size_t i = 0; i < end - begin; ++i) queries_[i].least = least, queries_[i].n_found = &n_read_[i];
    ORRERY_TRY(heads->top_pages(queries_, rule));
    for (size_t i = begin; i < end; ++i) {
      const uint32_t n = n_read_[i - begin];
      heads->hold(heads_[i], n_sink_pages_, selected(i).first(n), n_window_pages_, position);
      report_.wanted_tokens += n, report_.missed_tokens += n;
    }
    return ok_status();
  }
  for (size_t i = begin; i < end; ++i) report_.wanted_tokens += selected(i).size();
  ask(begin, end, position, position);
  for (size_t i = begin; stay_ > 1 && i < end; ++i)
    queries_[i - begin].held = heads->positions(heads_[i]).subspan(n_sink_pages_, selected(i).size()), queries_[i - begin].stay = stay_;
  if (heads->fetches_pages()) return heads->fetch_pages(queries_, rule, {n_sink_pages_, 0, 0});
  ORRERY_TRY(heads->top_pages(queries_, rule));
  const auto plan = [&, first = begin](size_t i) {
    const Span<const uint32_t> best = selected(first + i);
    const Span<const uint32_t> held = heads->positions(heads_[first + i]).subspan(n_sink_pages_, best.size());
    plan_misses(held, best, n_sink_pages_, &plans_[i].marks, &plans_[i].misses);
  };
  if ((end - begin) * n_selected_pages_ >= kWorthThreads) heads->each(end - begin, plan);
  else
    for (size_t i = 0; i < end - begin; ++i) plan(i);
  return refill(heads, begin, end, 0, step);
}

Status TokenPolicy::after_step(Heads* heads, uint64_t, uint32_t position) {
  if (!paged_) return ok_status();
  report_.missed_tokens += heads->take_fetched_tokens();
  report_.wanted_tokens += heads->take_wanted_tokens();
  ++n_steps_;
  const uint32_t n_tokens = position + 1;
  if (n_tokens - n_window_pages_ <= n_found_) return ok_status();
  n_found_ = n_tokens;
  return make_digests(heads, n_tokens, false);
}

}  // namespace orrery::policy

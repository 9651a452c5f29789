#include "runtime/policy/engines/tailed.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/policy/score/pooling.h"

namespace orrery::policy {

TailedPolicy::TailedPolicy(const Shape& shape, const Budget& budget, Tail tail, const Calibration& calibration, SharedProfile profile,
                           Ratio extra)
    : profile_(std::move(profile)), calibration_(calibration), n_kv_heads_(shape.n_kv_heads), n_layers_(shape.n_layers),
      n_context_(shape.n_context), window_(shape.window.begin(), shape.window.end()), rings_(shape),
      budget_(rings_.n_other_heads(), shape.n_context, budget.share, max_slots(budget), tail, extra) {}

Status TailedPolicy::check_room(const Budget& budget, const char* what) const {
  const uint32_t n_full = n_full_heads();
  if (rings_.n_other_heads() == 0 || budget_.fits(n_full)) return ok_status();
  if (n_full == 0)  // with a share there is always room
    return error(Code::invalid_argument,
                 "policy %s: a KV budget of %llu slots (tokens of one head) holds nothing of %u heads; it must "
                 "be at least %llu slots",
                 name(), static_cast<unsigned long long>(budget.max_slots), rings_.n_other_heads(),
                 static_cast<unsigned long long>(rings_.slots() + budget_.least_slots(0)));
  if (budget.slot_bytes > 0) {
    const uint64_t least = (rings_.slots() + budget_.least_slots(n_full)) * budget.slot_bytes;
    return error(Code::invalid_argument,
                 "policy %s: %u of %u heads %s, which a KV budget of %llu bytes does not hold at a context of %u; it must be "
                 "at least %llu bytes",
                 name(), n_full, rings_.n_other_heads(), what, static_cast<unsigned long long>(budget.max_slots * budget.slot_bytes),
                 n_context_, static_cast<unsigned long long>(align_up(least, kv::kArenaAlignment)));
  }
  return error(Code::invalid_argument,
               "policy %s: %u of %u heads %s, which a KV budget of %g (%llu slots) does not hold; it must be at least %.3f", name(), n_full,
               rings_.n_other_heads(), what, budget.share.of_bytes(), static_cast<unsigned long long>(budget.max_slots),
               budget_.least_share(n_full));
}

void TailedPolicy::begin_settling(uint32_t n_tokens, Span<uint32_t> capacity) {
  ++report_.n_settled;
  rings_.settle();
  n_tokens_ = n_tokens;
  n_steps_ = 0;
  queries_.clear();
  for (uint32_t head = 0; head < capacity.size(); ++head) capacity[head] = rings_.capacity(head);
}

Status TailedPolicy::tailed_state(StateBytes* s, const SavedMoment& at) {
  ORRERY_TRY(rings_.state(s, *at.slots));
  ORRERY_TRY(s->number(&n_tokens_, uint64_t{at.n_tokens} + 1, "more tokens were settled than the session has"));
  ORRERY_TRY(s->value(&n_steps_));
  return s->check(at.settled() || n_tokens_ == at.n_settling, "another number of tokens is being settled");
}

uint64_t TailedPolicy::tailed_bytes() const {
  const uint64_t calibrated = profile_ ? 0 : calibration_bytes(shape(), calibration_);
  return bytes_of<uint8_t>(n_context_) + bytes_of<Replacement>(n_context_ + uint64_t{1}) +
         bytes_of<KeyQuery>(uint64_t{n_layers_} * n_kv_heads_) * 2 + calibrated;
}

uint64_t TailedPolicy::last_queries_bytes(uint32_t n_queries, uint32_t group) const {
  const uint64_t rows = calibration_.rule.reduce == GroupReduce::mean ? 1 : n_queries * uint64_t{group};
  return bytes_of<float>((rows + 2) * n_context_);
}

Status TailedPolicy::score_by_last(Heads* heads, uint32_t head, uint32_t n_queries, uint32_t n_tokens, Span<float> out) {
  const ScoreRule& rule = calibration_.rule;
  const bool mean = rule.reduce == GroupReduce::mean;  // a mean and an average pooling commute
  const uint32_t group = heads->group(), w = std::min({n_queries, heads->n_queries(), n_tokens});
  resize_discarding(&rows_of_queries_, size_t{n_tokens} * (mean ? 1 : w * group));
  const WeightsQuery query{head, n_tokens - w, w, n_tokens, mean, rows_of_queries_.data()};
  ORRERY_TRY(heads->key_weights({&query, 1}));
  if (mean) return pool1d(rows_of_queries_, rule.pooling, rule.pool_width, out);
  resize_discarding(&pooled_, n_tokens);
  resize_discarding(&largest_, n_tokens);
  std::fill(out.begin(), out.end(), 0.0f);
  for (uint32_t r = 0; r < w; ++r) {
    std::fill(largest_.begin(), largest_.end(), 0.0f);
    for (uint32_t g = 0; g < group; ++g) {
      const Span<const float> row = Span<const float>(rows_of_queries_).subspan((size_t{r} * group + g) * n_tokens, n_tokens);
      ORRERY_TRY(pool1d(row, rule.pooling, rule.pool_width, pooled_));
      for (uint32_t key = 0; key < n_tokens; ++key) largest_[key] = std::max(largest_[key], pooled_[key]);
    }
    for (uint32_t key = 0; key < n_tokens; ++key) out[key] += largest_[key];
  }
  return ok_status();
}

void TailedPolicy::end_settling(size_t longest) {
  resize_discarding(&marks_, n_tokens_);
  std::fill(marks_.begin(), marks_.end(), uint8_t{0});
  misses_.reserve(longest + 1);
}

}  // namespace orrery::policy

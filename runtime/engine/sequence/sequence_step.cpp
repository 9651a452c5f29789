#include "runtime/engine/sequence/sequence_step.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "runtime/base/clock.h"

namespace orrery::engine {

SequenceStep::SequenceStep(Sequence* sequence, const Request& request)
    : SharedWork(&sequence->model(), &sequence->member_), sequence_(sequence), request_(request),
      from_(sequence->n_computed() + request.ahead) {}

bool SequenceStep::shares() const {
  const Request& r = request_;
  if (r.phase != Phase::decode || r.rows != Rows::usual || r.tokens.size() != 1 || r.n_logits != 1 || from_ == 0) return false;
  if (sequence_->state_ && sequence_->state_->position() != from_) return false;  // tokens are computed again first
  return sequence_->model_->runtime().device().info().decodes_together && !(on_resident() && sequence_->device_.resident->steps_alone());
}

template <class F>
void SequenceStep::guarded(const F& f) {
  const AccountScope scope(sequence_->account_);
  try {
    status_ = f();
  } catch (...) {
    thrown_ = std::current_exception();
  }
}

Status SequenceStep::take_status() {
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return std::move(status_);
}

Status SequenceStep::run() {
  if (request_.rows == Rows::usual) sequence_->drop_ahead();
  if (!request_.in_parts || sequence_->pace_.n_rows() != request_.tokens.size()) sequence_->drop_part();
  awaited_ = shares();
  const bool joins = may_join();
  if (!joins) sequence_->leave_steps();
  ORRERY_ASSIGN(const std::optional<Turn> turn, sequence_->model_->runtime().turns().take(request_.cancel, joins ? this : nullptr));
  SequenceStep* const self = this;
  if (turn) gather_and_compute(*turn, {&self, 1});  // else another thread has computed the step
  return take_status();
}

void SequenceStep::run_together(Span<SequenceStep* const> steps) {
  for (SequenceStep* step : steps) step->sequence_->drop_part(), step->sequence_->leave_steps();
  std::array<SequenceStep*, static_cast<size_t>(kMostTogether)> live;
  const auto end = std::copy(steps.begin(), steps.end(), live.begin());
  size_t n = static_cast<size_t>(end - live.begin());
  const auto cancelled = [](const SequenceStep* step) { return Cancel(step->request_.cancel).asked(); };
  const auto any_cancelled = [&] { return std::any_of(live.begin(), live.begin() + static_cast<ptrdiff_t>(n), cancelled); };
  while (n > 0) {
    auto turn = steps[0]->sequence_->model_->runtime().take_turn(Cancel::when(&any_cancelled));
    if (turn.ok()) return gather_and_compute(*turn, {live.data(), n});
    // Those that are cancelled leave; the others ask again.
    const auto last = live.begin() + static_cast<ptrdiff_t>(n);
    const auto rest = std::partition(live.begin(), last, [&](const SequenceStep* s) { return !cancelled(s); });
    for (auto s = rest; s != last; ++s)
      (*s)->guarded([] { return error(Code::cancelled, "cancelled while waiting for a turn on the device"); });
    n = static_cast<size_t>(rest - live.begin());
  }
}

// own: of the thread that has the turn.
void SequenceStep::gather_and_compute(const Turn& turn, Span<SequenceStep* const> own) {
  LanguageModel& model = *own[0]->sequence_->model_;
  const Status ready = turn.backend().set_scratch(model.workspace(turn).scratch, model.limits(turn));
  std::array<SequenceStep*, static_cast<size_t>(kMostTogether)> steps;
  size_t n = 0;
  for (SequenceStep* step : own) {
    step->guarded([&] { return ready.ok() ? step->begin(turn, true) : Status(ready.detail()); });
    if (step->begun_) steps[n++] = step;
    else step->use_.reset();
  }
  // The own steps settle first: whoever waits for them can still be cancelled.
  std::array<SharedWork*, static_cast<size_t>(kMostTogether)> gathered;
  size_t n_gathered = 0;
  if (ready.ok() && own[0]->shares()) n_gathered = turn.gather(&model, {gathered.data(), gathered.size() - own.size()});
  for (size_t i = n_gathered; i-- > 0;) {  // from the last on: whoever asked first gets the next turn first
    auto* const step = static_cast<SequenceStep*>(gathered[i]);
    step->guarded([&] { return step->begin(turn, false); });
    if (step->begun_) {
      steps[n++] = step;
      continue;
    }
    step->use_.reset();
    std::exchange(step->hands_back_, false) ? turn.hand_back(step) : turn.done(step);
    gathered[i] = nullptr;
  }
  const uint64_t start_us = turn.now_us();
  if (n > 0) compute(turn, {steps.data(), n});
  if (n > 1) {
    std::array<SharedWork*, static_cast<size_t>(kMostTogether)> members;
    const auto end = std::copy_if(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(n), members.begin(),
                                  [](const SequenceStep* step) { return step->awaited_ && !step->failed(); });
    const uint64_t now_us = turn.now_us();
    turn.expect({members.data(), static_cast<size_t>(end - members.begin())}, now_us + (now_us - start_us) / kShareToAwait);
  }
  for (size_t i = 0; i < n_gathered; ++i)
    if (gathered[i]) turn.done(gathered[i]);
}

void SequenceStep::compute(const Turn& turn, Span<SequenceStep* const> all) {
  std::array<SequenceStep*, static_cast<size_t>(kMostTogether)> live;
  std::array<Step, static_cast<size_t>(kMostTogether)> steps;
  size_t n = 0;
  for (SequenceStep* step : all)
    if (!step->failed()) live[n++] = step;  // else its preparation failed
  // Steps whose KV has one form stand side by side: a backend may serve them by one launch. So do those with the same adapters.
  const auto form = [](const SequenceStep* s) {
    return std::make_tuple(s->step_.kv.type, s->step_.heads.empty(), s->step_.heads_kv.type, hash_of(s->sequence_->options_.adapters));
  };
  std::sort(live.begin(), live.begin() + static_cast<ptrdiff_t>(n), [&](const auto* a, const auto* b) { return form(a) < form(b); });
  for (size_t i = 0; i < n; ++i) steps[i] = live[i]->step_;
  for (size_t first = 0, count; first < n; first += count) {
    count = n > 1 ? turn.backend().most_steps({&steps[first], n - first}) : 1;
    // The workspace has rows for the shortlists of one pass. Other rows go to the host.
    const bool exports = count == n && n <= static_cast<size_t>(model::kLogitRows);
    for (size_t i = 0; i < count; ++i) {
      SequenceStep* const step = live[first + i];
      step->together_ = n > 1, step->row_ = i;
      if (!exports) step->out_.request = nullptr;
    }
    compute_pass(turn, {&live[first], count}, {&steps[first], count});
  }
  for (SequenceStep* step : all) step->end(turn);
}

void SequenceStep::compute_pass(const Turn& turn, Span<SequenceStep* const> live, Span<const Step> steps) {
  std::array<RopeSpec, static_cast<size_t>(kMostTogether * kMostRopes)> ropes;
  size_t n_ropes = 0;
  std::array<model::SessionPart, static_cast<size_t>(kMostTogether)> parts;
  const size_t n = live.size();
  for (size_t i = 0; i < n; ++i) {
    SequenceStep* const step = live[i];
    for (const RopeSpec& spec : step->sequence_->ropes_.specs()) ropes[n_ropes++] = spec;
    parts[i].out = step->out_;
    parts[i].hook = step->hook_ ? step : nullptr;
    if (step->sequence_->state_) parts[i].state = step->sequence_->state_->step();
    parts[i].hidden = step->request_.hidden;
    parts[i].adapters = uses_of(step->sequence_->options_.adapters);
    step->ran_ = true;
  }
  LanguageModel& model = *live[0]->sequence_->model_;
  // A decode step is short: a cancellation ends its waits, not its computation.
  const auto all_cancelled = [live] {
    return std::all_of(live.begin(), live.end(), [](const SequenceStep* s) { return Cancel(s->request_.cancel).asked(); });
  };
  const model::Cancels cancel = {live[0]->request_.phase == Phase::prefill ? live[0]->request_.cancel : nullptr,
                                 Cancel::when(&all_cancelled)};
  if (live[0]->request_.phase == Phase::decode) {
    LanguageModel::DecodeCounts& counts = model.decode_counts(turn);
    ++counts.passes, counts.steps += n, counts.most = std::max<uint64_t>(counts.most, n);
  }
  Status computed;
  const uint64_t begun_us = now_us();
  live[0]->guarded([&] {
    if (n > 1) computed = model.waiting_rows(turn).make_room(&turn.backend(), static_cast<int32_t>(n));
    if (computed.ok())
      computed = model::forward_together(&turn.backend(), model.weights(), model.workspace(turn), steps, {ropes.data(), n_ropes},
                                         {parts.data(), n}, cancel, live[0]->layers_);
    return ok_status();
  });
  live[0]->forward_us_ = now_us() - begun_us;
  for (size_t i = 0; i < n; ++i) {
    SequenceStep& step = *live[i];
    if (live[0]->thrown_ && i > 0) step.thrown_ = live[0]->thrown_;
    if (parts[i].thrown) step.thrown_ = parts[i].thrown;
    if (!step.failed()) step.status_ = std::move(parts[i].status);
    if (!step.failed() && !computed.ok()) step.guarded([&] { return Status(computed.detail()); });
  }
}

Status SequenceStep::begin(const Turn& turn, bool may_settle) {
  Sequence& s = *sequence_;
  const Request& r = request_;
  const uint32_t n = static_cast<uint32_t>(r.tokens.size());
  Backend& backend = turn.backend();
  use_.emplace(s.device_.resident.get(), turn, Cancel(r.cancel));
  const model::Workspace& work = s.model_->workspace(turn);
  WaitingRows& waiting_rows = s.model_->waiting_rows(turn);
  if (r.n_logits > 0) s.logits_at_ = 0, waiting_rows.drop(&s.row_waits_);  // the step overwrites them
  ORRERY_TRY(waiting_rows.make_room(&backend, r.n_logits));
  start_us_ = now_us();
  if (r.rows == Rows::draft && r.ahead == 0) ORRERY_TRY(s.device_.resident->begin_draft(from_));
  if (on_resident()) ORRERY_TRY(s.recover_queries(turn, from_, r.cancel));
  if (s.device_.resident) s.device_.resident->before_write(from_);
  const bool goes_on = s.stage_ == Sequence::Stage::chunk;
  if (from_ == 0 && !goes_on) ORRERY_TRY(s.choose_form(turn, r.cancel));
  if (s.state_ && !goes_on) ORRERY_TRY(s.catch_up(turn, from_, r.cancel));
  ORRERY_TRY(s.device_.pages->make_writable(&backend, from_, from_ + n));
  if (s.state_ && !goes_on) s.state_->begin_step(from_, r.rows == Rows::guesses ? 1 : 0);

  s.rows_.resize(n);
  for (uint32_t i = 0; i < n; ++i) s.rows_[i] = {r.tokens[i], static_cast<int32_t>(from_ + i), 0};
  step_.phase = r.phase;
  step_.rows = s.rows_;
  step_.second_from = static_cast<int32_t>(r.second_from);
  pages_.give(*s.device_.pages, &step_);
  step_.transform = s.transform();
  out_.n_logits = r.n_logits;
  out_.logits = r.logits ? r.logits : s.logits_.data();
  out_.embedding = r.n_logits > 0 ? s.embedding_.data() : nullptr;
  if (r.rows != Rows::usual) out_.embedding = r.embeddings, out_.n_embeddings = r.n_logits;
  if (s.hidden_ && r.rows == Rows::usual) out_.hidden = s.hidden_->room(from_, n);
  if (r.normed) out_.hidden = r.normed;
  if (r.shortlist && r.n_logits == 1 && work.shortlist) {
    shortlist_ = r.shortlist->request();
    out_.request = &shortlist_, out_.shortlist = r.shortlist->result();
  }
  if (r.in_parts) {
    layers_ = {s.pace_.layer(), s.pace_.end_of_part(n), s.pace_.stream()};
    ORRERY_TRY(s.enter(Sequence::Stage::chunk));
  }
  begun_ = true;
  if (!s.device_.resident) return ok_status();
  step_.queries = s.device_.resident->queries();
  if (on_resident()) {
    bool must_settle = false;
    ORRERY_TRY(s.device_.resident->prepare(from_, may_settle ? nullptr : &must_settle));
    if (must_settle) {
      begun_ = false, hands_back_ = true;
      return ok_status();
    }
    step_.heads = s.device_.resident->views();
    step_.heads_kv = s.device_.resident->format();
  } else if (r.phase == Phase::prefill) {
    s.device_.resident->invalidate();
  }
  if (on_resident() || r.phase == Phase::prefill) hook_ = s.device_.resident->hook(r.phase, from_, n, goes_on);
  return ok_status();
}

Status SequenceStep::before_attend(KvLayer layer, Ptr<const float> q, int64_t q_stride) {
  const AccountScope scope(sequence_->account_);
  return hook_->before_attend(layer, q, q_stride);
}

Status SequenceStep::before_layer(int32_t layer, Ptr<const float> next_q) {
  const AccountScope scope(sequence_->account_);
  return hook_->before_layer(layer, next_q);
}

void SequenceStep::end(const Turn& turn) {
  Sequence& s = *sequence_;
  const uint32_t n = static_cast<uint32_t>(request_.tokens.size());
  if (request_.in_parts && !failed()) s.pace_.computed(n, layers_.end, forward_us_);
  else if (request_.in_parts) s.pace_.drop();
  if (request_.in_parts && !s.pace_.under_way()) s.stage_ = Sequence::Stage::ready;
  if (s.stage_ == Sequence::Stage::chunk) {
    // The chunk's other layers follow.
  } else if (!failed()) {
    const bool drafts = request_.rows == Rows::draft;
    if (!drafts) s.n_computed_ = from_ + (request_.rows == Rows::guesses ? 1 : n);
    if (s.hidden_ && out_.hidden && !request_.normed) s.hidden_->add(n);
    guarded([&]() -> Status {
      if (s.state_) {
        s.state_->end_step(drafts ? from_ + n : s.n_computed(), request_.rows == Rows::guesses ? n - 1 : 0);
        if (!drafts && s.state_->due()) ORRERY_TRY(s.state_->checkpoint(&turn.backend()));
      }
      if (out_.request) {
        request_.shortlist->arrived();
        const WaitingRows::Owner owner{&s.row_waits_, s.logits_.data(), s.embedding_.data()};
        WaitingRows& rows = s.model_->waiting_rows(turn);
        together_ ? rows.add_row(owner, row_) : rows.add(owner, s.model_->description(), static_cast<int32_t>(n));
      }
      if (on_resident()) s.selects_again_ = false;
      if (on_resident()) return s.device_.resident->commit(from_);
      if (s.device_.resident) s.device_.resident->note_queries(from_, from_ + n);
      return ok_status();
    });
    if (!failed() && request_.n_logits > 0 && !request_.logits) s.logits_at_ = s.n_computed();
    if (!failed() && request_.counts) ++s.stats_.generated_tokens;
  } else {
    if (s.device_.resident && ran_) s.device_.resident->forget_queries(from_, from_ + n);
    s.device_.pages->truncate(from_);
    if (s.state_) s.state_->undo_step(from_);
    if (s.device_.resident) s.device_.resident->truncate(from_);
  }
  (request_.phase == Phase::prefill ? s.stats_.prefill_us : s.stats_.decode_us) += now_us() - start_us_;
  use_.reset();
}

}  // namespace orrery::engine

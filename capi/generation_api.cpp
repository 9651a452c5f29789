// Generations: one answer under way, pulled as events.
#include <array>
#include <optional>
#include <thread>

#include "capi/handles.h"
#include "runtime/engine/answer/prompt.h"
#include "runtime/text/unicode/utf8.h"

static_assert(sizeof(orrery_token_logprob) == sizeof(orrery::engine::TokenLogprob) &&
                  offsetof(orrery_token_logprob, logprob) == offsetof(orrery::engine::TokenLogprob, logprob),
              "events point into the engine's array");

namespace orrery::capi {
namespace {

Result<engine::GenerateOptions> generate_options(const orrery_generate_options* given, const engine::Vocabulary& vocabulary,
                                                 bool last_has_reasoning) {
  orrery_generate_options o;
  ORRERY_TRY(read_options(given, &orrery_generate_options_init, "orrery_generate_options", &o));
  if (o.reserved != 0) return option_error(Code::unsupported, "reserved", "orrery_generate_options.reserved is not zero");
  engine::GenerateOptions out;
  out.max_tokens = o.max_tokens;
  out.ignore_end = o.ignore_end != 0;
  engine::SamplingOptions& s = out.sampling;
  s.temperature = o.temperature;
  s.top_p = o.top_p;
  s.min_p = o.min_p;
  s.top_k = o.top_k;
  s.seed = o.seed;
  s.repetition_penalty = o.repetition_penalty;
  s.frequency_penalty = o.frequency_penalty;
  s.presence_penalty = o.presence_penalty;
  s.penalty_tokens = o.penalty_tokens;
  s.hook = o.logits_hook;
  s.hook_user = o.logits_user;
  s.n_logprobs = o.n_logprobs;
  if (o.n_stop > 0) ORRERY_REQUIRE(o.stop);
  for (uint64_t i = 0; i < o.n_stop; ++i) {
    if (o.stop[i] == nullptr || o.stop[i][0] == '\0')
      return option_error(Code::invalid_argument, "stop", "stop string %llu is NULL or empty", static_cast<unsigned long long>(i));
    if (!text::utf8_valid(o.stop[i])) return about_option("stop", check_utf8(o.stop[i], ("stop string " + std::to_string(i)).c_str()));
    out.stop.emplace_back(o.stop[i]);
  }
  if (o.n_logit_bias > 0) ORRERY_REQUIRE(o.logit_bias);
  for (uint64_t i = 0; i < o.n_logit_bias; ++i) s.bias.push_back({o.logit_bias[i].token, o.logit_bias[i].bias});
  out.continue_last = o.continue_last != 0;
  if (out.continue_last && last_has_reasoning) o.split_reasoning = 1;
  ORRERY_TRY(form_of(o, &out.form));
  if (!out.form.any()) {
    ORRERY_ASSIGN(out.grammar, grammar_of(o, vocabulary));
  }
  out.grammar_tokens = o.grammar_tokens;
  return out;
}

static_assert(static_cast<uint32_t>(engine::EventType::call_end) == ORRERY_EVENT_CALL_END &&
                  static_cast<uint32_t>(engine::Finish::calls) == ORRERY_FINISH_CALLS,
              "events are numbered alike");

orrery_event to_event(const engine::Event& from) {
  orrery_event e;
  orrery_event_init(&e, sizeof e);
  e.type = static_cast<uint32_t>(from.type);
  e.done = from.done;
  e.total = from.total;
  e.text = from.text.data();
  e.text_bytes = from.text.size();
  e.top = reinterpret_cast<const orrery_token_logprob*>(from.top.data());
  e.n_top = static_cast<uint32_t>(from.top.size());
  e.token = from.token;
  e.logprob = from.logprob;
  e.finish_reason = static_cast<uint32_t>(from.finish);
  e.stop_index = from.stop_index;
  e.name = from.name;
  e.call_id = from.call_id;
  e.call = from.call;
  e.complete = from.complete;
  e.prompt_tokens = from.prompt_tokens;
  e.reused_tokens = from.reused_tokens;
  e.generated_tokens = from.generated_tokens;
  e.first_token_us = from.first_token_us;
  e.prefill_us = from.prefill_us;
  e.decode_us = from.decode_us;
  return e;
}

// Makes a generation by f(session), and marks the session as generating.
template <class F>
orrery_status begin(orrery_session* session, const orrery_generate_options* options, orrery_generation** generation, orrery_error* error,
                    F f) noexcept {
  if (generation) *generation = nullptr;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(session);
    ORRERY_REQUIRE(generation);
    ORRERY_TRY(check_process(session->session->model().runtime()));
    const AccountScope scope(session->account);
    auto handle = std::make_unique<orrery_generation>();
    handle->account = session->account;
    handle->session = session->session;
    SessionUse use(session->session.get(), SessionUse::For::changing);
    ORRERY_TRY(use.take_status());
    const engine::Conversation& conversation = session->session->conversation();
    const bool last_has_reasoning = !conversation.messages.empty() && !engine::reasoning_of_last(conversation).empty();
    ORRERY_ASSIGN(const engine::GenerateOptions o, generate_options(options, *session->session->model().vocabulary(), last_has_reasoning));
    ORRERY_ASSIGN(handle->generation, f(session->session.get(), o));
    session->session->calls().set_generating(handle->generation->cancel_flag());
    *generation = handle.release();
    return ok_status();
  });
}

Status next(orrery_generation* g, engine::Event* event) {
  ORRERY_TRY(check_process(g->session->model().runtime()));
  const AccountScope scope(g->account);
  SessionUse use(g->session.get(), SessionUse::For::generating);
  ORRERY_TRY(use.take_status());
  // The session is free again when the answer has ended, in any way.
  struct Release {
    orrery_generation* g;
    bool was_finished;
    ~Release() {
      if (!was_finished && g->generation->finished()) g->session->calls().set_generating(nullptr);
    }
  } const release{g, g->generation->finished()};
  return g->generation->next(event);
}

// Of the generations behind *which, in a ring: the first that needs nothing, else the first that needs something. If that is a step, the
// steps of all others are computed with it. So the ring alone would let a generation between them wait for ever: after each step, one that
// needs other work goes first.
Status next_any(orrery_generation* const* generations, size_t count, size_t* which, engine::Event* event) {
  using Need = engine::Generation::Need;
  const size_t first = *which < count ? *which + 1 : 0;
  const auto needs_other = [&](orrery_generation* g) {
    if (!check_process(g->session->model().runtime()).ok()) return false;
    SessionUse use(g->session.get(), SessionUse::For::generating);
    return use.take_status().ok() && !g->generation->finished() && g->generation->need() == Need::other;
  };
  const bool stepped = first == 0 || !generations[*which] || !needs_other(generations[*which]);
  size_t found = count, busy = count;
  Need need = Need::other;
  for (size_t k = 0; k < count; ++k) {
    const size_t i = (first + k) % count;
    orrery_generation* const g = generations[i];
    if (!g) continue;
    *which = i;
    ORRERY_TRY(check_process(g->session->model().runtime()));
    SessionUse use(g->session.get(), SessionUse::For::generating);
    if (!use.take_status().ok()) {
      busy = busy < count ? busy : i;
      continue;
    }
    if (g->generation->finished()) continue;
    const Need its = g->generation->need();
    const bool goes_first = stepped && its == Need::other && need == Need::step;
    if (found < count && its != Need::nothing && !goes_first) continue;
    found = i, need = its;
    if (its == Need::nothing) break;
  }
  *which = found < count ? found : busy;
  if (found == count) return busy < count ? error(Code::busy, "the session is in use by another call") : ok_status();
  if (need == Need::step) {
    std::array<std::optional<SessionUse>, static_cast<size_t>(kMostTogether)> uses;
    std::array<engine::Generation*, static_cast<size_t>(kMostTogether)> steps;
    size_t n = 0;
    for (size_t k = 0; k < count && n < steps.size(); ++k) {
      orrery_generation* const g = generations[(found + k) % count];
      if (!g || &g->session->model() != &generations[found]->session->model()) continue;
      uses[n].emplace(g->session.get(), SessionUse::For::generating);
      if (uses[n]->take_status().ok() && g->generation->need() == Need::step) steps[n++] = g->generation.get();
      else uses[n].reset();
    }
    if (n > 0) engine::Generation::step_together({steps.data(), n});
  }
  return next(generations[found], event);
}

}  // namespace
}  // namespace orrery::capi

using namespace orrery;
using namespace orrery::capi;

extern "C" {

void orrery_generate_options_init(orrery_generate_options* options, size_t struct_size) {
  orrery_generate_options defaults = {};
  defaults.top_p = 1.0f;
  defaults.repetition_penalty = 1.0f;
  defaults.penalty_tokens = 64;
  init_struct(options, struct_size, defaults);
}

void orrery_event_init(orrery_event* event, size_t struct_size) { init_struct(event, struct_size); }

orrery_status orrery_generate(orrery_session* session, const orrery_generate_options* options, orrery_generation** generation,
                              orrery_error* error) {
  return begin(session, options, generation, error,
               [](engine::Session* s, const engine::GenerateOptions& o) { return engine::Generation::answer(s, o); });
}

orrery_status orrery_generate_tokens(orrery_session* session, const int32_t* tokens, size_t n_tokens,
                                     const orrery_generate_options* options, orrery_generation** generation, orrery_error* error) {
  return begin(session, options, generation, error,
               [&](engine::Session* s, const engine::GenerateOptions& o) -> Result<std::unique_ptr<engine::Generation>> {
                 if (n_tokens > 0) ORRERY_REQUIRE(tokens);
                 return engine::Generation::proceed(s, {tokens, n_tokens}, o);
               });
}

orrery_status orrery_next(orrery_generation* generation, orrery_event* event, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(generation);
    ORRERY_REQUIRE(event);
    ORRERY_TRY(check_struct(nullptr, event->struct_size, sizeof *event, "orrery_event"));
    engine::Event e;
    ORRERY_TRY(next(generation, &e));
    return write_struct(to_event(e), event, "orrery_event");
  });
}

orrery_status orrery_next_any(orrery_generation* const* generations, size_t count, size_t* which, orrery_event* event,
                              orrery_error* error) {
  return guarded(error, [&]() -> Status {
    if (count > 0) ORRERY_REQUIRE(generations);
    ORRERY_REQUIRE(which);
    ORRERY_REQUIRE(event);
    ORRERY_TRY(check_struct(nullptr, event->struct_size, sizeof *event, "orrery_event"));
    engine::Event e;
    ORRERY_TRY(next_any(generations, count, which, &e));
    return *which < count ? write_struct(to_event(e), event, "orrery_event") : ok_status();
  });
}

orrery_status orrery_run(orrery_generation* generation, orrery_event_fn on_event, void* user, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(generation);
    ORRERY_REQUIRE(on_event);
    struct Running {
      orrery_generation* g;
      explicit Running(orrery_generation* generation) : g(generation) { g->running = std::this_thread::get_id(); }
      ~Running() { g->running = std::thread::id(); }
    } const running(generation);
    for (;;) {
      engine::Event e;
      ORRERY_TRY(next(generation, &e));
      const orrery_event event = to_event(e);
      if (on_event(user, &event) != 0) generation->generation->cancel();
      if (e.type == engine::EventType::done) return ok_status();
    }
  });
}

void orrery_cancel(orrery_generation* generation) {
  if (generation) generation->generation->cancel();
}

void orrery_generation_free(orrery_generation* generation) {
  if (generation == nullptr || !generation->session->model().runtime().in_its_process()) return;
  generation->generation->cancel();  // so that a call on another thread ends soon
  engine::Session* session = generation->session.get();
  // In a callback of the generation, or after a longjmp() out of one: an outer call still uses the generation.
  const bool finished = generation->generation->finished();
  if (generation->running == std::this_thread::get_id() || (!finished && session->calls().entered_here())) return;
  if (!finished) {
    while (!session->calls().try_enter()) std::this_thread::yield();
    generation->generation->abandon();
    session->calls().set_generating(nullptr);
    session->calls().leave();
  }
  delete generation;
}

}  // extern "C"

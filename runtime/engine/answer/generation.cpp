#include "runtime/engine/answer/generation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/engine/answer/answer_reader.h"
#include "runtime/engine/answer/constraint.h"
#include "runtime/engine/answer/prompt.h"

namespace orrery::engine {

namespace {

text::Value assistant_message(const std::string& content) {
  text::Map message;
  message.set("role", text::Value::string("assistant"));
  message.set("content", text::Value::string(content));
  return text::Value::map(std::move(message));
}

// Tokens of the context that a prompt should leave for the answer, if old turns may be dropped.
uint32_t answer_room(const Session& session, uint32_t max_tokens) {
  const uint32_t quarter = session.n_context() / 4;
  return max_tokens ? std::min(max_tokens, quarter) : quarter;
}

// The text of the last tokens, control tokens by name.
std::string end_of(const Session& session, Span<const int32_t> tokens) {
  constexpr size_t kLast = 64;
  const size_t n = std::min(kLast, tokens.size());
  return session.model().tokenizer().decode(tokens.subspan(tokens.size() - n, n), true);
}

}  // namespace

Generation::Generation(Session* session, const GenerateOptions& options, text::TextStream stream, bool conversational)
    : session_(session), max_tokens_(options.max_tokens), ignore_end_(options.ignore_end), conversational_(conversational),
      continues_(options.continue_last), sampler_(options.sampling, session->model().description().n_vocab), form_(options.form),
      stream_(std::move(stream)) {
  if (options.grammar) constraint_ = std::make_unique<Constraint>(options.grammar, options.ignore_end);
}

Generation::~Generation() = default;

Result<std::unique_ptr<Generation>> Generation::make(Session* session, const GenerateOptions& options, bool conversational) {
  ORRERY_TRY(options.sampling.validate(session->model().description().n_vocab));
  ORRERY_ASSIGN(text::TextStream stream, text::TextStream::create(options.stop));
  ORRERY_TRY(session->resume());
  std::unique_ptr<Generation> g(new Generation(session, options, std::move(stream), conversational));
  if (options.form.any()) {
    Conversation& c = session->conversation();
    if (!c.renderer) {
      ORRERY_ASSIGN(ChatRenderer renderer, ChatRenderer::make(session->model().vocabulary(), c.choice));
      c.renderer.emplace(std::move(renderer));
    }
    ORRERY_ASSIGN(const text::format::ChatFormat* format, c.renderer->format());
    ORRERY_TRY(g->use_form(conversational ? format->prompt_end : std::string()));
  }
  g->answer_ids_.reserve(std::min<size_t>(options.max_tokens ? options.max_tokens : SIZE_MAX, session->n_context()) + 1);
  g->prefill_before_us_ = session->stats().prefill_us;
  g->decode_before_us_ = session->stats().decode_us;
  return g;
}

Result<std::unique_ptr<Generation>> Generation::answer(Session* session, const GenerateOptions& options) {
  if (session->conversation().messages.empty()) return error(Code::invalid_argument, "the conversation has no message to answer");
  if (options.grammar_tokens > 0)
    return option_error(Code::invalid_argument, "grammar_tokens",
                        "grammar_tokens is %u: the answer to a conversation has no earlier tokens, expected 0", options.grammar_tokens);
  if (options.continue_last) ORRERY_TRY(check_can_continue(session->conversation()));
  return make(session, options, true);
}

Result<std::unique_ptr<Generation>> Generation::proceed(Session* session, Span<const int32_t> tokens, const GenerateOptions& options) {
  const int32_t n_vocab = session->model().description().n_vocab;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= n_vocab)
      return error(Code::invalid_argument, "token %zu is %d, the vocabulary has %d", i, tokens[i], n_vocab);
  if (tokens.size() > session->n_context())
    return memory_error(Code::context_full, tokens.size(), session->n_context(),
                        "the prompt of %zu tokens is longer than the session's context of %u", tokens.size(), session->n_context());
  if (tokens.empty()) return error(Code::invalid_argument, "the prompt has no tokens");
  if (options.continue_last)
    return option_error(Code::invalid_argument, "continue_last", "continue_last is 1: a continuation of tokens has no last message");
  if (options.grammar_tokens > tokens.size() || (options.grammar_tokens > 0 && !options.grammar && !options.form.any()))
    return option_error(Code::invalid_argument, "grammar_tokens", "grammar_tokens is %u, of %zu tokens and %s", options.grammar_tokens,
                        tokens.size(), options.grammar || options.form.any() ? "a grammar" : "no grammar");
  ORRERY_ASSIGN(std::unique_ptr<Generation> g, make(session, options, false));
  const size_t n_given = tokens.size() - options.grammar_tokens;
  if (g->reader_) ORRERY_TRY(g->use_form(end_of(*session, tokens.subspan(0, n_given))));
  for (size_t i = n_given; i < tokens.size(); ++i) ORRERY_TRY(g->read_token(tokens[i], &g->stream_));
  g->prompt_.assign(tokens.begin(), tokens.end());
  return g;
}

// A token that the answer has already. stream: what its text goes through.
Status Generation::read_token(int32_t token, text::TextStream* stream) {
  if (constraint_) ORRERY_TRY(constraint_->accept(token));
  if (reader_) reader_->feed(session_->model().tokenizer().token_bytes(token), stream);
  return ok_status();
}

// An answer that goes on: its grammar and its reader pass over what stands already, in any tokens that spell it. Its events were given
// before.
Status Generation::read_answer(const std::vector<AnswerPart>& parts) {
  if (!reader_) answer_ = content_of_last(session_->conversation());
  if (!constraint_) return ok_status();
  const text::Tokenizer& tokenizer = session_->model().tokenizer();
  text::TextStream known_text;  // without stop strings
  for (const AnswerPart& part : parts) {
    if (!reader_ && part.is_mark)
      return option_error(
          Code::invalid_argument, "continue_last",
          "continue_last under a grammar: the answer has reasoning, or the prompt opens it; split_reasoning tells it apart");
    std::vector<text::TokenSpan> control;
    if (part.is_mark) tokenizer.find_control(part.text, &control);
    for (size_t at = 0; at < part.text.size();) {
      const auto here = std::find_if(control.begin(), control.end(), [at](const text::TokenSpan& span) { return span.begin == at; });
      const int32_t token = here != control.end() ? here->id : constraint_->longest_token(std::string_view(part.text).substr(at));
      if (token < 0) return option_error(Code::invalid_argument, "continue_last", "continue_last: the answer has a byte that is no token");
      if (Status read = read_token(token, &known_text); !read.ok()) {
        if (read.code() == Code::invalid_argument)
          read.detail().message = "continue_last: the answer so far does not fit its form: " + read.detail().message;
        return read;
      }
      at += tokenizer.token_bytes(token).size();
    }
  }
  Event known;
  while (reader_ && reader_->next(&known))
    if (known.type == EventType::text) answer_ += known.text;
  return ok_status();
}

// The answer's rules and grammar behind a prompt with this end.
Status Generation::use_form(std::string_view prompt_end) {
  const ChatRenderer& renderer = *session_->conversation().renderer;
  ORRERY_ASSIGN(const text::format::ChatFormat* format, renderer.format());
  const text::format::Opening now = text::format::opening(format->reasoning, prompt_end);
  if (reader_ && now == opening_) return ok_status();
  ORRERY_ASSIGN(std::shared_ptr<const AnswerForm> form, renderer.form(form_, now));
  opening_ = now;
  constraint_ = std::make_unique<Constraint>(form->grammar, ignore_end_);
  reader_ = std::make_unique<AnswerReader>(std::move(form), 100 * session_->conversation().messages.size(), form_.max_reasoning_tokens);
  return ok_status();
}

// Makes the prompt. The session does not change before the prompt is complete.
Status Generation::prepare_step(Event* event) {
  Prompt prompt;
  prompt.tokens = std::move(prompt_);  // the tokens given to proceed()
  if (conversational_ && !cancelled()) {
    auto made = conversation_prompt(session_, answer_room(*session_, max_tokens_), &cancel_, continues_);
    if (made.ok()) prompt = std::move(made).value();
    else if (made.status().code() != Code::cancelled) return made.take_status();
  }
  if (cancelled()) {
    finish(Finish::cancelled, event);
    return ok_status();
  }
  if (prompt.tokens.empty()) return error(Code::invalid_argument, "the chat template made a prompt without tokens");
  const Span<const int32_t> held = session_->tokens();
  if (held.size() > prompt.tokens.size() || !std::equal(held.begin(), held.end(), prompt.tokens.begin())) {
    // The prompt cuts the session's tokens: that needs pages which a loaded file is still read for.
    Status there = session_->sequence().finish_pages(&cancel_);
    if (there.code() == Code::cancelled) {
      finish(Finish::cancelled, event);
      return ok_status();
    }
    ORRERY_TRY(std::move(there));
  }
  if (conversational_) {
    Conversation& conversation = session_->conversation();
    if (conversation.messages.size() == conversation.messages.capacity())  // room for the answer, because end() must not fail
      conversation.messages.reserve(2 * conversation.messages.size());
    conversation.n_dropped = prompt.n_dropped;
    if (reader_) ORRERY_TRY(use_form(continues_ ? prompt.end : end_of(*session_, {prompt.tokens.data(), prompt.tokens.size()})));
    if (continues_) ORRERY_TRY(read_answer(prompt.answer));
  }
  ORRERY_TRY(use_prompt(std::move(prompt.tokens)));
  prompt_tokens_ = prompt_.size();
  reused_tokens_ = first_;
  session_->stats().reused_tokens += first_;
  return tell_prompt(event);
}

// The session keeps the prefix of the prompt that it holds, and takes the pages that follow from earlier prompts and from the folder. The other tokens will be
// computed.
Status Generation::use_prompt(std::vector<int32_t> prompt) {
  prompt_ = std::move(prompt);
  session_->sequence().reuse_prefix(prompt_);
  Status found = session_->find_prefix(prompt_, &cancel_);
  if (found.ok()) found = session_->find_in_folder(prompt_, &cancel_);
  if (!found.ok() && found.code() != Code::cancelled) return found;  // the next step sees the flag
  first_ = session_->n_computed();
  stage_ = Stage::prompt;
  return ok_status();
}

// Fills the event before the first chunk. If no token is to be computed, it is the last progress event, too.
Status Generation::tell_prompt(Event* event) {
  if (first_ == prompt_.size()) return prompt_step(event);
  event->type = EventType::progress;
  event->total = prompt_.size() - first_;
  return ok_status();
}

Status Generation::next(Event* event) {
  *event = Event();
  if (start_us_ == 0) start_us_ = now_us();
  try {
    Status status = advance(event);
    if (!status.ok()) end(Finish::cancelled);
    return status;
  } catch (...) {
    end(Finish::cancelled);
    throw;
  }
}

Status Generation::advance(Event* event) {
  switch (stage_) {
    case Stage::prepare: return prepare_step(event);
    case Stage::prompt: return prompt_step(event);
    case Stage::sample: return sample_step(event);
    case Stage::text:  // the token was reported; now its text
      if (give_piece(event)) return ok_status();
      stage_ = Stage::sample;
      if (chunk_.empty()) return sample_step(event);
      event->type = EventType::text;
      event->text = chunk_;
      return ok_status();
    case Stage::finished: finish(finish_, event); return ok_status();
  }
  return ok_status();
}

// The next event of what the reader has read.
bool Generation::give_piece(Event* event) {
  if (!reader_ || !reader_->next(event)) return false;
  if (event->type == EventType::text) answer_ += event->text;
  return true;
}

Status Generation::prompt_step(Event* event) {
  if (cancelled()) {
    finish(Finish::cancelled, event);
    return ok_status();
  }
  const uint32_t held = session_->n_computed();
  const uint32_t total = static_cast<uint32_t>(prompt_.size());
  if (held < total) {
    const uint32_t n = session_->sequence().next_chunk(total - held);
    const Span<const int32_t> chunk(prompt_.data() + held, n);
    const bool last = held + n == total;
    auto part = session_->sequence().prefill_part(chunk, &cancel_, last, nullptr, last ? ask(prompt_) : nullptr);
    if (!part.ok()) {
      Status failed = part.take_status();
      if (failed.code() != Code::cancelled) return failed;
      finish(Finish::cancelled, event);
      return ok_status();
    }
  } else {
    Status status = session_->sequence().refresh_logits(ask(prompt_), &cancel_);
    if (status.code() == Code::cancelled) {
      finish(Finish::cancelled, event);
      return ok_status();
    }
    ORRERY_TRY(std::move(status));
  }
  event->type = EventType::progress;
  event->done = session_->n_computed() + session_->sequence().part_done() - first_;
  event->total = total - first_;
  if (session_->n_computed() == total) stage_ = Stage::sample;
  return ok_status();
}

Generation::Need Generation::need() const {
  if (stage_ == Stage::finished || (stage_ == Stage::text && (!chunk_.empty() || (reader_ && reader_->has_events())))) return Need::nothing;
  if (stage_ == Stage::prepare || stage_ == Stage::prompt) return Need::other;
  if (pending_ != Finish::none || cancelled() || (max_tokens_ > 0 && generated_ >= max_tokens_)) return Need::nothing;  // it ends
  if (constraint_ && constraint_->must_end()) return Need::nothing;
  if (step_thrown_ || !step_status_.ok() || session_->tokens().size() == session_->n_computed()) return Need::nothing;
  if (session_->tokens().size() > session_->n_context()) return Need::other;
  return session_->decoder().decodes_together() ? Need::step : Need::other;
}

void Generation::step_together(Span<Generation* const> generations) {
  std::array<Decoder::Call, static_cast<size_t>(kMostTogether)> calls;
  for (size_t i = 0; i < generations.size(); ++i) {
    Generation& g = *generations[i];
    calls[i].decoder = &g.session_->decoder(), calls[i].shortlist = g.ask(g.session_->tokens()), calls[i].cancel = &g.cancel_;
  }
  Decoder::decode_together({calls.data(), generations.size()});
  for (size_t i = 0; i < generations.size(); ++i)
    generations[i]->step_status_ = std::move(calls[i].status), generations[i]->step_thrown_ = calls[i].thrown;
}

// What the session's step asks of the answer: tokens of a draft, by the sampler and under the grammar.
class Generation::BySampler final : public Drafter {
 public:
  explicit BySampler(Generation* g)
      : sampler_(g->sampler_), constraint_(g->constraint_.get()), cancel_(g->cancel_), n_tokens_(g->session_->tokens().size()),
        n_accepted_(constraint_ ? constraint_->n_tokens() : 0) {
    sampler_.begin_draft();
  }
  ~BySampler() {
    sampler_.end_draft();
    if (constraint_) constraint_->rewind(n_accepted_);
  }
  int32_t draft(Span<const float> logits, Span<const int32_t> tokens) override {
    return follow(tokens.subspan(n_tokens_, tokens.size() - n_tokens_)) ? sampler_.draft(logits, tokens) : -1;
  }
  int32_t likeliest(Span<const float> logits, Span<const int32_t> guesses) override {
    return follow(guesses) ? sampler_.likeliest(logits) : -1;
  }
  size_t n_allowed(Span<const int32_t> guesses) override { return constraint_ ? constraint_->n_allowed(guesses) : guesses.size(); }
  size_t forced(int32_t* tokens, size_t most) override { return constraint_ ? constraint_->forced(tokens, most) : 0; }

 private:
  // The grammar stands behind `drafted`, which have grown by at most one token. False: nothing but an end may follow.
  bool follow(Span<const int32_t> drafted) {
    if (!constraint_) return true;
    const size_t n_known = constraint_->n_tokens() - n_accepted_;
    if (drafted.size() > n_known && !constraint_->draft(drafted[drafted.size() - 1])) return false;
    if (constraint_->must_end() || !constraint_->prepare(&cancel_).ok()) return false;
    sampler_.set_mask(constraint_->mask());
    return true;
  }
  Sampler& sampler_;
  Constraint* const constraint_;
  const std::atomic<bool>& cancel_;
  const size_t n_tokens_, n_accepted_;
};

// Computes the last chosen token, which gives the logits of the next one.
Status Generation::next_token() {
  if (step_thrown_) std::rethrow_exception(std::exchange(step_thrown_, nullptr));
  ORRERY_TRY(std::exchange(step_status_, Status()));
  if (session_->tokens().size() == session_->n_computed()) return ok_status();
  // A guess beyond the answer's last token is never used.
  const uint64_t left = max_tokens_ > 0 ? max_tokens_ - generated_ : session_->n_context();
  BySampler drafter(this);
  return session_->decode(ask(session_->tokens()), &cancel_, static_cast<uint32_t>(left - 1), &drafter);
}

// Reasoning that has reached its limit goes on with the mark of its end, token by token.
void Generation::force_end_of_reasoning() {
  if (!reader_) return;
  const std::string_view rest = reader_->end_of_reasoning();
  int32_t token = -1;
  if (!rest.empty()) {
    std::vector<text::TokenSpan> control;
    session_->model().tokenizer().find_control(rest, &control);
    token = !control.empty() && control[0].begin == 0 ? control[0].id : constraint_->longest_token(rest);
  }
  constraint_->force(token);
}

// The request for the choice behind `tokens`, under the grammar. Where the mask cannot be made, choose() says why.
Shortlist* Generation::ask(Span<const int32_t> tokens) {
  if (constraint_) {
    force_end_of_reasoning();
    if (!constraint_->prepare(&cancel_).ok()) return nullptr;
    sampler_.set_mask(constraint_->mask());
  }
  return sampler_.ask(tokens);
}

// Chooses a token by the step's shortlist, or else by all logits.
Result<Choice> Generation::choose_allowed() {
  Choice choice;
  Sampler::Outcome outcome = sampler_.choose(session_->tokens(), &choice);
  while (outcome == Sampler::Outcome::wants_more) {
    ORRERY_ASSIGN(const bool there, session_->sequence().fetch_more(sampler_.shortlist(), &cancel_));
    outcome = there ? sampler_.choose(session_->tokens(), &choice) : Sampler::Outcome::open;
  }
  if (outcome == Sampler::Outcome::chosen) return choice;
  ORRERY_TRY(session_->sequence().fetch_logits(&cancel_));
  return sampler_.choose(session_->logits(), session_->tokens());
}

Result<Choice> Generation::choose() {
  if (!constraint_) return choose_allowed();
  force_end_of_reasoning();
  ORRERY_TRY(constraint_->prepare(&cancel_));
  if (constraint_->must_end()) return Choice();
  sampler_.set_mask(constraint_->mask());
  ORRERY_ASSIGN(const Choice choice, choose_allowed());
  return choose_in_time(choice);
}

// A chosen token that leaves no room to complete the answer is chosen again, among those that do.
Result<Choice> Generation::choose_in_time(Choice choice) {
  uint64_t left = UINT64_MAX;  // tokens that may follow this one
  if (max_tokens_ > 0) left = max_tokens_ - generated_ - 1;
  const bool may_drop = conversational_ && session_->options().overflow == Overflow::drop_oldest;
  if (!may_drop) left = std::min<uint64_t>(left, session_->n_context() - session_->tokens().size());
  ORRERY_ASSIGN(const bool narrowed,
                constraint_->close_in_time(choice.token, static_cast<uint32_t>(std::min<uint64_t>(left, UINT32_MAX)), &cancel_));
  if (!narrowed) return choice;
  sampler_.set_mask(constraint_->mask());
  ORRERY_TRY(session_->sequence().fetch_logits(&cancel_));
  Result<Choice> again = sampler_.choose(session_->logits(), session_->tokens());
  if (!again.ok() && again.status().code() == Code::invalid_argument) return choice;  // the caller's bias bans them all
  return again;
}

// The context is full in the middle of an answer: drops the oldest turns and computes the other tokens again.
Status Generation::make_room(Event* event) {
  const uint32_t room = static_cast<uint32_t>(answer_ids_.size()) + answer_room(*session_, 0);
  ORRERY_ASSIGN(Prompt made, conversation_prompt(session_, room, &cancel_, continues_));
  std::vector<int32_t>& prompt = made.tokens;
  prompt.insert(prompt.end(), answer_ids_.begin(), answer_ids_.end());
  if (prompt.size() >= session_->n_context())
    return memory_error(Code::context_full, prompt.size(), session_->n_context(), "the last turn fills the context");
  session_->conversation().n_dropped = made.n_dropped;
  ORRERY_TRY(use_prompt(std::move(prompt)));
  return tell_prompt(event);
}

Status Generation::sample_step(Event* event) {
  if (pending_ == Finish::none && cancelled()) pending_ = Finish::cancelled;
  if (pending_ == Finish::none && constraint_ && constraint_->must_end()) pending_ = Finish::end;
  if (pending_ == Finish::none && max_tokens_ > 0 && generated_ >= max_tokens_) pending_ = Finish::length;
  if (pending_ == Finish::none && session_->tokens().size() > session_->n_context()) {
    const bool may_drop = conversational_ && session_->options().overflow == Overflow::drop_oldest;
    Status room = may_drop ? make_room(event) : error(Code::context_full, "full");
    if (room.ok()) return room;
    if (room.code() != Code::context_full && room.code() != Code::cancelled) return room;
    pending_ = room.code() == Code::cancelled ? Finish::cancelled : Finish::context;
  }
  if (pending_ == Finish::none) {
    Status computed = next_token();
    if (computed.code() == Code::cancelled) pending_ = Finish::cancelled;
    else ORRERY_TRY(std::move(computed));
  }
  if (pending_ == Finish::none) {
    auto choice = choose();
    if (!choice.ok()) {
      Status failed = choice.take_status();
      if (failed.code() != Code::cancelled) return failed;
      pending_ = Finish::cancelled;
    } else if (choice->token < 0) {
      pending_ = Finish::end;  // the grammar allows nothing else
    } else if (!ignore_end_ && session_->model().tokenizer().is_end_of_generation(choice->token)) {
      pending_ = Finish::end;
    } else {
      const text::Tokenizer& tokenizer = session_->model().tokenizer();
      session_->push_generated(choice->token);
      answer_ids_.push_back(choice->token);
      if (constraint_) ORRERY_TRY(constraint_->accept(choice->token));
      if (++generated_ == 1) first_token_us_ = now_us() - start_us_;
      event->type = EventType::token;
      event->token = choice->token;
      event->logprob = choice->logprob;
      event->top = choice->top;
      event->text = tokenizer.token_bytes(choice->token);
      chunk_.clear();
      stage_ = Stage::text;
      if (reader_) {
        if (reader_->feed(event->text, &stream_)) pending_ = Finish::stop;
        return ok_status();
      }
      const std::string_view shown = tokenizer.is_special(choice->token) ? std::string_view() : event->text;
      if (stream_.feed(shown, &chunk_)) pending_ = Finish::stop;
      answer_ += chunk_;
      return ok_status();
    }
  }
  // The end: first the withheld text, then the reason.
  if (!flushed_) {
    flushed_ = true;
    if (reader_) {
      if (reader_->finish(&stream_)) pending_ = Finish::stop;
      if (pending_ == Finish::end && reader_->calls_are_whole()) pending_ = Finish::calls;
      stage_ = Stage::text;
      if (give_piece(event)) return ok_status();
    }
    chunk_.clear();
    if (!reader_ && stream_.finish(&chunk_)) pending_ = Finish::stop;
    if (!chunk_.empty()) {
      answer_ += chunk_;
      event->type = EventType::text;
      event->text = chunk_;
      return ok_status();
    }
  }
  finish(pending_, event);
  return ok_status();
}

void Generation::finish(Finish reason, Event* event) {
  session_->sequence().leave_steps();
  if (stage_ != Stage::finished && reason != Finish::cancelled) session_->keep_prefix();
  end(reason);
  session_->model().runtime().log_trace();
  event->type = EventType::done;
  event->finish = finish_;
  event->stop_index = finish_ == Finish::stop ? static_cast<uint32_t>(stream_.stop_index()) : 0;
  event->complete = constraint_ && finish_ != Finish::stop && constraint_->complete();
  event->prompt_tokens = prompt_tokens_;
  event->reused_tokens = reused_tokens_;
  event->generated_tokens = generated_;
  event->first_token_us = first_token_us_;
  event->prefill_us = prefill_us_;
  event->decode_us = decode_us_;
}

void Generation::end(Finish reason) noexcept {
  if (stage_ == Stage::finished) return;
  stage_ = Stage::finished;
  finish_ = reason;
  session_->sequence().leave_steps();
  session_->sequence().drop_ahead();
  session_->sequence().drop_part();
  prefill_us_ = session_->stats().prefill_us - prefill_before_us_;
  decode_us_ = session_->stats().decode_us - decode_before_us_;
  if (!conversational_ || (generated_ == 0 && (continues_ || reason != Finish::end))) return;
  try {
    if (reader_) {
      if (!flushed_) reader_->finish(&stream_);
      Event rest;
      while (reader_->next(&rest))
        if (rest.type == EventType::text) answer_ += rest.text;
      add_message(reader_->message(answer_));
      return;
    }
    if (!flushed_) {
      chunk_.clear();
      stream_.finish(&chunk_);
      answer_ += chunk_;
    }
    add_message(assistant_message(answer_));
  } catch (...) {
    // Out of memory: the conversation stays without the answer, the session with its tokens.
  }
}

// The answer's message, or the last one as it has become: with the fields that an answer does not have.
void Generation::add_message(text::Value message) {
  std::vector<text::Value>& messages = session_->conversation().messages;
  if (!continues_) return messages.push_back(std::move(message));
  text::Map whole = messages.back().as_map();
  for (const text::Map::Entry& entry : message.as_map().entries()) whole.set(entry.first.as_string(), entry.second);
  messages.back() = text::Value::map(std::move(whole));
}

void Generation::abandon() noexcept { end(Finish::cancelled); }

}  // namespace orrery::engine

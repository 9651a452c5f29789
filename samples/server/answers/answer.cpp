// See answer.h.
#include "answers/answer.h"

#include <cstdio>
#include <ctime>
#include <random>
#include <utility>

namespace orrery::server {
namespace {

std::string random_id() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  char text[40];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random()));
  return text;
}

}  // namespace

Answer::Answer(const Request& request, Outbox* outbox, const orrery_vocab* vocab, const std::string& model)
    : outbox_(outbox), vocab_(vocab), stream_(request.stream), include_usage_(request.include_usage), logprobs_wanted_(request.logprobs) {
  heading_.chat = request.chat;
  heading_.id = (request.chat ? "chatcmpl-" : "cmpl-") + random_id();
  heading_.model = model;
  heading_.created = static_cast<int64_t>(std::time(nullptr));
}

// The first event comes when the prompt is made: the request is good, and its response can begin.
void Answer::begin() {
  if (begun_) return;
  begun_ = true;
  if (!stream_) return;
  outbox_->begin(200, true);
  if (heading_.chat) send(chat_chunk(heading_, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));
}

void Answer::event(const orrery_event& e) {
  begin();
  const std::string text(e.text ? e.text : "", e.text_bytes);
  switch (e.type) {
    case ORRERY_EVENT_PROGRESS:
      // A comment of the stream: clients skip it, and a connection with a long prompt stays alive.
      if (stream_ && e.done > 0) outbox_->append(": prompt " + std::to_string(e.done) + "/" + std::to_string(e.total) + "\n\n");
      break;
    case ORRERY_EVENT_TOKEN:
      ++n_pending_;
      if (logprobs_wanted_ && !(orrery_token_flags(vocab_, e.token) & ORRERY_TOKEN_END_OF_GENERATION))
        pending_.push_back(token_json(vocab_, e));
      break;
    case ORRERY_EVENT_TEXT: add_text(text); break;
    case ORRERY_EVENT_REASONING:
      reasoning_tokens_ += n_pending_;
      drop_pending();
      if (stream_) send(chat_chunk(heading_, {{"reasoning_content", text}}, nullptr, nullptr));
      else whole_.reasoning += text;
      break;
    case ORRERY_EVENT_CALL:
    case ORRERY_EVENT_ARGUMENTS:
    case ORRERY_EVENT_CALL_END:
      drop_pending();
      add_call(e);
      break;
    default:  // of a newer library
      break;
  }
}

void Answer::add_text(const std::string& text) {
  if (!stream_) {
    whole_.content += text;
    whole_.logprobs.insert(whole_.logprobs.end(), std::make_move_iterator(pending_.begin()), std::make_move_iterator(pending_.end()));
  } else if (heading_.chat) {
    send(chat_chunk(heading_, {{"content", text}}, logprobs(), nullptr));
  } else {
    send(completion_chunk(heading_, text, logprobs(), offset_, nullptr));
  }
  offset_ += characters(text);
  drop_pending();
}

// A call's id may come after its arguments. Clients want it in the first chunk, so such a call is sent whole, at its end.
void Answer::add_call(const orrery_event& e) {
  const Call part = {e.call_id ? e.call_id : "", e.name ? e.name : "", std::string(e.text ? e.text : "", e.text_bytes)};
  if (!stream_) {
    if (e.type == ORRERY_EVENT_CALL_END) whole_.calls.push_back(part);
    return;
  }
  if (e.type == ORRERY_EVENT_CALL) {
    call_sent_ = !part.id.empty();
    if (call_sent_) send(chat_chunk(heading_, call_delta(e.call, {part.id, part.name, ""}, true), nullptr, nullptr));
  } else if (e.type == ORRERY_EVENT_ARGUMENTS) {
    if (call_sent_) send(chat_chunk(heading_, call_delta(e.call, part, false), nullptr, nullptr));
  } else if (!call_sent_) {
    send(chat_chunk(heading_, call_delta(e.call, part, true), nullptr, nullptr));
  }
}

void Answer::done(const orrery_event& e) {
  begin();
  const Usage usage = {e.prompt_tokens, e.reused_tokens, e.generated_tokens, reasoning_tokens_};
  const char* finish = finish_name(e.finish_reason);
  if (stream_) {
    if (heading_.chat) send(chat_chunk(heading_, Json::object(), nullptr, finish));
    else send(completion_chunk(heading_, "", nullptr, offset_, finish));
    if (include_usage_) send(usage_chunk(heading_, usage));
    outbox_->append("data: [DONE]\n\n");
  } else {
    outbox_->append(text_of(whole_body(heading_, whole_, logprobs_wanted_, finish, usage)));
    outbox_->begin(200, false);
  }
}

void Answer::fail(const Refusal& refusal) {
  if (stream_ && begun_) {
    send(refusal.json());
  } else {
    outbox_->append(text_of(refusal.json()));
    outbox_->begin(refusal.status, false);
  }
}

}  // namespace orrery::server

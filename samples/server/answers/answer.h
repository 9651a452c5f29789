// One answer: the library's events in, OpenAI's JSON out. A streamed answer sends each event as a chunk; else all events become one body.
#pragma once

#include <string>
#include <vector>

#include "wire/bodies.h"
#include "answers/outbox.h"
#include "wire/request.h"

namespace orrery::server {

class Answer {
 public:
  Answer(const Request& request, Outbox* outbox, const orrery_vocab* vocab, const std::string& model);

  // Every event but DONE.
  void event(const orrery_event& event);
  // DONE of an answer that was not cancelled.
  void done(const orrery_event& event);
  // The answer ends here. If nothing has been sent, the refusal's status is sent.
  void fail(const Refusal& refusal);

 private:
  void begin();
  void add_text(const std::string& text);
  void add_call(const orrery_event& event);
  void send(const Json& json) { outbox_->append(server_sent(json)); }
  const std::vector<Json>* logprobs() const { return logprobs_wanted_ ? &pending_ : nullptr; }
  void drop_pending() { pending_.clear(), n_pending_ = 0; }

  Outbox* outbox_;
  const orrery_vocab* vocab_;
  Heading heading_;
  bool stream_, include_usage_, logprobs_wanted_;
  bool begun_ = false;
  // Tokens since the last text, reasoning or call: of the content, if text comes next.
  std::vector<Json> pending_;
  uint64_t n_pending_ = 0;
  uint64_t offset_ = 0;  // characters of content so far
  uint64_t reasoning_tokens_ = 0;
  bool call_sent_ = false;  // the beginning of the call under way
  Piece whole_;             // of an answer that is not streamed
};

}  // namespace orrery::server

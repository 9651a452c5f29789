// An answer with tools or reasoning on its way out: token bytes enter, events leave, and at the end the message that the conversation
// keeps.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/answer/generation.h"
#include "runtime/engine/shared/answer_form.h"
#include "runtime/text/format/answer_parser.h"
#include "runtime/text/streaming/stream.h"

namespace orrery::engine {

class AnswerReader {
 public:
  // first_id: the number of the first id that is made for a call. max_reasoning_tokens: 0: no limit.
  AnswerReader(std::shared_ptr<const AnswerForm> form, uint64_t first_id, uint32_t max_reasoning_tokens)
      : form_(std::move(form)), parser_(form_->rules), first_id_(first_id), max_reasoning_tokens_(max_reasoning_tokens) {}

  // Takes the bytes of one token. The text goes through `stream`. Returns true if that has found a stop string.
  bool feed(std::string_view bytes, text::TextStream* stream);
  // Ends the answer. Returns true if the withheld text has a stop string.
  bool finish(text::TextStream* stream);
  // Sets *event to the next event of the bytes that have been fed; its texts stay until the next call. Returns false if no event is left.
  bool next(Event* event);
  bool has_events() const { return n_given_ < events_.size(); }
  size_t n_calls() const { return parser_.calls().size(); }
  bool calls_are_whole() const { return n_calls() > 0 && parser_.calls().back().whole; }
  // The reasoning has reached its limit: these bytes end it. Empty: it has not.
  std::string_view end_of_reasoning() const {
    const bool over = max_reasoning_tokens_ > 0 && n_reasoning_tokens_ >= max_reasoning_tokens_ && parser_.in_reasoning();
    return over ? parser_.rest_of_reasoning() : std::string_view();
  }
  // {"role", "content", "reasoning_content", "tool_calls"}. `content`: the text that was shown.
  text::Value message(const std::string& content) const;

 private:
  struct Queued {
    EventType type;
    std::string text, name, id;
    uint32_t call;
  };
  bool take(std::vector<text::format::Piece>* pieces, text::TextStream* stream);
  void give(EventType type, std::string text, size_t call);
  std::string id_of(size_t call) const;

  const std::shared_ptr<const AnswerForm> form_;
  text::format::AnswerParser parser_;
  const uint64_t first_id_;
  const uint32_t max_reasoning_tokens_;
  uint32_t n_reasoning_tokens_ = 0;
  text::TextStream whole_;  // whole characters of reasoning and arguments
  std::vector<text::format::Piece> pieces_;
  std::vector<Queued> events_;
  size_t n_given_ = 0;
  bool finished_ = false, stopped_ = false;
};

}  // namespace orrery::engine

// One answer under way: the prompt, its chunks, then tokens, as events that the caller pulls. The first next() makes the prompt and
// computes nothing. Each later call computes at most one chunk of prefill or one token. The caller owns the session, which outlives the
// generation.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/answer/sampler.h"
#include "runtime/engine/session/session.h"
#include "runtime/engine/shared/answer_form.h"
#include "runtime/text/streaming/stream.h"

namespace orrery::text::grammar {
class Grammar;
}

namespace orrery::engine {

struct AnswerPart;
class AnswerReader;
class Constraint;

struct GenerateOptions {
  uint32_t max_tokens = 0;  // 0: until the context is full
  SamplingOptions sampling;
  std::vector<std::string> stop;
  bool ignore_end = false;
  std::shared_ptr<text::grammar::Grammar> grammar;  // of the model's vocabulary; null: none
  FormRequest form;             // tools and reasoning. With any(), `grammar` is null and the content's grammar stands here
  bool continue_last = false;   // of answer(): the conversation's last message is an answer that goes on
  uint32_t grammar_tokens = 0;  // of proceed(): number of the last tokens that begin the answer; the grammar reads them first
};

enum class EventType : uint32_t { progress = 1, token = 2, text = 3, done = 4, reasoning = 5, call = 6, arguments = 7, call_end = 8 };
enum class Finish : uint32_t { none = 0, end = 1, stop = 2, length = 3, context = 4, cancelled = 5, calls = 6 };

struct Event {
  EventType type = EventType::progress;
  uint64_t done = 0, total = 0;                    // progress
  std::string_view text;                           // text: whole characters; token: raw bytes. Valid until the next call
  const char *name = nullptr, *call_id = nullptr;  // of a call; valid until the next call
  uint32_t call = 0;                               // its number in the answer
  int32_t token = -1;
  float logprob = 0.0f;
  Span<const TokenLogprob> top;  // valid until the next call
  Finish finish = Finish::none;
  uint32_t stop_index = 0;
  bool complete = false;  // done: the text is whole by the grammar
  uint64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  uint64_t first_token_us = 0, prefill_us = 0, decode_us = 0;
};

class Generation {
 public:
  // Answers the session's conversation, and adds the answer to it at the end. Checks the options only: errors of the conversation or its
  // template come from the first next().
  static Result<std::unique_ptr<Generation>> answer(Session* session, const GenerateOptions& options);
  // Continues these tokens. The conversation does not change.
  static Result<std::unique_ptr<Generation>> proceed(Session* session, Span<const int32_t> tokens, const GenerateOptions& options);

  ~Generation();

  // The event's text and spans stay valid until the next call. After an error or a std::bad_alloc the generation is finished, and the
  // session keeps the tokens that it had computed.
  Status next(Event* event);
  // What the coming next() computes: nothing; a decode step that others can share; something else.
  enum class Need : uint8_t { nothing, step, other };
  Need need() const;
  // Computes the steps of at most kMostTogether generations that need a step, at once. Their sessions share a model. Then they need
  // nothing, and an error comes from the generation's own next().
  static void step_together(Span<Generation* const> generations);
  void cancel() {  // from any thread
    cancel_.store(true, std::memory_order_relaxed);
    session_->sequence().stays_away();
  }
  std::atomic<bool>* cancel_flag() { return &cancel_; }  // cancel() sets it
  bool finished() const { return stage_ == Stage::finished; }
  // Ends the generation: the text so far stays in the conversation. Does nothing if it is finished.
  void abandon() noexcept;

 private:
  enum class Stage : uint8_t { prepare, prompt, sample, text, finished };

  Generation(Session* session, const GenerateOptions& options, text::TextStream stream, bool conversational);
  static Result<std::unique_ptr<Generation>> make(Session* session, const GenerateOptions& options, bool conversational);
  Status advance(Event* event);
  Status prepare_step(Event* event);
  Status use_prompt(std::vector<int32_t> prompt);
  Status tell_prompt(Event* event);
  Status prompt_step(Event* event);
  Status sample_step(Event* event);
  class BySampler;
  bool give_piece(Event* event);
  Status use_form(std::string_view prompt_end);
  Status read_answer(const std::vector<AnswerPart>& parts);
  Status read_token(int32_t token, text::TextStream* stream);
  void force_end_of_reasoning();
  Status next_token();
  Shortlist* ask(Span<const int32_t> tokens);
  Result<Choice> choose();
  Result<Choice> choose_allowed();
  Result<Choice> choose_in_time(Choice choice);
  Status make_room(Event* event);
  void finish(Finish reason, Event* event);
  void add_message(text::Value message);
  void end(Finish reason) noexcept;
  bool cancelled() const { return cancel_.load(std::memory_order_relaxed); }

  Session* session_;
  uint32_t max_tokens_;
  bool ignore_end_;
  bool conversational_;  // made by answer(), not by proceed()
  bool continues_;       // the answer is the conversation's last message
  Sampler sampler_;
  std::unique_ptr<Constraint> constraint_;                       // the answer's grammar; null: none
  std::unique_ptr<AnswerReader> reader_;                         // of tools and reasoning; null: the answer is text
  FormRequest form_;                                             // what reader_ is made of
  text::format::Opening opening_ = text::format::Opening::none;  // that reader_ was made for
  text::TextStream stream_;
  std::atomic<bool> cancel_{false};

  Stage stage_ = Stage::prepare;
  Status step_status_;  // of step_together()
  std::exception_ptr step_thrown_;
  std::vector<int32_t> prompt_;      // the whole sequence
  uint32_t first_ = 0;               // its tokens that the session already had
  std::vector<int32_t> answer_ids_;  // the answer's tokens, for a prompt that is made again (make_room)
  std::string answer_;               // the text so far
  std::string chunk_;                // the text of the current event
  Finish pending_ = Finish::none;    // reported after the withheld text
  bool flushed_ = false;             // whether the withheld text has been reported
  Finish finish_ = Finish::none;
  uint64_t prompt_tokens_ = 0, reused_tokens_ = 0, generated_ = 0;
  uint64_t start_us_ = 0, first_token_us_ = 0, prefill_before_us_ = 0, decode_before_us_ = 0;
  uint64_t prefill_us_ = 0, decode_us_ = 0;
};

}  // namespace orrery::engine

// One answer under way: the prompt, its chunks, then tokens, as events that the caller pulls.  The first call of next()
// makes the prompt and computes nothing; each further call does at most one chunk of prefill or one token.  The session
// is the caller's, and must outlive the generation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/engine/answer/sampler.h"
#include "runtime/engine/session/session.h"
#include "runtime/text/streaming/stream.h"

namespace orrery::engine {

struct GenerateOptions {
  uint32_t max_tokens = 0;          // 0: no limit but the context
  SamplingOptions sampling;
  std::vector<std::string> stop;
  bool ignore_end = false;
};

enum class EventType : uint32_t { progress = 1, token = 2, text = 3, done = 4 };
enum class Finish : uint32_t { none = 0, end = 1, stop = 2, length = 3, context = 4, cancelled = 5 };

struct Event {
  EventType type = EventType::progress;
  uint64_t done = 0, total = 0;              // progress
  std::string_view text;                     // text: whole characters; token: raw bytes. Until the next call
  int32_t token = -1;
  float logprob = 0.0f;
  Span<const TokenLogprob> top;              // until the next call
  Finish finish = Finish::none;
  uint32_t stop_index = 0;
  uint64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  uint64_t first_token_us = 0, prefill_us = 0, decode_us = 0;
};

class Generation {
 public:
  // Answers the session's conversation; the answer is added to it when the generation ends. Looks at the options only:
  // what is wrong with the conversation or its template is an error of the first next().
  static Result<std::unique_ptr<Generation>> answer(Session* session, const GenerateOptions& options);
  // Continues exactly these tokens.
  static Result<std::unique_ptr<Generation>> proceed(Session* session, Span<const int32_t> tokens,
                                                     const GenerateOptions& options);

  // The text and spans of the event stay valid until the next call. After an error (or a bad_alloc that passes
  // through) it is finished; the session keeps what it had computed.
  Status next(Event* event);
  void cancel() { cancel_.store(true, std::memory_order_relaxed); }   // from any thread
  std::atomic<bool>* cancel_flag() { return &cancel_; }               // what cancel() sets
  bool finished() const { return stage_ == Stage::finished; }
  // Ends it where it stands: what was said stays in the conversation. Does nothing when finished.
  void abandon() noexcept;

 private:
  enum class Stage : uint8_t { prepare, prompt, sample, text, finished };

  Generation(Session* session, const GenerateOptions& options, text::TextStream stream, bool conversational);
  static Result<std::unique_ptr<Generation>> make(Session* session, const GenerateOptions& options, bool conversational);
  Status advance(Event* event);
  Status prepare_step(Event* event);
  void use_prompt(std::vector<int32_t> prompt);
  Status tell_prompt(Event* event);
  Status prompt_step(Event* event);
  Status sample_step(Event* event);
  Status next_token();
  Result<Choice> choose();
  Status make_room(Event* event);
  void finish(Finish reason, Event* event);
  void end(Finish reason) noexcept;
  bool cancelled() const { return cancel_.load(std::memory_order_relaxed); }

  Session* session_;
  uint32_t max_tokens_;
  bool ignore_end_;
  bool conversational_;                  // answers the conversation, rather than raw tokens
  Sampler sampler_;
  text::TextStream stream_;
  std::atomic<bool> cancel_{false};

  Stage stage_ = Stage::prepare;
  std::vector<int32_t> prompt_;          // what is to be computed, the whole sequence
  uint32_t first_ = 0;                   // tokens of it that were already there
  std::vector<int32_t> answer_ids_;      // for a prompt that has to be made anew
  std::string answer_;                   // the text so far
  std::string chunk_;                    // the text of the current event
  Finish pending_ = Finish::none;        // to be reported behind the text
  bool flushed_ = false;                 // what was withheld has been told
  Finish finish_ = Finish::none;
  uint64_t prompt_tokens_ = 0, reused_tokens_ = 0, generated_ = 0;
  uint64_t start_us_ = 0, first_token_us_ = 0, prefill_before_us_ = 0, decode_before_us_ = 0;
  uint64_t prefill_us_ = 0, decode_us_ = 0;
};

}  // namespace orrery::engine

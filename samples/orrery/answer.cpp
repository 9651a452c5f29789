// See answer.h.
#include "answer.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "terminal/progress.h"
#include "terminal/word_wrap.h"

namespace orrery::tool {

Answer take_answer(orrery_generation* generation, const AnswerWishes& wishes) {
  Answer answer;
  CancelOnInterrupt watcher([generation] { orrery_cancel(generation); });
  ProgressBar bar("reading", ProgressBar::Unit::tokens);
  using Clock = std::chrono::steady_clock;
  Clock::time_point first_token{}, last_token{};
  uint64_t n_tokens = 0;
  orrery_event event;
  orrery_event_init(&event, sizeof event);
  for (;;) {
    call([&](orrery_error* error) { return orrery_next(generation, &event, error); });
    switch (event.type) {
      case ORRERY_EVENT_PROGRESS:
        bar.update(event.done, event.total);
        answer.read_tokens = event.done;
        break;
      case ORRERY_EVENT_TOKEN:
        bar.erase();
        last_token = Clock::now();
        if (n_tokens++ == 0) first_token = last_token;
        if (wishes.tokens) {
          answer.tokens.push_back({event.token, event.logprob, std::string(event.text, event.text_bytes),
                                   std::vector<orrery_token_logprob>(event.top, event.top + event.n_top)});
        }
        break;
      case ORRERY_EVENT_TEXT: {
        bar.erase();
        const std::string_view text(event.text, event.text_bytes);
        answer.text += text;
        if (wishes.stream) wishes.stream(text);
        break;
      }
      case ORRERY_EVENT_REASONING: {
        bar.erase();
        const std::string_view text(event.text, event.text_bytes);
        answer.thinking += text;
        if (wishes.thinking) wishes.thinking(text);
        break;
      }
      case ORRERY_EVENT_CALL_END: answer.calls.push_back({event.name, event.call_id, std::string(event.text, event.text_bytes)}); break;
      case ORRERY_EVENT_DONE:
        if (wishes.stream) wishes.stream({});
        answer.decode_seconds = std::chrono::duration<double>(last_token - first_token).count();
        answer.finish_reason = event.finish_reason;
        answer.stop_index = event.stop_index;
        answer.complete = event.complete != 0;
        answer.prompt_tokens = event.prompt_tokens;
        answer.reused_tokens = event.reused_tokens;
        answer.generated_tokens = event.generated_tokens;
        answer.first_token_us = event.first_token_us;
        answer.prefill_us = event.prefill_us;
        answer.decode_us = event.decode_us;
        return answer;
      default: break;  // event kinds of a later version
    }
  }
}

std::function<void(std::string_view)> stream_to(Output& out, size_t column) {
  const auto wrap = std::make_shared<WordWrap>(out.columns(), column);
  return [&out, wrap](std::string_view text) {
    out.text(text.empty() ? wrap->end() : wrap->feed(text));
    out.flush();
  };
}

const char* finish_name(uint32_t finish_reason) {
  switch (finish_reason) {
    case ORRERY_FINISH_END: return "end";
    case ORRERY_FINISH_STOP: return "stop";
    case ORRERY_FINISH_LENGTH: return "length";
    case ORRERY_FINISH_CONTEXT: return "context";
    case ORRERY_FINISH_CANCELLED: return "cancelled";
    case ORRERY_FINISH_CALLS: return "calls";
    default: return "unknown";
  }
}

Generation begin_answer(orrery_session* session, const orrery_generate_options& options) {
  return make<Generation>([&](orrery_generation** out, orrery_error* error) { return orrery_generate(session, &options, out, error); });
}

Generation begin_continuation(orrery_session* session, const std::vector<int32_t>& tokens, const orrery_generate_options& options) {
  return make<Generation>([&](orrery_generation** out, orrery_error* error) {
    return orrery_generate_tokens(session, tokens.data(), tokens.size(), &options, out, error);
  });
}

void add_message(orrery_session* session, const char* role, const std::string& content) {
  call([&](orrery_error* error) { return orrery_session_add_message(session, role, content.c_str(), error); });
}

double per_second(uint64_t count, uint64_t microseconds) {
  return microseconds == 0 ? 0 : static_cast<double>(count) * 1e6 / static_cast<double>(microseconds);
}

double Answer::prefill_rate() const { return per_second(prompt_tokens - reused_tokens, prefill_us); }

double Answer::decode_rate() const {
  return generated_tokens < 2 || decode_seconds <= 0 ? 0 : static_cast<double>(generated_tokens - 1) / decode_seconds;
}

std::string speed_line(const Answer& answer) {
  // The prompt was not read to its end, so it has no rate, and there is no first token.
  if (answer.interrupted() && answer.generated_tokens == 0)
    return "stopped while reading, after " + grouped(std::min(answer.read_tokens, answer.prompt_tokens)) + " of " +
           counted(answer.prompt_tokens, "prompt token");
  const bool all_reused = answer.prompt_tokens > 0 && answer.prompt_tokens == answer.reused_tokens;
  std::string line =
      counted(answer.prompt_tokens, "prompt token") + " (" + (all_reused ? "all" : grouped(answer.reused_tokens)) + " reused)";
  if (answer.prefill_rate() > 0) line += format(" at %.0f/s", answer.prefill_rate());
  line +=
      format(", first token after %.2f s, ", static_cast<double>(answer.first_token_us) / 1e6) + counted(answer.generated_tokens, "token");
  if (answer.decode_rate() > 0) line += format(" at %.1f/s", answer.decode_rate());
  return line;
}

}  // namespace orrery::tool

// See metrics.h.
#include "base/metrics.h"

#include <cstdio>

namespace orrery::server {
namespace {

void line(std::string& page, const char* name, const char* kind, const char* help, const std::string& value) {
  page +=
      std::string("# HELP orrery_") + name + " " + help + "\n# TYPE orrery_" + name + " " + kind + "\norrery_" + name + " " + value + "\n";
}
void count(std::string& page, const char* name, const char* help, uint64_t value) {
  line(page, name, "counter", help, std::to_string(value));
}
void gauge(std::string& page, const char* name, const char* help, int64_t value) { line(page, name, "gauge", help, std::to_string(value)); }
void seconds(std::string& page, const char* name, const char* help, uint64_t us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6f", static_cast<double>(us) / 1e6);
  line(page, name, "counter", help, text);
}

}  // namespace

void Metrics::responded(const std::string& route, int status) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++responses_[{route, status}];
}

std::string Metrics::page() const {
  std::string page = "# HELP orrery_responses_total Responses, by route and status.\n# TYPE orrery_responses_total counter\n";
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, n] : responses_)
      page +=
          "orrery_responses_total{route=\"" + key.first + "\",status=\"" + std::to_string(key.second) + "\"} " + std::to_string(n) + "\n";
  }
  count(page, "answers_total", "Answers that began.", answers);
  count(page, "texts_total", "Texts that were embedded or ranked.", texts);
  count(page, "prompt_tokens_total", "Prompt tokens, reused ones included.", prompt_tokens);
  count(page, "reused_tokens_total", "Prompt tokens whose KV was there already.", reused_tokens);
  count(page, "generated_tokens_total", "Tokens of answers.", generated_tokens);
  seconds(page, "prefill_seconds_total", "Time in the model for prompts.", prefill_us);
  seconds(page, "decode_seconds_total", "Time in the model for answers.", decode_us);
  seconds(page, "first_token_seconds_total", "Time to the first token, from the start of an answer's work.", first_token_us);
  seconds(page, "queued_seconds_total", "Time that requests waited for a session.", queued_us);
  page += "# HELP orrery_cancelled_total Requests that ended before their answer.\n# TYPE orrery_cancelled_total counter\n";
  page += "orrery_cancelled_total{why=\"left\"} " + std::to_string(left) + "\n";
  page += "orrery_cancelled_total{why=\"deadline\"} " + std::to_string(late) + "\n";
  page += "orrery_cancelled_total{why=\"shutdown\"} " + std::to_string(stopped) + "\n";
  count(page, "slow_connections_total", "Connections closed because a request or the reading of its answer took too long.", closed_late);
  gauge(page, "connections", "Open connections.", connections);
  gauge(page, "waiting_requests", "Requests that wait for a session.", waiting);
  gauge(page, "busy_sessions", "Sessions with an answer under way.", busy);
  gauge(page, "resting_answers", "Answers under way that wait for a slow reader.", resting);
  gauge(page, "sessions", "Sessions.", sessions);
  return page;
}

}  // namespace orrery::server

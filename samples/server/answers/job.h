// One request on its way: from the connection to the reader, to a session, and back.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "answers/outbox.h"
#include "wire/request.h"

namespace orrery::server {

using Clock = std::chrono::steady_clock;

struct Job {
  explicit Job(MHD_Connection* connection) : outbox(connection) {}

  // Of the connection.
  std::string body;
  bool chat = false;
  enum class Kind { answer, embeddings, rerank } kind = Kind::answer;
  Clock::time_point arrived, deadline;

  // Of the reader.
  Request request;
  std::vector<int32_t> prompt;  // what the session will see, nearly: chat messages that spell control tokens have other tokens there

  Outbox outbox;

  bool late() const { return Clock::now() >= deadline; }
  // Ends a request that has no answer.
  void refuse(const Refusal& refusal) {
    outbox.append(text_of(refusal.json()));
    outbox.begin(refusal.status, false);
    outbox.end();
  }
};

Refusal refusal_of(const ApiError& error);

}  // namespace orrery::server

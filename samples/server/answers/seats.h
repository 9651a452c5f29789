// The sessions. A request takes the idle session whose tokens share the longest prefix with its prompt, so the next turn of a conversation
// finds its KV where it was. A session that would lose more than half of its last prompt does not count: it holds another conversation,
// with the same system prompt, say. Then the session that was used least recently goes. (The library also keeps the KV of finished prompts,
// so a conversation that lost its session reuses most of it.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "answers/answer.h"
#include "answers/job.h"

namespace orrery::server {

struct Seat {
  enum class State { idle, beginning, under_way } state = State::idle;
  Session session;
  std::vector<int32_t> held;  // tokens whose KV the session has
  size_t held_prompt = 0;     // of them: the last prompt; the others are its answer
  uint64_t last_used = 0;     // a count of answers
  // An answer under way.
  std::shared_ptr<Job> job;
  std::unique_ptr<Answer> answer;
  Generation generation;
  bool cancelled = false;
};

class Seats {
 public:
  Seats(orrery_model* model, const Options& options);
  uint32_t context_tokens() const { return context_tokens_; }
  std::vector<Seat>& all() { return seats_; }
  size_t busy() const;
  // An idle seat; nullptr: all are busy.
  Seat* best(const std::vector<int32_t>& prompt);
  // Begins the job's answer, and compiles its schema. Throws ApiError; then the seat has no job.
  void begin(Seat* seat, const std::shared_ptr<Job>& job, const Options& options);
  // Ends the answer, and notes the session's tokens.
  void end(Seat* seat);
  // Saves what idle sessions hold to the folder, if there is one: once, when no more answers come. Returns the errors, a line each.
  std::string save();

 private:
  Folder folder_;  // null: none, or all is saved
  std::vector<Seat> seats_;
  uint32_t context_tokens_ = 0;
  uint64_t n_answers_ = 0;
};

}  // namespace orrery::server

// The answers, embeddings and rankings. Three threads. The reading thread makes bodies requests and begins answers in idle sessions: parsing, tokenizing, compiling a
// schema. The computing thread asks orrery_next_any() for the next event of any answer under way, so the answers share passes over the
// weights, and none waits for the reading of another. Between two events it cancels answers whose client has left or whose time is over.
//
// The embedding thread computes embeddings and rankings, one request after another; the library lets answers compute between its parts.
//
// Every submitted job ends: with an answer, or with a refusal. An answer whose reader is slow rests when much of it waits to be sent.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "answers/job.h"
#include "base/metrics.h"
#include "answers/reader.h"
#include "answers/seats.h"

namespace orrery::server {

class Engine {
 public:
  // Loads the model and opens the sessions. Throws ApiError.
  Engine(const Options& options, Metrics* metrics);
  ~Engine() { stop(); }

  bool generates() const { return seats_ != nullptr; }  // else embeddings and rankings alone
  uint32_t context_tokens() const { return context_tokens_; }
  bool healthy() const { return !lost_; }
  // From any thread. Returns at once; the job's outbox has the rest. A full queue refuses it.
  void submit(std::shared_ptr<Job> job);
  // Something has changed: a client has left, or has read.
  void poke() { changed_.notify_all(); }
  // Cancels everything, and ends the threads. Later jobs are refused.
  void stop();

 private:
  // The reading thread.
  void read_requests();
  void drop_waiting(std::deque<std::shared_ptr<Job>>* jobs);  // with the lock held
  void begin_answer(Seat* seat, const std::shared_ptr<Job>& job);
  // The embedding thread.
  void embed_texts();
  void embed(Job* job);
  // The computing thread.
  void compute();
  bool wait_for_answers();
  void cancel_answers();
  void step();
  void end_answer(Seat* seat, const orrery_event& done);
  void note_seats();  // with the lock held

  const Options& options_;
  Metrics* metrics_;
  uint32_t context_tokens_ = 0;  // of a session; of a text, if the model generates none
  Runtime runtime_;
  Model model_;
  Vocab vocab_;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<Seats> seats_;  // null: the model generates no text
  // The computing thread's: the seats under way, with nullptr for the others; the index of the last event.
  std::vector<Seat*> under_way_;
  size_t which_ = 0;

  std::mutex mutex_;  // of the following, and of the seats' states
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> unread_, ready_, texts_;
  size_t n_open_ = 0;  // jobs that have not ended
  bool stopping_ = false;
  std::atomic<bool> lost_{false};
  std::thread reading_, computing_, embedding_;
};

}  // namespace orrery::server

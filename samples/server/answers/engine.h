// The answers. Two threads: one reads requests (reader.h), one computes. The computing thread holds every session and generation, and asks
// orrery_next_any() for the next event of any of them, so answers under way share passes over the weights. Between two events it looks after
// the rest: it seats waiting requests, and cancels answers whose client has left or whose time is over.
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

  uint32_t context_tokens() const { return seats_->context_tokens(); }
  bool healthy() const { return !lost_; }
  // From any thread. Returns at once; the job's outbox has the rest. A full queue refuses it.
  void submit(std::shared_ptr<Job> job);
  // Something has changed: a client has left, or has read.
  void poke() { changed_.notify_all(); }
  // Cancels everything, and ends the threads. Later jobs are refused.
  void stop();

 private:
  void read_requests();
  void compute();
  bool wait_for_work();
  void seat_requests();
  void begin_answer(Seat* seat, const std::shared_ptr<Job>& job);
  void cancel_answers();
  void step();
  void end_answer(Seat* seat, const orrery_event& done);
  bool drop(const std::shared_ptr<Job>& job, bool stopping);

  const Options& options_;
  Metrics* metrics_;
  Runtime runtime_;
  Model model_;
  Vocab vocab_;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<Seats> seats_;
  size_t which_ = 0;   // the generation of the last event

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> unread_, ready_;
  size_t n_open_ = 0;   // jobs that have not ended
  bool stopping_ = false;
  std::atomic<bool> lost_{false};
  std::thread reading_, computing_;
};

}  // namespace orrery::server

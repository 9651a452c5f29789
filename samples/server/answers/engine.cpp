// See engine.h.
#include "answers/engine.h"

#include <chrono>
#include <cstdio>
#include <utility>

namespace orrery::server {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);   // how often an idle thread looks at clients and deadlines

const Refusal kStopping = {503, "the server is ending", "", "shutting_down"};
const Refusal kLate = {504, "the time for an answer is over (--answer-seconds)", "", "timeout"};

void log_to_stderr(void*, int32_t, const char* message) { std::fprintf(stderr, "orrery-server: %s\n", message); }

uint64_t us_since(Clock::time_point began) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began).count());
}

}  // namespace

Engine::Engine(const Options& options, Metrics* metrics) : options_(options), metrics_(metrics) {
  auto o = defaults(&orrery_runtime_options_init);
  o.n_threads = options.threads;
  if (!options.backend.empty()) o.backend = options.backend.c_str();
  o.device_budget_bytes = options.device_budget_bytes;
  o.max_sessions = options.sessions;
  o.log = log_to_stderr;
  o.log_level = options.verbose ? ORRERY_LOG_DEBUG : ORRERY_LOG_WARNING;
  runtime_ = make<Runtime>([&](orrery_runtime** out, orrery_error* error) { return orrery_runtime_create(&o, out, error); });
  model_ = make<Model>([&](orrery_model** out, orrery_error* error) { return orrery_model_open(runtime_.get(), options.model.c_str(), nullptr, out, error); });
  vocab_.reset(orrery_model_vocab(model_.get()));
  seats_ = std::make_unique<Seats>(model_.get(), options);
  reader_ = std::make_unique<Reader>(options, vocab_.get(), seats_->context_tokens());
  metrics_->sessions = static_cast<int64_t>(seats_->all().size());
  reading_ = std::thread([this] { read_requests(); });
  computing_ = std::thread([this] { compute(); });
}

void Engine::submit(std::shared_ptr<Job> job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_ && n_open_ < options_.sessions + options_.queue) {
      ++n_open_;
      ++metrics_->waiting;
      unread_.push_back(std::move(job));
    }
  }
  if (job) {
    job->refuse({503, "the queue is full; try again", "", "overloaded"});
    return;
  }
  changed_.notify_all();
}

void Engine::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (reading_.joinable()) reading_.join();
  if (computing_.joinable()) computing_.join();
}

// A waiting job whose client has left, whose time is over, or that comes while the server ends.
bool Engine::drop(const std::shared_ptr<Job>& job, bool stopping) {
  if (job->outbox.gone()) ++metrics_->left, job->outbox.end();
  else if (stopping) ++metrics_->stopped, job->refuse(kStopping);
  else if (job->late()) ++metrics_->late, job->refuse(kLate);
  else return false;
  return true;
}

void Engine::read_requests() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !unread_.empty(); });
    if (unread_.empty()) return;   // stopping, and all are refused
    const std::shared_ptr<Job> job = std::move(unread_.front());
    unread_.pop_front();
    const bool stopping = stopping_;
    lock.unlock();
    bool good = !drop(job, stopping);
    if (good) {
      good = false;
      try {
        reader_->read(job.get());
        good = true;
      } catch (const Refusal& refusal) {
        job->refuse(refusal);
      } catch (const ApiError& error) {
        job->refuse(refusal_of(error));
      } catch (const std::exception& error) {   // memory
        job->refuse({500, error.what(), "", ""});
      }
    }
    lock.lock();
    if (good) ready_.push_back(job), changed_.notify_all();
    else --n_open_, --metrics_->waiting;
  }
}

void Engine::compute() {
  while (wait_for_work()) {
    seat_requests();
    cancel_answers();
    step();
    metrics_->busy = static_cast<int64_t>(seats_->busy());
  }
}

// False: the server ends, and nothing is under way.
bool Engine::wait_for_work() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (seats_->busy() > 0) return true;
  while (ready_.empty()) {
    if (stopping_ && n_open_ == 0) return false;
    changed_.wait_for(lock, kLook);
  }
  return true;
}

void Engine::seat_requests() {
  std::deque<std::shared_ptr<Job>> jobs;
  std::unique_lock<std::mutex> lock(mutex_);
  const bool stopping = stopping_;
  jobs.swap(ready_);
  lock.unlock();
  std::deque<std::shared_ptr<Job>> wait;
  size_t ended = 0;
  for (const std::shared_ptr<Job>& job : jobs) {
    Seat* seat = nullptr;
    if (drop(job, stopping)) {
      ++ended;
    } else if (wait.empty() && (seat = seats_->best(job->prompt))) {   // first come, first served
      begin_answer(seat, job);
      ended += seat->job == nullptr;
    } else {
      wait.push_back(job);
      continue;
    }
    --metrics_->waiting;
  }
  lock.lock();
  n_open_ -= ended;
  ready_.insert(ready_.begin(), wait.begin(), wait.end());
}

void Engine::begin_answer(Seat* seat, const std::shared_ptr<Job>& job) {
  metrics_->queued_us += us_since(job->arrived);
  try {
    seats_->begin(seat, job, options_);
    seat->answer = std::make_unique<Answer>(job->request, &job->outbox, vocab_.get(), options_.name, job->id);
    ++metrics_->answers;
  } catch (const ApiError& error) {
    job->refuse(refusal_of(error));
  }
}

void Engine::cancel_answers() {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool stopping = stopping_;
  lock.unlock();
  for (Seat& seat : seats_->all()) {
    if (!seat.job || seat.cancelled) continue;
    if (seat.job->outbox.gone()) ++metrics_->left;
    else if (stopping) ++metrics_->stopped, seat.answer->fail(kStopping);
    else if (seat.job->late()) ++metrics_->late, seat.answer->fail(kLate);
    else continue;
    seat.cancelled = true;
    orrery_cancel(seat.generation.get());
  }
}

void Engine::step() {
  std::vector<Seat>& seats = seats_->all();
  std::vector<orrery_generation*> generations(seats.size(), nullptr);
  bool any = false;
  int64_t resting = 0;
  for (size_t i = 0; i < seats.size(); ++i) {
    const bool rests = seats[i].job && !seats[i].cancelled && seats[i].job->outbox.waiting_bytes() > options_.unread_bytes;
    resting += rests;
    if (!rests) generations[i] = seats[i].generation.get();
    any = any || generations[i];
  }
  metrics_->resting = resting;
  if (!any) {   // all rest
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kLook);
    return;
  }
  auto event = defaults(&orrery_event_init);
  try {
    call([&](orrery_error* error) { return orrery_next_any(generations.data(), generations.size(), &which_, &event, error); });
    if (which_ >= seats.size()) return;
    Seat& seat = seats[which_];
    if (event.type == ORRERY_EVENT_DONE) end_answer(&seat, event);
    else if (!seat.cancelled) seat.answer->event(event);
  } catch (const ApiError& error) {
    if (error.status == ORRERY_DEVICE_LOST) lost_ = true;
    for (size_t i = 0; i < seats.size(); ++i) {
      if (!seats[i].job || (which_ < seats.size() && which_ != i)) continue;   // an error of none of them ends all
      if (!seats[i].cancelled) seats[i].answer->fail(refusal_of(error));
      seats[i].cancelled = true;
      end_answer(&seats[i], defaults(&orrery_event_init));
    }
  }
}

void Engine::end_answer(Seat* seat, const orrery_event& done) {
  metrics_->prompt_tokens += done.prompt_tokens;
  metrics_->reused_tokens += done.reused_tokens;
  metrics_->generated_tokens += done.generated_tokens;
  metrics_->prefill_us += done.prefill_us;
  metrics_->decode_us += done.decode_us;
  metrics_->first_token_us += done.first_token_us;
  if (!seat->cancelled) seat->answer->done(done);
  seats_->end(seat);
  std::lock_guard<std::mutex> lock(mutex_);
  --n_open_;
}

}  // namespace orrery::server

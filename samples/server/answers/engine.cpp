// See engine.h.
#include "answers/engine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <new>
#include <optional>
#include <utility>

#include "answers/vectors.h"

namespace orrery::server {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);  // how often an idle thread looks at clients and deadlines

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
  auto file = defaults(&orrery_source_init);
  file.path = options.model.c_str();
  model_ =
      make<Model>([&](orrery_model** out, orrery_error* error) { return orrery_model_open(runtime_.get(), &file, nullptr, out, error); });
  vocab_.reset(orrery_model_vocab(model_.get()));
  auto info = defaults(&orrery_model_info_init);
  call([&](orrery_error* error) { return orrery_model_get_info(model_.get(), &info, error); });
  context_tokens_ = info.trained_context;
  if (info.purpose & ORRERY_PURPOSE_GENERATE) {
    seats_ = std::make_unique<Seats>(model_.get(), options);
    context_tokens_ = seats_->context_tokens();
    metrics_->sessions = static_cast<int64_t>(seats_->all().size());
  }
  reader_ = std::make_unique<Reader>(options, vocab_.get(), context_tokens_);
  embedding_ = std::thread([this] { embed_texts(); });
  if (!seats_) return;
  reading_ = std::thread([this] { read_requests(); });
  computing_ = std::thread([this] { compute(); });
}

void Engine::submit(std::shared_ptr<Job> job) {
  const bool answers = job->kind == Job::Kind::answer;
  if (answers && !seats_) {
    job->refuse({400, "this model generates no text; it computes embeddings (/v1/embeddings)", "model", "unsupported"});
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_ && n_open_ < options_.sessions + options_.queue) {
      ++n_open_;
      ++metrics_->waiting;
      (answers ? unread_ : texts_).push_back(std::move(job));
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
  if (embedding_.joinable()) embedding_.join();
  const std::string errors = seats_ ? seats_->save() : "";
  if (!errors.empty()) std::fprintf(stderr, "orrery-server: %s", errors.c_str());
}

// Ends waiting jobs whose client has left, whose time is over, or that wait while the server ends.
void Engine::drop_waiting(std::deque<std::shared_ptr<Job>>* jobs) {
  const auto ends = [&](const std::shared_ptr<Job>& job) {
    if (job->outbox.gone()) ++metrics_->left, job->outbox.end();
    else if (stopping_) ++metrics_->stopped, job->refuse(kStopping);
    else if (job->late()) ++metrics_->late, job->refuse(kLate);
    else return false;
    --n_open_, --metrics_->waiting;
    return true;
  };
  jobs->erase(std::remove_if(jobs->begin(), jobs->end(), ends), jobs->end());
}

void Engine::read_requests() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    drop_waiting(&unread_);
    drop_waiting(&ready_);
    if (stopping_) return;                                                         // all are refused, and submit() takes no more
    Seat* seat = ready_.empty() ? nullptr : seats_->best(ready_.front()->prompt);  // first come, first served
    std::deque<std::shared_ptr<Job>>& from = seat ? ready_ : unread_;
    if (from.empty()) {
      changed_.wait_for(lock, kLook);
      continue;
    }
    const std::shared_ptr<Job> job = std::move(from.front());
    from.pop_front();
    if (seat) {
      seat->state = Seat::State::beginning;
      --metrics_->waiting;
      note_seats();
    }
    lock.unlock();
    std::optional<Refusal> refusal;
    try {
      if (seat) begin_answer(seat, job);
      else reader_->read(job.get());
    } catch (const Refusal& found) {
      refusal = found;
    } catch (const ApiError& error) {
      refusal = refusal_of(error);
      // Everything else that could be wrong has been checked.
      if (seat && !job->request.grammar.empty() && refusal->status == 400) refusal->param = "response_format.json_schema.schema";
    } catch (const std::exception& error) {  // memory
      refusal = Refusal{500, error.what(), "", ""};
    }
    if (refusal) job->refuse(*refusal);
    lock.lock();
    if (seat) seat->state = refusal ? Seat::State::idle : Seat::State::under_way, note_seats();
    else if (refusal) --metrics_->waiting;
    else ready_.push_back(job);
    if (refusal) --n_open_;
    changed_.notify_all();
  }
}

void Engine::embed_texts() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    drop_waiting(&texts_);
    if (stopping_) return;
    if (texts_.empty()) {
      changed_.wait_for(lock, kLook);
      continue;
    }
    const std::shared_ptr<Job> job = std::move(texts_.front());
    texts_.pop_front();
    --metrics_->waiting;
    lock.unlock();
    embed(job.get());
    lock.lock();
    --n_open_;
    changed_.notify_all();
  }
}

// A client that has left, a time that is over and the server's end cancel the work between two of its parts.
void Engine::embed(Job* job) {
  metrics_->queued_us += us_since(job->arrived);
  const auto stops = [&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stopping_;
  };
  const auto goes_on = [&] { return !job->outbox.gone() && !job->late() && !stops(); };
  try {
    const std::string body = vectors_body(model_.get(), *job, options_, goes_on, metrics_);
    job->outbox.append(body);
    job->outbox.begin(200, false);
    job->outbox.end();
  } catch (const Refusal& refusal) {
    job->refuse(refusal);
  } catch (const ApiError& error) {
    if (error.status == ORRERY_DEVICE_LOST) lost_ = true;
    Refusal refusal = refusal_of(error);
    if (error.status == ORRERY_CONTEXT_FULL) refusal.param = job->kind == Job::Kind::rerank ? "documents" : "input";
    if (error.status != ORRERY_CANCELLED) job->refuse(refusal);
    else if (job->outbox.gone()) ++metrics_->left, job->outbox.end();
    else if (stops()) ++metrics_->stopped, job->refuse(kStopping);
    else ++metrics_->late, job->refuse(kLate);
  } catch (const std::exception& error) {  // memory
    job->refuse({500, error.what(), "", ""});
  }
}

void Engine::begin_answer(Seat* seat, const std::shared_ptr<Job>& job) {
  metrics_->queued_us += us_since(job->arrived);
  seat->answer = std::make_unique<Answer>(job->request, &job->outbox, vocab_.get(), options_.name);
  seats_->begin(seat, job, options_);
  ++metrics_->answers;
}

void Engine::note_seats() {
  metrics_->busy = static_cast<int64_t>(seats_->busy());
  if (metrics_->busy == 0) metrics_->resting = 0;
}

void Engine::compute() {
  while (wait_for_answers()) {
    cancel_answers();
    step();
  }
}

// False: the server ends, and nothing is under way.
bool Engine::wait_for_answers() {
  std::vector<Seat>& seats = seats_->all();
  under_way_.assign(seats.size(), nullptr);
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    bool any = false;
    for (size_t i = 0; i < seats.size(); ++i)
      if (seats[i].state == Seat::State::under_way) under_way_[i] = &seats[i], any = true;
    if (any) return true;
    if (stopping_ && n_open_ == 0) return false;
    changed_.wait_for(lock, kLook);
  }
}

void Engine::cancel_answers() {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool stopping = stopping_;
  lock.unlock();
  for (Seat* seat : under_way_) {
    if (!seat || seat->cancelled) continue;
    if (seat->job->outbox.gone()) ++metrics_->left;
    else if (stopping) ++metrics_->stopped, seat->answer->fail(kStopping);
    else if (seat->job->late()) ++metrics_->late, seat->answer->fail(kLate);
    else continue;
    seat->cancelled = true;
    orrery_cancel(seat->generation.get());
  }
}

void Engine::step() {
  std::vector<orrery_generation*> generations(under_way_.size(), nullptr);
  int64_t resting = 0;
  bool any = false;
  for (size_t i = 0; i < under_way_.size(); ++i) {
    Seat* seat = under_way_[i];
    if (!seat) continue;
    const bool rests = !seat->cancelled && seat->job->outbox.waiting_bytes() > options_.unread_bytes;
    resting += rests;
    if (!rests) generations[i] = seat->generation.get(), any = true;
  }
  metrics_->resting = resting;
  if (!any) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kLook);
    return;
  }
  auto event = defaults(&orrery_event_init);
  try {
    call([&](orrery_error* error) { return orrery_next_any(generations.data(), generations.size(), &which_, &event, error); });
    if (which_ >= under_way_.size()) return;
    Seat* seat = under_way_[which_];
    if (event.type == ORRERY_EVENT_DONE) end_answer(seat, event);
    else if (!seat->cancelled) seat->answer->event(event);
  } catch (const ApiError& error) {
    if (error.status == ORRERY_DEVICE_LOST) lost_ = true;
    for (size_t i = 0; i < under_way_.size(); ++i) {
      if (!under_way_[i] || (which_ < under_way_.size() && which_ != i)) continue;  // an error of none of them ends all
      if (!under_way_[i]->cancelled) under_way_[i]->answer->fail(refusal_of(error));
      under_way_[i]->cancelled = true;
      end_answer(under_way_[i], defaults(&orrery_event_init));
    }
  } catch (const std::bad_alloc&) {  // an answer that cannot be kept is given up
    if (which_ < under_way_.size()) under_way_[which_]->job->outbox.mark_gone();
  }
}

void Engine::end_answer(Seat* seat, const orrery_event& done) {
  metrics_->prompt_tokens += done.prompt_tokens;
  metrics_->reused_tokens += done.reused_tokens;
  metrics_->generated_tokens += done.generated_tokens;
  metrics_->prefill_us += done.prefill_us;
  metrics_->decode_us += done.decode_us;
  metrics_->first_token_us += done.first_token_us;
  // The seat is free before the client hears of the end, so the client's next request finds it.
  const std::shared_ptr<Job> job = seat->job;
  const std::unique_ptr<Answer> answer = std::move(seat->answer);
  const bool cancelled = seat->cancelled;
  seats_->end(seat);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    seat->state = Seat::State::idle;
    note_seats();
    --n_open_;
  }
  changed_.notify_all();
  if (!cancelled) answer->done(done);
  job->outbox.end();
}

}  // namespace orrery::server

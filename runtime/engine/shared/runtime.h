// The runtime: backend, turns on it, arena, reservoir, I/O thread and log. Models and sessions share it. Two runtimes in one process share
// nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/backend/registry.h"
#include "runtime/backend/turn.h"
#include "runtime/base/allocation/account.h"
#include "runtime/base/cancel.h"
#include "runtime/base/clock.h"
#include "runtime/base/priority.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/memory/prefix_tree.h"
#include "runtime/kv/transfers/io_thread.h"
#include "runtime/model/store/host_experts.h"
#include "runtime/os/os.h"
#include "runtime/os/thread_pool.h"

namespace orrery::engine {

// Copies a message to `out` (not empty) as one NUL-terminated line of whole UTF-8. Control characters become spaces. Bytes that are not
// UTF-8 (a file name may have any bytes) become question marks. A character that does not fit is left out.
void copy_message(std::string_view text, Span<char> out) noexcept;

enum class LogLevel : int32_t { none = 0, error = 1, warning = 2, info = 3, debug = 4, trace = 5 };
using LogSink = void (*)(void* user, int32_t level, const char* message);

// The GPUs of this machine, in the driver's order; RuntimeOptions::device is an index of this list.
std::vector<DeviceDescription> gpus();

// Whether a GPU computes, and why not: a sentence.
struct GpuUse {
  DeviceUse use = DeviceUse::used;
  std::string why;
};

struct RuntimeOptions {
  int32_t n_threads = 0;                 // of the CPU backend; 0: cpu::default_threads(). On a GPU: while a model is loaded, and of experts
                                         // that the processor computes
  int32_t n_host_threads = 0;            // for measurements: of the processor's backend beside the device's (host_backend()); 0: n_threads
  Priority priority = Priority::normal;  // of these threads
  int32_t device = -1;                   // a GPU, an index of gpus(); -1: the first that is not refused
  std::string backend = "auto";          // a GPU if the machine has one, else the CPU; "gpu": no CPU
  std::string cpu_path = "auto";         // the CPU's instruction set
  uint64_t device_budget_bytes = 0;      // 0: a GPU's free memory less a rest; on the CPU os::default_reservation_bytes()
  uint64_t reservoir_bytes = 0;          // host memory for the KV of compressed sessions; 0: os::default_reservation_bytes()
  double prefix_share = 0.25;            // of the reservoir: the KV of earlier prompts takes at most this (kv::PrefixTree)
  bool pinned_reservoir = false;         // the system locks sessions' regions of the reservoir in memory
  uint32_t max_sessions = 16;
  uint64_t prompt_part_us = 100'000;  // time of a prompt's part, between two turns (PromptPace); 0: one layer
  kv::Link link;                      // a simulated link between reservoir and device, for measurement
  // For tests: faults of transfers (called on the I/O thread), the time limit of waits, and the clock of turns.
  std::function<kv::IoThread::Fault(const kv::IoRequest&)> io_fault;
  uint64_t io_wait_limit_us = kv::IoThread::Options().wait_limit_us;
  std::function<uint64_t()> turn_clock = now_us;
  LogSink log = nullptr;
  void* log_user = nullptr;
  LogLevel log_level = LogLevel::warning;
};

// The backend that the options name, without an arena: enough to plan with.
Result<std::unique_ptr<Backend>> make_backend(const RuntimeOptions& options, GpuUse* gpu);
// The processor's backend beside the one that the options name, for experts that it computes (model::HostExperts).
Result<std::unique_ptr<Backend>> make_host_backend(const RuntimeOptions& options);
// Whether backends may read the reservoir in place of transfers by the I/O thread: no link is simulated, and no faults of transfers.
bool moves_directly(const RuntimeOptions& options);
// The size of the device arena. By default it leaves, of a GPU's free memory, Device::driver_bytes() and kLeftToOthers.
inline constexpr uint64_t kLeftToOthers = uint64_t{256} << 20;
uint64_t budget_bytes(const RuntimeOptions& options, const Device& device);
uint64_t reservoir_budget_bytes(const RuntimeOptions& options);  // the size of the reservoir

// Two threads, the caller's among them.
class TwoThreads final : public model::TwoSides {
 public:
  static Result<std::unique_ptr<TwoThreads>> make() {
    ORRERY_ASSIGN(auto pool, ThreadPool::make(2, 2));
    return std::unique_ptr<TwoThreads>(new TwoThreads(std::move(pool)));
  }
  void run(void (*call)(const void* context, int64_t side), const void* context) override {
    pool_->run(2, [&](int64_t side, int32_t) { call(context, side); });
  }

 private:
  explicit TwoThreads(std::unique_ptr<ThreadPool> pool) : pool_(std::move(pool)) {}
  std::unique_ptr<ThreadPool> pool_;
};

class Runtime {
 public:
  static Result<std::shared_ptr<Runtime>> create(const RuntimeOptions& options);

  // The backend: device() for any thread at any time, and turns. A session takes a turn for each step.
  Device& device() { return turns_->device(); }
  Turns& turns() { return *turns_; }
  Turn take_turn() { return turns_->take(); }
  Result<Turn> take_turn(const Cancel& cancel) { return turns_->take(cancel); }
  kv::Arena& arena() { return *arena_; }
  kv::Arena& reservoir() { return *reservoir_; }
  kv::PrefixTree& prefixes() { return *prefixes_; }
  uint64_t new_id() { return ++last_id_; }  // of a model, or of a session and its forks
  const kv::Arena& arena() const { return *arena_; }
  // Takes effect between two steps of any session. Must not be called within a turn.
  Status set_threads(int32_t n_threads, Priority priority);
  const GpuUse& gpu_use() const { return gpu_use_; }
  BackendInfo backend_info() const { return turns_->device().info(); }
  // The I/O thread, for sessions with refills. The first call starts it.
  Result<kv::IoThread*> io();
  // The processor's backend beside the device's; whoever has the turn uses it. The first call makes it.
  Result<Backend*> host_backend();
  // Behind host_backend(): for a device whose operations are done when they return; else null.
  model::TwoSides* host_sides() const { return host_sides_.get(); }
  uint64_t prompt_part_us() const { return options_.prompt_part_us; }
  bool moves_directly() const { return engine::moves_directly(options_); }
  const RuntimeOptions& options() const { return options_; }  // as the runtime was created

  // Bytes of host memory that are locked now: regions of the reservoir, and the backend's own.
  uint64_t pinned_bytes() const { return reservoir_->pinned_bytes() + turns_->device().pinned_bytes(); }

  uint64_t driver_bytes() const { return turns_->device().driver_bytes(); }

  // Takes one of max_sessions slots. A session with device memory has a slot.
  Status take_session_slot();
  void give_session_slot() { --n_sessions_; }

  // False in a child of fork(): the threads of the pool and the I/O thread do not exist there.
  bool in_its_process() const { return os::process_id() == process_; }

  void log(LogLevel level, const char* fmt, ...) ORRERY_PRINTF(3, 4);
  // Logs where the decode steps since the last call spent their time, at level trace. Not from within a turn.
  void log_trace();

 private:
  explicit Runtime(const RuntimeOptions& options) : options_(options) {}

  const AccountRef account_ = AccountRef::current();  // the runtime's, for what models and sessions share
  RuntimeOptions options_;
  const int64_t process_ = os::process_id();
  GpuUse gpu_use_;
  std::unique_ptr<Turns> turns_;      // owns the backend; destroyed after the members below
  std::unique_ptr<kv::Arena> arena_;  // its memory belongs to the backend
  std::unique_ptr<kv::Arena> reservoir_;
  std::unique_ptr<kv::PrefixTree> prefixes_;  // in the reservoir
  std::atomic<uint64_t> last_id_{0};
  std::mutex io_mutex_;  // guards the creation of io_ and host_
  std::unique_ptr<Backend> host_;
  std::unique_ptr<TwoThreads> host_sides_;
  std::unique_ptr<kv::IoThread> io_;
  std::atomic<uint32_t> n_sessions_{0};
};

// A session slot. The destructor gives it back.
class SessionSlot {
 public:
  SessionSlot() = default;
  static Result<SessionSlot> take(std::shared_ptr<Runtime> runtime) {
    ORRERY_TRY(runtime->take_session_slot());
    SessionSlot slot;
    slot.runtime_ = std::move(runtime);
    return slot;
  }
  SessionSlot(SessionSlot&&) noexcept = default;
  SessionSlot& operator=(SessionSlot&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    return *this;
  }
  ~SessionSlot() {
    if (runtime_) runtime_->give_session_slot();
  }

 private:
  std::shared_ptr<Runtime> runtime_;
};

}  // namespace orrery::engine

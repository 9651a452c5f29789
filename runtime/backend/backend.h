// The interface of a backend. The code above it is written once; runtime/cpu and cuda implement it.
//
// A Device (backend/device.h) has the operations that any thread may call at any time. A Backend owns an arena of device memory and
// executes operations on buffers in it, in the order of the calls, perhaps asynchronously. Results are on the host after download()
// or synchronize(). One thread at a time uses a Backend: the thread that holds the Turn (backend/turn.h).
//
// Operations return no errors and allocate nothing. The first failure is latched, nothing is computed behind it, and synchronize() reports
// it. A failure is never a caller's mistake, because shapes are validated when the model is loaded. It is final where the device is lost.
// Where the device goes on (it had no memory for a launch), synchronize() reports it once, to the caller whose results it has spoilt.
//
// Every backend has the operations of a step (backend/step.h). It may lack the other interfaces, which serve KV policies and
// samplers. The accessor then returns null, and a session that needs the interface is refused when it is opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/adapters.h"
#include "runtime/backend/device.h"
#include "runtime/backend/encoder.h"
#include "runtime/backend/experts.h"
#include "runtime/backend/fetch.h"
#include "runtime/backend/head_products.h"
#include "runtime/backend/key_codes.h"
#include "runtime/backend/keys.h"
#include "runtime/backend/kv.h"
#include "runtime/backend/low_rank.h"
#include "runtime/backend/memory.h"
#include "runtime/backend/recurrent.h"
#include "runtime/backend/shortlist.h"
#include "runtime/backend/step.h"
#include "runtime/backend/summaries.h"
#include "runtime/base/priority.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/base/tensor_type.h"

namespace orrery {

// What a backend takes while a model is loaded, so that placing its weights is fast: host threads, pinned memory. The destructor gives it
// back. It needs no turn, and comes when no place_weight() is running for this model.
class Loading {
 public:
  virtual ~Loading() = default;
};

class Backend : public Device, public StepOperations {
 public:
  virtual ~Backend() = default;

  // Memory. The arena is reserved once, before anybody else knows the backend.
  virtual Status reserve_arena(uint64_t bytes) = 0;
  virtual void upload(Ptr<std::byte> to, const void* from, uint64_t bytes) = 0;    // the caller may change `from` after the call
  virtual void download(void* to, Ptr<const std::byte> from, uint64_t bytes) = 0;  // returns when the bytes have arrived
  // Many uploads or downloads, in order, with fewer waits: small ones share transfers of a few megabytes.
  virtual void upload_all(Span<const Upload> uploads) {
    for (const Upload& u : uploads) upload(u.to, u.from, u.bytes);
  }
  virtual void download_all(Span<const Download> downloads) {
    for (const Download& d : downloads) download(d.to, d.from, d.bytes);
  }
  virtual void copy(Ptr<std::byte> to, Ptr<const std::byte> from, uint64_t bytes) = 0;
  // Announces that [at, at + bytes) will be written and that its content is not needed. Where device memory is the system's, the
  // backend takes the memory now, not in the middle of a step.
  virtual void commit(Ptr<std::byte> at, uint64_t bytes) { (void)at, (void)bytes; }
  // Sends what a step has recorded so far: operations between steps that are called within one run behind it. Does not wait.
  virtual void send() {}
  // Returns when all operations are done, with the first failure. A failure that the device survives is forgotten then.
  virtual Status synchronize() = 0;
  // Returns when all operations are done. A failure that nobody has been told by now is final: its results may be in use. For the end of
  // a Turn.
  virtual void end_turn() { (void)synchronize(); }
  // Host work between operations: call(context, i) for each i in [0, n), in any order, on the backend's own threads if it has any.
  // The calls do not use the backend.
  virtual void for_each(int64_t n, void (*call)(const void* context, int64_t i), const void* context) {
    for (int64_t i = 0; i < n; ++i) call(context, i);
  }

  // Sets the number of host threads for later steps; 0: the default number. Results stay the same. Call it between two steps.
  virtual Status set_threads(int32_t n_threads, Priority priority) {
    (void)n_threads, (void)priority;
    return error(Code::unsupported, "backend %s does not compute on threads of the processor", info().name);
  }

  // Weights of `bytes` in the file will be placed. Null: the backend takes nothing for it, or the system refused. place_weight() works
  // without it, too, and gives the same bytes. n_threads: of the host; 0: as many as the backend finds useful.
  virtual std::unique_ptr<Loading> begin_loading(uint64_t bytes, int32_t n_threads, Priority priority) {
    (void)bytes, (void)n_threads, (void)priority;
    return nullptr;
  }
  // Makes `weight` ready for matmul() and embed(). `at` is weight_bytes() long, 64-byte aligned.
  virtual Status place_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, Ptr<std::byte> at,
                              Weight* weight) = 0;
  // As place_weight() of a matrix that place_weight() takes, whose bytes as in the file are in device memory already: in the order of a step's
  // operations. Only for a backend whose products do not read the file's layout (BackendInfo::reads_host_memory).
  virtual void repack_there(TensorType type, int64_t n_rows, int64_t n_cols, Ptr<const std::byte> from, Ptr<std::byte> to) {
    (void)type, (void)n_rows, (void)n_cols, (void)from, (void)to;
  }
  // Writes to host memory the weight_bytes() that place_weight() would place. The same errors.
  virtual Status repack_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, std::byte* to) {
    (void)type, (void)n_rows, (void)n_cols, (void)source, (void)to;
    return error(Code::unsupported, "backend %s keeps no weights in host memory", info().name);
  }
  // Scratch memory of the steps that follow, scratch_bytes() long. Takes pinned memory for the largest steps so far. Where the system
  // refuses it (out_of_pinned_memory), nothing has changed, and the steps before can go on.
  virtual Status set_scratch(Ptr<std::byte> scratch, const StepLimits& limits) = 0;

  // Where the time of the decode steps since the last call went, as lines of JSON (runtime/cpu/trace.h); empty where nothing is
  // measured.
  virtual std::vector<std::string> take_trace() { return {}; }

  // Interfaces that a backend may lack. Calls need the same turn as calls to the backend.
  virtual KvMoves* kv_moves() { return nullptr; }
  virtual RecurrentOperations* recurrent() { return nullptr; }  // not null where check_recurrent() accepts a shape
  virtual ExpertOperations* experts() { return nullptr; }       // not null where check_experts() accepts a router
  virtual EncoderOperations* encoder() { return nullptr; }      // not null where check_encoder() is ok
  virtual HeadProducts* head_products() { return nullptr; }
  virtual AdapterOperations* adapters() { return nullptr; }  // not null where check_adapters() is ok
  virtual KeyOperations* keys() { return nullptr; }
  virtual FetchOperations* fetches() { return nullptr; }  // not null where BackendInfo::fetches
  virtual KvSummaries* summaries() { return nullptr; }
  virtual LowRankOperations* low_rank() { return nullptr; }
  virtual KeyCodeOperations* key_codes() { return nullptr; }     // with it, keys() takes KeysShape::codes
  virtual ShortlistOperations* shortlists() { return nullptr; }  // null where shortlist_bytes() is 0 for all rows
};

}  // namespace orrery

// What any thread may ask of a backend at any time, also while another thread runs a step.
//
// Everything here either answers from what never changes once the arena is reserved, or touches only memory that the caller owns and
// that no operation uses. Whatever needs the device's order of operations, the arena's content or the threads of a step is in Backend,
// which takes a Turn.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/memory.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/base/tensor_type.h"

namespace orrery {

// The most that any step will ask for: sizes the scratch memory once.
struct StepLimits {
  int32_t max_rows = 0, max_context = 0;
  int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int64_t max_in = 0;                     // widest matmul input
  int32_t max_top_keys = 0;               // keys of a job of KeyOperations; 0: no such jobs
  int32_t n_layers = 0;                   // of Step::heads; 0: no resident heads
  uint64_t staging_bytes = 0;             // about, for prompts' pages that lie outside of the arena; 0: all pages lie in the arena
};

struct BackendInfo {
  const char* name = "";                  // "cpu", "cuda"
  const char* path = "";                  // instruction set or architecture: "avx512-vnni", "sm_89"
  int32_t n_threads = 0;                  // host threads that take part
  bool unified_memory = false;            // device addresses are host addresses
  uint64_t device_bytes = 0;              // that an arena may take now; 0: the device's memory is the host's
  bool exports_weights = false;            // HeadView::exported and KeysJob::exported are used; else they are ignored
  bool makes_moments = false;             // KeyOperations::key_moments() works
};

class Device {
 public:
  virtual BackendInfo info() const = 0;
  // Where the arena begins. It is one allocation, made once.
  virtual Ptr<std::byte> arena() const = 0;

  // Whether attention exists for heads of this size: ok, or unsupported. Asked when a model is planned or loaded.
  virtual Status check_heads(int32_t head_dim) const {
    (void)head_dim;
    return ok_status();
  }
  // Bytes of the arena that Backend::place_weight() takes for this matrix (0: it is used where the file lies).
  virtual uint64_t weight_bytes(TensorType type, int64_t n_rows, int64_t n_cols) const = 0;
  // Bytes of scratch memory for partial results and quantized activations, a part of the plan.
  virtual uint64_t scratch_bytes(const StepLimits& limits) const = 0;
  // Bytes of ShortlistOperations' `out` for rows of n logits: results, then room to work. 0: rows of this size have no shortlist; where the
  // host reads a row in place, a shortlist gains nothing.
  virtual uint64_t shortlist_bytes(int64_t n) const {
    (void)n;
    return 0;
  }

  // Gathers the pieces, one behind the other, to `to`, and returns when the bytes have arrived. Runs in parallel with steps and in no
  // order with them: nobody else touches either side during the call.
  virtual Status copy_in(Ptr<std::byte> to, Span<const HostPiece> pieces) = 0;

  // The content of [at, at + bytes) is not needed any more. Where device memory is the system's, the system may take it back.
  virtual void discard(Ptr<std::byte> at, uint64_t bytes) { (void)at, (void)bytes; }

  // Shares host memory, page-aligned, with the device: operations may then use its addresses as they use the arena's. It stays locked
  // until unshare_host(). out_of_pinned_memory where the system refuses. With unified memory all host memory is shared.
  // unshare_host(): no operation that uses the memory is under way. A Turn waits for all of its own before it ends.
  virtual Status share_host(std::byte* at, uint64_t bytes) {
    (void)at, (void)bytes;
    return ok_status();
  }
  virtual void unshare_host(std::byte* at) { (void)at; }

 protected:
  ~Device() = default;
};

}  // namespace orrery

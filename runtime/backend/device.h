// The operations of a backend that any thread may call at any time, also while another thread runs a step.
//
// An operation here either answers from facts that never change once the arena is reserved, or touches only memory that the caller
// owns and that no other operation uses. Operations that need the device's order of operations, the arena's content or the threads
// of a step are in Backend, which takes a Turn.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/backend/memory.h"
#include "runtime/backend/recurrent.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/base/tensor_type.h"

namespace orrery {

struct RouterShape;  // backend/experts.h

// Upper bounds on the needs of any step. They size the scratch memory once.
struct StepLimits {
  int32_t max_rows = 0, max_context = 0;
  int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;  // the most of any KV group
  int64_t max_in = 0;                                 // widest matmul input
  int32_t max_top_keys = 0;                           // most keys in a job of KeyOperations; 0: no such jobs
  int32_t n_layers = 0;                               // layers of Step::heads; 0: no resident heads
  uint64_t staging_bytes = 0;                 // estimate, for a prompt's pages that lie outside the arena; 0: all pages lie in the arena
  int32_t rope_floats = 0;                    // rotated dimensions of all tables of RoPE; 0: at most head_dim
  int32_t n_experts = 0, n_used_experts = 0;  // most of a layer; 0: no layer has experts
  int64_t max_expert_in = 0;                  // widest input of an expert's matrix
  int32_t n_groups = 1;                       // KV groups
  int64_t max_head_state = 0;                 // floats of the largest state of one head of a recurrent layer
  int32_t queries_per_head = 0;               // query heads of a KV head in group 0; 0: n_heads / n_kv_heads

  int32_t group() const { return queries_per_head > 0 ? queries_per_head : n_heads / (n_kv_heads > 0 ? n_kv_heads : 1); }
};

struct BackendInfo {
  const char* name = "";             // "cpu", "cuda"
  const char* instruction_set = "";  // or architecture: "avx512-vnni", "sm_89"
  int32_t n_threads = 0;             // host threads that take part
  bool computes_on_host = false;     // operations run on these threads, which are all that compute
  bool reads_host_memory = false;    // operations use any host memory by its address, a file's mapping too, and the arena is host memory
  bool has_link = false;             // the device has memory of its own, and what crosses to it takes time
  bool exports_weights = false;      // the backend uses HeadView::exported and KeysJob::exported; otherwise it ignores them
  bool makes_moments = false;        // KeyOperations::key_moments() works
  // A decode step of several rows of one sequence gives each row the bits of a step of its own, and reads each weight once for all of them.
  bool decodes_rows = false;
  bool decodes_together = false;      // the same of decode steps of several sessions at once (StepOperations::begin_steps)
  bool attends_pages = false;         // decode steps attend to pages of the reservoir as fast as to the device's memory
  bool attends_positions = false;     // HeadView::positions works
  bool keeps_bits_in_chunks = false;  // a prompt row's bits do not depend on the chunk that it comes in (StepOperations::matmul)
  int32_t useful_chunk = 0;           // tokens up to which larger chunks of a prompt are faster; 0: they are not
  bool fetches = false;               // Backend::fetches() works
  bool moves_ahead = false;           // KvMoves::move_kv_ahead() runs in parallel with operations
  bool keeps_tiles = false;           // HeadView::tiles_there spares the upload of HeadView::tiles in each step
  bool has_key_codes = false;         // Backend::key_codes() is not null
  bool codes_values = false;          // key codes may have turns and codes of V (KeyCodeFormat)
};

// What steps cost, for choices that must not depend on the clock: the same calls make the same choices.
struct StepCost {
  double operations_per_us = 0.0;  // of a slow device of this kind: for a guess before anything has been measured
  // A decode step with i + 1 rows more than one: the further time of its products, as a share of the time that reading all weights takes.
  std::array<double, static_cast<size_t>(kMostGuessedRows)> products = {};
  double attention = 0.0;  // the time of each further row's attention, as a share of the time that reading the KV takes
};

class Device {
 public:
  virtual BackendInfo info() const = 0;  // asks no driver: cheap enough for every step
  virtual StepCost step_cost() const = 0;
  // Bytes that an arena may take now; 0: the device's memory is the host's.
  virtual uint64_t free_bytes() const { return 0; }
  // Device memory that the driver may take beside the arena once the arena is reserved, at most; an estimate. What it has taken before, for
  // the context and the kernels, is not free any more.
  virtual uint64_t driver_bytes() const { return 0; }
  // Host memory that the backend itself has locked, beside what it shares.
  virtual uint64_t pinned_bytes() const { return 0; }
  // Where the arena begins. It is one allocation, made once.
  virtual Ptr<std::byte> arena() const = 0;

  // Whether attention exists for heads of this size with KV of this type: ok, or unsupported. Asked with F16 when a model is planned or
  // loaded, and with a session's types. shared_values: KvFormat's.
  virtual Status check_heads(int32_t head_dim, KvType type = KvType::f16, int32_t shared_values = 0) const {
    (void)head_dim, (void)type, (void)shared_values;
    return ok_status();
  }
  // The same of a gated delta net, and of gated attention and short convolutions (null).
  virtual Status check_recurrent(const DeltaNetShape* shape) const {
    (void)shape;
    return error(Code::unsupported, "backend %s computes no recurrent layers, and no gates of attention", info().name);
  }
  virtual Status check_mamba2(const Mamba2Shape& shape) const {
    (void)shape;
    return error(Code::unsupported, "backend %s computes no Mamba2 layers", info().name);
  }
  // The same of encoders (backend/encoder.h).
  virtual Status check_encoder() const {
    return error(Code::unsupported,
                 "backend %s computes no encoders, whose rows see each other: expected backend cpu, or a model that generates text",
                 info().name);
  }
  // The same of adapters: small products of float32 matrices in the arena.
  virtual Status check_adapters() const {
    return option_error(Code::unsupported, "adapters", "backend %s runs no adapters: expected backend cpu, or no adapters", info().name);
  }
  // The same of a mixture of experts.
  virtual Status check_experts(const RouterShape& router) const {
    (void)router;
    return error(Code::unsupported, "backend %s computes no mixtures of experts", info().name);
  }
  // Bytes of the arena that Backend::place_weight() takes for this matrix (0: it is used where the file lies).
  virtual uint64_t weight_bytes(TensorType type, int64_t n_rows, int64_t n_cols) const = 0;
  // Bytes of scratch memory for partial results and quantized activations, a part of the plan.
  virtual uint64_t scratch_bytes(const StepLimits& limits) const = 0;
  // Bytes of ShortlistOperations' `out` for rows of n logits: results, then work space. 0: rows of this size have no shortlist. A
  // shortlist gains nothing where the host reads a row in place.
  virtual uint64_t shortlist_bytes(int64_t n) const {
    (void)n;
    return 0;
  }

  // Copies the pieces to `to`, one after the other, and returns when the bytes have arrived. Runs in parallel with steps, in no
  // order relative to them. Nobody else touches source or target during the call.
  virtual Status copy_in(Ptr<std::byte> to, Span<const HostPiece> pieces) = 0;

  // The content of [at, at + bytes) is not needed any more. Where device memory is the system's, the system may take it back.
  virtual void discard(Ptr<std::byte> at, uint64_t bytes) { (void)at, (void)bytes; }

  // Host memory that operations may use by the host's addresses, as they use the arena's. Any thread may call these functions.
  // share_host(): shares memory of the caller, page-aligned. It stays locked until unshare_host(), which takes the same address. Returns
  // out_of_pinned_memory where the system refuses. A device that reads_host_memory shares all of it.
  // Some systems give a device other addresses of memory that is not its driver's (WSL2, Windows): there shares_by_allocating() is true,
  // share_host() refuses, and allocate_shared() takes such memory from the driver.
  // Before memory is given back: no operation may be using it. A Turn waits for all of its own operations before it ends.
  virtual bool shares_by_allocating() const { return false; }
  virtual Status share_host(std::byte* at, uint64_t bytes) {
    (void)at, (void)bytes;
    return ok_status();
  }
  virtual void unshare_host(std::byte* at) { (void)at; }
  virtual Result<std::byte*> allocate_shared(uint64_t bytes) {
    return memory_error(Code::out_of_pinned_memory, bytes, 0, "this device shares the memory of its callers");
  }
  virtual void free_shared(std::byte* at) { (void)at; }

 protected:
  ~Device() = default;
};

}  // namespace orrery

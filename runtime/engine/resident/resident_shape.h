// What a compressed session keeps, before anything is taken: which parts, of what size, and the layout of their memory. It follows from
// hyperparameters, options, context, and what the backend says of itself. The plan and Parts::make() both go by it.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/session_options.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/resident/digests.h"
#include "runtime/kv/resident/low_rank.h"
#include "runtime/model/model.h"
#include "runtime/policy/policy.h"

namespace orrery::engine {

struct ResidentShape {
  const model::Hyperparameters* hyper = nullptr;
  BackendInfo backend;
  uint32_t n_context = 0;
  KvFormat kept, resident;            // in the reservoir; on the device
  std::unique_ptr<policy::Policy> policy;

  uint64_t n_slots = 0;               // of all heads; what stands beside them on the device takes its part of the budget
  kv::DigestSpec digests;             // no heads: none
  kv::LowRankSpec low_rank;           // rank 0: none
  uint32_t n_compensation_tokens = 0;
  bool refills = false;
  uint64_t staging_tokens = 0;        // of the refills' ring; 0: nothing is transferred
  uint32_t n_query_rows = 0;          // last positions whose queries are kept
  uint32_t n_scored_heads = 0;        // whose attention weights a step exports
  int64_t exported_stride = 0;        // keys of each

  // moves_directly: engine::moves_directly(); then there is no staging ring. Errors are those of make_policy().
  static Result<ResidentShape> make(const model::Hyperparameters& h, const BackendInfo& backend, const SessionOptions& options,
                                    uint32_t n_context, bool moves_directly);
  // Whether the backend has the operations that this needs; unsupported names those that it lacks. `policy_name` is for the message.
  Status check_operations(Backend* backend, const char* policy_name) const;

  uint64_t n_heads() const { return static_cast<uint64_t>(hyper->n_layers) * static_cast<uint64_t>(hyper->n_kv_heads); }
  // Refills fetch V alone, and K is rebuilt.
  bool rebuilds() const { return low_rank.rank > 0 && !low_rank.by_head; }
};

// Every region of a compressed session's resident part, and the sum of the host memory that its policy takes. Of options whose policy cannot
// be made: its slots alone, so that what is wrong is said when it is made.
kv::Layout resident_layout(const model::Hyperparameters& h, const BackendInfo& backend, const SessionOptions& options, uint32_t n_context,
                           bool moves_directly);

}  // namespace orrery::engine

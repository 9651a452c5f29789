// The shape of a compressed session, before any memory is taken: its parts, their sizes, and the layout of their memory. It follows from
// the description, options, context and BackendInfo. The plan and Parts::make() both use it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/session_options.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/resident/digests.h"
#include "runtime/kv/resident/key_codes.h"
#include "runtime/kv/resident/low_rank.h"
#include "runtime/model/load/model.h"
#include "runtime/policy/policy.h"

namespace orrery::engine {

struct ResidentShape {
  const model::Description* description = nullptr;
  BackendInfo backend;
  uint32_t n_context = 0;
  KvFormat kept, resident;  // formats of the reservoir and of the slots
  std::unique_ptr<policy::Policy> policy;

  uint64_t n_slots = 0;      // of all heads, after the other parts on the device have taken their bytes of the budget
  bool in_place = false;     // slots hold no KV (Policy::slots_in_place())
  kv::DigestSpec digests;    // no heads: no digests
  kv::LowRankSpec low_rank;  // rank 0: no low-rank keys
  int32_t rope = 0;          // AttentionShape::rope of all layers that have low-rank keys, or codes with turns
  kv::KeyCodeSpec codes;     // bits 0: no key codes
  bool rotated = false;      // whether pages hold rotated KV
  uint32_t n_compensation_tokens = 0;
  bool refills = false;
  bool moves_directly = false;  // the backend itself reads the reservoir for refills
  bool moves_ahead = false;     // moves_directly, in parallel with the layers before (KvMoves::move_kv_ahead)
  bool fetches = false;         // the device selects and fetches within a step (FetchOperations)
  uint64_t staging_tokens = 0;  // of the staging ring; 0: nothing is transferred
  uint32_t n_query_rows = 0;    // last positions whose queries are kept
  uint32_t n_scored_heads = 0;  // heads whose attention weights a step exports
  int64_t exported_stride = 0;  // keys of a scored head

  // moves_directly: engine::moves_directly(). The shape's member is also false for a device beside host memory that cannot move ahead, if
  // transfers can run in parallel with its steps: refills that the policy asks for ahead. Errors are those of make_policy().
  static Result<ResidentShape> make(const model::Description& h, const BackendInfo& backend, const SessionOptions& options,
                                    uint32_t n_context, bool moves_directly);
  // ok if the backend has the operations that the shape needs; else unsupported, which names the missing ones. policy_name: for the
  // message.
  Status check_operations(Backend* backend, const char* policy_name) const;

  // A hash of all that decides which saved states fit (Resident::kind).
  std::array<uint8_t, 16> kind(const SessionOptions& options) const;

  uint64_t n_heads() const {
    return static_cast<uint64_t>(description->kv().n_layers()) * static_cast<uint64_t>(description->kv().n_kv_heads);
  }
  // Whether refills fetch V alone and K is rebuilt.
  bool rebuilds() const { return low_rank.rank > 0 && !low_rank.by_head; }
};

// The regions of a compressed session's resident part, with the host memory of its policy. If the policy cannot be made of the options: the
// slots alone. The error comes when the session makes its policy.
kv::Layout resident_layout(const model::Description& h, const BackendInfo& backend, const SessionOptions& options, uint32_t n_context,
                           bool moves_directly);

}  // namespace orrery::engine

// What a session is opened with, and what follows from it for the KV: formats, the policy, and its budget in slots.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/backend/kv.h"
#include "runtime/base/status.h"
#include "runtime/model/model.h"
#include "runtime/policy/policy.h"

namespace orrery::engine {

inline constexpr uint32_t kMaxContext = 1u << 27;

enum class Overflow : uint8_t { stop, drop_oldest };

struct SessionOptions {
  uint32_t n_context = 0;      // 0: as trained, or what fits
  std::string policy = "full"; // what of the KV stays on the device: a name of policy::make_policy, or "full"
  bool automatic = false;      // "full", but "auto" with what is free where a given n_context does not fit (plan, plan_session)
  policy::Options policy_options;
  double kv_share = 1.0;       // resident share of full KV's bytes in kv_type, for policies other than full
  uint64_t kv_budget_bytes = 0;  // or bytes, in the device's type; 0: by share
  std::shared_ptr<const policy::HeadProfile> head_profile;   // null: policies calibrate themselves; else of this model
  KvType kv_type = KvType::f16;   // of the pages: what is kept of every token
  std::optional<KvType> device_kv_type;   // of the resident part under such policies, as kv_type or coarser; none: as the policy has it
  Overflow overflow = Overflow::stop;
  uint32_t chunk_tokens = 0;   // 0: kDefaultChunk

  Status validate(const model::Hyperparameters& h) const;
  uint32_t chunk() const;
  bool compressed() const { return policy != "full"; }
  KvType resident_type(const model::Hyperparameters& h) const;
};

KvFormat kv_format(const model::Hyperparameters& h, KvType type);

// A compressed session's policy, and how many slots its budget comes to.
Result<std::unique_ptr<policy::Policy>> make_policy(const model::Hyperparameters& h, const SessionOptions& options,
                                                    uint32_t n_context);
uint64_t resident_slots(const model::Hyperparameters& h, const SessionOptions& options, uint32_t n_context);

}  // namespace orrery::engine

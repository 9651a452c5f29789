// An opened model: weights on the backend, vocabulary, and what its sessions share (KV page pools, the workspace).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/engine/shared/waiting_rows.h"
#include "runtime/engine/shared/runtime.h"
#include "runtime/engine/shared/vocabulary.h"
#include "runtime/gguf/gguf.h"
#include "runtime/kv/memory/page_pool.h"
#include "runtime/kv/memory/plan.h"
#include "runtime/model/forward.h"
#include "runtime/model/model.h"
#include "runtime/policy/policy.h"

namespace orrery::engine {

struct ModelOptions {
  gguf::Load load = gguf::Load::map;
  model::LoadOptions weights;
};

// What a session is opened with.
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

// Where a model comes from: a file by its path, an open file, or memory that holds one.
struct ModelSource {
  std::string path;
  int32_t descriptor = -1;               // where not -1: of an open file, which stays the caller's
  Span<const std::byte> memory;          // where `from_memory`: stays as it is until the model is gone, but for gguf::Load::read
  bool from_memory = false;
  Result<gguf::File> open(const gguf::OpenOptions& options) const;
};

class LanguageModel {
 public:
  static Result<std::shared_ptr<LanguageModel>> open(std::shared_ptr<Runtime> runtime, const ModelSource& source,
                                                     const ModelOptions& options);
  static Result<std::shared_ptr<LanguageModel>> open(std::shared_ptr<Runtime> runtime, const std::string& path,
                                                     const ModelOptions& options) {
    ModelSource source;
    source.path = path;
    return open(std::move(runtime), source, options);
  }

  Runtime& runtime() const { return *runtime_; }
  const std::shared_ptr<Runtime>& runtime_ptr() const { return runtime_; }
  const model::Model& weights() const { return *model_; }
  const model::Hyperparameters& hyper() const { return model_->hyper; }
  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }
  const text::Tokenizer& tokenizer() const { return vocabulary_->tokenizer(); }

  // What one more session would take of the arena's free part, automatic ones decided (validate() may refuse then what a full one is not
  // to have).
  kv::Plan plan_session(SessionOptions* options) const;
  kv::Plan plan_session(SessionOptions options) const { return plan_session(&options); }
  // Pages in the device arena, or in the reservoir.
  Result<std::shared_ptr<kv::PagePool>> page_pool(KvType type, bool in_reservoir = false);
  // Grows the workspace to serve sessions like this one. Takes a turn if it has to.
  Status ensure_workspace(uint32_t n_context, const SessionOptions& options);
  uint64_t workspace_bytes() const { return workspace_bytes_.load(std::memory_order_relaxed); }
  // What steps share: for the thread whose turn it is.
  const model::Workspace& workspace(const Turn&) const { return workspace_; }
  const StepLimits& limits(const Turn&) const { return limits_; }
  WaitingRows& waiting_rows(const Turn&) { return waiting_rows_; }

 private:
  LanguageModel(std::shared_ptr<Runtime> runtime, std::unique_ptr<model::Model> model,
                std::shared_ptr<const Vocabulary> vocabulary)
      : runtime_(std::move(runtime)), model_(std::move(model)), vocabulary_(std::move(vocabulary)),
        waiting_rows_(model_->hyper.n_vocab, model_->hyper.n_embd) {}

  std::shared_ptr<Runtime> runtime_;            // outlives everything below, which lies in its arena
  std::unique_ptr<model::Model> model_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;                    // over pools, and changes of limits_
  std::array<std::shared_ptr<kv::PagePool>, 8> pools_;   // by KvType, then those in the reservoir
  kv::ArenaRegion workspace_region_;
  model::Workspace workspace_;                  // changes in a turn, as do the next two
  StepLimits limits_;
  WaitingRows waiting_rows_;                          // of the workspace
  std::atomic<uint64_t> workspace_bytes_{0};    // workspace_.bytes, for statistics
};

KvFormat kv_format(const model::Hyperparameters& h, KvType type);

// A compressed session's policy, and how many slots its budget comes to.
Result<std::unique_ptr<policy::Policy>> make_policy(const model::Hyperparameters& h, const SessionOptions& options,
                                                    uint32_t n_context);
uint64_t resident_slots(const model::Hyperparameters& h, const SessionOptions& options, uint32_t n_context);

// The whole plan from a file's header: model, one session, and the budget.
Result<kv::Plan> plan_file(const std::string& path, const RuntimeOptions& runtime, const ModelOptions& model,
                           SessionOptions session);

}  // namespace orrery::engine

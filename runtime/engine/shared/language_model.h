// An opened model: weights on the backend, vocabulary, and what its sessions share (KV page pools, the workspace).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/base/allocation/account.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/waiting_rows.h"
#include "runtime/engine/shared/runtime.h"
#include "runtime/engine/shared/session_options.h"
#include "runtime/engine/shared/vocabulary.h"
#include "runtime/gguf/gguf.h"
#include "runtime/kv/memory/page_pool.h"
#include "runtime/model/forward.h"
#include "runtime/model/model.h"

namespace orrery::engine {

struct ModelOptions {
  gguf::Load load = gguf::Load::map;
  model::LoadOptions weights;
};

// Where a model comes from: a file by its path, an open file, or memory that holds one.
struct ModelSource {
  std::string path;
  int32_t descriptor = -1;               // unless -1: an open file, which stays the caller's
  Span<const std::byte> memory;          // where `from_memory`: unchanged until the model is gone, unless gguf::Load::read copies it
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

  // What the model's sessions share already, and one more need not take: the workspace, and pages in the device arena that nobody has
  // reserved.
  struct Shared {
    StepLimits limits;           // of the workspace; zeros: none
    uint32_t spare_pages = 0;
  };
  Shared shared_with(const SessionOptions& options) const;
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

  const AccountRef account_ = AccountRef::current();   // the model's, for what its sessions share
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

// What a workspace with the limits `held` (zeros: none) must become to serve one more session, too; and whether it serves as it is.
StepLimits workspace_limits(const model::Hyperparameters& h, const Device& device, const StepLimits& held, const SessionOptions& options,
                            uint32_t n_context);
bool same_workspace(const StepLimits& a, const StepLimits& b);

}  // namespace orrery::engine

// An open model: weights on the backend, vocabulary, and the memory that its sessions share (KV page pools, the workspace).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/allocation/account.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/waiting_rows.h"
#include "runtime/engine/shared/runtime.h"
#include "runtime/engine/shared/session_options.h"
#include "runtime/engine/shared/vocabulary.h"
#include "runtime/gguf/gguf.h"
#include "runtime/kv/memory/page_pool.h"
#include "runtime/model/forward/forward.h"
#include "runtime/model/load/model.h"

namespace orrery::engine {

// Whether the processor computes the experts or columns that are not on the device. automatic: on a GPU, experts that have no room there; and
// columns of dense models, where some must leave and the caller has fixed no number of layers.
enum class HostComputes : uint8_t { automatic, always, never };

struct ModelOptions {
  gguf::Load load = gguf::Load::map;
  model::LoadOptions weights;
  int64_t experts_on_device = -1;  // of all layers together; -1: as many as fit beside sessions_bytes
  int64_t layers_on_device = -1;   // whose matrices are there; -1: the same
  int64_t columns_on_device = -1;  // of dense feed-forward blocks, per cent, with HostComputes::always; -1: the same
  HostComputes host_computes = HostComputes::automatic;
  uint64_t sessions_bytes = 0;  // of the arena, which weights leave free; 0: what a session of kUsualContext tokens needs
};

// The context of a session that experts and columns leave room for, or the model's if that is smaller. Layers stay where the shortest session fits
// beside them, because a policy makes do with little memory for KV, and a layer that left would cross the link in every step. If they have
// to leave, they leave room for kShortContext tokens.
inline constexpr uint32_t kUsualContext = 8192, kShortContext = 2048;
// Where a model's weights lie, from its file's header. invalid_argument: fewer experts on the device than a cache needs, or more layers
// than the model has; a wish for the processor or for columns that the model cannot fulfil.
Result<model::WeightsPlace> place_model(const gguf::File& file, const model::Description& description, const Device& device,
                                        const RuntimeOptions& runtime, uint64_t arena_bytes, const ModelOptions& options);

// The source of a model: a file by its path, an open file or a part of it, or a file in memory.
struct ModelSource {
  std::string path;
  int32_t descriptor = -1;  // not -1: an open file, which the caller keeps
  uint64_t offset = 0;      // where the model's file begins in that file, and its bytes; 0: up to the end
  uint64_t bytes = 0;
  Span<const std::byte> memory;  // if from_memory; it stays unchanged as long as the model, unless gguf::Load::read copies it
  bool from_memory = false;
  Result<gguf::File> open(const gguf::OpenOptions& options) const;
  static std::shared_ptr<const ModelSource> of_path(const std::string& path) {
    ModelSource source;
    source.path = path;
    return std::make_shared<const ModelSource>(std::move(source));
  }
};

// Mean keys of a model's KV heads, of each KV group in turn (n_layers, n_kv_heads, head_dim): what KvTransform subtracts. sequence/key_means
// measures them.
using KeyMeans = std::vector<float>;

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

  ~LanguageModel() { runtime_->prefixes().forget(id_); }

  uint64_t id() const { return id_; }  // of all models of the runtime
  Runtime& runtime() const { return *runtime_; }
  const std::shared_ptr<Runtime>& runtime_ptr() const { return runtime_; }
  const model::Model& weights() const { return *model_; }
  const model::Description& description() const { return model_->description; }
  // The head that guesses tokens, of a model whose file has one: a model of its own, which all sessions of `of` share.
  static Result<std::shared_ptr<LanguageModel>> open_head(const std::shared_ptr<LanguageModel>& of);

  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }
  const text::Tokenizer& tokenizer() const { return vocabulary_->tokenizer(); }

  // Memory that the model's sessions share, and that one more session need not take: the workspace, and unreserved pages.
  struct Shared {
    StepLimits limits;                                             // of the workspace; all 0: no workspace
    std::array<uint32_t, size_t{kMostKvGroups}> spare_pages = {};  // of each KV group, in the arena
  };
  Shared shared_with(const SessionOptions& options) const;
  // The pool of a KV group's pages in the device arena, or in the reservoir.
  Result<std::shared_ptr<kv::PagePool>> page_pool(KvType type, bool in_reservoir = false, size_t group = 0);
  // Grows the workspace if a session with these options needs more; then it takes a turn.
  Status ensure_workspace(uint32_t n_context, const SessionOptions& options);
  uint64_t workspace_bytes() const { return workspace_bytes_.load(std::memory_order_relaxed); }
  // Shared by all steps: for the thread that has the turn.
  const model::Workspace& workspace(const Turn&) const { return workspace_; }
  const StepLimits& limits(const Turn&) const { return limits_; }
  WaitingRows& waiting_rows(const Turn&) { return waiting_rows_; }
  // Counts, since the model was opened: passes over the weights in decode; steps of sessions in them; the most steps of one pass.
  struct DecodeCounts {
    uint64_t passes = 0, steps = 0, most = 0;
  };
  DecodeCounts& decode_counts(const Turn&) { return decode_counts_; }
  // The model's mean keys, once a session has measured them; they depend on the type of the pages and on the RoPE table (its hash).
  struct MeasuredKeys {
    KvType type;
    std::array<uint8_t, 16> rope;
    std::shared_ptr<const KeyMeans> means;
  };
  std::vector<MeasuredKeys>& measured_keys(const Turn&) { return measured_keys_; }
  const AccountRef& account() const { return account_; }

 private:
  LanguageModel(std::shared_ptr<Runtime> runtime, std::unique_ptr<model::Model> model, std::shared_ptr<const Vocabulary> vocabulary)
      : runtime_(std::move(runtime)), model_(std::move(model)), vocabulary_(std::move(vocabulary)),
        waiting_rows_(model_->description.n_vocab, model_->description.n_embd) {}

  const AccountRef account_ = AccountRef::current();  // the model's, for what its sessions share
  std::shared_ptr<Runtime> runtime_;                  // its arena holds the members below, so it is destroyed last
  const uint64_t id_ = runtime_->new_id();
  std::shared_ptr<LanguageModel> head_of_;  // of a head: its model, whose tables it reads
  std::unique_ptr<model::Model> model_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;  // guards pools_, and changes of limits_
  using Pools = std::array<std::shared_ptr<kv::PagePool>, size_t{kMostKvGroups}>;
  std::array<Pools, 2 * kKvTypeCount> pools_;  // by KvType: in the arena, and in the reservoir
  kv::ArenaRegion workspace_region_;
  model::Workspace workspace_;  // changes within a turn, like the next two members
  StepLimits limits_;
  WaitingRows waiting_rows_;                  // in the workspace
  DecodeCounts decode_counts_;                // changes within a turn
  std::vector<MeasuredKeys> measured_keys_;   // changes within a turn
  std::atomic<uint64_t> workspace_bytes_{0};  // workspace_.bytes, for statistics
  std::mutex head_mutex_;                     // guards head_, also while it is loaded
  std::weak_ptr<LanguageModel> head_;
};

// The limits of a workspace that serves the sessions of `held` (all 0: none) and one more session.
StepLimits workspace_limits(const model::Description& h, const Device& device, const StepLimits& held, const SessionOptions& options,
                            uint32_t n_context);
bool same_workspace(const StepLimits& a, const StepLimits& b);

}  // namespace orrery::engine

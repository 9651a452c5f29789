// Planning: the memory of a model and a session, region by region, before any memory is taken. It follows from a file's header,
// the description and options. Session::open() makes the plan, and then takes exactly its regions.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/backend/device.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/plan.h"

namespace orrery::engine {

// The input of a session's layout, besides the context.
// The memory of a model that is not loaded yet; else all 0.
struct WeightsMemory {
  uint64_t arena = 0, mapped = 0;
  model::ExpertStore::Needs experts = {};  // beside `arena`
  model::LayerStore::Needs columns = {};   // of feed-forward blocks that are divided
  model::LayerStore::Needs layers = {};
  bool experts_on_host = false;  // the host computes some
  int32_t columns_on_host = 0;   // the same, the most of a layer
  uint64_t all_arena() const { return arena + experts.arena_bytes + columns.arena_bytes + layers.arena_bytes; }
};
// What the processor computes of a model beside the device, which takes work memory in the reservoir.
struct HostWork {
  const Device* host = nullptr;  // null: nothing
  bool experts = false;
  int32_t columns = 0;
  static HostWork of(const model::Model& model);
  uint64_t bytes(const model::Description& description, const StepLimits& limits) const;
};
struct LayoutInput {
  const model::Description& description;
  const Device& device;
  const SessionOptions* options;
  bool moves_directly;                // engine::moves_directly()
  LanguageModel::Shared shared = {};  // memory that the model's sessions share already: not in the layout
  WeightsMemory weights = {};
  // Speculate::draft: of the model that drafts.
  struct Draft {
    const model::Description* description = nullptr;
    LanguageModel::Shared shared = {};
    WeightsMemory weights = {};
  };
  Draft draft = {};
  HostWork host = {};
  uint64_t adapters_bytes = 0;  // of adapters that are not open yet, or in a plan of all memory; else 0
  // The same with other options, which live as long.
  LayoutInput with(const SessionOptions& others) const {
    LayoutInput input = *this;
    input.options = &others;
    return input;
  }
};
kv::Layout session_layout(const LayoutInput& input, uint32_t n_context);

// The plan of one more session, with the free part of the arena as its budget. Decides automatic options: `options` has policy and chunk
// afterwards. Call validate() again then: a full session refuses some options.
kv::Plan plan_session(const LanguageModel& model, SessionOptions* options);
inline kv::Plan plan_session(const LanguageModel& model, SessionOptions options) { return plan_session(model, &options); }

// Errors of a model that is to draft for another one: it is an encoder, has recurrent layers, or has another vocabulary than `own`.
Status check_draft(const model::Description& draft, const Vocabulary& vocabulary, const Vocabulary& own);

// The whole plan from a file's header: model, one session, and the budget.
Result<kv::Plan> plan_file(const ModelSource& source, const RuntimeOptions& runtime, const ModelOptions& model, SessionOptions session);
inline Result<kv::Plan> plan_file(const std::string& path, const RuntimeOptions& runtime, const ModelOptions& model,
                                  SessionOptions session) {
  ModelSource source;
  source.path = path;
  return plan_file(source, runtime, model, std::move(session));
}

}  // namespace orrery::engine

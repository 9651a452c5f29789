// Planning: what a model and a session will take, region by region, before anything is taken. A file's header, hyperparameters and options
// are enough. Session::open() plans, and then takes what the plan says.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/backend/device.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/plan.h"

namespace orrery::engine {

// What a session's layout follows from, besides the context.
struct LayoutInput {
  const model::Hyperparameters& hyper;
  const Device& device;
  const SessionOptions& options;
  bool moves_directly;                                       // engine::moves_directly()
  LanguageModel::Shared shared = {};                         // what is there already
  uint64_t weights_bytes = 0, weights_mapped_bytes = 0;      // of the model, where it is still to be loaded
};
kv::Layout session_layout(const LayoutInput& input, uint32_t n_context);

// What one more session of the model would take of the arena's free part. Automatic options are decided (validate() may refuse then what a
// full session is not to have).
kv::Plan plan_session(const LanguageModel& model, SessionOptions* options);
inline kv::Plan plan_session(const LanguageModel& model, SessionOptions options) { return plan_session(model, &options); }

// The whole plan from a file's header: model, one session, and the budget.
Result<kv::Plan> plan_file(const ModelSource& source, const RuntimeOptions& runtime, const ModelOptions& model, SessionOptions session);
inline Result<kv::Plan> plan_file(const std::string& path, const RuntimeOptions& runtime, const ModelOptions& model, SessionOptions session) {
  ModelSource source;
  source.path = path;
  return plan_file(source, runtime, model, std::move(session));
}

}  // namespace orrery::engine

// Mean keys: what a session subtracts from its keys before they are quantized (KvTransform). A shift common to all keys of a head adds one
// number to all of a query's products, and the softmax cancels it. Keys of one head share a large mean (above all where K has a bias), so
// that less remains to be quantized.
//
// The means belong to the model, not to the prompt: every session of the model subtracts the same, whatever it holds, how its prompts were
// cut, and where it was rewound. A session measures them when it first needs them. kMeasuredTokens random tokens, always the same, run
// through the model, and their keys before RoPE are averaged. This average is then averaged over kMeanPositions positions of RoPE: slow
// dimensions keep it, fast ones lose it. A session's file keeps the means beside the KV.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/engine/shared/session_options.h"
#include "runtime/engine/state/checkpointed_state.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/sequence_pages.h"
#include "runtime/model/description/rope.h"

namespace orrery::engine {

inline constexpr uint32_t kMeasuredTokens = 32;
inline constexpr uint32_t kMeanPositions = 1024;

// Two tables with one hash rotate alike.
std::array<uint8_t, 16> hash_ropes(const model::RopeTables& ropes);

// The session's device memory for means, and host memory for its own copy; empty where keys are not centred.
kv::Region key_means_layout(const model::Description& h, const SessionOptions& options);

// The model's means for these pages' type and these rotations, measured now if no session has measured them. `pages` is empty before
// and after. `state`, if the model has any, is unknown afterwards. Within a turn, with the model's scratch memory set; max_rows: of a step.
// The status is cancelled if `cancel` ends the step.
Result<std::shared_ptr<const KeyMeans>> mean_keys(LanguageModel* model, const Turn& turn, const model::RopeTables& ropes,
                                                  kv::SequencePages* pages, CheckpointedState* state, uint32_t max_rows,
                                                  const std::atomic<bool>* cancel);

// KV as it is stored: means of its keys (null: not centred), and whether it is rotated.
struct StoredForm {
  std::shared_ptr<const KeyMeans> means;
  bool rotated = false;
  explicit operator bool() const { return means || rotated; }
};
// Changes the form of a page in host memory (SequencePages::download()). Values are read as floats, and rounded once more as
// StepOperations::append_kv() stores floats.
void change_form(const kv::SequencePages& pages, const StoredForm& from, const StoredForm& to, std::byte* page);
// The same of the windows of rings (SequencePages::download_windows()).
void change_form_of_windows(const kv::SequencePages& pages, const StoredForm& from, const StoredForm& to, std::byte* windows);

}  // namespace orrery::engine

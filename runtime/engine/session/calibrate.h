// Calibration: a model reads texts, goes on for some greedy steps behind each, and the sets of prompt keys that its KV
// heads attend to most become a head profile (HeteroCache, sections 3 and 4.1; SyncKV, section 4.1).
//
// The way of the data: tokens -> a session with full attention that keeps its last queries -> top-k sets of every head,
// step by step (step 0: the prompt's last query, then one for each decoded token) -> policy::LayerOverlaps -> roles and
// clusters. Then random tokens that are repeated -> how much each head retrieves (retrieval.h). Decoding goes on where the model would end its text: what is counted are steps.
//
// Layers with a sliding window are scored as if they had none: the profile is whole, policies pass over such layers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/policy/heads/overlaps.h"
#include "runtime/policy/heads/profile.h"
#include "runtime/policy/heads/roles.h"

namespace orrery::engine {

struct CalibrationOptions {
  uint32_t n_steps = 99;             // decode steps behind each text
  uint32_t top_k = 1024;             // keys of a set; of a text at most a quarter of its tokens
  uint32_t n_representatives = 0;    // SyncKV's clusters of a layer; 0: 2 of 8 heads and more, else 1
  policy::Thresholds thresholds;
  double tau_drift = -1;             // of the profile; below 0: tau_stable
  double full_share = 0;             // > 0: thresholds are moved until no more heads than this share are full
  KvType kv_type = KvType::f16;
  std::string note;                  // of the profile
  std::function<bool(uint64_t done, uint64_t total)> progress;   // tokens of texts, steps and repetitions; false: cancelled
};

// What pictures are drawn from.
struct CalibrationSteps {
  std::vector<uint32_t> text_tokens, top_k;   // (n_texts) tokens of each, and the size of its sets
  uint32_t n_steps = 0, n_layers = 0, n_kv_heads = 0;
  double chance = 0;                          // overlap of random sets, mean over texts
  // (n_layers, n_kv_heads, n_steps) overlap of the step's set with the prompt's, mean over texts.
  std::vector<double> drift;
  // (n_layers, n_layers), symmetric, mean over texts and steps 0 to n_steps: how much of a head's set its best match in
  // the other layer has, mean over the heads of both. (Head numbers say nothing across layers.) On the diagonal the
  // best match is another head of the layer; NaN where there is none.
  std::vector<double> layer_overlap;
  std::vector<uint8_t> windowed;              // (n_layers) 1: has a sliding window
};

struct CalibrationResult {
  policy::HeadProfile profile;   // bound to the model
  CalibrationSteps steps;
};

constexpr uint32_t kLeastCalibrationTokens = 16;   // of a text

// Takes a session's memory, of the longest text and its steps or of the repeated tokens, while it runs. Errors: invalid_argument (a text that is
// too short, a token outside the vocabulary, options out of range, a share that no thresholds meet), cancelled, and what
// opening a session and computing can fail with.
Result<CalibrationResult> calibrate(const std::shared_ptr<LanguageModel>& model,
                                    Span<const Span<const int32_t>> texts, const CalibrationOptions& options);

// {"n_steps", "text_tokens": [n, ...], "top_k": [k, ...], "chance", "drift": [layer][head][step],
//  "layer_overlap": [layer][layer] (null: NaN), "windowed_layers": [layer, ...]}
Result<std::string> write_steps(const CalibrationSteps& steps);

}  // namespace orrery::engine

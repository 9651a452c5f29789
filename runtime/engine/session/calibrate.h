// Calibration: the model reads texts and decodes some greedy steps after each. The sets of prompt keys that its KV heads attend to most
// become a head profile: roles (policy/heads/roles.h) and clusters (policy/heads/clusters.h).
//
// The data's way: tokens -> a session with full attention that keeps its last queries -> top-k sets of every head at every step (step 0 is
// the prompt's last query, then one step for each decoded token) -> policy::LayerOverlaps -> roles and clusters. Decoding continues after
// an end-of-generation token. Then random tokens that are repeated -> how much each head retrieves (retrieval.h).
//
// Layers with a sliding window are scored as if they had none. So the profile covers all layers; policies skip layers with a window.
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
  uint32_t n_steps = 99;           // decode steps after each text
  uint32_t top_k = 1024;           // keys of a set; at most a quarter of a text's tokens
  uint32_t n_representatives = 0;  // clusters of a layer; 0: 2 if it has 8 KV heads or more, else 1
  policy::Thresholds thresholds;
  double tau_drift = -1;  // of the profile; below 0: tau_stable
  double full_share = 0;  // > 0: thresholds move until at most this share of the heads is full
  KvType kv_type = KvType::f16;
  std::string note;                                             // of the profile
  std::function<bool(uint64_t done, uint64_t total)> progress;  // tokens of texts, steps and repetitions; false cancels
};

// Measurements for pictures.
struct CalibrationSteps {
  std::vector<uint32_t> text_tokens, top_k;  // (n_texts) tokens of each text, and the size of its sets
  uint32_t n_steps = 0, n_layers = 0, n_kv_heads = 0;
  double chance = 0;  // overlap of random sets, mean over texts
  // (n_layers, n_kv_heads, n_steps) overlap of the step's set with the prompt's, mean over texts.
  std::vector<double> drift;
  // (n_layers, n_layers), symmetric: the part of a head's set that its best match in the other layer has, mean over the heads of both
  // layers, over texts and over steps 0 to n_steps. (Head numbers mean nothing across layers.) On the diagonal the best match is another
  // head of the layer; NaN if the layer has one head.
  std::vector<double> layer_overlap;
  std::vector<uint8_t> windowed;  // (n_layers) 1: has a sliding window
};

struct CalibrationResult {
  policy::HeadProfile profile;  // bound to the model
  CalibrationSteps steps;
};

constexpr uint32_t kLeastCalibrationTokens = 16;  // of a text

// While it runs, it takes the memory of a session for the longest text and its steps, or for the repeated tokens. Errors: invalid_argument
// (a text is too short, a token is outside the vocabulary, options are out of range, no thresholds meet full_share), cancelled, and the
// errors of opening a session and of its steps.
Result<CalibrationResult> calibrate(const std::shared_ptr<LanguageModel>& model, Span<const Span<const int32_t>> texts,
                                    const CalibrationOptions& options);

// {"n_steps", "text_tokens": [n, ...], "top_k": [k, ...], "chance", "drift": [layer][head][step],
//  "layer_overlap": [layer][layer] (null: NaN), "windowed_layers": [layer, ...]}
Result<std::string> write_steps(const CalibrationSteps& steps);

}  // namespace orrery::engine

// Engine of the methods that select once, by a window of queries, and evict the rest: SnapKV, PyramidKV, Ada-KV, CAKE, and auto. A method
// is a row of WindowSettings, and every setting is an option of every method:
//   score     the softmax weights of the last `window` queries: their mean over queries and group; CAKE's mean + gamma variance; or each
//             query's own softmax, as Ada-KV's algorithm 2. Pooled along the keys
//   allocate  over layers: evenly; on PyramidKV's line; by CAKE's preference; or by the best scores of all layers, weighted by preference.
//             Over a layer's heads: evenly, or by the best scores of all heads, with a safeguard
//   select    each head keeps its best tokens before the window, the window, and every generated token. Evicted tokens are dropped, or merged
//             into a compensation token
//   refresh   never; a full tail or a new prompt selects again from the reservoir, at once or in parts beside the next `steps` steps. With
//             `renew` a full tail keeps the last scores, and mixes them with the scores by the queries since
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/policy/policy.h"
#include "runtime/policy/rows.h"
#include "runtime/policy/score/score.h"

namespace orrery::policy {

enum class WindowScore : uint32_t { mean, variance, each };
enum class LayerBudgets : uint32_t { uniform, pyramid, preference, adaptive };
enum class HeadBudgets : uint32_t { uniform, adaptive };
enum class Safeguard : uint32_t { floor, protect };
// The enumerators as values of options; Pooling's too.
inline constexpr const char* kWindowScores[] = {"mean", "variance", "each"};
inline constexpr const char* kPoolings[] = {"none", "avg", "max"};
inline constexpr const char* kLayerBudgets[] = {"uniform", "pyramid", "preference", "adaptive"};
inline constexpr const char* kHeadBudgets[] = {"uniform", "adaptive"};
inline constexpr const char* kSafeguards[] = {"floor", "protect"};

struct WindowSettings {
  WindowScore score = WindowScore::mean;
  Pooling pooling = Pooling::avg;
  uint32_t width = 5;  // of the pooling
  LayerBudgets layers = LayerBudgets::uniform;
  HeadBudgets heads = HeadBudgets::uniform;
  uint32_t window = 32;
  Safeguard safeguard = Safeguard::floor;            // of adaptive heads
  double alpha = .2;                                 // of adaptive heads: the safeguard's part of an even share
  uint32_t beta = 20;                                // pyramid: the last layer has mean / beta
  double tau_1 = 1, tau_2 = 1, gamma = 200;          // CAKE's preference and score; adaptive layers
  uint32_t first_layers = 0;                         // that keep everything
  uint32_t tail = 0, tail_part = 0, tail_least = 8;  // Tail::slots, Tail::least_part, Tail::least
  double compensation = 0;                           // the compensation token's weight, times the kept share of tokens; 0: no such token
  uint32_t steps = 0;                                // of an answer that attend to everything, while parts of settle() run; 0: at once
  // Behind a full tail of n tokens, renew * n / window of a score is the score by the queries of these tokens, the rest is the last score.
  // 0: the window's queries score alone.
  double renew = 0;
};

// The methods' option rows, with these defaults.
constexpr std::array<OptionRow, 17> window_options(const WindowSettings& s) {
  constexpr const char* kNumbers[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"};
  constexpr OptionRow kShortTail = {
      "tail", "0",
      "slots for generated tokens; a full tail selects again. 0: a sixteenth of what a head may hold, or less; with "
      "slots in Q4_0, on the CPU without a link, a forty-eighth"};
  constexpr const char* kRenewMeaning =
      "behind a full tail of n tokens, renew n / window of a score is by the queries of these tokens, the rest is the last score; 0: the "
      "window scores alone";
  constexpr OptionRow kRenew = {"renew", "0", kRenewMeaning},
                      kAutoRenew = {"renew", "(3 with slots in Q4_0 on the CPU, without a link; else 0)", kRenewMeaning};
  const auto index = [](auto value) { return static_cast<size_t>(value); };
  return {{{"score", kWindowScores[index(s.score)],
            "of the window's weights: mean; CAKE's mean + gamma variance (variance); Ada-KV's algorithm 2 (each)"},
           {"pool", kPoolings[index(s.pooling)], "pooling along the keys: none, avg or max"},
           {"width", kNumbers[s.width], "of the pooling; odd"},
           {"layers", kLayerBudgets[index(s.layers)],
            "budget over layers: uniform; pyramid; preference (CAKE); adaptive: by the best scores times preference"},
           {"heads", kHeadBudgets[index(s.heads)], "a layer's budget over its heads: uniform or adaptive (Ada-KV)"},
           {"window", "32", "last queries, which score tokens and stay themselves; at most 64"},
           {"safeguard", kSafeguards[index(s.safeguard)], "of adaptive heads: floor (Ada-KV's code) or protect (kvpress)"},
           {"alpha", ".2", "the safeguard's part of an even share"},
           {"beta", "20", "pyramid: the last layer has mean / beta"},
           {"tau_1", kNumbers[index(s.tau_1)], "preference: entropy^(1/tau_1)"},
           {"tau_2", kNumbers[index(s.tau_2)], "preference: variance^(1/tau_2)"},
           {"gamma", "200", "weight of the variance in a score"},
           {"first_layers", "0", "layers, from the first, that keep everything"},
           s.tail_part > 0 ? kShortTail : kTailRow,
           {"compensation", kNumbers[index(s.compensation)],
            "weight, 0 to 1, of the compensation token that stands for the evicted tokens, times the share of kept tokens; 0: they are "
            "dropped"},
           {"steps", kNumbers[s.steps],
            "steps behind a long prompt or a full tail that attend to everything, while the resident KV is chosen beside them; at most 32; "
            "0: it is chosen at once"},
           s.tail_part > 0 ? kAutoRenew : kRenew}};
}

Result<std::unique_ptr<Policy>> make_window(const char* name, const WindowSettings& defaults, const Shape& shape, const Budget& budget,
                                            const Options& options);

}  // namespace orrery::policy

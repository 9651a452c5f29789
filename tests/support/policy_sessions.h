// Compressed sessions for tests of the engine: every policy, in each configuration that moves other KV, or at other times.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/policy/policy.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"

namespace orrery::testing {

struct PolicyMode {
  const char* name;
  const char* policy;
  policy::Options options;
  bool refills;
  bool within_steps = false;  // some fetches serve the step that asks for them
  // Whether heads hold whole pages. Some of these policies exchange pages.
  bool pages() const {
    for (const char* paged : {"freekv", "quest", "arkvale", "raas"})
      if (policy == std::string(paged)) return true;
    return chunks();
  }
  // Whether heads exchange single tokens.
  bool tokens() const { return policy == std::string("loki") || policy == std::string("infinigen") || codes(); }
  // Whether heads have codes of values (BackendInfo::codes_values), which take more of the budget.
  bool values() const { return std::string(name).find("_value") != std::string::npos; }
  bool codes() const { return policy == std::string("keycodes") || name == std::string("auto_by_codes"); }
  // Whether all slots are taken from settling on, so that the newest token takes the slot of another.
  bool replaces() const { return policy == std::string("streaming") || policy == std::string("h2o"); }
  bool in_parts() const { return name == std::string("auto_in_parts"); }  // settles in parts beside its steps
  bool chunks() const { return std::string(policy).substr(0, 8) == "shadowkv"; }
  bool rebuilds() const { return chunks() && name != std::string("shadowkv_exact_keys"); }  // whether K of fetched tokens is rebuilt
};
inline void PrintTo(const PolicyMode& mode, std::ostream* out) { *out << mode.name; }

// With these thresholds of HeteroCache, models without redundant heads have satellites. tau_drift 1: every check that finds a change
// refills.
inline const std::vector<PolicyMode>& policy_modes() {
  static const std::vector<PolicyMode> modes = {
      {"streaming", "streaming", {}, false},
      {"h2o", "h2o", {}, false},
      {"h2o_heavy", "h2o", {{"recent", "0.1"}}, false},
      {"heterocache", "heterocache", {{"tau_sim", "0.2"}, {"tau_drift", "1"}}, true},
      {"heterocache_staggered", "heterocache", {{"tau_sim", "0.2"}, {"tau_drift", "1"}, {"visible", "5"}, {"stagger", "1"}}, true},
      {"heterocache_speculative",
       "heterocache",
       {{"tau_sim", "0.2"}, {"satellites", "speculative"}, {"tau", "0.95"}, {"heads", "adaptive"}, {"window", "4"}},
       true,
       true},
      {"synckv", "synckv", {}, true},
      {"synckv_every_step", "synckv", {{"steps", "1"}}, true},
      {"synckv_late", "synckv", {{"steps", "5"}, {"visible", "5"}}, true},
      {"snapkv", "snapkv", {}, false},
      {"pyramidkv", "pyramidkv", {{"window", "8"}, {"first_layers", "1"}}, false},
      {"adakv", "adakv", {}, false},
      {"adakv_each", "adakv", {{"score", "each"}}, false},
      {"adapyramid", "adapyramid", {{"safeguard", "protect"}, {"alpha", "0.8"}}, false},
      {"cake", "cake", {}, false},
      {"auto_by_window", "auto", {{"by", "window"}}, false},
      {"auto_by_codes", "auto", {{"by", "codes"}}, true, true},
      {"auto_in_parts", "auto", {{"steps", "3"}, {"tail", "60"}}, false},
      {"duoattention", "duoattention", {}, false},
      {"razorattention", "razorattention", {}, false},
      {"duoattention_compensated", "duoattention", {{"compensation", "1"}, {"full_share", "0.2"}, {"sinks", "10"}}, false},
      {"freekv", "freekv", {{"page", "16"}}, true, true},
      {"freekv_turning", "freekv", {{"page", "16"}, {"tau", "0.99"}}, true, true},
      {"freekv_small_pages", "freekv", {{"page", "8"}, {"first_layers", "0"}, {"digest", "deviation"}, {"tau", "0"}}, true},
      {"quest", "quest", {{"page", "8"}, {"first_layers", "0"}}, true, true},
      {"quest_adaptive", "quest", {{"page", "8"}, {"first_layers", "0"}, {"heads", "adaptive"}}, true, true},
      {"arkvale", "arkvale", {{"page", "8"}, {"sinks", "8"}, {"window", "16"}, {"first_layers", "0"}, {"asked", "0.8"}}, true, true},
      {"arkvale_behind", "arkvale", {{"page", "16"}, {"set", "head"}, {"tau", "0"}, {"first_layers", "0"}}, true},
      {"raas", "raas", {{"page", "8"}}, false},
      {"raas_top", "raas", {{"page", "16"}, {"stamp", "top"}, {"prompt", "keep"}, {"first_layers", "0"}}, false},
      {"omnikv", "omnikv", {}, true, true},
      {"loki", "loki", {}, true, true},
      {"infinigen", "infinigen", {}, true, true},
      {"infinigen_few", "infinigen", {{"alpha", "1.5"}, {"most", "0.1"}, {"sinks", "3"}}, true, true},
      {"loki_max", "loki", {{"rank", "3"}, {"window", "1"}, {"sinks", "4"}, {"reduce", "max"}}, true, true},
      {"keycodes", "keycodes", {}, true, true},
      {"keycodes_signs", "keycodes", {{"bits", "1"}, {"window", "1"}, {"sinks", "0"}, {"reduce", "mean"}}, true, true},
      {"keycodes_dropping", "keycodes", {{"compensation", "0"}}, true, true},
      {"keycodes_values", "keycodes", {{"values", "2"}}, true, true},
      {"keycodes_value_signs", "keycodes", {{"values", "1"}, {"bits", "2"}, {"copy", "1"}}, true, true},
      {"keycodes_fine", "keycodes", {{"bits", "4"}, {"window", "9"}, {"sinks", "6"}}, true, true},
      {"shadowkv", "shadowkv", {}, true, true},
      {"shadowkv_exact_keys", "shadowkv", {{"chunk", "4"}, {"rank", "100000"}}, true, true},
      {"shadowkv_plus", "shadowkv+", {{"outliers", "6"}, {"local", "16"}}, true, true},
  };
  return modes;
}
// By its name, or "full".
inline const PolicyMode& mode_of(const std::string& name) {
  static const PolicyMode full = {"full", "full", {}, false};
  if (name == full.name) return full;
  for (const PolicyMode& mode : policy_modes())
    if (name == mode.name) return mode;
  throw std::runtime_error(name);
}
// All policies of the table but "full".
inline std::vector<const char*> compressing_policies() {
  std::vector<const char*> names;
  for (const policy::PolicyRow& row : policy::policy_rows())
    if (std::string(row.name) != "full") names.push_back(row.name);
  return names;
}
inline std::vector<PolicyMode> refilling_modes() {
  std::vector<PolicyMode> modes;
  for (const PolicyMode& mode : policy_modes())
    if (mode.refills) modes.push_back(mode);
  return modes;
}
inline std::vector<PolicyMode> refilling_modes(bool within_steps) {
  std::vector<PolicyMode> modes;
  for (const PolicyMode& mode : refilling_modes())
    if (mode.within_steps == within_steps) modes.push_back(mode);
  return modes;
}
// The policies whose refills go by exported attention weights.
inline std::vector<PolicyMode> watching_modes() {
  std::vector<PolicyMode> modes;
  for (const PolicyMode& mode : refilling_modes())
    if (!mode.pages() && !mode.within_steps) modes.push_back(mode);
  return modes;
}

// A budget's share counts bytes in the reservoir's type. Gives the share that keeps this share of the tokens on the device.
inline double share_of_tokens(double share, KvType kept, KvType device) {
  const auto bytes = [](KvType type) { return static_cast<double>(key_bytes(type, 32) + value_bytes(type, 32)); };
  return share * bytes(device) / bytes(kept);
}

// The options, and for policies that refuse a session without a head profile the ranking of heads by the prompt.
inline policy::Options without_profile(const std::string& policy, policy::Options options = {}) {
  if (policy == "duoattention" || policy == "razorattention") options.emplace_back("rank", "attention");
  return options;
}

inline engine::SessionOptions with_mode(const PolicyMode& mode, double share, uint32_t n_context = 320, KvType kv = KvType::f16,
                                        uint32_t chunk = 0) {
  engine::SessionOptions o;
  o.n_context = n_context;
  o.kv_type = kv;
  o.device_kv_type = kv;  // overrides the policy's own choice
  o.chunk_tokens = chunk;
  o.policy = mode.policy;
  o.policy_options = without_profile(mode.policy, mode.options);
  o.kv_share = share;
  return o;
}

inline std::shared_ptr<engine::LanguageModel> open_demo(const engine::RuntimeOptions& options = runtime_options()) {
  return unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(options)), source_path("samples/models/demo-q8_0.gguf"), {}));
}

// Six layers with twelve KV heads, at a small part of the demo model's work: for tests of what moves in many heads, under every policy.
inline std::shared_ptr<engine::LanguageModel> open_deep(const engine::RuntimeOptions& options = runtime_options()) {
  return open_bytes(deep_model_gguf("qwen3"), options);
}

inline std::vector<int32_t> random_tokens(const engine::LanguageModel& model, size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(static_cast<uint64_t>(model.description().n_vocab)));
  return tokens;
}

// The logits of n greedy tokens after a prompt.
inline std::vector<float> answer(engine::Session* session, const std::vector<int32_t>& prompt, size_t n) {
  std::vector<float> trace;
  unwrap(session->prefill(prompt, nullptr, nullptr));
  greedy(session, n, &trace);
  return trace;
}

// Tells the session's store what its slots hold, where the device has chosen it.
inline void read_positions(engine::Session* session) {
  const Turn turn = session->model().runtime().take_turn();
  const engine::Resident::Use use(session->resident(), turn);
  unwrap(session->resident()->read_positions());
}

// The number of fetched tokens that are not in their slots yet.
inline uint64_t pending_tokens(const engine::Session& session) {
  return session.resident()->report().missed_tokens - session.resident()->refill_stats().tokens;
}

}  // namespace orrery::testing

// Tests how often a generated token makes a graph, waits for the device and launches, under each policy, on a model of 8 layers (in
// emulation only). cuda/README.md has the table.
#include <gtest/gtest.h>

#include <cstring>

#ifdef ORRERY_EMULATED
#include <nlohmann/json.hpp>

#include "tests/emulation/cuda/device.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/model_spec.h"
#include "tests/support/policy_sessions.h"

namespace orrery::step_counts_test {
namespace {

using namespace testing;
using engine::Session;

constexpr int kLayers = 8;

// The spec with its first layer's tensors in kLayers layers.
std::vector<std::byte> model_of_layers() {
  nlohmann::json spec = load_model_spec("qwen3"), tensors = nlohmann::json::array();
  for (nlohmann::json& key : spec["keys"])
    if (key[0] == "qwen3.block_count") key[2] = kLayers;
  const std::string first = "blk.0.";
  for (const nlohmann::json& tensor : spec["tensors"]) {
    const std::string name = tensor["name"];
    if (name.compare(0, 4, "blk.") != 0) tensors.push_back(tensor);
    if (name.compare(0, first.size(), first) != 0) continue;
    for (int layer = 0; layer < kLayers; ++layer) {
      tensors.push_back(tensor);
      tensors.back()["name"] = "blk." + std::to_string(layer) + "." + name.substr(first.size());
    }
  }
  spec["tensors"] = tensors;
  return build_model_gguf(spec);
}

struct Counts {
  uint64_t graphs = 0, waits = 0, launches = 0;
  static Counts now() { return {emulated::graphs_made(), emulated::n_waits(), emulated::n_launches}; }
  Counts operator-(const Counts& before) const { return {graphs - before.graphs, waits - before.waits, launches - before.launches}; }
};

// A session behind 100 prompt tokens, whose KV is invented: halves of all magnitudes from 2^-4 to 1.
std::unique_ptr<Session> behind_a_prompt(const std::shared_ptr<engine::LanguageModel>& model, const PolicyMode& mode) {
  auto session =
      mode.policy == std::string("full") ? open_session(model, 128, KvType::f16) : unwrap(Session::open(model, with_mode(mode, 0.65, 128)));
  Random random(7);
  unwrap(session->assume_prompt(random_tokens(*model, 100, 1), [&](uint32_t, Span<std::byte> page) {
    for (size_t i = 0; i + 2 <= page.size(); i += 2) {
      const auto half = static_cast<uint16_t>(0x2C00 + random.below(0x1000) + (random.below(2) << 15));
      std::memcpy(&page[i], &half, sizeof half);
    }
  }));
  return session;
}

// The most of one token, of the tokens from the third on.
Counts most_of_a_token(const std::shared_ptr<engine::LanguageModel>& model, const PolicyMode& mode, int n_tokens) {
  const auto session = behind_a_prompt(model, mode);
  Counts most;
  for (int i = 1; i <= n_tokens; ++i) {
    const Counts before = Counts::now();
    session->push_generated(37 * i % model->hyper().n_vocab);
    engine::Shortlist shortlist;
    unwrap(session->decode(&shortlist));
    const Counts one = Counts::now() - before;
    if (i <= 2) continue;
    most = {std::max(most.graphs, one.graphs), std::max(most.waits, one.waits), std::max(most.launches, one.launches)};
  }
  return most;
}

struct Bound {
  const char* mode;
  uint64_t waits;       // of the host and of the I/O thread
  int n_tokens = 7;     // a policy that refreshes every five steps has two refreshes in twelve tokens
};
class GpuStepCounts : public ::testing::TestWithParam<Bound> {};

TEST_P(GpuStepCounts, ATokenMakesNoGraphAndWaitsFewTimes) {
  const auto model = open_bytes(model_of_layers(), on_cuda());
  const Counts most = most_of_a_token(model, mode_of(GetParam().mode), GetParam().n_tokens);
  EXPECT_EQ(most.graphs, 0u);
  EXPECT_LE(most.waits, GetParam().waits) << most.launches << " launches besides graphs";
  RecordProperty("waits", std::to_string(most.waits));
  RecordProperty("launches", std::to_string(most.launches));
}

INSTANTIATE_TEST_SUITE_P(Modes, GpuStepCounts,
                         ::testing::Values(Bound{"full", 1}, Bound{"streaming", 1}, Bound{"h2o", 2}, Bound{"heterocache", 2, 12},
                                           Bound{"heterocache_speculative", 2}, Bound{"synckv", 2, 12}, Bound{"synckv_every_step", 2},
                                           Bound{"razorattention", 1}, Bound{"freekv", 2}, Bound{"quest", 2}, Bound{"arkvale", 2},
                                           Bound{"raas_top", 2}, Bound{"omnikv", 2}, Bound{"loki", 1}, Bound{"infinigen", 1},
                                           Bound{"shadowkv", 2}, Bound{"keycodes", 1}));

}  // namespace
}  // namespace orrery::step_counts_test
#endif

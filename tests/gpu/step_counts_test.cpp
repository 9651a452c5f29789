// Tests how often a generated token makes a graph, waits for the device and launches, under each policy, on a model of 8 layers (in emulation
// only). cuda/README.md has the table.
#include <gtest/gtest.h>

#ifdef ORRERY_EMULATED
#include <nlohmann/json.hpp>

#include "tests/emulation/cuda/device.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/model_spec.h"
#include "tests/support/policy_sessions.h"

namespace orrery {
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

// The most of one token, of tokens 3 to 6 behind a prompt.
Counts most_of_a_token(const std::shared_ptr<engine::LanguageModel>& model, const PolicyMode& mode) {
  const auto session =
      mode.policy == std::string("full") ? open_session(model, 128, KvType::f16) : unwrap(Session::open(model, with_mode(mode, 0.65, 128)));
  unwrap(session->prefill(random_tokens(*model, 60, 1), nullptr, nullptr));
  Counts most;
  int32_t token = argmax(session->logits());
  for (int i = 1; i <= 6; ++i) {
    const Counts before = Counts::now();
    session->push_generated(token);
    engine::Shortlist shortlist;
    unwrap(session->decode(&shortlist));
    const Counts one = Counts::now() - before;
    token = (token + 37) % model->hyper().n_vocab;
    if (i <= 2) continue;
    most = {std::max(most.graphs, one.graphs), std::max(most.waits, one.waits), std::max(most.launches, one.launches)};
  }
  return most;
}

TEST(GpuStepCounts, ATokenMakesNoGraphAndWaitsFewTimes) {
  const auto model = open_bytes(model_of_layers(), on_cuda());
  std::vector<PolicyMode> modes = {{"full", "full", {}, false}};
  modes.insert(modes.end(), policy_modes().begin(), policy_modes().end());
  for (const PolicyMode& mode : modes) {
    if (mode.codes()) continue;   // no codes there
    const Counts most = most_of_a_token(model, mode);
    std::printf("| %s | %d | %d | %d |\n", mode.name, static_cast<int>(most.graphs), static_cast<int>(most.waits), static_cast<int>(most.launches));
    EXPECT_EQ(most.graphs, 0u) << mode.name;
  }
}

}  // namespace
}  // namespace orrery
#endif

// Opening takes exactly the session's layout: region by region of the device and of the reservoir, under every policy, at random shapes.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/count_allocations.h"
#include "tests/support/policy_sessions.h"

namespace orrery::layout_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using Regions = std::map<std::string, uint64_t>;  // bytes by name

// Sums of 1 to `most`, and a choice.
uint32_t up_to(Random* random, uint32_t most) { return 1 + static_cast<uint32_t>(random->below(most)); }

// A phi3, the family whose layers can have windows: all of them, all but every second or third, or none.
nlohmann::json random_spec(Random* random) {
  const uint32_t head_dim = 16 * up_to(random, 4), n_kv_heads = up_to(random, 3), group = up_to(random, 3), n_layers = up_to(random, 4);
  const uint32_t n_heads = n_kv_heads * group, width = n_heads * head_dim, n_ff = 32, n_vocab = 128;
  const uint32_t window = random->below(2) ? 8 + up_to(random, 60) : 0, pattern = static_cast<uint32_t>(random->below(3));
  nlohmann::json spec = {{"name", "random"}, {"seed", random->below(1000)}, {"vocab", {{"size", n_vocab}}}};
  spec["keys"] = {{"general.architecture", "string", "phi3"},
                  {"phi3.context_length", "u32", 1024},
                  {"phi3.embedding_length", "u32", width},
                  {"phi3.block_count", "u32", n_layers},
                  {"phi3.feed_forward_length", "u32", n_ff},
                  {"phi3.attention.head_count", "u32", n_heads},
                  {"phi3.attention.head_count_kv", "u32", n_kv_heads},
                  {"phi3.attention.layer_norm_rms_epsilon", "f32", 1e-5},
                  {"phi3.rope.dimension_count", "u32", head_dim}};
  if (window > 0) {
    spec["keys"].push_back({"phi3.attention.sliding_window", "u32", window});
    if (pattern > 0) spec["keys"].push_back({"phi3.attention.sliding_window_pattern", "u32", pattern + 1});
  }
  spec["tensors"] = nlohmann::json::array();
  const auto tensor = [&](const std::string& name, const std::vector<uint32_t>& shape) {
    spec["tensors"].push_back({{"name", name}, {"shape", shape}, {"scale", .2}, {"offset", shape.size() == 1 ? 1. : 0.}});
  };
  tensor("token_embd.weight", {width, n_vocab});
  for (uint32_t i = 0; i < n_layers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    tensor(layer + "attn_norm.weight", {width});
    tensor(layer + "attn_qkv.weight", {width, (n_heads + 2 * n_kv_heads) * head_dim});
    tensor(layer + "attn_output.weight", {width, width});
    tensor(layer + "ffn_norm.weight", {width});
    tensor(layer + "ffn_up.weight", {width, 2 * n_ff});
    tensor(layer + "ffn_down.weight", {n_ff, width});
  }
  tensor("output_norm.weight", {width});
  tensor("output.weight", {width, n_vocab});
  return spec;
}

// What the arena holds under names that are new, or of more bytes, since `before`.
Regions taken(const kv::Arena& arena) {
  Regions regions;
  for (const kv::Arena::Taken& region : arena.taken()) regions[region.what] += region.bytes;
  return regions;
}
Regions more_than(const Regions& before, Regions after) {
  for (const auto& [name, bytes] : before)
    if ((after[name] -= bytes) == 0) after.erase(name);
  return after;
}
Regions planned(const kv::Plan& plan, uint64_t kv::Region::*bytes) {
  Regions regions;
  for (const kv::Region& region : plan.layout.regions())
    if (region.*bytes > 0) regions[region.name == std::string("workspace") ? "the workspace" : region.name] += region.*bytes;
  return regions;
}

class EngineLayout : public ::testing::TestWithParam<PolicyMode> {};

TEST_P(EngineLayout, IsWhatOpeningTakesRegionByRegion) {
  Random random(0);
  for (const char& c : std::string(GetParam().name)) random = Random(random.below(1 << 30) + static_cast<uint64_t>(c));
  int n_opened = 0;
  for (int i = 0; i < 12; ++i) {
    engine::RuntimeOptions runtime = runtime_options(1 + static_cast<int32_t>(random.below(3)), "auto", uint64_t{512} << 20);
    if (random.below(2)) runtime.link = {uint64_t{1} << 34, 0};  // with a ring to it
    const auto model = open_bytes(build_model_gguf(random_spec(&random)), runtime);
    const bool blocks = model->description().kv().head_dim % 32 == 0;
    const KvType types[] = {KvType::f32, KvType::f16, KvType::q8_0, KvType::k8v4, KvType::q4_0};  // from fine to coarse
    const size_t n_types = blocks ? std::size(types) : 2, kept = random.below(n_types), device = kept + random.below(n_types - kept);
    engine::SessionOptions options =
        with_mode(GetParam(), .2 + .05 * static_cast<double>(random.below(17)), 128 + up_to(&random, 900), types[kept]);
    options.device_kv_type = types[device];
    if (!options.compressed()) options.kv_share = 1, options.device_kv_type = options.kv_type;
    if (options.compressed() && random.below(3) == 0) options.kv_share = 1, options.kv_budget_bytes = 20'000 + random.below(2'000'000);
    SCOPED_TRACE(std::to_string(i) + ": context " + std::to_string(options.n_context));

    const kv::Plan plan = plan_session(*model, options);
    const Regions arena = taken(model->runtime().arena()), reservoir = taken(model->runtime().reservoir());
    const int64_t held = n_bytes_held;
    const auto opened = Session::open(model, options);
    if (!opened.ok()) {  // a budget that the policy has no use for; or layers with windows, which infinigen cannot ask
      const bool asks_ahead = GetParam().policy == std::string("infinigen") && model->description().groups.size() > 1;
      const Code code = opened.status().code();
      EXPECT_TRUE(code == Code::invalid_argument || (asks_ahead && code == Code::unsupported)) << opened.status().message();
      EXPECT_EQ(taken(model->runtime().arena()), arena);
      continue;
    }
    ++n_opened;
    EXPECT_EQ(more_than(arena, taken(model->runtime().arena())), planned(plan, &kv::Region::device_bytes));
    EXPECT_EQ(more_than(reservoir, taken(model->runtime().reservoir())), planned(plan, &kv::Region::reservoir_bytes));
    EXPECT_LE(n_bytes_held - held, static_cast<int64_t>(plan.host_bytes) + (96 << 10));
    // Statistics are sums of the same regions.
    EXPECT_EQ(opened.value()->kv_bytes(), plan.full_kv_bytes + plan.compressed_kv_bytes + plan.digests_bytes);
    EXPECT_EQ(opened.value()->reservoir_bytes(), plan.reservoir_bytes);
  }
  EXPECT_GT(n_opened, 4);
}

INSTANTIATE_TEST_SUITE_P(Modes, EngineLayout, ::testing::ValuesIn([] {
                           std::vector<PolicyMode> modes = policy_modes();
                           modes.push_back({"full", "full", {}, false});
                           return modes;
                         }()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace orrery::layout_test

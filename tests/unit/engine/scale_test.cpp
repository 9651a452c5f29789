// A model's attention scale is the one that policies see. With heads of 64 the usual scale is 1/8. A model that says 1/2 instead, and one
// whose query matrices are four times as large, have the same scores to the last bit: so they make the same choices and the same logits.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/engine_fixture.h"

namespace orrery::scale_test {
namespace {

using namespace orrery::testing;
using nlohmann::json;

std::shared_ptr<engine::LanguageModel> open(bool by_key) {
  json spec = load_model_spec("llama-yarn");
  if (by_key) spec["keys"].push_back({"llama.attention.scale", "f32", 0.5});
  for (json& tensor : spec["tensors"])
    if (!by_key && tensor["name"].get<std::string>().find("attn_q.weight") != std::string::npos)
      tensor["scale"] = 4 * tensor["scale"].get<double>();
  return open_bytes(build_model_gguf(spec));
}

class EngineScale : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineScale, OfTheModelIsThatOfItsPolicies) {
  std::vector<float> logits[2];
  std::vector<uint32_t> held[2];
  for (const bool by_key : {false, true}) {
    const auto model = open(by_key);
    ASSERT_EQ(model->description().kv().scale, by_key ? 0.5f : 0.125f);
    engine::SessionOptions o;
    o.n_context = 512;
    o.policy = GetParam();
    o.kv_share = .4;
    o.kv_type = KvType::f32;
    const auto session = unwrap(engine::Session::open(model, o));
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 300; ++i) prompt.push_back(3 + (i * i * 7 + i) % 120);
    std::vector<float> last(session->sequence().n_logits());
    unwrap(session->prefill(prompt, nullptr, nullptr));
    greedy(session.get(), 12, &logits[by_key]);
    if (const engine::Resident* resident = session->resident())
      for (size_t head = 0; head < resident->store().n_heads(); ++head)
        for (const uint32_t p : resident->store().positions(static_cast<uint32_t>(head))) held[by_key].push_back(p);
  }
  EXPECT_TRUE(same_bits(logits[0], logits[1]));
  EXPECT_EQ(held[0], held[1]);
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineScale, ::testing::Values("snapkv", "h2o", "cake", "quest", "keycodes", "loki"),
                         [](const auto& tested) { return std::string(tested.param); });

// Low-rank keys are turned back by one RoPE. A model's windows may have another one: policies do not compress those layers.
TEST(EngineLowRank, LayersMustShareTheirRope) {
  for (const char* policy : {"loki", "shadowkv"}) {
    engine::SessionOptions o;
    o.n_context = 512;
    o.policy = policy;
    o.kv_share = .5;
    const auto refused = engine::Session::open(open_spec("smollm3"), o);
    const Status& status = refused.status();
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(std::string(status.message()).find("which need the same RoPE in all its layers; layers 0 and 3 have others"),
              std::string::npos)
        << status.message();
    for (const char* other : {"gemma3", "muse"}) {
      const auto session = unwrap(engine::Session::open(open_spec(other), o));
      unwrap(session->prefill(std::vector<int32_t>(200, 5), nullptr, nullptr));
      for (const float logit : session->logits()) EXPECT_TRUE(std::isfinite(logit));
    }
  }
}

}  // namespace
}  // namespace orrery::scale_test

// The bundled demo model answers questions about a long document, greedily, as exact arithmetic says it does
// (demo_model.json): text, ids and first logits.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/engine_fixture.h"
#include "tests/support/shared.h"

namespace orrery::demo_model_test {
namespace {

using namespace orrery::testing;
using nlohmann::json;

TEST(DemoModel, AnswersAsTheOracleDoes) {
  std::ifstream in(source_path("tests/golden/demo_model.json"));
  const json golden = json::parse(in);
  const auto model = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime_options(2, "auto", 128u << 20))),
                                                        source_path("samples/models/demo-q8_0.gguf"), {}));
  const json& runs = golden.at("models").at("demo-q8_0.gguf");
  for (const KvType kv : {KvType::f16, KvType::q8_0, KvType::k8v4}) {
    if (in_blocks(kv) && model->description().kv().head_dim % 32 != 0) continue;
    const auto session = open_session(model, 2048, kv);
    for (size_t i = 0; i < runs.size(); ++i) {
      const json& prompt = golden.at("prompts").at(i);
      SCOPED_TRACE(prompt.at("question").get<std::string>());
      const auto ids = prompt.at("ids").get<std::vector<int32_t>>();
      text::EncodeOptions encode;
      encode.parse_special = true;
      std::vector<int32_t> encoded;
      unwrap(model->tokenizer().encode(prompt.at("text").get<std::string>(), encode, &encoded));
      EXPECT_EQ(encoded, ids);

      // Every token was chosen by a margin of .28 or more, and the first logits are exact to the 8 bits that
      // activations have.
      const json& run = runs.at(i);
      ASSERT_GT(run.at("min_margin").get<double>(), 0.2);
      const auto g = unwrap(engine::Generation::proceed(session.get(), ids, {}));
      std::vector<int32_t> answer;
      std::string text;
      engine::Event event;
      for (unwrap(g->next(&event)); event.type != engine::EventType::done; unwrap(g->next(&event))) {
        if (event.type == engine::EventType::progress && event.done == event.total && kv == KvType::f16) {
          for (const json& top : run.at("first_top8"))
            EXPECT_NEAR(session->logits()[top.at(0).get<size_t>()], top.at(1).get<double>(), 0.5);
        }
        if (event.type == engine::EventType::token) answer.push_back(event.token);
        if (event.type == engine::EventType::text) text += event.text;
      }
      EXPECT_EQ(event.finish, engine::Finish::end);
      EXPECT_EQ(answer, run.at("answer_ids").get<std::vector<int32_t>>());
      EXPECT_EQ(text, run.at("answer").get<std::string>());
      EXPECT_EQ(text, prompt.at("expected").get<std::string>());
      // The questions share their document: it is read once.
      EXPECT_GE(event.reused_tokens, i > 0 ? 900u : 0u);
    }
  }
}

}  // namespace
}  // namespace orrery::demo_model_test

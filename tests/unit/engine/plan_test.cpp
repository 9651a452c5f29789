// Opening takes what the plan foretells, to the byte: for the first session and for later ones.
#include <gtest/gtest.h>

#include "tests/support/engine_fixture.h"
#include "tests/support/kv_tokens.h"
#include "tests/support/random_blocks.h"

namespace orrery::plan_test {
namespace {

using namespace orrery::testing;
using engine::Session;

struct OpenFile {
  TempDir dir;
  std::string path;
  explicit OpenFile(TensorType type) : path(dir.write("m.gguf", named_model_gguf("llama-256", {type, false, TensorType::f16}))) {}

  kv::Plan plan(const engine::RuntimeOptions& runtime, const engine::SessionOptions& session) const {
    return unwrap(engine::plan_file(path, runtime, {}, session));
  }
  std::shared_ptr<engine::LanguageModel> open(const engine::RuntimeOptions& runtime) const {
    return unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime)), path, {}));
  }
};

engine::SessionOptions session_options(uint32_t n_context, KvType kv = KvType::f16, uint32_t chunk = 0) {
  engine::SessionOptions options;
  options.n_context = n_context;
  options.kv_type = kv;
  options.chunk_tokens = chunk;
  return options;
}

TEST(EnginePlan, OpensWithinThePlanAndNotWithAByteLess) {
  for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::q8_0, TensorType::q4_0, TensorType::q6_k}) {
    SCOPED_TRACE(type_traits(type)->name);
    const OpenFile file(type);
    for (const KvType kv : kKvTypes) {
      for (const uint32_t n_context : {1u, 64u, 65u, 500u}) {
        const engine::SessionOptions options = session_options(n_context, kv, 32);
        engine::RuntimeOptions runtime = runtime_options();
        const kv::Plan plan = file.plan(runtime, options);
        EXPECT_TRUE(plan.fits);
        EXPECT_EQ(plan.n_context, n_context);

        runtime.device_budget_bytes = plan.device_bytes;
        EXPECT_TRUE(file.plan(runtime, options).fits);
        {
          const auto model = file.open(runtime);
          const auto session = unwrap(Session::open(model, options));
          EXPECT_EQ(model->runtime().arena().used(), plan.device_bytes);
          EXPECT_EQ(session->kv_bytes(), plan.full_kv_bytes);
          unwrap(session->prefill(std::vector<int32_t>(n_context, 3), nullptr, nullptr));
          EXPECT_EQ(model->runtime().arena().used(), plan.device_bytes);
        }
        --runtime.device_budget_bytes;
        EXPECT_FALSE(file.plan(runtime, options).fits);
        const auto model = file.open(runtime);
        const auto session = Session::open(model, options);
        ASSERT_FALSE(session.ok());
        EXPECT_EQ(session.status().code(), Code::out_of_device_memory);
        // What is missing, in the arena's units.
        const ErrorDetail& detail = session.status().detail();
        EXPECT_EQ(detail.bytes_requested - detail.bytes_available, kv::kArenaAlignment);
        EXPECT_NE(detail.message.find("256 short"), std::string::npos) << detail.message;
        EXPECT_EQ(model->runtime().arena().used(), plan.weights_bytes);
      }
    }
  }
}

TEST(EnginePlan, TheLargestContextOpensAndAPageMoreDoesNot) {
  const OpenFile file(TensorType::q8_0);
  const kv::Plan least = file.plan(runtime_options(), session_options(1));
  Random random(3);
  int bound = 0;
  for (int i = 0; i < 20; ++i) {
    const engine::RuntimeOptions runtime = runtime_options(2, test_cpu_path(), least.device_bytes + random.below(2 << 20));
    const kv::Plan plan = file.plan(runtime, session_options(0));
    ASSERT_GT(plan.largest_context, 0u);
    const auto model = file.open(runtime);
    const uint32_t trained = static_cast<uint32_t>(model->description().trained_context);
    {
      const auto session = unwrap(Session::open(model, session_options(0)));
      EXPECT_EQ(session->n_context(), plan.largest_context);
    }
    if (plan.largest_context == trained) continue;
    ++bound;
    const auto more = Session::open(model, session_options(plan.largest_context + 64));
    ASSERT_FALSE(more.ok());
    EXPECT_NE(std::string(more.status().message()).find("the largest context that fits is"), std::string::npos);
  }
  EXPECT_GT(bound, 5);
}

// A second session may need a larger workspace: the one that is in use stays until the new one is there.
TEST(EnginePlan, TheNextSessionsPlanHoldsToo) {
  const OpenFile file(TensorType::q8_0);
  const uint64_t weights = file.open(runtime_options())->runtime().arena().used();
  Random random(4);
  int bound = 0;
  for (int i = 0; i < 40; ++i) {
    const auto model = file.open(runtime_options(2, test_cpu_path(), weights + (3 << 20) + random.below(6 << 20)));
    const uint32_t chunk = 8 + static_cast<uint32_t>(random.below(64));
    const auto first = unwrap(Session::open(model, session_options(1 + static_cast<uint32_t>(random.below(200)), KvType::f16, chunk)));
    for (const uint32_t n_context : {0u, 512u, 1500u, 4000u}) {
      const engine::SessionOptions options = session_options(n_context, KvType::f16, 8 + static_cast<uint32_t>(random.below(64)));
      const kv::Plan plan = plan_session(*model, options);
      const auto session = Session::open(model, options);
      EXPECT_EQ(session.ok(), plan.fits) << (session.ok() ? "" : session.status().message());
      bound += !plan.fits;
      if (session.ok()) {
        EXPECT_EQ(session.value()->n_context(), plan.n_context);
      }
    }
    unwrap(first->prefill(std::vector<int32_t>(1, 3), nullptr, nullptr));
  }
  EXPECT_GT(bound, 5);
}

// Sessions take turns in one workspace: another one of the same shape takes its KV alone.
TEST(EnginePlan, ASecondSessionTakesItsKvAlone) {
  const OpenFile file(TensorType::q8_0);
  const engine::SessionOptions options = session_options(300);
  engine::RuntimeOptions runtime = runtime_options();
  const kv::Plan first = file.plan(runtime, options);
  runtime.device_budget_bytes = first.device_bytes + first.full_kv_bytes;
  const auto model = file.open(runtime);
  const auto one = unwrap(Session::open(model, options));
  const kv::Plan second = plan_session(*model, options);
  EXPECT_EQ(second.device_bytes, first.full_kv_bytes);
  EXPECT_EQ(second.workspace_bytes, 0u);
  const auto two = unwrap(Session::open(model, options));
  EXPECT_EQ(model->runtime().arena().largest_free(), 0u);
  EXPECT_EQ(Session::open(model, session_options(1)).status().code(), Code::out_of_device_memory);
}

// A budget in bytes holds a policy's full heads up to some context: that is the largest one, and what would hold one more
// token is named.
TEST(EnginePlan, KvBytesBoundTheContext) {
  const auto model = open_spec("llama-256");
  const uint32_t trained = static_cast<uint32_t>(model->description().trained_context);
  int bound = 0;
  for (const char* policy : {"streaming", "heterocache", "synckv"}) {
    for (const uint64_t bytes : {uint64_t{20'000}, uint64_t{50'000}, uint64_t{120'000}}) {
      SCOPED_TRACE(policy + std::string(", ") + std::to_string(bytes));
      engine::SessionOptions options;
      options.policy = policy;
      options.kv_budget_bytes = bytes;
      const kv::Plan plan = plan_session(*model, options);
      ASSERT_TRUE(plan.fits);
      {
        const auto session = unwrap(Session::open(model, options));
        EXPECT_EQ(session->n_context(), plan.largest_context);
        EXPECT_LE(session->kv_bytes(), bytes);
      }
      if (plan.largest_context == trained) continue;
      ++bound;
      options.n_context = plan.largest_context + 1;
      const auto refused = Session::open(model, options);
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.status().code(), Code::invalid_argument);
      const std::string message = refused.status().message();
      const size_t at = message.find("it must be at least ");
      ASSERT_NE(at, std::string::npos) << message;
      options.kv_budget_bytes = std::stoull(message.substr(at + 20));
      EXPECT_GT(options.kv_budget_bytes, bytes);
      EXPECT_TRUE(Session::open(model, options).ok()) << message;
      --options.kv_budget_bytes;
      EXPECT_FALSE(Session::open(model, options).ok()) << message;
    }
  }
  EXPECT_GT(bound, 0);
}

// The staging ring is the transfers': where the reservoir is the device's own memory, and no link is simulated, there is none.
TEST(EnginePlan, WhatIsNotTransferredNeedsNoRing) {
  const OpenFile file(TensorType::q8_0);
  for (const char* policy : {"heterocache", "synckv", "quest", "shadowkv", "loki"}) {
    SCOPED_TRACE(policy);
    engine::SessionOptions options = session_options(500);
    options.policy = policy;
    options.kv_share = .8;
    uint64_t staging[2] = {};
    for (const bool link : {false, true}) {
      engine::RuntimeOptions runtime = runtime_options();
      if (link) runtime.link = {uint64_t{1} << 30, 0};
      const kv::Plan plan = file.plan(runtime, options);
      staging[link] = plan.staging_bytes;
      runtime.device_budget_bytes = plan.device_bytes;
      const auto model = file.open(runtime);
      engine::SessionOptions same = options;
      EXPECT_EQ(plan_session(*model, &same).staging_bytes, plan.staging_bytes);
      const auto session = unwrap(Session::open(model, options));
      EXPECT_EQ(model->runtime().arena().used(), plan.device_bytes);
      EXPECT_EQ(model->runtime().moves_directly(), !link);
    }
    const KvFormat kv = engine::kv_format(file.open(runtime_options())->description(), KvType::f16);
    EXPECT_EQ(staging[1] - staging[0], kv::Refills::staging_bytes(kv, 4096, policy == std::string("shadowkv")));
  }
}

// Under a policy all KV lies in the reservoir: it bounds the context as the arena does, and the refusal names it.
TEST(EnginePlan, TheReservoirBoundsTheContextToo) {
  const OpenFile file(TensorType::q8_0);
  const uint64_t token =
      engine::kv_format(file.open(runtime_options())->description(), KvType::f16).page_bytes() / static_cast<uint64_t>(kPageTokens);
  for (const bool in_bytes : {false, true}) {
    for (const char* policy : {"streaming", "auto", "shadowkv"}) {
      SCOPED_TRACE(policy);
      engine::SessionOptions options = session_options(0);
      options.policy = policy;
      in_bytes ? static_cast<void>(options.kv_budget_bytes = 300'000) : static_cast<void>(options.kv_share = .5);
      engine::RuntimeOptions runtime = runtime_options();
      runtime.reservoir_bytes = 300 * token;
      std::vector<std::string> lines;
      runtime.log_user = &lines;
      runtime.log = [](void* user, int32_t, const char* message) { static_cast<std::vector<std::string>*>(user)->push_back(message); };
      const kv::Plan plan = file.plan(runtime, options);
      EXPECT_TRUE(plan.fits);
      EXPECT_TRUE(plan.reservoir_bounds);
      EXPECT_LE(plan.reservoir_bytes, plan.reservoir_budget_bytes);
      EXPECT_LT(plan.largest_context, 300u);
      const auto model = file.open(runtime);
      {
        const auto session = unwrap(Session::open(model, options));
        EXPECT_EQ(session->n_context(), plan.largest_context);
        ASSERT_FALSE(lines.empty());
        EXPECT_NE(lines.back().find("reservoir_bytes"), std::string::npos) << lines.back();
      }
      options.n_context = plan.largest_context + 1;
      EXPECT_FALSE(file.plan(runtime, options).fits);
      const auto refused = Session::open(model, options);
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.status().code(), Code::out_of_host_memory);
      const ErrorDetail& detail = refused.status().detail();
      EXPECT_NE(detail.message.find("reservoir_bytes"), std::string::npos) << detail.message;
      EXPECT_EQ(detail.bytes_available, plan.reservoir_budget_bytes);
      EXPECT_GT(detail.bytes_requested, detail.bytes_available);
    }
  }
  // Kept prompts are no hindrance: they give way.
  engine::RuntimeOptions runtime = runtime_options();
  runtime.reservoir_bytes = 300 * token;
  const auto model = file.open(runtime);
  engine::SessionOptions options = session_options(0);
  options.policy = "streaming", options.kv_share = .5;
  const uint32_t empty = plan_session(*model, options).largest_context;
  kv::ArenaRegion spare = unwrap(kv::ArenaRegion::take_spare(&model->runtime().reservoir(), 128 * token, "a kept prompt"));
  EXPECT_EQ(plan_session(*model, options).largest_context, empty);
}

// What nobody has asked for is said: in the log's warnings, in the plan, by the session.
TEST(EnginePlan, AnAutomaticPolicyIsNamed) {
  const OpenFile file(TensorType::q8_0);
  engine::SessionOptions options = session_options(500);
  options.automatic = true;
  engine::RuntimeOptions runtime = runtime_options();
  std::vector<std::string> lines;
  runtime.log_user = &lines;
  runtime.log = [](void* user, int32_t level, const char* message) {
    if (level == static_cast<int32_t>(engine::LogLevel::warning)) static_cast<std::vector<std::string>*>(user)->push_back(message);
  };
  const kv::Plan full = file.plan(runtime, options);
  EXPECT_STREQ(full.policy, "full");
  EXPECT_EQ(full.kv_share, 1);
  {
    const auto model = file.open(runtime);
    const auto session = unwrap(Session::open(model, options));
    EXPECT_STREQ(session->policy(), "full");
    EXPECT_EQ(lines, std::vector<std::string>());
  }
  runtime.device_budget_bytes = full.device_bytes - full.full_kv_bytes / 2;
  const kv::Plan part = file.plan(runtime, options);
  EXPECT_STREQ(part.policy, "auto");
  EXPECT_LT(part.kv_share, 1);
  const auto model = file.open(runtime);
  const auto session = unwrap(Session::open(model, options));
  EXPECT_STREQ(session->policy(), "auto");
  EXPECT_EQ(session->kv_share(), part.kv_share);
  EXPECT_STREQ(unwrap(session->fork())->policy(), "auto");
  ASSERT_GE(lines.size(), 1u);
  EXPECT_NE(lines[0].find("approximations"), std::string::npos) << lines[0];
  // A budget in bytes as a share.
  options = session_options(500);
  options.policy = "streaming";
  options.kv_budget_bytes = full.full_kv_bytes / 4;
  EXPECT_NEAR(file.plan(runtime_options(), options).kv_share, .25, .01);
}

TEST(EnginePlan, OptionsOutOfRangeAreRefused) {
  const auto model = open_spec("llama-plain");
  for (const auto& [options, words] : {std::pair{session_options((1u << 27) + 1), "n_context is 134217729"},
                                       std::pair{session_options(1, KvType::f16, 4097), "chunk_tokens is 4097"}}) {
    const auto session = Session::open(model, options);
    ASSERT_FALSE(session.ok());
    EXPECT_EQ(session.status().code(), Code::invalid_argument);
    EXPECT_NE(std::string(session.status().message()).find(words), std::string::npos) << session.status().message();
  }
  const auto quantized = Session::open(open_spec("llama-hd40"), session_options(64, KvType::q8_0));
  ASSERT_FALSE(quantized.ok());
  EXPECT_EQ(quantized.status().code(), Code::unsupported);
  engine::RuntimeOptions runtime = runtime_options();
  runtime.n_threads = -1;
  EXPECT_EQ(engine::Runtime::create(runtime).status().code(), Code::invalid_argument);
  runtime = runtime_options(1, "sse9");
  EXPECT_EQ(engine::Runtime::create(runtime).status().code(), Code::invalid_argument);
  runtime = runtime_options();
  runtime.max_sessions = 0;
  EXPECT_EQ(engine::Runtime::create(runtime).status().code(), Code::invalid_argument);
  runtime = runtime_options();
  runtime.backend = "tpu";
  EXPECT_EQ(engine::Runtime::create(runtime).status().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace orrery::plan_test

// Models whose experts do not all lie in the arena: where they lie changes what a step waits for, and no bit. weights_away_test.cpp has what
// they share with layers.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "tests/support/policy_sessions.h"
#include "tests/support/weights_away.h"

namespace orrery::expert_store_test {
namespace {

using namespace orrery::testing;
using engine::LanguageModel;
using engine::Session;

constexpr const char* kSpecs[] = {"qwen3moe", "qwen3moe-fused", "qwen35moe",  "qwen3next", "lfm2moe",
                                  "gpt-oss",  "nemotron-h",     "gemma4-moe", "glm47",     "deepseek2-lite"};

Result<std::shared_ptr<LanguageModel>> try_open(const std::vector<std::byte>& file, const engine::RuntimeOptions& runtime,
                                                int64_t experts_on_device, uint64_t sessions_bytes = 0) {
  engine::ModelOptions options = with_experts(experts_on_device);
  options.sessions_bytes = sessions_bytes;
  return testing::try_open(file, runtime, options);
}
std::shared_ptr<LanguageModel> open(const std::vector<std::byte>& file, const engine::RuntimeOptions& runtime, int64_t experts_on_device) {
  return unwrap(try_open(file, runtime, experts_on_device));
}

model::ExpertUnits units_of(const std::vector<std::byte>& file) { return open(file, runtime_options(), 0)->weights().experts->units(); }

// f(file, prompt, the logits of all experts in the arena) for each family, and for quantized weights.
template <class F>
void for_each_file(const F& f) {
  const std::vector<int32_t> prompt = random_prompt(70, 1);
  for (const char* spec : kSpecs)
    for (const TensorType type : {TensorType::f32, TensorType::q8_0}) {
      if (type == TensorType::q8_0 && std::string(spec) != "qwen3moe") continue;
      SCOPED_TRACE(std::string(spec) + " " + type_traits(type)->name);
      const std::vector<std::byte> file = deep_model_gguf(spec, {type});
      f(file, prompt, traced_logits(open_bytes(file), prompt));
    }
}

TEST(EngineExpertStore, WhereExpertsLieChangesNoBit) {
  for_each_file([](const std::vector<std::byte>& file, const std::vector<int32_t>& prompt, const std::vector<float>& expected) {
    const model::ExpertUnits units = units_of(file);
    const auto n = static_cast<int64_t>(units.n_units()), least = static_cast<int64_t>(units.least_slots());
    for (const int64_t on_device : {int64_t{0}, int64_t{3}, n / 2, n - 1}) {
      const auto model = open(file, runtime_options(), on_device);
      ASSERT_TRUE(model->weights().experts && model->weights().experts->in_place());
      EXPECT_TRUE(same_bits(traced_logits(model, prompt), expected)) << "in place, " << on_device;
    }
    for (const int64_t on_device : {least, n - 1}) {
      if (on_device < least || on_device >= n) continue;
      const auto model = open(file, linked_options(), on_device);
      ASSERT_TRUE(model->weights().experts && !model->weights().experts->in_place());
      EXPECT_TRUE(same_bits(traced_logits(model, prompt), expected)) << "link, " << on_device;
      EXPECT_TRUE(same_bits(traced_logits(model, prompt, 7), expected)) << "link, in chunks, " << on_device;
      EXPECT_GT(model->weights().experts->counts().asked(), 0u);
    }
    EXPECT_EQ(open(file, linked_options(), n)->weights().experts, nullptr) << "all on the device";
  });
}

// The processor's backend beside a device, which is the processor as well here: the same bits, whatever the division, for one row, for short
// chunks, which the processor computes, and for a long one, whose experts cross the link.
TEST(EngineHostExperts, WhoComputesChangesNoBit) {
  for_each_file([](const std::vector<std::byte>& file, const std::vector<int32_t>& prompt, const std::vector<float>& expected) {
    const auto n = static_cast<int64_t>(units_of(file).n_units());
    for (const int64_t on_device : {int64_t{0}, int64_t{3}, n / 2, n - 1}) {
      const auto model = open_with(file, linked_options(), with_host_experts(on_device));
      const model::HostExperts* host = model->weights().host.get();
      ASSERT_TRUE(host && !model->weights().experts);
      EXPECT_TRUE(same_bits(traced_logits(model, prompt), expected)) << on_device;
      EXPECT_GT(host->counts().prompt_brought, 0u);
      EXPECT_EQ(host->counts().prompt_by_host, 0u);
      const uint64_t brought = host->counts().prompt_brought, bytes = host->prompts().bytes;
      EXPECT_GT(bytes, 0u);
      EXPECT_TRUE(same_bits(traced_logits(model, prompt, 7), expected)) << "in chunks, " << on_device;
      EXPECT_EQ(host->layout().n_on_device, static_cast<uint64_t>(on_device));
      EXPECT_GT(host->counts().prompt_by_host, 0u);
      EXPECT_EQ(host->counts().prompt_brought, brought);
      EXPECT_EQ(host->prompts().bytes, bytes) << "of experts that the processor computes nothing crosses";
      EXPECT_EQ(host->counts().on_device > 0, on_device > 0);
    }
  });
}

TEST(EngineHostExperts, SessionsDecodeTogetherAndUnderPolicies) {
  const std::vector<std::byte> file = deep_model_gguf("gpt-oss");
  const auto model = open_with(file, linked_options(), with_host_experts(9)), whole = open_bytes(file, linked_options());
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < 5; ++i) prompts.push_back(random_prompt(20 + 7 * i, 10 + i));
  expect_together_as_alone(model, prompts, 6);
  for (const char* name : {"streaming", "auto_by_codes"}) {
    std::vector<float> traces[2];
    for (const auto& of : {whole, model}) {
      const auto session = unwrap(Session::open(of, with_mode(mode_of(name), 0.6)));
      unwrap(session->prefill(random_prompt(150, 3), nullptr, nullptr));
      (void)greedy(session.get(), 16, &traces[of == model]);
    }
    EXPECT_TRUE(same_bits(traces[0], traces[1])) << name;
  }
}

// Two models of a runtime use one backend of the processor, and its number of threads may change.
TEST(EngineHostExperts, ModelsShareTheProcessor) {
  const std::vector<std::byte> files[] = {deep_model_gguf("qwen3moe", {TensorType::q8_0}), deep_model_gguf("gemma4-moe")};
  const auto runtime = unwrap(engine::Runtime::create(linked_options()));
  const engine::ModelOptions options = with_host_experts(5);
  const TempDir dir;
  std::vector<std::shared_ptr<LanguageModel>> models;
  for (const auto& file : files) {
    engine::ModelSource source;
    source.path = dir.write("model" + std::to_string(models.size()), file);
    models.push_back(unwrap(LanguageModel::open(runtime, source, options)));
  }
  const std::vector<int32_t> prompt = random_prompt(40, 9);
  for (const int32_t n_threads : {2, 1}) {
    unwrap(runtime->set_threads(n_threads, Priority::normal));
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(same_bits(traced_logits(models[i], prompt), traced_logits(open_bytes(files[i]), prompt))) << i;
  }
}

// Without a number, as many experts as fit are on the device.
TEST(EngineHostExperts, AsManyAsFit) {
  const std::vector<std::byte> file = deep_model_gguf("qwen3moe", {TensorType::q8_0});
  const model::ExpertUnits units = units_of(file);
  engine::RuntimeOptions runtime = linked_options();
  engine::ModelOptions options;
  options.host_computes = engine::HostComputes::always;
  const auto all = unwrap(testing::try_open(file, runtime, options));
  EXPECT_FALSE(all->weights().host) << "they fit";
  if (reads_the_file(all)) GTEST_SKIP() << "these kernels read weights where the file lies, so nothing has to leave";
  const uint64_t used = all->runtime().arena().used();
  options.experts_on_device = 0;
  const uint64_t beside = unwrap(testing::try_open(file, runtime, options))->weights().host->layout().arena_bytes / units.slot_bytes();
  options.experts_on_device = -1;
  for (const uint64_t missing : {uint64_t{1}, uint64_t{9}, units.n_units()}) {
    options.sessions_bytes = runtime.device_budget_bytes - used + missing * units.slot_bytes();
    const auto model = unwrap(testing::try_open(file, runtime, options));
    ASSERT_TRUE(model->weights().host);
    const uint64_t left = units.n_units() - model->weights().host->layout().n_on_device;
    EXPECT_GE(left, missing);
    EXPECT_LE(left, missing + beside + 2) << "tables, and the ring for prompts";
    const uint64_t most = left < units.n_units() ? runtime.device_budget_bytes - options.sessions_bytes : used;
    EXPECT_LE(model->runtime().arena().used(), most);
  }
}

// The bytes that the plan says, of the file's header alone, are those that opening takes; one byte less is refused.
TEST(EngineExpertStore, PlannedBytesAreTakenBytes) {
  const TempDir dir;
  engine::ModelSource source;
  source.path = dir.write("model.gguf", deep_model_gguf("qwen3moe", {TensorType::q8_0}));
  engine::SessionOptions session;
  session.n_context = 256;
  enum Where { in_place, over_link, by_host };
  for (const Where where : {in_place, over_link, by_host})
    for (const int64_t on_device : {int64_t{0}, int64_t{17}, int64_t{-1}}) {
      SCOPED_TRACE(std::to_string(on_device) + (where == over_link ? " over a link" : where == by_host ? " by the host" : ""));
      engine::RuntimeOptions runtime = where != in_place ? linked_options() : runtime_options();
      engine::ModelOptions options;
      options.experts_on_device = on_device;
      options.host_computes = where == by_host ? engine::HostComputes::always : engine::HostComputes::never;
      auto plan = engine::plan_file(source, runtime, options, session);
      if (where == over_link && on_device == 0) {
        ASSERT_FALSE(plan.ok());
        EXPECT_STREQ(plan.status().detail().option, "experts_on_device");
        continue;
      }
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const auto n_regions = [&](const kv::Layout& layout) {
        return std::count_if(layout.regions().begin(), layout.regions().end(),
                             [](const kv::Region& region) { return std::string(region.name) == "experts"; });
      };
      EXPECT_EQ(n_regions(plan.value().layout), on_device >= 0 ? 1 : 0);
      if (on_device < 0) runtime.reservoir_bytes = 4 << 20;  // all are on the device
      else runtime.device_budget_bytes = plan.value().device_bytes;
      runtime.reservoir_bytes = std::max(plan.value().reservoir_bytes, uint64_t{4} << 20);
      const auto model = unwrap(LanguageModel::open(unwrap(engine::Runtime::create(runtime)), source, options));
      const auto opened = unwrap(Session::open(model, session));
      EXPECT_EQ(model->runtime().arena().used(), plan.value().device_bytes);
      EXPECT_EQ(model->runtime().reservoir().used(), plan.value().reservoir_bytes);
      if (on_device < 0) continue;
      --runtime.device_budget_bytes;
      auto refused = LanguageModel::open(unwrap(engine::Runtime::create(runtime)), source, options);
      EXPECT_FALSE(refused.ok() && Session::open(refused.value(), session).ok());
    }
}

// Without a word about experts, over a link: all of them where they fit beside a session, else as many as fit; and no option has a meaning
// for a model without experts.
TEST(EngineExpertStore, AsManyAsFit) {
  const std::vector<std::byte> file = deep_model_gguf("qwen3moe", {TensorType::q8_0});
  const model::ExpertUnits units = units_of(file);
  engine::RuntimeOptions runtime = linked_options();
  EXPECT_EQ(unwrap(try_open(file, runtime, -1))->weights().experts, nullptr);
  const auto whole = open(file, runtime, -1);
  const uint64_t all = whole->runtime().arena().used();
  if (reads_the_file(whole)) GTEST_SKIP() << "these kernels read weights where the file lies, so nothing has to leave";
  for (const uint64_t missing : {uint64_t{5}, uint64_t{9}}) {
    const uint64_t sessions_bytes = runtime.device_budget_bytes - all + missing * units.slot_bytes();
    const auto model = unwrap(try_open(file, runtime, -1, sessions_bytes));
    ASSERT_TRUE(model->weights().experts);
    const auto left = static_cast<int64_t>(units.n_units()) - static_cast<int64_t>(model->weights().experts->n_on_device());
    EXPECT_GE(left, static_cast<int64_t>(missing));
    EXPECT_LE(left, static_cast<int64_t>(missing) + 2) << "the tables take a little";
    EXPECT_LE(model->runtime().arena().used(), runtime.device_budget_bytes - sessions_bytes);
  }
  EXPECT_EQ(unwrap(try_open(file, runtime, -1, runtime.device_budget_bytes))->weights().experts->n_on_device(), units.least_slots());
  const auto dense = try_open(named_model_gguf("qwen3"), runtime, 8);
  ASSERT_FALSE(dense.ok());
  EXPECT_STREQ(dense.status().detail().option, "experts_on_device");
}

// Without a number of bytes for sessions, what is left holds a session of the context that the model was trained for, at most 8,192 tokens.
TEST(EngineExpertStore, ASessionFitsBesideTheExperts) {
  const std::vector<std::byte> file = deep_model_gguf("qwen3moe", {TensorType::q8_0});
  const model::ExpertUnits units = units_of(file);
  const auto whole = open(file, linked_options(), -1);
  if (reads_the_file(whole)) GTEST_SKIP() << "these kernels read weights where the file lies, so nothing has to leave";
  engine::SessionOptions options;
  options.n_context = static_cast<uint32_t>(whole->description().trained_context);
  const auto session = unwrap(Session::open(whole, options));
  engine::RuntimeOptions runtime = linked_options();
  runtime.device_budget_bytes = whole->runtime().arena().used() - 4 * units.slot_bytes();
  const auto model = open(file, runtime, -1);
  ASSERT_TRUE(model->weights().experts);
  EXPECT_LT(model->weights().experts->n_on_device(), units.n_units());
  EXPECT_GE(model->weights().experts->n_on_device() + 8, units.n_units()) << "and not much more";
  EXPECT_TRUE(Session::open(model, options).ok());
}

// Where layers add nothing to their input, the next layer's router chooses what it was guessed to choose: only the first layer misses.
TEST(EngineExpertStore, ExpertsAreGuessedByTheNextLayersRouter) {
  nlohmann::json spec = deep_model_spec("qwen3moe");
  for (nlohmann::json& tensor : spec["tensors"]) {
    const std::string name = tensor["name"];
    for (const char* output : {"attn_output.weight", "ffn_down_exps.weight"})
      if (name.find(output) != std::string::npos) tensor["scale"] = 0.0;
    if (name.find("ffn_norm.weight") != std::string::npos) tensor["scale"] = 0.0, tensor["offset"] = 1.0;
  }
  for (const int64_t layers_on_device : {int64_t{-1}, int64_t{0}}) {  // the next layer's router is there, wherever its other matrices are
    SCOPED_TRACE(layers_on_device);
    engine::ModelOptions options = with_experts(16);
    options.layers_on_device = layers_on_device;
    const auto model = open_with(build_model_gguf(spec), linked_options(), options);
    EXPECT_EQ(model->weights().layers != nullptr, layers_on_device == 0);
    const auto session = open_session(model, 256, KvType::f16, 128);
    unwrap(session->prefill(random_prompt(20, 1), nullptr, nullptr));
    constexpr uint64_t kTokens = 60;
    for (const int32_t token : random_prompt(kTokens, 2)) feed(session.get(), token);
    const model::ExpertStore::Counts counts = model->weights().experts->counts();
    EXPECT_EQ(counts.asked(), kTokens * 6 * 3) << "six layers of three experts";
    EXPECT_LE(counts.missed, kTokens * 3) << "the first layer has no layer before it";
    EXPECT_GT(counts.expected, 0u);
  }
}

// A reservoir that is too small for the experts is named with its numbers.
TEST(EngineExpertStore, HostMemoryThatIsTooSmallIsNamed) {
  const std::vector<std::byte> file = deep_model_gguf("qwen3moe", {TensorType::q8_0});
  engine::RuntimeOptions runtime = linked_options();
  runtime.reservoir_bytes = units_of(file).bytes() - (uint64_t{64} << 10);
  const auto model = try_open(file, runtime, 20);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::out_of_host_memory);
  EXPECT_NE(std::string(model.status().message()).find("the model's experts in host memory"), std::string::npos)
      << model.status().message();
}

// ---- The cache itself: four layers of four experts, with room for eight ----

class ExpertCache : public ::testing::Test {
 protected:
  static constexpr int32_t kLayers = 4, kExperts = 4;
  static constexpr uint64_t kBytes = 512;
  ExpertCache() {
    for (int32_t l = 0; l < kLayers; ++l) units_.add({2 * l + 1, kExperts, kBytes - 7});  // layers between them have no experts
    engine::RuntimeOptions options = linked_options();
    options.io_fault = [this](const kv::IoRequest&) {
      kv::IoThread::Fault fault;
      if (fails_) fault.kind = kv::IoThread::Fault::Kind::fail, fault.status = error(Code::io, "lost"), ++n_failed_;
      return fault;
    };
    runtime_ = unwrap(engine::Runtime::create(options));
    store_ =
        unwrap(model::ExpertStore::make(units_, units_.least_slots(), &runtime_->arena(), &runtime_->reservoir(), unwrap(runtime_->io())));
    for (int32_t l = 0; l < kLayers; ++l)
      for (int32_t e = 0; e < kExperts; ++e) std::fill_n(store_->at(2 * l + 1, e), kBytes, mark(l, e));
    const Turn turn = runtime_->take_turn();
    unwrap(store_->begin(&turn.backend()));
  }
  static std::byte mark(int32_t l, int32_t e) { return static_cast<std::byte>(1 + l * kExperts + e); }
  static std::vector<int32_t> firsts(const std::vector<int32_t>& experts) {
    std::vector<int32_t> all(kExperts + 1, 0);
    for (const int32_t e : experts)
      for (size_t i = static_cast<size_t>(e) + 1; i < all.size(); ++i) ++all[i];
    return all;
  }
  void bring(int32_t l, const std::vector<int32_t>& experts, Phase phase = Phase::decode) {
    const Turn turn = runtime_->take_turn();
    unwrap(store_->bring(&turn.backend(), 2 * l + 1, firsts(experts), phase, {}));
    const auto* places = reinterpret_cast<const uint64_t*>(store_->places(2 * l + 1).address);
    for (const int32_t e : experts) {  // the bytes are the expert's
      const auto* at = reinterpret_cast<const std::byte*>(places[e]);
      EXPECT_TRUE(std::all_of(at, at + kBytes, [&](std::byte b) { return b == mark(l, e); })) << l << " " << e;
    }
  }
  void token(const std::vector<int32_t>& experts) {
    for (int32_t l = 0; l < kLayers; ++l) bring(l, experts);
  }
  uint64_t missed() const { return store_->counts().missed; }

  std::atomic<bool> fails_{false};
  std::atomic<int> n_failed_{0};
  model::ExpertUnits units_;
  std::shared_ptr<engine::Runtime> runtime_;
  std::unique_ptr<model::ExpertStore> store_;
};

TEST_F(ExpertCache, TheFirstExpertsOfEachLayerAreThereFromTheBeginning) {
  EXPECT_EQ(units_.n_units(), 16u);
  EXPECT_EQ(units_.least_slots(), 8u);
  EXPECT_EQ(units_.slot_bytes(), kBytes);
  token({0, 1});
  EXPECT_EQ(missed(), 0u);
  EXPECT_EQ(store_->counts().hits, 8u);
  token({2});
  EXPECT_EQ(missed(), 4u);
  EXPECT_EQ(store_->counts().bytes, 4 * kBytes);
  EXPECT_EQ(store_->next_layer(1), 3);
  EXPECT_EQ(store_->next_layer(7), -1);
}

TEST_F(ExpertCache, WhatIsUsedOnceGivesWayFirst) {
  for (int i = 0; i < 20; ++i) token({0, 1});
  bring(0, {2, 3});  // in place of two that are worth more, for want of others
  EXPECT_EQ(missed(), 2u);
  for (int i = 0; i < 5; ++i) token({0, 1});
  EXPECT_EQ(missed(), 4u) << "the two take the places of 2 and 3, and stay";
}

TEST_F(ExpertCache, OldUsesAreForgotten) {
  for (uint64_t i = 0; i < 8 * model::ExpertStore::kHalfLife; ++i) token({0, 1});
  for (uint64_t i = 0; i < 2 * model::ExpertStore::kHalfLife; ++i) token({2, 3});
  const uint64_t before = missed();
  for (int i = 0; i < 5; ++i) token({2, 3});
  EXPECT_EQ(missed(), before) << "the cache holds what the last tokens use";
}

TEST_F(ExpertCache, APromptLeavesWhatTokensUse) {
  for (int i = 0; i < 3; ++i) token({0, 1});
  for (int i = 0; i < 10; ++i)
    for (int32_t l = 0; l < kLayers; ++l) bring(l, {2, 3}, Phase::prefill);
  EXPECT_EQ(missed(), 0u) << "prompts do not count";
  EXPECT_GT(store_->counts().prompt_bytes, 0u);
  token({0, 1});
  EXPECT_LE(missed(), 2u) << "a layer of the prompt had to have two of their places";
}

// A cache that is read in circles, and in which the latest comers leave first, keeps some of what it has.
TEST_F(ExpertCache, ALongPromptFindsSomeOfItsExperts) {
  constexpr uint64_t kRounds = 10;
  for (uint64_t i = 0; i < kRounds; ++i)
    for (int32_t l = 0; l < kLayers; ++l) bring(l, {0, 1, 2, 3}, Phase::prefill);
  EXPECT_LE(store_->counts().prompt_bytes, kRounds * 12 * kBytes) << "of 16 experts";
}

// An expert that was guessed and lost on its way is not there.
TEST_F(ExpertCache, WhatWasExpectedAndLostIsBroughtAgain) {
  bring(0, {0});
  fails_ = true;
  store_->expect(3, firsts({3}), Phase::decode);
  while (n_failed_ == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // and the thread has left it
  fails_ = false;
  bring(2, {2, 3}), bring(3, {2, 3});  // these look for places
  bring(1, {3});
  EXPECT_EQ(missed(), 5u);
}

TEST_F(ExpertCache, WhatIsExpectedIsNotMissed) {
  bring(0, {0, 1});
  store_->expect(3, firsts({2, 3}), Phase::decode);
  bring(1, {2, 3});
  EXPECT_EQ(missed(), 0u);
  EXPECT_EQ(store_->counts().expected, 2u);
  EXPECT_EQ(store_->counts().wasted, 0u);
  store_->expect(5, firsts({2}), Phase::decode);
  bring(2, {3});  // not what was guessed
  EXPECT_EQ(missed(), 1u);
  for (int i = 0; i < 40; ++i) token({0, 1});
  token({3});
  EXPECT_EQ(store_->counts().wasted, 1u);
}

// Four requests of one link, whose thread waits before each until release().
class HeldLink : public ::testing::Test {
 protected:
  HeldLink() {
    engine::RuntimeOptions options = linked_options();
    options.io_fault = [this](const kv::IoRequest& request) {
      while (hold_) std::this_thread::yield();
      order_.push_back(request.head);
      return kv::IoThread::Fault{};
    };
    runtime_ = unwrap(engine::Runtime::create(options));
    io_ = unwrap(runtime_->io());
    for (uint32_t i = 0; i < 4; ++i)
      requests_[i].to = {reinterpret_cast<uintptr_t>(to_[i])}, requests_[i].pieces = {&piece_, 1}, requests_[i].head = i;
    submit(0);
    while (io_->n_waiting() > 0) std::this_thread::yield();  // under way
  }
  void submit(uint32_t i, kv::IoThread::Urgency urgency = kv::IoThread::Urgency::later) {
    if (!io_->submit(&requests_[i], urgency)) throw std::runtime_error("the queue is full");
  }
  void release() { hold_ = false; }
  void wait(uint32_t i) { unwrap(io_->wait(&requests_[i]).status); }

  std::vector<uint32_t> order_;
  std::atomic<bool> hold_{true};
  std::byte from_[16] = {}, to_[4][16];
  const HostPiece piece_{from_, sizeof from_};
  kv::IoRequest requests_[4];
  std::shared_ptr<engine::Runtime> runtime_;
  kv::IoThread* io_ = nullptr;
};

// Transfers that wait for the link give way to a transfer that a layer waits for.
TEST_F(HeldLink, WhatALayerWaitsForComesFirst) {
  submit(1);
  submit(2, kv::IoThread::Urgency::now);
  EXPECT_EQ(io_->n_waiting(), 1u);
  release();
  for (uint32_t i = 0; i < 3; ++i) wait(i);
  EXPECT_EQ(order_, (std::vector<uint32_t>{0, 2, 1}));
}

// A transfer that was to come later comes next, once a layer waits for it.
TEST_F(HeldLink, WaitingMakesATransferUrgent) {
  for (uint32_t i = 1; i < 4; ++i) submit(i);
  std::thread waits([&] { wait(3); });
  while (io_->n_waiting() > 2) std::this_thread::yield();
  release();
  waits.join();
  for (uint32_t i = 0; i < 3; ++i) wait(i);
  EXPECT_EQ(order_, (std::vector<uint32_t>{0, 3, 1, 2}));
}

}  // namespace
}  // namespace orrery::expert_store_test

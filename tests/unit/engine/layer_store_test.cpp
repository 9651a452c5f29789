// Models some of whose layers lie in host memory: where they lie changes what a step waits for, and no bit. weights_away_test.cpp has what they
// share with experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "runtime/model/store/division.h"
#include "tests/support/weights_away.h"

namespace orrery::layer_store_test {
namespace {

using namespace orrery::testing;
using engine::LanguageModel;
using engine::Session;

// A family of each kind of block: attention with and without biases, norms and windows, states, experts, latent attention, per-layer
// embeddings, KV of other layers.
constexpr const char* kSpecs[] = {"llama-plain", "qwen2",      "phi3",     "gemma3",  "gemma4",        "qwen35",
                                  "lfm2moe",     "nemotron-h", "qwen3moe", "gpt-oss", "deepseek2-lite"};

// Others have tensors that go with their number of layers.
bool is_deep(const std::string& spec) { return spec != "gemma4" && spec != "qwen35"; }

std::shared_ptr<LanguageModel> open(const std::vector<std::byte>& file, const engine::RuntimeOptions& runtime, int64_t layers_on_device) {
  return open_with(file, runtime, with_layers(layers_on_device));
}

TEST(EngineLayerStore, WhereLayersLieChangesNoBit) {
  const std::vector<int32_t> prompt = random_prompt(40, 1);
  for (const char* spec : kSpecs)
    for (const TensorType type : {TensorType::f32, TensorType::q8_0}) {
      if (type == TensorType::q8_0 && std::string(spec) != "llama-plain") continue;
      SCOPED_TRACE(std::string(spec) + " " + type_traits(type)->name);
      const std::vector<std::byte> file = is_deep(spec) ? deep_model_gguf(spec, {type}) : named_model_gguf(spec);
      const auto whole = open_bytes(file);
      const std::vector<float> expected = traced_logits(whole, prompt);
      const int64_t n = whole->description().n_layers;
      ASSERT_GE(n, 3);
      for (const int64_t on_device : {int64_t{0}, n / 2}) {
        const auto model = open(file, runtime_options(), on_device);
        ASSERT_TRUE(model->weights().layers && model->weights().layers->in_place());
        EXPECT_TRUE(same_bits(traced_logits(model, prompt), expected)) << "in place, " << on_device;
      }
      for (const int64_t on_device : {int64_t{0}, int64_t{1}, n - 3, n - 1}) {
        const auto model = open(file, linked_options(), on_device);
        ASSERT_TRUE(model->weights().layers && !model->weights().layers->in_place());
        EXPECT_TRUE(same_bits(traced_logits(model, prompt), expected)) << "link, " << on_device;
        EXPECT_TRUE(same_bits(traced_logits(model, prompt, 7), expected)) << "link, in chunks, " << on_device;
        const auto counts = model->weights().layers->counts();
        EXPECT_EQ(counts.decode.asked, static_cast<uint64_t>(2 * 12 * (n - on_device)));
        if (n - on_device > 2) EXPECT_GT(counts.decode.bytes, 0u);
        else EXPECT_EQ(counts.decode.bytes, 0u) << "two layers stay where they are";
      }
      EXPECT_EQ(open(file, linked_options(), n)->weights().layers, nullptr) << "all on the device";
    }
}

// The block that guesses tokens stays on the device, and reads the model's tables there.
TEST(EngineLayerStore, AHeadGuessesTheSame) {
  const std::vector<std::byte> file = named_model_gguf("qwen35-mtp");
  std::vector<float> traces[2];
  uint64_t accepted[2];
  for (const bool away : {false, true}) {
    const auto model = open(file, linked_options(), away ? 0 : -1);
    engine::SessionOptions options;
    options.n_context = 256, options.speculate = engine::Speculate::mtp, options.speculate_tokens = 3;
    options.guess_costs.emplace().fill(1e-9);  // always as many guesses as may be
    const auto session = unwrap(Session::open(model, options));
    unwrap(session->prefill(random_prompt(40, 1), nullptr, nullptr));
    for (int i = 0; i < 24; ++i) {
      session->push_generated(argmax(session->logits()));
      unwrap(session->decode(nullptr, nullptr, 3));
      traces[away].insert(traces[away].end(), session->logits().begin(), session->logits().end());
    }
    EXPECT_GT(session->stats().guessed_tokens, 0u);
    accepted[away] = session->stats().accepted_tokens;
  }
  EXPECT_TRUE(same_bits(traces[0], traces[1]));
  EXPECT_EQ(accepted[0], accepted[1]);
}

// Experts and layers in host memory, in one arena.
TEST(EngineLayerStore, ExpertsAndLayersLeaveTogether) {
  const std::vector<int32_t> prompt = random_prompt(40, 1);
  for (const char* spec : {"qwen3moe", "gemma4-moe"}) {
    const std::vector<std::byte> file = deep_model_gguf(spec);
    const std::vector<float> expected = traced_logits(open_bytes(file), prompt);
    engine::ModelOptions options;
    options.experts_on_device = std::string(spec) == "gemma4-moe" ? 24 : 16, options.layers_on_device = 2;
    const auto model = unwrap(try_open(file, linked_options(), options));
    ASSERT_TRUE(model->weights().layers && model->weights().experts);
    EXPECT_TRUE(same_bits(traced_logits(model, prompt), expected)) << spec;
  }
}

// The bytes that the plan says, of the file's header alone, are the bytes that opening takes; one byte less is refused.
TEST(EngineLayerStore, PlannedBytesAreTakenBytes) {
  const TempDir dir;
  engine::ModelSource source;
  source.path = dir.write("model.gguf", deep_model_gguf("llama-plain", {TensorType::q8_0}));
  engine::SessionOptions session;
  session.n_context = 256;
  for (const bool linked : {false, true})
    for (const int64_t on_device : {int64_t{0}, int64_t{2}}) {
      SCOPED_TRACE(std::to_string(on_device) + (linked ? " over a link" : ""));
      const engine::RuntimeOptions runtime = linked ? linked_options() : runtime_options();
      const engine::ModelOptions options = with_layers(on_device);
      const kv::Region planned = expect_planned_is_taken(source, runtime, options, session, "layers", [](const model::Model& m) {
        return std::pair(m.layers->arena_bytes(), m.layers->reservoir_bytes());
      });
      EXPECT_EQ(planned.device_bytes > 0, linked);
      EXPECT_GT(planned.reservoir_bytes, 0u);
    }
}

// Without a word about layers: all stay where they fit beside a short session, else as few leave as make room for it, over a link.
TEST(EngineLayerStore, AsManyAsFit) {
  const std::vector<std::byte> file = deep_model_gguf("llama-plain", {TensorType::q8_0});
  engine::RuntimeOptions runtime = linked_options();
  runtime.device_budget_bytes = uint64_t{8} << 20;
  const auto whole = open(file, runtime, -1);
  EXPECT_EQ(whole->weights().layers, nullptr);
  if (reads_the_file(whole)) GTEST_SKIP() << "these kernels read weights where the file lies, so nothing has to leave";
  const uint64_t all = whole->runtime().arena().used();
  const std::vector<int32_t> prompt = random_prompt(40, 1);
  const std::vector<float> expected = traced_logits(whole, prompt);
  int64_t before = whole->description().n_layers;
  for (const uint64_t missing : {uint64_t{1}, all / 4, all / 2}) {
    engine::ModelOptions options;
    options.sessions_bytes = runtime.device_budget_bytes - all + missing;
    const auto model = unwrap(try_open(file, runtime, options));
    ASSERT_TRUE(model->weights().layers) << missing;
    const int64_t left = whole->description().n_layers - static_cast<int64_t>(model->weights().layers->units().layers.size());
    EXPECT_LT(left, before);
    before = left;
    EXPECT_LE(model->runtime().arena().used(), runtime.device_budget_bytes - options.sessions_bytes);
    options.layers_on_device = left + 1;  // one layer more would not leave sessions their bytes
    EXPECT_GT(unwrap(try_open(file, runtime, options))->runtime().arena().used(), runtime.device_budget_bytes - options.sessions_bytes);
    EXPECT_TRUE(same_bits(traced_logits(model, prompt), expected));
  }
}

// An arena that holds no whole model opens it over a link, with room for a session.
TEST(EngineLayerStore, AModelLargerThanTheArenaOpens) {
  const std::vector<std::byte> file = deep_model_gguf("llama-plain", {TensorType::q8_0});
  engine::RuntimeOptions runtime = linked_options();
  if (reads_the_file(open(file, runtime, -1))) GTEST_SKIP() << "these kernels read weights where the file lies, so nothing has to leave";
  const TempDir dir;
  engine::ModelSource source;
  source.path = dir.write("model.gguf", file);
  engine::ModelOptions options;
  // The CPU reads weights that take more than half of the arena where the file lies, so layers leave only where the caller says so.
  options.layers_on_device = 0;
  engine::SessionOptions session;
  session.n_context = 64;
  const uint64_t whole = unwrap(engine::plan_file(source, runtime, {}, session)).device_bytes;
  runtime.device_budget_bytes = unwrap(engine::plan_file(source, runtime, options, session)).device_bytes;
  EXPECT_LT(runtime.device_budget_bytes, whole);
  const auto model = unwrap(LanguageModel::open(unwrap(engine::Runtime::create(runtime)), source, options));
  EXPECT_TRUE(Session::open(model, session).ok());
}

TEST(EngineLayerStore, OptionsAndHostMemoryThatAreWrongAreNamed) {
  const std::vector<std::byte> file = deep_model_gguf("llama-plain", {TensorType::q8_0});
  const auto whole = open_bytes(file);
  engine::ModelOptions options;
  options.layers_on_device = whole->description().n_layers + 1;
  auto refused = try_open(file, linked_options(), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::invalid_argument);
  EXPECT_STREQ(refused.status().detail().option, "layers_on_device");
  engine::RuntimeOptions runtime = linked_options();
  runtime.reservoir_bytes = open(file, linked_options(), 0)->weights().layers->reservoir_bytes() - (uint64_t{16} << 10);
  options.layers_on_device = 0;
  refused = try_open(file, runtime, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::out_of_host_memory);
  EXPECT_NE(std::string(refused.status().message()).find("layers in host memory"), std::string::npos) << refused.status().message();
}

// ---- Which layers leave, and the ring ----

TEST(LayerUnits, AreSpreadOverTheModel) {
  const std::vector<uint64_t> bytes(8, 1000);
  const auto spread = [&](int32_t n) {
    std::vector<int32_t> layers;
    for (const model::LayerUnits::Layer& layer : model::LayerUnits::spread(bytes, n).layers) layers.push_back(layer.layer);
    return layers;
  };
  EXPECT_EQ(spread(0), (std::vector<int32_t>{}));
  EXPECT_EQ(spread(1), (std::vector<int32_t>{4}));
  EXPECT_EQ(spread(2), (std::vector<int32_t>{2, 6}));
  EXPECT_EQ(spread(3), (std::vector<int32_t>{1, 4, 6}));
  EXPECT_EQ(spread(8), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(spread(9), spread(8));
  const std::vector<uint64_t> differ = {100, 5000, 100, 70};
  const model::LayerUnits units = model::LayerUnits::spread(differ, 4);
  EXPECT_EQ(model::LayerStore::needs(units, false).arena_bytes, 2 * align_up(5000, kv::kArenaAlignment));
  EXPECT_EQ(units.layers[2].host_offset, align_up(100, kv::kArenaAlignment) + align_up(5000, kv::kArenaAlignment));
  EXPECT_EQ(units.bytes(), units.layers[3].host_offset + align_up(70, kv::kArenaAlignment));
}

TEST(LayerUnits, AreDividedByBytes) {
  const std::vector<uint64_t> away(10, 1 << 20), there(10, 1 << 20);
  const auto divide = [&](uint64_t arena, uint64_t sessions) {
    return model::divide_layers({away, there, arena << 20, (uint64_t{12} << 20), sessions << 20});
  };
  EXPECT_EQ(divide(12, 0), -1);
  EXPECT_EQ(divide(14, 2), -1);
  // Two slots take the room of two layers, so three have to leave before there is room for one layer's bytes.
  EXPECT_EQ(divide(13, 2), 7);
  EXPECT_EQ(divide(12, 2), 6);
  EXPECT_EQ(divide(6, 2), 0);
  EXPECT_EQ(divide(5, 2), 0) << "no number does";
  EXPECT_EQ(divide(1, 2), 0);
}

// Seven layers of three pieces each, of which the ring has room for two.
class LayerRing : public ::testing::Test {
 protected:
  static constexpr int32_t kLayers = 7;
  static constexpr uint64_t kBytes = (uint64_t{20} << 20);
  LayerRing() {
    const std::vector<uint64_t> bytes(kLayers, kBytes);
    engine::RuntimeOptions options = runtime_options();
    options.link.bytes_per_second = uint64_t{400} << 30;
    options.device_budget_bytes = uint64_t{64} << 20, options.reservoir_bytes = uint64_t{160} << 20;
    options.io_fault = [this](const kv::IoRequest& request) {
      order_.push_back(request.head);
      return kv::IoThread::Fault{};
    };
    runtime_ = unwrap(engine::Runtime::create(options));
    store_ = unwrap(model::LayerStore::make(model::LayerUnits::spread(bytes, kLayers), &runtime_->arena(), &runtime_->reservoir(),
                                            unwrap(runtime_->io())));
    for (int32_t l = 0; l < kLayers; ++l) std::fill_n(store_->at(l), kBytes, mark(l));
    unwrap(store_->begin());
  }
  static std::byte mark(int32_t l) { return static_cast<std::byte>(17 + l); }
  void use(int32_t l, Phase phase = Phase::decode) {
    const Turn turn = runtime_->take_turn();
    unwrap(store_->bring(l, phase, {}));
    const auto* at = reinterpret_cast<const std::byte*>(store_->place(l).address);
    EXPECT_TRUE(std::all_of(at, at + kBytes, [&](std::byte b) { return b == mark(l); })) << l;
    unwrap(store_->leave(&turn.backend(), l, phase));
  }

  std::vector<uint32_t> order_;  // of layers that crossed, a piece each
  std::shared_ptr<engine::Runtime> runtime_;
  std::unique_ptr<model::LayerStore> store_;
};

TEST_F(LayerRing, LayersGoRound) {
  for (int round = 0; round < 3; ++round)
    for (int32_t l = 0; l < kLayers; ++l) use(l);
  const model::WeightRing::Counts counts = store_->counts().decode;
  EXPECT_EQ(counts.asked, 3u * kLayers);
  EXPECT_EQ(counts.bytes, 3 * kLayers * kBytes) << "each crosses once in a round; the next round's first two are on their way";
  use(0);
  use(1);
  store_.reset();
  ASSERT_GE(order_.size(), 3u * 3 * kLayers);
  for (size_t i = 0; i < 3u * kLayers; ++i) EXPECT_EQ(order_[i], (i / 3) % kLayers) << i;
}

// Another session's step begins while one is between two layers: what it needs comes first, and both go on.
TEST_F(LayerRing, StepsThatTakeTurnsBringWhatTheyNeed) {
  for (const int32_t l : {0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 6, 2}) use(l, l < 3 ? Phase::prefill : Phase::decode);
  EXPECT_EQ(store_->counts().prefill.asked, 7u);
  EXPECT_EQ(store_->counts().decode.asked, 9u);
}

}  // namespace
}  // namespace orrery::layer_store_test

// Tests how often a generated token makes a graph, waits for the device and launches, under each policy, on a model of 8 layers (in
// emulation only). cuda/README.md has the table. And at 32 layers behind a prompt of 128K tokens: the bytes that go up and down.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

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

// The spec with its first layer's tensors in n_layers layers.
std::vector<std::byte> model_of_layers(int n_layers = kLayers, uint32_t n_context = 512) {
  nlohmann::json spec = load_model_spec("qwen3"), tensors = nlohmann::json::array();
  for (nlohmann::json& key : spec["keys"]) {
    if (key[0] == "qwen3.block_count") key[2] = n_layers;
    if (key[0] == "qwen3.context_length") key[2] = n_context;
  }
  const std::string first = "blk.0.";
  for (const nlohmann::json& tensor : spec["tensors"]) {
    const std::string name = tensor["name"];
    if (name.compare(0, 4, "blk.") != 0) tensors.push_back(tensor);
    if (name.compare(0, first.size(), first) != 0) continue;
    for (int layer = 0; layer < n_layers; ++layer) {
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
  unwrap(session->sequence().assume_prompt(random_tokens(*model, 100, 1), [&](uint32_t, Span<std::byte> page) {
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
    session->push_generated(37 * i % model->description().n_vocab);
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
  uint64_t waits;    // of the host and of the I/O thread
  int n_tokens = 7;  // a policy that refreshes every five steps has two refreshes in twelve tokens
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
                                           Bound{"shadowkv", 2}, Bound{"keycodes", 1}, Bound{"keycodes_values", 1}));

// ---- 32 layers, 128K tokens

// Kernels that compute nothing. What comes to the host is zeros; but each job of a fetch tells that it has missed many pages (FetchTold),
// once told_bytes are the bytes of all that they tell.
class NoKernels final : public emulated::Device {
 public:
  NoKernels() : before_(std::exchange(emulated::device, this)) {}
  ~NoKernels() override { emulated::device = before_; }
  bool load(const void*) override { return true; }
  bool has(const std::string&) override { return true; }
  size_t shared_bytes(const std::string&) override { return 0; }
  bool touches_memory() const override { return false; }
  void run(const CUfunc_st&, dim3, dim3, size_t, void* const*, const std::function<void()>&) override {}
  void allocated(const void* at, size_t bytes, bool host) override {
    if (host) pinned_[at] = bytes;
  }
  void released(const void* at) override { pinned_.erase(at); }
  void copied(void* to, const void*, size_t bytes) override {
    const auto next = pinned_.upper_bound(to);
    if (next == pinned_.begin()) return;
    const auto& [at, n] = *std::prev(next);
    if (static_cast<const std::byte*>(to) + bytes <= static_cast<const std::byte*>(at) + n)
      std::memset(to, bytes == told_bytes ? 1 : 0, bytes);
  }
  void written(const void*, size_t) override {}
  size_t told_bytes = 0;

 private:
  emulated::Device* before_;
  std::map<const void*, size_t> pinned_;
};

constexpr uint32_t kLongPrompt = (128 << 10) + 3;  // the steps complete no page

struct LongBound {
  const char *name, *policy;
  policy::Options options;
  uint64_t waits, kib_up, kib_down;
};
class GpuLongStepCounts : public ::testing::TestWithParam<LongBound> {};

TEST_P(GpuLongStepCounts, NoTableGoesUpOrDown) {
  const LongBound& bound = GetParam();
  NoKernels device;
  emulated::memory_bytes = size_t{16} << 30;
  const auto model = open_bytes(model_of_layers(32, kLongPrompt + 64), on_cuda(uint64_t{6} << 30));
  const auto session = unwrap(Session::open(model, with_mode({"", bound.policy, bound.options, true}, .2, kLongPrompt + 64)));
  unwrap(session->sequence().assume_prompt(random_tokens(*model, kLongPrompt, 1), [](uint32_t, Span<std::byte>) {}));
  uint64_t up = 0, down = 0, waits = 0;
  for (int token = 0; token < 6; ++token) {
    if (token == 2) device.told_bytes = session->resident()->store().n_heads() * sizeof(FetchTold);
    const uint64_t before_up = emulated::bytes_to_device(), before_down = emulated::bytes_to_host(), before = emulated::n_waits();
    session->push_generated(7);
    engine::Shortlist shortlist;
    unwrap(session->decode(&shortlist));
    if (token < 3) continue;
    up = std::max(up, emulated::bytes_to_device() - before_up), down = std::max(down, emulated::bytes_to_host() - before_down);
    waits = std::max(waits, emulated::n_waits() - before);
  }
  emulated::memory_bytes = size_t{8} << 30;
  EXPECT_LE(up, bound.kib_up << 10);
  EXPECT_LE(down, bound.kib_down << 10);
  EXPECT_LE(waits, bound.waits);
  RecordProperty("up", std::to_string(up));
  RecordProperty("down", std::to_string(down));
  RecordProperty("waits", std::to_string(waits));
  std::printf("%s: %llu bytes up, %llu down, %llu waits\n", bound.name, static_cast<unsigned long long>(up),
              static_cast<unsigned long long>(down), static_cast<unsigned long long>(waits));
}

INSTANTIATE_TEST_SUITE_P(
    Modes, GpuLongStepCounts,
    ::testing::Values(LongBound{"keycodes", "keycodes", {}, 2, 128, 8},
                      LongBound{"keycodes_values", "keycodes", {{"values", "2"}}, 2, 128, 8}, LongBound{"loki", "loki", {}, 2, 128, 8},
                      LongBound{"infinigen", "infinigen", {}, 2, 128, 8}, LongBound{"quest", "quest", {}, 2, 128, 8},
                      LongBound{"freekv", "freekv", {}, 2, 128, 8},
                      LongBound{"shadowkv", "shadowkv", {}, 2, 1280, 8}),  // the rows of its low-rank keys have lists of tiles
    [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace orrery::step_counts_test
#endif

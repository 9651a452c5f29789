// Models some of whose weights lie in host memory, for tests: their runtimes, their logits, and what they must not change.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {

inline std::vector<int32_t> random_prompt(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(3 + random.below(90));
  return tokens;
}

// A simulated link of 4 GiB/s.
inline engine::RuntimeOptions linked_options(int32_t n_threads = 2) {
  engine::RuntimeOptions options = runtime_options(n_threads);
  options.link.bytes_per_second = uint64_t{4} << 30;
  return options;
}

// Experts that are not on the device cross the link.
inline engine::ModelOptions with_experts(int64_t on_device) {
  engine::ModelOptions options;
  options.experts_on_device = on_device, options.host_computes = engine::HostComputes::never;
  return options;
}
inline engine::ModelOptions with_layers(int64_t on_device) {
  engine::ModelOptions options;
  options.layers_on_device = on_device;
  return options;
}

// The processor computes the other experts, but for those of long prompts, which cross the link.
inline engine::ModelOptions with_host_experts(int64_t on_device) {
  engine::ModelOptions options = with_experts(on_device);
  options.host_computes = engine::HostComputes::always;
  return options;
}

// The processor computes the other columns of dense feed-forward blocks.
inline engine::ModelOptions with_columns(int64_t percent) {
  engine::ModelOptions options;
  options.columns_on_device = percent, options.host_computes = engine::HostComputes::always;
  return options;
}

// Whether the kernels read Q8_0 where the file lies, so that no weights have to leave an arena.
inline bool reads_the_file(const std::shared_ptr<engine::LanguageModel>& model) {
  return model->runtime().device().weight_bytes(TensorType::q8_0, 8, 32) == 0;
}

inline float farthest(const std::vector<float>& a, const std::vector<float>& b) {
  float worst = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::fabs(a[i] - b[i]));
  return worst;
}

// Opens a model of a file's bytes on a runtime of its own.
inline Result<std::shared_ptr<engine::LanguageModel>> try_open(const std::vector<std::byte>& file, const engine::RuntimeOptions& runtime,
                                                               const engine::ModelOptions& options) {
  const TempDir dir;
  engine::ModelSource source;
  source.path = dir.write("model.gguf", file);
  return engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime)), source, options);
}
inline std::shared_ptr<engine::LanguageModel> open_with(const std::vector<std::byte>& file, const engine::RuntimeOptions& runtime,
                                                        const engine::ModelOptions& options) {
  return unwrap(try_open(file, runtime, options));
}

// The bytes that the plan says, of the file's header alone, are the bytes that opening takes; one byte less is refused. taken(model): the bytes in
// the arena and in the reservoir that the plan's region `name` is about. Returns that region.
template <class Taken>
kv::Region expect_planned_is_taken(const engine::ModelSource& source, engine::RuntimeOptions runtime, const engine::ModelOptions& options,
                                   const engine::SessionOptions& session, const std::string& name, const Taken& taken) {
  const kv::Plan plan = unwrap(engine::plan_file(source, runtime, options, session));
  kv::Region planned = {};
  for (const kv::Region& region : plan.layout.regions())
    if (region.name == name) planned = region;
  runtime.device_budget_bytes = plan.device_bytes;
  runtime.reservoir_bytes = std::max(plan.reservoir_bytes, uint64_t{4} << 20);
  const auto model = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime)), source, options));
  const auto opened = unwrap(engine::Session::open(model, session));
  EXPECT_EQ(model->runtime().arena().used(), plan.device_bytes);
  EXPECT_EQ(model->runtime().reservoir().used(), plan.reservoir_bytes);
  EXPECT_EQ(taken(model->weights()), std::pair(planned.device_bytes, planned.reservoir_bytes));
  --runtime.device_budget_bytes;
  auto refused = engine::LanguageModel::open(unwrap(engine::Runtime::create(runtime)), source, options);
  EXPECT_FALSE(refused.ok() && engine::Session::open(refused.value(), session).ok());
  return planned;
}

// The logits of all prompt tokens, and of twelve greedy ones behind them.
inline std::vector<float> traced_logits(const std::shared_ptr<engine::LanguageModel>& model, const std::vector<int32_t>& prompt,
                                        uint32_t chunk = 128) {
  const auto session = open_session(model, 256, KvType::f16, chunk);
  std::vector<float> all(prompt.size() * session->logits().size());
  unwrap(session->prefill(prompt, nullptr, all.data()));
  (void)greedy(session.get(), 12, &all);
  return all;
}

}  // namespace orrery::testing

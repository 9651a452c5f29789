// What LoRA adapters cost: bench_adapters MODEL.gguf [threads [rounds [tokens [prompt [rank [path]]]]]].
// A random adapter of all matrices that adapters may change. By turns: no adapter; one; one with a scale other than 1; two at once; and four
// sessions that decode together, without adapters, with the same one, and with one each. The fastest round counts, by wall time and by the
// processor time of all threads. Prompts are timed apart. path: the instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>

#include "tests/support/adapters.h"

namespace orrery::testing {
namespace {

double wall() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double processor() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Case {
  const char* name;
  std::vector<engine::Adapters> sessions;
  double prompt_s = 1e9, wall_s = 1e9, processor_s = 1e9;
};

void run(const std::shared_ptr<engine::LanguageModel>& model, Case* c, uint32_t n_prompt, uint32_t n_tokens) {
  std::vector<int32_t> prompt;
  for (uint32_t t = 0; t < n_prompt; ++t) prompt.push_back(300 + static_cast<int32_t>((t * t * 31 + t * 7) % 4000));
  std::vector<std::unique_ptr<engine::Session>> sessions;
  for (const engine::Adapters& adapters : c->sessions) {
    engine::SessionOptions options;
    options.n_context = n_prompt + n_tokens + 8;
    options.adapters = adapters;
    sessions.push_back(unwrap(engine::Session::open(model, options)));
    const double start = wall();
    unwrap(sessions.back()->prefill(prompt, nullptr, nullptr));
    c->prompt_s = std::min(c->prompt_s, wall() - start);
  }
  const double start = wall(), start_processor = processor();
  for (uint32_t t = 0; t < n_tokens; ++t) {
    std::vector<engine::Decoder::Call> calls(sessions.size());
    for (size_t i = 0; i < sessions.size(); ++i) {
      sessions[i]->push_generated(prompt[(t + i) % prompt.size()]);
      calls[i].decoder = &sessions[i]->decoder();
    }
    engine::Decoder::decode_together(calls);
    for (const auto& call : calls) unwrap(call.status);
  }
  c->wall_s = std::min(c->wall_s, wall() - start), c->processor_s = std::min(c->processor_s, processor() - start_processor);
}

int measure(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_adapters MODEL.gguf [threads [rounds [tokens [prompt [rank [path]]]]]]\n");
    return 2;
  }
  const auto number = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  const int rounds = number(3, 5);
  const auto n_tokens = static_cast<uint32_t>(number(4, 64)), n_prompt = static_cast<uint32_t>(number(5, 256));
  const auto model = unwrap(engine::LanguageModel::open(
      unwrap(engine::Runtime::create(runtime_options(number(2, 2), argc > 7 ? argv[7] : "auto", 0))), argv[1], {}));
  std::vector<std::shared_ptr<const engine::LoadedAdapter>> open;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    AdapterSpec spec;
    spec.seed = seed, spec.rank = number(6, 16), spec.alpha = static_cast<float>(spec.rank), spec.deviation = 0.01f;
    GgufBuilder file;
    file.key("general.type", "adapter").key("adapter.type", "lora").key("adapter.lora.alpha", spec.alpha);
    file.key("general.architecture", model->description().family);
    const auto rank = static_cast<uint64_t>(spec.rank);
    for (const model::NamedMatrix& m : model->weights().matrices) {
      const std::string name(m.tensor->name);
      const uint64_t n_in = m.tensor->dims[0], n_out = m.tensor->dims[1];
      if (name == "output.weight") continue;
      file.tensor(name + ".lora_a", TensorType::f32, {n_in, rank}, as_bytes(adapter_values(spec, name, false, n_in * rank)));
      file.tensor(name + ".lora_b", TensorType::f32, {rank, n_out}, as_bytes(adapter_values(spec, name, true, n_out * rank)));
    }
    open.push_back(open_adapter(model, file.build()));
  }
  std::printf("%s, rank %d: %zu matrices, %.1f MiB next to %.1f MiB of weights\n", argv[1], number(6, 16), open[0]->weights().pairs.size(),
              static_cast<double>(open[0]->bytes()) / 1048576, static_cast<double>(model->weights().weights_bytes) / 1048576);
  const auto set = [&](size_t i, float scale = 1.0f) { return adapters_of({{open[i], scale}}); };
  const engine::Adapters two = adapters_of({{open[0], 1.0f}, {open[1], 1.0f}});
  std::vector<Case> cases = {{"none", {nullptr}},
                             {"one", {set(0)}},
                             {"one, scale 0.5", {set(0, 0.5f)}},
                             {"two", {two}},
                             {"4 sessions, none", {nullptr, nullptr, nullptr, nullptr}},
                             {"4 sessions, the same one", {set(0), set(0), set(0), set(0)}},
                             {"4 sessions, one each", {set(0), set(1), set(2), set(3)}}};
  for (int round = 0; round < rounds; ++round)
    for (Case& c : cases) run(model, &c, n_prompt, n_tokens);
  std::printf(
      "| adapters | prompt tok/s | of none | tok/s | of none | tok/s of processor time | of none |\n|---|---|---|---|---|---|---|\n");
  for (const Case& c : cases) {
    const Case& none = cases[c.sessions.size() == 1 ? 0 : 4];
    const double tokens = static_cast<double>(n_tokens) * static_cast<double>(c.sessions.size());
    std::printf("| %s | %.0f | %.2f | %.1f | %.2f | %.1f | %.2f |\n", c.name, n_prompt / c.prompt_s, none.prompt_s / c.prompt_s,
                tokens / c.wall_s, none.wall_s / c.wall_s, tokens / c.processor_s, none.processor_s / c.processor_s);
  }
  return 0;
}

}  // namespace
}  // namespace orrery::testing

int main(int argc, char** argv) {
  try {
    return orrery::testing::measure(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_adapters: %s\n", e.what());
    return 1;
  }
}

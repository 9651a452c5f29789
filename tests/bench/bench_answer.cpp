// Answers of a whole model, as an application has them: bench_answer MODEL.gguf [option=value ...]. Through orrery.h alone; in a CUDA build
// with the library inside, for a machine that has only a driver.
//   backend=auto            cpu or cuda
//   prompts=512,32768       tokens of made-up prompts
//   tokens=64               of each answer
//   policies=full           KV policies, with the default options
//   budget=0.25             of policies other than full: the share of full attention's bytes
//   threads=0
//   seconds=0               begins no prompt that would end later than this after the start, by the rate of the prompts before; 0: no limit
//
// Each prompt is asked twice, in a session of its own each time. `same`: both answers have the same tokens; the program fails if they have
// not. Memory that the GPU has in use is what nvidia-smi says, of all its programs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/abi/handles.h"

namespace orrery::testing {
namespace {

double now() {
  static const auto start = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// What nvidia-smi says about the first GPU's memory in use, or "".
std::string memory_in_use() {
  std::FILE* pipe = popen("nvidia-smi --query-gpu=memory.used,memory.free --format=csv,noheader -i 0 2>/dev/null", "r");
  if (!pipe) return "";
  char line[128] = "";
  if (!std::fgets(line, sizeof line, pipe)) line[0] = 0;
  const bool good = pclose(pipe) == 0;
  std::string text = good ? line : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}
void print_memory(const char* when) {
  const std::string in_use = memory_in_use();
  if (!in_use.empty()) std::printf("GPU memory in use, free, %s: %s\n", when, in_use.c_str());
  std::fflush(stdout);
}

struct Settings {
  std::map<std::string, std::string> values = {{"backend", "auto"}, {"prompts", "512,32768"}, {"tokens", "64"}, {"policies", "full"},
                                               {"budget", "0.25"},  {"threads", "0"},         {"seconds", "0"}};
  double number(const char* name) const { return std::atof(values.at(name).c_str()); }
};

struct Timed {
  std::vector<int32_t> tokens;
  double open = 0, first = 0, rest = 0;  // seconds until the session is open, from there to the first token, and to the last one
};

class Bench {
 public:
  Bench(const std::string& path, const Settings& settings);
  bool run();

 private:
  Timed ask(const std::string& policy, const std::vector<int32_t>& prompt);

  const Settings& settings_;
  Runtime runtime_;
  Model model_;
  int32_t n_vocab_ = 0;
};

Bench::Bench(const std::string& path, const Settings& settings) : settings_(settings) {
  print_memory("before");
  const std::string& backend = settings.values.at("backend");
  orrery_runtime_options wishes = runtime_options();
  wishes.backend = backend.c_str();
  wishes.n_threads = static_cast<int32_t>(settings.number("threads"));
  Error error;
  double start = now();
  orrery_runtime* runtime = nullptr;
  check(orrery_runtime_create(&wishes, &runtime, &error), error, "orrery_runtime_create");
  runtime_.reset(runtime);
  const double created = now() - start;
  start = now();
  model_ = open_model(runtime_, path);
  const double opened = now() - start;
  orrery_runtime_info info = options(&orrery_runtime_info_init);
  check(orrery_runtime_get_info(runtime_.get(), &info, &error), error, "orrery_runtime_get_info");
  orrery_vocab_info vocab = options(&orrery_vocab_info_init);
  check(orrery_vocab_get_info(Vocab(orrery_model_vocab(model_.get())).get(), &vocab, &error), error, "orrery_vocab_get_info");
  n_vocab_ = vocab.n_tokens;
  std::printf("%s on %s (%s): runtime %.2f s, model %.2f s; arena %.2f GB, of which weights and the rest take %.2f GB\n", path.c_str(),
              info.backend, info.path, created, opened, static_cast<double>(info.arena_bytes) * 1e-9,
              static_cast<double>(info.arena_used_bytes) * 1e-9);
  print_memory("with the model");
}

Timed Bench::ask(const std::string& policy, const std::vector<int32_t>& prompt) {
  Timed timed;
  const double start = now();
  orrery_session_options shape = session_options();
  const auto n_tokens = static_cast<uint32_t>(std::max(2.0, settings_.number("tokens")));
  shape.n_context = static_cast<uint32_t>(prompt.size()) + n_tokens + 16;
  shape.reuse_prompts = 0;
  shape.policy = policy.c_str();
  if (policy != "full") shape.kv_budget_share = static_cast<float>(settings_.number("budget"));
  const Session session = open_session(model_, shape);
  timed.open = now() - start;
  orrery_generate_options wishes = generate_options(n_tokens);
  wishes.ignore_end = 1;
  const double asked = now();
  const Generation generation = generate_tokens(session, prompt, wishes);
  pull(generation.get(), [&](const orrery_event& event) {
    if (event.type != ORRERY_EVENT_TOKEN) return;
    timed.tokens.push_back(event.token);
    (timed.tokens.size() == 1 ? timed.first : timed.rest) = now() - asked - (timed.tokens.size() == 1 ? 0.0 : timed.first);
  });
  return timed;
}

bool Bench::run() {
  bool same_everywhere = true, measured = false;
  double slowest = 0;  // seconds of a prompt's token, with its answer, both times
  const double limit = settings_.number("seconds");
  std::printf(
      "\n| policy | prompt | session, s | first token, s | prompt, tokens/s | answer, tokens/s | the second time: first token, s | answer, "
      "tokens/s | same |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  std::string left_out;
  for (const std::string& policy : split(settings_.values.at("policies"), ','))
    for (const std::string& length : split(settings_.values.at("prompts"), ',')) {
      const auto n = static_cast<size_t>(std::max(1, std::atoi(length.c_str())));
      if (limit > 0 && now() + slowest * static_cast<double>(n) > limit) {
        left_out += (left_out.empty() ? "" : "; ") + policy + " behind " + length;
        continue;
      }
      std::vector<int32_t> prompt(n);
      const int32_t words = std::max(1, std::min(n_vocab_ - 300, 30000));
      for (size_t i = 0; i < n; ++i) prompt[i] = std::min(300, n_vocab_ - 1) + static_cast<int32_t>(i * 7919 % static_cast<size_t>(words));
      const double start = now();
      const Timed one = ask(policy, prompt), two = ask(policy, prompt);
      slowest = std::max(slowest, (now() - start) / static_cast<double>(n));
      const bool same = one.tokens == two.tokens;
      same_everywhere = same_everywhere && same, measured = true;
      const auto rate = [](const Timed& t) { return static_cast<double>(t.tokens.size() - 1) / t.rest; };
      std::printf("| %s | %zu | %.3f | %.3f | %.0f | %.1f | %.3f | %.1f | %s |\n", policy.c_str(), n, one.open, one.first,
                  static_cast<double>(n) / one.first, rate(one), two.first, rate(two), same ? "yes" : "NO");
      std::fflush(stdout);
    }
  if (!left_out.empty()) std::printf("\nleft out for time: %s\n", left_out.c_str());
  std::printf("\n");
  print_memory("after the answers");
  model_.reset();
  runtime_.reset();
  print_memory("after all was freed");
  return same_everywhere && measured;
}

}  // namespace
}  // namespace orrery::testing

int main(int argc, char** argv) {
  orrery::testing::Settings settings;
  for (int i = 2; i < argc; ++i) {
    const std::string option = argv[i];
    const size_t equals = option.find('=');
    if (equals == std::string::npos || settings.values.count(option.substr(0, equals)) == 0) argc = 0;
    else settings.values[option.substr(0, equals)] = option.substr(equals + 1);
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_answer MODEL.gguf [option=value ...]; see its first lines\n");
    return 2;
  }
  try {
    orrery::testing::now();
    orrery::testing::Bench bench(argv[1], settings);
    return bench.run() ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_answer: %s\n", e.what());
    return 1;
  }
}

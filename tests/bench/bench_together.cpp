// What it brings that sessions compute tokens together: bench_together MODEL.gguf [threads [rounds [tokens [prompt [path]]]]].
// 1, 2, 4 and 8 sessions of one model, each with its own prompt, in three ways by turns:
//   in turn   one thread pulls one session's token after the other's: nothing is shared
//   threads   a thread for each session; threads that wait for a turn share a step
//   any       one thread pulls all of them by orrery_next_any()
// Prompts are not counted. The fastest round counts. Processor time is that of all threads. A wait is the time between two tokens of one
// session; the longest of all waits in the median round. Every way must give the same tokens. path: the instruction set. Through orrery.h
// alone.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/abi/handles.h"

namespace orrery::testing {
namespace {

double wall() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double processor() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

enum class Way { in_turn, threads, any };

struct Answers {
  std::vector<Session> sessions;
  std::vector<Generation> generations;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<double> last, longest;  // of each session: the time of its last token, and its longest wait

  explicit Answers(size_t n) : tokens(n), last(n), longest(n) {}
  void note(size_t i, const orrery_event& event) {
    if (event.type != ORRERY_EVENT_TOKEN) return;
    const double now = wall();
    if (!tokens[i].empty()) longest[i] = std::max(longest[i], now - last[i]);
    last[i] = now;
    tokens[i].push_back(event.token);
  }
};

// One event of generation i. False: it was the last.
bool pull(Answers* answers, size_t i) {
  Error error;
  orrery_event event = options(&orrery_event_init);
  check(orrery_next(answers->generations[i].get(), &event, &error), error, "orrery_next");
  answers->note(i, event);
  return event.type != ORRERY_EVENT_DONE;
}
void pull_token(Answers* answers, size_t i) {
  for (const size_t before = answers->tokens[i].size(); answers->tokens[i].size() == before;) pull(answers, i);
}

struct Result {
  double wall_s = 1e9, processor_s = 1e9;
  std::vector<double> longest;  // by round
  std::vector<std::vector<int32_t>> tokens;
};

void run(const Model& model, Way way, size_t n, uint32_t n_tokens, uint32_t n_prompt, Result* result) {
  Answers a(n);
  orrery_generate_options o = generate_options(n_tokens + 1);
  o.ignore_end = 1;
  for (size_t i = 0; i < n; ++i) {
    orrery_session_options s = session_options();
    s.n_context = n_prompt + n_tokens + 8;
    a.sessions.push_back(open_session(model, s));
    std::vector<int32_t> prompt;
    for (uint32_t t = 0; t < n_prompt; ++t) prompt.push_back(300 + static_cast<int32_t>((t * t * 31 + t * 7 + 131 * i) % 4000));
    a.generations.push_back(generate_tokens(a.sessions.back(), prompt, o));
    pull_token(&a, i);  // the prompt, and the token that it gives
  }
  const double start = wall(), start_processor = processor();
  std::fill(a.last.begin(), a.last.end(), start);
  if (way == Way::in_turn) {
    for (uint32_t t = 0; t < n_tokens; ++t)
      for (size_t i = 0; i < n; ++i) pull_token(&a, i);
  } else if (way == Way::threads) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < n; ++i)
      threads.emplace_back([&a, i] {
        while (pull(&a, i)) {
        }
      });
    for (std::thread& thread : threads) thread.join();
  } else {
    std::vector<orrery_generation*> handles;
    for (const Generation& g : a.generations) handles.push_back(g.get());
    Error error;
    orrery_event event = options(&orrery_event_init);
    for (size_t which = n;;) {
      check(orrery_next_any(handles.data(), n, &which, &event, &error), error, "orrery_next_any");
      if (which == n) break;
      a.note(which, event);
    }
  }
  result->wall_s = std::min(result->wall_s, wall() - start);
  result->processor_s = std::min(result->processor_s, processor() - start_processor);
  result->longest.push_back(*std::max_element(a.longest.begin(), a.longest.end()));
  if (!result->tokens.empty() && result->tokens != a.tokens) throw std::runtime_error("an answer differs from the one before");
  result->tokens = a.tokens;
}

int measure(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_together MODEL.gguf [threads [rounds [tokens [prompt [path]]]]]\n");
    return 2;
  }
  const auto number = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  orrery_runtime_options wishes = runtime_options();
  wishes.n_threads = number(2, 2);
  if (argc > 6) wishes.cpu_path = argv[6];
  const int rounds = number(3, 3);
  const auto n_tokens = static_cast<uint32_t>(number(4, 32)), n_prompt = static_cast<uint32_t>(number(5, 64));
  orrery_runtime* made = nullptr;
  Error error;
  check(orrery_runtime_create(&wishes, &made, &error), error, "orrery_runtime_create");
  const Runtime runtime(made);
  const Model model = open_model(runtime, argv[1]);
  const char* const names[] = {"in turn", "threads", "any"};
  std::printf(
      "| sessions | way | tok/s | of in turn | tok/s of processor time | of in turn | longest wait, ms |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const size_t n : {size_t{1}, size_t{2}, size_t{4}, size_t{8}}) {
    Result results[3];
    for (int round = 0; round < rounds; ++round)
      for (int way = 0; way < 3; ++way) run(model, static_cast<Way>(way), n, n_tokens, n_prompt, &results[way]);
    const double tokens = static_cast<double>(n * n_tokens);
    for (int way = 0; way < 3; ++way) {
      Result& x = results[way];
      if (x.tokens != results[0].tokens) throw std::runtime_error("the ways give different answers");
      std::nth_element(x.longest.begin(), x.longest.begin() + rounds / 2, x.longest.end());
      std::printf("| %zu | %s | %.1f | %.2f | %.1f | %.2f | %.0f |\n", n, names[way], tokens / x.wall_s, results[0].wall_s / x.wall_s,
                  tokens / x.processor_s, results[0].processor_s / x.processor_s, 1e3 * x.longest[static_cast<size_t>(rounds / 2)]);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace orrery::testing

int main(int argc, char** argv) {
  try {
    return orrery::testing::measure(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_together: %s\n", e.what());
    return 1;
  }
}

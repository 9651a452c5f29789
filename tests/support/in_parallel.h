// Helpers for tests of turns. A session answers the same prompt again and again while other threads use its runtime. Each answer must have
// the bits of the answer that the session gave alone.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/engine_fixture.h"
#include "tests/support/policy_sessions.h"

namespace orrery::testing {

struct AnswersInParallel {
  int rounds = 0, wrong = 0, others = 0;  // answers; wrong or failed answers; parts of work that the other threads did
  std::string first_error;
};

// Rounds are bounded by number and by time. A few rounds are always played, after each other thread has done its part once.
// other(i): one part of thread i's work. It throws if something fails that must not fail.
inline AnswersInParallel answers_in_parallel(const std::shared_ptr<engine::LanguageModel>& model, const engine::SessionOptions& options,
                                             size_t prompt_tokens, int n_others, const std::function<void(int)>& other) {
  constexpr int kLeast = 10, kMost = 24;
  constexpr size_t kAnswer = 4;
  constexpr std::chrono::seconds kTime(3);
  const std::vector<int32_t> prompt = random_tokens(*model, prompt_tokens, 1);
  const auto one_answer = [&] {
    const auto session = unwrap(engine::Session::open(model, options));
    return answer(session.get(), prompt, kAnswer);
  };
  const std::vector<float> expected = one_answer();

  AnswersInParallel result;
  std::atomic<bool> stop{false};
  std::atomic<int> others{0}, begun{0};
  std::vector<std::string> errors(static_cast<size_t>(n_others));
  std::vector<std::thread> threads;
  for (int i = 0; i < n_others; ++i)
    threads.emplace_back([&, i] {
      for (bool first = true; !stop; first = false, ++others) {
        try {
          other(i);
        } catch (const std::exception& e) {
          errors[static_cast<size_t>(i)] = e.what();
          if (first) ++begun;
          return;
        }
        if (first) ++begun;
      }
    });
  while (begun < n_others) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  for (; result.rounds < kMost && (result.rounds < kLeast || std::chrono::steady_clock::now() - begin < kTime); ++result.rounds) {
    try {
      result.wrong += !same_bits(one_answer(), expected);
    } catch (const std::exception& e) {
      ++result.wrong;
      if (result.first_error.empty()) result.first_error = e.what();
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors)
    if (!error.empty() && result.first_error.empty()) result.first_error = "another thread: " + error;
  result.others = others;
  return result;
}

inline void expect_all_right(const AnswersInParallel& result) {
  EXPECT_EQ(result.wrong, 0) << "of " << result.rounds << " answers, beside " << result.others << " other calls";
  EXPECT_EQ(result.first_error, "");
  EXPECT_GT(result.others, 0);
}

// The tests' cases, on a runtime with these options.
inline void answer_beside_loading(const engine::RuntimeOptions& options, const char* spec) {
  const auto runtime = unwrap(engine::Runtime::create(options));
  const TempDir dir;
  const std::string path = dir.write("model.gguf", named_model_gguf(spec));
  const auto model = unwrap(engine::LanguageModel::open(runtime, path, {}));
  engine::SessionOptions session;
  session.n_context = 320;
  expect_all_right(answers_in_parallel(model, session, 20, 1, [&](int) { unwrap(engine::LanguageModel::open(runtime, path, {})); }));
}

// The other threads' sessions take memory of the reservoir, share it with the device, and give it back.
inline void answer_beside_sessions_that_end(const engine::RuntimeOptions& options, const PolicyMode& mode, const char* spec) {
  const auto model = open_spec(spec, options);
  const std::vector<int32_t> prompt = random_tokens(*model, 12, 2);
  expect_all_right(answers_in_parallel(model, with_mode(mode, 0.6), 24, 2, [&](int i) {
    const auto session = unwrap(engine::Session::open(model, with_mode(mode, 0.6, 128u << i)));
    if (i == 0) return;  // thread 0 only opens and closes sessions
    unwrap(session->prefill(prompt, nullptr, nullptr));
    greedy(session.get(), 1);
  }));
}

}  // namespace orrery::testing

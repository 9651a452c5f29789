// Helpers for tests of the engine: a small model on a runtime of its own, and the steps that most tests take.
//
// Models come from the specs of tests/golden/models (model_spec.h). The temporary file is removed as soon as the model is open. Calls that
// must not fail throw std::runtime_error with the library's message, which GoogleTest reports.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/answer/generation.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/engine/session/plan.h"
#include "runtime/engine/session/session.h"
#include "tests/support/cpu_path.h"
#include "tests/support/model_spec.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {

template <class T>
T unwrap(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).value();
}
inline void unwrap(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

inline engine::RuntimeOptions runtime_options(int32_t n_threads = 2, const std::string& path = test_cpu_path(),
                                              uint64_t budget_bytes = 64u << 20) {
  engine::RuntimeOptions options;
  options.n_threads = n_threads;
  options.cpu_path = path;
  options.device_budget_bytes = budget_bytes;
  return options;
}

inline std::shared_ptr<engine::LanguageModel> open_bytes(const std::vector<std::byte>& file,
                                                         const engine::RuntimeOptions& options = runtime_options()) {
  const TempDir dir;
  return unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(options)), dir.write("model.gguf", file), {}));
}

inline std::shared_ptr<engine::LanguageModel> open_spec(const std::string& name, const engine::RuntimeOptions& options = runtime_options(),
                                                        const MatrixStorage& matrices = {}) {
  return open_bytes(named_model_gguf(name, matrices), options);
}

inline std::unique_ptr<engine::Session> open_session(const std::shared_ptr<engine::LanguageModel>& model, uint32_t n_context,
                                                     KvType kv = KvType::f32, uint32_t chunk_tokens = 0) {
  engine::SessionOptions options;
  options.n_context = n_context;
  options.kv_type = kv;
  options.chunk_tokens = chunk_tokens;
  return unwrap(engine::Session::open(model, options));
}

inline int32_t argmax(Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Feeds a token as a generated one.
inline void feed(engine::Session* session, int32_t token) {
  session->push_generated(token);
  unwrap(session->decode());
}

// Generates n tokens greedily and returns them. Appends each step's logits to `trace`.
inline std::vector<int32_t> greedy(engine::Session* session, size_t n, std::vector<float>* trace = nullptr) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < n; ++i) {
    tokens.push_back(argmax(session->logits()));
    feed(session, tokens.back());
    if (trace) trace->insert(trace->end(), session->logits().begin(), session->logits().end());
  }
  return tokens;
}

inline std::vector<int32_t> as_vector(Span<const int32_t> tokens) { return {tokens.begin(), tokens.end()}; }
inline std::vector<float> as_vector(Span<const float> values) { return {values.begin(), values.end()}; }

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
// Feeds the tokens from `first` on to a session without guesses, and to one with up to seven: the same logits and embeddings at each.
inline void expect_same_rows(engine::Session* off, engine::Session* guessing, const std::vector<int32_t>& tokens, size_t first) {
  for (size_t i = first; i < tokens.size(); ++i) {
    off->push_generated(tokens[i]), guessing->push_generated(tokens[i]);
    unwrap(off->decode());
    unwrap(guessing->decode(nullptr, nullptr, 7));
    ASSERT_TRUE(same_bits(as_vector(off->logits()), as_vector(guessing->logits()))) << i;
    ASSERT_TRUE(same_bits(as_vector(off->sequence().embedding()), as_vector(guessing->sequence().embedding()))) << i;
    ASSERT_EQ(off->n_computed(), guessing->n_computed());
  }
}

// Sessions with these prompts decode n_steps tokens together, greedily: each has the logits of a session that decodes alone.
inline void expect_together_as_alone(const std::shared_ptr<engine::LanguageModel>& model, const std::vector<std::vector<int32_t>>& prompts,
                                     int n_steps) {
  std::vector<std::unique_ptr<engine::Session>> together, alone;
  for (const std::vector<int32_t>& prompt : prompts)
    for (auto* sessions : {&together, &alone}) {
      sessions->push_back(open_session(model, static_cast<uint32_t>(prompt.size()) + 64, KvType::f16));
      unwrap(sessions->back()->prefill(prompt, nullptr, nullptr));
    }
  for (int step = 0; step < n_steps; ++step) {
    std::vector<engine::Decoder::Call> calls(together.size());
    for (size_t i = 0; i < together.size(); ++i) {
      const int32_t token = argmax(together[i]->logits());
      together[i]->push_generated(token);
      calls[i].decoder = &together[i]->decoder();
      EXPECT_TRUE(together[i]->decoder().decodes_together());
      feed(alone[i].get(), token);
    }
    engine::Decoder::decode_together(calls);
    for (size_t i = 0; i < together.size(); ++i) {
      ASSERT_TRUE(calls[i].status.ok()) << calls[i].status.message();
      EXPECT_TRUE(same_bits(as_vector(together[i]->logits()), as_vector(alone[i]->logits()))) << step << ", " << i;
    }
  }
}

// The largest deviation of a model's logits from the expected ones, over many rows.
struct Deviation {
  double most = 0, most_expected = 0;  // |difference|, |expected|
  double squares = 0, expected_squares = 0;

  void add(const float* found, const float* expected, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const double e = expected[i], d = found[i] - e;
      if (!(std::fabs(d) <= most)) most = std::fabs(d);  // a NaN is kept
      most_expected = std::max(most_expected, std::fabs(e));
      squares += d * d;
      expected_squares += e * e;
    }
  }
  double relative() const { return most / most_expected; }
  double rms() const { return std::sqrt(squares / expected_squares); }
};

}  // namespace orrery::testing

// What a session gives by itself, token by token, to be compared with steps together.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/support/engine_fixture.h"

namespace orrery::testing {

// One session's options and prompt; what it gives alone.
struct Lone {
  engine::SessionOptions options;
  std::vector<int32_t> prompt, tokens;
  std::vector<float> trace, embeddings;
  uint64_t kv_read = 0, generated = 0, settled = 0;
};

inline std::unique_ptr<engine::Session> begun(const std::shared_ptr<engine::LanguageModel>& model, const Lone& lone) {
  auto session = unwrap(engine::Session::open(model, lone.options));
  unwrap(session->prefill(lone.prompt, nullptr, nullptr));
  return session;
}

// One token further: what a session notes after its step.
inline void note(engine::Session* session, Lone* lone) {
  lone->tokens.push_back(session->tokens()[session->n_computed() - 1]);
  lone->trace.insert(lone->trace.end(), session->logits().begin(), session->logits().end());
  lone->embeddings.insert(lone->embeddings.end(), session->sequence().embedding().begin(), session->sequence().embedding().end());
  lone->generated = session->stats().generated_tokens;
  if (session->resident()) lone->kv_read = session->resident()->reads().kv, lone->settled = session->resident()->settled_bytes();
}

}  // namespace orrery::testing

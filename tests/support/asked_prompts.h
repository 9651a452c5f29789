// Prompts that a session is asked, for tests of KV that comes from elsewhere: the answer, and what the session computed for it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/engine/answer/generation.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"

namespace orrery::testing {

// `head`, and random tokens of a small vocabulary behind it: n tokens.
inline std::vector<int32_t> tokens_of(size_t n, uint64_t seed, std::vector<int32_t> head = {}) {
  Random random(seed);
  while (head.size() < n) head.push_back(static_cast<int32_t>(3 + random.below(90)));
  return head;
}

struct Asked {
  std::vector<int32_t> tokens;  // of the answer
  std::vector<float> logits;    // of its last computed token
  uint64_t reused = 0, computed = 0, restored = 0, from_folder = 0;
};
inline Asked ask(engine::Session* session, const std::vector<int32_t>& prompt, uint32_t n = 5) {
  const engine::SessionStats before = session->stats();
  engine::GenerateOptions options;
  options.max_tokens = n;
  options.ignore_end = true;
  const auto g = unwrap(engine::Generation::proceed(session, prompt, options));
  Asked a;
  engine::Event event;
  do {
    unwrap(g->next(&event));
    if (event.type == engine::EventType::token) a.tokens.push_back(event.token);
  } while (event.type != engine::EventType::done);
  unwrap(session->sequence().fetch_logits());
  a.logits = as_vector(session->logits());
  a.reused = event.reused_tokens;
  const engine::SessionStats after = session->stats();
  a.computed = after.prompt_tokens - before.prompt_tokens;
  a.restored = after.restored_tokens - before.restored_tokens;
  a.from_folder = after.folder_tokens - before.folder_tokens;
  return a;
}
inline void expect_same(const Asked& found, const Asked& expected) {
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_TRUE(same_bits(found.logits, expected.logits));
}

}  // namespace orrery::testing

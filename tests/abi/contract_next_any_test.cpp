// One thread with several generations (orrery_next_any): each tells what it tells alone, in turns, whatever ends the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_next_any_test {
namespace {

class NextAny : public ::testing::Test {
 protected:
  // Session i's options: all kinds of policies and KV types, and contexts that end some answers.
  Session open(size_t i) const {
    orrery_session_options o = session_options();
    o.n_context = i == 2 ? 48 : 256;
    o.chunk_tokens = 16;
    o.reuse_prompts = 0;  // the same prompt again is computed again
    if (i % 3 == 1) o.policy = i == 1 ? "h2o" : "quest", o.kv_budget_share = 0.5f;
    if (i == 3) o.kv_type = ORRERY_KV_Q8_0;
    return open_session(model, o);
  }
  static Generation begin(const Session& session, size_t i, uint32_t max_tokens = 0) {
    std::vector<int32_t> prompt;
    for (size_t t = 0; t < 10 + 9 * i; ++t) prompt.push_back(static_cast<int32_t>(10 + (t * 37 + i * 101) % 350));
    orrery_generate_options o = generate_options(max_tokens ? max_tokens : i == 2 ? 100 : static_cast<uint32_t>(8 + 3 * i));
    o.ignore_end = 1;
    o.temperature = i % 2 ? 0.9f : 0.0f;
    o.seed = i;
    return generate_tokens(session, prompt, o);
  }
  // An event as text, log-probabilities by their bits; times do not count.
  static std::string told(const orrery_event& e) {
    uint32_t bits;
    std::memcpy(&bits, &e.logprob, sizeof bits);
    return std::to_string(e.type) + " " + std::to_string(e.done) + "/" + std::to_string(e.total) + " " + std::to_string(e.token) + " " +
           std::to_string(bits) + " " + std::string(e.text ? e.text : "", e.text_bytes) + " " + std::to_string(e.finish_reason) + " " +
           std::to_string(e.prompt_tokens) + " " + std::to_string(e.generated_tokens);
  }
  static std::vector<std::string> alone(const Generation& g) {
    std::vector<std::string> events;
    pull(g.get(), [&](const orrery_event& e) { events.push_back(told(e)); });
    return events;
  }

  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
};

TEST_F(NextAny, EventsAreThoseOfNextInTurns) {
  for (const size_t n : {size_t{1}, size_t{2}, size_t{5}, size_t{8}}) {
    std::vector<Session> sessions;
    std::vector<Generation> generations;
    std::vector<orrery_generation*> handles(1);  // the first entry is NULL
    std::vector<std::vector<std::string>> expected, found(n);
    for (size_t i = 0; i < n; ++i) {
      const Session session = open(i);
      expected.push_back(alone(begin(session, i)));
      sessions.push_back(open(i));
      generations.push_back(begin(sessions.back(), i));
      handles.push_back(generations.back().get());
    }
    orrery_event e = options(&orrery_event_init);
    std::vector<size_t> turns;
    for (size_t which = handles.size();;) {
      Error error;
      ASSERT_EQ(orrery_next_any(handles.data(), handles.size(), &which, &e, &error), ORRERY_OK) << error.message;
      if (which == handles.size()) break;
      ASSERT_GT(which, 0u);
      found[which - 1].push_back(told(e));
      turns.push_back(which);
    }
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(expected[i], found[i]) << n << " generations, " << i;
    // At first nobody is over: each has one event before any has its next.
    for (size_t t = 0; t < n; ++t) EXPECT_EQ(turns[t], t + 1);
    EXPECT_EQ(orrery_next_any(handles.data(), handles.size(), &(turns[0] = 0), &e, nullptr), ORRERY_OK);
    EXPECT_EQ(turns[0], handles.size()) << "all are over";
  }
}

// Between two chunks of a prompt, whoever generates gets a token; and nobody is ever two tokens ahead of another. The long prompt comes
// when the others generate already, at any place among them.
TEST_F(NextAny, PromptsAndTokensTakeTurns) {
  for (size_t late = 0; late < 3; ++late) {
    std::vector<Session> sessions;
    std::vector<Generation> generations;
    std::vector<orrery_generation*> handles;
    for (size_t i = 0; i < 3; ++i) {
      sessions.push_back(open(0));
      generations.push_back(begin(sessions.back(), i == late ? 20 : 0, 200));  // the late prompt has many chunks
      handles.push_back(i == late ? nullptr : generations.back().get());
    }
    const size_t a = (late + 1) % 3, b = (late + 2) % 3;
    orrery_event e = options(&orrery_event_init);
    size_t which = 3, chunks = 0, tokens[3] = {}, before[3] = {};
    for (size_t n = 0; chunks < 10; ++n) {
      ASSERT_LT(n, 1000u) << "the prompt at " << late << " waits";
      if (tokens[a] == 3 && tokens[b] == 3) handles[late] = generations[late].get();
      ASSERT_EQ(orrery_next_any(handles.data(), 3, &which, &e, nullptr), ORRERY_OK);
      ASSERT_LT(which, 3u);
      if (e.type == ORRERY_EVENT_TOKEN) ++tokens[which];
      ASSERT_LE(std::max(tokens[a], tokens[b]), std::min(tokens[a], tokens[b]) + 1);
      if (which != late || e.type != ORRERY_EVENT_PROGRESS) continue;
      ++chunks;
      for (size_t i : {a, b}) EXPECT_EQ(tokens[i], chunks > 1 ? before[i] + 1 : tokens[i]) << chunks;
      before[a] = tokens[a], before[b] = tokens[b];
    }
  }
}

// A cancelled one ends, a freed one is left out, one with a failing template tells its error: the others go on.
TEST_F(NextAny, WhatEndsOneLeavesTheOthers) {
  const Session session = open(0);
  const std::vector<std::string> expected = alone(begin(session, 0, 40));
  std::vector<Session> sessions;
  std::vector<Generation> generations;
  std::vector<orrery_generation*> handles;
  for (size_t i = 0; i < 4; ++i) {
    sessions.push_back(open(0));
    if (i == 3)
      say(sessions.back(),
          "a text that the context does not hold, because it is repeated until it is much longer than the context of "
          "the session, which has room for two hundred and fifty-six tokens of this model: a text that the context does "
          "not hold, because it is repeated until it is much longer than the context of the session, which has room for it");
    generations.push_back(i == 3 ? generate(sessions.back(), generate_options(4)) : begin(sessions.back(), 0, 40));
    handles.push_back(generations.back().get());
  }
  orrery_event e = options(&orrery_event_init);
  std::vector<std::string> found;
  int errors = 0;
  uint32_t finish = 0;
  for (size_t which = 4, n = 0;; ++n) {
    Error error;
    const orrery_status status = orrery_next_any(handles.data(), 4, &which, &e, &error);
    if (status != ORRERY_OK) {
      EXPECT_EQ(status, ORRERY_CONTEXT_FULL);
      EXPECT_EQ(which, 3u);
      ++errors;
      continue;
    }
    if (which == 4) break;
    if (which == 0) found.push_back(told(e));
    if (which == 1 && e.type == ORRERY_EVENT_DONE) finish = e.finish_reason;
    if (n == 20) orrery_cancel(handles[1]);
    if (n == 30) generations[2].reset(), handles[2] = nullptr;
  }
  EXPECT_EQ(errors, 1);
  EXPECT_EQ(finish, uint32_t{ORRERY_FINISH_CANCELLED});
  EXPECT_EQ(found, expected);
}

TEST_F(NextAny, ArgumentsAreChecked) {
  const Session session = open(0);
  const Generation g = begin(session, 0, 2);
  orrery_generation* handle = g.get();
  orrery_event e = options(&orrery_event_init);
  size_t which = 0;
  EXPECT_EQ(orrery_next_any(nullptr, 1, &which, &e, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_next_any(&handle, 1, nullptr, &e, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_next_any(&handle, 1, &which, nullptr, nullptr), ORRERY_INVALID_ARGUMENT);
  orrery_event bad = e;
  bad.struct_size = 7;
  EXPECT_EQ(orrery_next_any(&handle, 1, &which, &bad, nullptr), ORRERY_INVALID_ARGUMENT);
  which = 5;
  EXPECT_EQ(orrery_next_any(nullptr, 0, &which, &e, nullptr), ORRERY_OK);
  EXPECT_EQ(which, 0u);
  EXPECT_EQ(pull(g).tokens.size(), 2u);  // none of it did harm
}

}  // namespace
}  // namespace orrery::testing::contract_next_any_test

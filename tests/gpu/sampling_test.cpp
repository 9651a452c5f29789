// Tests generation whose logits stay on the device. Tokens are those that all logits would give, few bytes are fetched, and all logits are
// available when a caller asks.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/gpu/on_cuda.h"
#include "tests/support/policy_sessions.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#endif

namespace orrery::sampling_test {
namespace {

using namespace testing;
using engine::Generation;
using engine::Session;

struct Said {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of each step: the token's and its alternatives'
};

Said say(Session* session, const std::vector<int32_t>& prompt, const engine::GenerateOptions& options) {
  Said said;
  const auto generation = unwrap(Generation::proceed(session, prompt, options));
  for (engine::Event event; event.type != engine::EventType::done;) {
    unwrap(generation->next(&event));
    if (event.type != engine::EventType::token) continue;
    said.tokens.push_back(event.token);
    said.logprobs.push_back(event.logprob);
    for (const engine::TokenLogprob& t : event.top) said.logprobs.push_back(t.logprob), said.tokens.push_back(t.token);
  }
  return said;
}

engine::GenerateOptions options_of(uint32_t max_tokens, float temperature = 0, uint32_t top_k = 0, float top_p = 1, float min_p = 0) {
  engine::GenerateOptions o;
  o.max_tokens = max_tokens;
  o.ignore_end = true;
  o.sampling.temperature = temperature, o.sampling.top_k = top_k, o.sampling.top_p = top_p, o.sampling.min_p = min_p;
  o.sampling.seed = 11;
  return o;
}

// A hook that sees all logits, so that they are fetched.
engine::GenerateOptions by_all_logits(engine::GenerateOptions o) {
  o.sampling.hook = [](void*, float*, size_t, const int32_t*, size_t) { return 0; };
  return o;
}

TEST(GpuSampling, SaysWhatAllLogitsSay) {
  const auto model = open_spec("llama-plain", on_cuda());
  std::vector<engine::GenerateOptions> all = {options_of(4),
                                              options_of(4, 0.9f, 20),
                                              options_of(4, 0.6f, 0, 0.7f),
                                              options_of(4, 1.3f, 0, 1, 0.4f),
                                              options_of(4, 0.8f, 30, 0.9f, 0.05f),
                                              options_of(4, 0.7f)};
  for (size_t i = all.size(); i-- > 0;) {
    engine::GenerateOptions o = all[i];
    o.sampling.n_logprobs = 3;
    o.sampling.repetition_penalty = 1.3f, o.sampling.frequency_penalty = -0.4f, o.sampling.presence_penalty = 0.2f;
    o.sampling.penalty_tokens = 20;
    o.sampling.bias = {{3, 2.0f}, {5, -1e30f}};
    all.push_back(o);
  }
  for (const char* policy : {"full", "streaming"}) {
    engine::SessionOptions session;
    session.n_context = 96;
    session.policy = policy;
    session.kv_share = policy == std::string("full") ? 1.0 : 0.7;
    const auto whole = unwrap(Session::open(model, session)), listed = unwrap(Session::open(model, session));
    for (size_t i = 0; i < all.size(); i += policy == std::string("full") ? 1 : 4) {  // in emulation a token takes a tenth of a second
      SCOPED_TRACE(std::string(policy) + ", options " + std::to_string(i));
      const std::vector<int32_t> prompt = random_tokens(*model, 20 + i % 3, i);
      const Said expected = say(whole.get(), prompt, by_all_logits(all[i])), got = say(listed.get(), prompt, all[i]);
      EXPECT_EQ(got.tokens, expected.tokens);
      EXPECT_TRUE(same_bits(got.logprobs, expected.logprobs));
    }
  }
}

// A draw among all tokens, after another session's steps: the row has moved, or has gone to its session before a block of it was wanted.
TEST(GpuSampling, TheRowGoesBeforeItsBlock) {
  const auto model = open_spec("llama-plain", on_cuda());
  const auto one = open_session(model, 96, KvType::f16), other = open_session(model, 96, KvType::f16);
  const std::vector<int32_t> prompt = random_tokens(*model, 20, 1);
  const engine::GenerateOptions options = options_of(6, 0.7f);
  const Said expected = say(one.get(), prompt, by_all_logits(options));
  std::vector<float> all(prompt.size() * static_cast<size_t>(model->description().n_vocab));
  for (const bool goes : {false, true}) {
    unwrap(one->rewind(0)), unwrap(other->rewind(0));
    const auto generation = unwrap(Generation::proceed(one.get(), prompt, options));
    std::vector<int32_t> tokens;
    for (engine::Event event; event.type != engine::EventType::done;) {
      unwrap(generation->next(&event));
      if (event.type == engine::EventType::token) tokens.push_back(event.token);
      if (event.type != engine::EventType::progress) continue;
      if (goes) unwrap(other->prefill(prompt, nullptr, all.data()));  // its rows of logits take all the room
      else say(other.get(), prompt, options_of(1));
    }
    EXPECT_EQ(tokens, expected.tokens);
  }
}

// A caller gets the logits of the session's last token, whatever the device has done since.
TEST(GpuSampling, LogitsAreThereForTheAsking) {
  const auto model = open_spec("llama-plain", on_cuda());
  const auto one = open_session(model, 96, KvType::f16), other = open_session(model, 96, KvType::f16);
  const std::vector<int32_t> prompt = random_tokens(*model, 40, 1);
  // The expected logits, fetched step by step: after the prompt, and after each of seven tokens.
  const auto eager = open_session(model, 96, KvType::f16);
  unwrap(eager->prefill(prompt, nullptr, nullptr));
  std::vector<std::vector<float>> logits = {as_vector(eager->logits())}, embeddings = {as_vector(eager->sequence().embedding())};
  for (int i = 0; i < 7; ++i) {
    feed(eager.get(), argmax(eager->logits()));
    logits.push_back(as_vector(eager->logits())), embeddings.push_back(as_vector(eager->sequence().embedding()));
  }
  const auto expect_at = [&](Session* s, size_t i) {
    ASSERT_TRUE(s->sequence().has_logits());
    unwrap(s->sequence().fetch_logits());
    EXPECT_TRUE(same_bits(as_vector(s->logits()), logits[i]));
    EXPECT_TRUE(same_bits(as_vector(s->sequence().embedding()), embeddings[i]));
  };
  say(one.get(), prompt, options_of(1));
  EXPECT_TRUE(one->logits().empty() && one->sequence().embedding().empty());  // still on the device
  expect_at(one.get(), 0);
  say(one.get(), prompt, options_of(8));
  expect_at(one.get(), 7);
  say(one.get(), prompt, options_of(8));  // the session has the prompt's KV: only its last token is computed again
  say(other.get(), prompt, options_of(6));
  expect_at(one.get(), 7);  // other's steps have taken their place
  say(other.get(), prompt, options_of(6));
  const auto fork = unwrap(other->fork());
  expect_at(fork.get(), 5);
  expect_at(other.get(), 5);

  say(one.get(), prompt, options_of(8));
  const auto larger = open_session(model, 400, KvType::f16);  // it has another workspace
  expect_at(one.get(), 7);

  {  // a session that ends while its logits are on the device
    const auto gone = open_session(model, 96, KvType::f16);
    say(gone.get(), prompt, options_of(8));
  }
  say(one.get(), prompt, options_of(8));
  say(larger.get(), prompt, options_of(3));
  expect_at(larger.get(), 2);
  expect_at(one.get(), 7);
  // A prompt that is cancelled changes nothing.
  say(one.get(), prompt, options_of(8));
  const std::vector<float> before = logits[7];
  const uint32_t n = one->n_computed();
  unwrap(one->rewind(n));
  const std::atomic<bool> now{true};
  EXPECT_EQ(one->sequence().prefill_chunk(random_tokens(*model, 5, 9), &now, false, nullptr).code(), Code::cancelled);
  EXPECT_EQ(one->n_computed(), n);
  expect_at(one.get(), 7);
}

// A model of n tokens.
std::shared_ptr<engine::LanguageModel> with_vocabulary(uint64_t n) {
  nlohmann::json spec = load_model_spec("llama-plain");
  spec["vocab"]["size"] = n;
  for (auto& tensor : spec["tensors"])
    if (tensor["name"] == "token_embd.weight" || tensor["name"] == "output.weight") tensor["shape"][1] = n;
  return open_bytes(build_model_gguf(spec), on_cuda());
}

// Sessions whose steps are computed at once, each under a mask of its own: the tokens of the definition, mostly without their rows.
TEST(GpuSampling, UnderMasks) {
  constexpr size_t kVocabulary = 6001;
  const auto model = with_vocabulary(kVocabulary);
  std::vector<engine::GenerateOptions> all = {options_of(1), options_of(1, 1.5f), options_of(1, 1.5f, 0, 0.97f),
                                              options_of(1, 0.8f, 30, 0.9f)};
  for (engine::GenerateOptions& o : all)
    o.sampling.bias = {{3, 4.0f}, {4, 4.0f}, {6000, 2.0f}, {17, -1e30f}}, o.sampling.repetition_penalty = 1.3f;
  int n_decided = 0, n_looks = 0;
  for (const engine::GenerateOptions& o : all) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<engine::Sampler> listed, whole;
    std::vector<std::vector<uint32_t>> masks(2, std::vector<uint32_t>((kVocabulary + 31) / 32));
    for (size_t i = 0; i < 2; ++i) {
      sessions.push_back(open_session(model, 96, KvType::f16));
      unwrap(sessions[i]->prefill(random_tokens(*model, 12 + i, i), nullptr, nullptr));
      listed.emplace_back(o.sampling, static_cast<int32_t>(kVocabulary)), whole.emplace_back(o.sampling, static_cast<int32_t>(kVocabulary));
    }
    for (int32_t step = 0; step < 3; ++step) {
      std::vector<engine::Decoder::Call> calls(2);
      for (size_t i = 0; i < 2; ++i) {
        testing::Random random(static_cast<uint64_t>(step) * 2 + i);
        for (uint32_t& word : masks[i]) word = static_cast<uint32_t>(random.bits()) | (i == 1 ? static_cast<uint32_t>(random.bits()) : 0);
        masks[i][0] = ~8u;  // bans a token with a bias
        listed[i].set_mask(masks[i]), whole[i].set_mask(masks[i]);
        sessions[i]->push_generated(step + 1);
        calls[i].decoder = &sessions[i]->decoder(), calls[i].shortlist = listed[i].ask(sessions[i]->tokens());
        ASSERT_TRUE(calls[i].shortlist);
        ASSERT_FALSE(calls[i].shortlist->mask().empty());
      }
      engine::Decoder::decode_together({calls.data(), 2});
      for (size_t i = 0; i < 2; ++i) {
        unwrap(calls[i].status);
        engine::Choice choice;
        engine::Sampler::Outcome outcome = listed[i].choose(sessions[i]->tokens(), &choice);
        for (; outcome == engine::Sampler::Outcome::wants_more; ++n_looks) {
          ASSERT_TRUE(unwrap(sessions[i]->sequence().fetch_more(calls[i].shortlist)));
          outcome = listed[i].choose(sessions[i]->tokens(), &choice);
        }
        unwrap(sessions[i]->sequence().fetch_logits());
        const engine::Choice expected = unwrap(whole[i].choose_of_all(sessions[i]->logits(), sessions[i]->tokens()));
        EXPECT_EQ(masks[i][static_cast<size_t>(expected.token) / 32] >> (expected.token % 32) & 1, 1u);
        if (outcome != engine::Sampler::Outcome::chosen)
          choice = unwrap(listed[i].choose_of_all(sessions[i]->logits(), sessions[i]->tokens()));
        n_decided += outcome == engine::Sampler::Outcome::chosen;
        EXPECT_EQ(choice.token, expected.token);
        EXPECT_EQ(choice.logprob, expected.logprob);
      }
    }
  }
  EXPECT_GE(n_decided, 20);
  EXPECT_GE(n_looks, 12);
}

#ifdef ORRERY_EMULATED
// A token's step downloads only what its sampler asked for. Different requests use the same graph.
TEST(GpuSampling, LittleIsFetched) {
  const auto model = open_spec("llama-plain", on_cuda());
  const uint64_t row = static_cast<uint64_t>(model->description().n_vocab + model->description().n_embd) * sizeof(float);
  const std::vector<int32_t> prompt = random_tokens(*model, 40, 1);
  const auto session = open_session(model, 96, KvType::f16);
  size_t graphs = 0;
  const auto fetched = [&](const engine::GenerateOptions& options) {
    unwrap(session->rewind(0));
    const uint64_t before = emulated::bytes_to_host();
    say(session.get(), prompt, options);
    const uint64_t bytes = emulated::bytes_to_host() - before;
    EXPECT_EQ(bytes % options.max_tokens, 0u);
    return bytes / options.max_tokens;
  };
  engine::GenerateOptions o = options_of(10);
  EXPECT_EQ(fetched(by_all_logits(o)), row);
  EXPECT_EQ(fetched(o), sizeof(ShortlistHead) + sizeof(ShortlistEntry));
  graphs = emulated::graphs_made();
  o.sampling.bias = {{7, 1.0f}, {8, -1.0f}};
  EXPECT_EQ(fetched(o), sizeof(ShortlistHead) + 3 * sizeof(ShortlistEntry) + 2 * sizeof(float));
  o = options_of(10, 0.8f, 25);
  EXPECT_EQ(fetched(o), sizeof(ShortlistHead) + 25 * sizeof(ShortlistEntry));
  o.sampling.repetition_penalty = 1.2f;
  say(session.get(), prompt, o);
  EXPECT_EQ(emulated::graphs_made(), graphs);
  // A draw among all tokens: the sums of blocks, and the logits of one block.
  o = options_of(10, 0.8f);
  const uint64_t n_vocab = static_cast<uint64_t>(model->description().n_vocab);
  EXPECT_EQ(fetched(o), sizeof(ShortlistHead) + (n_vocab + 255) / 256 * sizeof(double) + std::min<uint64_t>(n_vocab, 256) * sizeof(float));
  EXPECT_EQ(emulated::graphs_made(), graphs);
}

// Sessions that take turns fetch as many bytes as each would alone: another session's step sends no row to the host.
TEST(GpuSampling, SessionsInTurnFetchNoMore) {
  const auto model = open_spec("llama-plain", on_cuda());
  const std::vector<engine::GenerateOptions> options = {options_of(5), options_of(5, 0.8f), options_of(5, 0.8f, 25)};
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<int32_t>> expected, tokens(options.size());
  std::vector<std::unique_ptr<Generation>> generations;
  const auto prompt = [&](size_t i) { return random_tokens(*model, 20 + i, i); };
  const uint64_t start = emulated::bytes_to_host();
  for (size_t i = 0; i < options.size(); ++i) {
    sessions.push_back(open_session(model, 96, KvType::f16));
    expected.push_back(say(sessions[i].get(), prompt(i), options[i]).tokens);
    unwrap(sessions[i]->rewind(0));
  }
  const uint64_t alone = emulated::bytes_to_host() - start;
  for (size_t i = 0; i < options.size(); ++i) generations.push_back(unwrap(Generation::proceed(sessions[i].get(), prompt(i), options[i])));
  engine::Event event;
  for (bool going = true; going;) {  // an event each
    going = false;
    for (size_t i = 0; i < options.size(); ++i) {
      if (tokens[i].size() == expected[i].size()) continue;
      unwrap(generations[i]->next(&event));
      if (event.type == engine::EventType::token) tokens[i].push_back(event.token);
      going = true;
    }
  }
  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(emulated::bytes_to_host() - start, 2 * alone);
}

// A larger vocabulary: draws by blocks, and top-p beyond the shortlist.
TEST(GpuSampling, MoreIsFetchedAsFarAsNeeded) {
  constexpr uint64_t kVocabulary = 3000;
  const auto model = with_vocabulary(kVocabulary);
  const std::vector<int32_t> prompt = random_tokens(*model, 10, 1);
  const auto whole = open_session(model, 64, KvType::f16), listed = open_session(model, 64, KvType::f16);
  const auto fetched = [&](const engine::GenerateOptions& options) {
    const Said expected = say(whole.get(), prompt, by_all_logits(options));
    const uint64_t before = emulated::bytes_to_host();
    const Said got = say(listed.get(), prompt, options);
    const uint64_t bytes = emulated::bytes_to_host() - before;
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_TRUE(same_bits(got.logprobs, expected.logprobs));
    unwrap(whole->rewind(0)), unwrap(listed->rewind(0));
    return bytes;
  };
  engine::GenerateOptions o = options_of(8, 1.5f);
  EXPECT_LE(fetched(o), 8 * (sizeof(ShortlistHead) + 12 * sizeof(double) + 256 * sizeof(float)));
  o.sampling.repetition_penalty = 1.3f, o.sampling.n_logprobs = 2;
  EXPECT_LE(fetched(o),
            8 * (sizeof(ShortlistHead) + 12 * sizeof(double) + 256 * sizeof(float) + 20 * sizeof(float) + 2 * sizeof(ShortlistEntry)));
  o = options_of(8, 1.5f, 0, 0.97f);
  const uint64_t beyond = fetched(o) - 8 * (sizeof(ShortlistHead) + 1024 * sizeof(ShortlistEntry));
  const uint64_t tail = ShortlistTail::kBands * sizeof(uint64_t) + sizeof(ShortlistTailEntries);
  EXPECT_GE(beyond, 4 * tail);
  EXPECT_EQ(beyond % tail, 0u);
  o.sampling.bias = {{3, 4.0f}, {2999, 2.0f}, {17, -1e30f}};
  fetched(o);
}

TEST(GpuSampling, ALostDeviceKeepsItsLogits) {
  const auto model = open_spec("llama-plain", on_cuda());
  const auto one = open_session(model, 96, KvType::f16), other = open_session(model, 96, KvType::f16);
  const std::vector<int32_t> prompt = random_tokens(*model, 40, 1);
  say(one.get(), prompt, options_of(4));
  emulated::fault = [] { return cuda::DriverError::illegal_address; };
  EXPECT_EQ(other->prefill(prompt, nullptr, nullptr).code(), Code::device_lost);
  emulated::fault = nullptr;
  EXPECT_EQ(one->sequence().fetch_logits().code(), Code::device_lost) << "no zeros in their place";
  EXPECT_EQ(one->sequence().fetch_logits().code(), Code::device_lost);
}
#endif

}  // namespace
}  // namespace orrery::sampling_test

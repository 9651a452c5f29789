// Vectors of texts: they are what a session computes for the same tokens, in any list; pooling, length and dimensions; limits, refusals,
// cancelling; and no memory stays taken.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/abi/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_embed_test {
namespace {

using Vectors = std::vector<float>;

orrery_embed_options embed_options(uint32_t pooling = ORRERY_POOLING_LAST, uint32_t normalize = 0) {
  orrery_embed_options o = options(&orrery_embed_options_init);
  o.pooling = pooling, o.normalize = normalize;
  return o;
}

class Embedding : public ::testing::Test {
 protected:
  static Model open(const Runtime& runtime, const TinyModel& tiny) {
    const std::vector<std::byte> bytes = tiny.build();
    orrery_model_options o = model_options();
    o.load = ORRERY_LOAD_READ;
    Error error;
    orrery_model* h = nullptr;
    check(orrery_model_open(runtime.get(), memory_source(bytes.data(), bytes.size()), &o, &h, &error), error, "orrery_model_open");
    return Model(h);
  }
  static Vectors embed(const Model& m, const std::vector<const char*>& texts, const orrery_embed_options& o,
                       std::vector<uint32_t>* n_tokens = nullptr) {
    Error error;
    size_t n = 0;
    check(orrery_embed(m.get(), texts.data(), texts.size(), &o, nullptr, 0, &n, nullptr, &error), error, "orrery_embed: its size");
    Vectors out(n);
    if (n_tokens) n_tokens->resize(texts.size());
    check(orrery_embed(m.get(), texts.data(), texts.size(), &o, out.data(), n, &n, n_tokens ? n_tokens->data() : nullptr, &error), error,
          "orrery_embed");
    EXPECT_EQ(n, out.size());
    return out;
  }
  static orrery_status status(const Model& m, const std::vector<const char*>& texts, const orrery_embed_options& o, Error* error) {
    Vectors out(1 << 16, 7.0f);
    size_t n = 9;
    const orrery_status s = orrery_embed(m.get(), texts.data(), texts.size(), &o, out.data(), out.size(), &n, nullptr, error);
    if (s != ORRERY_OK) {
      EXPECT_EQ(out, Vectors(1 << 16, 7.0f)) << "a failed call changes nothing";
      EXPECT_EQ(n, 0u);
    }
    return s;
  }
  static orrery_model_info info(const Model& m) {
    Error error;
    orrery_model_info i = options(&orrery_model_info_init);
    check(orrery_model_get_info(m.get(), &i, &error), error, "orrery_model_get_info");
    return i;
  }

  Runtime runtime_ = make_runtime();
  Model model_ = open(runtime_, {});
};

TEST_F(Embedding, TheLastTokensRowIsThatOfASession) {
  const std::string text = "the cat sat";
  std::vector<uint32_t> n_tokens;
  const Vectors got = embed(model_, {text.c_str()}, embed_options(), &n_tokens);
  std::vector<int32_t> tokens(64);
  size_t n = 0;
  Error error;
  const Vocab vocab(orrery_model_vocab(model_.get()));
  check(orrery_tokenize(vocab.get(), text.data(), text.size(), ORRERY_TOKENIZE_BOS, tokens.data(), tokens.size(), &n, &error), error,
        "orrery_tokenize");
  EXPECT_EQ(n_tokens, std::vector<uint32_t>{static_cast<uint32_t>(n)});
  const Session session = open_session(model_);
  check(orrery_session_evaluate(session.get(), tokens.data(), n, nullptr, &error), error, "orrery_session_evaluate");
  Vectors expected(got.size());
  check(orrery_session_embedding(session.get(), expected.data(), expected.size(), &error), error, "orrery_session_embedding");
  EXPECT_EQ(got, expected);
}

TEST_F(Embedding, PoolingIsOfTheRows) {
  const size_t n_embd = info(model_).n_embd;
  std::vector<uint32_t> n_tokens;
  const std::vector<const char*> texts = {"one two three", "four"};
  const Vectors rows = embed(model_, texts, embed_options(ORRERY_POOLING_NONE), &n_tokens);
  ASSERT_EQ(rows.size(), (n_tokens[0] + n_tokens[1]) * n_embd);
  const Vectors first = embed(model_, texts, embed_options(ORRERY_POOLING_FIRST)), last = embed(model_, texts, embed_options()),
                mean = embed(model_, texts, embed_options(ORRERY_POOLING_MEAN));
  size_t row = 0;
  for (size_t text = 0; text < 2; row += n_tokens[text++])
    for (size_t i = 0; i < n_embd; ++i) {
      double sum = 0;
      for (size_t r = row; r < row + n_tokens[text]; ++r) sum += static_cast<double>(rows[r * n_embd + i]);
      ASSERT_EQ(first[text * n_embd + i], rows[row * n_embd + i]);
      ASSERT_EQ(last[text * n_embd + i], rows[(row + n_tokens[text] - 1) * n_embd + i]);
      ASSERT_EQ(mean[text * n_embd + i], static_cast<float>(sum / n_tokens[text]));
    }
}

TEST_F(Embedding, ATextHasTheSameVectorInAnyList) {
  const orrery_embed_options o = embed_options(ORRERY_POOLING_MEAN, 1);
  const std::string longer(300, 'x');
  const std::vector<const char*> texts = {"a cat", longer.c_str(), "the dog sat down"};
  const Vectors all = embed(model_, texts, o);
  const size_t n_embd = info(model_).n_embd;
  const Model other = open(runtime_, {});
  for (size_t i = 0; i < texts.size(); ++i) {
    const Vectors alone = embed(i == 1 ? other : model_, {texts[i]}, o);
    EXPECT_EQ(Vectors(all.begin() + static_cast<ptrdiff_t>(i * n_embd), all.begin() + static_cast<ptrdiff_t>((i + 1) * n_embd)), alone)
        << i;
  }
  const Vectors turned = embed(model_, {texts[2], texts[1], texts[0]}, o);
  EXPECT_EQ(Vectors(turned.begin(), turned.begin() + static_cast<ptrdiff_t>(n_embd)),
            Vectors(all.end() - static_cast<ptrdiff_t>(n_embd), all.end()));
  std::vector<Vectors> of_threads(4);
  std::vector<std::thread> threads;
  for (Vectors& out : of_threads) threads.emplace_back([&] { out = embed(model_, texts, o); });
  for (std::thread& thread : threads) thread.join();
  for (const Vectors& out : of_threads) EXPECT_EQ(out, all);
}

TEST_F(Embedding, LengthIsOneAndDimensionsAreCutBefore) {
  const Vectors plain = embed(model_, {"a cat"}, embed_options());
  orrery_embed_options o = embed_options(ORRERY_POOLING_LAST, 1);
  o.n_dimensions = 24;
  const Vectors cut = embed(model_, {"a cat"}, o);
  ASSERT_EQ(cut.size(), 24u);
  double squares = 0;
  for (size_t i = 0; i < 24; ++i) squares += static_cast<double>(plain[i]) * static_cast<double>(plain[i]);
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(cut[i], static_cast<float>(static_cast<double>(plain[i]) / std::sqrt(squares)));
}

TEST_F(Embedding, NothingStaysTaken) {
  (void)embed(model_, {"a cat"}, embed_options());
  const Session session = open_session(model_);  // takes the workspace
  const uint64_t before = arena_used(runtime_);
  (void)embed(model_, {"a cat", "the dog sat down"}, embed_options());
  EXPECT_EQ(arena_used(runtime_), before);
}

TEST_F(Embedding, TheFileSaysHowToPool) {
  EXPECT_EQ(info(model_).purpose, ORRERY_PURPOSE_GENERATE);
  EXPECT_EQ(info(model_).pooling, ORRERY_POOLING_LAST);
  TinyModel tiny;
  tiny.pooling = 1;
  const Model mean = open(runtime_, tiny);
  EXPECT_EQ(info(mean).purpose, ORRERY_PURPOSE_GENERATE | ORRERY_PURPOSE_EMBED);
  EXPECT_EQ(info(mean).pooling, ORRERY_POOLING_MEAN);
  EXPECT_EQ(embed(mean, {"a cat"}, embed_options(ORRERY_POOLING_MODEL)), embed(model_, {"a cat"}, embed_options(ORRERY_POOLING_MEAN)));
  EXPECT_NE(embed(mean, {"a cat"}, embed_options(ORRERY_POOLING_MODEL)), embed(model_, {"a cat"}, embed_options()));
}

TEST_F(Embedding, ALongTextIsAnErrorOrIsCut) {
  TinyModel tiny;
  tiny.context = 64, tiny.add_eos = true;
  const Model small = open(runtime_, tiny);
  const std::string text(200, 'x'), head(62, 'x');
  Error error;
  orrery_embed_options o = embed_options();
  EXPECT_EQ(status(small, {"a", text.c_str()}, o, &error), ORRERY_CONTEXT_FULL);
  EXPECT_NE(std::strstr(error.message, "text 1 "), nullptr) << error.message;
  EXPECT_EQ(error.bytes_available, 64u);
  EXPECT_GT(error.bytes_requested, 64u);
  o.truncate = 1;
  std::vector<uint32_t> n_tokens;
  const Vectors cut = embed(small, {text.c_str()}, o, &n_tokens);
  EXPECT_EQ(n_tokens, std::vector<uint32_t>{64});
  // Of the whole text stay <s>, the first tokens, and </s> at the end.
  std::vector<uint32_t> n_short;
  std::string shorter = text;
  Vectors of_short;
  do {
    shorter.pop_back();
    o.truncate = 0;
    size_t n = 0;
    std::vector<const char*> one = {shorter.c_str()};
    if (orrery_embed(small.get(), one.data(), 1, &o, nullptr, 0, &n, nullptr, nullptr) != ORRERY_OK) continue;
    of_short = embed(small, one, o, &n_short);
    break;
  } while (!shorter.empty());
  ASSERT_EQ(n_short, std::vector<uint32_t>{64});
  EXPECT_EQ(cut, of_short);
  o.max_tokens = 65;
  EXPECT_EQ(status(small, {"a"}, o, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "max_tokens is 65"), nullptr) << error.message;
  o.max_tokens = 3, o.truncate = 0;
  EXPECT_EQ(status(small, {"abcdefgh"}, o, &error), ORRERY_CONTEXT_FULL);
}

TEST_F(Embedding, WhatCannotBeIsRefusedByName) {
  Error error;
  orrery_embed_options o = embed_options();
  EXPECT_EQ(status(model_, {"a", "\xff"}, o, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "texts[1] is not UTF-8"), nullptr) << error.message;
  EXPECT_EQ(status(model_, {"a", nullptr}, o, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "texts[1] is NULL"), nullptr) << error.message;
  o.pooling = 5;
  EXPECT_EQ(status(model_, {"a"}, o, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "pooling is 5"), nullptr) << error.message;
  o = embed_options();
  o.n_dimensions = 65;
  EXPECT_EQ(status(model_, {"a"}, o, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "n_dimensions is 65, expected at most 64"), nullptr) << error.message;
  o = embed_options();
  size_t n = 0;
  const char* one[] = {"a"};
  Vectors small(63, 7.0f);
  EXPECT_EQ(orrery_embed(model_.get(), one, 1, &o, small.data(), small.size(), &n, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(n, 64u);
  EXPECT_EQ(small, Vectors(63, 7.0f));
  EXPECT_EQ(orrery_embed(nullptr, one, 1, &o, nullptr, 0, &n, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_embed(model_.get(), nullptr, 1, &o, nullptr, 0, &n, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_embed(model_.get(), one, 1, &o, nullptr, 0, nullptr, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_embed(model_.get(), nullptr, 0, nullptr, nullptr, 0, &n, nullptr, &error), ORRERY_OK) << error.message;
  EXPECT_EQ(n, 0u);
  const char* empty[] = {""};  // <s> alone
  EXPECT_EQ(orrery_embed(model_.get(), empty, 1, &o, nullptr, 0, &n, nullptr, &error), ORRERY_OK) << error.message;
}

TEST_F(Embedding, ProgressCountsAndCancels) {
  struct Seen {
    std::vector<uint64_t> done;
    uint64_t total = 0, stop_at = UINT64_MAX;
  } seen;
  orrery_embed_options o = embed_options();
  o.progress_user = &seen;
  o.progress = [](void* user, uint64_t done, uint64_t total) -> int32_t {
    Seen& s = *static_cast<Seen*>(user);
    s.done.push_back(done), s.total = total;
    return done >= s.stop_at;
  };
  std::vector<uint32_t> n_tokens;
  (void)embed(model_, {"a cat", "the dog"}, o, &n_tokens);
  ASSERT_FALSE(seen.done.empty());
  EXPECT_EQ(seen.done.front(), 0u);
  EXPECT_EQ(seen.done.back(), n_tokens[0] + n_tokens[1]);
  EXPECT_EQ(seen.total, n_tokens[0] + n_tokens[1]);
  for (const uint64_t at : {uint64_t{0}, uint64_t{1}}) {
    seen = {};
    seen.stop_at = at;
    Error error;
    EXPECT_EQ(status(model_, {"a cat", "the dog"}, o, &error), ORRERY_CANCELLED);
    EXPECT_LT(seen.done.back(), n_tokens[0] + n_tokens[1]);
  }
}

// An encoder gives vectors and no answers, and says so.
TEST_F(Embedding, AnEncoderHasNoSessions) {
  TinyModel tiny;
  tiny.encoder = true, tiny.context = 64;
  const Model encoder = open(runtime_, tiny);
  EXPECT_EQ(info(encoder).purpose, ORRERY_PURPOSE_EMBED);
  EXPECT_EQ(info(encoder).pooling, ORRERY_POOLING_MEAN);
  Error error;
  orrery_session* session = nullptr;
  EXPECT_EQ(orrery_session_open(encoder.get(), nullptr, &session, &error), ORRERY_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.message, "is an encoder"), nullptr) << error.message;
  EXPECT_NE(std::strstr(error.message, "(orrery_embed)"), nullptr) << error.message;
  const Vectors both = embed(encoder, {"the cat", "the dog sat"}, embed_options(ORRERY_POOLING_MODEL)),
                alone = embed(encoder, {"the cat"}, embed_options(ORRERY_POOLING_MODEL));
  EXPECT_EQ(Vectors(both.begin(), both.begin() + 64), alone);
  // Every row sees every other one: the first row knows the text's end, which a decoder's does not.
  EXPECT_NE(embed(encoder, {"the cat"}, embed_options(ORRERY_POOLING_FIRST)),
            embed(encoder, {"the car"}, embed_options(ORRERY_POOLING_FIRST)));
  EXPECT_EQ(embed(model_, {"the cat"}, embed_options(ORRERY_POOLING_FIRST)),
            embed(model_, {"the car"}, embed_options(ORRERY_POOLING_FIRST)));
  const std::vector<std::byte> bytes = tiny.build();
  orrery_plan_result plan = options(&orrery_plan_result_init);
  check(orrery_plan(memory_source(bytes.data(), bytes.size()), nullptr, nullptr, nullptr, &plan, &error), error, "orrery_plan");
  EXPECT_EQ(plan.n_context, 64u);
}

// Ranking ------------------------------------------------------------------------------------------------

class Ranking : public Embedding {
 protected:
  static TinyModel reranker(int n_labels) {
    TinyModel tiny;
    tiny.pooling = 4, tiny.n_labels = n_labels;
    return tiny;
  }
  static Vectors rank(const Model& m, const char* query, const std::vector<const char*>& texts, const orrery_embed_options* o,
                      std::vector<uint32_t>* n_tokens = nullptr) {
    Error error;
    Vectors out(texts.size());
    if (n_tokens) n_tokens->resize(texts.size());
    check(orrery_rank(m.get(), query, texts.data(), texts.size(), o, out.data(), out.size(), n_tokens ? n_tokens->data() : nullptr, &error),
          error, "orrery_rank");
    return out;
  }
};

// The score of a pair is the head's product with the last row of the pair's tokens: <s> query </s> text </s>.
TEST_F(Ranking, AScoreIsTheHeadsOfThePairsLastRow) {
  const std::string query = "who", text = "the cat";
  orrery_embed_options o = options(&orrery_embed_options_init);
  o.normalize = 0;
  const auto row_of_pair = [&] {
    std::vector<int32_t> tokens = {1}, more(64);
    Error error;
    const Vocab vocab(orrery_model_vocab(model_.get()));
    for (const std::string& part : {query, text}) {
      size_t n = 0;
      check(orrery_tokenize(vocab.get(), part.data(), part.size(), 0, more.data(), more.size(), &n, &error), error, "orrery_tokenize");
      tokens.insert(tokens.end(), more.begin(), more.begin() + static_cast<ptrdiff_t>(n));
      tokens.push_back(2);
    }
    const Session session = open_session(model_);
    check(orrery_session_evaluate(session.get(), tokens.data(), tokens.size(), nullptr, &error), error, "orrery_session_evaluate");
    Vectors row(64);
    check(orrery_session_embedding(session.get(), row.data(), row.size(), &error), error, "orrery_session_embedding");
    return std::pair(row, tokens.size());
  };
  const auto [row, n_of_pair] = row_of_pair();
  const auto logit = [&row = row](uint32_t label) {
    double sum = 0;
    for (uint32_t j = 0; j < 64; ++j) sum += static_cast<double>(tiny_label_value(label, j)) * static_cast<double>(row[j]);
    return sum;
  };
  std::vector<uint32_t> n_tokens;
  const Model one = open(runtime_, reranker(1)), two = open(runtime_, reranker(2));
  EXPECT_EQ(rank(one, query.c_str(), {text.c_str()}, &o, &n_tokens), Vectors{static_cast<float>(logit(0))});
  EXPECT_EQ(n_tokens, std::vector<uint32_t>{static_cast<uint32_t>(n_of_pair)});
  const double odds = logit(1) - logit(0);  // labels: "no", "yes"
  EXPECT_EQ(rank(two, query.c_str(), {text.c_str()}, &o), Vectors{static_cast<float>(odds)});
  EXPECT_EQ(rank(two, query.c_str(), {text.c_str()}, nullptr), Vectors{static_cast<float>(1 / (1 + std::exp(-odds)))});
  EXPECT_EQ(info(two).purpose, ORRERY_PURPOSE_GENERATE | ORRERY_PURPOSE_RANK);
}

TEST_F(Ranking, ATemplateOfTheFileSaysHowAPairIsWritten) {
  TinyModel tiny = reranker(1);
  tiny.rank_template = "q={query};d={document}{x}";
  const Model templated = open(runtime_, tiny);
  std::vector<uint32_t> n_tokens;
  orrery_embed_options o = options(&orrery_embed_options_init);
  const Vectors score = rank(templated, "a", {"b", "</s>"}, &o, &n_tokens);
  TinyModel as_text = reranker(1);
  as_text.rank_template = "q=a;d=b{x}";
  EXPECT_EQ(rank(open(runtime_, as_text), "?", {"?"}, &o)[0], score[0]);
  EXPECT_GE(n_tokens[1], n_tokens[0] + 3) << "a text that spells a control token stays text";
  // A text that is cut, at a whole character.
  o.max_tokens = n_tokens[0] + 4;
  Error error;
  const std::string text(50, 'b');
  const char* texts[] = {text.c_str()};
  float out = 7;
  EXPECT_EQ(orrery_rank(templated.get(), "a", texts, 1, &o, &out, 1, nullptr, &error), ORRERY_CONTEXT_FULL);
  EXPECT_NE(std::strstr(error.message, "text 0 "), nullptr) << error.message;
  o.truncate = 1;
  const std::string cut(5, 'b');
  EXPECT_EQ(rank(templated, "a", {text.c_str()}, &o, &n_tokens), rank(templated, "a", {cut.c_str()}, &o));
  EXPECT_EQ(n_tokens[0], o.max_tokens);
}

TEST_F(Ranking, WhatCannotBeIsRefusedByName) {
  Error error;
  const char* texts[] = {"a", "b"};
  float scores[2] = {7, 7};
  EXPECT_EQ(orrery_rank(model_.get(), "q", texts, 2, nullptr, scores, 2, nullptr, &error), ORRERY_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.message, "has no head"), nullptr) << error.message;
  const Model ranks = open(runtime_, reranker(1));
  orrery_embed_options o = options(&orrery_embed_options_init);
  EXPECT_EQ(orrery_rank(ranks.get(), "q", texts, 2, &o, scores, 1, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  o.pooling = ORRERY_POOLING_MEAN;
  EXPECT_EQ(orrery_rank(ranks.get(), "q", texts, 2, &o, scores, 2, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  o.pooling = 0, o.n_dimensions = 8;
  EXPECT_EQ(orrery_rank(ranks.get(), "q", texts, 2, &o, scores, 2, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_rank(ranks.get(), "\xff", texts, 2, nullptr, scores, 2, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_rank(ranks.get(), nullptr, texts, 2, nullptr, scores, 2, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(scores[0], 7.0f);
  EXPECT_EQ(orrery_rank(ranks.get(), "q", nullptr, 0, nullptr, nullptr, 0, nullptr, &error), ORRERY_OK);
  for (const int n_labels : {0, 3}) {  // without its head; with labels that nobody knows
    const std::vector<std::byte> bytes = reranker(n_labels).build();
    orrery_model* h = nullptr;
    EXPECT_NE(orrery_model_open(runtime_.get(), memory_source(bytes.data(), bytes.size()), nullptr, &h, &error), ORRERY_OK);
    EXPECT_NE(std::strstr(error.message, "cls.output.weight"), nullptr) << error.message;
  }
}

}  // namespace
}  // namespace orrery::testing::contract_embed_test

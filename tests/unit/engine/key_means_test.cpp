// Centred and rotated KV: which sessions store it, that the mean keys are the model's alone, what they are, what they save, and how files
// carry them from one session to another.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/engine/session/retrieval.h"
#include "runtime/engine/session/session_file.h"
#include "tests/support/kv_tokens.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/session_bytes.h"

namespace orrery::key_means_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using engine::SessionOptions;

constexpr size_t kFormAt = 80, kHeaderBytes = 88, kChecksumBytes = 16;  // of a session's file

std::vector<std::byte> saved(Session* session) { return without_resident(save_bytes(session)); }
uint32_t form_of(const std::vector<std::byte>& file) {
  uint32_t form;
  std::memcpy(&form, file.data() + kFormAt, sizeof form);
  return form;
}
std::unique_ptr<Session> open_with(const std::shared_ptr<engine::LanguageModel>& model, const char* policy, KvType kv,
                                   std::optional<KvType> device = {}, uint32_t chunk = 0, double share = .6,
                                   engine::Speculate speculate = engine::Speculate::off) {
  SessionOptions o;
  o.n_context = 320;
  o.policy = policy;
  o.speculate = speculate;
  if (o.compressed()) o.kv_share = share;
  o.kv_type = kv, o.device_kv_type = device, o.chunk_tokens = chunk;
  return unwrap(Session::open(model, o));
}
std::vector<std::byte> after_prompt(Session* session, size_t n) {
  unwrap(session->prefill(random_tokens(session->model(), n, 1), nullptr, nullptr));
  return saved(session);
}
// A file's values, (pages, layers, KV heads, kPageTokens, K and V, head_dim).
std::vector<float> page_values(const std::vector<std::byte>& file, const KvFormat& kv, uint32_t n_tokens) {
  const uint64_t bytes = kv::pages_for(n_tokens) * kv.page_bytes();
  return read_tokens(kv.type, file.data() + file.size() - kChecksumBytes - bytes, static_cast<uint64_t>(kv.head_dim),
                     bytes / kv.token_bytes());
}

TEST(EngineKeyMeans, QuantizedKvIsCentredAndFourBitsAreRotated) {
  const auto model = open_spec("qwen2");
  struct Case {
    const char* policy;
    KvType kv;
    std::optional<KvType> device;
    uint32_t form;  // 1: centred, 2: rotated
    engine::Speculate speculate = engine::Speculate::off;
    double share = .6;
  };
  using engine::Speculate;
  for (const Case& c : {Case{"full", KvType::f32, {}, 0},
                        Case{"full", KvType::f16, {}, 0},
                        Case{"full", KvType::q8_0, {}, 1},
                        Case{"full", KvType::q4_0, {}, 3},
                        Case{"streaming", KvType::f16, {}, 0},
                        Case{"streaming", KvType::f16, KvType::q8_0, 0},
                        Case{"streaming", KvType::f16, KvType::q4_0, 3},
                        Case{"streaming", KvType::f32, KvType::q4_0, 3},
                        Case{"streaming", KvType::q8_0, KvType::q4_0, 3},
                        Case{"full", KvType::k8v4, {}, 3},
                        Case{"streaming", KvType::k8v4, {}, 3},
                        Case{"streaming", KvType::f16, KvType::k8v4, 3},
                        Case{"streaming", KvType::q8_0, KvType::k8v4, 3},
                        Case{"streaming", KvType::k8v4, KvType::q4_0, 3},
                        Case{"shadowkv", KvType::k8v4, {}, 0},
                        Case{"auto", KvType::f16, KvType::k8v4, 0, Speculate::policy, .2},
                        Case{"auto", KvType::k8v4, {}, 3, Speculate::policy, .6},
                        Case{"streaming", KvType::q4_0, {}, 3},
                        Case{"shadowkv", KvType::q8_0, {}, 0},
                        Case{"shadowkv", KvType::f16, KvType::q4_0, 0, Speculate::off, .2},
                        Case{"auto", KvType::f16, KvType::q4_0, 3, Speculate::off, .2},
                        Case{"auto", KvType::f16, KvType::q4_0, 0, Speculate::policy, .2},
                        Case{"auto", KvType::q8_0, KvType::q4_0, 1, Speculate::policy, .2}}) {
    SCOPED_TRACE(std::string(c.policy) + " " + std::to_string(static_cast<int>(c.kv)));
    const auto session = open_with(model, c.policy, c.kv, c.device, 0, c.share, c.speculate);
    const std::vector<std::byte> file = after_prompt(session.get(), 20);
    EXPECT_EQ(form_of(file), c.form);
    const size_t means =
        c.form ? static_cast<size_t>(model->description().n_layers * model->description().kv().kv_dim()) * sizeof(float) : 0;
    EXPECT_EQ(file.size(), kHeaderBytes + 20 * 5 + 2 + means + engine::kv_format(model->description(), c.kv).page_bytes() + kChecksumBytes);
  }
}

// Neither chunks, threads, other prompts before it, nor other sessions of the model.
TEST(EngineKeyMeans, AreTheModelsWhateverASessionHolds) {
  for (const KvType kv : {KvType::q8_0, KvType::q4_0, KvType::k8v4})
    for (const size_t n : {size_t{3}, size_t{80}}) {
      const auto model = open_spec("qwen2"), alone = open_spec("qwen2", runtime_options(1));
      const std::vector<std::byte> want = after_prompt(open_with(model, "full", kv).get(), n);
      for (const uint32_t chunk : {1u, 7u, 100u}) {
        EXPECT_EQ(after_prompt(open_with(model, "full", kv, {}, chunk).get(), n), want) << chunk;
        EXPECT_EQ(after_prompt(open_with(open_spec("qwen2"), "full", kv, {}, chunk).get(), n), want) << chunk;
      }
      EXPECT_EQ(after_prompt(open_with(alone, "full", kv).get(), n), want);
      const auto used = open_with(model, "full", kv);
      unwrap(used->prefill(random_tokens(*model, 70, 5), nullptr, nullptr));
      unwrap(used->rewind(0));
      EXPECT_EQ(after_prompt(used.get(), n), want);
      // The file has the means: a session that has never measured them goes on alike.
      const auto loaded = open_with(open_spec("qwen2"), "full", kv);
      unwrap(engine::SessionFile::load(loaded.get(), want, "file"));
      unwrap(loaded->sequence().refresh_logits());
      const auto fork = unwrap(loaded->fork());
      std::vector<float> of_used, of_loaded, of_fork;
      greedy(used.get(), 5, &of_used), greedy(loaded.get(), 5, &of_loaded), greedy(fork.get(), 5, &of_fork);
      EXPECT_TRUE(same_bits(of_loaded, of_used));
      EXPECT_TRUE(same_bits(of_fork, of_used));
    }
}

// The definition, of keys that an F32 session has kept: tokens 4 to 31 turned back to position 0, their mean turned by the mean rotation of
// 1,024 positions.
TEST(EngineKeyMeans, AreMeansOfKeysAndOfRotations) {
  for (const std::string name : {"qwen2", "llama-nemo"}) {  // pairs of halves, and neighbours
    SCOPED_TRACE(name);
    const auto model = open_spec(name);
    const model::Description& h = model->description();
    std::vector<int32_t> tokens = unwrap(engine::RepeatedTokens::make(*model)).tokens;
    tokens.resize(engine::kMeasuredTokens);
    const auto plain = open_with(model, "full", KvType::f32);
    unwrap(plain->prefill(tokens, nullptr, nullptr));
    const std::vector<float> values = page_values(saved(plain.get()), engine::kv_format(h, KvType::f32), engine::kMeasuredTokens);
    const auto centred = open_with(model, "full", KvType::q8_0);
    const std::vector<std::byte> file = after_prompt(centred.get(), 1);
    std::vector<float> means(static_cast<size_t>(h.n_layers * h.kv().kv_dim()));
    std::memcpy(means.data(), file.data() + kHeaderBytes + 5 + 2, means.size() * sizeof(float));

    const model::RopeTable rope = model::make_rope_table(h.rope(), model->weights().rope_factors, 320);
    const auto dim = static_cast<size_t>(h.kv().head_dim), half = rope.inverse_frequency.size();
    double most = 0, worst = 0;
    for (size_t head = 0; head < means.size() / dim; ++head)
      for (size_t i = 0; i < half; ++i) {
        const size_t a = rope.interleaved ? 2 * i : i, b = rope.interleaved ? 2 * i + 1 : i + half;
        double x = 0, y = 0;
        for (size_t p = 4; p < tokens.size(); ++p) {
          const float* key = &values[(head * 64 + p) * 2 * dim];
          const double angle = -static_cast<double>(p) * static_cast<double>(rope.inverse_frequency[i]);
          x += key[a] * std::cos(angle) - key[b] * std::sin(angle), y += key[a] * std::sin(angle) + key[b] * std::cos(angle);
        }
        double mean_x = 0, mean_y = 0;
        for (int p = 0; p < 1024; ++p) {
          const double angle = p * static_cast<double>(rope.inverse_frequency[i]);
          mean_x += (x * std::cos(angle) - y * std::sin(angle)) / 28 / 1024;
          mean_y += (x * std::sin(angle) + y * std::cos(angle)) / 28 / 1024;
        }
        most = std::max({most, std::fabs(mean_x), std::fabs(mean_y)});
        worst = std::max({worst, std::fabs(mean_x - means[head * dim + a]), std::fabs(mean_y - means[head * dim + b])});
      }
    EXPECT_GT(most, .05);
    EXPECT_LT(worst, .02 * most) << "of " << most << ": the measured keys come from Q8_0";
  }
}

struct Errors {
  double eight, four, both, slots,
      mixed_slots;  // pages of Q8_0, of Q4_0 and of K8V4; F16 pages whose tokens are all in slots of Q4_0, of K8V4
};
// The relative errors of logits of a qwen2 whose keys share `common` in the dimensions that RoPE hardly turns. Of slots: decoded tokens'.
Errors errors(float common) {
  const nlohmann::json spec = load_model_spec("qwen2");
  std::vector<std::byte> file = build_model_gguf(spec);
  for (const nlohmann::json& tensor : spec["tensors"]) {
    if (tensor["name"].get<std::string>().find("attn_k.bias") == std::string::npos) continue;
    std::vector<float> bias = spec_tensor_values(spec, tensor);
    const auto* bytes = reinterpret_cast<const std::byte*>(bias.data());
    const auto at = std::search(file.begin(), file.end(), bytes, bytes + bias.size() * sizeof(float));
    if (at == file.end()) throw std::runtime_error("the file does not hold the bias");
    for (size_t i = 0; i < bias.size(); ++i) bias[i] += i % 16 >= 10 ? common : 0.0f;  // pairs (i, i + 16) of 32, base 1e6
    std::copy(bytes, bytes + bias.size() * sizeof(float), at);
  }
  const auto model = open_bytes(file);
  const auto n_vocab = static_cast<size_t>(model->description().n_vocab);
  const auto logits = [&](KvType kv, const char* policy = "full", std::optional<KvType> device = {}) {
    std::vector<float> rows(100 * n_vocab);
    const auto session = open_with(model, policy, kv, device);
    unwrap(session->prefill(random_tokens(*model, 100, 1), nullptr, rows.data()));
    for (const int32_t token : {3, 5, 7}) {
      feed(session.get(), token);
      rows.insert(rows.end(), session->logits().begin(), session->logits().end());
    }
    return rows;
  };
  const std::vector<float> exact = logits(KvType::f32), eight = logits(KvType::q8_0), four = logits(KvType::q4_0),
                           both = logits(KvType::k8v4);
  const std::vector<float> slots = logits(KvType::f16, "streaming", KvType::q4_0),
                           mixed_slots = logits(KvType::f16, "streaming", KvType::k8v4);
  Deviation of_eight, of_four, of_both, of_slots, of_mixed_slots;
  of_eight.add(eight.data(), exact.data(), exact.size());
  of_four.add(four.data(), exact.data(), exact.size());
  const size_t prompt = 100 * n_vocab;
  of_both.add(both.data(), exact.data(), exact.size());
  of_slots.add(&slots[prompt], &exact[prompt], exact.size() - prompt);
  of_mixed_slots.add(&mixed_slots[prompt], &exact[prompt], exact.size() - prompt);
  return {of_eight.rms(), of_four.rms(), of_both.rms(), of_slots.rms(), of_mixed_slots.rms()};
}

TEST(EngineKeyMeans, ALargeCommonKeyCostsNothing) {
  const Errors large = errors(12.0f), small = errors(0.0f);
  EXPECT_LT(large.eight, 1.6 * small.eight) << small.eight;
  EXPECT_LT(large.four, 1.6 * small.four) << small.four;
  EXPECT_LT(large.both, 1.6 * small.both) << small.both;
  EXPECT_LT(large.slots, 1.6 * small.slots) << small.slots;
  EXPECT_LT(large.mixed_slots, 1.6 * small.mixed_slots) << small.mixed_slots;
  EXPECT_GT(small.slots, 0);
}

// Sessions of plain KV make a file's pages plain; others keep the form of a file. Rounding twice stays near rounding once.
TEST(EngineKeyMeans, FilesKeepTheirFormOrBecomePlain) {
  const auto model = open_spec("qwen2");
  for (const KvType type : {KvType::q8_0, KvType::q4_0, KvType::k8v4}) {
    const KvFormat kv = engine::kv_format(model->description(), type);
    const auto chunks = open_with(model, "shadowkv", type), full = open_with(model, "full", type);
    const std::vector<std::byte> plain = after_prompt(chunks.get(), 64), centred = after_prompt(full.get(), 64);
    unwrap(engine::SessionFile::load(chunks.get(), centred, "centred"));
    const std::vector<std::byte> made = saved(chunks.get());
    EXPECT_EQ(form_of(made), 0u);
    ASSERT_EQ(made.size(), plain.size());
    const std::vector<float> a = page_values(made, kv, 64), b = page_values(plain, kv, 64);
    Deviation deviation;
    deviation.add(a.data(), b.data(), a.size());
    EXPECT_LT(deviation.rms(), type == KvType::q8_0 ? .02 : .2);
    unwrap(chunks->sequence().refresh_logits());
    greedy(chunks.get(), 5);

    unwrap(engine::SessionFile::load(full.get(), plain, "plain"));
    EXPECT_EQ(saved(full.get()), plain);
    unwrap(full->rewind(0));
    EXPECT_EQ(after_prompt(full.get(), 64), centred);
  }
}

// By the definition, in double: T(K - mean) and T(V), with T[i][j] = (-1)^popcount(i & j) / sqrt(32) for blocks of 32.
std::vector<float> transformed(std::vector<float> values, const std::vector<float>& means, uint32_t n_heads, size_t dim) {
  std::vector<double> in(32);
  for (size_t vector = 0; vector < values.size() / dim; ++vector) {  // (pages, heads of all layers, tokens, K and V)
    const bool key = vector % 2 == 0;
    const size_t head = vector / 128 % n_heads;
    float* x = &values[vector * dim];
    for (size_t block = 0; block < dim; block += 32) {
      for (size_t i = 0; i < 32; ++i) in[i] = x[block + i] - (key ? means[head * dim + block + i] : 0);
      for (size_t i = 0; i < 32; ++i) {
        double sum = 0;
        for (size_t j = 0; j < 32; ++j) sum += __builtin_popcountll(i & j) % 2 ? -in[j] : in[j];
        x[block + i] = static_cast<float>(sum / std::sqrt(32.0));
      }
    }
  }
  return values;
}

// A session whose slots have four bits makes a plain file's pages its own, by the model's means; so do slots beside Q8_0's centred pages.
// A file of its own form stays to the bit, and a session of plain KV gets the plain values back.
TEST(EngineKeyMeans, FilesTakeTheFormThatSlotsOfFourBitsNeed) {
  constexpr uint32_t kTokens = 64;
  struct Case {
    KvType type, slots;
    double tolerance;
  };
  for (const Case& c :
       {Case{KvType::f32, KvType::q4_0, 1e-6}, Case{KvType::f16, KvType::q4_0, 1e-3}, Case{KvType::q8_0, KvType::q4_0, .02},
        Case{KvType::f32, KvType::k8v4, 1e-6}, Case{KvType::f16, KvType::k8v4, 1e-3}, Case{KvType::q8_0, KvType::k8v4, .02}}) {
    const auto [type, slot_type, tolerance] = c;
    SCOPED_TRACE(std::string(kv_type_name(type)) + ", slots of " + kv_type_name(slot_type));
    const auto model = open_spec("qwen2");
    const KvFormat kv = engine::kv_format(model->description(), type);
    const auto dim = static_cast<size_t>(kv.head_dim);
    ASSERT_EQ(dim, 32u);
    const auto n_heads = static_cast<uint32_t>(kv.n_layers * kv.n_kv_heads);
    const auto full = open_with(model, "full", type);
    const std::vector<std::byte> file = after_prompt(full.get(), kTokens);
    const auto slots = open_with(model, "streaming", type, slot_type);
    const auto load = [](Session* session, const std::vector<std::byte>& bytes) {
      unwrap(engine::SessionFile::load(session, bytes, "file"));
      return saved(session);
    };
    const std::vector<std::byte> made = load(slots.get(), file);
    EXPECT_EQ(form_of(made), 3u);
    std::vector<float> means(n_heads * dim), none(n_heads * dim);
    const size_t means_at = made.size() - kChecksumBytes - kv.page_bytes() - means.size() * sizeof(float);
    std::memcpy(means.data(), made.data() + means_at, means.size() * sizeof(float));
    if (type != KvType::q8_0) {  // their file is plain: it has no means to compare with
      std::vector<float> want = transformed(page_values(file, kv, kTokens), means, n_heads, dim);
      const std::vector<float> found = page_values(made, kv, kTokens);
      Deviation deviation;
      deviation.add(found.data(), want.data(), want.size());
      EXPECT_LT(deviation.rms(), tolerance);
    }
    // Its own prompt's file has the same means, and pages that are near.
    const auto own = open_with(model, "streaming", type, slot_type);
    const std::vector<std::byte> of_prompt = after_prompt(own.get(), kTokens);
    EXPECT_EQ(std::memcmp(of_prompt.data() + means_at, made.data() + means_at, means.size() * sizeof(float)), 0);
    const std::vector<float> a = page_values(made, kv, kTokens), b = page_values(of_prompt, kv, kTokens);
    Deviation near;
    near.add(a.data(), b.data(), a.size());
    EXPECT_LT(near.rms(), 5 * tolerance);  // prompts attend to other values; some instruction sets round them to bf16
    EXPECT_EQ(load(slots.get(), of_prompt), of_prompt);
    unwrap(slots->sequence().refresh_logits());
    unwrap(own->sequence().refresh_logits());
    std::vector<float> of_loaded, of_own;
    greedy(slots.get(), 5, &of_loaded), greedy(own.get(), 5, &of_own);
    EXPECT_TRUE(same_bits(of_loaded, of_own));

    if (type == KvType::q8_0) continue;  // full centres: it keeps the form
    const std::vector<std::byte> back = load(full.get(), of_prompt);
    EXPECT_EQ(form_of(back), 0u);
    const std::vector<float> got = page_values(back, kv, kTokens), want = page_values(file, kv, kTokens);
    Deviation plain;
    plain.add(got.data(), want.data(), got.size());
    EXPECT_LT(plain.rms(), 5 * tolerance);
  }
}

// Saved by a session with tokens, into one with tokens; an empty file changes no form, and measures nothing.
TEST(EngineKeyMeans, AnEmptyFileHasNoForm) {
  const auto model = open_spec("qwen2");
  const auto empty = open_with(model, "full", KvType::f16), slots = open_with(model, "streaming", KvType::f16, KvType::q4_0);
  const std::vector<std::byte> file = saved(empty.get());
  unwrap(engine::SessionFile::load(slots.get(), file, "file"));
  EXPECT_EQ(saved(slots.get()), file);
  const std::vector<std::byte> want = after_prompt(open_with(open_spec("qwen2"), "streaming", KvType::f16, KvType::q4_0).get(), 30);
  EXPECT_EQ(after_prompt(slots.get(), 30), want);
}

TEST(EngineKeyMeans, AFilesFormIsChecked) {
  const auto model = open_spec("qwen2");
  const auto session = open_with(model, "full", KvType::q8_0);
  const std::vector<std::byte> file = after_prompt(session.get(), 10);
  for (const auto& [at, bit] : {std::pair<size_t, int>(kFormAt, 4), {kFormAt, 1}, {kFormAt + 4, 1}}) {
    std::vector<std::byte> other = file;
    other[at] ^= static_cast<std::byte>(bit);
    const Status status = engine::SessionFile::load(session.get(), other, "other");
    EXPECT_EQ(status.code(), Code::bad_session) << at << " " << status.message();
    EXPECT_EQ(status.detail().offset, static_cast<uint64_t>(at == kFormAt && bit == 4 ? kFormAt : kFormAt + 4));
  }
  EXPECT_EQ(saved(session.get()), file);
}

}  // namespace
}  // namespace orrery::key_means_test

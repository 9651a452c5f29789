// Adapters through orrery.h: what opens, lists and swaps promise; plan and memory; handles freed in any order.
#include <gtest/gtest.h>

#include "tests/abi/handles.h"
#include "tests/abi/tiny_model.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_blocks.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

struct FreeAdapter {
  void operator()(orrery_adapter* adapter) const { orrery_adapter_free(adapter); }
};
using Adapter = std::unique_ptr<orrery_adapter, FreeAdapter>;

std::vector<std::byte> tiny_adapter(uint64_t seed = 1) {
  GgufBuilder file;
  file.key("general.type", "adapter").key("adapter.type", "lora").key("general.architecture", "llama").key("adapter.lora.alpha", 8.0f);
  Random random(seed);
  const auto add = [&](const std::string& name, uint64_t n_in, uint64_t n_out) {
    for (const bool b : {false, true}) {
      std::vector<float> values((b ? n_out : n_in) * 4);
      for (float& v : values) v = 0.2f * random.normal();
      const std::vector<uint64_t> dims = b ? std::vector<uint64_t>{4, n_out} : std::vector<uint64_t>{n_in, 4};
      file.tensor(name + (b ? ".lora_b" : ".lora_a"), TensorType::f32, dims, as_bytes(values));
    }
  };
  for (const char* block : {"blk.0.", "blk.1."}) {
    add(std::string(block) + "attn_q.weight", 64, 64);
    add(std::string(block) + "ffn_down.weight", 96, 64);
  }
  return file.build();
}

class ContractAdapters : public ::testing::Test {
 protected:
  Adapter open(const std::vector<std::byte>& bytes) {
    orrery_adapter* h = nullptr;
    Error error;
    check(orrery_adapter_open(model.get(), memory_source(bytes.data(), bytes.size()), &h, &error), error, "orrery_adapter_open");
    return Adapter(h);
  }
  static orrery_status set(const Session& session, const std::vector<orrery_adapter_use>& uses, Error* error) {
    return orrery_session_set_adapters(session.get(), uses.data(), uses.size(), error);
  }

  const TempDir dir;
  const std::string path = dir.write("model.gguf", TinyModel{}.build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
};

TEST_F(ContractAdapters, OptionsAndSwapsGiveTheSameAnswers) {
  const Adapter one = open(tiny_adapter());
  const orrery_adapter_use use = {one.get(), nullptr, 1.0f, 0};
  orrery_session_options o = session_options();
  o.n_context = 256, o.adapters = &use, o.n_adapters = 1;
  const Answer by_options = ask(open_session(model, o), "hello");
  const Session session = open_session(model);
  const Answer without = ask(session, "hello");
  EXPECT_NE(without.tokens, by_options.tokens);
  Error error;
  ASSERT_EQ(set(session, {use}, &error), ORRERY_OK) << error.message;
  EXPECT_EQ(orrery_session_n_tokens(session.get()), 0u);
  EXPECT_EQ(orrery_session_n_messages(session.get()), 2u);
  ASSERT_EQ(orrery_session_rewind_messages(session.get(), 0, &error), ORRERY_OK);
  const Answer swapped = ask(session, "hello");
  EXPECT_EQ(swapped.tokens, by_options.tokens);
  EXPECT_EQ(swapped.logprobs, by_options.logprobs);
  EXPECT_EQ(swapped.done.reused_tokens, 0u);
  ASSERT_EQ(set(session, {use}, &error), ORRERY_OK);  // the same list keeps the tokens
  EXPECT_GT(orrery_session_n_tokens(session.get()), 0u);
  ASSERT_EQ(orrery_session_set_adapters(session.get(), nullptr, 0, &error), ORRERY_OK);
  ASSERT_EQ(orrery_session_rewind_messages(session.get(), 0, &error), ORRERY_OK);
  EXPECT_EQ(ask(session, "hello").tokens, without.tokens);
}

TEST_F(ContractAdapters, KeptPromptsComeBackUnderTheirList) {
  const Adapter one = open(tiny_adapter());
  orrery_session_options o = session_options();
  o.n_context = 512;
  const Session session = open_session(model, o);
  const std::string text(150, 'a');
  const Answer first = ask(session, text.c_str());
  Error error;
  ASSERT_EQ(set(session, {{one.get(), nullptr, 1.0f, 0}}, &error), ORRERY_OK);
  ASSERT_EQ(orrery_session_rewind_messages(session.get(), 0, &error), ORRERY_OK);
  EXPECT_EQ(ask(session, text.c_str()).done.reused_tokens, 0u);
  ASSERT_EQ(set(session, {}, &error), ORRERY_OK);
  ASSERT_EQ(orrery_session_rewind_messages(session.get(), 0, &error), ORRERY_OK);
  const Answer again = ask(session, text.c_str());
  EXPECT_EQ(again.done.reused_tokens, 128u);
  EXPECT_EQ(again.tokens, first.tokens);
}

TEST_F(ContractAdapters, PlanAndMemory) {
  const uint64_t before = arena_used(runtime);
  const std::string file = dir.write("adapter.gguf", tiny_adapter());
  const Source source = path_source(file);
  orrery_runtime_options r = runtime_options();
  r.n_threads = 1, r.device_budget_bytes = uint64_t{256} << 20;
  orrery_adapter_use use = {nullptr, source, 2.0f, 0};
  orrery_session_options o = session_options();
  o.n_context = 256;
  const auto planned = [&] {
    orrery_plan_result plan = options(&orrery_plan_result_init);
    Error error;
    check(orrery_plan(path_source(path), &r, nullptr, &o, &plan, &error), error, "orrery_plan");
    return plan.device_bytes;
  };
  const uint64_t without = planned();
  o.adapters = &use, o.n_adapters = 1;
  const uint64_t with = planned();
  EXPECT_GT(with, without);
  Error error;
  orrery_session* refused = nullptr;
  EXPECT_EQ(orrery_session_open(model.get(), &o, &refused, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_STREQ(error.option, "adapters");
  Adapter adapter = open(tiny_adapter());
  use.adapter = adapter.get();
  EXPECT_EQ(orrery_session_open(model.get(), &o, &refused, &error), ORRERY_INVALID_ARGUMENT) << "both";
  use.source = nullptr;
  EXPECT_EQ(planned(), with);
  Session session = open_session(model, o);
  EXPECT_EQ(arena_used(runtime), with);
  // The session keeps the adapter, and the adapter its model.
  adapter.reset(), model.reset();
  ask(session, "hello");
  EXPECT_EQ(arena_used(runtime), with);
  session.reset();
  EXPECT_EQ(arena_used(runtime), before);
}

TEST_F(ContractAdapters, RefusalsChangeNothing) {
  const Adapter one = open(tiny_adapter());
  const Model other = open_model(runtime, path);
  const Session session = open_session(model), stranger = open_session(other);
  ask(session, "hello"), ask(stranger, "hello");
  const size_t n = orrery_session_n_tokens(session.get());
  const std::vector<std::vector<orrery_adapter_use>> wrong = {{{nullptr, nullptr, 1.0f, 0}},
                                                              {{one.get(), nullptr, NAN, 0}},
                                                              {{one.get(), nullptr, -INFINITY, 0}},
                                                              std::vector<orrery_adapter_use>(65, {one.get(), nullptr, 1.0f, 0})};
  for (const auto& uses : wrong) {
    Error error;
    EXPECT_EQ(set(session, uses, &error), ORRERY_INVALID_ARGUMENT) << error.message;
    EXPECT_STREQ(error.option, "adapters");
  }
  Error error;
  EXPECT_EQ(set(session, {{one.get(), nullptr, 1.0f, 7}}, &error), ORRERY_UNSUPPORTED);
  EXPECT_EQ(orrery_session_set_adapters(session.get(), nullptr, 1, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(set(stranger, {{one.get(), nullptr, 1.0f, 0}}, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_session_n_tokens(session.get()), n);
  EXPECT_GT(orrery_session_n_tokens(stranger.get()), 0u);

  say(session, "and");
  const Generation generation = generate(session, generate_options(4));
  EXPECT_EQ(set(session, {{one.get(), nullptr, 1.0f, 0}}, &error), ORRERY_BUSY);
  pull(generation);
  EXPECT_EQ(set(session, {{one.get(), nullptr, 1.0f, 0}}, &error), ORRERY_OK);

  orrery_adapter* h = reinterpret_cast<orrery_adapter*>(8);
  EXPECT_EQ(orrery_adapter_open(nullptr, path_source(path), &h, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(h, nullptr);
  EXPECT_EQ(orrery_adapter_open(model.get(), nullptr, &h, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_adapter_open(model.get(), path_source(path), nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_adapter_open(model.get(), path_source("none.gguf"), &h, &error), ORRERY_IO);
  EXPECT_EQ(orrery_adapter_open(model.get(), path_source(path), &h, &error), ORRERY_BAD_MODEL);
  EXPECT_EQ(h, nullptr);
  orrery_adapter_free(nullptr);
}

// The source may be cut, changed or gone behind the call.
TEST_F(ContractAdapters, TheSourceMayGo) {
  std::vector<std::byte> bytes = tiny_adapter();
  const Adapter kept = open(bytes);
  const std::string file = dir.write("adapter.gguf", bytes);
  orrery_adapter* h = nullptr;
  Error error;
  check(orrery_adapter_open(model.get(), path_source(file), &h, &error), error, "orrery_adapter_open");
  const Adapter of_file(h);
  dir.write("adapter.gguf", std::vector<std::byte>());
  std::fill(bytes.begin(), bytes.end(), std::byte{0x7f});
  const auto answer = [&](const Adapter& adapter) {
    const Session session = open_session(model);
    check(set(session, {{adapter.get(), nullptr, 1.0f, 0}}, &error), error, "orrery_session_set_adapters");
    return ask(session, "hello").tokens;
  };
  EXPECT_EQ(answer(kept), answer(of_file));
}

TEST_F(ContractAdapters, FilesCutAnywhereAreRefused) {
  const std::vector<std::byte> bytes = tiny_adapter();
  const uint64_t before = arena_used(runtime);
  for (size_t n = 0; n < bytes.size() - 64; n += n < 1500 ? 1 : 97) {
    orrery_adapter* h = nullptr;
    Error error;
    const orrery_status status = orrery_adapter_open(model.get(), memory_source(bytes.data(), n), &h, &error);
    ASSERT_NE(status, ORRERY_OK) << n;
    ASSERT_NE(status, ORRERY_INTERNAL) << n << error.message;
    ASSERT_NE(error.message[0], 0);
  }
  EXPECT_EQ(arena_used(runtime), before);
}

}  // namespace
}  // namespace orrery::testing

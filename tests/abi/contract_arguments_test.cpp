// Arguments of every function: NULL anywhere, structs of every size that a caller may have, buffers too small, names and numbers out of
// range.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_arguments_test {
namespace {

// One of each handle, on the tiny model.
class Arguments : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
  Session session = open_session(model);
  Vocab vocab{orrery_model_vocab(model.get())};
};

// NULL ---------------------------------------------------------------------------------------------------

// The call is refused, naming the argument, with and without somewhere to put the error.
#define EXPECT_NULL_REFUSED(name, call)                                                            \
  do {                                                                                             \
    Error e;                                                                                       \
    orrery_error* error = &e;                                                                      \
    EXPECT_EQ(call, ORRERY_INVALID_ARGUMENT);                                                      \
    EXPECT_EQ(e.status, ORRERY_INVALID_ARGUMENT);                                                  \
    EXPECT_NE(std::string(e.message).find(name), std::string::npos) << #call << ": " << e.message; \
    error = nullptr;                                                                               \
    EXPECT_EQ(call, ORRERY_INVALID_ARGUMENT);                                                      \
  } while (0)

TEST_F(Arguments, NullIsRefusedByName) {
  orrery_model* md = nullptr;
  orrery_session* se = nullptr;
  orrery_adapter* ad = nullptr;
  orrery_generation* ge = nullptr;
  orrery_vocab* vo = nullptr;
  size_t n = 0;
  float f[4];
  int32_t token = 5;
  orrery_plan_result plan = options(&orrery_plan_result_init);
  orrery_event event = options(&orrery_event_init);
  orrery_stats stats = options(&orrery_stats_init);
  orrery_model_info model_info = options(&orrery_model_info_init);
  orrery_vocab_info vocab_info = options(&orrery_vocab_info_init);
  orrery_runtime_info runtime_info = options(&orrery_runtime_info_init);
  const char* p = path.c_str();
  say(session, "hello");

  EXPECT_NULL_REFUSED("runtime", orrery_runtime_create(nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("runtime", orrery_runtime_set_threads(nullptr, 1, 0, error));
  EXPECT_NULL_REFUSED("info", orrery_device_get_info(0, nullptr, error));
  EXPECT_NULL_REFUSED("runtime", orrery_model_open(nullptr, fd_source(0), nullptr, &md, error));
  EXPECT_NULL_REFUSED("runtime", orrery_model_open(nullptr, memory_source(&f, 8), nullptr, &md, error));
  EXPECT_NULL_REFUSED("memory", orrery_model_open(runtime.get(), memory_source(nullptr, 8), nullptr, &md, error));
  EXPECT_NULL_REFUSED("runtime", orrery_runtime_get_info(nullptr, &runtime_info, error));
  EXPECT_NULL_REFUSED("info", orrery_runtime_get_info(runtime.get(), nullptr, error));
  EXPECT_NULL_REFUSED("path", orrery_vocab_open(path_source(nullptr), &vo, error));
  EXPECT_NULL_REFUSED("source", orrery_vocab_open(nullptr, &vo, error));
  EXPECT_NULL_REFUSED("vocab", orrery_vocab_open(path_source(p), nullptr, error));
  EXPECT_NULL_REFUSED("vocab", orrery_tokenize(nullptr, "a", 1, 0, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("text", orrery_tokenize(vocab.get(), nullptr, 1, 0, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("n_tokens", orrery_tokenize(vocab.get(), "a", 1, 0, nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("vocab", orrery_detokenize(nullptr, &token, 1, 0, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("tokens", orrery_detokenize(vocab.get(), nullptr, 1, 0, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("text_bytes", orrery_detokenize(vocab.get(), &token, 1, 0, nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("vocab", orrery_vocab_get_info(nullptr, &vocab_info, error));
  EXPECT_NULL_REFUSED("info", orrery_vocab_get_info(vocab.get(), nullptr, error));
  EXPECT_NULL_REFUSED("vocab", orrery_render_chat(nullptr, "[]", nullptr, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("messages_json", orrery_render_chat(vocab.get(), nullptr, nullptr, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("text_bytes", orrery_render_chat(vocab.get(), "[]", nullptr, nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("vocab", orrery_chat_format(nullptr, nullptr, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("json_bytes", orrery_chat_format(vocab.get(), nullptr, nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("source", orrery_plan(nullptr, nullptr, nullptr, nullptr, &plan, error));
  EXPECT_NULL_REFUSED("plan", orrery_plan(path_source(p), nullptr, nullptr, nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("runtime", orrery_model_open(nullptr, path_source(p), nullptr, &md, error));
  EXPECT_NULL_REFUSED("source", orrery_model_open(runtime.get(), nullptr, nullptr, &md, error));
  EXPECT_NULL_REFUSED("model", orrery_model_open(runtime.get(), path_source(p), nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("model", orrery_model_get_info(nullptr, &model_info, error));
  EXPECT_NULL_REFUSED("info", orrery_model_get_info(model.get(), nullptr, error));
  EXPECT_NULL_REFUSED("source", orrery_inspect(nullptr, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("json_bytes", orrery_inspect(path_source(p), nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("json_bytes", orrery_policies(nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("model", orrery_session_open(nullptr, nullptr, &se, error));
  EXPECT_NULL_REFUSED("session", orrery_session_open(model.get(), nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_add_message(nullptr, "user", "a", error));
  EXPECT_NULL_REFUSED("role", orrery_session_add_message(session.get(), nullptr, "a", error));
  EXPECT_NULL_REFUSED("content", orrery_session_add_message(session.get(), "user", nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_add_message_json(nullptr, "{}", error));
  EXPECT_NULL_REFUSED("message_json", orrery_session_add_message_json(session.get(), nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_message(nullptr, 0, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("json_bytes", orrery_session_message(session.get(), 0, nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_set_template(nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_rewind_messages(nullptr, 0, error));
  EXPECT_NULL_REFUSED("session", orrery_session_tokens(nullptr, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("n_tokens", orrery_session_tokens(session.get(), nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_rewind(nullptr, 0, error));
  EXPECT_NULL_REFUSED("session", orrery_session_set_adapters(nullptr, nullptr, 0, error));
  EXPECT_NULL_REFUSED("adapters", orrery_session_set_adapters(session.get(), nullptr, 1, error));
  EXPECT_NULL_REFUSED("model", orrery_adapter_open(nullptr, path_source(p), &ad, error));
  EXPECT_NULL_REFUSED("source", orrery_adapter_open(model.get(), nullptr, &ad, error));
  EXPECT_NULL_REFUSED("adapter", orrery_adapter_open(model.get(), path_source(p), nullptr, error));
  orrery_folder* fo = nullptr;
  EXPECT_NULL_REFUSED("path", orrery_folder_open(nullptr, 0, &fo, error));
  EXPECT_NULL_REFUSED("folder", orrery_folder_open("x", 0, nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_folder_save(nullptr, nullptr, "x", error));
  EXPECT_NULL_REFUSED("folder", orrery_folder_save(nullptr, session.get(), "x", error));
  EXPECT_NULL_REFUSED("folder", orrery_folder_load(nullptr, session.get(), "x", error));
  EXPECT_NULL_REFUSED("folder", orrery_folder_remove(nullptr, "x", error));
  EXPECT_NULL_REFUSED("folder", orrery_folder_list(nullptr, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("session", orrery_session_fork(nullptr, &se, error));
  EXPECT_NULL_REFUSED("fork", orrery_session_fork(session.get(), nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_save(nullptr, "x", error));
  EXPECT_NULL_REFUSED("path", orrery_session_save(session.get(), nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_load(nullptr, "x", error));
  EXPECT_NULL_REFUSED("path", orrery_session_load(session.get(), nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_save_buffer(nullptr, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("n_bytes", orrery_session_save_buffer(session.get(), nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_load_buffer(nullptr, "x", 1, error));
  EXPECT_NULL_REFUSED("bytes", orrery_session_load_buffer(session.get(), nullptr, 1, error));
  EXPECT_NULL_REFUSED("session", orrery_session_evaluate(nullptr, &token, 1, nullptr, error));
  EXPECT_NULL_REFUSED("tokens", orrery_session_evaluate(session.get(), nullptr, 1, nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_logits(nullptr, f, 4, error));
  EXPECT_NULL_REFUSED("logits", orrery_session_logits(session.get(), nullptr, 4, error));
  EXPECT_NULL_REFUSED("session", orrery_session_embedding(nullptr, f, 4, error));
  EXPECT_NULL_REFUSED("embedding", orrery_session_embedding(session.get(), nullptr, 4, error));
  EXPECT_NULL_REFUSED("session", orrery_session_stats(nullptr, &stats, error));
  EXPECT_NULL_REFUSED("stats", orrery_session_stats(session.get(), nullptr, error));
  EXPECT_NULL_REFUSED("model", orrery_model_experts(nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("info", orrery_model_experts(model.get(), nullptr, error));
  EXPECT_NULL_REFUSED("model", orrery_model_streaming(nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("info", orrery_model_streaming(model.get(), nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_head_roles(nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("roles", orrery_session_head_roles(session.get(), nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_session_residency(nullptr, nullptr, 0, &n, error));
  EXPECT_NULL_REFUSED("n", orrery_session_residency(session.get(), nullptr, 0, nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_generate(nullptr, nullptr, &ge, error));
  EXPECT_NULL_REFUSED("generation", orrery_generate(session.get(), nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("session", orrery_generate_tokens(nullptr, &token, 1, nullptr, &ge, error));
  EXPECT_NULL_REFUSED("tokens", orrery_generate_tokens(session.get(), nullptr, 1, nullptr, &ge, error));
  EXPECT_NULL_REFUSED("generation", orrery_generate_tokens(session.get(), &token, 1, nullptr, nullptr, error));
  EXPECT_NULL_REFUSED("generation", orrery_next(nullptr, &event, error));
  EXPECT_NULL_REFUSED("generation", orrery_run(
                                        nullptr, [](void*, const orrery_event*) { return 0; }, nullptr, error));

  const Generation generation = generate(session, generate_options(2));
  EXPECT_NULL_REFUSED("event", orrery_next(generation.get(), nullptr, error));
  size_t which = 0;
  EXPECT_NULL_REFUSED("generations", orrery_next_any(nullptr, 1, &which, &event, error));
  EXPECT_NULL_REFUSED("on_event", orrery_run(generation.get(), nullptr, nullptr, error));
  EXPECT_EQ(pull(generation).tokens.size(), 2u);  // none of it did harm
}

TEST(NullArguments, AreNothingToFreeCancelOrCount) {
  orrery_runtime_free(nullptr);
  orrery_model_free(nullptr);
  orrery_vocab_free(nullptr);
  orrery_session_free(nullptr);
  orrery_generation_free(nullptr);
  orrery_cancel(nullptr);
  orrery_session_cancel(nullptr);
  orrery_error_init(nullptr, 8);
  orrery_device_info_init(nullptr, 8);
  orrery_runtime_options_init(nullptr, 8);
  orrery_runtime_info_init(nullptr, 8);
  orrery_vocab_info_init(nullptr, 8);
  orrery_template_options_init(nullptr, 8);
  orrery_plan_result_init(nullptr, 8);
  orrery_plan_region_init(nullptr, 8);
  orrery_model_options_init(nullptr, 8);
  orrery_model_info_init(nullptr, 8);
  orrery_session_options_init(nullptr, 8);
  orrery_stats_init(nullptr, 8);
  orrery_generate_options_init(nullptr, 8);
  orrery_event_init(nullptr, 8);
  EXPECT_EQ(orrery_session_n_messages(nullptr), 0u);
  EXPECT_EQ(orrery_session_n_tokens(nullptr), 0u);
  EXPECT_EQ(orrery_token_flags(nullptr, 1), 0u);
  EXPECT_EQ(orrery_model_vocab(nullptr), nullptr);
}

// Out parameters of failed calls are cleared, so that nobody frees what was there before.
TEST_F(Arguments, FailureClearsOutParameters) {
  auto* const junk = reinterpret_cast<void*>(uintptr_t{0x1234});
  auto* rt = static_cast<orrery_runtime*>(junk);
  orrery_runtime_options o = runtime_options();
  o.backend = "abacus";
  EXPECT_EQ(orrery_runtime_create(&o, &rt, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(rt, nullptr);
  auto* md = static_cast<orrery_model*>(junk);
  EXPECT_EQ(orrery_model_open(runtime.get(), path_source(dir.file("none")), nullptr, &md, nullptr), ORRERY_IO);
  EXPECT_EQ(md, nullptr);
  auto* vo = static_cast<orrery_vocab*>(junk);
  EXPECT_EQ(orrery_vocab_open(path_source(dir.file("none")), &vo, nullptr), ORRERY_IO);
  EXPECT_EQ(vo, nullptr);
  auto* ge = static_cast<orrery_generation*>(junk);
  EXPECT_EQ(orrery_generate(session.get(), nullptr, &ge, nullptr), ORRERY_INVALID_ARGUMENT);  // no message
  EXPECT_EQ(ge, nullptr);
  auto* se = static_cast<orrery_session*>(junk);
  EXPECT_EQ(orrery_session_fork(nullptr, &se, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(se, nullptr);
  size_t n = 99;
  EXPECT_EQ(orrery_inspect(path_source(dir.file("none")), nullptr, 0, &n, nullptr), ORRERY_IO);
  EXPECT_EQ(n, 0u);
}

// Sizes of structs -----------------------------------------------------------------------------------------

// A struct of exactly `bytes` on the heap, where a sanitizer sees one byte too many, with known bytes behind
// it.
class Sized {
 public:
  Sized(const void* value, size_t value_bytes, uint32_t bytes, unsigned char tail = 0)
      : p_(static_cast<unsigned char*>(std::malloc(bytes ? bytes : 1))) {
    std::memset(p_, tail, bytes);
    std::memcpy(p_, value, std::min<size_t>(value_bytes, bytes));
    if (bytes >= sizeof bytes) std::memcpy(p_, &bytes, sizeof bytes);
  }
  ~Sized() { std::free(p_); }
  Sized(const Sized&) = delete;
  Sized& operator=(const Sized&) = delete;
  unsigned char* bytes() const { return p_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(p_);
  }

 private:
  unsigned char* p_;
};

// `use` passes options to a function that reads them, and says how that went.
template <class T>
void expect_any_size_works(void (*init)(T*, size_t), const std::function<orrery_status(const T*, orrery_error*)>& use) {
  T defaults;
  init(&defaults, sizeof defaults);
  ASSERT_EQ(defaults.struct_size, sizeof(T));
  for (uint32_t bytes = 8; bytes <= sizeof(T); bytes += 8) {
    Error error;
    EXPECT_EQ(use(Sized(&defaults, sizeof(T), bytes).as<T>(), &error), ORRERY_OK) << bytes << ": " << error.message;
  }
  for (const uint32_t more : {8u, 64u}) {
    Error error;
    const uint32_t bytes = static_cast<uint32_t>(sizeof(T)) + more;
    const Sized longer(&defaults, sizeof(T), bytes);
    EXPECT_EQ(use(longer.as<T>(), &error), ORRERY_OK) << error.message;
    for (const uint32_t at : {static_cast<uint32_t>(sizeof(T)), bytes - 1}) {
      longer.bytes()[at] = 1;
      EXPECT_EQ(use(longer.as<T>(), &error), ORRERY_UNSUPPORTED);
      EXPECT_NE(std::string(error.message).find(std::to_string(at)), std::string::npos) << error.message;
      longer.bytes()[at] = 0;
    }
  }
  // What memory happens to hold: read no further than the struct that is known.
  for (const uint32_t wrong : {0u, 1u, 4u, 7u, 12u, static_cast<uint32_t>(sizeof(T)) + 1u, 0xCCCCCCCCu, 0xCDCDCDC8u, 0xFFFFFFF8u}) {
    Error error;
    T o = defaults;
    o.struct_size = wrong;
    EXPECT_EQ(use(&o, &error), ORRERY_INVALID_ARGUMENT) << wrong;
    EXPECT_NE(std::string(error.message).find("struct_size"), std::string::npos) << error.message;
  }
}

TEST_F(Arguments, OptionsOfAnySizeWork) {
  const char* p = path.c_str();
  expect_any_size_works<orrery_runtime_options>(&orrery_runtime_options_init, [](const orrery_runtime_options* o, orrery_error* e) {
    orrery_runtime* h = nullptr;
    const orrery_status s = orrery_runtime_create(o, &h, e);
    EXPECT_EQ(h != nullptr, s == ORRERY_OK);
    orrery_runtime_free(h);
    return s;
  });
  orrery_plan_result plan = options(&orrery_plan_result_init);
  expect_any_size_works<orrery_runtime_options>(
      &orrery_runtime_options_init, [&](auto* o, orrery_error* e) { return orrery_plan(path_source(p), o, nullptr, nullptr, &plan, e); });
  expect_any_size_works<orrery_model_options>(
      &orrery_model_options_init, [&](auto* o, orrery_error* e) { return orrery_plan(path_source(p), nullptr, o, nullptr, &plan, e); });
  expect_any_size_works<orrery_session_options>(
      &orrery_session_options_init, [&](auto* o, orrery_error* e) { return orrery_plan(path_source(p), nullptr, nullptr, o, &plan, e); });
  expect_any_size_works<orrery_model_options>(&orrery_model_options_init, [&](auto* o, orrery_error* e) {
    orrery_model* h = nullptr;
    const orrery_status s = orrery_model_open(runtime.get(), path_source(p), o, &h, e);
    orrery_model_free(h);
    return s;
  });
  session.reset();
  expect_any_size_works<orrery_session_options>(&orrery_session_options_init, [&](auto* o, orrery_error* e) {
    orrery_session* h = nullptr;
    const orrery_status s = orrery_session_open(model.get(), o, &h, e);
    orrery_session_free(h);
    return s;
  });
  session = open_session(model);
  size_t n = 0;
  expect_any_size_works<orrery_template_options>(
      &orrery_template_options_init, [&](auto* o, orrery_error* e) { return orrery_render_chat(vocab.get(), "[]", o, nullptr, 0, &n, e); });
  expect_any_size_works<orrery_template_options>(
      &orrery_template_options_init, [&](auto* o, orrery_error* e) { return orrery_session_set_template(session.get(), o, e); });
  const int32_t token = 5;
  expect_any_size_works<orrery_generate_options>(&orrery_generate_options_init, [&](auto* o, orrery_error* e) {
    orrery_generation* h = nullptr;
    const orrery_status s = orrery_generate_tokens(session.get(), &token, 1, o, &h, e);
    orrery_generation_free(h);
    return s;
  });
}

// A shorter struct's fields count, and what it lacks is the default, whatever lies behind it.
TEST_F(Arguments, ShorterOptionsKeepWhatTheySay) {
  orrery_generate_options o = generate_options(3);
  o.top_k = 7;
  o.ignore_end = 1;
  o.n_logprobs = 99;  // refused, were it read
  for (uint32_t bytes = 8; bytes <= offsetof(orrery_generate_options, n_logprobs); bytes += 8) {
    o.struct_size = bytes;
    const Answer a = pull(generate_tokens(session, {5, 6, 7}, o));
    EXPECT_EQ(a.tokens.size(), 3u) << bytes;
  }
  orrery_session_options s = session_options();
  s.n_context = 77;
  s.kv_type = 99;  // out of range, were it read
  s.struct_size = 8;
  const Session small = open_session(model, s);
  orrery_stats stats = options(&orrery_stats_init);
  ASSERT_EQ(orrery_session_stats(small.get(), &stats, nullptr), ORRERY_OK);
  EXPECT_EQ(stats.n_context, 77u);
}

// `get` fills a struct. Every size gets a prefix of the whole, and no byte more.
template <class T>
void expect_filled_to_any_size(void (*init)(T*, size_t), const std::function<orrery_status(T*, orrery_error*)>& get) {
  T whole;
  init(&whole, sizeof whole);
  Error error;
  ASSERT_EQ(get(&whole, &error), ORRERY_OK) << error.message;
  EXPECT_EQ(whole.struct_size, sizeof(T));
  for (uint32_t bytes = 8; bytes <= sizeof(T) + 32; bytes += 8) {
    const Sized given(&bytes, sizeof bytes, bytes, 0xAA);
    ASSERT_EQ(get(given.as<T>(), &error), ORRERY_OK) << bytes << ": " << error.message;
    uint32_t kept;
    std::memcpy(&kept, given.bytes(), sizeof kept);
    EXPECT_EQ(kept, bytes);
    const size_t filled = std::min<size_t>(bytes, sizeof(T));
    EXPECT_EQ(std::memcmp(given.bytes() + 4, reinterpret_cast<const char*>(&whole) + 4, filled - 4), 0) << bytes;
    for (size_t i = filled; i < bytes; ++i) EXPECT_EQ(given.bytes()[i], 0xAA) << i;
  }
  for (const uint32_t wrong : {0u, 1u, 4u, 7u, 12u, 0xCCCCCCCCu, 0xFFFFFFF8u}) {
    T out = whole;
    out.struct_size = wrong;
    EXPECT_EQ(get(&out, &error), ORRERY_INVALID_ARGUMENT) << wrong;
  }
}

TEST_F(Arguments, ResultsOfAnySizeAreFilled) {
  expect_filled_to_any_size<orrery_runtime_info>(&orrery_runtime_info_init,
                                                 [&](auto* i, orrery_error* e) { return orrery_runtime_get_info(runtime.get(), i, e); });
  expect_filled_to_any_size<orrery_vocab_info>(&orrery_vocab_info_init,
                                               [&](auto* i, orrery_error* e) { return orrery_vocab_get_info(vocab.get(), i, e); });
  expect_filled_to_any_size<orrery_model_info>(&orrery_model_info_init,
                                               [&](auto* i, orrery_error* e) { return orrery_model_get_info(model.get(), i, e); });
  expect_filled_to_any_size<orrery_stats>(&orrery_stats_init,
                                          [&](auto* i, orrery_error* e) { return orrery_session_stats(session.get(), i, e); });
  orrery_runtime_options known = options(&orrery_runtime_options_init);
  known.device_budget_bytes = known.reservoir_bytes = 64 << 20;  // without them, the budgets follow the memory that the machine has left
  expect_filled_to_any_size<orrery_plan_result>(
      &orrery_plan_result_init, [&](auto* i, orrery_error* e) { return orrery_plan(path_source(path), &known, nullptr, nullptr, i, e); });
  say(session, "hello");
  const Generation done = generate(session, generate_options(1));
  pull(done);
  expect_filled_to_any_size<orrery_event>(&orrery_event_init, [&](auto* i, orrery_error* e) { return orrery_next(done.get(), i, e); });
}

// A refused event struct costs no event.
TEST_F(Arguments, BadEventStructLosesNothing) {
  const Answer want = ask(session, "hello", 4);
  const Session other = open_session(model);
  say(other, "hello");
  const Generation g = generate(other, generate_options(4));
  std::vector<int32_t> tokens;
  for (;;) {
    orrery_event bad = options(&orrery_event_init);
    bad.struct_size = 12;
    EXPECT_EQ(orrery_next(g.get(), &bad, nullptr), ORRERY_INVALID_ARGUMENT);
    orrery_event e = options(&orrery_event_init);
    ASSERT_EQ(orrery_next(g.get(), &e, nullptr), ORRERY_OK);
    if (e.type == ORRERY_EVENT_TOKEN) tokens.push_back(e.token);
    if (e.type == ORRERY_EVENT_DONE) break;
  }
  EXPECT_EQ(tokens, want.tokens);
}

// An orrery_error of any size gets what it has room for, its message whole characters and ended.
TEST_F(Arguments, ErrorsOfAnySizeAreFilled) {
  const std::string name = dir.file(std::string("\xE6\xBC\xA2\xE5\xAD\x97\xF0\x9F\x98\x80.gguf"));
  orrery_model* h = nullptr;
  Error whole;
  ASSERT_EQ(orrery_model_open(runtime.get(), path_source(name), nullptr, &h, &whole), ORRERY_IO);
  EXPECT_EQ(whole.struct_size, sizeof whole);
  EXPECT_EQ(whole.status, ORRERY_IO);
  EXPECT_EQ(whole.native_code, ENOENT);
  EXPECT_NE(std::string(whole.message).find(name), std::string::npos) << whole.message;
  for (uint32_t bytes = 0; bytes <= sizeof whole + 16; ++bytes) {
    const Sized given(&bytes, sizeof bytes, bytes < 4 ? 4 : bytes, 0xAA);
    std::memcpy(given.bytes(), &bytes, sizeof bytes);
    const bool known = bytes >= 8 && bytes % 8 == 0;
    ASSERT_EQ(orrery_model_open(runtime.get(), path_source(name), nullptr, &h, given.as<orrery_error>()),
              known ? ORRERY_IO : ORRERY_INVALID_ARGUMENT)
        << bytes;
    uint32_t kept;
    std::memcpy(&kept, given.bytes(), sizeof kept);
    EXPECT_EQ(kept, bytes);
    if (!known) {  // nobody knows how long it is: nothing of it is written
      for (size_t i = 4; i < bytes; ++i) ASSERT_EQ(given.bytes()[i], 0xAA) << bytes;
      continue;
    }
    EXPECT_EQ(given.as<orrery_error>()->status, ORRERY_IO);
    const size_t at = offsetof(orrery_error, message);
    if (bytes > at) {
      const char* text = reinterpret_cast<const char*>(given.bytes()) + at;
      const size_t length = strnlen(text, bytes - at);
      ASSERT_LT(length, bytes - at) << "not ended at " << bytes;
      EXPECT_EQ(std::string(whole.message).compare(0, length, text, length), 0);
      // A character that does not fit is left out.
      EXPECT_NE(static_cast<unsigned char>(whole.message[length]) & 0xC0, 0x80) << bytes;
    }
    for (size_t i = sizeof whole; i < bytes; ++i) EXPECT_EQ(given.bytes()[i], 0xAA);
  }
}

bool is_utf8_line(const char* text) {
  size_t n = 0;
  for (const char* p = text; *p; p += n) {
    const auto c = static_cast<unsigned char>(*p);
    if (c < 0x20) return false;
    n = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 0;
    if (n == 0) return false;
    for (size_t i = 1; i < n; ++i)
      if ((static_cast<unsigned char>(p[i]) & 0xC0) != 0x80) return false;
  }
  return true;
}

#ifdef _WIN32
constexpr bool kNamesAreUtf8 = true;  // file names are UTF-16; no others can be given
#else
constexpr bool kNamesAreUtf8 = false;
#endif

TEST_F(Arguments, MessagesAreLinesOfUtf8) {
  orrery_model* h = nullptr;
  for (const std::string name : {"\xFF\xFE", "a\nb\tc", "\xE6\xBC", "cut \xF0\x9F\x98"}) {
    Error error;
    const orrery_status status = orrery_model_open(runtime.get(), path_source(dir.file(name)), nullptr, &h, &error);
    EXPECT_TRUE(status == ORRERY_IO || (kNamesAreUtf8 && status == ORRERY_INVALID_ARGUMENT)) << status;
    EXPECT_TRUE(is_utf8_line(error.message)) << error.message;
  }
  // Longer than the field, cut at every phase of a character.
  for (size_t lead = 0; lead < 3; ++lead) {
    std::string name(lead, 'x');
    for (int i = 0; i < 1000; ++i) name += "\xE6\xBC\xA2";
    Error error;
    EXPECT_EQ(orrery_model_open(runtime.get(), path_source(name), nullptr, &h, &error), ORRERY_IO);
    EXPECT_TRUE(is_utf8_line(error.message)) << lead;
    EXPECT_GE(std::strlen(error.message), sizeof error.message - 4);
  }
}

TEST_F(Arguments, SuccessClearsTheError) {
  Error error;
  EXPECT_EQ(orrery_session_rewind(session.get(), 1000, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(error.message[0], '\0');
  EXPECT_EQ(orrery_session_rewind(session.get(), 0, &error), ORRERY_OK);
  EXPECT_EQ(error.status, ORRERY_OK);
  EXPECT_EQ(error.message[0], '\0');
}

// Sizes out ------------------------------------------------------------------------------------------------

// NULL asks, too little is refused and left alone, enough is filled and no more.
template <class T>
void expect_sizes_out(const std::function<orrery_status(T*, size_t, size_t*, orrery_error*)>& get) {
  Error error;
  size_t n = 12345;
  ASSERT_EQ(get(nullptr, 0, &n, &error), ORRERY_OK) << error.message;
  ASSERT_GT(n, 1u);
  const size_t size = n;
  n = 12345;
  EXPECT_EQ(get(nullptr, 1, &n, &error), ORRERY_OK);  // a size without a buffer asks, too
  EXPECT_EQ(n, size);
  std::vector<T> exact(size);
  ASSERT_EQ(get(exact.data(), size, &n, &error), ORRERY_OK) << error.message;
  EXPECT_EQ(n, size);
  T mark;
  std::memset(&mark, 0xAA, sizeof mark);
  for (const size_t capacity : {size_t{0}, size_t{1}, size - 1}) {
    std::vector<T> small(size, mark);
    n = 12345;
    EXPECT_EQ(get(small.data(), capacity, &n, &error), ORRERY_INVALID_ARGUMENT);
    EXPECT_EQ(n, size);
    EXPECT_EQ(error.bytes_requested, size);
    EXPECT_EQ(error.bytes_available, capacity);
    EXPECT_EQ(std::memcmp(small.data(), std::vector<T>(size, mark).data(), size * sizeof(T)), 0) << capacity;
  }
  std::vector<T> large(size + 4, mark);
  ASSERT_EQ(get(large.data(), size + 4, &n, &error), ORRERY_OK);
  EXPECT_EQ(n, size);
  EXPECT_EQ(std::memcmp(large.data(), exact.data(), size * sizeof(T)), 0);
  for (size_t i = size; i < size + 4; ++i) EXPECT_EQ(std::memcmp(&large[i], &mark, sizeof mark), 0);
}

TEST_F(Arguments, SizesOut) {
  ask(session, "hello");
  const std::vector<int32_t> ids = tokens_of(session);
  expect_sizes_out<int32_t>([&](int32_t* out, size_t capacity, size_t* n, orrery_error* e) {
    return orrery_tokenize(vocab.get(), "some text", 9, 0, out, capacity, n, e);
  });
  expect_sizes_out<char>([&](char* out, size_t capacity, size_t* n, orrery_error* e) {
    return orrery_detokenize(vocab.get(), ids.data(), ids.size(), 0, out, capacity, n, e);
  });
  expect_sizes_out<char>([&](char* out, size_t capacity, size_t* n, orrery_error* e) {
    return orrery_render_chat(vocab.get(), R"([{"role": "user", "content": "hi"}])", nullptr, out, capacity, n, e);
  });
  expect_sizes_out<char>([&](char* out, size_t capacity, size_t* n, orrery_error* e) {
    return orrery_chat_format(vocab.get(), nullptr, out, capacity, n, e);
  });
  expect_sizes_out<char>(
      [&](char* out, size_t capacity, size_t* n, orrery_error* e) { return orrery_inspect(path_source(path), out, capacity, n, e); });
  expect_sizes_out<char>([&](char* out, size_t capacity, size_t* n, orrery_error* e) { return orrery_policies(out, capacity, n, e); });
  expect_sizes_out<char>([&](char* out, size_t capacity, size_t* n, orrery_error* e) {
    return orrery_session_message(session.get(), 0, out, capacity, n, e);
  });
  expect_sizes_out<int32_t>(
      [&](int32_t* out, size_t capacity, size_t* n, orrery_error* e) { return orrery_session_tokens(session.get(), out, capacity, n, e); });
  expect_sizes_out<uint32_t>([&](uint32_t* out, size_t capacity, size_t* n, orrery_error* e) {
    return orrery_session_residency(session.get(), out, capacity, n, e);
  });
  expect_sizes_out<unsigned char>([&](unsigned char* out, size_t capacity, size_t* n, orrery_error* e) {
    return orrery_session_save_buffer(session.get(), out, capacity, n, e);
  });
}

TEST_F(Arguments, EmptyTextIsNoText) {
  size_t n = 99;
  EXPECT_EQ(orrery_tokenize(vocab.get(), nullptr, 0, 0, nullptr, 0, &n, nullptr), ORRERY_OK);
  EXPECT_EQ(n, 0u);
  char text[1];
  EXPECT_EQ(orrery_detokenize(vocab.get(), nullptr, 0, 0, text, 0, &n, nullptr), ORRERY_OK);
  EXPECT_EQ(n, 0u);
}

// Names and ranges -----------------------------------------------------------------------------------------

TEST(Names, Statuses) {
  std::set<std::string> names;
  for (int32_t s = 0; s <= 16; ++s) {
    EXPECT_EQ(std::strncmp(orrery_status_name(s), "ORRERY_", 7), 0) << s;
    names.insert(orrery_status_name(s));
  }
  EXPECT_EQ(names.size(), 17u);
  EXPECT_STREQ(orrery_status_name(ORRERY_BAD_MODEL), "ORRERY_BAD_MODEL");
  for (const int32_t s : {-1, 17, INT32_MIN, INT32_MAX}) EXPECT_STREQ(orrery_status_name(s), "unknown status");
}

TEST(Names, Version) {
  EXPECT_EQ(orrery_abi_version(), ORRERY_ABI_VERSION);
  EXPECT_STREQ(orrery_version(), "0.1.0");
  EXPECT_NE(std::string(orrery_build_info()).find("plain"), std::string::npos);
}

orrery_status create(const orrery_runtime_options& o) {
  orrery_runtime* h = nullptr;
  Error error;
  const orrery_status s = orrery_runtime_create(&o, &h, &error);
  EXPECT_EQ(h != nullptr, s == ORRERY_OK) << error.message;
  EXPECT_EQ(error.message[0] != '\0', s != ORRERY_OK);
  orrery_runtime_free(h);
  return s;
}

TEST(Names, RuntimeOptionsOutOfRange) {
  const auto with = [](auto field, auto value) {
    orrery_runtime_options o = runtime_options();
    o.*field = value;
    return create(o);
  };
  using O = orrery_runtime_options;
  EXPECT_EQ(with(&O::backend, "cpu"), ORRERY_OK);
  EXPECT_EQ(with(&O::backend, "auto"), ORRERY_OK);
  EXPECT_EQ(with(&O::backend, "CPU"), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::backend, ""), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::cpu_path, "plain"), ORRERY_OK);
  EXPECT_EQ(with(&O::cpu_path, "mmx"), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::n_threads, -1), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::n_threads, INT32_MAX), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::log_level, -1), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::log_level, 6), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::max_sessions, 0u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::max_sessions, UINT32_MAX), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::device_budget_bytes, UINT64_MAX), ORRERY_OUT_OF_HOST_MEMORY);
  EXPECT_EQ(with(&O::link_bytes_per_second, uint64_t{1}), ORRERY_OK);
  EXPECT_EQ(with(&O::link_latency_us, UINT32_MAX), ORRERY_OK);
  EXPECT_EQ(with(&O::reservoir_mode, uint32_t{ORRERY_RESERVOIR_PINNED}), ORRERY_OK);  // nothing is locked yet
  EXPECT_EQ(with(&O::reservoir_mode, 2u), ORRERY_INVALID_ARGUMENT);
}

// A library with the CUDA backend, on a machine without a driver, is as one without it, but for the reason that it gives.
TEST(Names, CudaSaysWhatIsMissingAndAutoDoesWithout) {
  orrery_runtime_options o = runtime_options();
  o.backend = "cuda";
  orrery_runtime* h = nullptr;
  Error error;
  const orrery_status status = orrery_runtime_create(&o, &h, &error);
  orrery_runtime_free(h);
  if (status == ORRERY_OK) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(status, ORRERY_UNSUPPORTED);
  const std::string said = error.message;
  if (std::strstr(orrery_build_info(), "; cuda"))
    EXPECT_TRUE(said.find("NVIDIA driver") != std::string::npos || said.find("no CUDA-capable device") != std::string::npos) << said;
  else EXPECT_EQ(said, "this build of the library has no CUDA backend");

  o.backend = "auto";
  ASSERT_EQ(orrery_runtime_create(&o, &h, &error), ORRERY_OK) << error.message;
  const Runtime runtime(h);
  orrery_runtime_info info;
  orrery_runtime_info_init(&info, sizeof info);
  ASSERT_EQ(orrery_runtime_get_info(h, &info, &error), ORRERY_OK) << error.message;
  EXPECT_STREQ(info.backend, "cpu");
}

TEST_F(Arguments, ModelOptionsOutOfRange) {
  const auto with = [&](auto field, auto value) {
    orrery_model_options o = model_options();
    o.*field = value;
    orrery_model* h = nullptr;
    const orrery_status s = orrery_model_open(runtime.get(), path_source(path), &o, &h, nullptr);
    orrery_model_free(h);
    return s;
  };
  using O = orrery_model_options;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(with(&O::load, 2u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::host_computes, 3u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::rope_scaling, 6u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::rope_base, -1.0f), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::rope_base, nan), ORRERY_INVALID_ARGUMENT);
  for (const float factor : {0.0f, -1.0f, nan, std::numeric_limits<float>::infinity()}) {
    orrery_model_options o = model_options();
    o.rope_scaling = ORRERY_ROPE_LINEAR;
    o.rope_scale = factor;
    orrery_model* h = nullptr;
    EXPECT_EQ(orrery_model_open(runtime.get(), path_source(path), &o, &h, nullptr), ORRERY_INVALID_ARGUMENT) << factor;
  }
}

TEST_F(Arguments, SessionOptionsOutOfRange) {
  const auto with = [&](auto field, auto value) {
    orrery_session_options o = session_options();
    o.n_context = 64;
    o.*field = value;
    orrery_session* h = nullptr;
    const orrery_status s = orrery_session_open(model.get(), &o, &h, nullptr);
    orrery_session_free(h);
    return s;
  };
  using O = orrery_session_options;
  EXPECT_EQ(with(&O::kv_type, 5u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::device_kv_type, 6u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::device_kv_type, UINT32_MAX), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::overflow, 2u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::n_context, UINT32_MAX), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::chunk_tokens, UINT32_MAX), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::policy, "no such policy"), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::kv_budget_share, 1.5f), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::n_policy_options, 1u), ORRERY_INVALID_ARGUMENT);  // but no options
  EXPECT_EQ(with(&O::speculate, 3u), ORRERY_INVALID_ARGUMENT) << "no draft model";
  const Source draft = path_source("draft.gguf");
  EXPECT_EQ(with(&O::draft_source, static_cast<const orrery_source*>(draft)), ORRERY_INVALID_ARGUMENT) << "and no speculate";
  EXPECT_EQ(with(&O::draft_model, model.get()), ORRERY_INVALID_ARGUMENT) << "and no speculate";
  EXPECT_EQ(with(&O::speculate, 4u), ORRERY_UNSUPPORTED) << "the file has no block that guesses tokens";
  EXPECT_EQ(with(&O::speculate, 5u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::speculate_tokens, 8u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::speculate_tokens, 7u), ORRERY_OK);
  EXPECT_EQ(with(&O::reuse_prompts, 2u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::reuse_prompts, 0u), ORRERY_OK);
  EXPECT_EQ(with(&O::load_behind, 2u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::load_behind, 1u), ORRERY_OK);
}

TEST_F(Arguments, PoliciesAreOpenedByName) {
  const orrery_option sinks[] = {{"sinks", "2"}}, unknown[] = {{"sink", "2"}}, unnamed[] = {{nullptr, "2"}};
  const auto open = [&](const orrery_option* options, uint32_t n, float share, uint64_t bytes) {
    orrery_session_options o = session_options();
    o.n_context = 256;
    o.policy = "streaming";
    o.policy_options = options;
    o.n_policy_options = n;
    o.kv_budget_share = share;
    o.kv_budget_bytes = bytes;
    orrery_session* h = nullptr;
    const orrery_status s = orrery_session_open(model.get(), &o, &h, nullptr);
    if (s == ORRERY_OK) {
      orrery_stats stats;
      orrery_stats_init(&stats, sizeof stats);
      EXPECT_EQ(orrery_session_stats(h, &stats, nullptr), ORRERY_OK);
      EXPECT_GT(stats.reservoir_bytes, stats.device_kv_bytes);
    }
    orrery_session_free(h);
    return s;
  };
  EXPECT_EQ(open(nullptr, 0, 0.5f, 0), ORRERY_OK);
  EXPECT_EQ(open(sinks, 1, 0.5f, 0), ORRERY_OK);
  EXPECT_EQ(open(unknown, 1, 0.5f, 0), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(open(unnamed, 1, 0.5f, 0), ORRERY_INVALID_ARGUMENT);
  for (const float share : {0.0f, -1.0f, 1.5f, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(open(nullptr, 0, share, 0), ORRERY_INVALID_ARGUMENT) << share;
  EXPECT_EQ(open(nullptr, 0, 1.0f, 1), ORRERY_INVALID_ARGUMENT);  // less than the sinks take
}

// A KV budget without a policy is auto's, and without either there is full attention.
TEST_F(Arguments, AKvBudgetWithoutAPolicyIsAutos) {
  const auto device_bytes = [&](const char* policy, float share, uint64_t bytes) {
    orrery_session_options o = session_options();
    o.n_context = 1024;
    o.policy = policy;
    o.kv_budget_share = share;
    o.kv_budget_bytes = bytes;
    orrery_session* h = nullptr;
    EXPECT_EQ(orrery_session_open(model.get(), &o, &h, nullptr), ORRERY_OK);
    orrery_stats stats;
    orrery_stats_init(&stats, sizeof stats);
    EXPECT_EQ(orrery_session_stats(h, &stats, nullptr), ORRERY_OK);
    EXPECT_EQ(stats.reservoir_bytes > 0, share < 1 || bytes > 0);
    orrery_session_free(h);
    return stats.device_kv_bytes;
  };
  EXPECT_EQ(device_bytes(nullptr, .5f, 0), device_bytes("auto", .5f, 0));
  EXPECT_EQ(device_bytes(nullptr, 1, 1u << 20), device_bytes("auto", 1, 1u << 20));
  EXPECT_EQ(device_bytes(nullptr, 1, 0), device_bytes("full", 1, 0));
  orrery_session_options full = session_options();  // keeps everything
  full.policy = "full";
  full.kv_budget_share = .5f;
  orrery_session* h = nullptr;
  EXPECT_EQ(orrery_session_open(model.get(), &full, &h, nullptr), ORRERY_INVALID_ARGUMENT);
}

// Opening and planning agree on what the device may hold, and name the types.
TEST_F(Arguments, TheDevicesKvTypeIsTheReservoirsOrCoarser) {
  const auto open = [&](const char* policy, uint32_t type, uint32_t device, Error* error) {
    orrery_session_options o = session_options();
    o.n_context = 256;
    o.policy = policy;
    o.kv_type = type;
    o.device_kv_type = device;
    orrery_session* h = nullptr;
    const orrery_status s = orrery_session_open(model.get(), &o, &h, error);
    orrery_session_free(h);
    orrery_plan_result plan = options(&orrery_plan_result_init);
    EXPECT_EQ(orrery_plan(path_source(path), nullptr, nullptr, &o, &plan, nullptr), s) << policy << type << device;
    return s;
  };
  const struct {
    uint32_t type;
    const char* name;
  } types[] = {
      {ORRERY_KV_F32, "F32"}, {ORRERY_KV_F16, "F16"}, {ORRERY_KV_Q8_0, "Q8_0"}, {ORRERY_KV_K8V4, "K8V4"}, {ORRERY_KV_Q4_0, "Q4_0"}};
  for (size_t kept = 0; kept < std::size(types); ++kept) {
    EXPECT_EQ(orrery_kv_type_name(types[kept].type), std::string("ORRERY_KV_") + types[kept].name);
    for (size_t device = 0; device < std::size(types); ++device) {
      Error error;
      const orrery_status s = open("streaming", types[kept].type, 1 + types[device].type, &error);
      EXPECT_EQ(s, device < kept ? ORRERY_INVALID_ARGUMENT : ORRERY_OK) << types[kept].name << types[device].name;
      if (s != ORRERY_OK) {
        const std::string words = std::string("type ") + types[device].name + " is finer than " + types[kept].name;
        EXPECT_NE(std::string(error.message).find(words), std::string::npos) << error.message;
      }
    }
  }
  EXPECT_STREQ(orrery_kv_type_name(5), "unknown KV type");
  Error error;
  EXPECT_EQ(open("full", ORRERY_KV_F16, 1 + ORRERY_KV_F16, &error), ORRERY_OK);
  EXPECT_EQ(open("full", ORRERY_KV_F16, 1 + ORRERY_KV_Q8_0, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("policy full"), std::string::npos) << error.message;
  EXPECT_EQ(open(nullptr, ORRERY_KV_F16, 1 + ORRERY_KV_Q8_0, &error), ORRERY_INVALID_ARGUMENT);  // which fits, and so is full
  EXPECT_EQ(open(nullptr, ORRERY_KV_F16, 1 + ORRERY_KV_F16, &error), ORRERY_OK);
}

TEST_F(Arguments, GenerateOptionsOutOfRange) {
  const auto with = [&](auto field, auto value) {
    orrery_generate_options o = generate_options(1);
    o.*field = value;
    orrery_generation* h = nullptr;
    const int32_t token = 5;
    const orrery_status s = orrery_generate_tokens(session.get(), &token, 1, &o, &h, nullptr);
    orrery_generation_free(h);
    return s;
  };
  using O = orrery_generate_options;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf, -0.5f}) EXPECT_EQ(with(&O::temperature, bad), ORRERY_INVALID_ARGUMENT);
  for (const float bad : {nan, 0.0f, 1.5f, -1.0f}) EXPECT_EQ(with(&O::top_p, bad), ORRERY_INVALID_ARGUMENT);
  for (const float bad : {nan, 1.5f, -1.0f}) EXPECT_EQ(with(&O::min_p, bad), ORRERY_INVALID_ARGUMENT);
  for (const float bad : {nan, 0.0f, -1.0f, inf}) EXPECT_EQ(with(&O::repetition_penalty, bad), ORRERY_INVALID_ARGUMENT);
  for (const float bad : {nan, inf}) EXPECT_EQ(with(&O::frequency_penalty, bad), ORRERY_INVALID_ARGUMENT);
  for (const float bad : {nan, -inf}) EXPECT_EQ(with(&O::presence_penalty, bad), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::n_logprobs, 21u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::n_stop, uint64_t{1}), ORRERY_INVALID_ARGUMENT);  // and no array
  EXPECT_EQ(with(&O::n_logit_bias, uint64_t{1}), ORRERY_INVALID_ARGUMENT);
  orrery_generate_options o = generate_options(1);
  const char* stops[] = {"ok", nullptr};
  const char* empty[] = {""};
  o.stop = stops;
  o.n_stop = 2;
  orrery_generation* h = nullptr;
  const int32_t token = 5;
  EXPECT_EQ(orrery_generate_tokens(session.get(), &token, 1, &o, &h, nullptr), ORRERY_INVALID_ARGUMENT);
  o.stop = empty;
  o.n_stop = 1;
  EXPECT_EQ(orrery_generate_tokens(session.get(), &token, 1, &o, &h, nullptr), ORRERY_INVALID_ARGUMENT);
  for (const orrery_logit_bias bias : {orrery_logit_bias{-1, 0.0f}, {1 << 20, 0.0f}, {5, nan}, {5, inf}}) {
    o = generate_options(1);
    o.logit_bias = &bias;
    o.n_logit_bias = 1;
    EXPECT_EQ(orrery_generate_tokens(session.get(), &token, 1, &o, &h, nullptr), ORRERY_INVALID_ARGUMENT);
  }
  EXPECT_EQ(tokens_of(session).size(), 0u);  // refusals left it alone
}

TEST_F(Arguments, TokensAndFlagsOutOfRange) {
  orrery_generation* h = nullptr;
  size_t n = 0;
  for (const int32_t bad : {-1, 1 << 20, INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(orrery_generate_tokens(session.get(), &bad, 1, nullptr, &h, nullptr), ORRERY_INVALID_ARGUMENT);
    EXPECT_EQ(orrery_session_evaluate(session.get(), &bad, 1, nullptr, nullptr), ORRERY_INVALID_ARGUMENT);
    EXPECT_EQ(orrery_detokenize(vocab.get(), &bad, 1, 0, nullptr, 0, &n, nullptr), ORRERY_INVALID_ARGUMENT);
    EXPECT_EQ(orrery_token_flags(vocab.get(), bad), 0u);
  }
  EXPECT_EQ(orrery_token_flags(vocab.get(), 2), ORRERY_TOKEN_CONTROL | ORRERY_TOKEN_END_OF_GENERATION);
  EXPECT_EQ(orrery_token_flags(vocab.get(), 1), ORRERY_TOKEN_CONTROL);
  EXPECT_EQ(orrery_token_flags(vocab.get(), kByte0), 0u);
  EXPECT_EQ(orrery_tokenize(vocab.get(), "a", 1, 4, nullptr, 0, &n, nullptr), ORRERY_UNSUPPORTED);
  EXPECT_EQ(orrery_detokenize(vocab.get(), nullptr, 0, 2, nullptr, 0, &n, nullptr), ORRERY_UNSUPPORTED);
  EXPECT_EQ(orrery_generate_tokens(session.get(), nullptr, 0, nullptr, &h, nullptr), ORRERY_INVALID_ARGUMENT);
}

TEST_F(Arguments, TextMustBeUtf8) {
  Error error;
  EXPECT_EQ(orrery_session_add_message(session.get(), "user", "ab\xFF", &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(error.offset, 2u);
  EXPECT_EQ(orrery_session_add_message(session.get(), "\xC0", "", &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_session_add_message(session.get(), "", "x", &error), ORRERY_INVALID_ARGUMENT);
  for (const char* bad : {"", "[]", "{}", "{\"role\": 1}", "{\"role\": \"user\"", "nonsense", "{\"role\": \"\"}"})
    EXPECT_EQ(orrery_session_add_message_json(session.get(), bad, &error), ORRERY_INVALID_ARGUMENT) << bad;
  EXPECT_EQ(orrery_session_n_messages(session.get()), 0u);
}

}  // namespace
}  // namespace orrery::testing::contract_arguments_test

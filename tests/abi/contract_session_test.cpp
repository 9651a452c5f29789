// Sessions: their numbers, rewinding, forking, parking, saving and loading. A call that fails changes nothing.
#include <gtest/gtest.h>
#ifndef _WIN32
#include <sys/stat.h>
#include <unistd.h>
#endif

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/abi/handles.h"
#include "tests/support/random_blocks.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_session_test {
namespace {

using Bytes = std::vector<unsigned char>;

class Sessions : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);

  uint32_t n_vocab() const {
    orrery_model_info info = options(&orrery_model_info_init);
    Error error;
    check(orrery_model_get_info(model.get(), &info, &error), error, "orrery_model_get_info");
    return info.n_vocab;
  }
  std::vector<float> logits(const Session& s) const {
    std::vector<float> out(n_vocab());
    Error error;
    check(orrery_session_logits(s.get(), out.data(), out.size(), &error), error, "orrery_session_logits");
    return out;
  }
};

orrery_status load(const Session& session, const Bytes& bytes, Error* error) {
  // Exactly as long as it is, for the sanitizers.
  const std::unique_ptr<unsigned char[]> exact(new unsigned char[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), exact.get());
  return orrery_session_load_buffer(session.get(), exact.get(), bytes.size(), error);
}

orrery_stats stats_of(const Session& s) {
  orrery_stats stats = options(&orrery_stats_init);
  Error error;
  check(orrery_session_stats(s.get(), &stats, &error), error, "orrery_session_stats");
  return stats;
}

// Numbers --------------------------------------------------------------------------------------------------

TEST_F(Sessions, EvaluateGivesTheLogitsThatGenerationUses) {
  const std::vector<int32_t> prompt = byte_tokens("the quick brown fox");
  const Session a = open_session(model), b = open_session(model);
  const Answer answer = pull(generate_tokens(a, prompt, generate_options(1)));

  std::vector<float> all(prompt.size() * n_vocab());
  ASSERT_EQ(orrery_session_evaluate(b.get(), prompt.data(), prompt.size(), all.data(), nullptr), ORRERY_OK);
  EXPECT_EQ(tokens_of(b), prompt);
  const auto last = all.end() - static_cast<std::ptrdiff_t>(n_vocab());
  EXPECT_EQ(std::max_element(last, all.end()) - last, answer.tokens.at(0));
  EXPECT_EQ(logits(b), std::vector<float>(last, all.end()));

  // Asking for logits, or none, and cutting the prompt differently, changes nothing.
  const Session c = open_session(model);
  ASSERT_EQ(orrery_session_evaluate(c.get(), prompt.data(), prompt.size(), nullptr, nullptr), ORRERY_OK);
  EXPECT_EQ(logits(c), logits(b));
  std::vector<float> embedding_b(64), embedding_c(64);
  ASSERT_EQ(orrery_session_embedding(b.get(), embedding_b.data(), 64, nullptr), ORRERY_OK);
  ASSERT_EQ(orrery_session_embedding(c.get(), embedding_c.data(), 64, nullptr), ORRERY_OK);
  EXPECT_EQ(embedding_b, embedding_c);
  EXPECT_NE(embedding_b, std::vector<float>(64));
}

TEST_F(Sessions, LogitsAreThereOnlyAfterComputing) {
  const Session s = open_session(model);
  std::vector<float> out(n_vocab());
  float e[64];
  const std::vector<int32_t> prompt = byte_tokens("abc");
  EXPECT_EQ(orrery_session_logits(s.get(), out.data(), out.size(), nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_session_embedding(s.get(), e, 64, nullptr), ORRERY_INVALID_ARGUMENT);
  ASSERT_EQ(orrery_session_evaluate(s.get(), prompt.data(), prompt.size(), nullptr, nullptr), ORRERY_OK);
  EXPECT_EQ(orrery_session_logits(s.get(), out.data(), out.size() - 1, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_session_logits(s.get(), out.data(), out.size() + 1, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_session_embedding(s.get(), e, 63, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_session_logits(s.get(), out.data(), out.size(), nullptr), ORRERY_OK);
  ASSERT_EQ(orrery_session_rewind(s.get(), 2, nullptr), ORRERY_OK);
  EXPECT_EQ(orrery_session_logits(s.get(), out.data(), out.size(), nullptr), ORRERY_INVALID_ARGUMENT);
}

TEST_F(Sessions, ContextFullIsSaidBeforeAnythingHappens) {
  const Session s = open_session(model, 64);
  const std::vector<int32_t> some(40, 70), more(65, 70);
  ASSERT_EQ(orrery_session_evaluate(s.get(), some.data(), some.size(), nullptr, nullptr), ORRERY_OK);
  Error error;
  EXPECT_EQ(orrery_session_evaluate(s.get(), some.data(), some.size(), nullptr, &error), ORRERY_CONTEXT_FULL);
  EXPECT_EQ(error.bytes_requested, 80u);
  EXPECT_EQ(error.bytes_available, 64u);
  EXPECT_EQ(tokens_of(s), some);
  orrery_generation* g = nullptr;
  EXPECT_EQ(orrery_generate_tokens(s.get(), more.data(), more.size(), nullptr, &g, &error), ORRERY_CONTEXT_FULL);
  say(s, std::string(100, 'x').c_str());
  {
    const Generation answer = generate(s, generate_options(2));
    orrery_event event = options(&orrery_event_init);
    EXPECT_EQ(orrery_next(answer.get(), &event, &error), ORRERY_CONTEXT_FULL);
  }
  EXPECT_EQ(tokens_of(s), some);
  ASSERT_EQ(orrery_session_rewind_messages(s.get(), 0, nullptr), ORRERY_OK);
  EXPECT_EQ(ask(s, "hi", 2).tokens.size(), 2u);
}

// Kept prompts ---------------------------------------------------------------------------------------------

TEST_F(Sessions, ANewSessionTakesTheKvOfAnEarlierPrompt) {
  std::vector<int32_t> prompt = byte_tokens("what two sessions are asked, with more than one page of sixty-four tokens before the end");
  orrery_session_options on = session_options();
  on.n_context = 256;
  EXPECT_EQ(on.reuse_prompts, 1u);
  const Session off = open_session(model), one = open_session(model, on), two = open_session(model, on);
  const Answer want = pull(generate_tokens(off, prompt, generate_options(8)));
  EXPECT_EQ(pull(generate_tokens(one, prompt, generate_options(8))).done.reused_tokens, 0u);
  const Answer got = pull(generate_tokens(two, prompt, generate_options(8)));
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.done.reused_tokens, 64u);
  EXPECT_EQ(stats_of(two).restored_tokens, 64u);
  EXPECT_EQ(stats_of(two).reused_tokens, 64u);
  EXPECT_EQ(stats_of(two).prompt_tokens, prompt.size() - 64);
  EXPECT_EQ(stats_of(off).restored_tokens, 0u);
}

// Rewinding ------------------------------------------------------------------------------------------------

TEST_F(Sessions, RewindGoesBackToTheSameAnswers) {
  const std::vector<int32_t> prompt = byte_tokens("a long enough prompt, of more than one page of sixty-four tokens, so it is cut");
  const Session s = open_session(model);
  const Answer first = pull(generate_tokens(s, prompt, generate_options(12)));
  for (const size_t keep : {prompt.size(), prompt.size() - 1, size_t{65}, size_t{64}, size_t{63}, size_t{1}, size_t{0}}) {
    ASSERT_EQ(orrery_session_rewind(s.get(), keep, nullptr), ORRERY_OK);
    ASSERT_EQ(orrery_session_n_tokens(s.get()), keep);
    const Answer again = pull(generate_tokens(s, prompt, generate_options(12)));
    EXPECT_EQ(again.tokens, first.tokens) << keep;
    EXPECT_EQ(again.done.reused_tokens, keep);
    EXPECT_EQ(again.done.prompt_tokens, prompt.size());
  }
  EXPECT_EQ(orrery_session_rewind(s.get(), tokens_of(s).size() + 1, nullptr), ORRERY_INVALID_ARGUMENT);
}

TEST_F(Sessions, RewindMessages) {
  const Session s = open_session(model, 512);
  const Answer one = ask(s, "first"), two = ask(s, "second");
  EXPECT_EQ(orrery_session_n_messages(s.get()), 4u);
  EXPECT_EQ(orrery_session_rewind_messages(s.get(), 5, nullptr), ORRERY_INVALID_ARGUMENT);
  ASSERT_EQ(orrery_session_rewind_messages(s.get(), 2, nullptr), ORRERY_OK);
  const Answer again = ask(s, "second");
  EXPECT_EQ(again.tokens, two.tokens);
  EXPECT_GT(again.done.reused_tokens, again.done.prompt_tokens / 2);
  ASSERT_EQ(orrery_session_rewind_messages(s.get(), 0, nullptr), ORRERY_OK);
  EXPECT_EQ(ask(s, "first").tokens, one.tokens);
  EXPECT_EQ(message_of(s, 0), R"({"role": "user", "content": "first"})");
}

// Forking --------------------------------------------------------------------------------------------------

TEST_F(Sessions, ForksGoTheirOwnWays) {
  const Session parent = open_session(model, 512), twin = open_session(model, 512);
  for (const Session* s : {&parent, &twin}) ask(*s, "a beginning that both have, longer than a page of the cache is");
  Session child = fork_of(parent);
  EXPECT_EQ(tokens_of(child), tokens_of(parent));
  EXPECT_EQ(logits(child), logits(parent));
  EXPECT_GT(stats_of(child).shared_kv_bytes, 0u);
  const Answer a = ask(child, "one way");
  const Answer b = ask(parent, "another way");
  EXPECT_EQ(ask(twin, "another way").tokens, b.tokens);  // the fork did not disturb the parent
  ASSERT_EQ(orrery_session_rewind_messages(twin.get(), 2, nullptr), ORRERY_OK);
  EXPECT_EQ(ask(twin, "one way").tokens, a.tokens);
  EXPECT_EQ(orrery_session_n_messages(child.get()), 4u);
  // The fork outlives the parent.
  Session grandchild = fork_of(child);
  child.reset();
  EXPECT_EQ(ask(grandchild, "still").tokens, ask(twin, "still").tokens);
}

TEST(Parking, ForkWithoutRoomWaits) {
  const TempDir dir;
  const std::string path = dir.write("tiny.gguf", TinyModel().build());
  orrery_runtime_options o = runtime_options();
  o.n_threads = 1;
  o.max_sessions = 1;
  o.device_budget_bytes = uint64_t{64} << 20;
  orrery_runtime* h = nullptr;
  ASSERT_EQ(orrery_runtime_create(&o, &h, nullptr), ORRERY_OK);
  const Runtime runtime(h);
  const Model model = open_model(runtime, path);
  Session parent = open_session(model);
  ask(parent, "something to remember");
  Error error;
  orrery_session* none = nullptr;
  EXPECT_EQ(orrery_session_open(model.get(), nullptr, &none, &error), ORRERY_OUT_OF_DEVICE_MEMORY);
  EXPECT_EQ(error.bytes_available, 1u);

  const Session child = fork_of(parent);
  EXPECT_EQ(stats_of(child).parked, 1u);
  EXPECT_EQ(stats_of(child).device_kv_bytes, 0u);
  EXPECT_EQ(tokens_of(child), tokens_of(parent));  // reading needs no room
  say(child, "more");
  orrery_generation* g = nullptr;
  EXPECT_EQ(orrery_generate(child.get(), nullptr, &g, &error), ORRERY_OUT_OF_DEVICE_MEMORY);
  size_t n = 0;
  EXPECT_EQ(orrery_session_save_buffer(child.get(), nullptr, 0, &n, &error), ORRERY_OUT_OF_DEVICE_MEMORY);

  const Answer want = ask(parent, "more");
  parent.reset();
  const Answer got = pull(generate(child, generate_options(8)));
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.done.reused_tokens, want.done.reused_tokens);
  EXPECT_EQ(stats_of(child).parked, 0u);
  EXPECT_GT(stats_of(child).host_to_device_bytes, 0u);
}

// Saving and loading ---------------------------------------------------------------------------------------

TEST_F(Sessions, SavedAndLoadedIsTheSame) {
  for (const uint32_t type :
       std::initializer_list<uint32_t>{ORRERY_KV_F16, ORRERY_KV_F32, ORRERY_KV_Q8_0, ORRERY_KV_Q4_0, ORRERY_KV_K8V4}) {
    orrery_session_options o = session_options();
    o.n_context = 256;
    o.kv_type = type;
    const Session live = open_session(model, o);
    ask(live, "what is saved must be what is loaded, and must take more than one page");
    const Bytes bytes = save(live);
    const std::string file = dir.file("saved");
    ASSERT_EQ(orrery_session_save(live.get(), file.c_str(), nullptr), ORRERY_OK);
    EXPECT_EQ(std::filesystem::file_size(file), bytes.size());

    o.n_context = 200;  // another context size will do
    const Session a = open_session(model, o), b = open_session(model, o);
    ask(b, "it held something else");
    ASSERT_EQ(orrery_session_load(a.get(), file.c_str(), nullptr), ORRERY_OK);
    Error error;
    ASSERT_EQ(load(b, bytes, &error), ORRERY_OK) << error.message;
    for (const Session* s : {&a, &b}) {
      EXPECT_EQ(tokens_of(*s), tokens_of(live));
      EXPECT_EQ(orrery_session_n_messages(s->get()), 2u);
      EXPECT_EQ(message_of(*s, 1), message_of(live, 1));
      EXPECT_EQ(save(*s), bytes);
    }
    const Answer want = ask(live, "and on");
    EXPECT_EQ(ask(a, "and on").tokens, want.tokens);
    EXPECT_EQ(ask(b, "and on").tokens, want.tokens);
  }
}

TEST_F(Sessions, EmptySessionIsSavedToo) {
  const Session s = open_session(model), t = open_session(model);
  ask(t, "something");
  Error error;
  ASSERT_EQ(load(t, save(s), &error), ORRERY_OK) << error.message;
  EXPECT_EQ(orrery_session_n_tokens(t.get()), 0u);
  EXPECT_EQ(orrery_session_n_messages(t.get()), 0u);
  EXPECT_EQ(ask(t, "again").tokens, ask(s, "again").tokens);
}

// Refuses `bytes` with `status`, and goes on as if nothing had happened.
class Damage : public Sessions {
 protected:
  Session live = open_session(model), twin = open_session(model);
  Bytes good;
  Damage() {
    for (const Session* s : {&live, &twin}) ask(*s, "the live one");
    const Session other = open_session(model);
    ask(other, "the saved one");
    good = save(other);
  }
  void refuse(const Bytes& bytes, orrery_status status, const std::string& what) {
    Error error;
    ASSERT_EQ(load(live, bytes, &error), status) << what << ": " << error.message;
    EXPECT_NE(error.message[0], '\0');
  }
  void expect_unharmed(const char* next) {
    EXPECT_EQ(tokens_of(live), tokens_of(twin));
    EXPECT_EQ(logits(live), logits(twin));
    EXPECT_EQ(save(live), save(twin));
    EXPECT_EQ(ask(live, next).tokens, ask(twin, next).tokens);
  }
};

TEST_F(Damage, TruncatedAnywhere) {
  for (size_t n = 0; n < good.size(); n += n < 300 || n + 40 > good.size() ? 1 : 997)
    refuse(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n)), ORRERY_BAD_SESSION, std::to_string(n));
  Bytes longer = good;
  longer.push_back(0);
  refuse(longer, ORRERY_BAD_SESSION, "longer");
  expect_unharmed("after truncation");
}

TEST_F(Damage, AnyByteFlipped) {
  for (size_t i = 0; i < good.size(); i += i < 300 || i + 20 > good.size() ? 1 : 499) {
    for (const int flip : {0x01, 0x80}) {
      Bytes bad = good;
      bad[i] = static_cast<unsigned char>(bad[i] ^ flip);
      Error error;
      const orrery_status status = load(live, bad, &error);
      // A token count that became too large for the session reads as a context that is full.
      ASSERT_TRUE(status == ORRERY_BAD_SESSION || status == ORRERY_CONTEXT_FULL) << i << ": " << error.message;
    }
  }
  expect_unharmed("after flips");
}

// With load_behind: damage before the pages is found at once; in the pages, by the next call that needs them.
TEST_F(Damage, PagesThatAreReadBehind) {
  orrery_session_options o = session_options();
  o.n_context = 512, o.load_behind = 1;
  const Session session = open_session(model, o);
  const std::string file = dir.file("damaged");
  const auto load_file = [&](size_t at, Error* error) {
    Bytes bytes = good;
    bytes[at] = static_cast<unsigned char>(bytes[at] ^ 1);
    std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return orrery_session_load(session.get(), file.c_str(), error);
  };
  Error error;
  EXPECT_EQ(load_file(150, &error), ORRERY_BAD_SESSION);
  EXPECT_EQ(std::string(error.message).rfind(file, 0), 0u) << error.message;
  EXPECT_EQ(orrery_session_n_tokens(session.get()), 0u);
  ASSERT_EQ(load_file(good.size() - 1, &error), ORRERY_OK) << error.message;
  EXPECT_GT(logits(session).size(), 0u);
  const size_t n_messages = orrery_session_n_messages(session.get());
  EXPECT_GT(n_messages, 0u);
  const int32_t token = 65;
  EXPECT_EQ(orrery_session_evaluate(session.get(), &token, 1, nullptr, &error), ORRERY_BAD_SESSION);
  EXPECT_EQ(std::string(error.message).rfind(file, 0), 0u) << error.message;
  EXPECT_EQ(orrery_session_n_tokens(session.get()), 0u);
  EXPECT_EQ(orrery_session_n_messages(session.get()), n_messages);
  EXPECT_EQ(orrery_session_evaluate(session.get(), &token, 1, nullptr, &error), ORRERY_OK) << error.message;
}

// It loads the pages before the checksum is known, and drops them again.
TEST_F(Damage, AFileForASessionWithoutTokens) {
  const Session empty = open_session(model, 512), reference = open_session(model, 512);
  const std::string file = dir.file("damaged");
  const auto load_file = [&](const Bytes& bytes, Error* error) {
    std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return orrery_session_load(empty.get(), file.c_str(), error);
  };
  for (const size_t at : {size_t{150}, size_t{200}, good.size() / 2, good.size() - 17, good.size() - 1}) {  // tokens, pages, checksum
    Bytes bad = good;
    bad[at] = static_cast<unsigned char>(bad[at] ^ 1);
    Error error;
    EXPECT_EQ(load_file(bad, &error), ORRERY_BAD_SESSION) << at;
    EXPECT_NE(std::string(error.message).find("checksum"), std::string::npos) << error.message;
    EXPECT_EQ(orrery_session_n_tokens(empty.get()), 0u);
    EXPECT_EQ(orrery_session_n_messages(empty.get()), 0u);
    EXPECT_EQ(stats_of(empty).device_kv_used_bytes, 0u);
  }
  EXPECT_EQ(ask(empty, "something else").tokens, ask(reference, "something else").tokens);
  ASSERT_EQ(orrery_session_rewind(empty.get(), 0, nullptr), ORRERY_OK);
  Error error;
  EXPECT_EQ(load_file(good, &error), ORRERY_OK) << error.message;
  EXPECT_EQ(save(empty), good);
}

TEST_F(Damage, NotASession) {
  refuse(Bytes(5000, 'x'), ORRERY_BAD_SESSION, "noise");
  Error error;
  EXPECT_EQ(orrery_session_load(live.get(), path.c_str(), &error), ORRERY_BAD_SESSION);  // a model
  EXPECT_EQ(orrery_session_load(live.get(), dir.file("none").c_str(), &error), ORRERY_IO);
  EXPECT_EQ(error.native_code, ENOENT);
  EXPECT_EQ(orrery_session_load(live.get(), dir.file("").c_str(), &error), ORRERY_IO);  // a directory
  EXPECT_EQ(orrery_session_load(live.get(), "", &error), ORRERY_INVALID_ARGUMENT);
#ifdef _WIN32
  EXPECT_EQ(orrery_session_load(live.get(), "NUL", &error), ORRERY_IO);
#else
  EXPECT_EQ(orrery_session_load(live.get(), "/dev/zero", &error), ORRERY_IO);
  const std::string pipe = dir.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(orrery_session_load(live.get(), pipe.c_str(), &error), ORRERY_IO);  // nobody waits for a writer
#endif
  const std::string empty = dir.write("empty", {});
  EXPECT_EQ(orrery_session_load(live.get(), empty.c_str(), &error), ORRERY_BAD_SESSION);
  expect_unharmed("after nonsense");
}

#ifndef _WIN32  // a file system there need not have sparse files
// A sparse file of a terabyte is refused from its header, not read into memory.
TEST_F(Damage, HugeFileIsRefusedFromItsHeader) {
  for (const bool begins_well : {false, true}) {
    const std::string file = dir.file("huge");
    {
      std::ofstream out(file, std::ios::binary);
      if (begins_well) out.write(reinterpret_cast<const char*>(good.data()), static_cast<std::streamsize>(good.size()));
    }
    std::filesystem::resize_file(file, uintmax_t{1} << 40);
    Error error;
    EXPECT_EQ(orrery_session_load(live.get(), file.c_str(), &error), ORRERY_BAD_SESSION) << error.message;
  }
  expect_unharmed("after the huge one");
}
#endif

TEST_F(Damage, OthersSessions) {
  const std::string other_path = dir.write("other.gguf", [] {
    TinyModel other;
    other.seed = 2;
    return other.build();
  }());
  {
    const Model other = open_model(runtime, other_path);
    const Session s = open_session(other);
    ask(s, "of another model");
    refuse(save(s), ORRERY_BAD_SESSION, "another model");
  }
  {
    orrery_session_options o = session_options();
    o.n_context = 256;
    o.kv_type = ORRERY_KV_Q8_0;
    const Session s = open_session(model, o);
    ask(s, "of another KV type");
    refuse(save(s), ORRERY_BAD_SESSION, "another type");
  }
  {
    const Session s = open_session(model, 512);
    const std::vector<int32_t> many(400, 70);
    ASSERT_EQ(orrery_session_evaluate(s.get(), many.data(), many.size(), nullptr, nullptr), ORRERY_OK);
    refuse(save(s), ORRERY_CONTEXT_FULL, "too long");
  }
  {
    orrery_model_options o = model_options();
    o.rope_scaling = ORRERY_ROPE_LINEAR;
    o.rope_scale = 4.0f;
    orrery_model* h = nullptr;
    ASSERT_EQ(orrery_model_open(runtime.get(), path_source(path), &o, &h, nullptr), ORRERY_OK);
    const Model scaled(h);
    const Session s = open_session(scaled);
    ask(s, "of another rope");
    refuse(save(s), ORRERY_BAD_SESSION, "another rope");
  }
  expect_unharmed("after others");
}

TEST_F(Damage, SavingWhereOneCannotWrite) {
  Error error;
  for (const std::string& where : {dir.file("no/such/folder"), std::string("/proc/orrery-session"), dir.file("tiny.gguf/x")}) {
    EXPECT_EQ(orrery_session_save(live.get(), where.c_str(), &error), ORRERY_IO) << where;
    EXPECT_NE(error.native_code, 0);
    EXPECT_NE(std::string(error.message).find(where), std::string::npos) << error.message;
  }
  EXPECT_EQ(orrery_session_save(live.get(), "", &error), ORRERY_INVALID_ARGUMENT);
  // A directory stands where the file should go: refused, and nothing left beside it.
  const std::string folder = dir.file("folder");
  std::filesystem::create_directory(folder);
  EXPECT_EQ(orrery_session_save(live.get(), folder.c_str(), &error), ORRERY_IO);
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.file(""))) n += entry.path().filename() != "tiny.gguf";
  EXPECT_EQ(n, 1u);
  expect_unharmed("after saving nowhere");
}

#ifndef _WIN32
// A conversation is its owner's; who wants it otherwise says so once.
TEST_F(Sessions, SavedFilesAreTheOwnersAndKeepTheirMode) {
  const Session s = open_session(model);
  const std::string file = dir.file("saved");
  const mode_t before = umask(027);
  ASSERT_EQ(orrery_session_save(s.get(), file.c_str(), nullptr), ORRERY_OK);
  EXPECT_EQ(umask(before), 027u);
  struct stat st;
  ASSERT_EQ(stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  const std::string link = dir.file("link");
  std::filesystem::create_symlink("saved", link);
  for (const std::string& name : {file, link}) {  // again, over itself, and through a link
    ASSERT_EQ(orrery_session_save(s.get(), name.c_str(), nullptr), ORRERY_OK);
    ASSERT_EQ(lstat(file.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode, static_cast<mode_t>(S_IFREG | 0644));
    EXPECT_TRUE(std::filesystem::is_symlink(link));
  }
}
#endif

#ifndef _WIN32
// What can be written but not replaced stays what it is, /dev/null of a process of root's above all.
TEST_F(Damage, SavingToWhatIsNoFile) {
  const std::string pipe = dir.file("out");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& where : {pipe, std::string("/dev/null"), std::string("/dev/stdin")}) {
    struct stat before, after;
    const int there = stat(where.c_str(), &before);
    if (there == 0 && S_ISREG(before.st_mode)) continue;  // a standard input of the tests'
    Error error;
    EXPECT_EQ(orrery_session_save(live.get(), where.c_str(), &error), ORRERY_IO) << where;
    EXPECT_NE(std::string(error.message).find(where), std::string::npos) << error.message;
    if (there == 0) {
      ASSERT_EQ(stat(where.c_str(), &after), 0);
      EXPECT_EQ(after.st_mode, before.st_mode) << where;
      EXPECT_EQ(after.st_ino, before.st_ino) << where;
    }
  }
  expect_unharmed("after saving to what is no file");
}
#endif

}  // namespace
}  // namespace orrery::testing::contract_session_test

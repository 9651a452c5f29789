// Models, vocabularies and plans opened from a descriptor or from memory. And the calls that orrery_session_cancel() stops.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_open_test {
namespace {

class Opening : public ::testing::Test {
 public:
  TempDir dir;
  std::vector<std::byte> file = TinyModel().build();
  std::string path = dir.write("tiny.gguf", file);
  Runtime runtime = make_runtime();

  std::vector<int32_t> answer(const Model& model) { return ask(open_session(model), "hello", 6).tokens; }
  Model from_memory(const void* bytes, size_t n, uint32_t load, orrery_status want = ORRERY_OK) {
    orrery_model_options o = model_options();
    o.load = load;
    orrery_model* h = nullptr;
    Error error;
    EXPECT_EQ(orrery_model_open(runtime.get(), memory_source(bytes, n), &o, &h, &error), want) << error.message;
    EXPECT_EQ(h != nullptr, want == ORRERY_OK);
    return Model(h);
  }
};

TEST_F(Opening, FromADescriptorThatIsClosedBehindTheCall) {
  const std::vector<int32_t> want = answer(open_model(runtime, path));
  for (const uint32_t load : {uint32_t{ORRERY_LOAD_MAP}, uint32_t{ORRERY_LOAD_READ}}) {
    const int fd = ::open(path.c_str(), O_RDONLY);
    ASSERT_EQ(::lseek(fd, 7, SEEK_SET), 7);
    orrery_model_options o = model_options();
    o.load = static_cast<uint32_t>(load);
    orrery_model* h = nullptr;
    Error error;
    ASSERT_EQ(orrery_model_open(runtime.get(), fd_source(fd), &o, &h, &error), ORRERY_OK) << error.message;
    const Model model(h);
    EXPECT_EQ(::lseek(fd, 0, SEEK_CUR), 7) << "its position moved";
    ::close(fd);
    EXPECT_EQ(answer(model), want);
  }
}

#ifndef _WIN32
TEST_F(Opening, DescriptorsOfNothingAreRefused) {
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  const int folder = ::open("/", O_RDONLY);
  const int empty = ::open(dir.write("empty", {}).c_str(), O_RDONLY);
  const std::pair<int, orrery_status> bad[] = {
      {-1, ORRERY_INVALID_ARGUMENT}, {100000, ORRERY_IO}, {pipes[0], ORRERY_IO}, {folder, ORRERY_IO}, {empty, ORRERY_BAD_MODEL}};
  for (const auto& [fd, want] : bad) {
    orrery_model* h = nullptr;
    Error error;
    EXPECT_EQ(orrery_model_open(runtime.get(), fd_source(fd), nullptr, &h, &error), want) << fd << ": " << error.message;
    EXPECT_EQ(h, nullptr);
  }
  for (const int fd : {pipes[0], pipes[1], folder, empty}) ::close(fd);
}
#endif

TEST_F(Opening, FromMemoryThatStays) {
  const std::vector<int32_t> want = answer(open_model(runtime, path));
  Session session;
  {
    const Model model = from_memory(file.data(), file.size(), ORRERY_LOAD_MAP);
    EXPECT_EQ(answer(model), want);
    session = open_session(model);
  }
  EXPECT_EQ(ask(session, "hello", 6).tokens, want) << "the session keeps its model, and the model its memory";
}

TEST_F(Opening, FromMemoryThatIsCopied) {
  const std::vector<int32_t> want = answer(open_model(runtime, path));
  std::vector<std::byte> copy = file;
  const Model model = from_memory(copy.data(), copy.size(), ORRERY_LOAD_READ);
  std::fill(copy.begin(), copy.end(), std::byte{0xAA});
  copy = {};
  EXPECT_EQ(answer(model), want);
}

TEST_F(Opening, MemoryThatIsNoModelIsRefused) {
  std::vector<std::byte> longer(file.size() + 8);
  std::memcpy(longer.data() + 1, file.data(), file.size());
  from_memory(longer.data() + 1, file.size(), ORRERY_LOAD_MAP, ORRERY_INVALID_ARGUMENT);  // begins at an odd address
  for (const uint32_t load : {uint32_t{ORRERY_LOAD_MAP}, uint32_t{ORRERY_LOAD_READ}}) {
    from_memory(file.data(), 0, load, ORRERY_BAD_MODEL);
    from_memory(file.data(), 100, load, ORRERY_BAD_MODEL);
    from_memory(file.data(), file.size() - 1, load, ORRERY_BAD_MODEL);
  }
}

// Vocabularies and plans ----------------------------------------------------------------------------------------------

std::vector<int32_t> tokens_of_text(const orrery_vocab* vocab) {
  std::vector<int32_t> tokens(100);
  size_t n = 0;
  EXPECT_EQ(orrery_tokenize(vocab, "some words to cut", 17, 0, tokens.data(), tokens.size(), &n, nullptr), ORRERY_OK);
  tokens.resize(n);
  return tokens;
}

TEST_F(Opening, AVocabularyFromADescriptorAndFromMemory) {
  orrery_vocab* h = nullptr;
  ASSERT_EQ(orrery_vocab_open(path_source(path), &h, nullptr), ORRERY_OK);
  const std::vector<int32_t> want = tokens_of_text(Vocab(h).get());
  ASSERT_FALSE(want.empty());
  const int fd = ::open(path.c_str(), O_RDONLY);
  ASSERT_EQ(::lseek(fd, 7, SEEK_SET), 7);
  ASSERT_EQ(orrery_vocab_open(fd_source(fd), &h, nullptr), ORRERY_OK);
  const Vocab by_fd(h);
  EXPECT_EQ(::lseek(fd, 0, SEEK_CUR), 7) << "its position moved";
  ::close(fd);
  EXPECT_EQ(tokens_of_text(by_fd.get()), want);
  std::vector<std::byte> copy = file;
  ASSERT_EQ(orrery_vocab_open(memory_source(copy.data(), copy.size()), &h, nullptr), ORRERY_OK);
  const Vocab inside(h);
  std::fill(copy.begin(), copy.end(), std::byte{0xAA});  // nothing of it is used after the call
  EXPECT_EQ(tokens_of_text(inside.get()), want);
}

TEST_F(Opening, APlanFromADescriptorAndFromMemory) {
  const auto empty = [] { return options(&orrery_plan_result_init); };
  orrery_plan_result want = empty(), by_fd = empty(), inside = empty();
  orrery_session_options o = session_options();
  o.n_context = 512;
  ASSERT_EQ(orrery_plan(path_source(path), nullptr, nullptr, &o, &want, nullptr), ORRERY_OK);
  EXPECT_GT(want.device_bytes, 0u);
  const int fd = ::open(path.c_str(), O_RDONLY);
  EXPECT_EQ(orrery_plan(fd_source(fd), nullptr, nullptr, &o, &by_fd, nullptr), ORRERY_OK);
  EXPECT_EQ(orrery_plan(memory_source(file.data(), file.size()), nullptr, nullptr, &o, &inside, nullptr), ORRERY_OK);
  // The budget by default depends on what the machine has free at that moment.
  for (orrery_plan_result* plan : {&want, &by_fd, &inside}) plan->budget_bytes = plan->largest_context = 0;
  EXPECT_EQ(std::memcmp(&by_fd, &want, sizeof want), 0);
  EXPECT_EQ(std::memcmp(&inside, &want, sizeof want), 0);
  EXPECT_GE(::lseek(fd, 0, SEEK_CUR), 0) << "the descriptor stays the caller's";
  ::close(fd);
}

TEST_F(Opening, NoVocabularyAndNoPlanFromWhatIsNoModel) {
  const int folder = ::open("/", O_RDONLY), nothing = ::open(dir.write("empty", {}).c_str(), O_RDONLY);
  const std::pair<int, orrery_status> bad[] = {{-1, ORRERY_INVALID_ARGUMENT},
                                               {100000, ORRERY_IO},
                                               {folder, folder < 0 ? ORRERY_INVALID_ARGUMENT : ORRERY_IO},
                                               {nothing, ORRERY_BAD_MODEL}};
  orrery_vocab* h = nullptr;
  orrery_plan_result plan = options(&orrery_plan_result_init);
  for (const auto& [fd, want] : bad) {
    Error error;
    EXPECT_EQ(orrery_vocab_open(fd_source(fd), &h, &error), want) << fd << ": " << error.message;
    EXPECT_EQ(h, nullptr);
    EXPECT_EQ(orrery_plan(fd_source(fd), nullptr, nullptr, nullptr, &plan, &error), want) << fd << ": " << error.message;
  }
  std::vector<std::byte> longer(file.size() + 8);
  std::memcpy(longer.data() + 1, file.data(), file.size());
  const struct {
    const std::byte* bytes;
    size_t n;
    orrery_status want;
  } pieces[] = {{nullptr, 8, ORRERY_INVALID_ARGUMENT},
                {longer.data() + 1, file.size(), ORRERY_INVALID_ARGUMENT},
                {file.data(), 0, ORRERY_BAD_MODEL},
                {file.data(), 100, ORRERY_BAD_MODEL}};
  for (const auto& piece : pieces) {
    Error error;
    EXPECT_EQ(orrery_vocab_open(memory_source(piece.bytes, piece.n), &h, &error), piece.want) << error.message;
    EXPECT_EQ(h, nullptr);
    EXPECT_EQ(orrery_plan(memory_source(piece.bytes, piece.n), nullptr, nullptr, nullptr, &plan, &error), piece.want) << error.message;
  }
  EXPECT_EQ(orrery_vocab_open(fd_source(folder), nullptr, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_vocab_open(memory_source(file.data(), file.size()), nullptr, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_plan(memory_source(file.data(), file.size()), nullptr, nullptr, nullptr, nullptr, nullptr), ORRERY_INVALID_ARGUMENT);
  for (const int fd : {folder, nothing}) ::close(fd);
}

// Parts of files, and sources that contradict themselves ----------------------------------------------------------------

class InAnArchive : public Opening {
 protected:
  // The model from byte `offset` on, with other bytes on both sides.
  int archive(size_t offset) {
    std::vector<std::byte> all(offset, std::byte{0x55});
    all.insert(all.end(), file.begin(), file.end());
    all.resize(all.size() + 100, std::byte{0x77});
    return ::open(dir.write("archive", all).c_str(), O_RDONLY);
  }
};

TEST_F(InAnArchive, AModelThatBeginsAnywhereInAnOpenFile) {
  const std::vector<int32_t> want = answer(open_model(runtime, path));
  for (const size_t offset : std::initializer_list<size_t>{0, 8, 4096, 4104, 65536 + 24, 5, 4097}) {
    const int fd = archive(offset);
    ASSERT_GE(fd, 0);
    for (const uint32_t load : {uint32_t{ORRERY_LOAD_MAP}, uint32_t{ORRERY_LOAD_READ}}) {
      for (const uint64_t bytes : {uint64_t{0}, uint64_t{file.size()}}) {
        orrery_model_options o = model_options();
        o.load = load;
        orrery_model* h = nullptr;
        Error error;
        orrery_plan_result plan = options(&orrery_plan_result_init);
        const orrery_status planned = orrery_plan(fd_source(fd, offset, bytes), nullptr, &o, nullptr, &plan, nullptr);
        const orrery_status opened = orrery_model_open(runtime.get(), fd_source(fd, offset, bytes), &o, &h, &error);
        const Model model(h);
        EXPECT_EQ(planned, opened) << offset;
        if (load == ORRERY_LOAD_MAP && offset % 8 != 0) {
          EXPECT_EQ(opened, ORRERY_INVALID_ARGUMENT) << offset;
          EXPECT_STREQ(error.option, "fd_offset");
          continue;
        }
        ASSERT_EQ(opened, ORRERY_OK) << offset << ": " << error.message;
        EXPECT_EQ(answer(model), want) << offset << ", load mode " << load;
        orrery_model_info info = options(&orrery_model_info_init);
        ASSERT_EQ(orrery_model_get_info(model.get(), &info, nullptr), ORRERY_OK);
        EXPECT_TRUE(bytes == 0 || info.file_bytes == file.size());
      }
    }
    orrery_vocab* vocab = nullptr;
    EXPECT_EQ(orrery_vocab_open(fd_source(fd, offset, 0), &vocab, nullptr), ORRERY_OK) << "a vocabulary is read, and begins anywhere";
    orrery_vocab_free(vocab);
    size_t n = 0;
    EXPECT_EQ(orrery_inspect(fd_source(fd, offset), nullptr, 0, &n, nullptr), ORRERY_OK);
    EXPECT_EQ(orrery_plan_regions(fd_source(fd, offset / 8 * 8 == offset ? offset : 0), nullptr, nullptr, nullptr, nullptr, 0, &n, nullptr),
              offset % 8 == 0 ? ORRERY_OK : ORRERY_BAD_MODEL);
    ::close(fd);
  }
}

TEST_F(InAnArchive, RangesThatTheFileHasNot) {
  const int fd = archive(4096);
  const uint64_t all = 4096 + file.size() + 100;
  const struct {
    uint64_t offset, bytes;
    orrery_status want;
    const char* option;
  } ranges[] = {{all + 1, 0, ORRERY_INVALID_ARGUMENT, "fd_offset"},
                {UINT64_MAX - 7, 0, ORRERY_INVALID_ARGUMENT, "fd_offset"},
                {4096, file.size() + 101, ORRERY_INVALID_ARGUMENT, "fd_bytes"},
                {4096, UINT64_MAX, ORRERY_INVALID_ARGUMENT, "fd_bytes"},
                {4096, file.size() - 1, ORRERY_BAD_MODEL, ""},
                {4096, 16, ORRERY_BAD_MODEL, ""},
                {all, 0, ORRERY_BAD_MODEL, ""},
                {4088, 0, ORRERY_BAD_MODEL, ""}};
  for (const auto& range : ranges) {
    for (const uint32_t load : {uint32_t{ORRERY_LOAD_MAP}, uint32_t{ORRERY_LOAD_READ}}) {
      orrery_model_options o = model_options();
      o.load = load;
      Error error;
      orrery_model* h = nullptr;
      if (range.offset % 8 != 0 && load == ORRERY_LOAD_MAP) continue;
      EXPECT_EQ(orrery_model_open(runtime.get(), fd_source(fd, range.offset, range.bytes), &o, &h, &error), range.want)
          << range.offset << "+" << range.bytes << ": " << error.message;
      EXPECT_EQ(h, nullptr);
      EXPECT_STREQ(error.option, range.option) << error.message;
    }
  }
  ::close(fd);
}

TEST_F(Opening, ASourceThatContradictsItself) {
  const auto refused = [&](const char* option, orrery_status want, void (*change)(orrery_source*, Opening*)) {
    Source source = path_source(path);
    change(source.operator->(), this);
    Error error;
    orrery_vocab* h = nullptr;
    EXPECT_EQ(orrery_vocab_open(source, &h, &error), want) << option;
    EXPECT_STREQ(error.option, option) << error.message;
    EXPECT_NE(std::strstr(error.message, option), nullptr) << error.message;
    EXPECT_EQ(h, nullptr);
  };
  const orrery_status bad = ORRERY_INVALID_ARGUMENT;
  refused("kind", bad, [](orrery_source* s, Opening*) { s->kind = 3; });
  refused("path", bad, [](orrery_source* s, Opening*) { s->path = nullptr; });
  refused("memory", bad, [](orrery_source* s, Opening* t) { s->memory = t->file.data(); });
  refused("memory_bytes", bad, [](orrery_source* s, Opening*) { s->memory_bytes = 1; });
  refused("fd_offset", bad, [](orrery_source* s, Opening*) { s->fd_offset = 8; });
  refused("fd_bytes", bad, [](orrery_source* s, Opening*) { s->fd_bytes = 8; });
  refused("path", bad, [](orrery_source* s, Opening*) { s->kind = ORRERY_SOURCE_FD, s->fd = 0; });
  refused("fd", bad, [](orrery_source* s, Opening*) { s->kind = ORRERY_SOURCE_FD, s->path = nullptr; });
  refused("memory", bad, [](orrery_source* s, Opening*) { s->kind = ORRERY_SOURCE_MEMORY, s->path = nullptr, s->memory_bytes = 8; });
  refused("reserved", ORRERY_UNSUPPORTED, [](orrery_source* s, Opening*) { s->reserved = 1; });
  // A path that names no descriptor may have any number there, as zeroed memory has.
  Source zeroed = path_source(path);
  zeroed->fd = 0;
  orrery_vocab* h = nullptr;
  EXPECT_EQ(orrery_vocab_open(zeroed, &h, nullptr), ORRERY_OK);
  orrery_vocab_free(h);
}

// Cancelling a session ------------------------------------------------------------------------------------------------

class CancellingASession : public Opening {
 protected:
  Model model = open_model(runtime, path);
};

TEST_F(CancellingASession, StopsTheGenerationUnderWayAndNoLaterOne) {
  const Session session = open_session(model);
  orrery_session_cancel(session.get());  // nothing runs
  const Answer whole = ask(session, "hello", 6);
  EXPECT_NE(whole.done.finish_reason, ORRERY_FINISH_CANCELLED);
  orrery_session_cancel(session.get());  // it has ended

  say(session, "and on");
  const Generation generation = generate(session, generate_options(50));
  orrery_event e = options(&orrery_event_init);
  ASSERT_EQ(orrery_next(generation.get(), &e, nullptr), ORRERY_OK);
  orrery_session_cancel(session.get());
  EXPECT_EQ(pull(generation).done.finish_reason, ORRERY_FINISH_CANCELLED);
  EXPECT_NE(ask(session, "again", 4).done.finish_reason, ORRERY_FINISH_CANCELLED);
}

TEST_F(CancellingASession, StopsAGenerationThatHasNotStarted) {
  const Session session = open_session(model);
  say(session, "hello");
  const Generation generation = generate(session, generate_options(50));
  orrery_session_cancel(session.get());
  EXPECT_EQ(pull(generation).done.finish_reason, ORRERY_FINISH_CANCELLED);
}

// The race that a canceller with orrery_cancel() would lose: generations end and go while it cancels.
TEST_F(CancellingASession, RacesWithFreeingOnAnotherThread) {
  const Session session = open_session(model);
  std::atomic<bool> stop{false};
  std::thread canceller([&] {
    while (!stop) orrery_session_cancel(session.get());
  });
  for (int i = 0; i < 300; ++i) {
    say(session, "hello");
    Generation generation = generate(session, generate_options(3));
    orrery_event e = options(&orrery_event_init);
    for (int k = 0; k < i % 5; ++k) ASSERT_EQ(orrery_next(generation.get(), &e, nullptr), ORRERY_OK);
    generation.reset();
    ASSERT_EQ(orrery_session_rewind_messages(session.get(), 0, nullptr), ORRERY_OK);
  }
  stop = true;
  canceller.join();
  EXPECT_NE(ask(session, "hello", 3).done.finish_reason, ORRERY_FINISH_CANCELLED);
}

// Calls `cancel` again and again until `call` returns.
orrery_status while_cancelled(const Session& session, const std::function<orrery_status()>& call) {
  std::atomic<bool> done{false}, begun{false};
  std::thread canceller([&] {
    for (; !done; begun = true) orrery_session_cancel(session.get()), std::this_thread::yield();
  });
  while (!begun) std::this_thread::yield();
  const orrery_status status = call();
  done = true;
  canceller.join();
  return status;
}

TEST_F(CancellingASession, StopsLongCalls) {
  const Session session = open_session(model, 1024);
  const std::vector<int32_t> tokens(900, 5);
  Error error;
  // A call may be over before the other thread has its turn: it is tried again.
  orrery_status evaluated = ORRERY_OK;
  for (int i = 0; i < 2000 && evaluated == ORRERY_OK; ++i) {
    ASSERT_EQ(orrery_session_rewind(session.get(), 0, &error), ORRERY_OK);
    evaluated =
        while_cancelled(session, [&] { return orrery_session_evaluate(session.get(), tokens.data(), tokens.size(), nullptr, &error); });
  }
  EXPECT_EQ(evaluated, ORRERY_CANCELLED) << error.message;
  EXPECT_LT(orrery_session_n_tokens(session.get()), tokens.size());
  ASSERT_EQ(orrery_session_rewind(session.get(), 0, &error), ORRERY_OK);
  ASSERT_EQ(orrery_session_evaluate(session.get(), tokens.data(), tokens.size(), nullptr, &error), ORRERY_OK) << error.message;

  const std::vector<unsigned char> saved = save(session);
  const std::string file_path = dir.file("saved");
  const Session other = open_session(model, 1024);
  // Shorter calls may always be over first; tests/unit/engine/cancel_test.cpp stops them for certain. What they say holds anyway.
  const std::pair<const char*, std::function<orrery_status()>> calls[] = {
      {"save", [&] { return orrery_session_save(session.get(), file_path.c_str(), &error); }},
      {"save_buffer",
       [&] {
         std::vector<unsigned char> to(saved.size());
         size_t n = 0;
         return orrery_session_save_buffer(session.get(), to.data(), to.size(), &n, &error);
       }},
      {"load_buffer", [&] { return orrery_session_load_buffer(session.get(), saved.data(), saved.size(), &error); }}};
  for (const auto& [name, call] : calls) {
    for (int i = 0; i < 50; ++i) {
      const orrery_status status = while_cancelled(session, call);
      ASSERT_TRUE(status == ORRERY_CANCELLED || status == ORRERY_OK) << name << ": " << error.message;
    }
    EXPECT_EQ(tokens_of(session), tokens) << name;
  }
  EXPECT_EQ(save(session), saved);
}

}  // namespace
}  // namespace orrery::testing::contract_open_test

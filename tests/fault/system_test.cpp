// Files that cannot be read or written, and threads that cannot be started: a status with the system's error
// number, and everything as it was before.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "capi/handles.h"
#include "runtime/engine/session/session_file.h"
#include "tests/abi/handles.h"
#include "tests/fault/faults.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

class System : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();

  size_t n_files() const {
    size_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir.file(""))) n += entry.exists();
    return n;
  }
};

// Fails each read of `operation` in turn; `harmless` may say OK in spite of it.
template <class F>
void fail_each_read(const char* what, int error_number, orrery_status expected, const F& operation) {
  for (int64_t n = 0;; ++n) {
    SCOPED_TRACE(std::string(what) + ", read " + std::to_string(n));
    const int64_t before = live_blocks();
    Error error;
    arm(Fault::read, n, false, error_number);
    const orrery_status status = operation(&error);
    if (!disarm(Fault::read)) {
      EXPECT_EQ(status, ORRERY_OK) << error.message;
      EXPECT_GT(n, 0) << "nothing was read";
      return;
    }
    EXPECT_EQ(status, expected) << error.message;
    EXPECT_EQ(error.native_code, error_number);
    EXPECT_NE(std::string(error.message).find('/'), std::string::npos) << "names no file: " << error.message;
    EXPECT_EQ(live_blocks(), before);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_F(System, ReadErrorsWhileOpening) {
  orrery_model_options o = model_options();
  for (const uint32_t load : std::initializer_list<uint32_t>{ORRERY_LOAD_MAP, ORRERY_LOAD_READ}) {
    o.load = load;
    fail_each_read("open", EIO, ORRERY_IO, [&](orrery_error* e) {
      orrery_model* h = nullptr;
      const orrery_status s = orrery_model_open(runtime.get(), path_source(path), &o, &h, e);
      orrery_model_free(h);
      return s;
    });
  }
}

TEST_F(System, SessionReadErrors) {
  const Model model = open_model(runtime, path);
  const Session live = open_session(model), twin = open_session(model);
  ask(live, "hello");
  ask(twin, "hello");
  const std::string file = dir.file("saved");
  ASSERT_EQ(orrery_session_save(live.get(), file.c_str(), nullptr), ORRERY_OK);
  fail_each_read("load", EIO, ORRERY_IO, [&](orrery_error* e) { return orrery_session_load(live.get(), file.c_str(), e); });
  EXPECT_EQ(ask(live, "more").tokens, ask(twin, "more").tokens);
}

// A system may give less than was asked for: nothing comes of it.
TEST_F(System, ShortReadsAreContinued) {
  const Model mapped = open_model(runtime, path);
  const Session a = open_session(mapped);
  const std::vector<int32_t> want = ask(a, "hello").tokens;
  const std::string file = dir.file("saved");
  ASSERT_EQ(orrery_session_save(a.get(), file.c_str(), nullptr), ORRERY_OK);
  limit_reads(1000);
  orrery_model_options o = model_options();
  o.load = ORRERY_LOAD_READ;
  orrery_model* h = nullptr;
  ASSERT_EQ(orrery_model_open(runtime.get(), path_source(path), &o, &h, nullptr), ORRERY_OK);
  const Model read(h);
  const Session b = open_session(read), c = open_session(read);
  EXPECT_EQ(ask(b, "hello").tokens, want);
  Error error;
  ASSERT_EQ(orrery_session_load(c.get(), file.c_str(), &error), ORRERY_OK) << error.message;
  limit_reads(0);
  EXPECT_EQ(ask(c, "more").tokens, ask(a, "more").tokens);
}

// The file ends while it is read, though the system said that it was longer.
TEST_F(System, FileThatEndsEarly) {
  orrery_model_options o = model_options();
  o.load = ORRERY_LOAD_READ;
  orrery_model* h = nullptr;
  Error error;
  arm(Fault::read, 1, true, 0);  // the file opens; its first read finds the end
  EXPECT_EQ(orrery_model_open(runtime.get(), path_source(path), &o, &h, &error), ORRERY_IO);
  EXPECT_TRUE(disarm(Fault::read));
  EXPECT_NE(std::string(error.message).find("ends at byte"), std::string::npos) << error.message;
}

TEST_F(System, TruncatedBehindReadIsHarmless) {
  orrery_model_options o = model_options();
  o.load = ORRERY_LOAD_READ;
  orrery_model* h = nullptr;
  ASSERT_EQ(orrery_model_open(runtime.get(), path_source(path), &o, &h, nullptr), ORRERY_OK);
  const Model model(h);
  const Session before = open_session(model);
  const std::vector<int32_t> want = ask(before, "hello").tokens;
  std::filesystem::resize_file(path, 100);
  const Session after = open_session(model);
  EXPECT_EQ(ask(after, "hello").tokens, want);
  std::filesystem::remove(path);
  EXPECT_EQ(ask(after, "more").tokens, ask(before, "more").tokens);
  const Vocab vocab(orrery_model_vocab(model.get()));
  size_t n = 0;
  EXPECT_EQ(orrery_tokenize(vocab.get(), "text", 4, 0, nullptr, 0, &n, nullptr), ORRERY_OK);
}

// Every step of saving may fail: creating, each write, flushing, renaming.
TEST_F(System, SaveIsAllOrNothing) {
  const Model model = open_model(runtime, path);
  const Session live = open_session(model), twin = open_session(model);
  const std::string file = dir.file("saved");
  ask(live, "the old one");
  ask(twin, "the old one");
  ASSERT_EQ(orrery_session_save(live.get(), file.c_str(), nullptr), ORRERY_OK);
  const std::string old = content(file);
  ask(live, "the new one");
  ask(twin, "the new one");
  int64_t n = 0;
  for (bool refused = true; refused; ++n) {
    SCOPED_TRACE(n);
    Error error;
    arm(Fault::write, n, false, ENOSPC);
    const orrery_status status = orrery_session_save(live.get(), file.c_str(), &error);
    refused = disarm(Fault::write);
    ASSERT_EQ(status, refused ? ORRERY_IO : ORRERY_OK) << error.message;
    EXPECT_EQ(n_files(), 2u) << "a temporary stayed";
    if (!refused) break;
    EXPECT_EQ(error.native_code, ENOSPC);
    EXPECT_NE(std::string(error.message).find(file), std::string::npos) << error.message;
    ASSERT_EQ(content(file), old);
  }
  EXPECT_GT(n, 6);
  EXPECT_NE(content(file), old);
  EXPECT_EQ(ask(live, "and on").tokens, ask(twin, "and on").tokens);
  const Session loaded = open_session(model);
  ASSERT_EQ(orrery_session_load(loaded.get(), file.c_str(), nullptr), ORRERY_OK);
}

// Not every file system flushes directories: the file is in place, whole, and the caller is not told of a failure.
TEST_F(System, DirectoryThatCannotBeFlushed) {
  const Model model = open_model(runtime, path);
  const Session s = open_session(model), loaded = open_session(model);
  ask(s, "hello");
  const std::string file = dir.file("saved");
  Error error;
  arm(Fault::directory, 0, true, EINVAL);
  EXPECT_EQ(orrery_session_save(s.get(), file.c_str(), &error), ORRERY_OK) << error.message;
  EXPECT_TRUE(disarm(Fault::directory)) << "the directory was not flushed";
  EXPECT_EQ(n_files(), 2u);
  EXPECT_EQ(orrery_session_load(loaded.get(), file.c_str(), &error), ORRERY_OK) << error.message;
}

// A file that is too long to be kept in memory is read twice. What fails in the first reading changes nothing; what fails
// in the second one costs the session its tokens, and leaves it usable, with its conversation.
TEST_F(System, LongSessionFilesAreReadTwice) {
  const Model model = open_model(runtime, path);
  const Session saved = open_session(model, 512), live = open_session(model, 512), twin = open_session(model, 512);
  ask(saved, std::string(300, 's').c_str());
  ask(live, "hello");
  ask(twin, "hello");
  const std::string file = dir.file("saved");
  ASSERT_EQ(orrery_session_save(saved.get(), file.c_str(), nullptr), ORRERY_OK);
  const auto load = [&] { return engine::SessionFile::load_from_file(live->session.get(), file, 0); };
  int n_kept = 0, n_lost = 0;
  for (int64_t n = 0;; ++n) {
    SCOPED_TRACE(n);
    const size_t tokens = orrery_session_n_tokens(live.get());
    const int64_t before = live_blocks();
    {
      arm(Fault::read, n, false, EIO);
      const Status status = load();
      if (!disarm(Fault::read)) {
        EXPECT_TRUE(status.ok()) << status.message();
        break;
      }
      ASSERT_EQ(status.code(), Code::io);
      EXPECT_EQ(status.detail().native_code, EIO);
      EXPECT_NE(std::string(status.message()).find(file), std::string::npos);
      EXPECT_EQ(orrery_session_n_messages(live.get()), 2u);
      if (orrery_session_n_tokens(live.get()) == tokens) {
        ++n_kept;
      } else {
        ++n_lost;
        EXPECT_EQ(orrery_session_n_tokens(live.get()), 0u);
        EXPECT_NE(std::string(status.message()).find("lost its tokens"), std::string::npos) << status.message();
        ask(live, "goes on");
        orrery_session_rewind_messages(live.get(), 2, nullptr);
      }
    }
    EXPECT_LE(live_blocks(), before + 8) << "something leaked";
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GE(n_kept, 4);
  EXPECT_GE(n_lost, 1);
  EXPECT_EQ(tokens_of(live), tokens_of(saved));
  EXPECT_EQ(save(live), save(saved));
  EXPECT_EQ(ask(live, "and on").tokens, ask(saved, "and on").tokens);
}

// "VmHWM" or "VmRSS" of this process, in bytes.
uint64_t memory_figure(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.compare(0, name.size() + 1, name + ":") == 0) return std::stoull(line.substr(name.size() + 1)) << 10;
  return 0;
}

TEST_F(System, LongSessionFilesTakeLittleMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  const Model model = open_model(runtime, path);
  orrery_session_options o = session_options();
  o.n_context = 65536;
  o.kv_type = ORRERY_KV_F32;
  const Session s = open_session(model, o);
  const std::vector<int32_t> tokens(65000, 70);
  const Status made = s->session->sequence().assume_prompt(
      tokens, [](uint32_t page, Span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(page)); });
  ASSERT_TRUE(made.ok()) << made.message();
  const std::string file = dir.file("saved");
  ASSERT_EQ(orrery_session_save(s.get(), file.c_str(), nullptr), ORRERY_OK);
  const uint64_t size = std::filesystem::file_size(file);
  ASSERT_GT(size, uint64_t{30} << 20);
  const auto grown = [&](uint64_t whole_bytes) -> uint64_t {
    std::ofstream("/proc/self/clear_refs") << "5";  // the highest mark begins again
    const uint64_t before = memory_figure("VmRSS");
    const Status status = engine::SessionFile::load_from_file(s->session.get(), file, whole_bytes);
    EXPECT_TRUE(status.ok()) << status.message();
    const uint64_t after = memory_figure("VmHWM");
    return after > before ? after - before : 0;
  };
  EXPECT_GE(grown(size), size - (uint64_t{2} << 20)) << "the figure does not show what is taken";
  EXPECT_LT(grown(size - 1), uint64_t{10} << 20);
  EXPECT_EQ(orrery_session_n_tokens(s.get()), tokens.size());
}

// The file that is read the second time is another one.
TEST_F(System, ASessionFileThatChangesWhileItIsRead) {
  const Model model = open_model(runtime, path);
  const Session saved = open_session(model, 512), live = open_session(model, 512);
  ask(saved, std::string(300, 's').c_str());
  ask(live, "hello");
  const std::string file = dir.file("saved");
  ASSERT_EQ(orrery_session_save(saved.get(), file.c_str(), nullptr), ORRERY_OK);
  // A damaged file is refused by the first reading already.
  std::string bytes = content(file);
  bytes[bytes.size() - 1000] = static_cast<char>(bytes[bytes.size() - 1000] ^ 1);
  const std::string damaged = dir.file("damaged");
  std::ofstream(damaged, std::ios::binary) << bytes;
  const size_t tokens = orrery_session_n_tokens(live.get());
  const Status status = engine::SessionFile::load_from_file(live->session.get(), damaged, 0);
  EXPECT_EQ(status.code(), Code::bad_session);
  EXPECT_EQ(orrery_session_n_tokens(live.get()), tokens);
  // Behind the first reading's pages (header, head, checksum, then the pages), the file changes.
  on_read(4, [&] { std::ofstream(file, std::ios::binary) << bytes; });
  const Status changed = engine::SessionFile::load_from_file(live->session.get(), file, 0);
  on_read(-1, nullptr);
  EXPECT_EQ(changed.code(), Code::bad_session) << changed.message();
  EXPECT_EQ(orrery_session_n_tokens(live.get()), 0u);
  EXPECT_EQ(orrery_session_n_messages(live.get()), 2u);
  EXPECT_FALSE(ask(live, "goes on").tokens.empty());
}

// The system's own refusal, not ours: neither a full disk nor its signal, which nobody here ignores, ends the process.
TEST_F(System, FileSizeLimit) {
  const Model model = open_model(runtime, path);
  const Session s = open_session(model);
  ask(s, "hello");
  const std::string file = dir.file("saved");
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small = {4096, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Error error;
  const orrery_status status = orrery_session_save(s.get(), file.c_str(), &error);
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(status, ORRERY_IO) << error.message;
  EXPECT_EQ(error.native_code, EFBIG);
  EXPECT_EQ(n_files(), 1u);
}

#if !defined(__SANITIZE_THREAD__)
TEST(Threads, ThatCannotBeStarted) {
  orrery_runtime_options o = runtime_options();
  o.n_threads = 4;
  const int64_t before = live_blocks();
  for (int64_t n = 0; n < 3; ++n) {
    orrery_runtime* h = nullptr;
    Error error;
    arm(Fault::thread, n);
    const orrery_status status = orrery_runtime_create(&o, &h, &error);
    EXPECT_TRUE(disarm(Fault::thread)) << n;
    EXPECT_EQ(status, ORRERY_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(error.native_code, EAGAIN);
    EXPECT_EQ(h, nullptr);
    EXPECT_EQ(live_blocks(), before) << n;
#if !defined(__SANITIZE_ADDRESS__)
    // Those that were started are gone. A joined thread may stay listed for a moment.
    const auto n_threads = [] {
      size_t tasks = 0;
      for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) tasks += entry.exists();
      return tasks;
    };
    for (int i = 0; n_threads() != 1 && i < 1000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(n_threads(), 1u);
#endif
  }
  orrery_runtime* h = nullptr;
  ASSERT_EQ(orrery_runtime_create(&o, &h, nullptr), ORRERY_OK);
  orrery_runtime_free(h);
}
#endif

}  // namespace
}  // namespace orrery::testing

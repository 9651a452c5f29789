// How the tool writes files: whole or not at all where something is replaced, through where it is a stream.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "samples/orrery/system/failure.h"
#include "samples/orrery/system/write_file.h"
#include "tests/support/temp_dir.h"

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string failure(const std::string& path) {
  try {
    write_file(path, "x");
  } catch (const Failure& f) {
    return f.what();
  }
  return "";
}

class Writing : public ::testing::Test {
 protected:
  TempDir dir;
  const std::string file = dir.file("results.json");
  size_t n_entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(dir.file("")), {})); }
};

TEST_F(Writing, NewFilesAreAsTheMaskSaysAndOldOnesKeepTheirMode) {
  const mode_t before = ::umask(027);
  write_file(file, "one");
  ::umask(before);
  struct stat st;
  ASSERT_EQ(stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0640u);
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  write_file(file, "two");
  ASSERT_EQ(stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(content(file), "two");
  EXPECT_EQ(n_entries(), 1u);
}

TEST_F(Writing, LinksAreFollowed) {
  fs::create_directory(dir.file("other"));
  fs::create_symlink("../results.json", dir.file("other/link"));
  fs::create_symlink("other/link", dir.file("link"));
  write_file(dir.file("link"), "dangling");
  EXPECT_EQ(content(file), "dangling");
  write_file(dir.file("link"), "there");
  EXPECT_EQ(content(file), "there");
  EXPECT_TRUE(fs::is_symlink(dir.file("link")));
  fs::create_symlink("ring", dir.file("ring"));
  EXPECT_NE(failure(dir.file("ring")), "");
  EXPECT_EQ(n_entries(), 4u);
}

TEST_F(Writing, LongNames) {
  const std::string path = dir.file(std::string(255, 'n'));
  write_file(path, "one");
  write_file(path, "two");
  EXPECT_EQ(content(path), "two");
  EXPECT_NE(failure(dir.file(std::string(256, 'n'))), "");
  EXPECT_EQ(n_entries(), 1u);
}

TEST_F(Writing, StreamsAreWrittenThrough) {
  EXPECT_TRUE(is_stream("/dev/null"));
  EXPECT_FALSE(is_stream(file));
  write_file("/dev/null", "nothing");
  struct stat st;
  ASSERT_EQ(stat("/dev/null", &st), 0);
  EXPECT_TRUE(S_ISCHR(st.st_mode));
  const std::string pipe = dir.file("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(is_stream(pipe));
  std::string got;
  std::thread reader([&] { got = content(pipe); });
  write_file(pipe, "through the pipe");
  reader.join();
  EXPECT_EQ(got, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_NE(failure(dir.file("")).find("Is a directory"), std::string::npos);
}

// Standard output by its names, also where it is a file: what was written there stays.
TEST_F(Writing, StandardOutput) {
  for (const char* name : {"-", "/dev/stdout", "/proc/self/fd/1"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (!std::freopen(file.c_str(), "w", stdout)) ::_exit(2);
      if (::write(1, "before ", 7) != 7) ::_exit(2);
      if (!is_stream(name) || !is_standard_output(name) || is_standard_output("/dev/null")) ::_exit(3);
      write_file(name, "written");
      ::_exit(::write(1, " behind", 7) == 7 ? 0 : 2);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << name;
    EXPECT_EQ(content(file), "before written behind") << name;
  }
  EXPECT_EQ(n_entries(), 1u);
}

TEST_F(Writing, KilledRunsLeaveWhatTheNextOneRemoves) {
  const std::string one(1 << 20, '1'), two(1 << 20, '2');
  write_file(file, one);
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0;; ++i) write_file(file, i % 2 ? one : two);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + 300 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    const std::string now = content(file);
    ASSERT_TRUE(now == one || now == two);
    ASSERT_LE(n_entries(), 2u);
  }
  write_file(file, two);
  EXPECT_EQ(n_entries(), 1u);
}

TEST_F(Writing, ManyAtOnceNeverMix) {
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) write_file(file, std::string(50000, static_cast<char>('a' + t)));
    });
  }
  for (std::thread& t : writers) t.join();
  const std::string now = content(file);
  EXPECT_EQ(now, std::string(50000, now.at(0)));
  EXPECT_EQ(n_entries(), 1u);
}

}  // namespace
}  // namespace orrery::tool

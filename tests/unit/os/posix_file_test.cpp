// Files: what is opened and what is refused, and that a file is replaced whole, with what it was, or stays as it was.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "runtime/os/os.h"
#include "tests/support/temp_dir.h"

namespace orrery::os::posix_file_test {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

Span<const std::byte> bytes_of(const std::string& text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

Status save(const std::string& path, const std::string& content) {
  ORRERY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  ORRERY_TRY(file.write(bytes_of(content)));
  return file.commit();
}

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

mode_t mode_of(const std::string& path) {
  struct stat st = {};
  EXPECT_EQ(::lstat(path.c_str(), &st), 0) << path;
  return st.st_mode;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

size_t open_descriptors() {
  size_t n = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) n += entry.is_symlink();
  return n;
}

class Files : public ::testing::Test {
 protected:
  TempDir dir;
  const std::string file = dir.file("saved");
  const size_t descriptors = open_descriptors();
  void TearDown() override { EXPECT_EQ(open_descriptors(), descriptors) << "a descriptor stayed open"; }
  void expect_alone(const std::vector<std::string>& names = {"saved"}) { EXPECT_EQ(names_in(dir.file("")), names); }
};

TEST_F(Files, ANewFileIsTheOwnersAlone) {
  const mode_t before = ::umask(022);
  ASSERT_TRUE(save(file, "one").ok());
  ::umask(before);
  EXPECT_EQ(content(file), "one");
  EXPECT_EQ(mode_of(file), mode_t{S_IFREG | 0600});
  expect_alone();
}

TEST_F(Files, AReplacedFileKeepsItsMode) {
  for (const mode_t mode : {0600u, 0644u, 0660u, 0755u}) {
    ASSERT_TRUE(save(file, "one").ok());
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    ASSERT_TRUE(save(file, "two").ok());
    EXPECT_EQ(mode_of(file), S_IFREG | mode);
    EXPECT_EQ(content(file), "two");
  }
  expect_alone();
}

TEST_F(Files, AReplacedFileKeepsItsOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_TRUE(save(file, "one").ok());
  ASSERT_EQ(::chown(file.c_str(), 1234, 4321), 0);
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  ASSERT_TRUE(save(file, "two").ok());
  struct stat st;
  ASSERT_EQ(::stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_uid, 1234u);
  EXPECT_EQ(st.st_gid, 4321u);
  EXPECT_EQ(st.st_mode & 07777, 0640u);
}

// A user who may write the file, but give it to nobody: rights of a group that he cannot keep are not given to his own.
TEST_F(Files, RightsThatCannotBeKeptAreNotGivenToOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_TRUE(save(file, "one").ok());
  ASSERT_EQ(::chown(file.c_str(), 1234, 4321), 0);
  ASSERT_EQ(::chmod(file.c_str(), 04666 & ~0004), 0);  // others may write it, but not read it
  ASSERT_EQ(::chmod(dir.file("").c_str(), 0777), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(5555) != 0 || ::setuid(5555) != 0) ::_exit(2);
    ::_exit(save(file, "two").ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  struct stat st;
  ASSERT_EQ(::stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_uid, 5555u);
  EXPECT_EQ(st.st_gid, 5555u);
  EXPECT_EQ(st.st_mode & 07777, 0622u);
}

TEST_F(Files, LinksAreFollowed) {
  ASSERT_TRUE(save(file, "one").ok());
  fs::create_directory(dir.file("other"));
  fs::create_symlink("../saved", dir.file("other/link"));
  fs::create_symlink("other/link", dir.file("link"));
  ASSERT_TRUE(save(dir.file("link"), "two").ok());
  EXPECT_TRUE(fs::is_symlink(dir.file("link")));
  EXPECT_TRUE(fs::is_symlink(dir.file("other/link")));
  EXPECT_EQ(content(file), "two");
  // To nothing yet: the file is made where the link points.
  fs::create_symlink("other/later", dir.file("dangling"));
  ASSERT_TRUE(save(dir.file("dangling"), "three").ok());
  EXPECT_TRUE(fs::is_symlink(dir.file("dangling")));
  EXPECT_EQ(content(dir.file("other/later")), "three");
  EXPECT_EQ(mode_of(dir.file("other/later")), mode_t{S_IFREG | 0600});
  // An absolute one, through a folder that is a link.
  fs::create_directory_symlink(dir.file("other"), dir.file("folder"));
  fs::create_symlink(dir.file("folder/absolute"), dir.file("to-absolute"));
  ASSERT_TRUE(save(dir.file("to-absolute"), "four").ok());
  EXPECT_EQ(content(dir.file("other/absolute")), "four");
  EXPECT_EQ(names_in(dir.file("other")), (std::vector<std::string>{"absolute", "later", "link"}));
}

TEST_F(Files, LinksInARingAreRefused) {
  fs::create_symlink("b", dir.file("a"));
  fs::create_symlink("a", dir.file("b"));
  const Status status = save(dir.file("a"), "x");
  EXPECT_EQ(status.code(), Code::io);
  EXPECT_EQ(status.detail().native_code, ELOOP);
  expect_alone({"a", "b"});
}

TEST_F(Files, ALinkIntoNowhereIsRefused) {
  fs::create_symlink("no/such/folder", dir.file("a"));
  const Status status = save(dir.file("a"), "x");
  EXPECT_EQ(status.code(), Code::io);
  EXPECT_EQ(status.detail().native_code, ENOENT);
  EXPECT_NE(std::string(status.message()).find(dir.file("a")), std::string::npos) << status.message();
  expect_alone({"a"});
}

TEST_F(Files, OtherHardLinksKeepTheOldContent) {
  ASSERT_TRUE(save(file, "one").ok());
  fs::create_hard_link(file, dir.file("second"));
  ASSERT_TRUE(save(file, "two").ok());
  EXPECT_EQ(content(file), "two");
  EXPECT_EQ(content(dir.file("second")), "one");
}

TEST_F(Files, WhatIsNoFileIsRefusedAndStays) {
  const std::string pipe = dir.file("pipe"), socket = dir.file("socket"), folder = dir.file("folder");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_directory(folder);
  const int s = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(socket.size(), sizeof address.sun_path);
  std::copy(socket.begin(), socket.end(), address.sun_path);
  ASSERT_EQ(::bind(s, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  fs::create_symlink("pipe", dir.file("link"));
  const std::vector<std::pair<std::string, const char*>> cases = {
      {pipe, "FIFO"},          {socket, "socket"},        {folder, "directory"}, {folder + "/", "directory"}, {folder + "/.", "directory"},
      {"/dev/null", "device"}, {dir.file("link"), "FIFO"}};
  const std::vector<std::string> before = names_in(dir.file(""));
  for (const auto& [path, kind] : cases) {
    const mode_t mode = mode_of(path);
    Status refused[] = {save(path, "x"), InputFile::open(path).take_status(), MappedFile::open(path).take_status()};
    for (const Status& status : refused) {
      EXPECT_EQ(status.code(), Code::io) << path;
      EXPECT_NE(std::string(status.message()).find(kind), std::string::npos) << status.message();
      EXPECT_NE(std::string(status.message()).find(path), std::string::npos) << status.message();
    }
    EXPECT_EQ(mode_of(path), mode) << path;
    EXPECT_EQ(names_in(dir.file("")), before);
  }
  ::close(s);
}

TEST_F(Files, NamesAsLongAsADirectoryTakes) {
  for (const size_t n : {241u, 242u, 255u}) {
    const std::string path = dir.file(std::string(n, 'n'));
    for (const char* text : {"one", "two"}) {
      const Status status = save(path, text);
      ASSERT_TRUE(status.ok()) << n << ": " << status.message();
      EXPECT_EQ(content(path), text);
    }
  }
  const Status status = save(dir.file(std::string(256, 'n')), "x");
  EXPECT_EQ(status.detail().native_code, ENAMETOOLONG);
  EXPECT_EQ(names_in(dir.file("")).size(), 3u);
  EXPECT_EQ(save(std::string("a\0b", 3), "x").code(), Code::invalid_argument);
  EXPECT_EQ(save("", "x").code(), Code::invalid_argument);
}

TEST_F(Files, ANameAloneIsInTheWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::current_path(dir.file(""));
  const Status status = save("saved", "one");
  fs::current_path(before);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(content(file), "one");
}

TEST_F(Files, AnAbandonedFileLeavesTheOldOne) {
  ASSERT_TRUE(save(file, "one").ok());
  {
    auto made = AtomicFile::create(file);
    ASSERT_TRUE(made.ok());
    AtomicFile moved = std::move(made).value();
    ASSERT_TRUE(moved.write(bytes_of("half of")).ok());
    EXPECT_EQ(names_in(dir.file("")).size(), 2u);
  }
  EXPECT_EQ(content(file), "one");
  expect_alone();
}

// A file that its mode protects, and a folder that takes no new names.
TEST_F(Files, WithoutPermission) {
  ASSERT_TRUE(save(file, "one").ok());
  const auto refused_as_nobody = [&](const std::string& path) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
      const Status status = save(path, "two");
      ::_exit(status.code() == Code::io && status.detail().native_code == EACCES ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  };
  ASSERT_EQ(::chmod(file.c_str(), 0444), 0);
  ASSERT_EQ(::chmod(dir.file("").c_str(), 0777), 0);
  EXPECT_EQ(refused_as_nobody(file), 0) << "a read-only file";
  ASSERT_EQ(::chmod(file.c_str(), 0666), 0);
  ASSERT_EQ(::chmod(dir.file("").c_str(), 0555), 0);
  EXPECT_EQ(refused_as_nobody(file), 0) << "a read-only folder";
  EXPECT_EQ(refused_as_nobody(dir.file("new")), 0) << "a read-only folder";
  ASSERT_EQ(::chmod(dir.file("").c_str(), 0700), 0);
  EXPECT_EQ(content(file), "one");
  expect_alone();
}

// The limit's signal would end this process: nobody here handles or ignores it.
TEST_F(Files, BeyondTheLimitOfFileSizes) {
  ASSERT_TRUE(save(file, "one").ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit small = {4096, 4096};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) ::_exit(2);
    const Status status = save(file, std::string(10000, 'x'));
    sigset_t mask, pending;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    ::sigpending(&pending);
    if (sigismember(&mask, SIGXFSZ) != 0 || sigismember(&pending, SIGXFSZ) != 0) ::_exit(3);
    ::_exit(status.code() == Code::io && status.detail().native_code == EFBIG ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(content(file), "one");
  expect_alone();
}

// Writers die in the middle of their work: the file is an old one or a new one, whole, and at most one temporary is there,
// which the next save removes.
TEST_F(Files, KilledWritersLeaveAtMostWhatTheNextOneRemoves) {
  const std::string one(3 << 20, '1'), two(3 << 20, '2');
  ASSERT_TRUE(save(file, one).ok());
  size_t n_left = 0;
  for (int round = 0; round < 20; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ready[0]);
      for (int i = 0;; ++i) {
        if (i == 1 && ::write(ready[1], "!", 1) != 1) ::_exit(2);
        if (!save(file, i % 2 ? one : two).ok()) ::_exit(3);
      }
    }
    ::close(ready[1]);
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1) << "the writer failed";
    ::close(ready[0]);
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    const std::string now = content(file);
    ASSERT_TRUE(now == one || now == two) << "round " << round << ": " << now.size() << " bytes";
    const size_t left = names_in(dir.file("")).size() - 1;
    ASSERT_LE(left, 1u);
    n_left += left;
  }
  RecordProperty("left", static_cast<int>(n_left));
  ASSERT_TRUE(save(file, one).ok());
  expect_alone();
}

// What was left is removed whichever slot it is in; what others hold, or what is no temporary, stays.
TEST_F(Files, OnlySlotsOfTheDeadAreCleared) {
  std::string slot;
  {
    auto living = AtomicFile::create(file);
    ASSERT_TRUE(living.ok());
    slot = names_in(dir.file("")).at(0);
    ASSERT_EQ(slot.size(), 42u);
    ASSERT_EQ(slot.substr(slot.size() - 2), "-0");
    const std::string base = dir.file(slot.substr(0, slot.size() - 1));
    std::ofstream(base + "7") << "left by a killed writer";
    ASSERT_EQ(::mkfifo((base + "1").c_str(), 0600), 0);
    fs::create_symlink("elsewhere", base + "2");
    std::ofstream(dir.file("precious")) << "precious";
    fs::create_hard_link(dir.file("precious"), base + "3");
    ASSERT_TRUE(save(file, "two").ok());  // beside the living one
    EXPECT_FALSE(fs::exists(base + "7"));
    EXPECT_TRUE(fs::exists(dir.file(slot))) << "a living writer's";
    EXPECT_TRUE(fs::is_fifo(base + "1"));
    EXPECT_TRUE(fs::is_symlink(base + "2"));
    EXPECT_EQ(content(base + "3"), "precious");
    EXPECT_EQ(content(file), "two");
    ASSERT_TRUE(living.value().write(bytes_of("three")).ok());
    ASSERT_TRUE(living.value().commit().ok());
    EXPECT_EQ(content(file), "three");
    for (const char* n : {"1", "2", "3"}) fs::remove(base + n);
  }
  expect_alone({"precious", "saved"});
}

TEST_F(Files, ManyWritersAtOnceNeverMix) {
  std::vector<std::thread> writers;
  std::atomic<int> n_failed{0};
  for (int t = 0; t < 6; ++t) {
    writers.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) n_failed += !save(file, std::string(100000, static_cast<char>('a' + t))).ok();
    });
  }
  for (std::thread& t : writers) t.join();
  EXPECT_EQ(n_failed, 0);
  const std::string now = content(file);
  ASSERT_EQ(now.size(), 100000u);
  EXPECT_EQ(now, std::string(100000, now[0]));
  expect_alone();
}

// Every process that saves keeps whole files, too.
TEST_F(Files, ManyProcessesAtOnceNeverMix) {
  std::vector<pid_t> children;
  for (int c = 0; c < 4; ++c) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0; i < 30; ++i)
        if (!save(file, std::string(50000, static_cast<char>('a' + c))).ok()) ::_exit(1);
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const std::string now = content(file);
  EXPECT_EQ(now, std::string(50000, now.at(0)));
  expect_alone();
}

// Beyond what 32 bits count: a sparse file, read and mapped at its end.
TEST_F(Files, LongerThanTwoGigabytes) {
  const uint64_t size = (uint64_t{5} << 30) + 3;
  {
    std::ofstream out(file, std::ios::binary);
    out.seekp(static_cast<std::streamoff>(size - 3));
    out << "end";
  }
  auto input = InputFile::open(file);
  ASSERT_TRUE(input.ok()) << input.status().message();
  EXPECT_EQ(input.value().size(), size);
  std::string end(3, ' ');
  ASSERT_TRUE(input.value().read_at(size - 3, {reinterpret_cast<std::byte*>(end.data()), 3}).ok());
  EXPECT_EQ(end, "end");
  const Status beyond = input.value().read_at(size - 2, {reinterpret_cast<std::byte*>(end.data()), 3});
  EXPECT_EQ(beyond.code(), Code::io);
  const auto mapped = MappedFile::open(file);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ(static_cast<char>(mapped.value().data()[size - 1]), 'd');
}

// What another program would inherit.
TEST_F(Files, DescriptorsCloseOnExec) {
  ASSERT_TRUE(save(file, "one").ok());
  auto input = InputFile::open(file);
  auto output = AtomicFile::create(file);
  ASSERT_TRUE(input.ok() && output.ok());
  size_t n = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (gone || target.find(dir.file("").substr(0, dir.file("").size() - 1)) == std::string::npos) continue;
    ++n;
    EXPECT_TRUE(::fcntl(std::stoi(entry.path().filename().string()), F_GETFD) & FD_CLOEXEC) << target;
  }
  EXPECT_EQ(n, 3u);  // the file, the temporary, their directory
}

}  // namespace
}  // namespace orrery::os::posix_file_test

// Files on Windows: what is opened and what is refused, long and foreign names, and that a file is replaced whole, or stays as it was.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <io.h>
#include <windows.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "runtime/os/os.h"
#include "tests/support/temp_dir.h"

namespace orrery::os::windows_file_test {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

Span<const std::byte> bytes_of(const std::string& text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

Status save(const std::string& path, const std::string& content) {
  ORRERY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  ORRERY_TRY(file.write(bytes_of(content)));
  return file.commit();
}

Result<std::string> load(const std::string& path) {
  ORRERY_ASSIGN(const InputFile file, InputFile::open(path));
  std::string text(static_cast<size_t>(file.size()), '\0');
  ORRERY_TRY(file.read_at(0, {reinterpret_cast<std::byte*>(text.data()), text.size()}));
  return text;
}

std::string content(const std::string& path) {
  Result<std::string> text = load(path);
  return text.ok() ? std::move(text).value() : std::string("no content: ") + text.status().message();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::u8path(folder))) names.push_back(entry.path().filename().u8string());
  std::sort(names.begin(), names.end());
  return names;
}

struct WindowsFiles : ::testing::Test {
  TempDir dir;
  const std::string file = dir.file("saved");
};

TEST_F(WindowsFiles, AFileIsReplacedWhole) {
  ASSERT_TRUE(save(file, "one").ok());
  EXPECT_EQ(content(file), "one");
  {
    AtomicFile unfinished = AtomicFile::create(file).value();
    ASSERT_TRUE(unfinished.write(bytes_of("half")).ok());
    EXPECT_EQ(names_in(dir.file("")).size(), 2u);  // the temporary stands beside it
  }
  EXPECT_EQ(content(file), "one");
  ASSERT_TRUE(save(file, "a longer second").ok());
  EXPECT_EQ(content(file), "a longer second");
  EXPECT_EQ(names_in(dir.file("")), std::vector<std::string>{"saved"});
}

TEST_F(WindowsFiles, NamesAreUtf8) {
  const std::string name = "Größe 文書 🌍.orrery";
  ASSERT_TRUE(save(dir.file(name), "text").ok());
  EXPECT_EQ(content(dir.file(name)), "text");
  EXPECT_EQ(names_in(dir.file("")), std::vector<std::string>{name});
  for (const std::string bad : {"\xFF\xFE", "a\xC3"}) {
    EXPECT_EQ(InputFile::open(dir.file(bad)).status().code(), Code::invalid_argument);
    EXPECT_EQ(AtomicFile::create(dir.file(bad)).status().code(), Code::invalid_argument);
  }
  EXPECT_EQ(InputFile::open(std::string("a\0b", 3)).status().code(), Code::invalid_argument);
  EXPECT_EQ(InputFile::open("").status().code(), Code::invalid_argument);
}

// Longer than the 260 characters that older calls admit.
TEST_F(WindowsFiles, LongPaths) {
  std::string folder = dir.file("");
  folder.pop_back();
  for (int i = 0; i < 4; ++i) {
    folder += "/" + std::string(100, static_cast<char>('a' + i));
    std::string native = folder;
    std::replace(native.begin(), native.end(), '/', '\\');
    ASSERT_TRUE(::CreateDirectoryW((L"\\\\?\\" + fs::u8path(native).wstring()).c_str(), nullptr)) << ::GetLastError();
  }
  ASSERT_TRUE(save(folder + "/saved", "deep").ok());
  EXPECT_EQ(content(folder + "/saved"), "deep");
  EXPECT_EQ(InputFile::open(std::string(40000, 'x')).status().code(), Code::io);
}

TEST_F(WindowsFiles, OnlyRegularFilesAreOpened) {
  for (const char* device : {"NUL", "CON", "\\\\.\\pipe\\nothing", "COM1"}) {
    const Result<InputFile> opened = InputFile::open(device);
    ASSERT_FALSE(opened.ok()) << device;
    EXPECT_NE(std::string(opened.status().message()).find("device"), std::string::npos) << opened.status().message();
    EXPECT_FALSE(AtomicFile::create(device).ok()) << device;
  }
  const std::string folder = dir.file("folder");
  fs::create_directory(folder);
  for (const std::string& words :
       {std::string(InputFile::open(folder).status().message()), std::string(AtomicFile::create(folder).status().message())})
    EXPECT_NE(words.find("a directory"), std::string::npos) << words;
  Status missing = InputFile::open(dir.file("missing")).take_status();
  EXPECT_EQ(missing.code(), Code::io);
  EXPECT_EQ(missing.detail().native_code, ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(AtomicFile::create(dir.file("missing/saved")).status().code(), Code::io);
}

TEST_F(WindowsFiles, AFileThatMayNotBeWrittenStays) {
  ASSERT_TRUE(save(file, "kept").ok());
  ASSERT_TRUE(::SetFileAttributesW(fs::u8path(file).wstring().c_str(), FILE_ATTRIBUTE_READONLY));
  EXPECT_EQ(AtomicFile::create(file).status().code(), Code::io);
  EXPECT_EQ(content(file), "kept");
  ::SetFileAttributesW(fs::u8path(file).wstring().c_str(), FILE_ATTRIBUTE_NORMAL);
}

TEST_F(WindowsFiles, ALeftoverIsRemovedAndALiveWriterIsNot) {
  AtomicFile first = AtomicFile::create(file).value();
  ASSERT_TRUE(first.write(bytes_of("first")).ok());
  const std::string slot = names_in(dir.file("")).at(0);
  ASSERT_TRUE(save(file, "second").ok());  // takes another slot
  ASSERT_TRUE(first.commit().ok());
  EXPECT_EQ(content(file), "first");  // the last rename wins
  dir.write(slot, {std::byte{1}});    // what a killed writer leaves
  ASSERT_TRUE(save(file, "third").ok());
  EXPECT_EQ(names_in(dir.file("")), std::vector<std::string>{"saved"});
}

// Another writer's file is nobody else's between its renaming and its closing.
TEST_F(WindowsFiles, ReadersAndWritersWaitForAWriterThatCloses) {
  ASSERT_TRUE(save(file, "old").ok());
  const auto closes_soon = [&] {
    const HANDLE alone = ::CreateFileW(fs::u8path(file).wstring().c_str(), GENERIC_WRITE, 0, nullptr, OPEN_EXISTING, 0, nullptr);
    EXPECT_NE(alone, INVALID_HANDLE_VALUE);
    return std::thread([alone] {
      ::Sleep(100);
      ::CloseHandle(alone);
    });
  };
  std::thread closes = closes_soon();
  EXPECT_TRUE(InputFile::open(file).ok());
  closes.join();
  closes = closes_soon();
  EXPECT_TRUE(save(file, "new").ok());
  closes.join();
  EXPECT_EQ(content(file), "new");
}

TEST_F(WindowsFiles, ManyWritersLeaveOneWholeFile) {
  std::atomic<int> saved{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) saved += save(file, std::string(1000, static_cast<char>('a' + t))).ok();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(saved, 0);
  const std::string text = content(file);
  EXPECT_EQ(text, std::string(1000, text[0]));
  EXPECT_EQ(names_in(dir.file("")), std::vector<std::string>{"saved"});
}

TEST_F(WindowsFiles, AMappedFileKeepsItsBytes) {
  ASSERT_TRUE(save(file, std::string(100000, 'm')).ok());
  const MappedFile mapped = MappedFile::open(file).value();
  ASSERT_EQ(mapped.size(), 100000u);
  mapped.prefetch(1, 200000);
  mapped.release_pages(0, 100000);
  EXPECT_EQ(static_cast<char>(mapped.data()[99999]), 'm');
  const Status saving = save(file, "new");  // in place, or refused; never half of each
  EXPECT_EQ(static_cast<char>(mapped.data()[50000]), 'm');
  EXPECT_EQ(content(file), saving.ok() ? "new" : std::string(100000, 'm'));
}

TEST_F(WindowsFiles, ReadsAtAPlaceAndNamesTheEnd) {
  ASSERT_TRUE(save(file, "0123456789").ok());
  const InputFile input = InputFile::open(file).value();
  std::string three(3, ' ');
  ASSERT_TRUE(input.read_at(4, {reinterpret_cast<std::byte*>(three.data()), 3}).ok());
  EXPECT_EQ(three, "456");
  EXPECT_NE(
      std::string(input.read_at(8, {reinterpret_cast<std::byte*>(three.data()), 3}).message()).find("ends at byte 10, before byte 11"),
      std::string::npos);
}

TEST_F(WindowsFiles, ADescriptorStaysTheCallers) {
  ASSERT_TRUE(save(file, "0123456789").ok());
  const int fd = ::_open(file.c_str(), _O_RDONLY | _O_BINARY);
  ASSERT_GE(fd, 0);
  {
    const InputFile input = InputFile::of_descriptor(fd).value();
    EXPECT_EQ(input.size(), 10u);
    char byte = 0;
    ASSERT_TRUE(input.read_at(9, {reinterpret_cast<std::byte*>(&byte), 1}).ok());
    EXPECT_EQ(byte, '9');
  }
  char byte = 0;
  EXPECT_EQ(::_lseek(fd, 0, SEEK_SET), 0);
  EXPECT_EQ(::_read(fd, &byte, 1), 1);
  EXPECT_EQ(::_close(fd), 0);
  EXPECT_FALSE(InputFile::of_descriptor(-1).ok());
}

TEST(WindowsMemory, RegionsAreZeroedLockedAndDiscarded) {
  const Region region = Region::allocate((8 << 20) + 1).value();
  ASSERT_GE(region.size(), (8u << 20) + 1);
  EXPECT_EQ(std::count(region.data(), region.data() + region.size(), std::byte{0}), static_cast<ptrdiff_t>(region.size()));
  std::fill(region.data(), region.data() + region.size(), std::byte{1});
  ASSERT_TRUE(region.lock(0, 4 << 20).ok());
  region.unlock(0, 4 << 20);
  region.discard(1, 1 << 20);
  EXPECT_EQ(region.data()[0], std::byte{1});  // not a whole page
  EXPECT_EQ(region.data()[4 << 20], std::byte{1});
  std::fill(region.data(), region.data() + region.size(), std::byte{2});  // may be written again
  EXPECT_EQ(Region::allocate(uint64_t{1} << 62).status().code(), Code::out_of_host_memory);
}

TEST(WindowsMemory, LimitsAreTheMachines) {
  const MemoryLimits limits = memory_limits();
  EXPECT_GT(limits.available_bytes, uint64_t{64} << 20);
  EXPECT_LE(limits.memory_bytes, physical_memory_bytes());
  EXPECT_GT(default_reservation_bytes(limits), 0u);
  EXPECT_GE(available_processors(), 1);
  EXPECT_GE(page_bytes(), 4096u);
}

// A job object is what bounds a process on Windows. The limit stays for the rest of the process, so it is a large one.
TEST(WindowsMemory, AJobsLimitBinds) {
  const HANDLE job = ::CreateJobObjectW(nullptr, nullptr);
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION limit = {};
  limit.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_JOB_MEMORY;
  limit.JobMemoryLimit = uint64_t{1} << 30;
  if (!::SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limit, sizeof limit) ||
      !::AssignProcessToJobObject(job, ::GetCurrentProcess()))
    GTEST_SKIP() << "this system sets no limits for jobs";
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION seen = {};
  if (!::QueryInformationJobObject(nullptr, JobObjectExtendedLimitInformation, &seen, sizeof seen, nullptr) ||
      seen.JobMemoryLimit != limit.JobMemoryLimit)
    GTEST_SKIP() << "this system does not report a job's limit";
  EXPECT_LE(memory_limits().memory_bytes, uint64_t{1} << 30);
  EXPECT_LE(default_reservation_bytes(memory_limits()), uint64_t{1} << 29);
}

}  // namespace
}  // namespace orrery::os::windows_file_test

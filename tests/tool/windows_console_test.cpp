// The Windows side of the tool's files, keys and Ctrl-C, without a console: keys as the console reports them, paths, streams, files that
// are replaced whole, interrupts.
#include <gtest/gtest.h>
#include <io.h>

#include <cerrno>
#include <filesystem>
#include <thread>

#include "samples/orrery/system/failure.h"
#include "samples/orrery/system/files.h"
#include "samples/orrery/system/process.h"
#include "samples/orrery/system/terminal.h"
#include "samples/orrery/system/windows_terminal.h"
#include "samples/orrery/system/write_file.h"
#include "samples/orrery/terminal/keys.h"
#include "samples/orrery/terminal/output.h"
#include "tests/support/temp_dir.h"

namespace orrery::tool {
namespace {

KEY_EVENT_RECORD key(WORD virtual_key, wchar_t unit, DWORD state = 0, bool down = true) {
  KEY_EVENT_RECORD record = {};
  record.bKeyDown = down;
  record.wRepeatCount = 1;
  record.wVirtualKeyCode = virtual_key;
  record.uChar.UnicodeChar = unit;
  record.dwControlKeyState = state;
  return record;
}

std::vector<Key> keys_of(const std::vector<KEY_EVENT_RECORD>& records) {
  KeyDecoder decoder;
  std::vector<Key> keys;
  wchar_t high = 0;
  for (const KEY_EVENT_RECORD& record : records) {
    const std::string bytes = bytes_of_key(record, &high);
    if (!bytes.empty()) decoder.feed(bytes, &keys);
  }
  decoder.rest(&keys);
  return keys;
}

Key::Kind kind_of(const KEY_EVENT_RECORD& record) {
  const std::vector<Key> keys = keys_of({record});
  EXPECT_EQ(keys.size(), 1u);
  return keys.empty() ? Key::unknown : keys[0].kind;
}

TEST(WindowsKeys, AreTheEditorsKeys) {
  const struct {
    KEY_EVENT_RECORD record;
    Key::Kind kind;
  } cases[] = {
      {key(VK_RETURN, L'\r'), Key::enter},
      {key(VK_RETURN, L'\r', LEFT_ALT_PRESSED), Key::newline},
      {key(VK_RETURN, L'\n', LEFT_CTRL_PRESSED), Key::enter},
      {key(VK_TAB, L'\t'), Key::tab},
      {key(VK_BACK, L'\b'), Key::backspace},
      {key(VK_BACK, L'\b', LEFT_ALT_PRESSED), Key::erase_word},
      {key(VK_DELETE, 0, ENHANCED_KEY), Key::erase},
      {key(VK_LEFT, 0, ENHANCED_KEY), Key::left},
      {key(VK_RIGHT, 0, ENHANCED_KEY), Key::right},
      {key(VK_UP, 0, ENHANCED_KEY), Key::up},
      {key(VK_DOWN, 0, ENHANCED_KEY), Key::down},
      {key(VK_LEFT, 0, ENHANCED_KEY | LEFT_CTRL_PRESSED), Key::word_left},
      {key(VK_RIGHT, 0, ENHANCED_KEY | RIGHT_CTRL_PRESSED), Key::word_right},
      {key(VK_HOME, 0, ENHANCED_KEY), Key::line_start},
      {key(VK_END, 0, ENHANCED_KEY), Key::line_end},
      {key('C', 3, LEFT_CTRL_PRESSED), Key::interrupt},
      {key('D', 4, LEFT_CTRL_PRESSED), Key::end_or_erase},
      {key('L', 12, LEFT_CTRL_PRESSED), Key::clear_screen},
      {key('P', 16, LEFT_CTRL_PRESSED), Key::history_back},
      {key('B', L'b', LEFT_ALT_PRESSED), Key::word_left},
      {key(VK_PRIOR, 0, ENHANCED_KEY), Key::unknown},
  };
  for (const auto& c : cases) EXPECT_EQ(kind_of(c.record), c.kind) << c.record.wVirtualKeyCode;
  EXPECT_TRUE(keys_of({key(VK_SHIFT, 0), key(VK_CONTROL, 0), key(VK_CAPITAL, 0), key('A', L'a', 0, false)}).empty());
}

TEST(WindowsKeys, CharactersAreUtf8) {
  KEY_EVENT_RECORD repeated = key('X', L'x');
  repeated.wRepeatCount = 3;
  const std::vector<Key> keys = keys_of({
      key('E', L'\u00e9'), key(0, 0xD83D), key(0, 0xD83D, 0, false), key(0, 0xDE00), repeated,
      key('Q', L'@', LEFT_CTRL_PRESSED | RIGHT_ALT_PRESSED),  // AltGr
      key(VK_MENU, L'\u4e16', 0, false),                      // Alt and the keypad
      key(0, 0xDE00),                                         // half of a pair
  });
  ASSERT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys[0].kind, Key::text);
  EXPECT_EQ(keys[0].content, "\xC3\xA9\xF0\x9F\x98\x80xxx@\xE4\xB8\x96\xEF\xBF\xBD");
}

// A console that translates keys itself sends a paste as such bytes.
TEST(WindowsKeys, TranslatedBytesPass) {
  std::vector<KEY_EVENT_RECORD> records;
  for (const char c : std::string("\x1b[200~a\nb\x1b[201~\x1b[D")) records.push_back(key(0, static_cast<wchar_t>(c)));
  const std::vector<Key> keys = keys_of(records);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].kind, Key::paste);
  EXPECT_EQ(keys[0].content, "a\nb");
  EXPECT_EQ(keys[1].kind, Key::left);
}

std::string failure_of(const std::string& path, const std::string& bytes = "x") {
  try {
    write_file(path, bytes);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

TEST(WindowsFiles, LongAndForeignNamesAreWrittenWhole) {
  const testing::TempDir folder;
  std::string path = folder.file("");
  for (int i = 0; i < 5; ++i) {
    path += "\xE6\xBC\xA2\xE5\xAD\x97" + std::string(60, 'n');
    ASSERT_TRUE(make_one_folder(path, true)) << i;
    EXPECT_FALSE(make_one_folder(path, true));
    EXPECT_EQ(errno, EEXIST);
    EXPECT_TRUE(can_write_in(path));
    path += i % 2 ? "/" : "\\";
  }
  const std::string name = path + "\xF0\x9F\x98\x80.json";
  ASSERT_GT(name.size(), 300u);
  EXPECT_EQ(file_kind(name), FileKind::none);
  for (const std::string& content : {std::string("one\r\n\0two", 9), std::string(3 << 20, 'z'), std::string()}) {
    write_file(name, content);
    EXPECT_EQ(read_file(name), content);
    EXPECT_EQ(file_kind(name), FileKind::regular);
  }
  EXPECT_EQ(file_kind(path), FileKind::folder);
  EXPECT_EQ(failure_of(path), path + ": cannot write: Is a directory");
  EXPECT_EQ(failure_of(folder.file("nowhere/x")), folder.file("nowhere/x") + ": cannot write: No such file or directory");
  ASSERT_TRUE(::SetFileAttributesW(wide_path(name).c_str(), FILE_ATTRIBUTE_READONLY));
  EXPECT_EQ(failure_of(name), name + ": cannot write: Permission denied");
  ASSERT_TRUE(::SetFileAttributesW(wide_path(name).c_str(), FILE_ATTRIBUTE_NORMAL));
  EXPECT_EQ(read_file(name), "");
  remove_file(name);
  EXPECT_EQ(file_kind(name), FileKind::none);
}

bool under_wine() {
  const HMODULE system = ::GetModuleHandleW(L"ntdll.dll");
  return system && ::GetProcAddress(system, "wine_get_version") != nullptr;
}

// A reader that has the file open keeps the old content, and no temporary is left.
TEST(WindowsFiles, AreReplacedWhileOthersReadThem) {
  if (under_wine()) GTEST_SKIP() << "Wine refuses to replace a file that is open";
  const testing::TempDir folder;
  const std::string name = folder.file("result.json");
  write_file(name, "old");
  const int fd = open_file(name, Access::read);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(failure_of(name, "new"), "");
  char bytes[8];
  EXPECT_EQ(read_some(fd, bytes, sizeof bytes), 3);
  EXPECT_EQ(std::string(bytes, 3), "old");
  close_file(fd);
  EXPECT_EQ(read_file(name), "new");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.file("")), {}), 1);
}

// Writers of one file wait for each other: the file always has one writer's content.
TEST(WindowsFiles, WritersTakeTurns) {
  const testing::TempDir folder;
  const std::string name = folder.file("shared");
  const auto write_often = [&](char letter) {
    for (int i = 0; i < 8; ++i) EXPECT_EQ(failure_of(name, std::string(100000, letter)), "");
  };
  std::thread other(write_often, 'a');
  write_often('b');
  other.join();
  const std::string content = read_file(name);
  EXPECT_EQ(content.size(), 100000u);
  EXPECT_EQ(content.find_first_not_of(content[0]), std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.file("")), {}), 1);
}

// Another writer's file is nobody else's between its renaming and its closing.
TEST(WindowsFiles, AWriterWaitsForOneThatCloses) {
  const testing::TempDir folder;
  const std::string name = folder.file("shared");
  write_file(name, "old");
  const HANDLE alone = ::CreateFileW(wide_path(name).c_str(), GENERIC_WRITE, 0, nullptr, OPEN_EXISTING, 0, nullptr);
  ASSERT_NE(alone, INVALID_HANDLE_VALUE);
  std::thread closes([&] {
    ::Sleep(100);
    ::CloseHandle(alone);
  });
  EXPECT_EQ(failure_of(name, "new"), "");
  closes.join();
  EXPECT_EQ(read_file(name), "new");
}

TEST(WindowsFiles, AppendingGoesToTheEnd) {
  const testing::TempDir folder;
  const std::string name = folder.file("log");
  const int one = open_file(name, Access::append), two = open_file(name, Access::append_private);
  ASSERT_TRUE(one >= 0 && two >= 0);
  EXPECT_TRUE(write_all(one, "1") && write_all(two, "22") && write_all(one, "333"));
  EXPECT_EQ(file_bytes(one), 6);
  EXPECT_TRUE(truncate_file(two, 3));
  EXPECT_TRUE(write_all(one, "4"));
  close_file(one);
  close_file(two);
  EXPECT_EQ(read_file(name), "1224");
}

TEST(WindowsFiles, DevicesAreStreams) {
  for (const char* name : {"NUL", "nul"}) {
    EXPECT_EQ(file_kind(name), FileKind::other);
    EXPECT_TRUE(is_stream(name));
    EXPECT_FALSE(is_standard_output(name));
    EXPECT_EQ(failure_of(name), "");
  }
  EXPECT_TRUE(is_stream("-") && is_standard_output("-"));
  const testing::TempDir folder;
  write_file(folder.file("x"), "");
  EXPECT_FALSE(is_stream(folder.file("x")));
  EXPECT_FALSE(is_stream(folder.file("")));
}

TEST(WindowsFiles, PathsAreFull) {
  EXPECT_EQ(wide_path("c:\\a/b\\..\\c"), L"\\\\?\\c:\\a\\c");
  EXPECT_EQ(wide_path("//server/share/x"), L"\\\\?\\UNC\\server\\share\\x");
  EXPECT_EQ(wide_path("\\\\?\\c:\\as it is"), L"\\\\?\\c:\\as it is");
  EXPECT_EQ(wide_path(""), L"");
  EXPECT_EQ(utf8(wide("\xF0\x9F\x98\x80 \xFF")), "\xF0\x9F\x98\x80 \xEF\xBF\xBD");
  EXPECT_EQ(folder_of("a\\b/c"), "a\\b/");
  EXPECT_EQ(folder_of("c"), "");
}

TEST(WindowsInterrupts, TheFirstAsksAndClearForgetsIt) {
  Interrupts interrupts;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(interrupts.pending());
    press_interrupt();
    EXPECT_TRUE(interrupts.pending() && interrupt_pending());
    interrupts.clear();
  }
  int cancelled = 0;
  {
    const CancelOnInterrupt watcher([&] { ++cancelled; });
    press_interrupt();
    for (int tries = 0; tries < 500 && cancelled == 0; ++tries) ::Sleep(10);
  }
  EXPECT_EQ(cancelled, 1);
  {
    const CancelOnInterrupt watcher([&] { ++cancelled; });
    ::Sleep(200);
  }  // one that is pending already
  EXPECT_EQ(cancelled, 2);
  interrupts.clear();
  {
    const CancelOnInterrupt watcher([&] { ++cancelled; });
  }
  EXPECT_EQ(cancelled, 2);
}

TEST(WindowsInterrupts, EndTheWaitForASilentPipe) {
  HANDLE reads, writes;
  ASSERT_TRUE(::CreatePipe(&reads, &writes, nullptr, 0));
  const int fd = ::_open_osfhandle(reinterpret_cast<intptr_t>(reads), 0);
  const Interrupts interrupts;
  std::thread presser([] {
    ::Sleep(50);
    press_interrupt();
  });
  EXPECT_FALSE(wait_for_input(fd));
  presser.join();
  ::CloseHandle(writes);
  close_file(fd);
}

TEST(WindowsInterruptsDeathTest, TheSecondEndsTheProcess) {
  EXPECT_EXIT(
      {
        const Interrupts interrupts;
        press_interrupt();
        press_interrupt();
      },
      ::testing::ExitedWithCode(kExitInterrupted), "");
}

TEST(WindowsProcess, KnowsItsMemoryAndFolders) {
  const ResidentMemory memory = resident_memory();
  EXPECT_GT(memory.now, 1u << 20);
  EXPECT_GE(memory.peak, memory.now);
  EXPECT_GT(physical_memory_bytes(), uint64_t{1} << 28);
  EXPECT_EQ(file_kind(program_folder()), FileKind::folder);
  EXPECT_EQ(file_kind(state_folder()), FileKind::folder);
  const SystemMemory block = system_memory(1 << 20);
  ASSERT_NE(block, nullptr);
  block[(1 << 17) - 1] = 7;
}

}  // namespace
}  // namespace orrery::tool

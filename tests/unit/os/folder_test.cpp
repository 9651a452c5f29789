// Directories: made, listed, and the files in them removed and touched.
#include "runtime/os/folder/folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "runtime/os/os.h"
#include "tests/support/temp_dir.h"

namespace orrery::os {
namespace {

using testing::TempDir;
namespace fs = std::filesystem;

std::vector<FolderFile> list(const std::string& path) {
  auto found = list_folder(path, ".x");
  EXPECT_TRUE(found.ok());
  std::vector<FolderFile> files = found.ok() ? std::move(found).value() : std::vector<FolderFile>();
  std::sort(files.begin(), files.end(), [](const FolderFile& a, const FolderFile& b) { return a.name < b.name; });
  return files;
}

TEST(Folder, ListsTheFilesOfASuffix) {
  const TempDir dir;
  const std::string path = dir.file("made");
  EXPECT_TRUE(make_folder(path).ok());
  EXPECT_TRUE(make_folder(path).ok()) << "it is there";
  EXPECT_TRUE(list(path).empty());
  dir.write("made/a.x", std::vector<std::byte>(100));
  dir.write("made/b.x", {});
  dir.write("made/.x", {});
  dir.write("made/a.y", {});
  fs::create_directory(path + "/c.x");
  const std::vector<FolderFile> files = list(path);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0].name, "a.x");
  EXPECT_EQ(files[0].bytes, 100u);
  EXPECT_TRUE(files[0].regular && files[1].regular);
  EXPECT_FALSE(files[2].regular);
  EXPECT_GT(files[0].changed_ns, int64_t{1'600'000'000} * 1'000'000'000);
  for (const std::string& wrong : {dir.file("none/made"), path + "/a.x", std::string(), std::string("a\0b", 3)})
    EXPECT_FALSE(make_folder(wrong).ok()) << wrong;
  for (const std::string& wrong : {dir.file("none"), path + "/a.x"}) {
    const Status status = list_folder(wrong, ".x").take_status();
    EXPECT_EQ(status.code(), Code::io);
    EXPECT_NE(status.detail().native_code, 0);
  }
}

TEST(Folder, AUseComesLater) {
  const TempDir dir;
  const std::string a = dir.write("a.x", {}), b = dir.write("b.x", {});
  const auto later = [&] {
    const std::vector<FolderFile> files = list(fs::path(a).parent_path().string());
    return files[0].changed_ns > files[1].changed_ns ? "a" : "b";
  };
  EXPECT_TRUE(touch_file(a));
  EXPECT_STREQ(later(), "a");
  EXPECT_TRUE(touch_file(b));
  EXPECT_STREQ(later(), "b");
  EXPECT_TRUE(remove_file(a).ok());
  EXPECT_TRUE(remove_file(a).ok()) << "it is not there";
  EXPECT_FALSE(touch_file(a));
  EXPECT_FALSE(fs::exists(a));
  EXPECT_FALSE(remove_file(fs::path(a).parent_path().string()).ok()) << "a directory";
}

// A writer's temporary stays, a dead writer's leaves.
TEST(Folder, LeftoversOfDeadWritersLeave) {
  const TempDir dir;
  const std::string path = fs::path(dir.file("x")).parent_path().string();
  auto writer = AtomicFile::create(dir.file("kept"));
  ASSERT_TRUE(writer.ok());
  const std::string left = dir.write(".orrery-00112233445566778899aabbccddeeff-31", {}), other = dir.write(".orrery-00112233", {});
  remove_leftovers(path);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(std::move(writer).value().commit().ok());
  EXPECT_TRUE(fs::exists(dir.file("kept")));
}

}  // namespace
}  // namespace orrery::os

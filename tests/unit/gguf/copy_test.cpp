// The header is copied once: a program that overwrites the file meanwhile or afterwards changes numbers in tensors, and nothing that was
// checked.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace orrery::gguf::copy_test {
namespace {

using testing::Bytes;
using testing::ByteWriter;
using testing::GgufBuilder;

Bytes nested_words() {  // [["a", "bb"], ["ccc"]]
  ByteWriter w;
  w.put(ValueType::array).put(uint64_t{2});
  w.put(ValueType::string).put(uint64_t{2}).text("a").text("bb");
  w.put(ValueType::string).put(uint64_t{1}).text("ccc");
  return w.bytes;
}

GgufBuilder model() {
  GgufBuilder b;
  b.key("general.architecture", "llama").key("number", uint32_t{7});
  std::vector<std::string> tokens;
  for (int i = 0; i < 100; ++i) tokens.push_back("token " + std::to_string(i));
  b.array("tokens", tokens).raw_key("nested", 9, nested_words());
  b.tensor("w", TensorType::f32, {8}, testing::as_bytes(std::vector<float>(8, 1.0f)));
  return b;
}

// Looks at everything that a caller can; false where something is not as it was written.
bool as_written(const File& f) {
  std::string_view s;
  uint64_t u = 0;
  const Value *architecture = f.find("general.architecture"), *number = f.find("number"), *tokens = f.find("tokens"),
              *nested = f.find("nested");
  if (!architecture || !number || !tokens || !nested) return false;
  bool good = architecture->as_string(&s) && s == "llama" && number->as_u64(&u) && u == 7 && tokens->size() == 100;
  for (uint64_t i = 0; i < tokens->size(); ++i) good = good && tokens->at(i).as_string(&s) && s == "token " + std::to_string(i);
  good = good && nested->at(0).at(1).as_string(&s) && s == "bb" && nested->at(1).at(0).as_string(&s) && s == "ccc";
  return good && f.n_keys() == 4 && f.key(0) == "general.architecture" && f.tensors().size() == 1 && f.tensors()[0].name == "w" &&
         f.find_tensor("w") == &f.tensors()[0];
}

void overwrite(const std::string& path, const Bytes& bytes, size_t from, size_t n) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(from));
  file.write(reinterpret_cast<const char*>(bytes.data()) + from, static_cast<std::streamsize>(n));
  ASSERT_TRUE(file.flush().good());
}

TEST(HeaderCopy, MemoryMayChangeBehindIt) {
  Bytes bytes = model().build();
  const File f = File::parse(bytes, "memory").value();
  uint8_t before[16], after[16];
  f.fingerprint(false, before);
  for (size_t i = 0; i < f.tensors()[0].offset; ++i) bytes[i] = std::byte{0xFF};
  EXPECT_TRUE(as_written(f));
  f.fingerprint(false, after);
  EXPECT_EQ(std::memcmp(before, after, 16), 0);
}

TEST(HeaderCopy, AFileMayChangeBehindIt) {
  const testing::TempDir dir;
  const Bytes bytes = model().build();
  for (const Load load : {Load::map, Load::read})
    for (const bool header_only : {false, true}) {
      const std::string path = dir.write("m.gguf", bytes);
      OpenOptions options;
      options.load = load;
      options.header_only = header_only;
      const File f = File::open(path, options).value();
      overwrite(path, Bytes(bytes.size(), std::byte{0xFF}), 0, bytes.size() - 32);  // all but the tensor
      EXPECT_TRUE(as_written(f));
      if (header_only) continue;
      float w = 0;
      std::memcpy(&w, f.tensors()[0].data, sizeof w);
      EXPECT_EQ(w, 1.0f);
      uint8_t fingerprint[16];
      f.fingerprint(true, fingerprint);  // reads the copy
    }
}

#ifndef _WIN32  // which removes a file's name with its last handle
// What a file is when it is opened counts, whatever stands at its path later.
TEST(HeaderCopy, AFileMayBeReplacedWhileItIsOpened) {
  const testing::TempDir dir;
  const std::string path = dir.write("m.gguf", model().build());
  OpenOptions options;
  options.load = Load::read;
  options.accept = [&](const File&) {
    EXPECT_EQ(std::remove(path.c_str()), 0);
    dir.write("m.gguf", Bytes(10, std::byte{0}));
    return ok_status();
  };
  const Result<File> f = File::open(path, options);
  ASSERT_TRUE(f.ok()) << f.status().message();
  EXPECT_TRUE(as_written(f.value()));
}
#endif

// A thread writes lengths of strings and arrays, now right, now absurd, while the file is opened over and over. Some of these
// openings fail; what opens can be read from end to end.
TEST(HeaderCopy, AFileMayChangeWhileItIsOpened) {
  const testing::TempDir dir;
  GgufBuilder b = model();
  b.array("many", std::vector<std::string>(20000, "some token"));
  const Bytes good = b.build();
  Bytes bad = good;
  for (const char* text : {"llama", "token 42", "bb", "tokens", "many"})
    testing::poke(&bad, testing::find_bytes(good, text) - 8, uint64_t{1} << 60);
  const std::string path = dir.write("m.gguf", good);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) overwrite(path, i % 2 ? good : bad, 0, 4096);
  });
  int opened = 0;
  uint64_t sum = 0;
  for (int i = 0; i < 600; ++i) {
    OpenOptions options;
    options.load = i % 2 ? Load::read : Load::map;
    const Result<File> f = File::open(path, options);
    if (!f.ok()) {
      EXPECT_EQ(f.status().code(), Code::bad_model) << f.status().message();
      continue;
    }
    ++opened;
    for (uint64_t k = 0; k < f.value().n_keys(); ++k) {
      const Value v = f.value().value(k);
      for (uint64_t e = 0; e < v.size(); ++e) {
        std::string_view s;
        if (v.at(e).as_string(&s))
          for (const char c : s) sum += static_cast<uint8_t>(c);
      }
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(opened, 0);
  EXPECT_GT(sum, 0u);
}

}  // namespace
}  // namespace orrery::gguf::copy_test

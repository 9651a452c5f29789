// Split models: all parts found from any of them, and every way in which parts can fail to fit together.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace orrery::gguf::split_test {
namespace {

using testing::as_bytes;
using testing::Bytes;
using testing::GgufBuilder;

std::string part_name(int number, int count) { return format("model-%05d-of-%05d.gguf", number + 1, count); }

GgufBuilder part(int number, int count, int n_tensors) {
  GgufBuilder b;
  if (number == 0) b.key("general.architecture", "llama");
  b.key("split.no", static_cast<uint16_t>(number)).key("split.count", static_cast<uint16_t>(count));
  b.key("split.tensors.count", static_cast<int32_t>(n_tensors));
  return b;
}

GgufBuilder with_tensor(GgufBuilder b, const std::string& name, float value) {
  return b.tensor(name, TensorType::f32, {2}, as_bytes(std::vector<float>{value, value}));
}

struct Split : ::testing::Test {
  testing::TempDir dir;
  std::vector<Bytes> parts{part(0, 3, 3).build(), with_tensor(with_tensor(part(1, 3, 3), "a", 1), "b", 2).build(),
                           with_tensor(part(2, 3, 3), "c", 3).build()};

  std::string path(int i) const { return dir.file(part_name(i, 3)); }
  void write() const {
    for (int i = 0; i < 3; ++i) dir.write(part_name(i, 3), parts[static_cast<size_t>(i)]);
  }
  // Opening from any part must fail; the message names `file` and `what`.
  void expect_bad(const std::string& file, const std::string& what, Code code = Code::bad_model) const {
    write();
    const Result<File> f = File::open(path(0));
    ASSERT_FALSE(f.ok());
    EXPECT_EQ(f.status().code(), code);
    const std::string m = f.status().message();
    EXPECT_EQ(m.find(file), 0u) << m;
    EXPECT_NE(m.find(what), std::string::npos) << m;
    EXPECT_FALSE(File::open(path(1)).ok());
    EXPECT_FALSE(File::open(path(2)).ok());
  }
};

TEST_F(Split, OpensFromAnyPart) {
  write();
  for (const Load load : {Load::map, Load::read})
    for (int i = 0; i < 3; ++i) {
      Result<File> f = File::open(path(i), {load, false});
      ASSERT_TRUE(f.ok()) << f.status().message();
      EXPECT_EQ(f->path(), path(i));
      EXPECT_EQ(f->n_parts(), 3u);
      EXPECT_EQ(f->file_bytes(), parts[0].size() + parts[1].size() + parts[2].size());
      EXPECT_EQ(f->required_string("general.architecture").value(), "llama");
      ASSERT_EQ(f->tensors().size(), 3u);
      const char* names[] = {"a", "b", "c"};
      for (uint32_t t = 0; t < 3; ++t) {
        const Tensor& tensor = f->tensors()[t];
        EXPECT_EQ(tensor.name, names[t]);
        EXPECT_EQ(tensor.part, t == 2 ? 2u : 1u);
        float v;
        std::memcpy(&v, tensor.data, sizeof v);
        EXPECT_EQ(v, static_cast<float>(t + 1));
        EXPECT_EQ(f->find_tensor(names[t]), &tensor);
      }
    }
  Result<File> header = File::open(path(2), {Load::map, true});
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->tensors().size(), 3u);
  EXPECT_EQ(header->tensors()[0].data, nullptr);
}

TEST_F(Split, FingerprintIsThatOfTheModelNotOfThePart) {
  write();
  uint8_t a[16], b[16];
  File::open(path(0)).value().fingerprint(false, a);
  File::open(path(2)).value().fingerprint(false, b);
  EXPECT_EQ(std::memcmp(a, b, 16), 0);
  parts[2] = with_tensor(part(2, 3, 3), "c", 4).build();
  write();
  File::open(path(0)).value().fingerprint(false, b);
  EXPECT_NE(std::memcmp(a, b, 16), 0);
}

TEST_F(Split, AlignmentIsTheLeastOfAllParts) {
  GgufBuilder first;
  first.alignment(64);
  first.key("split.no", uint16_t{0}).key("split.count", uint16_t{3}).key("split.tensors.count", int32_t{3});
  parts[0] = first.build();
  write();
  EXPECT_EQ(File::open(path(0)).value().alignment(), 32u);
}

TEST_F(Split, MissingPart) {
  write();
  std::remove(path(2).c_str());
  const Result<File> f = File::open(path(0));
  ASSERT_FALSE(f.ok());
  EXPECT_EQ(f.status().code(), Code::io);
  EXPECT_NE(std::string(f.status().message()).find(path(2)), std::string::npos) << f.status().message();
}

TEST_F(Split, PartOfAnotherNumber) {
  parts[1] = with_tensor(with_tensor(part(2, 3, 3), "a", 1), "b", 2).build();
  expect_bad(path(1), "'split.no': this is part 2 of 3, expected part 1 of 3");
}

TEST_F(Split, PartOfAnotherCount) {
  parts[1] = with_tensor(with_tensor(part(1, 4, 3), "a", 1), "b", 2).build();
  expect_bad(path(1), "'split.no': this is part 1 of 4, expected part 1 of 3");
}

TEST_F(Split, PartWithoutSplitKeys) {
  parts[2] = with_tensor(GgufBuilder(), "c", 3).build();
  write();
  const Result<File> f = File::open(path(0));
  ASSERT_FALSE(f.ok());
  EXPECT_NE(std::string(f.status().message()).find("part 0 of 1, expected part 2 of 3"), std::string::npos);
}

TEST_F(Split, TensorCountDisagrees) {
  parts[2] = with_tensor(with_tensor(part(2, 3, 3), "c", 3), "d", 4).build();
  expect_bad(path(0), "'split.tensors.count': found 3, but the parts together hold 4 tensors");
}

TEST_F(Split, TensorCountMissing) {
  GgufBuilder first;
  first.key("split.no", uint16_t{0}).key("split.count", uint16_t{3});
  parts[0] = first.build();
  expect_bad(path(0), "'split.tensors.count' is missing");
}

TEST_F(Split, TensorInTwoParts) {
  parts[2] = with_tensor(part(2, 3, 3), "a", 3).build();
  expect_bad(path(2), "tensor 'a': occurs twice, first at byte");
}

// Metadata is the first part's. A later part may repeat it, and may not add to it: nobody would read that.
TEST_F(Split, KeysOfLaterParts) {
  GgufBuilder first = part(0, 3, 3), same = part(1, 3, 3);
  first.key("general.type", "model").array("words", std::vector<std::string>{"a", "b"});
  same.array("words", std::vector<std::string>{"a", "b"}).key("general.architecture", "llama");
  parts[0] = first.build();
  parts[1] = with_tensor(with_tensor(same, "a", 1), "b", 2).build();
  write();
  {
    const Result<File> f = File::open(path(0));  // closed before the parts are written again: Windows keeps a mapped file as it is
    EXPECT_TRUE(f.ok()) << f.status().message();
  }
  GgufBuilder more = part(2, 3, 3);
  parts[2] = with_tensor(more.key("llama.logit_scale", 0.5f), "c", 3).build();
  expect_bad(path(2), "key 'llama.logit_scale': is f32 0.5 in this part, and absent in the first");
  GgufBuilder other = part(2, 3, 3);
  parts[2] = with_tensor(other.array("words", std::vector<std::string>{"a", "c"}), "c", 3).build();
  expect_bad(path(2), "key 'words': is array of 2 string in this part, something else in the first");
}

TEST_F(Split, BadPart) {
  parts[2].resize(parts[2].size() - 30);  // into the data: padding is 24 bytes
  expect_bad(path(2), "tensor 'c'");
}

TEST_F(Split, NumberOutOfRange) {
  parts[0] = part(3, 3, 3).build();
  expect_bad(path(0), "'split.no': found 3, expected less than split.count, 3");
}

TEST_F(Split, KeysOfTheWrongType) {
  GgufBuilder first;
  first.key("split.count", "three");
  parts[0] = first.build();
  expect_bad(path(0), "'split.count': found string 'three', expected an unsigned integer");
  GgufBuilder huge;
  huge.key("split.count", uint64_t{1} << 40);
  parts[0] = huge.build();
  expect_bad(path(0), "'split.count': found 1099511627776, expected at most 65535");
}

TEST_F(Split, RenamedFile) {
  const std::string renamed = dir.write("renamed.gguf", parts[1]);
  const Result<File> f = File::open(renamed);
  ASSERT_FALSE(f.ok());
  EXPECT_EQ(f.status().code(), Code::bad_model);
  EXPECT_NE(std::string(f.status().message()).find("-00002-of-00003.gguf"), std::string::npos);
}

TEST_F(Split, PartInMemoryIsRefused) {
  const Result<File> f = File::parse(parts[1], "memory");
  ASSERT_FALSE(f.ok());
  EXPECT_NE(std::string(f.status().message()).find("part 1 of 3 (from 0); a split model is opened by its path"), std::string::npos);
}

TEST_F(Split, OnePartNeedsNoSpecialName) {
  const std::string path = dir.write("single.gguf", with_tensor(part(0, 1, 1), "a", 1).build());
  EXPECT_TRUE(File::open(path).ok());
}

}  // namespace
}  // namespace orrery::gguf::split_test

// The cost of opening: tables in proportion to the header's bytes, data in proportion to the tensors' bytes, whatever the file promises;
// limits with their numbers; progress and cancellation from the first megabyte on.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "runtime/gguf/parse.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace orrery::gguf::memory_test {
namespace {

using testing::Bytes;
using testing::ByteWriter;
using testing::GgufBuilder;

constexpr uint64_t kMiB = uint64_t{1} << 20;

Result<std::unique_ptr<Header>> parse(const Bytes& bytes, uint64_t memory_bytes = UINT64_MAX) {
  Input in;
  in.name = "m.gguf";
  in.file_bytes = bytes.size();
  in.read = [&](uint64_t offset, Span<std::byte> out) {
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return ok_status();
  };
  in.memory_bytes = memory_bytes;
  in.memory_bound_by = "this test";
  return parse_header(in);
}

uint64_t table_bytes(const Header& h) {
  return h.key_at.size() * sizeof h.key_at[0] + h.values.size() * sizeof h.values[0] + h.key_order.capacity() * sizeof h.key_order[0] +
         h.indexes.size() * sizeof h.indexes[0] + h.element_at.size() * sizeof h.element_at[0];
}

// Headers that are all table: the least bytes for each entry.
Bytes many_keys(uint32_t n) {
  GgufBuilder b;
  for (uint32_t i = 0; i < n; ++i) {
    const char name[] = {static_cast<char>('A' + i % 26), static_cast<char>('A' + i / 26 % 26), static_cast<char>('A' + i / 676 % 26),
                         static_cast<char>('A' + i / 17576), 0};
    b.key(name, uint8_t{1});
  }
  return b.build();
}
// n arrays, each of `inside` arrays of nothing.
Bytes nested(uint64_t n, uint64_t inside) {
  ByteWriter w;
  w.put(ValueType::array).put(n);
  for (uint64_t i = 0; i < n; ++i) {
    w.put(ValueType::array).put(inside);
    for (uint64_t k = 0; k < inside; ++k) w.put(ValueType::u8).put(uint64_t{0});
  }
  return GgufBuilder().raw_key("nested", 9, w.bytes).build();
}
Bytes nested_strings(uint64_t n, uint64_t inside) {
  ByteWriter w;
  w.put(ValueType::array).put(n);
  for (uint64_t i = 0; i < n; ++i) {
    w.put(ValueType::string).put(inside);
    for (uint64_t k = 0; k < inside; ++k) w.put(uint64_t{0});
  }
  return GgufBuilder().raw_key("nested", 9, w.bytes).build();
}

TEST(HeaderCost, TablesAreLessThanTwiceTheHeader) {
  const std::pair<const char*, Bytes> headers[] = {
      {"keys", many_keys(200000)},          {"empty strings", GgufBuilder().array("s", std::vector<std::string>(300000)).build()},
      {"empty arrays", nested(1, 300000)},  {"arrays of one", nested(100000, 1)},
      {"arrays of two", nested(100000, 2)}, {"arrays of strings", nested_strings(30000, 9)},
  };
  for (const auto& [name, bytes] : headers) {
    const auto header = parse(bytes);
    ASSERT_TRUE(header.ok()) << name << header.status().message();
    EXPECT_GT(header.value()->header_bytes, bytes.size() - 32) << name;
    EXPECT_EQ(header.value()->bytes.size(), header.value()->header_bytes) << name;
    EXPECT_LT(table_bytes(*header.value()), 2 * bytes.size()) << name;
  }
}

TEST(HeaderCost, ElementsOfLongAndDeepArraysAreFound) {
  const Bytes bytes = nested_strings(1000, 9);
  const File f = File::parse(bytes, "m").value();
  const Value* v = f.find("nested");
  ASSERT_EQ(v->size(), 1000u);
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_TRUE(v->at(i).is_array_of(ValueType::string));
    ASSERT_EQ(v->at(i).size(), 9u);
    std::string_view s = "x";
    ASSERT_TRUE(v->at(i).at(8).as_string(&s) && s.empty());
  }
  std::vector<std::string> words;
  for (size_t i = 0; i < 1000; ++i) words.push_back(std::string(i % 7, 'w') + std::to_string(i));
  const Bytes long_one = GgufBuilder().array("a", words).array("b", std::vector<std::string>(words.rbegin(), words.rend())).build();
  const File g = File::parse(long_one, "m").value();
  for (size_t i = words.size(); i-- > 0;) {
    std::string_view a, b;
    ASSERT_TRUE(g.find("a")->at(i).as_string(&a) && a == words[i]) << i;
    ASSERT_TRUE(g.find("b")->at(i).as_string(&b) && b == words[words.size() - 1 - i]) << i;
  }
}

TEST(HeaderCost, NumbersOfKeysAndTensorsAreBounded) {
  const testing::TempDir dir;
  for (const size_t at : {size_t{8}, size_t{16}}) {
    Bytes bytes = GgufBuilder().key("k", "v").build();
    testing::poke(&bytes, at, (at == 8 ? kMaxTensors : kMaxKeys) + 1);
    const std::string path = dir.write("many.gguf", bytes);
    std::filesystem::resize_file(path, 100 * kMiB);
    const Result<File> f = File::open(path);
    ASSERT_FALSE(f.ok());
    EXPECT_EQ(f.status().code(), Code::bad_model);
    EXPECT_NE(std::string(f.status().message())
                  .find(at == 8 ? "tensor count is 65537, expected at most 65536" : "key count is 1048577, expected at most 1048576"),
              std::string::npos)
        << f.status().message();
  }
}

TEST(HeaderCost, MoreThanThereIsOfMemoryIsRefusedWithItsNumbers) {
  const Bytes bytes = GgufBuilder().array("text", std::vector<std::string>(80000, std::string(92, 'x'))).build();  // 8 MB
  const auto header = parse(bytes, 12 * kMiB);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), Code::out_of_host_memory);
  EXPECT_EQ(header.status().detail().bytes_available, 12 * kMiB);
  EXPECT_GT(header.status().detail().bytes_requested, 12 * kMiB);
  const std::string message = header.status().message();
  EXPECT_EQ(message.find("m.gguf: "), 0u);
  EXPECT_NE(message.find("12582912 are free (this test)"), std::string::npos) << message;
  EXPECT_TRUE(parse(bytes, 100 * kMiB).ok());
}

// Four tensors of a megabyte in a file of gigabytes.
struct Sparse : ::testing::Test {
  static constexpr uint64_t kFileBytes = uint64_t{3} << 30;
  testing::TempDir dir;
  std::string path;
  void SetUp() override {
    GgufBuilder b;
    for (uint64_t i = 0; i < 4; ++i)  // the last in the table comes first in the file
      b.raw_tensor("t" + std::to_string(i), 1, {kMiB / 4}, 0, (3 - i) * (uint64_t{700} << 20));
    path = dir.write("sparse.gguf", b.build());
    std::error_code failed;
    std::filesystem::resize_file(path, kFileBytes, failed);
    if (failed) GTEST_SKIP() << "no sparse files here";
  }
};

TEST_F(Sparse, ReadingTakesWhatTensorsNeed) {
  std::vector<uint64_t> done;
  OpenOptions options;
  options.load = Load::read;
  options.memory_bytes = 5 * kMiB;
  options.progress = [&](uint64_t d, uint64_t total) {
    EXPECT_EQ(total, kFileBytes);
    return done.push_back(d), true;
  };
  const Result<File> f = File::open(path, options);
  ASSERT_TRUE(f.ok()) << f.status().message();
  EXPECT_LT(done.size(), 16u);  // megabytes, not gigabytes
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  for (const Tensor& t : f.value().tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % 32, 0u);
    for (const uint64_t at : {uint64_t{0}, t.bytes - 1}) EXPECT_EQ(t.data[at], std::byte{0});
  }
}

TEST_F(Sparse, MoreThanThereIsOfMemoryIsRefusedBeforeReading) {
  OpenOptions options;
  options.load = Load::read;
  options.memory_bytes = 4 * kMiB - 1;
  const Result<File> f = File::open(path, options);
  ASSERT_FALSE(f.ok());
  EXPECT_EQ(f.status().code(), Code::out_of_host_memory);
  EXPECT_EQ(f.status().detail().bytes_requested, 4 * kMiB);
  EXPECT_LT(f.status().detail().bytes_available, 4 * kMiB);  // what is left beside the header
  EXPECT_GT(f.status().detail().bytes_available, 4 * kMiB - 4096);
  EXPECT_NE(std::string(f.status().message()).find("takes 4194304 bytes of memory, "), std::string::npos) << f.status().message();
}

TEST_F(Sparse, WhoDoesNotAcceptTheHeaderPaysForNoData) {
  int calls = 0;
  OpenOptions options;
  options.load = Load::read;
  options.progress = [&](uint64_t, uint64_t) { return ++calls, true; };
  options.accept = [](const File& header) {
    EXPECT_EQ(header.tensors().size(), 4u);
    EXPECT_EQ(header.tensors()[0].data, nullptr);
    return error(Code::unsupported, "not this one");
  };
  const Result<File> f = File::open(path, options);
  ASSERT_FALSE(f.ok());
  EXPECT_STREQ(f.status().message(), "not this one");
  EXPECT_EQ(calls, 1);
}

TEST(OpenProgress, BeginsWithTheFirstMegabyteOfTheHeader) {
  const testing::TempDir dir;
  GgufBuilder b;
  b.array("text", std::vector<std::string>(80000, std::string(92, 'x')));  // 8 MB
  b.tensor("w", TensorType::f32, {1 << 20});
  const std::string path = dir.write("long.gguf", b.build());
  for (const Load load : {Load::map, Load::read})
    for (const bool header_only : {false, true}) {
      OpenOptions options;
      options.load = load;
      options.header_only = header_only;
      std::vector<uint64_t> done;
      options.progress = [&](uint64_t d, uint64_t) { return done.push_back(d), true; };
      ASSERT_TRUE(File::open(path, options).ok());
      EXPECT_GE(done.size(), 8u);
      EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
      if (load == Load::map) {
        EXPECT_EQ(done.back(), 0u);
      } else {
        EXPECT_EQ(done.front(), kMiB);
      }
      const size_t calls = done.size();
      for (size_t stop = 1; stop <= calls; ++stop) {
        size_t n = 0;
        options.progress = [&](uint64_t, uint64_t) { return ++n < stop; };
        EXPECT_EQ(File::open(path, options).status().code(), Code::cancelled);
        EXPECT_EQ(n, stop);
      }
    }
}

TEST(OpenProgress, NeverFallsFromPartToPart) {
  const testing::TempDir dir;
  for (int i = 0; i < 3; ++i) {
    GgufBuilder b;
    b.key("split.no", static_cast<uint16_t>(i)).key("split.count", uint16_t{3}).key("split.tensors.count", int32_t{3});
    b.tensor("t" + std::to_string(i), TensorType::f32, {3 << 20});
    dir.write(format("m-%05d-of-00003.gguf", i + 1), b.build());
  }
  for (const char* part : {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}) {
    std::vector<uint64_t> done;
    uint64_t last_total = 0;
    OpenOptions options;
    options.load = Load::read;
    options.progress = [&](uint64_t d, uint64_t total) {
      last_total = total;
      EXPECT_LE(d, total);
      return done.push_back(d), true;
    };
    const Result<File> f = File::open(dir.file(part), options);
    ASSERT_TRUE(f.ok()) << f.status().message();
    EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
    EXPECT_EQ(last_total, f.value().file_bytes());
    EXPECT_GT(done.back(), last_total - 100);
  }
}

}  // namespace
}  // namespace orrery::gguf::memory_test

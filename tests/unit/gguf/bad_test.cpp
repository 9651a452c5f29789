// Bad files: every field that can lie, one file each. All are refused with a status that says where and what;
// none is a crash, a hang or a large allocation.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_blocks.h"
#include "tests/support/temp_dir.h"

namespace orrery::gguf::bad_test {
namespace {

using testing::Bytes;
using testing::ByteWriter;
using testing::find_bytes;
using testing::GgufBuilder;
using testing::poke;

constexpr uint64_t kAnywhere = ~uint64_t{0};

// The file is refused with `code`; the message opens with file and offset and holds all of `parts`.
void expect_bad(const Bytes& bytes, uint64_t offset, const std::vector<std::string>& parts, Code code = Code::bad_model) {
  const Result<File> f = File::parse(bytes, "bad.gguf");
  ASSERT_FALSE(f.ok());
  const std::string m = f.status().message();
  EXPECT_EQ(f.status().code(), code) << m;
  if (offset != kAnywhere) {
    EXPECT_EQ(f.status().detail().offset, offset) << m;
  }
  const std::string start = "bad.gguf: byte " + std::to_string(f.status().detail().offset) + ": ";
  EXPECT_EQ(m.find(start), 0u) << m;
  for (const std::string& part : parts) EXPECT_NE(m.find(part), std::string::npos) << m << "\nlacks: " << part;
  EXPECT_LT(m.size(), 1000u);
}

// A valid file to damage: one string key, two tensors.
GgufBuilder valid() {
  GgufBuilder b;
  b.key("general.architecture", "llama").array("list", std::vector<std::string>{"x", "y"});
  b.tensor("first", TensorType::f32, {8, 2}).tensor("second", TensorType::q8_0, {32});
  return b;
}

TEST(BadFile, TheFileToDamageIsGood) {
  const Bytes bytes = valid().build();
  ASSERT_TRUE(File::parse(bytes, "good.gguf").ok());
}

TEST(BadFile, TruncatedAnywhere) {
  const Bytes whole = valid().build();
  const File good = File::parse(whole, "good.gguf").value();
  const uint64_t end = good.tensors()[1].offset + good.tensors()[1].bytes;
  for (size_t n = 0; n < end; ++n) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
    SCOPED_TRACE(n);
    ASSERT_NO_FATAL_FAILURE(expect_bad(cut, kAnywhere, {}));
  }
}

TEST(BadFile, TruncatedOnDisk) {
  const testing::TempDir dir;
  const Bytes whole = valid().build();
  for (const size_t n : {size_t{0}, size_t{3}, size_t{24}, size_t{100}, whole.size() - 40}) {
    const std::string path = dir.write("cut.gguf", Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)));
    for (const Load load : {Load::map, Load::read})
      for (const bool header_only : {false, true}) {
        const Result<File> f = File::open(path, {load, header_only});
        ASSERT_FALSE(f.ok()) << n;
        EXPECT_EQ(f.status().code(), Code::bad_model);
        EXPECT_EQ(std::string(f.status().message()).find(path), 0u);
      }
  }
}

// A sparse file promises far more than anybody should read before its header has been checked.
TEST(BadFile, HugeSparseFileIsRefusedQuickly) {
  const testing::TempDir dir;
  Bytes bytes = valid().build();
  poke(&bytes, 8, uint64_t{1} << 32);  // tensors: the size of the file allows as many
  const std::string path = dir.write("sparse.gguf", bytes);
  std::error_code failed;
  std::filesystem::resize_file(path, uint64_t{1} << 40, failed);
  if (failed) GTEST_SKIP() << "no sparse files here";
  for (const Load load : {Load::map, Load::read}) {
    const auto from = std::chrono::steady_clock::now();
    const Result<File> f = File::open(path, {load, false});
    EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(5));
    ASSERT_FALSE(f.ok());
    EXPECT_EQ(f.status().code(), Code::bad_model) << f.status().message();
  }
}

// Zeros are valid empty strings: a sparse file could promise a million million of them.
TEST(BadFile, HeaderWithoutEnd) {
  const testing::TempDir dir;
  ByteWriter array;
  array.put(ValueType::string).put(uint64_t{1} << 36);
  const std::string path = dir.write("endless.gguf", GgufBuilder().raw_key("k", 9, array.bytes).build());
  std::error_code failed;
  std::filesystem::resize_file(path, uint64_t{1} << 40, failed);
  if (failed) GTEST_SKIP() << "no sparse files here";
  for (const Load load : {Load::map, Load::read}) {
    const Result<File> f = File::open(path, {load, true});
    ASSERT_FALSE(f.ok());
    EXPECT_EQ(f.status().code(), Code::bad_model);
    EXPECT_NE(std::string(f.status().message()).find("longer than 268435456 bytes"), std::string::npos) << f.status().message();
  }
}

TEST(BadFile, NoFile) {
  const testing::TempDir dir;
  for (const Load load : {Load::map, Load::read}) {
    const Result<File> f = File::open(dir.file("absent.gguf"), {load, false});
    ASSERT_FALSE(f.ok());
    EXPECT_EQ(f.status().code(), Code::io);
    EXPECT_NE(f.status().detail().native_code, 0);
    EXPECT_NE(std::string(f.status().message()).find("absent.gguf"), std::string::npos);
    EXPECT_EQ(File::open(dir.file("."), {load, false}).status().code(), Code::io);
    EXPECT_EQ(File::open("", {load, false}).status().code(), Code::invalid_argument);
  }
}

TEST(BadFile, UnalignedMemory) {
  const Bytes bytes = valid().build();
  Bytes shifted(bytes.size() + 1);
  std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
  const Result<File> f = File::parse({shifted.data() + 1, bytes.size()}, "m");
  ASSERT_FALSE(f.ok());
  EXPECT_EQ(f.status().code(), Code::invalid_argument);
}

// Header ---------------------------------------------------------------------------------------------------

TEST(BadFile, Magic) {
  Bytes bytes = valid().build();
  poke(&bytes, 0, uint32_t{0x6C6D6767});
  expect_bad(bytes, 0, {"'ggml'", "expected 'GGUF'"});
  poke(&bytes, 0, uint32_t{0xFF000A1B});  // a terminal's escape does not get through
  expect_bad(bytes, 0, {"'\\x1b\\x0a\\x00\\xff'"});
}

TEST(BadFile, Version) {
  for (const uint32_t v : {0u, 1u, 4u, 0xFFFFFFFFu}) {
    Bytes bytes = valid().build();
    poke(&bytes, 4, v);
    expect_bad(bytes, 4, {"version is " + std::to_string(v), "expected 2 or 3"});
  }
  Bytes bytes = valid().build();
  poke(&bytes, 4, uint32_t{0x03000000});
  expect_bad(bytes, 4, {"big-endian"});
}

TEST(BadFile, Counts) {
  for (const uint64_t n : {uint64_t{1000}, uint64_t{1} << 32, uint64_t{1} << 58, uint64_t{1} << 61, ~uint64_t{0}}) {
    expect_bad(valid().claim_tensors(n).build(), 8, {"tensor count is " + std::to_string(n), "remain"});
    expect_bad(valid().claim_keys(n).build(), 16, {"key count is " + std::to_string(n), "remain"});
  }
  // Counts that fit, with fewer keys or tensors there: what follows is taken for one, and is none.
  expect_bad(valid().claim_keys(4).build(), kAnywhere, {});
  expect_bad(valid().claim_keys(1).build(), kAnywhere, {"tensor 'list'", "9 dimensions"});
  expect_bad(valid().claim_tensors(4).build(), kAnywhere, {"tensor 2"});
}

// Keys -----------------------------------------------------------------------------------------------------

TEST(BadFile, KeyNames) {
  expect_bad(GgufBuilder().key("", uint32_t{1}).build(), 32, {"key 0", "is empty"});
  expect_bad(GgufBuilder().key("ok", uint32_t{1}).key("\xC3(", uint32_t{1}).build(), kAnywhere, {"key 1", "'\\xc3('", "not UTF-8"});
  for (const char* broken : {"\x80", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80", "a\xE2\x82"})
    expect_bad(GgufBuilder().key(broken, uint32_t{1}).build(), 32, {"key 0", "not UTF-8"});
  expect_bad(GgufBuilder().key(std::string_view("a\0b", 3), uint32_t{1}).build(), 32, {"'a\\x00b'", "zero byte"});
  for (const char* fine : {"\xC3\xBC", "\xE2\x82\xAC", "\xED\x9F\xBF", "\xF0\x9F\x8C\x8D", "\xF4\x8F\xBF\xBF"}) {
    const Bytes bytes = GgufBuilder().key(fine, uint32_t{1}).build();
    EXPECT_TRUE(File::parse(bytes, "m").ok()) << fine;
  }
  const Bytes longest = GgufBuilder().key(std::string(65535, 'k'), uint32_t{1}).build();
  EXPECT_TRUE(File::parse(longest, "m").ok());
  expect_bad(GgufBuilder().key(std::string(65536, 'k'), uint32_t{1}).build(), 24, {"key 0", "65536", "at most 65535"});
}

TEST(BadFile, DuplicateKeys) {
  const Bytes bytes = GgufBuilder().key("twice", uint32_t{1}).key("other", 1.0f).key("twice", "x").build();
  expect_bad(bytes, 24 + (8 + 5 + 4 + 4) + (8 + 5 + 4 + 4) + 8, {"key 'twice'", "occurs twice", "byte 32"});
}

TEST(BadFile, ValueTypes) {
  for (const uint32_t type : {13u, 14u, 255u, 0xFFFFFFFFu}) {
    const Bytes bytes = GgufBuilder().raw_key("k", type, Bytes(8)).build();
    expect_bad(bytes, 33, {"key 'k'", "value type is " + std::to_string(type), "expected 0 to 12"});
    ByteWriter array;
    array.put(type).put(uint64_t{1}).put(uint64_t{0});
    expect_bad(GgufBuilder().raw_key("k", 9, array.bytes).build(), 37,
               {"key 'k'", "element type is " + std::to_string(type), "expected 0 to 12"});
  }
}

TEST(BadFile, Bools) {
  expect_bad(GgufBuilder().raw_key("k", 7, Bytes(1, std::byte{2})).build(), 37, {"key 'k'", "bool is 2", "0 or 1"});
  ByteWriter array;
  array.put(ValueType::boolean).put(uint64_t{3}).put(uint8_t{1}).put(uint8_t{0}).put(uint8_t{255});
  expect_bad(GgufBuilder().raw_key("k", 9, array.bytes).build(), 51, {"key 'k'", "bool is 255"});
}

TEST(BadFile, StringLengths) {
  for (const uint64_t n : {uint64_t{6}, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0} - 30, ~uint64_t{0}}) {
    Bytes bytes = GgufBuilder().key("k", "value").build();
    poke(&bytes, bytes.size() - 13, n);
    expect_bad(bytes, bytes.size() - 5, {"key 'k'", std::to_string(n), "ends after 5"});
    bytes = GgufBuilder().array("k", std::vector<std::string>{"first", "value"}).build();
    poke(&bytes, bytes.size() - 13, n);
    expect_bad(bytes, bytes.size() - 5, {"key 'k'", std::to_string(n), "ends after 5"});
    bytes = GgufBuilder().key("k", uint8_t{1}).build();  // a name's length
    poke(&bytes, 24, n);
    expect_bad(bytes, kAnywhere, {"key 0"});  // 6: the name swallows what follows it
  }
}

TEST(BadFile, ArrayLengths) {
  for (const ValueType type :
       {ValueType::u8, ValueType::u16, ValueType::f32, ValueType::f64, ValueType::boolean, ValueType::string, ValueType::array})
    for (const uint64_t n : {uint64_t{17}, uint64_t{1} << 32, uint64_t{1} << 60, uint64_t{1} << 61, uint64_t{1} << 63, ~uint64_t{0}}) {
      ByteWriter array;
      array.put(type).put(n).raw(Bytes(16).data(), 16);
      expect_bad(GgufBuilder().raw_key("k", 9, array.bytes).build(), 41, {"key 'k'", "array of " + std::to_string(n), "16 remain"});
    }
}

TEST(BadFile, ArraysNestWithoutEnd) {
  const auto nested = [](int depth) {  // depth arrays of one array each around one of no bytes
    ByteWriter w;
    for (int i = 1; i < depth; ++i) w.put(ValueType::array).put(uint64_t{1});
    w.put(ValueType::u8).put(uint64_t{0});
    return GgufBuilder().raw_key("k", 9, w.bytes).build();
  };
  const Bytes deepest = nested(8);
  EXPECT_TRUE(File::parse(deepest, "m").ok());
  expect_bad(nested(9), kAnywhere, {"key 'k'", "nest deeper than 8"});
  expect_bad(nested(100000), kAnywhere, {"key 'k'", "nest deeper than 8"});
}

TEST(BadFile, Alignment) {
  for (const uint32_t a : {0u, 1u, 4u, 7u, 33u, 48u, 1u << 21, 1u << 31, 0xFFFFFFFFu}) {
    GgufBuilder b;
    b.key("general.alignment", a).tensor("t", TensorType::f32, {8});
    expect_bad(b.build(), 24 + 8 + 17 + 4, {"key 'general.alignment'", "found u32 " + std::to_string(a), "power of two from 8 to 1048576"});
  }
  expect_bad(GgufBuilder().key("general.alignment", uint64_t{1} << 63).build(), kAnywhere, {"general.alignment"});
  expect_bad(GgufBuilder().key("general.alignment", int32_t{-32}).build(), kAnywhere, {"found i32 -32"});
  expect_bad(GgufBuilder().key("general.alignment", "32").build(), kAnywhere, {"found string '32'"});
  expect_bad(GgufBuilder().key("general.alignment", 32.0f).build(), kAnywhere, {"found f32 32"});
  expect_bad(GgufBuilder().array("general.alignment", std::vector<uint32_t>{32}).build(), kAnywhere, {"array of 1 u32"});
  expect_bad(GgufBuilder().array("general.alignment", std::vector<std::string>{}).build(), kAnywhere, {"array of 0"});
}

// Tensors --------------------------------------------------------------------------------------------------

Bytes with_raw(uint32_t n_dims, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
  GgufBuilder b;
  b.tensor("ok", TensorType::f32, {64}).raw_tensor("bad", n_dims, dims, type, offset);
  return b.build();
}

TEST(BadFile, TensorNames) {
  const auto named = [](std::string_view name) { return GgufBuilder().tensor(name, TensorType::f32, {1}).build(); };
  expect_bad(named(""), 32, {"tensor 0", "is empty"});
  expect_bad(named("w\xFF"), 32, {"tensor 0", "'w\\xff'", "not UTF-8"});
  expect_bad(named(std::string_view("w\0", 2)), 32, {"tensor 0", "zero byte"});
  expect_bad(named(std::string(65, 'w')), 24, {"tensor 0", "65 bytes", "at most 64"});
  const Bytes longest = named(std::string(64, 'w'));
  EXPECT_TRUE(File::parse(longest, "m").ok());
  const Bytes twice = GgufBuilder().tensor("w", TensorType::f32, {1}).tensor("w", TensorType::f16, {1}).build();
  expect_bad(twice, 24 + (8 + 1 + 4 + 8 + 4 + 8) + 8, {"tensor 'w'", "occurs twice", "byte 32"});
}

TEST(BadFile, Dimensions) {
  expect_bad(with_raw(0, {}, 0, 0), kAnywhere, {"tensor 'bad'", "0 dimensions", "1 to 4"});
  expect_bad(with_raw(5, {1, 1, 1, 1, 1}, 0, 0), kAnywhere, {"tensor 'bad'", "5 dimensions", "1 to 4"});
  expect_bad(with_raw(0xFFFFFFFF, {1}, 0, 0), kAnywhere, {"tensor 'bad'", "4294967295 dimensions"});
  for (uint32_t zero = 0; zero < 4; ++zero) {
    std::vector<uint64_t> dims(4, 2);
    dims[zero] = 0;
    expect_bad(with_raw(4, dims, 0, 0), kAnywhere, {"tensor 'bad'", "dimension " + std::to_string(zero) + " is 0", "at least 1"});
  }
  // A zero does not hide behind a wrapped product, nor the other way round.
  expect_bad(with_raw(3, {uint64_t{1} << 32, uint64_t{1} << 32, 0}, 0, 0), kAnywhere, {"tensor 'bad'"});
}

TEST(BadFile, SizesThatWrap) {
  const uint64_t big = uint64_t{1} << 32;
  expect_bad(with_raw(2, {big, big}, 0, 0), kAnywhere, {"tensor 'bad'", "elements wraps"});
  expect_bad(with_raw(4, {1 << 16, 1 << 16, 1 << 16, 1 << 16}, 0, 0), kAnywhere, {"tensor 'bad'", "elements wraps"});
  expect_bad(with_raw(2, {3, 0xAAAAAAAAAAAAAAABu / 1}, 0, 0), kAnywhere, {"tensor 'bad'", "elements wraps"});
  expect_bad(with_raw(1, {uint64_t{1} << 62}, 0, 0), kAnywhere, {"tensor 'bad'", "bytes wraps"});  // * 4 = 0
  expect_bad(with_raw(2, {uint64_t{1} << 61, 2}, 1, 0), kAnywhere, {"tensor 'bad'"});              // F16
  expect_bad(with_raw(1, {~uint64_t{0} & ~uint64_t{31}}, 8, 0), kAnywhere, {"tensor 'bad'", "bytes wraps"});
  // Bytes that fit alone, and wrap with the offset; an offset that wraps with the start of the data.
  expect_bad(with_raw(1, {uint64_t{1} << 61}, 0, uint64_t{1} << 63), kAnywhere, {"tensor 'bad'", "end wraps"});
  expect_bad(with_raw(1, {8}, 0, ~uint64_t{31}), kAnywhere, {"tensor 'bad'", "end wraps"});
  expect_bad(with_raw(1, {8}, 0, uint64_t{1} << 63), kAnywhere, {"tensor 'bad'", "file ends at byte"});
  expect_bad(with_raw(1, {uint64_t{1} << 40}, 0, 0), kAnywhere, {"tensor 'bad'", "file ends at byte"});
}

TEST(BadFile, RowsThatAreNotWholeBlocks) {
  for (const TypeTraits& t : kTypeTraits) {
    if (t.block_elements == 1) continue;
    const auto type = static_cast<uint32_t>(t.type);
    const std::string expected = "multiple of " + std::to_string(t.block_elements) + ", the block of " + t.name;
    expect_bad(with_raw(1, {t.block_elements - 1}, type, 0), kAnywhere, {"tensor 'bad'", expected});
    expect_bad(with_raw(1, {t.block_elements + 1}, type, 0), kAnywhere, {"tensor 'bad'", expected});
    // The number of elements divides, the row does not.
    expect_bad(with_raw(2, {1, t.block_elements}, type, 0), kAnywhere, {"tensor 'bad'", expected});
  }
}

TEST(BadFile, TypesThatWeDoNotRead) {
  const struct {
    uint32_t number;
    const char* name;
  } types[] = {{4, "Q4_2"},
               {9, "Q8_1"},
               {15, "Q8_K"},
               {19, "IQ1_S"},
               {24, "I8"},
               {26, "I32"},
               {28, "F64"},
               {29, "IQ1_M"},
               {31, "Q4_0_4_4"},
               {34, "TQ1_0"},
               {35, "TQ2_0"},
               {99, "not a type"},
               {0xFFFFFFFF, "not a type"}};
  for (const auto& t : types) {
    GgufBuilder b;
    b.raw_tensor("w", 1, {256}, t.number, 0);
    expect_bad(b.build(), 24 + 8 + 1 + 4 + 8, {"tensor 'w'", "type is " + std::to_string(t.number), t.name},
               Code::unsupported_quantization);
  }
}

TEST(BadFile, PlacesOfTensors) {
  for (const uint64_t offset : {uint64_t{1}, uint64_t{16}, uint64_t{33}, ~uint64_t{0}})
    expect_bad(with_raw(1, {1}, 0, offset), kAnywhere,
               {"tensor 'bad'", "offset is " + std::to_string(offset), "multiple of the alignment 32"});
  const Bytes past = with_raw(1, {8}, 0, 256);  // starts exactly at the end of the file
  expect_bad(past, find_bytes(past, "bad"), {"tensor 'bad'", "file ends at byte " + std::to_string(past.size())});
  for (const uint64_t offset : {uint64_t{0}, uint64_t{32}, uint64_t{224}}) {
    const Bytes overlap = with_raw(1, {8}, 0, offset);
    expect_bad(overlap, kAnywhere, {"overlaps", "'ok'", "'bad'"});
  }
  GgufBuilder inside;  // a small tensor inside a large one that starts before it
  inside.raw_tensor("small", 1, {1}, 0, 64).tensor("large", TensorType::f32, {64});
  expect_bad(inside.build(), kAnywhere, {"'small'", "overlaps", "'large'"});
}

// Time and memory ------------------------------------------------------------------------------------------

TEST(BadFile, ManyKeysAndTensorsTakeNoQuadraticTime) {
  GgufBuilder b;
  const std::string prefix(48, 'p');
  for (int i = 0; i < 200000; ++i) b.key(prefix + std::to_string(i), uint8_t{1});
  for (int i = 0; i < 50000; ++i) b.tensor(prefix + std::to_string(i), TensorType::f32, {1});
  b.tensor(prefix + "0", TensorType::f32, {1});  // the duplicate is the last
  const Bytes bytes = b.build();
  const auto from = std::chrono::steady_clock::now();
  expect_bad(bytes, kAnywhere, {"occurs twice"});
  EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(5));
}

TEST(BadFile, EveryByteOfTheHeaderMayLie) {  // no expectation but that it comes back; sanitizers watch
  const Bytes good = valid().build();
  for (size_t at = 0; at < good.size(); ++at)
    for (const int value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
      Bytes bytes = good;
      poke(&bytes, at, static_cast<uint8_t>(value));
      const Result<File> f = File::parse(bytes, "m");
      if (!f.ok()) {
        EXPECT_GT(std::string(f.status().message()).size(), 10u);
        EXPECT_LE(f.status().detail().offset, bytes.size());
      }
    }
}

}  // namespace
}  // namespace orrery::gguf::bad_test

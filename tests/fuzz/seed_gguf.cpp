// Writes the seeds of the GGUF corpus into the directory given: small files that between them reach every
// kind of value, every tensor type, and the refusals that mutation finds hard to reach.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/gguf_builder.h"
#include "tests/support/random_blocks.h"

using namespace orrery;
using testing::Bytes;
using testing::ByteWriter;
using testing::GgufBuilder;

namespace {

bool write(const std::filesystem::path& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  return static_cast<bool>(out);
}

GgufBuilder scalars(uint32_t version) {
  GgufBuilder b(version);
  b.key("u8", uint8_t{1}).key("i8", int8_t{-1}).key("u16", uint16_t{1}).key("i16", int16_t{-1}).key("u32", uint32_t{1});
  b.key("i32", int32_t{-1}).key("u64", uint64_t{1}).key("i64", int64_t{-1}).key("f32", 1.0f).key("f64", 1.0);
  return b.key("bool", true).key("string", "text");
}

Bytes arrays() {
  ByteWriter nested;
  nested.put(gguf::ValueType::array).put(uint64_t{2});
  nested.put(gguf::ValueType::string).put(uint64_t{1}).text("inner");
  nested.put(gguf::ValueType::array).put(uint64_t{1}).put(gguf::ValueType::i16).put(uint64_t{1}).put(int16_t{-3});
  GgufBuilder b;
  b.array("u32", std::vector<uint32_t>{1, 2}).array("f32", std::vector<float>{0.5f}).array("none", std::vector<double>{});
  b.array("bool", std::vector<bool>{true, false}).array("string", std::vector<std::string>{"a", "", "ccc"});
  return b.raw_key("nested", 9, nested.bytes).build();
}

Bytes tensors() {
  GgufBuilder b;
  b.key("general.architecture", "llama");
  for (const TypeTraits& t : kTypeTraits)
    b.tensor(t.name, t.type, {t.block_elements, 1}, testing::random_blocks(t.type, t.block_elements, 1, 1.0f));
  return b.build();
}

}  // namespace

int main(int n_args, char** args) {
  if (n_args != 2) return std::fprintf(stderr, "usage: seed_gguf DIRECTORY\n"), 2;
  const std::filesystem::path dir = args[1];
  GgufBuilder aligned;
  aligned.alignment(64).tensor("x", TensorType::f32, {3}).tensor("y", TensorType::q4_0, {32, 2});
  GgufBuilder split;
  split.key("split.no", uint16_t{0}).key("split.count", uint16_t{1}).key("split.tensors.count", int32_t{1});
  split.tensor("w", TensorType::f16, {4});
  GgufBuilder overlap;
  overlap.tensor("a", TensorType::f32, {32}).raw_tensor("b", 1, {8}, 0, 32);
  GgufBuilder wraps;
  wraps.tensor("a", TensorType::f32, {8}).raw_tensor("b", 2, {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0);
  GgufBuilder twice;
  twice.key("k", uint8_t{1}).key("k", uint8_t{2});
  GgufBuilder foreign;
  foreign.raw_tensor("w", 1, {256}, 39, 0);
  const bool ok = write(dir / "scalars-v2", scalars(2).build()) && write(dir / "scalars-v3", scalars(3).build()) &&
                  write(dir / "arrays", arrays()) && write(dir / "tensors", tensors()) && write(dir / "aligned", aligned.build()) &&
                  write(dir / "split", split.build()) && write(dir / "overlap", overlap.build()) && write(dir / "wraps", wraps.build()) &&
                  write(dir / "duplicate-key", twice.build()) && write(dir / "foreign-type", foreign.build()) &&
                  write(dir / "empty", Bytes());
  if (!ok) std::fprintf(stderr, "cannot write into %s\n", args[1]);
  return ok ? 0 : 1;
}

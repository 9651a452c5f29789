// Block formats against the reference implementation's numbers (tests/golden/quants.txt), bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/half.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/quantize.h"
#include "tests/support/model_spec.h"
#include "tests/support/random_blocks.h"
#include "tests/support/shared.h"

namespace orrery::gguf::quant_test {
namespace {

struct Golden {
  const TypeTraits* type;
  std::vector<std::byte> from, to;
};

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<Golden> read_goldens(const std::string& wanted) {
  std::ifstream in(testing::source_path("tests/golden/quants.txt"));
  std::vector<Golden> goldens;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string what, type, from, to;
    words >> what >> type >> from >> to;
    if (what == wanted) goldens.push_back({type_traits_by_name(type), from_hex(from), from_hex(to)});
  }
  return goldens;
}

std::vector<float> as_floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

TEST(Dequantize, EqualsTheReferenceBitForBit) {
  const std::vector<Golden> goldens = read_goldens("dequantize");
  ASSERT_EQ(goldens.size(), std::size(kTypeTraits));  // every type that we read
  for (const Golden& g : goldens) {
    ASSERT_NE(g.type, nullptr);
    const std::vector<float> want = as_floats(g.to);
    ASSERT_EQ(g.from.size(), row_bytes(g.type->type, want.size()));
    std::vector<float> got(want.size() + 1, 12345.0f);
    dequantize_row(g.type->type, g.from.data(), got.data(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(float_bits(got[i]), float_bits(want[i])) << g.type->name << " value " << i << ": " << got[i];
    EXPECT_EQ(got.back(), 12345.0f) << "wrote past the end";
  }
}

TEST(Dequantize, WorksAtAnyAddress) {
  for (const Golden& g : read_goldens("dequantize")) {
    const std::vector<float> want = as_floats(g.to);
    std::vector<std::byte> shifted(g.from.size() + 1);
    std::memcpy(shifted.data() + 1, g.from.data(), g.from.size());
    std::vector<float> got(want.size());
    dequantize_row(g.type->type, shifted.data() + 1, got.data(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), g.to.size()), 0) << g.type->name;
  }
}

TEST(Quantize, EqualsTheReferenceBitForBit) {
  const std::vector<Golden> goldens = read_goldens("quantize");
  ASSERT_EQ(goldens.size(), 7u);
  for (const Golden& g : goldens) {
    ASSERT_TRUE(orrery::testing::can_quantize(g.type->type)) << g.type->name;
    const std::vector<float> values = as_floats(g.from);
    std::vector<std::byte> got(row_bytes(g.type->type, values.size()) + 1, std::byte{0xEE});
    ASSERT_EQ(got.size() - 1, g.to.size());
    quantize_row(g.type->type, values.data(), got.data(), values.size());
    for (size_t i = 0; i < g.to.size(); ++i)
      ASSERT_EQ(got[i], g.to[i]) << g.type->name << " byte " << i % g.type->block_bytes << " of block " << i / g.type->block_bytes;
    EXPECT_EQ(got.back(), std::byte{0xEE}) << "wrote past the end";
  }
}

TEST(Quantize, ErrorStaysWithinHalfAStep) {
  testing::Random random(3);
  std::vector<float> x(32 * 200), y(x.size());
  for (float& v : x) v = random.normal();
  // Steps as a share of the block's range; halving a step bounds the error, and a half scale adds up to 2^-11
  // of the value. Q4_0 and Q5_0 have one code less on the side that their largest value is not on: a whole
  // step there.
  const std::map<TensorType, float> worst = {{TensorType::q8_0, 0.5f / 127},
                                             {TensorType::q4_0, 1.0f / 8},
                                             {TensorType::q5_0, 1.0f / 16},
                                             {TensorType::q4_1, 2 * 0.5f / 15},
                                             {TensorType::q5_1, 2 * 0.5f / 31}};
  for (const auto& [type, share] : worst) {
    std::vector<std::byte> q(row_bytes(type, x.size()));
    quantize_row(type, x.data(), q.data(), x.size());
    dequantize_row(type, q.data(), y.data(), x.size());
    for (size_t b = 0; b < x.size(); b += 32) {
      float most = 0;
      for (size_t i = b; i < b + 32; ++i) most = std::max(most, std::fabs(x[i]));
      for (size_t i = b; i < b + 32; ++i)
        ASSERT_LE(std::fabs(x[i] - y[i]), most * (share + 0x1p-10f)) << type_traits(type)->name << " " << i;
    }
  }
}

TEST(Quantize, ScalesTooSmallToInvertGiveZeros) {
  std::vector<float> x(32, 1e-42f);
  x[3] = -2e-42f;
  for (const TypeTraits& t : kTypeTraits) {
    if (!orrery::testing::can_quantize(t.type) || t.block_elements != 32) continue;
    std::vector<std::byte> q(t.block_bytes);
    std::vector<float> y(32, 1.0f);
    quantize_row(t.type, x.data(), q.data(), 32);
    dequantize_row(t.type, q.data(), y.data(), 32);
    for (const float v : y) EXPECT_EQ(v, 0.0f) << t.name;
  }
}

TEST(RandomBlocks, HaveTheSpreadThatWasAskedFor) {
  constexpr uint64_t kCount = 256 * 100;
  for (const TypeTraits& t : kTypeTraits)
    for (const float scale : {0.02f, 1.0f}) {
      const std::vector<std::byte> blocks = testing::random_blocks(t.type, kCount, 5, scale);
      EXPECT_EQ(blocks, testing::random_blocks(t.type, kCount, 5, scale)) << t.name;
      EXPECT_NE(blocks, testing::random_blocks(t.type, kCount, 6, scale)) << t.name;
      std::vector<float> values(kCount);
      dequantize_row(t.type, blocks.data(), values.data(), kCount);
      double sum = 0, squares = 0;
      for (const float v : values) {
        ASSERT_TRUE(std::isfinite(v)) << t.name;
        sum += v;
        squares += static_cast<double>(v) * v;
      }
      EXPECT_NEAR(sum / kCount / scale, 0, 0.2) << t.name;
      EXPECT_NEAR(std::sqrt(squares / kCount) / scale, 1, 0.2) << t.name;
    }
}

}  // namespace
}  // namespace orrery::gguf::quant_test

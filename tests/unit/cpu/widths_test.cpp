// Products whose rows end anywhere: every width of whole blocks up to 1,280 columns, 1 to 9 rows of activations and a few more, every
// weight type, on every instruction set of this machine, against the plain kernels.
//
// All sets multiply the same integers, so only the rounding of float sums differs. The last columns have large activations: a
// remainder that is dropped, or counted twice, is larger than any rounding. Buffers end at an inaccessible page (fixture.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/bf16.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::widths_test {
namespace {

using namespace orrery::testing;

constexpr int64_t kUnit = 32, kUnits = 40;

struct Product32 {
  Product32(TensorType type, int64_t n_out, int64_t n_in)
      : bytes(row_bytes(type, static_cast<uint64_t>(n_out * n_in))), weight{type, n_out, n_in, bytes.cptr()} {
    fill_random_blocks(type, bytes.data(), static_cast<size_t>(n_out * n_in), static_cast<uint64_t>(n_in), 1.0f);
  }
  Guarded<std::byte> bytes;
  Weight weight;
};

std::vector<float> multiply(Rig& rig, Phase phase, const Weight& weight, const Guarded<float>& x, int32_t n_rows) {
  Guarded<float> out(static_cast<size_t>(n_rows * weight.n_rows));
  const Weight placed = rig.place(weight);
  const Product product{&placed, {}, out.ptr(), weight.n_rows, false};
  rig.begin(phase, n_rows);
  rig->matmul({&product, 1}, x.cptr(), weight.n_cols, n_rows);
  rig.end();
  return std::vector<float>(out.data(), out.data() + out.size());
}

// Normal numbers, and ten times as much in the last unit of each row.
void fill_rows(const Guarded<float>& x, int64_t n_in) {
  fill_normal(x, static_cast<uint64_t>(n_in) + 1);
  for (size_t i = 0; i < x.size(); ++i)
    if (static_cast<int64_t>(i) % n_in >= n_in - kUnit) x[i] *= 10.0f;
}

class CpuWidths : public ::testing::TestWithParam<std::string> {
 protected:
  static StepLimits limits() { return {70, 64, 1, 1, 32, kUnits * kUnit}; }
};

TEST_P(CpuWidths, EveryWidthAndFewRowsAsPlain) {
  Rig rig(GetParam(), 1, limits()), plain("plain", 1, limits());
  for (const TypeTraits& type : kTypeTraits)
    for (int64_t unit = 1; unit <= kUnits; ++unit) {
      const int64_t n_in = unit * kUnit;
      if (n_in % type.block_elements != 0) continue;
      for (const int64_t n_out : {int64_t{8}, int64_t{11}}) {  // in bands, where the set has them, and as in the file
        const Product32 m(type.type, n_out, n_in);
        constexpr int32_t kMost = 9;
        Guarded<float> x(static_cast<size_t>(kMost * n_in));
        fill_rows(x, n_in);
        const std::vector<float> expected = multiply(plain, Phase::decode, m.weight, x, kMost);
        for (int32_t n_rows = 1; n_rows <= kMost; ++n_rows) {
          Guarded<float> rows(static_cast<size_t>(n_rows * n_in));
          std::memcpy(rows.data(), x.data(), rows.size() * sizeof(float));
          for (const Phase phase : {Phase::prefill, Phase::decode}) {
            if (phase == Phase::prefill && rounds_weights(GetParam(), type.type)) continue;  // other numbers: MatchesTheDoubleProduct
            const std::vector<float> got = multiply(rig, phase, m.weight, rows, n_rows);
            double squares = 0, difference = 0;
            for (size_t i = 0; i < got.size(); ++i) {
              squares += static_cast<double>(expected[i]) * expected[i];
              difference += (static_cast<double>(got[i]) - expected[i]) * (static_cast<double>(got[i]) - expected[i]);
            }
            ASSERT_LT(std::sqrt(difference / squares), 2e-6) << type.name << " " << n_out << "x" << n_in << ", " << n_rows << " rows, "
                                                             << (phase == Phase::prefill ? "prefill" : "decode");
          }
        }
      }
    }
}

// Every number of rows at once gives each row the bits that it has alone: each weight is unpacked once for all of them.
TEST_P(CpuWidths, ManyRowsGiveTheBitsOfOne) {
  Rig rig(GetParam(), 2, limits());
  constexpr int32_t kMost = 70;
  for (const TypeTraits& type : kTypeTraits)
    for (const int64_t n_in : {int64_t{576}, int64_t{768}}) {
      if (n_in % type.block_elements != 0) continue;
      for (const int64_t n_out : {int64_t{40}, int64_t{43}}) {
        const Product32 m(type.type, n_out, n_in);
        Guarded<float> x(static_cast<size_t>(kMost * n_in));
        fill_rows(x, n_in);
        for (const Phase phase : {Phase::prefill, Phase::decode}) {
          const std::vector<float> all = multiply(rig, phase, m.weight, x, kMost);
          for (const int32_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 32, 33, 35}) {
            Guarded<float> some(static_cast<size_t>(n * n_in));
            const int32_t first = n % 3;
            std::memcpy(some.data(), x.data() + first * n_in, some.size() * sizeof(float));
            const std::vector<float> got = multiply(rig, phase, m.weight, some, n);
            ASSERT_TRUE(same_bits(got.data(), all.data() + first * n_out, got.size()))
                << type.name << " " << n_out << "x" << n_in << ", " << n << " rows, " << (phase == Phase::prefill ? "prefill" : "decode");
          }
        }
      }
    }
}

// Where blocks of 32 lie in bands, decode and prefill make the same sums: a prompt's row has the bits of a generated token.
TEST_P(CpuWidths, BlocksInBandsHaveOneResultInBothPhases) {
  Rig rig(GetParam(), 1, limits());
  int n_types = 0;
  for (const TypeTraits& type : kTypeTraits) {
    if (type.block_elements != 32 || rig->weight_bytes(type.type, 48, 32) == 0 || rounds_weights(GetParam(), type.type)) continue;
    ++n_types;
    for (const int64_t n_in : {int64_t{32}, int64_t{256}, int64_t{576}, int64_t{896}})
      for (const int32_t n_rows : {1, 5, 40}) {
        const Product32 m(type.type, 48, n_in);
        Guarded<float> x(static_cast<size_t>(n_rows * n_in));
        fill_rows(x, n_in);
        const std::vector<float> prompt = multiply(rig, Phase::prefill, m.weight, x, n_rows),
                                 answer = multiply(rig, Phase::decode, m.weight, x, n_rows);
        ASSERT_TRUE(same_bits(prompt.data(), answer.data(), prompt.size()))
            << type.name << ", " << n_in << " columns, " << n_rows << " rows";
      }
  }
  const bool has_bands = rig->weight_bytes(TensorType::q4_0, 8, 32) > 0;
  EXPECT_EQ(n_types, has_bands && GetParam() != "amx" ? 7 : 0);
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuWidths, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::widths_test

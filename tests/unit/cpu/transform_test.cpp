// Centred and rotated KV in attention: append_kv() and attend() behind transform_heads(), against attention in double over the true keys
// and values. A large shift common to all keys must cost nothing, and one large dimension little.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/cpu/fixture.h"

namespace orrery::transform_test {
namespace {

using namespace orrery::testing;

constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 64, kTokens = 150;

struct Inputs {
  Guarded<float> q{kTokens * kHeads * kDim}, k{kTokens * kKvHeads * kDim}, v{kTokens * kKvHeads * kDim}, shift{kKvHeads * kDim};
  explicit Inputs(float common) {
    fill_normal(q, 1);
    fill_normal(k, 2);
    fill_normal(v, 3);
    fill_normal(shift, 4, common);
    for (size_t i = 0; i < k.size(); ++i) k[i] += shift[i % shift.size()];
    for (size_t i = 5; i < v.size(); i += kDim) v[i] *= 10;  // one large dimension
  }
  // Row `row` of query head `head`, in double: softmax(q K^T / 8) V.
  std::vector<double> expected(int32_t row, int32_t head) const {
    const size_t kv_head = static_cast<size_t>(head / (kHeads / kKvHeads)), dim = kDim;
    std::vector<double> scores, out(dim);
    for (size_t t = 0; t <= static_cast<size_t>(row); ++t) {
      double dot = 0;
      for (size_t d = 0; d < dim; ++d)
        dot += static_cast<double>(q[(static_cast<size_t>(row) * kHeads + static_cast<size_t>(head)) * dim + d]) *
               static_cast<double>(k[(t * kKvHeads + kv_head) * dim + d]);
      scores.push_back(dot / 8);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& s : scores) total += s = std::exp(s - most);
    for (size_t t = 0; t < scores.size(); ++t)
      for (size_t d = 0; d < dim; ++d) out[d] += scores[t] / total * static_cast<double>(v[(t * kKvHeads + kv_head) * dim + d]);
    return out;
  }
};

// The root mean square of attention's errors over some rows, at prefill or at decode.
double error(const std::string& path, const Inputs& in, KvType type, Phase phase, bool centred, bool rotated) {
  Rig rig(path, 2, {kTokens, 256, kHeads, kKvHeads, kDim, kHeads * kDim});
  const KvFormat kv{type, 1, kKvHeads, kDim};
  std::vector<std::unique_ptr<Guarded<std::byte>>> pages;
  std::vector<uint64_t> addresses;
  for (int32_t i = 0; i < (kTokens + kPageTokens - 1) / kPageTokens; ++i) {
    pages.push_back(std::make_unique<Guarded<std::byte>>(kv.page_span()));
    addresses.push_back(pages.back()->ptr().address);
  }
  const KvView view{addresses.data(), static_cast<int32_t>(addresses.size())};
  Guarded<float> q(in.q.size()), k(in.k.size()), v(in.v.size()), out(in.q.size());
  std::copy_n(in.q.data(), q.size(), q.data());
  std::copy_n(in.k.data(), k.size(), k.data());
  std::copy_n(in.v.data(), v.size(), v.data());
  const int64_t q_dim = kHeads * kDim, kv_dim = kKvHeads * kDim;
  const auto step = [&](Phase of, int32_t first, int32_t n) {
    std::vector<Row> rows;
    for (int32_t i = 0; i < n; ++i) rows.push_back({0, first + i, 0});
    const Ptr<float> q_at = q.ptr() + static_cast<uint64_t>(first * q_dim), out_at = out.ptr() + static_cast<uint64_t>(first * q_dim);
    const Ptr<float> k_at = k.ptr() + static_cast<uint64_t>(first * kv_dim), v_at = v.ptr() + static_cast<uint64_t>(first * kv_dim);
    rig->begin_step({of, rows, {&view, 1}, kv});
    if (rotated) rig->transform_heads(q_at, q_dim, kHeads, kDim, {}, true);
    rig->transform_heads(k_at, kv_dim, kKvHeads, kDim, centred ? in.shift.cptr() : Ptr<const float>(), rotated);
    if (rotated) rig->transform_heads(v_at, kv_dim, kKvHeads, kDim, {}, true);
    rig->append_kv(0, k_at, v_at, kv_dim);
    rig->attend(0, q_at, out_at, {kHeads, q_dim, q_dim, .125f, 0});
    if (rotated) rig->transform_heads(out_at, q_dim, kHeads, kDim, {}, true);
    rig->end_step();
  };
  const int32_t n_prompt = phase == Phase::prefill ? kTokens : kTokens - 2;
  step(Phase::prefill, 0, n_prompt);
  for (int32_t row = n_prompt; row < kTokens; ++row) step(Phase::decode, row, 1);
  double squares = 0;
  int n = 0;
  for (const int32_t row : {kTokens - 2, kTokens - 1})
    for (int32_t head = 0; head < kHeads; ++head) {
      const std::vector<double> want = in.expected(row, head);
      for (size_t d = 0; d < want.size(); ++d, ++n) {
        const double e = static_cast<double>(out[static_cast<size_t>(row * q_dim + head * kDim) + d]) - want[d];
        squares += e * e;
      }
    }
  return std::sqrt(squares / n);
}

class TransformedAttention : public ::testing::TestWithParam<std::string> {};

TEST_P(TransformedAttention, ACommonShiftOfAllKeysCostsNothing) {
  const Inputs in(40.0f), small(0.0f);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const double centred = error(GetParam(), in, KvType::q8_0, phase, true, false);
    const double without_shift = error(GetParam(), small, KvType::q8_0, phase, false, false);
    const double plain = error(GetParam(), in, KvType::q8_0, phase, false, false);
    EXPECT_LT(centred, 1.5 * without_shift + 1e-4) << without_shift;
    EXPECT_GT(plain, 4 * centred);
  }
}

TEST_P(TransformedAttention, RotatedFourBitsLoseLessAndF32LosesNothing) {
  const Inputs in(0.0f);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    EXPECT_LT(error(GetParam(), in, KvType::f32, phase, true, true), 1e-5);
    const double four = error(GetParam(), in, KvType::q4_0, phase, false, true),
                 both = error(GetParam(), in, KvType::k8v4, phase, false, true);
    EXPECT_LT(four, .8 * error(GetParam(), in, KvType::q4_0, phase, false, false));
    EXPECT_LT(both, .8 * error(GetParam(), in, KvType::k8v4, phase, false, false));
    EXPECT_LT(both, four);
    EXPECT_GT(both, 2 * error(GetParam(), in, KvType::q8_0, phase, false, true)) << "V has four bits";
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, TransformedAttention, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::transform_test

// Loki on the demo model, in double precision: its bases are the principal components of the prompt's keys, and a head holds the tokens
// that the step's query finds by them. From the reservoir's keys, and the queries and bases on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/policy_sessions.h"
#include "tests/support/resident_oracle.h"

namespace orrery::loki_test {
namespace {

using namespace testing;
using engine::Resident;
using engine::Session;
using Doubles = std::vector<double>;

struct Case {
  const char* name;
  policy::Options options;
  uint32_t rank, n_last;
  double share;
  KvType type, device_type;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr uint32_t kPrompt = 500;

std::unique_ptr<Session> open(const std::shared_ptr<engine::LanguageModel>& model, const Case& c) {
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = "loki";
  o.kv_share = share_of_tokens(c.share, c.type, c.device_type);
  o.kv_type = c.type;
  o.device_kv_type = c.device_type;
  o.policy_options = c.options;
  auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, kPrompt, 51), nullptr, nullptr));
  return session;
}

// (rank, head_dim) as it stands on the device.
std::vector<Doubles> basis_of(const Resident& resident, uint32_t head, size_t dim) {
  std::vector<Doubles> basis;
  for (uint32_t r = 0; r < resident.low_rank()->rank(); ++r) {
    std::vector<float> row(dim);
    gguf::dequantize_row(TensorType::f16, reinterpret_cast<const std::byte*>(resident.low_rank()->basis(head).address) + 2 * r * dim,
                         row.data(), dim);
    basis.emplace_back(row.begin(), row.end());
  }
  return basis;
}
double product(const Doubles& a, const float* b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * static_cast<double>(b[i]);
  return sum;
}
double nearest_half(double x) {
  const float value = static_cast<float>(x);
  uint16_t half;
  float back;
  gguf::quantize_row(TensorType::f16, &value, reinterpret_cast<std::byte*>(&half), 1);
  gguf::dequantize_row(TensorType::f16, reinterpret_cast<const std::byte*>(&half), &back, 1);
  return static_cast<double>(back);
}

class EngineLoki : public ::testing::TestWithParam<Case> {};

TEST_P(EngineLoki, HeadsHoldWhatQueriesFindByTurnedKeys) {
  const Case& c = GetParam();
  const auto model = open_demo();
  const auto& h = model->description();
  const auto session = open(model, c);
  const Resident& resident = *session->resident();
  const auto dim = static_cast<size_t>(h.kv().head_dim), group = static_cast<size_t>(h.kv().n_heads / h.kv().n_kv_heads);
  const bool max = c.options.size() > 1 && c.options[1].second == "max", whole = c.rank == dim;
  uint64_t n_close = 0, n_all = 0;
  session->resident()->set_step_fault([&](uint64_t) {
    const uint32_t n_tokens = session->n_computed(), n = n_tokens - c.n_last;  // candidates
    EXPECT_EQ(resident.low_rank()->rank(), c.rank);
    for (uint32_t head = 0; head < resident.store().n_heads(); ++head) {
      const Span<const uint32_t> held = resident.store().positions(head);
      const std::set<uint32_t> tokens(held.begin(), held.end());
      EXPECT_EQ(tokens.size(), held.size());
      for (uint32_t p = n; p < n_tokens; ++p) EXPECT_EQ(tokens.count(p), 1u) << "one of the last";
      const float* q = ring_queries(resident, h, head, n_tokens - 1);
      const std::vector<Doubles> basis =
          whole ? std::vector<Doubles>() : basis_of(resident, head, dim);  // a full rank is the keys themselves
      std::vector<Doubles> rows(group, Doubles(n));
      for (uint32_t key = 0; key < n; ++key) {
        const std::vector<float> k = reservoir_key(resident.reservoir(), head, key);
        Doubles turned;
        for (const Doubles& direction : basis) turned.push_back(nearest_half(product(direction, k.data())));
        for (size_t g = 0; g < group; ++g) {
          double sum = whole ? product({k.begin(), k.end()}, q + g * dim) : 0;
          for (size_t r = 0; r < basis.size(); ++r) sum += turned[r] * product(basis[r], q + g * dim);
          rows[g][key] = sum / std::sqrt(static_cast<double>(dim));
        }
      }
      Doubles scores = mean_of_softmaxes(rows);
      if (max) {
        std::fill(scores.begin(), scores.end(), 0.0);
        for (const Doubles& row : rows) {
          const Doubles one = mean_of_softmaxes({row});
          for (uint32_t key = 0; key < n; ++key) scores[key] = std::max(scores[key], one[key]);
        }
      }
      Doubles sorted = scores;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      const double last = sorted[held.size() - c.n_last - 1];
      for (uint32_t key = 0; key < n; ++key) {
        // Halves of a full rank's rows round what the keys themselves do not.
        const bool close = std::fabs(scores[key] - last) <= (whole ? 1e-2 : 1e-3) * last;
        n_close += close, ++n_all;
        if (close) continue;
        EXPECT_EQ(tokens.count(key) == 1, scores[key] > last) << "head " << head << ", token " << key << " of " << n_tokens;
      }
    }
    return ::testing::Test::HasFailure() ? error(Code::internal, "see above") : ok_status();
  });
  greedy(session.get(), 45);
  EXPECT_GT(n_all, 600000u);
  EXPECT_LT(n_close * 20, n_all);
  EXPECT_GT(resident.refill_stats().tokens, 1000u);
  EXPECT_EQ(resident.report().n_settled, 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, EngineLoki,
    ::testing::Values(
        Case{"by_a_quarter", {}, 8, 32, .5, KvType::f16, KvType::f16},
        Case{"maximum", {{"window", "1"}, {"reduce", "max"}, {"rank", "12"}}, 12, 2, .5, KvType::f16, KvType::f16},
        Case{"quantized", {{"window", "8"}}, 4, 8, .6, KvType::q8_0, KvType::q4_0},
        Case{"mixed", {{"window", "8"}}, 4, 8, .6, KvType::f16, KvType::k8v4},
        Case{"full_rank_is_exact", {{"window", "4"}, {"reduce", "mean"}, {"rank", "32"}}, 32, 4, .7, KvType::f32, KvType::f32}),
    [](const auto& tested) { return std::string(tested.param.name); });

// The eigenvalues of a symmetric matrix (n, n), the largest first, by Jacobi's rotations.
Doubles eigenvalues(Doubles a, size_t n) {
  for (int sweep = 0; sweep < 30; ++sweep)
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q) {
        if (a[p * n + q] == 0) continue;
        const double angle = .5 * std::atan2(2 * a[p * n + q], a[q * n + q] - a[p * n + p]), c = std::cos(angle), s = std::sin(angle);
        const auto turn = [&](double* x, double* y) {
          const double before = *x;
          *x = c * before - s * *y, *y = s * before + c * *y;
        };
        for (size_t i = 0; i < n; ++i) turn(&a[i * n + p], &a[i * n + q]);
        for (size_t i = 0; i < n; ++i) turn(&a[p * n + i], &a[q * n + i]);
      }
  Doubles values;
  for (size_t i = 0; i < n; ++i) values.push_back(a[i * n + i]);
  std::sort(values.begin(), values.end(), std::greater<>());
  return values;
}

// Orthonormal, and along them keys differ as much as along any: the mean is not part of it.
TEST(EngineLokiBasis, HasThePrincipalComponentsOfThePromptsKeys) {
  const auto model = open_demo();
  const auto& h = model->description();
  const auto session = open(model, {"", {}, 8, 32, .5, KvType::f16, KvType::f16});
  greedy(session.get(), 40);  // generated tokens do not change it
  const Resident& resident = *session->resident();
  const auto dim = static_cast<size_t>(h.kv().head_dim);
  double worst = 1, of_mean = 0;
  for (uint32_t head = 0; head < resident.store().n_heads(); ++head) {
    Doubles mean(dim), covariance(dim * dim);
    std::vector<std::vector<float>> keys;
    for (uint32_t key = 0; key < kPrompt; ++key) {
      keys.push_back(reservoir_key(resident.reservoir(), head, key));
      for (size_t i = 0; i < dim; ++i) mean[i] += static_cast<double>(keys[key][i]) / kPrompt;
    }
    for (const std::vector<float>& key : keys)
      for (size_t i = 0; i < dim; ++i)
        for (size_t j = 0; j < dim; ++j)
          covariance[i * dim + j] += (static_cast<double>(key[i]) - mean[i]) * (static_cast<double>(key[j]) - mean[j]) / kPrompt;
    const Doubles values = eigenvalues(covariance, dim);
    const std::vector<Doubles> basis = basis_of(resident, head, dim);
    double found = 0, most = 0, before = INFINITY;
    for (size_t r = 0; r < basis.size(); ++r) {
      double along = 0;
      for (size_t i = 0; i < dim; ++i)
        for (size_t j = 0; j < dim; ++j) along += basis[r][i] * covariance[i * dim + j] * basis[r][j];
      found += along, most += values[r];
      ASSERT_LE(along, before * 1.01) << "the largest first";
      before = along;
      for (size_t s = 0; s <= r; ++s) {
        double dot = 0;
        for (size_t i = 0; i < dim; ++i) dot += basis[r][i] * basis[s][i];
        ASSERT_NEAR(dot, r == s, 2e-3);
      }
      ASSERT_GT(*std::max_element(basis[r].begin(), basis[r].end(), [](double a, double b) { return std::fabs(a) < std::fabs(b); }), 0)
          << "its sign";
    }
    worst = std::min(worst, found / most);
    double length = 0;
    for (const double x : mean) length += x * x;
    of_mean += length / values[0] / resident.store().n_heads();
  }
  EXPECT_GT(worst, .997);
  EXPECT_GT(of_mean, .1) << "means that would matter";
}

}  // namespace
}  // namespace orrery::loki_test

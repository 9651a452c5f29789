// InfiniGen's prefetch on real models, in double precision: queries ahead are the next layer's weights applied to this layer's input; bases
// are the directions of the prompt's last queries; and a head holds the tokens that these queries find by these bases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "tests/support/policy_sessions.h"
#include "tests/support/resident_oracle.h"

namespace orrery::infinigen_test {
namespace {

using namespace testing;
using engine::Resident;
using engine::Session;
using Doubles = std::vector<double>;

// The queries that a step's hook is given, by layer: its own, or those that are made ahead.
class Recorder final : public model::LayerHook {
 public:
  Recorder(Backend* backend, const model::Description& h, bool ahead)
      : queries(static_cast<size_t>(h.n_layers)), backend_(*backend), h_(h), ahead_(ahead) {}
  Status before_attend(KvLayer layer, Ptr<const float> q, int64_t) override { return record(layer.layer, q); }
  bool looks_ahead() const override { return ahead_; }
  Status before_layer(int32_t layer, Ptr<const float> next_q) override { return next_q ? record(layer + 1, next_q) : ok_status(); }
  std::vector<std::vector<float>> queries;  // (n_heads, head_dim) each

 private:
  Status record(int32_t layer, Ptr<const float> q) {
    ORRERY_TRY(backend_.synchronize());
    std::vector<float>& to = queries[static_cast<size_t>(layer)];
    to.resize(static_cast<size_t>(h_.kv().q_dim()));
    std::memcpy(to.data(), reinterpret_cast<const float*>(q.address), to.size() * sizeof(float));
    return ok_status();
  }
  Backend& backend_;
  const model::Description& h_;
  bool ahead_;
};

// The session's last step once more, exactly: the same token at the same position writes the same KV.
std::vector<std::vector<float>> queries_of_last_step(const engine::LanguageModel& model, const Session& session, bool ahead,
                                                     const Turn& turn) {
  const Resident& resident = *session.resident();
  const model::RopeTables ropes(model.description(), model.weights().rope_factors, session.n_context());
  Backend& backend = turn.backend();
  Recorder recorder(&backend, model.description(), ahead);
  const uint32_t position = session.n_computed() - 1;
  const Row row{session.tokens()[position], static_cast<int32_t>(position), 0};
  const KvView view = resident.reservoir().view();
  Step step;
  step.phase = Phase::decode;
  step.rows = {&row, 1};
  step.sequences = {&view, 1};
  step.kv = resident.reservoir().format();
  step.heads = resident.views();
  step.heads_kv = resident.format();
  step.transform = session.sequence().transform();
  unwrap(model::forward(&backend, model.weights(), ropes.specs(), model.workspace(turn), step, nullptr, {}, &recorder));
  return recorder.queries;
}

std::unique_ptr<Session> open(const std::shared_ptr<engine::LanguageModel>& model, const policy::Options& options, size_t n_prompt,
                              uint32_t n_context, KvType type = KvType::f16) {
  engine::SessionOptions o;
  o.n_context = n_context;
  o.policy = "infinigen";
  o.kv_share = .5;
  o.kv_type = type;
  o.policy_options = options;
  auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, n_prompt, 61), nullptr, nullptr));
  return session;
}

// With the next layer's projection in its place a layer's own queries are those ahead, to the bit. Layers apart, and fused ones.
TEST(EngineInfiniGenAhead, QueriesAreTheNextLayersOfThisLayersInput) {
  for (const char* spec : {"llama-plain", "qwen3", "phi3-window"}) {
    SCOPED_TRACE(spec);
    const auto model = open_spec(spec);
    const auto session = open(model, {}, 100, 256);
    greedy(session.get(), 3);
    const Turn turn = model->runtime().take_turn();
    const auto ahead = queries_of_last_step(*model, *session, true, turn), own = queries_of_last_step(*model, *session, false, turn);
    EXPECT_EQ(ahead[0], own[0]);
    auto& layers = const_cast<model::Model&>(model->weights()).weights.layers;
    for (size_t i = 0; i + 1 < layers.size(); ++i) {
      EXPECT_NE(ahead[i + 1], own[i + 1]);
      const model::Layer kept = layers[i];
      const model::attention::Weights& next = layers[i + 1].attention;
      model::attention::Weights& changed = layers[i].attention;
      changed.qkv = next.qkv, changed.qkv_bias = next.qkv_bias;
      changed.q = next.q, changed.q_bias = next.q_bias, changed.q_norm = next.q_norm;
      EXPECT_EQ(queries_of_last_step(*model, *session, false, turn)[i], ahead[i + 1]) << "layer " << i;
      layers[i] = kept;
    }
  }
}

// Eigenvalues and eigenvectors (rows) of a symmetric matrix (n, n), the largest first, by Jacobi's rotations.
struct Eigen {
  Doubles values;
  std::vector<Doubles> vectors;
};
Eigen eigen_of(Doubles a, size_t n) {
  std::vector<Doubles> v(n, Doubles(n));
  for (size_t i = 0; i < n; ++i) v[i][i] = 1;
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
        for (size_t i = 0; i < n; ++i) turn(&v[p][i], &v[q][i]);
      }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t x, size_t y) { return a[x * n + x] > a[y * n + y]; });
  Eigen found;
  for (const size_t i : order) found.values.push_back(a[i * n + i]), found.vectors.push_back(v[i]);
  return found;
}

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
template <class A, class B>
double product(const A& a, const B& b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

constexpr uint32_t kPrompt = 500, kQueries = 64;

TEST(EngineInfiniGenBasis, HasTheLastQueriesDirectionsThatMatterMost) {
  const auto model = open_demo();
  const auto& h = model->description();
  const auto session = open(model, {{"first_layers", "0"}}, kPrompt, 1024);
  const Resident& resident = *session->resident();
  const auto dim = static_cast<size_t>(h.kv().head_dim), group = static_cast<size_t>(h.kv().n_heads / h.kv().n_kv_heads);
  std::vector<Doubles> squares(resident.store().n_heads(), Doubles(dim * dim));  // of queries, which generated ones will take the place of
  for (uint32_t head = 0; head < squares.size(); ++head)
    for (uint32_t p = kPrompt - kQueries; p < kPrompt; ++p)
      for (size_t g = 0; g < group; ++g) {
        const float* q = ring_queries(resident, h, head, p) + g * dim;
        for (size_t i = 0; i < dim * dim; ++i) squares[head][i] += static_cast<double>(q[i / dim]) * static_cast<double>(q[i % dim]);
      }
  greedy(session.get(), 2);
  for (uint32_t head = 0; head < squares.size(); ++head) {
    const Eigen eigen = eigen_of(squares[head], dim);
    Doubles weights(dim);
    for (uint32_t key = 0; key < kPrompt; ++key) {
      const std::vector<float> k = reservoir_key(resident.reservoir(), head, key);
      for (size_t i = 0; i < dim; ++i) weights[i] += std::pow(product(eigen.vectors[i], k, dim), 2) / kPrompt;
    }
    for (size_t i = 0; i < dim; ++i)
      weights[i] = std::sqrt(weights[i]) + std::sqrt(eigen.values[i] / static_cast<double>(kQueries * group));
    Doubles sorted = weights;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const std::vector<Doubles> basis = basis_of(resident, head, dim);
    ASSERT_EQ(basis.size(), 8u);
    size_t before = 0;
    for (const Doubles& row : basis) {
      size_t at = 0;  // which one it is
      for (size_t i = 0; i < dim; ++i)
        if (std::fabs(product(row, eigen.vectors[i], dim)) > std::fabs(product(row, eigen.vectors[at], dim))) at = i;
      ASSERT_GT(std::fabs(product(row, eigen.vectors[at], dim)), .99) << "head " << head;
      ASSERT_GE(weights[at], sorted[basis.size() - 1] * .999) << "head " << head;
      ASSERT_TRUE(&row == &basis[0] || at > before) << "in their order";
      before = at;
    }
  }
}

double nearest_half(double x) {
  const float value = static_cast<float>(x);
  uint16_t half;
  float back;
  gguf::quantize_row(TensorType::f16, &value, reinterpret_cast<std::byte*>(&half), 1);
  gguf::dequantize_row(TensorType::f16, reinterpret_cast<const std::byte*>(&half), &back, 1);
  return static_cast<double>(back);
}

class EngineInfiniGen : public ::testing::TestWithParam<std::pair<const char*, KvType>> {};

// What scores near the best is there; what has gone scored less than what was not asked for either, and stayed.
TEST_P(EngineInfiniGen, HeadsHoldWhatTheLayerBeforeFoundForThem) {
  const auto model = open_demo();
  const auto& h = model->description();
  const double alpha = std::stod(GetParam().first);
  const auto session = open(model, {{"alpha", GetParam().first}, {"first_layers", "1"}, {"window", "8"}}, kPrompt, 1024, GetParam().second);
  const Resident& resident = *session->resident();
  const auto dim = static_cast<size_t>(h.kv().head_dim), group = static_cast<size_t>(h.kv().n_heads / h.kv().n_kv_heads);
  const auto kv_heads = static_cast<uint32_t>(h.kv().n_kv_heads);
  std::vector<std::set<uint32_t>> before(resident.store().n_heads());
  uint64_t n_checked = 0, n_gone = 0;
  session->resident()->set_step_fault([&](uint64_t) {
    const uint32_t n_tokens = session->n_computed(), position = n_tokens - 1, n = position - 7;  // candidates: not the last ones
    const auto ahead = queries_of_last_step(*model, *session, true, *resident.turn());
    for (uint32_t layer = 1; layer < static_cast<uint32_t>(h.n_layers); ++layer) {
      uint64_t n_near = 0;
      std::vector<Doubles> scores;
      for (uint32_t head = layer * kv_heads; head < (layer + 1) * kv_heads; ++head) {
        const std::vector<Doubles> basis = basis_of(resident, head, dim);
        std::vector<Doubles> rows(n);
        for (uint32_t key = 0; key < n; ++key) {
          const std::vector<float> k = reservoir_key(resident.reservoir(), head, key);
          for (const Doubles& direction : basis) rows[key].push_back(nearest_half(product(direction, k, dim)));
        }
        scores.emplace_back(n, -INFINITY);
        for (size_t g = 0; g < group; ++g) {
          const float* q = &ahead[layer][(head % kv_heads * group + g) * dim];
          Doubles turned, products;
          for (const Doubles& direction : basis) turned.push_back(product(direction, q, dim));
          for (uint32_t key = 0; key < n; ++key)
            products.push_back(product(rows[key], turned, turned.size()) / std::sqrt(static_cast<double>(dim)));
          const double best = *std::max_element(products.begin(), products.end());
          for (uint32_t key = 0; key < n; ++key)
            n_near += products[key] - best > -alpha, scores.back()[key] = std::max(scores.back()[key], products[key] - best);
        }
      }
      const size_t n_wanted = std::min<size_t>(n_near / (kv_heads * group), position / 5);
      for (uint32_t h_of = 0; h_of < kv_heads; ++h_of) {
        const uint32_t head = layer * kv_heads + h_of;
        const Span<const uint32_t> held = resident.store().positions(head);
        std::set<uint32_t> tokens;
        for (const uint32_t p : held)
          if (p < n) tokens.insert(p);
        EXPECT_EQ(tokens.size(), held.size() - 8);
        Doubles sorted = scores[h_of];
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        constexpr double kClose = 1e-2;  // of products: sums of halves
        const double last = sorted[std::min(n_wanted, tokens.size()) - 1];
        for (uint32_t key = 0; key < n; ++key) {
          if (scores[h_of][key] <= last + kClose) continue;
          EXPECT_EQ(tokens.count(key), 1u) << "head " << head << ", token " << key << " of " << n_tokens;
          ++n_checked;
        }
        for (const uint32_t gone : before[head]) {
          if (tokens.count(gone)) continue;
          ++n_gone;
          for (const uint32_t stays : tokens)
            if (before[head].count(stays)) {
              EXPECT_GE(scores[h_of][stays], std::min(scores[h_of][gone], last) - kClose) << "head " << head;
            }
        }
        before[head] = tokens;
      }
    }
    return ::testing::Test::HasFailure() ? error(Code::internal, "see above") : ok_status();
  });
  greedy(session.get(), 40);
  EXPECT_GT(n_checked, 20000u);
  EXPECT_GT(n_gone, 500u);
  EXPECT_EQ(resident.report().n_settled, 1u);
}

INSTANTIATE_TEST_SUITE_P(Cases, EngineInfiniGen,
                         ::testing::Values(std::pair("4", KvType::f16), std::pair("1", KvType::f16), std::pair("2", KvType::q8_0),
                                           std::pair("2", KvType::k8v4)));

}  // namespace
}  // namespace orrery::infinigen_test

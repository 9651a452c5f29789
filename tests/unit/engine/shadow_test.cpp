// ShadowKV on the demo model: heads hold the chunks that their queries look for, by landmarks and outliers, in double precision from the
// reservoir's keys. Their slots hold exact V, and the K that is rebuilt, whatever came before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "runtime/model/description/rope.h"
#include "tests/support/doubles.h"
#include "tests/support/kv_tokens.h"
#include "tests/support/policy_sessions.h"

namespace orrery::shadow_test {
namespace {

using namespace testing;
using engine::Resident;
using engine::Session;
using Doubles = std::vector<double>;

constexpr uint32_t kChunk = 8, kOutliers = 2;

const std::byte* token(const kv::PageTable& reservoir, uint32_t head, uint32_t position) {
  const KvFormat& f = reservoir.format();
  return reinterpret_cast<const std::byte*>(reservoir.view().pages[position / kPageTokens] + f.head_offset(head) +
                                            position % kPageTokens * f.token_bytes());
}
const std::byte* slot(const Resident& resident, uint32_t head, uint32_t index) {
  return reinterpret_cast<const std::byte*>(resident.store().tiles(head)[index / kPageTokens] +
                                            index % kPageTokens * resident.format().token_bytes());
}
Doubles key_values(KvType type, const std::byte* at, int32_t n) {
  const std::vector<float> out = read_key(type, at, static_cast<uint64_t>(n));
  return {out.begin(), out.end()};
}
double product(const Doubles& a, const Doubles& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

class Turn {
 public:
  Turn(const engine::LanguageModel& model, uint32_t n_context)
      : table_(model::make_rope_table(model.description().rope(), model.weights().rope_factors, n_context)) {}
  // By `sign` times the position's angles.
  Doubles operator()(Doubles key, uint32_t position, double sign) const {
    const size_t half = table_.inverse_frequency.size();
    for (size_t i = 0; i < half; ++i) {
      const double angle = sign * position * static_cast<double>(table_.inverse_frequency[i]), c = std::cos(angle), s = std::sin(angle);
      double &a = key[table_.interleaved ? 2 * i : i], &b = key[table_.interleaved ? 2 * i + 1 : i + half];
      const double first = a;
      a = first * c - b * s, b = first * s + b * c;
    }
    return key;
  }

 private:
  model::RopeTable table_;
};

// Of a symmetric matrix (n, n), by Jacobi's rotations: the eigenvectors of the largest eigenvalues.
std::vector<Doubles> leading(std::vector<Doubles> a, size_t rank) {
  const size_t n = a.size();
  std::vector<Doubles> v(n, Doubles(n));
  for (size_t i = 0; i < n; ++i) v[i][i] = 1;
  for (int sweep = 0; sweep < 12; ++sweep)
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q) {
        if (std::fabs(a[p][q]) < 1e-14 * std::sqrt(std::fabs(a[p][p] * a[q][q])) + 1e-300) continue;
        const double angle = .5 * std::atan2(2 * a[p][q], a[p][p] - a[q][q]), c = std::cos(angle), s = std::sin(angle);
        rotate(c, s, a[p].data(), a[q].data(), n);
        rotate(c, s, v[p].data(), v[q].data(), n);
        for (size_t i = 0; i < n; ++i) {
          const double x = a[i][p], y = a[i][q];
          a[i][p] = c * x + s * y, a[i][q] = c * y - s * x;
        }
      }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t x, size_t y) { return a[x][x] > a[y][y]; });
  std::vector<Doubles> out;
  for (size_t r = 0; r < rank; ++r) out.push_back(v[order[r]]);
  return out;
}

// What a layer's keys of some tokens are when only their part in the leading subspace of all is left: by head, (n_tokens).
std::vector<std::vector<Doubles>> rebuilt_keys(const kv::PageTable& reservoir, uint32_t layer, uint32_t n_basis, uint32_t n_tokens,
                                               size_t rank, const Turn& turn) {
  const KvFormat& f = reservoir.format();
  const auto kv_heads = static_cast<uint32_t>(f.n_kv_heads);
  const size_t dim = static_cast<size_t>(f.head_dim), width = dim * kv_heads;
  std::vector<Doubles> keys(n_tokens), sums(width, Doubles(width));
  for (uint32_t t = 0; t < n_tokens; ++t)
    for (uint32_t h = 0; h < kv_heads; ++h) {
      const Doubles key = turn(key_values(f.type, token(reservoir, layer * kv_heads + h, t), f.head_dim), t, -1);
      keys[t].insert(keys[t].end(), key.begin(), key.end());
    }
  for (uint32_t t = 0; t < n_basis; ++t)
    for (size_t i = 0; i < width; ++i)
      for (size_t j = 0; j < width; ++j) sums[i][j] += keys[t][i] * keys[t][j];
  const std::vector<Doubles> basis = leading(sums, rank);
  std::vector<std::vector<Doubles>> out(kv_heads, std::vector<Doubles>(n_tokens));
  for (uint32_t t = 0; t < n_tokens; ++t) {
    Doubles key(width);
    for (const Doubles& b : basis) {
      const double row = product(keys[t], b);
      for (size_t i = 0; i < width; ++i) key[i] += row * b[i];
    }
    for (uint32_t h = 0; h < kv_heads; ++h)
      out[h][t] = turn(Doubles(key.begin() + static_cast<ptrdiff_t>(h * dim), key.begin() + static_cast<ptrdiff_t>((h + 1) * dim)), t, 1);
  }
  return out;
}

// A head's chunks, from the reservoir's keys: landmarks, and each one's least cosine.
struct Chunks {
  std::vector<Doubles> means;
  Doubles cosines;
};
Chunks chunks_of(const kv::PageTable& reservoir, uint32_t head, uint32_t n) {
  const KvFormat& f = reservoir.format();
  Chunks chunks;
  for (uint32_t c = 0; c < n; ++c) {
    std::vector<Doubles> keys;
    Doubles mean(static_cast<size_t>(f.head_dim));
    for (uint32_t t = 0; t < kChunk; ++t) {
      keys.push_back(key_values(f.type, token(reservoir, head, c * kChunk + t), f.head_dim));
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += keys.back()[i] / kChunk;
    }
    double least = 1;
    for (const Doubles& k : keys) least = std::min(least, product(k, mean) / std::sqrt(product(k, k) * product(mean, mean)));
    chunks.means.push_back(mean), chunks.cosines.push_back(least);
  }
  return chunks;
}

struct Case {
  const char* name;
  const char* policy;
  const char* rank;  // all dimensions: keys as they are
  KvType type;
};
class EngineShadow : public ::testing::TestWithParam<Case> {};

TEST_P(EngineShadow, HeadsHoldWhatQueriesLookForAndItIsRebuilt) {
  const Case& c = GetParam();
  const bool plus = c.policy == std::string("shadowkv+");
  const auto model = open_demo();
  const auto& h = model->description();
  const auto kv_heads = static_cast<uint32_t>(h.kv().n_kv_heads), n_heads = kv_heads * static_cast<uint32_t>(h.n_layers);
  const size_t group = static_cast<size_t>(h.kv().n_heads / h.kv().n_kv_heads), dim = static_cast<size_t>(h.kv().head_dim);
  const size_t rank = static_cast<size_t>(std::stoi(c.rank));
  const bool rebuilds = rank < dim * kv_heads;
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = c.policy;
  o.kv_share = .5;
  o.kv_type = c.type;
  o.policy_options = {{"rank", c.rank}, {"outliers", std::to_string(kOutliers)}, {"local", "24"}};
  if (!plus) o.policy_options.push_back({"tail", "50"});
  const auto session = unwrap(Session::open(model, o));
  constexpr uint32_t kPrompt = 503;
  unwrap(session->prefill(random_tokens(*model, kPrompt, 33), nullptr, nullptr));
  Resident* resident = session->resident();
  const kv::PageTable& reservoir = resident->reservoir();
  const Turn turn(*model, o.n_context);
  std::vector<Chunks> chunks;
  std::vector<std::vector<Doubles>> rebuilt;  // by head
  for (uint32_t head = 0; head < n_heads; ++head) chunks.push_back(chunks_of(reservoir, head, kPrompt / kChunk));
  for (uint32_t layer = 0; layer < n_heads / kv_heads && rebuilds; ++layer)
    for (auto& head : rebuilt_keys(reservoir, layer, kPrompt, kPrompt, rank, turn)) rebuilt.push_back(std::move(head));
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>> seen;  // K of a token of a head, rebuilt
  double off = 0, lost = 0, all = 0;  // squares: of K in slots, off what is expected; of what is lost by rank; of keys
  int n_checked = 0, n_seen_again = 0, n_left = 0;

  resident->set_step_fault([&](uint64_t) {
    // Behind the step of the last position: its query stands in the ring, and the heads as they attended.
    const uint32_t n_tokens = session->n_computed(), position = n_tokens - 1;
    const uint32_t n_before = position;  // tokens that there were when chunks were chosen
    const QueryRing ring = resident->queries();
    for (uint32_t head = 0; head < n_heads; ++head) {
      const Span<const uint32_t> held = resident->store().positions(head);
      const uint32_t first_kept = (plus ? n_before / kChunk - 3 : kPrompt / kChunk - 3) * kChunk;  // of those that are not to be chosen
      for (uint32_t k = static_cast<uint32_t>(chunks[head].means.size()); k < first_kept / kChunk; ++k) {
        chunks[head] = chunks_of(reservoir, head, k + 1);
        ++n_left;
      }
      const uint32_t n_candidates = first_kept / kChunk,
                     n_best = (static_cast<uint32_t>(held.size()) - (n_tokens - first_kept)) / kChunk - kOutliers;
      if (n_best > n_candidates) return error(Code::internal, "head %u holds %zu tokens", head, held.size());
      std::vector<uint32_t> order(n_candidates);
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(),
                       [&](uint32_t a, uint32_t b) { return chunks[head].cosines[a] < chunks[head].cosines[b]; });
      const std::set<uint32_t> outliers(order.begin(), order.begin() + kOutliers);
      // The maximum of the group's softmaxes over the other landmarks.
      Doubles scores(n_candidates);
      const uint64_t row = uint64_t{head / kv_heads} * static_cast<uint64_t>(ring.n_rows) + position % static_cast<uint32_t>(ring.n_rows);
      const float* q =
          reinterpret_cast<const float*>(ring.data.address) + (row * static_cast<uint64_t>(h.kv().n_heads) + head % kv_heads * group) * dim;
      for (size_t g = 0; g < group; ++g) {
        Doubles y(n_candidates);
        double sum = 0;
        for (uint32_t k = 0; k < n_candidates; ++k) {
          for (size_t i = 0; i < dim; ++i)
            y[k] += static_cast<double>(q[g * dim + i]) * chunks[head].means[k][i] / std::sqrt(static_cast<double>(dim));
          y[k] = outliers.count(k) ? 0 : std::exp(y[k]);
          sum += y[k];
        }
        for (uint32_t k = 0; k < n_candidates; ++k) scores[k] = std::max(scores[k], y[k] / sum);
      }
      Doubles sorted = scores;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      std::set<uint32_t> best, kept;
      for (uint32_t s = 0; s < n_best * kChunk; ++s) {
        EXPECT_EQ(held[s] % kChunk, s % kChunk);
        best.insert(held[s] / kChunk);
      }
      for (uint32_t s = n_best * kChunk; s < held.size(); ++s) kept.insert(held[s]);
      for (const uint32_t k : outliers)
        EXPECT_EQ(kept.erase(k * kChunk) + kept.erase(k * kChunk + 7), 2u) << "outlier " << k << " of head " << head;
      EXPECT_EQ(kept.upper_bound(first_kept) == kept.end() ? 0u : *kept.lower_bound(first_kept), first_kept);
      EXPECT_EQ(*kept.rbegin(), position);
      EXPECT_EQ(best.size(), n_best);
      for (uint32_t k = 0; k < n_candidates; ++k) {  // up to what halves round
        if (best.count(k)) {
          EXPECT_GE(scores[k], sorted[n_best - 1] * .98) << "head " << head << ", chunk " << k << ", at " << position;
        } else {
          EXPECT_LE(scores[k], sorted[n_best - 1] * 1.02) << "head " << head << ", chunk " << k << ", at " << position;
        }
      }
      // V, and K that was not rebuilt, are the reservoir's; K that was is always the same.
      const uint64_t n_key = reservoir.format().key_bytes(), n_value = reservoir.format().value_bytes();
      for (uint32_t s = 0; s < held.size(); ++s) {
        const std::byte *at = slot(*resident, head, s), *from = token(reservoir, head, held[s]);
        EXPECT_TRUE(std::equal(at + n_key, at + n_key + n_value, from + n_key)) << "V of head " << head << ", position " << held[s];
        if (s >= n_best * kChunk || !rebuilds) {
          EXPECT_TRUE(std::equal(at, at + n_key, from)) << "K of head " << head << ", position " << held[s];
          continue;
        }
        std::vector<std::byte>& before = seen[{head, held[s]}];
        n_seen_again += !before.empty();
        if (before.empty()) before.assign(at, at + n_key);
        EXPECT_TRUE(std::equal(before.begin(), before.end(), at))
            << "K of head " << head << ", position " << held[s] << " is not what it was";
        if (held[s] >= kPrompt) continue;
        const Doubles key = key_values(c.type, at, h.kv().head_dim), exact = key_values(c.type, from, h.kv().head_dim);
        for (size_t i = 0; i < dim; ++i) {
          const double expected = rebuilt[head][held[s]][i];
          off += std::pow(key[i] - expected, 2), lost += std::pow(expected - exact[i], 2), all += std::pow(exact[i], 2);
        }
      }
      ++n_checked;
      if (::testing::Test::HasFailure()) return error(Code::internal, "see above");
    }
    return ok_status();
  });
  greedy(session.get(), 40);
  EXPECT_EQ(n_checked, static_cast<int>(40 * n_heads));
  EXPECT_GT(resident->refill_stats().tokens, 0u);
  EXPECT_EQ(resident->report().n_settled, 1u);
  EXPECT_EQ(resident->refill_stats().bytes,
            resident->refill_stats().tokens * (rebuilds ? reservoir.format().value_bytes() : reservoir.format().token_bytes()));
  EXPECT_EQ(n_left > 0, plus);
  if (!rebuilds) return;
  EXPECT_GT(n_seen_again, 1000);
  // What is lost by rank is much; what is off is what halves, KV types, and directions of nearly the same weight make of it.
  EXPECT_GT(lost, 1e-3 * all);
  EXPECT_LT(off, .02 * lost + (key_type(c.type) == KvType::q8_0 ? 1e-4 : 1e-6) * all) << "of " << all << " lost " << lost;
}

INSTANTIATE_TEST_SUITE_P(Cases, EngineShadow,
                         ::testing::Values(Case{"shadowkv", "shadowkv", "24", KvType::f16}, Case{"f32", "shadowkv", "40", KvType::f32},
                                           Case{"exact_keys", "shadowkv", "100000", KvType::f16},
                                           Case{"plus", "shadowkv+", "24", KvType::f16},
                                           Case{"plus_quantized", "shadowkv+", "20", KvType::q8_0},
                                           Case{"values_in_four_bits", "shadowkv", "12", KvType::k8v4},
                                           Case{"plus_values_in_four_bits", "shadowkv+", "12", KvType::k8v4}),
                         [](const auto& tested) { return std::string(tested.param.name); });

// Keys that are products of so many values with a basis are rebuilt as they are.
TEST(EngineShadowKeys, OfExactRankAreRebuilt) {
  const auto model = open_demo();
  const auto& h = model->description();
  const size_t dim = static_cast<size_t>(h.kv().head_dim), width = dim * static_cast<size_t>(h.kv().n_kv_heads), rank = 12;
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = "shadowkv";
  o.kv_share = .5;
  o.kv_type = KvType::f32;
  o.policy_options = {{"rank", std::to_string(rank)}};
  const auto session = unwrap(Session::open(model, o));
  constexpr uint32_t kPrompt = 500;
  unwrap(session->prefill(random_tokens(*model, kPrompt, 34), nullptr, nullptr));
  Resident* resident = session->resident();
  const Turn turn(*model, o.n_context);
  Random random(5);
  const auto normal = [&](size_t n) {
    Doubles x(n);
    for (double& v : x) v = static_cast<double>(random.normal());
    return x;
  };
  for (uint32_t layer = 0; layer < static_cast<uint32_t>(h.n_layers); ++layer) {
    std::vector<Doubles> basis;
    for (size_t r = 0; r < rank; ++r) basis.push_back(normal(width));
    for (uint32_t t = 0; t < kPrompt; ++t) {
      const Doubles row = normal(rank);
      Doubles key(width);
      for (size_t r = 0; r < rank; ++r)
        for (size_t i = 0; i < width; ++i) key[i] += row[r] * basis[r][i];
      for (size_t head = 0; head < width / dim; ++head) {
        const Doubles turned =
            turn(Doubles(key.begin() + static_cast<ptrdiff_t>(head * dim), key.begin() + static_cast<ptrdiff_t>((head + 1) * dim)), t, 1);
        auto* at = const_cast<std::byte*>(
            token(resident->reservoir(), layer * static_cast<uint32_t>(h.kv().n_kv_heads) + static_cast<uint32_t>(head), t));
        std::transform(turned.begin(), turned.end(), reinterpret_cast<float*>(at), [](double x) { return static_cast<float>(x); });
      }
    }
  }
  greedy(session.get(), 1);
  double off = 0, all = 0;
  int n_rebuilt = 0;
  for (uint32_t head = 0; head < resident->store().n_heads(); ++head) {
    const Span<const uint32_t> held = resident->store().positions(head);
    for (uint32_t s = 0; s < held.size(); ++s) {
      const Doubles key = key_values(KvType::f32, slot(*resident, head, s), h.kv().head_dim),
                    exact = key_values(KvType::f32, token(resident->reservoir(), head, held[s]), h.kv().head_dim);
      n_rebuilt += key != exact;
      for (size_t i = 0; i < dim; ++i) off += std::pow(key[i] - exact[i], 2), all += std::pow(exact[i], 2);
    }
  }
  EXPECT_GT(n_rebuilt, 1000);
  EXPECT_LT(std::sqrt(off / all), 1e-3);  // rows and basis are halves
}

// Where the budget holds all that there is, nothing is rebuilt, and nothing fetched.
TEST(EngineShadowKeys, ShortTextsAreKeptAsTheyAre) {
  const auto model = open_demo();
  const auto prompt = random_tokens(*model, 200, 35);
  const auto full = open_session(model, 1024, KvType::f16);
  const std::vector<float> expected = answer(full.get(), prompt, 60);
  for (const char* policy : {"shadowkv", "shadowkv+"}) {
    engine::SessionOptions o;
    o.n_context = 1024;
    o.policy = policy;
    o.kv_budget_bytes = full->kv_bytes() / 2;
    const auto session = unwrap(Session::open(model, o));
    EXPECT_TRUE(same_bits(expected, answer(session.get(), prompt, 60))) << policy;
    EXPECT_EQ(session->resident()->refill_stats().tokens, 0u);
  }
}

}  // namespace
}  // namespace orrery::shadow_test

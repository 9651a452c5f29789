// keycodes on the demo model, in double precision: a head holds the tokens that the step's query finds by the codes on the device, and the
// codes are those of the reservoir's keys. From the reservoir's keys, and the queries and codes on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/backend/hadamard.h"
#include "runtime/base/half.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/resident_oracle.h"
#include "tests/support/rounded_products.h"

namespace orrery::keycodes_test {
namespace {

using namespace testing;
using engine::Resident;
using engine::Session;
using Doubles = std::vector<double>;

constexpr uint32_t kPrompt = 500;

std::unique_ptr<Session> open(const std::shared_ptr<engine::LanguageModel>& model, double share, KvType type, KvType device_type,
                              const policy::Options& options, bool in_place = false) {
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = "keycodes";
  o.kv_share = share_of_tokens(share, type, device_type);
  o.kv_type = type;
  o.policy_options = options;
  if (!in_place) o.device_kv_type = device_type, o.policy_options.emplace_back("stay", "1");  // the best tokens alone
  auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, kPrompt, 51), nullptr, nullptr));
  return session;
}

// A key as its codes have it: rotated, without the mean; in units of `factor`.
struct Decoded {
  Doubles levels;
  double factor;
};
Decoded decoded(const kv::KeyCodes& codes, uint32_t head, uint32_t position) {
  const KeyCodeFormat& f = codes.format();
  const auto* tile = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(codes.tiles(head)[position / kPageTokens]));
  const uint32_t at = position % kPageTokens, half = kPageTokens / 2;
  const double factor = half_to_float(reinterpret_cast<const uint16_t*>(tile + f.factors_offset())[at]);
  Doubles levels;
  for (int32_t i = 0; i < f.head_dim; ++i) {
    const int32_t of_group = 4 / f.bits;
    const int both = tile[static_cast<uint32_t>(i / of_group) * half + at % half];
    levels.push_back(
        static_cast<double>(key_code_level(f.bits, (both >> (at < half ? 0 : 4) >> i % of_group * f.bits) & ((1 << f.bits) - 1))));
  }
  return {levels, factor};
}

// A query's product with what the key's turns are at a position.
double turned_product(const kv::KeyCodes& codes, uint32_t head, uint32_t position, const float* q) {
  const auto floats = [](Ptr<const float> at) { return reinterpret_cast<const float*>(static_cast<uintptr_t>(at.address)); };
  const KeyTurnTables& tables = codes.turn_tables();
  const auto* turns = reinterpret_cast<const KeyTurn*>(static_cast<uintptr_t>(codes.turns(head).address));
  const auto n_pairs = static_cast<size_t>(tables.n_pairs);
  constexpr size_t kTile = kPageTokens;
  double sum = 0;
  for (int32_t i = 0; turns && i < codes.format().n_turns; ++i) {
    const auto pair = static_cast<size_t>(turns[i].pair);
    const float *of_tile = floats(tables.tiles) + 2 * (position / kTile * n_pairs + pair),
                *within = floats(tables.within) + 2 * kTile * pair;
    const double c0 = static_cast<double>(of_tile[0]), s0 = static_cast<double>(of_tile[1]),
                 c1 = static_cast<double>(within[position % kTile]), s1 = static_cast<double>(within[kTile + position % kTile]);
    const double c = c0 * c1 - s0 * s1, s = s0 * c1 + c0 * s1, x = static_cast<double>(turns[i].x), y = static_cast<double>(turns[i].y);
    sum += static_cast<double>(q[turns[i].first]) * (x * c - y * s) + static_cast<double>(q[turns[i].second]) * (x * s + y * c);
  }
  return sum;
}

// A value as its codes have it, rotated.
Doubles decoded_value(const kv::KeyCodes& codes, uint32_t head, uint32_t position) {
  const KeyCodeFormat& f = codes.format();
  const auto* tile = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(codes.tiles(head)[position / kPageTokens]));
  const int32_t at = static_cast<int32_t>(position % kPageTokens), half = kPageTokens / 2, of_group = 4 / f.value_bits;
  const double factor = half_to_float(reinterpret_cast<const uint16_t*>(tile + f.value_factors_offset())[at]);
  Doubles value;
  for (int32_t d = 0; d < f.head_dim; ++d) {
    const int32_t in_block = d % kPageTokens, row = d / kPageTokens * f.n_value_groups() + at / of_group;
    const int both = tile[f.keys_bytes() + static_cast<uint64_t>(row * half + in_block % half)];
    const int code = both >> (at % of_group * f.value_bits + (in_block < half ? 0 : 4)) & ((1 << f.value_bits) - 1);
    value.push_back(factor * static_cast<double>(key_code_level(f.value_bits, code)));
  }
  return value;
}

struct Case {
  const char* name;
  policy::Options options;
  int32_t bits;
  uint32_t n_first, n_last;
  bool max;
  double share;
  KvType type, device_type;
  double skip = -1;  // not negative: in place, by this option
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class EngineKeyCodes : public ::testing::TestWithParam<Case> {};

TEST_P(EngineKeyCodes, HeadsHoldWhatQueriesFindByCodes) {
  const Case& c = GetParam();
  const auto model = open_demo();
  const auto& h = model->description();
  const bool in_place = c.skip >= 0;
  const auto session = open(model, c.share, c.type, c.device_type, c.options, in_place);
  const Resident& resident = *session->resident();
  const auto dim = static_cast<size_t>(h.kv().head_dim), group = static_cast<size_t>(h.kv().n_heads / h.kv().n_kv_heads);
  uint64_t n_weighed = 0, n_close = 0, n_all = 0, n_wrong_exactly = 0, n_fewer = 0, n_most = 0, n_read = 0;
  session->resident()->set_step_fault([&](uint64_t) {
    const uint32_t n_tokens = session->n_computed(), end = n_tokens - c.n_last;  // of the candidates
    EXPECT_EQ(resident.key_codes()->format().bits, c.bits);
    for (uint32_t head = 0; head < resident.store().n_heads(); head += 3) {
      const Span<const uint32_t> held = resident.store().positions(head);
      const std::set<uint32_t> tokens(held.begin(), held.end());
      EXPECT_EQ(tokens.size(), held.size());
      for (uint32_t p = 0; p < c.n_first; ++p) EXPECT_EQ(tokens.count(p), 1u) << "one of the first";
      for (uint32_t p = end; p < n_tokens; ++p) EXPECT_EQ(tokens.count(p), 1u) << "one of the last";
      const float* q = ring_queries(resident, h, head, n_tokens - 1);
      std::vector<Doubles> rows(group, Doubles(end - c.n_first)), exact = rows;
      std::vector<RoundedProducts> products;
      for (size_t g = 0; g < group; ++g) {
        std::vector<float> turned(q + g * dim, q + (g + 1) * dim);
        if (!session->options().rotated(h))
          hadamard(turned.data(), h.kv().head_dim, hadamard_block(h.kv().head_dim));  // else pages and queries are
        products.emplace_back(Doubles(turned.begin(), turned.end()), c.bits);
      }
      double most_off = 0;  // a product's step: doubles and floats may round apart
      for (uint32_t key = c.n_first; key < end; ++key) {
        const Decoded code = decoded(*resident.key_codes(), head, key);
        const std::vector<float> stored = reservoir_key(resident.reservoir(), head, key);
        for (size_t g = 0; g < group; ++g) {
          double true_sum = 0;
          for (size_t i = 0; i < dim; ++i) true_sum += static_cast<double>(q[g * dim + i]) * static_cast<double>(stored[i]);
          rows[g][key - c.n_first] =
              (products[g](code.levels, code.factor) + turned_product(*resident.key_codes(), head, key, q + g * dim)) /
              std::sqrt(static_cast<double>(dim));
          exact[g][key - c.n_first] = true_sum / std::sqrt(static_cast<double>(dim));
          most_off = std::max(most_off, products[g].step() * code.factor / std::sqrt(static_cast<double>(dim)));
        }
      }
      const auto combined = [&](const std::vector<Doubles>& all) {
        if (!c.max) return mean_of_softmaxes(all);
        Doubles scores(all[0].size());
        for (const Doubles& row : all) {
          const Doubles one = mean_of_softmaxes({row});
          for (size_t i = 0; i < one.size(); ++i) scores[i] = std::max(scores[i], one[i]);
        }
        return scores;
      };
      // The weights of the last layer's evicted tokens, for each query head. The other layers' are gone.
      const HeadView& view = resident.views()[head];
      EXPECT_EQ(view.compensation_token.address, resident.key_codes()->mean(head).address);
      EXPECT_EQ(view.n_keys, static_cast<int32_t>(held.size()));
      EXPECT_EQ(view.positions != nullptr, in_place);
      for (size_t g = 0; head + static_cast<uint32_t>(h.kv().n_kv_heads) >= resident.store().n_heads() && g < group; ++g) {
        double evicted = 0;
        for (uint32_t i = 0; i < rows[g].size(); ++i) evicted += tokens.count(i + c.n_first) ? 0 : std::exp(rows[g][i]);
        const auto log = static_cast<double>(reinterpret_cast<const float*>(view.compensation_logs.address)[g]) * std::log(2.0);
        if (std::isinf(log)) continue;  // a query of which codes tell too little
        EXPECT_NEAR(log, std::log(evicted), .01) << "head " << head << ", query head " << g;
        ++n_weighed;
        EXPECT_EQ(static_cast<bool>(view.compensation_values), resident.key_codes()->format().value_bits > 0);
        if (!view.compensation_values) continue;
        Doubles value(dim);
        for (uint32_t i = 0; i < rows[g].size(); ++i) {
          if (tokens.count(i + c.n_first)) continue;
          const Doubles of_token = decoded_value(*resident.key_codes(), head, i + c.n_first);
          for (size_t d = 0; d < dim; ++d) value[d] += std::exp(rows[g][i]) / evicted * of_token[d];
        }
        const float* given = reinterpret_cast<const float*>(view.compensation_values.address) + g * dim;
        std::vector<float> turned(given, given + dim);
        hadamard(turned.data(), h.kv().head_dim, hadamard_block(h.kv().head_dim));
        for (size_t d = 0; d < dim; ++d) EXPECT_NEAR(static_cast<double>(turned[d]), value[d], .05) << head << ", " << g << ", " << d;
      }
      const Doubles scores = combined(rows), true_scores = combined(exact);
      const auto least_of = [&](Doubles sorted) {
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        return sorted[held.size() - c.n_last - c.n_first - 1];
      };
      // In place a head may read fewer tokens than it has room for: those that weigh enough.
      const bool fewer = held.size() < resident.store().capacity(head), enough = in_place && fewer;
      (fewer ? n_fewer : n_most) += 1;
      const double last = enough ? c.skip / static_cast<double>(scores.size()) : least_of(scores), true_last = least_of(true_scores);
      if (in_place && !enough) {
        EXPECT_GE(last * std::exp(most_off), c.skip / static_cast<double>(scores.size()));
      }
      const double margin = std::exp(most_off) - 1;
      for (uint32_t i = 0; i < scores.size(); ++i) {
        n_wrong_exactly += (scores[i] > last) != (true_scores[i] > true_last);
        const bool close = std::fabs(scores[i] - last) <= margin * last;
        n_close += close, ++n_all;
        if (close) continue;
        EXPECT_EQ(tokens.count(i + c.n_first) == 1, scores[i] > last)
            << "head " << head << ", token " << i + c.n_first << " of " << n_tokens;
      }
    }
    for (uint32_t head = 0; head < resident.store().n_heads(); ++head) n_read += resident.store().length(head);
    return ::testing::Test::HasFailure() ? error(Code::internal, "see above") : ok_status();
  });
  greedy(session.get(), 45);
  EXPECT_GT(n_all, 150000u);
  EXPECT_GT(n_weighed, 40u);
  EXPECT_LT(n_close * 10, n_all);
  EXPECT_LT(n_wrong_exactly * (c.bits == 1 ? 3 : c.bits == 2 ? 6 : 20), n_all) << "codes tell what keys tell";
  EXPECT_GT(n_wrong_exactly * 400, n_all);
  const policy::Report report = resident.report();
  EXPECT_GT(report.missed_tokens, 1000u);
  if (in_place) {
    EXPECT_GT(n_fewer, 20u);
    if (c.skip < 2) {
      EXPECT_GT(n_most, 20u);
    }
    EXPECT_EQ(report.missed_tokens, report.wanted_tokens) << "nothing is resident";
    EXPECT_EQ(resident.bytes_in_place(), n_read * resident.format().token_bytes());
    EXPECT_EQ(resident.format().type, c.type);
    EXPECT_EQ(resident.settled_bytes(), 0u);
    EXPECT_EQ(resident.used_bytes(), resident.key_codes()->used_bytes());
  } else {
    EXPECT_EQ(report.missed_tokens, resident.refill_stats().tokens);
    EXPECT_LT(report.missed_tokens * 2, report.wanted_tokens) << "hits stay";
    EXPECT_EQ(resident.bytes_in_place(), 0u);
  }
  EXPECT_EQ(report.n_settled, 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, EngineKeyCodes,
    ::testing::Values(
        Case{"two_bits", {}, 2, 4, 8, true, .4, KvType::f16, KvType::q8_0},
        Case{"signs_by_means",
             {{"bits", "1"}, {"window", "1"}, {"sinks", "0"}, {"reduce", "mean"}},
             1,
             0,
             2,
             false,
             .5,
             KvType::f16,
             KvType::f16},
        Case{"centred_pages", {{"bits", "4"}, {"window", "8"}}, 4, 4, 8, true, .5, KvType::q8_0, KvType::q8_0},
        Case{"in_place", {}, 2, 4, 8, true, .2, KvType::f16, KvType::f16, 1},
        Case{"in_place_few", {{"skip", "2"}, {"least", ".6"}, {"bits", "1"}}, 1, 4, 8, true, .2, KvType::q8_0, KvType::q8_0, 2},
        Case{"rotated_pages", {{"bits", "2"}, {"window", "8"}}, 2, 4, 8, true, .5, KvType::q4_0, KvType::q4_0},
        Case{"mixed_in_place", {}, 2, 4, 8, true, .2, KvType::k8v4, KvType::k8v4, 1},
        Case{"values", {{"values", "2"}}, 2, 4, 8, true, .6, KvType::f16, KvType::f16},
        Case{"values_by_signs", {{"values", "1"}, {"bits", "4"}}, 4, 4, 8, true, .6, KvType::f16, KvType::f16},
        Case{"mixed_slots", {}, 2, 4, 8, true, .4, KvType::f16, KvType::k8v4}),
    [](const auto& tested) { return std::string(tested.param.name); });

// A head has `exact` tokens on average, and the first and the last tokens beside them, however large the budget is: read in place, or copied.
TEST(EngineKeyCodesParts, CodesOfValuesReadAsManyTokensAsAskedFor) {
  const auto model = open_demo();
  for (const uint32_t exact : {24u, 64u})
    for (const bool in_place : {true, false}) {
      const auto session =
          open(model, .9, KvType::f16, KvType::f16,
               {{"values", "2"}, {"copy", in_place ? "0" : "1"}, {"exact", std::to_string(exact)}, {"heads", "uniform"}}, in_place);
      greedy(session.get(), 5);
      const Resident& resident = *session->resident();
      for (uint32_t head = 0; head < resident.store().n_heads(); ++head)
        EXPECT_EQ(resident.store().length(head), exact + 4 + 32) << head << (in_place ? ", in place" : ", copied");
    }
}

// The bytes of codes, mean keys and mean values.
std::vector<uint8_t> bytes_of(const Session& s) {
  const kv::KeyCodes& codes = *s.resident()->key_codes();
  std::vector<uint8_t> all;
  for (uint32_t head = 0; head < s.resident()->store().n_heads(); ++head) {
    for (uint32_t p = 0; p < codes.n_tokens(); ++p) {
      const auto* tile = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(codes.tiles(head)[p / kPageTokens]));
      for (int32_t g = 0; g < codes.format().n_groups(); ++g)
        all.push_back(static_cast<uint8_t>(tile[static_cast<uint32_t>(g) * 32 + p % 32] >> (p % 64 < 32 ? 0 : 4) & 15));
      const auto* factor = tile + codes.format().factors_offset() + 2 * (p % 64);
      all.insert(all.end(), factor, factor + 2);
    }
    const auto* mean = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(codes.mean(head).address));
    all.insert(all.end(), mean, mean + codes.format().mean_bytes());
  }
  return all;
}

// Of the session that settled, of its fork, and of one that was rewound.
TEST(EngineKeyCodesParts, ForksAndRewindsHaveTheSameCodes) {
  const auto model = open_demo();
  const auto session = open(model, .4, KvType::f16, KvType::q8_0, {});
  const auto codes_at = [&](uint32_t n) {
    EXPECT_EQ(session->resident()->key_codes()->n_tokens(), n);
    return bytes_of(*session);
  };
  greedy(session.get(), 1);
  const std::vector<uint8_t> settled = codes_at(kPrompt);
  const auto fork = unwrap(session->fork());
  EXPECT_EQ(bytes_of(*fork), settled);
  greedy(session.get(), 40);  // tokens that leave the window get codes
  const uint32_t later = session->resident()->key_codes()->n_tokens();
  EXPECT_GT(later, kPrompt);
  const std::vector<uint8_t> extended = bytes_of(*session);
  greedy(fork.get(), 40);
  EXPECT_EQ(bytes_of(*fork), extended) << "a fork goes on alike";
  unwrap(session->rewind(kPrompt));
  EXPECT_EQ(session->resident()->key_codes()->n_tokens(), kPrompt);
  greedy(session.get(), 1);
  EXPECT_EQ(codes_at(kPrompt), settled) << "codes are made again";
}

// By default auto goes by codes where the reservoir is as near as the device's memory, and no draft needs tokens that stay.
TEST(EngineKeyCodesParts, AutoGoesByCodesWhereTheReservoirIsNear) {
  const auto goes_by_codes = [](const engine::RuntimeOptions& runtime, const auto& change) {
    const auto model = open_spec("qwen3-tied", runtime);
    engine::SessionOptions o;
    o.n_context = 512, o.policy = "auto", o.kv_share = .3;
    change(&o);
    return unwrap(Session::open(model, o))->resident()->key_codes() != nullptr;
  };
  const auto nothing = [](engine::SessionOptions*) {};
  const engine::RuntimeOptions near = runtime_options(1);
  engine::RuntimeOptions far = near;
  far.link = {uint64_t{1} << 34, 0};
  EXPECT_TRUE(goes_by_codes(near, nothing));
  EXPECT_FALSE(goes_by_codes(far, nothing));
  EXPECT_FALSE(goes_by_codes(near, [](engine::SessionOptions* o) { o->speculate = engine::Speculate::policy; }));
  EXPECT_TRUE(goes_by_codes(near, [](engine::SessionOptions* o) { o->kv_share = .05; }));
  EXPECT_FALSE(goes_by_codes(near, [](engine::SessionOptions* o) { o->kv_share = .049; }));
  const auto copied = [](double share) {
    return [share](engine::SessionOptions* o) { o->kv_share = share, o->device_kv_type = KvType::q8_0; };
  };
  EXPECT_TRUE(goes_by_codes(near, copied(.1)));
  EXPECT_FALSE(goes_by_codes(near, copied(.08))) << "codes would take most of it";
  EXPECT_FALSE(goes_by_codes(near, [](engine::SessionOptions* o) { o->policy_options = {{"tail", "20"}}; }));
}

// Heads in place with room for all tokens and no bound attend as full attention does, but for a token or two.
TEST(EngineKeyCodesParts, AllTokensInPlaceAreFullAttention) {
  const auto model = open_demo();
  engine::SessionOptions o;
  o.n_context = 1024, o.policy = "full";
  const auto full = unwrap(Session::open(model, o));
  const auto prompt = random_tokens(*model, kPrompt, 58);
  unwrap(full->prefill(prompt, nullptr, nullptr));
  for (const char* whole_layers : {"0", "2"}) {
    o.policy = "keycodes", o.kv_share = .2, o.policy_options = {{"skip", "0"}, {"least", "1"}, {"first_layers", whole_layers}};
    const auto in_place = unwrap(Session::open(model, o));
    unwrap(in_place->prefill(prompt, nullptr, nullptr));
    float most = 0;
    for (const int32_t token : random_tokens(*model, 20, 59)) {
      for (Session* s : {full.get(), in_place.get()}) feed(s, token);
      for (size_t i = 0; i < full->logits().size(); ++i) most = std::max(most, std::fabs(full->logits()[i] - in_place->logits()[i]));
    }
    EXPECT_EQ(in_place->resident()->policy().n_full_heads(),
              *whole_layers == '0' ? 0u : 2u * static_cast<uint32_t>(model->description().kv().n_kv_heads));
    EXPECT_GT(in_place->resident()->bytes_in_place(), 0u);
    EXPECT_LT(most, .4f);  // without the step's own token: 1.9
    unwrap(full->rewind(kPrompt));
  }
}

// A resident token's score counts more: fewer tokens are fetched.
TEST(EngineKeyCodesParts, ResidentTokensStay) {
  const auto model = open_demo();
  uint64_t fetched[2] = {};
  for (const int stays : {0, 1}) {
    engine::SessionOptions o;
    o.n_context = 1024, o.policy = "keycodes", o.kv_share = .5, o.policy_options = {{"stay", stays ? "16" : "1"}};
    const auto session = unwrap(Session::open(model, o));
    unwrap(session->prefill(random_tokens(*model, kPrompt, 54), nullptr, nullptr));
    greedy(session.get(), 30);
    fetched[stays] = session->resident()->report().missed_tokens;
  }
  EXPECT_GT(fetched[1], 0u);
  EXPECT_LT(fetched[1] * 4, fetched[0] * 3);
}

// A later turn keeps the codes of an earlier one, until the context is twice as long. They are those of a session that had all tokens at
// once.
TEST(EngineKeyCodesParts, ALaterTurnHasTheCodesOfAFreshSession) {
  const auto model = open_demo();
  engine::SessionOptions o;
  o.n_context = 1024, o.policy = "keycodes", o.kv_share = .5;
  const auto text = random_tokens(*model, 900, 52), other = random_tokens(*model, 900, 53);
  const auto feed_to = [](Session* s, const std::vector<int32_t>& tokens, uint32_t end) {
    unwrap(s->prefill(Span<const int32_t>(tokens).subspan(s->tokens().size(), end - s->tokens().size()), nullptr, nullptr));
    greedy(s, 1);
    unwrap(s->rewind(end));
  };
  const auto fresh = [&](const std::vector<int32_t>& tokens, uint32_t end) {
    const auto s = unwrap(Session::open(model, o));
    feed_to(s.get(), tokens, end);
    return bytes_of(*s);
  };
  const auto session = unwrap(Session::open(model, o));
  const auto mean = [&](const Session& s) {
    return reinterpret_cast<const float*>(static_cast<uintptr_t>(s.resident()->key_codes()->mean(0).address))[0];
  };
  feed_to(session.get(), text, 300);
  const float of_256 = mean(*session);
  EXPECT_EQ(bytes_of(*session), fresh(text, 300));
  feed_to(session.get(), text, 500);
  EXPECT_EQ(mean(*session), of_256) << "512 tokens make a new mean";
  EXPECT_EQ(bytes_of(*session), fresh(text, 500));
  const auto fork = unwrap(session->fork());
  feed_to(fork.get(), text, 540);
  EXPECT_NE(mean(*fork), of_256);
  EXPECT_EQ(bytes_of(*fork), fresh(text, 540));
  unwrap(session->rewind(200));  // and another text: the mean is made again
  auto mixed = other;
  std::copy(text.begin(), text.begin() + 200, mixed.begin());
  feed_to(session.get(), mixed, 400);
  EXPECT_EQ(bytes_of(*session), fresh(mixed, 400));
}

}  // namespace
}  // namespace orrery::keycodes_test

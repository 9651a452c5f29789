// Sessions whose resident KV is coarser than what the reservoir keeps: every slot's bytes derive from the reservoir's,
// answers stay as near to the finer session's as the coarser type's rounding allows, and memory is what the plan says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/checked.h"
#include "runtime/engine/session/session_file.h"
#include "tests/support/kv_tokens.h"
#include "tests/support/policy_sessions.h"

namespace orrery::device_type_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using engine::SessionOptions;

using TypePair = std::pair<KvType, KvType>;  // the reservoir's, the device's
constexpr TypePair kPairs[] = {{KvType::f32, KvType::f16},   {KvType::f32, KvType::q4_0},  {KvType::f16, KvType::q8_0},
                               {KvType::f16, KvType::q4_0},  {KvType::q8_0, KvType::q4_0}, {KvType::f16, KvType::k8v4},
                               {KvType::q8_0, KvType::k8v4}, {KvType::k8v4, KvType::q4_0}};

// share: of tokens.
SessionOptions options(const PolicyMode& mode, TypePair types, double share, uint32_t n_context = 320) {
  SessionOptions o = with_mode(mode, share_of_tokens(share, types.first, types.second), n_context, types.first);
  o.device_kv_type = types.second;
  return o;
}
const PolicyMode kStreaming{"streaming", "streaming", {}, false};

std::vector<std::byte> saved(Session* session) {
  std::vector<std::byte> bytes;
  unwrap(engine::SessionFile::save(session, [&](Span<const std::byte> piece) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return ok_status();
  }));
  return bytes;
}

// The pages are the last thing in a session's file but for a checksum of 16 bytes. What should lie in a slot is made of
// them by the formats' definitions. `rebuilt`: K may be something else but in the newest tokens.
void check_slots(Session* session, bool rebuilt = false) {
  const kv::HeadStore& store = session->resident()->store();
  const model::Description& h = session->model().description();
  const KvFormat pages = engine::kv_format(h, session->options().kv_type);
  const KvFormat device = engine::kv_format(h, session->options().resident_type(h));
  const std::vector<std::byte> file = saved(session);
  const uint64_t n_pages = kv::pages_for(session->n_computed());
  const std::byte* first = file.data() + file.size() - 16 - n_pages * pages.page_bytes();
  for (uint32_t head = 0; head < store.n_heads(); ++head) {
    const uint64_t layer = head / static_cast<uint32_t>(h.kv().n_kv_heads), in_layer = head % static_cast<uint32_t>(h.kv().n_kv_heads);
    const Span<const uint32_t> positions = store.positions(head);
    ASSERT_GT(positions.size(), 0u);
    for (uint32_t slot = 0; slot < positions.size(); ++slot) {
      const uint32_t p = positions[slot];
      ASSERT_LT(p, session->n_computed());
      const std::byte* token =
          first + p / 64 * pages.page_bytes() + layer * pages.layer_bytes() + in_layer * pages.head_bytes() + p % 64 * pages.token_bytes();
      const std::vector<std::byte> want = converted_tokens(token, pages.type, device.type, static_cast<uint64_t>(h.kv().head_dim));
      const uint64_t at = store.tiles(head)[slot / 64] + slot % 64 * device.token_bytes();
      const uint64_t from = rebuilt && p + 8 < session->n_computed() ? device.key_bytes() : 0;
      ASSERT_EQ(std::memcmp(reinterpret_cast<const std::byte*>(at) + from, want.data() + from, want.size() - from), 0)
          << "head " << head << ", slot " << slot << " of " << positions.size() << ", position " << p;
    }
  }
}

// The same tokens' logits out of pages of two forms: they differ by the rounding of the pages' type. With AVX-512 BF16 prompts' attention
// rounds F16 to bf16.
void expect_near(Session* found, Session* expected) {
  const KvType pages = found->options().kv_type;
  Deviation deviation;
  deviation.add(found->logits().data(), expected->logits().data(), expected->logits().size());
  EXPECT_LE(deviation.rms(), pages == KvType::f32 ? 1e-4 : pages == KvType::f16 ? .02 : .045);
  EXPECT_GT(deviation.rms(), 0.0);
}

class DeviceType : public ::testing::TestWithParam<std::tuple<PolicyMode, TypePair>> {
 protected:
  const PolicyMode& mode() const { return std::get<0>(GetParam()); }
  TypePair types() const { return std::get<1>(GetParam()); }
  // Codes of values take more of a budget.
  double share_of_mode(double share) const { return mode().values() ? std::max(share, .8) : share; }
  SessionOptions with(double share) const { return options(mode(), types(), share_of_mode(share)); }
  // A number for each case: where a test takes some of several ways alone, neighbours take others.
  size_t turn() const {
    const auto is_same = [&](const PolicyMode& m) { return m.name == std::string(mode().name); };
    return static_cast<size_t>(std::find_if(policy_modes().begin(), policy_modes().end(), is_same) - policy_modes().begin()) + pair();
  }
  size_t pair() const { return static_cast<size_t>(std::find(std::begin(kPairs), std::end(kPairs), types()) - std::begin(kPairs)); }
  // What of the reservoir's own type stands beside it.
  SessionOptions fine(double share) const { return options(mode(), {types().first, types().first}, share_of_mode(share)); }
};

// Settled, appended, replaced and refilled: one rule for all of them. The demo model, the largest, with two pairs of types for each policy,
// not the same ones for all; and wherever the small models asked for nothing, though the policy refills.
TEST_P(DeviceType, WhatIsResidentDerivesFromTheReservoir) {
  uint64_t n_fetched = 0;
  const ptrdiff_t pair = std::find(std::begin(kPairs), std::end(kPairs), types()) - std::begin(kPairs);
  const ptrdiff_t turn = static_cast<ptrdiff_t>(std::string(mode().name).size());
  // Each mode and each pair of types meets both small models, with and without windows.
  for (const std::string name : {(pair + turn) % 2 == 0 ? "qwen3" : "phi3-window", "demo"}) {
    if (name == "demo" && (pair + turn) % 5 > 1 && (n_fetched > 0 || !mode().refills)) continue;
    SCOPED_TRACE(name);
    const auto model = name == "demo" ? open_demo() : open_spec(name);
    ASSERT_EQ(model->description().kv().head_dim % 32, 0);
    const auto session = unwrap(Session::open(model, with(0.6)));
    unwrap(session->prefill(random_tokens(*model, 150, 1), nullptr, nullptr));
    for (int i = 0; i < 4; ++i) {
      greedy(session.get(), 25);
      check_slots(session.get(), mode().rebuilds());
      if (HasFatalFailure()) return;
    }
    EXPECT_LE(session->kv_used_bytes(), session->kv_bytes());
    n_fetched += session->resident()->refill_stats().tokens;
  }
  EXPECT_EQ(n_fetched > 0, mode().refills);
}

// With everything resident the two sessions differ by the rounding of the device's type alone: the bounds are those of
// a whole cache of that type (tests/golden/model_goldens_test.cpp), which qwen3-tied comes nearest to.
TEST_P(DeviceType, AWholeBudgetStaysNearTheFinerTypes) {
  const KvType coarser = types().second;
  const double bound = coarser == KvType::f16 ? 1.7e-3 : coarser == KvType::q8_0 ? 0.045 : coarser == KvType::k8v4 ? 0.27 : 0.6;
  const char* models[] = {"qwen3", "qwen3-tied", "phi3-window"};
  for (const std::string name : {models[turn() % 3], models[(turn() + 1) % 3]}) {
    const auto model = open_spec(name);
    const auto finer = unwrap(Session::open(model, fine(1.0)));
    const auto coarse = unwrap(Session::open(model, with(1.0)));
    const auto prompt = random_tokens(*model, 150, 2), answer = random_tokens(*model, 60, 3);
    unwrap(finer->prefill(prompt, nullptr, nullptr));
    unwrap(coarse->prefill(prompt, nullptr, nullptr));
    // Prompts attend to the reservoir. Its form follows slots of four bits.
    if (coarse->options().rotated(model->description()) != finer->options().rotated(model->description()))
      expect_near(coarse.get(), finer.get());
    else EXPECT_TRUE(same_bits(as_vector(finer->logits()), as_vector(coarse->logits())));
    Deviation deviation;
    for (const int32_t token : answer) {
      feed(finer.get(), token);
      feed(coarse.get(), token);
      deviation.add(coarse->logits().data(), finer->logits().data(), finer->logits().size());
    }
    EXPECT_LE(deviation.rms(), bound) << name;
    EXPECT_GT(deviation.rms(), 0.0) << name;
  }
}

// What policies score behind settling lies in the device's type: halves are near enough to floats that the same tokens
// are chosen, but for close calls. Keys that are read in the wrong type would choose others.
class HalfDevice : public ::testing::TestWithParam<PolicyMode> {};
TEST_P(HalfDevice, ChoosesTheTokensThatFloatsChoose) {
  const auto model = open_demo();
  const double share = GetParam().values() ? .8 : .5;
  SessionOptions f = options(GetParam(), {KvType::f32, KvType::f32}, share), c = options(GetParam(), {KvType::f32, KvType::f16}, share);
  if (GetParam().rebuilds())  // by default the rank follows the budget's bytes
    for (SessionOptions* o : {&f, &c}) o->policy_options.emplace_back("rank", "24");
  const auto finer = unwrap(Session::open(model, f)), coarse = unwrap(Session::open(model, c));
  const auto prompt = random_tokens(*model, 200, 10), answer = random_tokens(*model, 60, 11);
  for (Session* session : {finer.get(), coarse.get()}) {
    unwrap(session->prefill(prompt, nullptr, nullptr));
    for (const int32_t token : answer) feed(session, token);
  }
  uint64_t in_both = 0, in_all = 0;
  for (uint32_t head = 0; head < finer->resident()->store().n_heads(); ++head) {
    const Span<const uint32_t> a = finer->resident()->store().positions(head);
    const Span<const uint32_t> b = coarse->resident()->store().positions(head);
    for (const uint32_t p : a) in_both += static_cast<uint64_t>(std::count(b.begin(), b.end(), p));
    in_all += std::min(a.size(), b.size());  // digests cost other shares of slots that are larger: then one has more
  }
  // .990 and more; with the wrong type .81 and less.
  EXPECT_GE(static_cast<double>(in_both), 0.97 * static_cast<double>(in_all));
  EXPECT_EQ(coarse->resident()->refill_stats().tokens > 0, GetParam().refills);
}

TEST_P(DeviceType, ThreadsChunksAndTheLinkDoNotShow) {
  std::vector<float> first;
  for (const int32_t n_threads : {1, 2}) {
    engine::RuntimeOptions runtime = runtime_options(n_threads);
    if (n_threads == 2) runtime.link = {200'000'000, 20};
    const auto model = open_spec("qwen3", runtime);
    SessionOptions o = with(0.6);
    o.chunk_tokens = n_threads == 2 ? 7 : 64;
    if (mode().name == std::string("auto_by_window"))  // a link has other defaults
      o.policy_options.insert(o.policy_options.end(), {{"tail", "8"}, {"renew", "3"}});
    const auto session = unwrap(Session::open(model, o));
    unwrap(session->prefill(random_tokens(*model, 150, 4), nullptr, nullptr));
    std::vector<float> trace;
    greedy(session.get(), 60, &trace);
    if (first.empty()) first = trace;
    EXPECT_TRUE(same_bits(trace, first)) << n_threads;
  }
}

TEST_P(DeviceType, AForkGoesOnAlike) {
  const auto model = open_spec("qwen3");
  const auto session = unwrap(Session::open(model, with(0.6)));
  unwrap(session->prefill(random_tokens(*model, 150, 5), nullptr, nullptr));
  for (int i = 0; i < 3; ++i) {  // refreshes are pending at some of these steps
    greedy(session.get(), 7);
    const auto fork = unwrap(session->fork());
    std::vector<float> a, b;
    greedy(session.get(), 20, &a);
    greedy(fork.get(), 20, &b);
    EXPECT_TRUE(same_bits(a, b));
    check_slots(fork.get(), mode().rebuilds());
  }
}

// A file holds the reservoir: what the device kept of it is the next session's own affair.
TEST_P(DeviceType, ASavedSessionGoesOnInAnyDeviceType) {
  const auto model = open_spec("qwen3");
  const auto session = unwrap(Session::open(model, with(0.6)));
  unwrap(session->prefill(random_tokens(*model, 150, 6), nullptr, nullptr));
  const std::vector<std::byte> file = saved(session.get());
  const auto same = unwrap(Session::open(model, with(0.6)));
  const auto finer = unwrap(Session::open(model, fine(0.6)));
  for (Session* loaded : {same.get(), finer.get()}) {
    unwrap(engine::SessionFile::load(loaded, file, "test"));
    unwrap(loaded->sequence().refresh_logits());
    const model::Description& h = model->description();
    if (types().first == KvType::q8_0 || loaded->options().rotated(h) == session->options().rotated(h))  // Q8_0: the file's form is kept
      EXPECT_TRUE(same_bits(as_vector(loaded->logits()), as_vector(session->logits())));
    else  // the pages have changed their form
      expect_near(loaded, session.get());
  }
  std::vector<float> a, b;
  greedy(session.get(), 40, &a);
  greedy(same.get(), 40, &b);
  EXPECT_TRUE(same_bits(a, b));
  greedy(finer.get(), 40);
  check_slots(finer.get(), mode().rebuilds());
}

// Each mode with three of the pairs, and each pair with three of eight modes: no policy asks for a type by its name, and no type knows policies.
std::vector<std::tuple<PolicyMode, TypePair>> some_pairs() {
  std::vector<std::tuple<PolicyMode, TypePair>> some;
  for (size_t m = 0; m < policy_modes().size(); ++m)
    for (const size_t ahead : {size_t{0}, size_t{3}, size_t{5}})
      some.emplace_back(policy_modes()[m], kPairs[(m + ahead) % std::size(kPairs)]);
  return some;
}
INSTANTIATE_TEST_SUITE_P(Policies, HalfDevice, ::testing::ValuesIn(policy_modes()),
                         [](const auto& tested) { return std::string(tested.param.name); });
INSTANTIATE_TEST_SUITE_P(Policies, DeviceType, ::testing::ValuesIn(some_pairs()), [](const auto& tested) {
  const TypePair types = std::get<1>(tested.param);
  return std::string(std::get<0>(tested.param).name) + "_" + kv_type_name(types.first) + "_" + kv_type_name(types.second);
});

// Bytes hold the more tokens the coarser they are, and a share is one of the reservoir's bytes. Staging and reservoir stay canonical.
TEST(DeviceTypePlan, BytesAreTheBudgetInTheDevicesType) {
  for (size_t m = 0; m < policy_modes().size(); ++m) {
    const PolicyMode& mode = policy_modes()[m];
    for (const TypePair& types : kPairs) {
      SCOPED_TRACE(std::string(mode.name) + ", " + kv_type_name(types.first) + ", " + kv_type_name(types.second));
      const auto model = open_spec("qwen3");
      const model::Description& h = model->description();
      const uint64_t device_token = engine::kv_format(h, types.second).token_bytes();
      const uint64_t token = engine::kv_format(h, types.first).token_bytes();
      const uint64_t before = model->runtime().arena().used();
      SessionOptions o = options(mode, types, 0.5, 2048);
      SessionOptions fine = options(mode, {types.first, types.first}, 0.5, 2048);
      const uint64_t n_heads = static_cast<uint64_t>(h.n_layers * h.kv().n_kv_heads);
      EXPECT_EQ(engine::resident_slots(h, fine, 2048), n_heads * 1024);
      o.kv_share = 0.5;
      EXPECT_EQ(engine::resident_slots(h, o, 2048), n_heads * std::min<uint64_t>(1024 * token / device_token, 2048));
      o.kv_share = fine.kv_share = 1.0;
      o.kv_budget_bytes = fine.kv_budget_bytes = 1024 * token;
      EXPECT_EQ(engine::resident_slots(h, fine, 2048), 1024u);
      EXPECT_EQ(engine::resident_slots(h, o, 2048), 1024 * token / device_token);
      const uint64_t slots = 1536 * n_heads;
      o.kv_budget_bytes = slots * device_token;
      EXPECT_EQ(engine::resident_slots(h, o, 2048), slots);
      const kv::Plan plan = plan_session(*model, o);
      const uint64_t kv_bytes = plan.full_kv_bytes + plan.compressed_kv_bytes + plan.digests_bytes;
      if (plan.digests_bytes == 0) EXPECT_EQ(kv_bytes, slots * device_token);
      else  // up to the slot that they break into, and what the arena rounds up
        EXPECT_NEAR(static_cast<double>(kv_bytes), static_cast<double>(slots * device_token), static_cast<double>(device_token + 512));
      const auto session = unwrap(Session::open(model, o));
      EXPECT_EQ(model->runtime().arena().used() - before, plan.device_bytes);
      EXPECT_EQ(session->kv_bytes(), kv_bytes);
      EXPECT_EQ(session->reservoir_bytes(), plan.reservoir_bytes);
      EXPECT_EQ(plan.reservoir_bytes, 2048 / 64 * engine::kv_format(h, types.first).page_bytes());
      const auto pair = static_cast<size_t>(&types - kPairs);
      if ((pair + m) % 4 != 0) continue;  // an answer of every fourth pair
      unwrap(session->prefill(random_tokens(*model, 300, 8), nullptr, nullptr));
      greedy(session.get(), 30);
      EXPECT_EQ(model->runtime().arena().used() - before, plan.device_bytes);
      EXPECT_LE(session->kv_used_bytes(), o.kv_budget_bytes);
      const kv::Refills::Stats fetched = session->resident()->refill_stats();
      EXPECT_EQ(fetched.bytes, fetched.tokens * (mode.rebuilds() ? engine::kv_format(h, types.first).value_bytes()
                                                                 : token));  // over the link they come as they are kept
    }
  }
}

TEST(DeviceTypeOrder, IsFromFineToCoarse) {
  constexpr KvType kOrder[] = {KvType::f32, KvType::f16, KvType::q8_0, KvType::k8v4, KvType::q4_0};
  static_assert(std::size(kOrder) == kKvTypeCount);
  const char* names[] = {"F32", "F16", "Q8_0", "K8V4", "Q4_0"};
  for (size_t i = 0; i < kKvTypeCount; ++i) {
    EXPECT_STREQ(kv_type_name(kOrder[i]), names[i]);
    for (size_t j = 0; j < kKvTypeCount; ++j) EXPECT_EQ(finer(kOrder[i], kOrder[j]), i < j) << names[i] << ", " << names[j];
  }
  const KvFormat mixed{KvType::k8v4, 3, 2, 96};
  EXPECT_EQ(mixed.key_bytes(), 3u * 34);
  EXPECT_EQ(mixed.value_bytes(), 3u * 18);
  EXPECT_EQ(mixed.page_bytes(), 3u * 2 * 64 * 3 * 52);
  EXPECT_EQ(mixed.head_offset(2, 1), 2 * kPagesTogether * mixed.layer_bytes() + 64u * 3 * 52);
}

TEST(DeviceTypeRefused, WhatIsFinerAndWhatHasNoDeviceCopy) {
  const auto model = open_spec("qwen3");
  const PolicyMode full{"full", "full", {}, false};
  const auto refused = [&](const engine::LanguageModel& of, const SessionOptions& o, Code code, const std::string& words) {
    const Status status = o.validate(of.description());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status.message();
  };
  for (const TypePair& types : kPairs)
    refused(*model, options(kStreaming, {types.second, types.first}, 0.5), Code::invalid_argument,
            std::string("type ") + kv_type_name(types.first) + " is finer than " + kv_type_name(types.second));
  refused(*model, options(full, {KvType::f16, KvType::q8_0}, 1.0), Code::invalid_argument, "the device's KV type is Q8_0, expected F16");
  SessionOptions same = options(full, {KvType::f16, KvType::f16}, 1.0);
  same.device_kv_type = KvType::f16;
  EXPECT_TRUE(same.validate(model->description()).ok());
  const auto odd = open_spec("llama-hd40");
  refused(*odd, options(kStreaming, {KvType::f16, KvType::q8_0}, 0.5), Code::unsupported, "multiple of 32");
  refused(*odd, options(kStreaming, {KvType::f16, KvType::k8v4}, 0.5), Code::unsupported, "multiple of 32");
  refused(*odd, options(full, {KvType::k8v4, KvType::k8v4}, 1.0), Code::unsupported, "multiple of 32");
  refused(*model, options(full, {KvType::q8_0, KvType::k8v4}, 1.0), Code::invalid_argument, "the device's KV type is K8V4, expected Q8_0");
}

// A share is the same memory for every type, to a token of each head, and holds the more of them; what is planned is what is taken.
TEST(DeviceTypePlan, TheSameShareIsTheSameBytes) {
  const auto model = open_spec("qwen3");
  const model::Description& h = model->description();
  const uint64_t n_heads = static_cast<uint64_t>(h.n_layers * h.kv().n_kv_heads);
  const auto kv_of = [](const kv::Plan& plan) { return plan.full_kv_bytes + plan.compressed_kv_bytes + plan.digests_bytes; };
  for (const PolicyMode& mode : policy_modes()) {
    for (const TypePair& types : kPairs) {
      for (const uint32_t n_context : {777u, 2048u}) {
        for (const double share : {.2, .35, .9}) {
          SCOPED_TRACE(std::string(mode.name) + ", " + kv_type_name(types.first) + ", " + kv_type_name(types.second) + ", " +
                       std::to_string(share));
          const SessionOptions fine = with_mode(mode, share, n_context, types.first);
          SessionOptions coarse = fine;
          coarse.device_kv_type = types.second;
          const kv::Plan plan = plan_session(*model, coarse), finer = plan_session(*model, fine);
          if (!engine::make_policy(h, fine, n_context).ok() || !engine::make_policy(h, coarse, n_context).ok()) continue;
          const uint64_t token = engine::kv_format(h, types.first).token_bytes(),
                         device_token = engine::kv_format(h, types.second).token_bytes();
          const auto kept = static_cast<uint64_t>(std::ceil(share * n_context - 1e-3));
          EXPECT_EQ(finer.device_type, types.first);
          EXPECT_EQ(plan.device_type, types.second);
          EXPECT_LE(kv_of(plan), n_heads * kept * token + 3 * kv::kArenaAlignment);
          if (kept * token < n_context * device_token) {
            EXPECT_GE(kv_of(plan) + n_heads * device_token + token, n_heads * kept * token);
          } else {
            EXPECT_LE(kv_of(plan), align_up(n_heads * n_context * device_token, kv::kArenaAlignment));  // all tokens
            EXPECT_GE(kv_of(plan) + 2 * kv::kArenaAlignment, n_heads * n_context * device_token);
          }
          if (n_context != 777) continue;
          const uint64_t used = model->runtime().arena().used();
          const auto session = unwrap(Session::open(model, coarse));
          if (plan.workspace_bytes == 0) {  // else another one may go
            EXPECT_EQ(model->runtime().arena().used() - used, plan.device_bytes);
          }
          EXPECT_EQ(session->kv_bytes(), kv_of(plan));
        }
      }
    }
  }
}

// Where a share of the finer type's bytes holds every token in the coarser one, so does the device, however long the answer is: nothing is
// chosen, once settled, nor fetched.
TEST(DeviceTypePlan, AShareThatHoldsEveryTokenIsAWholeOne) {
  const auto model = open_spec("qwen3");
  for (const PolicyMode& mode : policy_modes()) {
    if (mode.name == std::string("duoattention_compensated")) continue;  // whose options say how many heads are whole
    for (const TypePair& types : kPairs) {
      for (const double share : {1.0, .6}) {
        SCOPED_TRACE(std::string(mode.name) + ", " + kv_type_name(types.first) + ", " + kv_type_name(types.second) + ", " +
                     std::to_string(share));
        if (share < share_of_tokens(1, types.first, types.second)) continue;
        SessionOptions o = with_mode(mode, share, 320, types.first);
        o.device_kv_type = types.second;
        const auto session = unwrap(Session::open(model, o));
        unwrap(session->prefill(random_tokens(*model, 150, 2), nullptr, nullptr));
        greedy(session.get(), 100);
        check_slots(session.get());
        const engine::Resident& resident = *session->resident();
        for (uint32_t head = 0; head < resident.store().n_heads(); ++head) ASSERT_EQ(resident.store().length(head), session->n_computed());
        EXPECT_EQ(resident.report().n_settled, 1u);
        EXPECT_EQ(resident.refill_stats().tokens, 0u);
        EXPECT_EQ(plan_session(*model, o).digests_bytes, 0u);
      }
    }
  }
}

// Nobody says what the device holds: a policy may have a type of its own, where KV is kept in a finer one that heads can be cut into.
TEST(DeviceTypeOfAPolicy, IsWhatNobodySays) {
  const auto model = open_spec("qwen3"), odd = open_spec("llama-hd40");
  const auto type_of = [](const engine::LanguageModel& of, const char* policy, KvType kept, const policy::Options& parameters = {}) {
    SessionOptions o;
    o.n_context = 512;
    o.policy = policy;
    o.policy_options = parameters;
    o.kv_type = kept;
    if (o.compressed()) o.kv_share = .4;
    unwrap(o.validate(of.description()));
    o.see_device(of.runtime().device().info(), of.runtime().moves_directly());
    const KvType type = o.resident_type(of.description());
    EXPECT_EQ(plan_session(of, o).device_type, type);
    return type;
  };
  for (const KvType kept : kKvTypes) {
    for (const char* policy : compressing_policies()) {
      if (policy == std::string("auto") || policy == std::string("keycodes")) continue;
      EXPECT_EQ(type_of(*model, policy, kept), kept) << policy;
    }
    EXPECT_EQ(type_of(*model, "full", kept), kept);
    const KvType own = finer(kept, KvType::q8_0) ? KvType::q8_0 : kept, in_place = kept == KvType::f32 ? own : kept;
    EXPECT_EQ(type_of(*model, "keycodes", kept), in_place);
    EXPECT_EQ(type_of(*model, "keycodes", kept, {{"copy", "1"}}), own);
    EXPECT_EQ(type_of(*model, "keycodes", kept, {{"stay", "2"}}), own);
    EXPECT_EQ(type_of(*model, "auto", kept, {{"by", "codes"}}), in_place);
    EXPECT_EQ(type_of(*model, "auto", kept), model->description().kv().head_dim % 64 == 0 ? in_place : own);
    EXPECT_EQ(type_of(*model, "auto", kept, {{"compensation", "0"}, {"width", "7"}}), own);
  }
  for (const KvType kept : {KvType::f32, KvType::f16}) EXPECT_EQ(type_of(*odd, "auto", kept), kept);  // of 40 values
  SessionOptions o = with_mode({"auto", "auto", {}, false}, .4);
  o.device_kv_type = KvType::q4_0;
  EXPECT_EQ(o.resident_type(model->description()), KvType::q4_0);
  SessionOptions of_odd;
  of_odd.n_context = 320, of_odd.policy = "auto", of_odd.kv_share = .6;
  const auto session = unwrap(Session::open(odd, of_odd));
  unwrap(session->prefill(random_tokens(*odd, 150, 12), nullptr, nullptr));
  greedy(session.get(), 20);
  EXPECT_EQ(session->resident()->format().type, KvType::f16);
}

// The budget in bytes that is this share of full KV's in F16, at a context of 512.
uint64_t bytes_of_f16(const model::Description& h, double share) {
  const uint64_t token = engine::kv_format(h, KvType::f16).token_bytes() * static_cast<uint64_t>(h.n_layers * h.kv().n_kv_heads);
  return static_cast<uint64_t>(share * 512 * static_cast<double>(token));
}

// auto has Q4_0 below 28% of F16's bytes and K8V4 below a half, by codes K8V4 below an eighth; whatever the pages' type, for heads of a
// multiple of 64. A budget in bytes counts at the caller's context.
TEST(DeviceTypeOfAPolicy, AutosHasFourBitsWhereTheBudgetIsSmall) {
  const auto model = open_spec("qwen3-tied");
  const model::Description& h = model->description();
  ASSERT_EQ(h.kv().head_dim, 64);
  SessionOptions o;
  o.n_context = 512, o.policy = "auto";
  const auto type_at = [&](double share) {
    o.kv_share = share;
    return o.resident_type(h);
  };
  for (const KvType kept : {KvType::f32, KvType::f16, KvType::q8_0}) {
    SCOPED_TRACE(kv_type_name(kept));
    o.kv_type = kept;
    const double of_f16 = kept == KvType::f32 ? 1. / 2 : kept == KvType::f16 ? 1. : 32. / 17;
    for (const auto& [share, below, above] : {std::tuple(.28, KvType::q4_0, KvType::k8v4), std::tuple(.5, KvType::k8v4, KvType::q8_0)}) {
      EXPECT_EQ(type_at(share * of_f16 * .999), below);
      EXPECT_EQ(type_at(share * of_f16 * 1.001), above);
    }
    EXPECT_EQ(type_at(1), KvType::q8_0);
  }
  o.kv_type = KvType::q4_0;
  EXPECT_EQ(type_at(.1), KvType::q4_0);
  o.kv_type = KvType::f16;
  EXPECT_EQ(type_at(.28), KvType::k8v4);
  EXPECT_EQ(type_at(.5), KvType::q8_0);
  o.policy_options = {{"by", "codes"}};
  EXPECT_EQ(type_at(.125), KvType::q8_0);
  EXPECT_EQ(type_at(.124), KvType::k8v4);
  EXPECT_EQ(type_at(.01), KvType::k8v4);
  o.policy_options = {{"by", "window"}, {"width", "7"}};
  EXPECT_EQ(type_at(.1), KvType::q4_0);
  o.speculate = engine::Speculate::policy;
  EXPECT_EQ(type_at(.1), KvType::q8_0);
  o.speculate = engine::Speculate::off;
  o.policy_options = {}, o.finds_by_codes = true;
  EXPECT_EQ(type_at(.05), KvType::f16) << "in place";
  EXPECT_EQ(type_at(.049), KvType::q4_0);
  o.kv_type = KvType::f32;
  EXPECT_EQ(type_at(.046), KvType::q4_0);
  EXPECT_EQ(type_at(.048), KvType::k8v4) << "copied";
  EXPECT_EQ(type_at(.062), KvType::k8v4);
  EXPECT_EQ(type_at(.063), KvType::q8_0);
  o.kv_type = KvType::f16, o.finds_by_codes = false, o.policy_options = {{"by", "window"}};
  o.device_kv_type = KvType::f16;
  EXPECT_EQ(type_at(.1), KvType::f16);
  o.device_kv_type.reset();
  o.policy = "keycodes", o.policy_options = {};
  EXPECT_EQ(type_at(.1), KvType::k8v4);
  EXPECT_EQ(type_at(.2), KvType::q8_0);
  o.policy = "snapkv";
  EXPECT_EQ(type_at(.1), KvType::f16);
  o.policy = "auto", o.kv_share = 1;
  o.kv_budget_bytes = bytes_of_f16(h, .279);
  EXPECT_EQ(o.resident_type(h), KvType::q4_0);
  o.kv_type = KvType::q8_0;
  EXPECT_EQ(o.resident_type(h), KvType::q4_0);
  o.kv_type = KvType::f16, o.n_context = 0;
  EXPECT_EQ(o.resident_type(h), KvType::q8_0);
  o.n_context = 512, o.kv_budget_bytes = bytes_of_f16(h, .501);
  EXPECT_EQ(o.resident_type(h), KvType::q8_0);
  model::Description wider = h;
  wider.groups[0].n_kv_heads = 3;
  EXPECT_EQ(o.resident_type(wider), KvType::q4_0) << "the same bytes are a third of the share";
  o.kv_budget_bytes = 0, o.kv_share = .1;
  EXPECT_EQ(o.resident_type(open_demo()->description()), KvType::q8_0) << "heads of 32";
  EXPECT_EQ(o.resident_type(open_spec("llama-hd40")->description()), KvType::f16);
}

// What is planned is what is taken, and the small budget's sessions, forks and files go on alike.
TEST(DeviceTypeOfAPolicy, ASmallBudgetIsPlannedTakenAndGoesOn) {
  const auto model = open_spec("qwen3-tied");
  const model::Description& h = model->description();
  for (const bool in_bytes : {false, true}) {
    SessionOptions o;
    o.n_context = 512, o.policy = "auto", o.kv_share = .1;
    if (in_bytes) o.kv_share = 1, o.kv_budget_bytes = bytes_of_f16(h, .1);
    EXPECT_EQ(plan_session(*model, o).device_type, KvType::f16) << "by codes, in place";
    o.policy_options = {{"by", "window"}};
    const kv::Plan plan = plan_session(*model, o);
    EXPECT_EQ(plan.device_type, KvType::q4_0);
    const uint64_t used = model->runtime().arena().used();
    const auto session = unwrap(Session::open(model, o));
    EXPECT_EQ(model->runtime().arena().used() - used, plan.device_bytes);
    EXPECT_EQ(session->kv_bytes(), plan.full_kv_bytes + plan.compressed_kv_bytes + plan.digests_bytes);
    // 51.2 tokens of F16, of 256 bytes, for each head: at least 64 of Q4_0's 72, and what compensation tokens leave of the rest.
    EXPECT_LE(
        session->kv_bytes(),
        std::max<uint64_t>(bytes_of_f16(h, .1), 64 * 72 * static_cast<uint64_t>(h.n_layers * h.kv().n_kv_heads)) + 3 * kv::kArenaAlignment);
    unwrap(session->prefill(random_tokens(*model, 300, 3), nullptr, nullptr));
    EXPECT_TRUE(session->options().rotated(h));
    greedy(session.get(), 20);
    EXPECT_EQ(session->resident()->format().type, KvType::q4_0);
    check_slots(session.get());
    const auto fork = unwrap(session->fork()), loaded = unwrap(Session::open(model, o));
    unwrap(engine::SessionFile::load(loaded.get(), saved(session.get()), "test"));
    std::vector<float> a, b;
    greedy(session.get(), 30, &a);
    greedy(fork.get(), 30, &b);
    EXPECT_TRUE(same_bits(a, b));
    check_slots(fork.get());
    unwrap(loaded->sequence().refresh_logits());
    greedy(loaded.get(), 30);
    check_slots(loaded.get());
  }
}

// What it has by itself is what it has by name: to the bit, in forks and loaded sessions, too.
TEST(DeviceTypeOfAPolicy, AutosIsQ8ByAnyName) {
  const auto model = open_demo();
  const auto prompt = random_tokens(*model, 300, 13);
  SessionOptions by_itself;
  by_itself.n_context = 1024, by_itself.policy = "auto", by_itself.kv_share = .2;
  SessionOptions named = by_itself, halves = by_itself;
  named.device_kv_type = KvType::q8_0, halves.device_kv_type = KvType::f16;
  std::vector<float> traces[3];
  std::vector<std::byte> file;
  for (size_t i = 0; i < 3; ++i) {
    const SessionOptions& o = i == 0 ? by_itself : i == 1 ? named : halves;
    const auto session = unwrap(Session::open(model, o));
    unwrap(session->prefill(prompt, nullptr, nullptr));
    if (i == 0) file = saved(session.get());
    greedy(session.get(), 60, &traces[i]);
    check_slots(session.get());
    const auto fork = unwrap(session->fork());
    EXPECT_EQ(fork->resident()->format().type, i < 2 ? KvType::q8_0 : KvType::f16);
    std::vector<float> a, b;
    greedy(session.get(), 40, &a);
    greedy(fork.get(), 40, &b);
    EXPECT_TRUE(same_bits(a, b));
    check_slots(fork.get());
    const auto loaded = unwrap(Session::open(model, o));  // a file is of no device type
    unwrap(engine::SessionFile::load(loaded.get(), file, "test"));
    unwrap(loaded->sequence().refresh_logits());
    std::vector<float> again;
    greedy(loaded.get(), 60, &again);
    EXPECT_TRUE(same_bits(again, traces[i]));
  }
  EXPECT_TRUE(same_bits(traces[0], traces[1]));
  EXPECT_FALSE(same_bits(traces[0], traces[2]));
}

// However long the answer gets: the slots that heads have, and what stands for the rest, are within the share's bytes of the tokens that
// they are for, those that are there and a tail, and come near them.
TEST(DeviceTypeOfAPolicy, ALongAnswerKeepsToTheSharesBytes) {
  const auto model = open_demo();
  const uint64_t token = engine::kv_format(model->description(), KvType::f16).token_bytes();
  for (const KvType device : {KvType::f16, KvType::q8_0, KvType::k8v4, KvType::q4_0}) {
    SCOPED_TRACE(kv_type_name(device));
    SessionOptions o;
    o.n_context = 1536, o.policy = "auto", o.policy_options = {{"by", "window"}}, o.kv_share = .2, o.device_kv_type = device;
    const auto session = unwrap(Session::open(model, o));
    unwrap(session->prefill(random_tokens(*model, 700, 15), nullptr, nullptr));
    const kv::HeadStore& store = session->resident()->store();
    const uint64_t beside = plan_session(*model, o).digests_bytes;
    uint64_t n_settled = 0, horizon = 0;
    for (int step = 0; step < 300; ++step) {
      greedy(session.get(), 1);
      if (session->resident()->settling()) continue;  // in parts: the slots are not in use
      uint64_t slots = 0, tail = 0;
      for (uint32_t head = 0; head < store.n_heads(); ++head) {
        slots += store.capacity(head);
        tail = std::max<uint64_t>(tail, store.capacity(head) - store.length(head));
      }
      if (session->resident()->report().n_settled > n_settled) horizon = session->n_computed() + tail, ++n_settled;
      const double bytes = static_cast<double>(slots * session->resident()->format().token_bytes() + beside);
      const double share = .2 * static_cast<double>(store.n_heads() * horizon * token);
      ASSERT_LE(bytes, share + 2 * kv::kArenaAlignment) << step;
      ASSERT_GE(bytes, .97 * share) << step;
    }
    EXPECT_GE(n_settled, 10u);
  }
}

// A whole budget in a coarser type is a copy, and no choice: what has to be computed again to choose by is not, behind a load or a rewind.
TEST(DeviceTypeOfAPolicy, WhatHoldsEverythingComputesNothingAgain) {
  const auto model = open_demo();
  SessionOptions o;
  o.n_context = 1024, o.policy = "auto", o.kv_share = .54;
  const auto session = unwrap(Session::open(model, o));
  unwrap(session->prefill(random_tokens(*model, 300, 14), nullptr, nullptr));
  greedy(session.get(), 100);
  EXPECT_EQ(session->resident()->report().n_settled, 1u);
  const auto loaded = unwrap(Session::open(model, o));
  unwrap(engine::SessionFile::load(loaded.get(), saved(session.get()), "test"));
  EXPECT_EQ(loaded->resident()->missing_queries(loaded->n_computed()).end, 0u);
  unwrap(loaded->sequence().refresh_logits());
  std::vector<float> a, b;
  greedy(session.get(), 30, &a);
  greedy(loaded.get(), 30, &b);
  EXPECT_TRUE(same_bits(a, b));
}

// Turn by turn only what is new moves to the device; behind a rewind what has changed.
TEST(DeviceTypeOfAPolicy, WhatHoldsEverythingMovesEachTokenOnce) {
  const auto model = open_demo();
  const model::Description& h = model->description();
  const uint64_t column = engine::kv_format(h, KvType::f16).token_bytes() * static_cast<uint64_t>(h.n_layers * h.kv().n_kv_heads);
  SessionOptions o;
  o.n_context = 1024, o.policy = "auto", o.kv_share = .54;
  const auto session = unwrap(Session::open(model, o));
  const engine::Resident& resident = *session->resident();
  uint64_t moved = 0;
  for (uint64_t turn = 0; turn < 4; ++turn) {
    SCOPED_TRACE(turn);
    const uint32_t before = session->n_computed();
    if (turn == 3) unwrap(session->rewind(before - 55));
    unwrap(session->prefill(random_tokens(*model, 90, 20 + turn), nullptr, nullptr));
    greedy(session.get(), 25);
    moved += 90 * column;
    EXPECT_EQ(resident.settled_bytes(), moved);
    EXPECT_EQ(resident.report().n_settled, turn + 1);
    check_slots(session.get());
    const auto fork = unwrap(session->fork());
    unwrap(fork->prefill(random_tokens(*model, 10, 30 + turn), nullptr, nullptr));
    greedy(fork.get(), 5);
    EXPECT_EQ(fork->resident()->settled_bytes(), 10 * column);
    check_slots(fork.get());
  }
}

// Nobody has named a policy: it is auto that the type is for, where full attention does not fit; and who has a type gets that.
TEST(DeviceTypeOfAPolicy, AutomaticSessionsHaveAutos) {
  engine::RuntimeOptions runtime = runtime_options();
  SessionOptions o;
  o.n_context = 4096;
  o.automatic = true;
  runtime.device_budget_bytes = uint64_t{1} << 30;
  const auto roomy = open_demo(runtime);
  const uint64_t weights = roomy->runtime().arena().used();
  const kv::Plan full = plan_session(*roomy, o);
  for (const std::optional<KvType> device :
       {std::optional<KvType>(), std::optional(KvType::f16), std::optional(KvType::k8v4), std::optional(KvType::q4_0)}) {
    SCOPED_TRACE(device ? kv_type_name(*device) : "none");
    o.device_kv_type = device;
    const auto whole = Session::open(roomy, o);
    ASSERT_EQ(whole.ok(), device != KvType::q4_0 && device != KvType::k8v4) << "a full one has no other type";
    if (whole.ok()) {
      EXPECT_EQ(whole.value()->options().policy, "full");
    }
    runtime.device_budget_bytes = weights + full.device_bytes - full.full_kv_bytes * 65 / 100;
    const auto tight = open_demo(runtime);
    const auto part = unwrap(Session::open(tight, o));
    EXPECT_EQ(part->options().policy, "auto");
    EXPECT_EQ(part->resident()->format().type, device.value_or(KvType::q8_0));
    EXPECT_GE(part->options().kv_share, .25);  // the mean keys of four bits take some
    EXPECT_LT(part->options().kv_share, .35);
  }
}

// Where tokens are read in place any share fits, and automatic sessions take a quarter.
TEST(DeviceTypeOfAPolicy, AutomaticSessionsInPlaceHaveAQuarter) {
  engine::RuntimeOptions runtime = runtime_options();
  SessionOptions o;
  o.n_context = 512;
  o.automatic = true;
  runtime.device_budget_bytes = uint64_t{1} << 28;
  const auto roomy = open_spec("qwen3-tied", runtime);
  const uint64_t weights = roomy->runtime().arena().used();
  const kv::Plan full = plan_session(*roomy, o);
  ASSERT_EQ(unwrap(Session::open(roomy, o))->options().policy, "full");
  runtime.device_budget_bytes = weights + full.device_bytes - full.full_kv_bytes / 20;
  const auto tight = open_spec("qwen3-tied", runtime);
  const auto part = unwrap(Session::open(tight, o));
  EXPECT_EQ(part->options().policy, "auto");
  EXPECT_EQ(part->options().kv_share, .25);
  EXPECT_EQ(part->resident()->format().type, KvType::f16);
  EXPECT_EQ(plan_session(*tight, o).compressed_kv_bytes, 0u);
}

// Types without blocks take any head dimension.
TEST(DeviceTypeRefused, HalvesOfAnyHeadDimensionAreNot) {
  const auto model = open_spec("llama-hd40");
  const auto session = unwrap(Session::open(model, options(kStreaming, {KvType::f32, KvType::f16}, 0.6)));
  unwrap(session->prefill(random_tokens(*model, 150, 9), nullptr, nullptr));
  greedy(session.get(), 30);
  check_slots(session.get());
}

}  // namespace
}  // namespace orrery::device_type_test

// Sessions whose resident KV is coarser than what the reservoir keeps: every slot's bytes derive from the reservoir's,
// answers stay as near to the finer session's as the coarser type's rounding allows, and memory is what the plan says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/engine/session_file.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/quantize.h"
#include "tests/support/policy_sessions.h"

namespace orrery {
namespace {

using namespace orrery::testing;
using engine::Session;
using engine::SessionOptions;

using TypePair = std::pair<KvType, KvType>;   // the reservoir's, the device's
constexpr TypePair kPairs[] = {{KvType::f32, KvType::f16},  {KvType::f32, KvType::q4_0}, {KvType::f16, KvType::q8_0},
                               {KvType::f16, KvType::q4_0}, {KvType::q8_0, KvType::q4_0}};

const char* name_of(KvType type) { return type_traits(kv_tensor_type(type))->name; }

SessionOptions options(const PolicyMode& mode, TypePair types, double share, uint32_t n_context = 320) {
  SessionOptions o = with_mode(mode, share, n_context, types.first);
  if (types.second != types.first) o.device_kv_type = types.second;
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
  const model::Hyperparameters& h = session->model().hyper();
  const KvFormat pages = engine::kv_format(h, session->options().kv_type);
  const KvFormat device = engine::kv_format(h, session->options().resident_type());
  const std::vector<std::byte> file = saved(session);
  const uint64_t n_pages = kv::pages_for(session->n_computed());
  const std::byte* first = file.data() + file.size() - 16 - n_pages * pages.page_bytes();
  std::vector<float> values(pages.token_values());
  std::vector<std::byte> want(device.token_bytes());
  for (uint32_t head = 0; head < store.n_heads(); ++head) {
    const uint64_t layer = head / static_cast<uint32_t>(h.n_kv_heads), in_layer = head % static_cast<uint32_t>(h.n_kv_heads);
    const Span<const uint32_t> positions = store.positions(head);
    ASSERT_GT(positions.size(), 0u);
    for (uint32_t slot = 0; slot < positions.size(); ++slot) {
      const uint32_t p = positions[slot];
      ASSERT_LT(p, session->n_computed());
      const std::byte* token = first + p / 64 * pages.page_bytes() + layer * pages.layer_bytes() +
                               in_layer * pages.head_bytes() + p % 64 * pages.token_bytes();
      gguf::dequantize_row(kv_tensor_type(pages.type), token, values.data(), values.size());
      gguf::quantize_row(kv_tensor_type(device.type), values.data(), want.data(), values.size());
      const uint64_t at = store.tiles(head)[slot / 64] + slot % 64 * device.token_bytes();
      const uint64_t from = rebuilt && p + 8 < session->n_computed() ? device.vector_bytes() : 0;
      ASSERT_EQ(std::memcmp(reinterpret_cast<const std::byte*>(at) + from, want.data() + from, want.size() - from), 0)
          << "head " << head << ", slot " << slot << " of " << positions.size() << ", position " << p;
    }
  }
}

class DeviceType : public ::testing::TestWithParam<std::tuple<PolicyMode, TypePair>> {
 protected:
  const PolicyMode& mode() const { return std::get<0>(GetParam()); }
  TypePair types() const { return std::get<1>(GetParam()); }
  SessionOptions with(double share) const { return options(mode(), types(), share); }
  // What of the reservoir's own type stands beside it.
  SessionOptions fine(double share) const { return options(mode(), {types().first, types().first}, share); }
};

// Settled, appended, replaced and refilled: one rule for all of them.
TEST_P(DeviceType, WhatIsResidentDerivesFromTheReservoir) {
  uint64_t n_fetched = 0;
  for (const std::string name : {"demo", "qwen3", "phi3-window"}) {
    SCOPED_TRACE(name);
    const auto model = name == "demo" ? open_demo() : open_spec(name);
    ASSERT_EQ(model->hyper().head_dim % 32, 0);
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
  const double bound = coarser == KvType::f16 ? 1.7e-3 : coarser == KvType::q8_0 ? 0.045 : 0.6;
  for (const std::string name : {"qwen3", "qwen3-tied", "phi3-window"}) {
    const auto model = open_spec(name);
    const auto finer = unwrap(Session::open(model, fine(1.0)));
    const auto coarse = unwrap(Session::open(model, with(1.0)));
    const auto prompt = random_tokens(*model, 150, 2), answer = random_tokens(*model, 60, 3);
    unwrap(finer->prefill(prompt, nullptr, nullptr));
    unwrap(coarse->prefill(prompt, nullptr, nullptr));
    EXPECT_TRUE(same_bits(as_vector(finer->logits()), as_vector(coarse->logits())));   // prompts attend to the reservoir
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
TEST_P(DeviceType, HalvesChooseTheTokensThatFloatsChoose) {
  if (types() != TypePair{KvType::f32, KvType::f16}) return;
  const auto model = open_demo();
  SessionOptions f = fine(0.5), c = with(0.5);
  if (mode().rebuilds())   // by default the rank follows the budget's bytes
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
    in_all += std::min(a.size(), b.size());   // digests cost other shares of slots that are larger: then one has more
  }
  // .990 and more; with the wrong type .81 and less.
  EXPECT_GE(static_cast<double>(in_both), 0.97 * static_cast<double>(in_all));
  EXPECT_EQ(coarse->resident()->refill_stats().tokens > 0, mode().refills);
}

TEST_P(DeviceType, ThreadsChunksAndTheLinkDoNotShow) {
  std::vector<float> first;
  for (const int32_t n_threads : {1, 2, 4}) {
    engine::RuntimeOptions runtime = runtime_options(n_threads);
    if (n_threads == 4) runtime.link = {200'000'000, 20};
    const auto model = open_spec("qwen3", runtime);
    SessionOptions o = with(0.6);
    o.chunk_tokens = n_threads == 2 ? 7 : 64;
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
  for (int i = 0; i < 3; ++i) {   // refreshes are pending at some of these steps
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
    unwrap(loaded->refresh_logits());
    EXPECT_TRUE(same_bits(as_vector(loaded->logits()), as_vector(session->logits())));
  }
  std::vector<float> a, b;
  greedy(session.get(), 40, &a);
  greedy(same.get(), 40, &b);
  EXPECT_TRUE(same_bits(a, b));
  greedy(finer.get(), 40);
  check_slots(finer.get(), mode().rebuilds());
}

INSTANTIATE_TEST_SUITE_P(Policies, DeviceType,
                         ::testing::Combine(::testing::ValuesIn(policy_modes()), ::testing::ValuesIn(kPairs)),
                         [](const auto& tested) {
                           const TypePair types = std::get<1>(tested.param);
                           return std::string(std::get<0>(tested.param).name) + "_" + name_of(types.first) + "_" +
                                  name_of(types.second);
                         });

// Bytes hold the more tokens the coarser they are; a share is one of tokens. Staging and reservoir stay canonical.
TEST(DeviceTypePlan, BytesAreTheBudgetInTheDevicesType) {
  for (const PolicyMode& mode : policy_modes()) {
    for (const TypePair& types : kPairs) {
      SCOPED_TRACE(std::string(mode.name) + ", " + name_of(types.first) + ", " + name_of(types.second));
      const auto model = open_spec("qwen3");
      const model::Hyperparameters& h = model->hyper();
      const uint64_t device_token = engine::kv_format(h, types.second).token_bytes();
      const uint64_t token = engine::kv_format(h, types.first).token_bytes();
      const uint64_t before = model->runtime().arena().used();
      SessionOptions o = options(mode, types, 0.5, 2048);
      SessionOptions fine = options(mode, {types.first, types.first}, 0.5, 2048);
      EXPECT_EQ(engine::resident_slots(h, o, 2048), engine::resident_slots(h, fine, 2048));
      o.kv_share = fine.kv_share = 1.0;
      o.kv_budget_bytes = fine.kv_budget_bytes = 1024 * token;
      EXPECT_EQ(engine::resident_slots(h, fine, 2048), 1024u);
      EXPECT_EQ(engine::resident_slots(h, o, 2048), 1024 * token / device_token);
      const uint64_t slots = uint64_t{1536} * static_cast<uint64_t>(h.n_layers * h.n_kv_heads);
      o.kv_budget_bytes = slots * device_token;
      EXPECT_EQ(engine::resident_slots(h, o, 2048), slots);
      const kv::Plan plan = model->plan_session(o);
      const uint64_t kv_bytes = plan.full_kv_bytes + plan.compressed_kv_bytes + plan.digests_bytes;
      if (plan.digests_bytes == 0)
        EXPECT_EQ(kv_bytes, slots * device_token);
      else   // up to the slot that they break into, and what the arena rounds up
        EXPECT_NEAR(static_cast<double>(kv_bytes), static_cast<double>(slots * device_token), static_cast<double>(device_token + 512));
      const auto session = unwrap(Session::open(model, o));
      EXPECT_EQ(model->runtime().arena().used() - before, plan.device_bytes);
      EXPECT_EQ(session->kv_bytes(), kv_bytes);
      EXPECT_EQ(session->reservoir_bytes(), plan.reservoir_bytes);
      EXPECT_EQ(plan.reservoir_bytes, 2048 / 64 * engine::kv_format(h, types.first).page_bytes());
      unwrap(session->prefill(random_tokens(*model, 300, 8), nullptr, nullptr));
      greedy(session.get(), 30);
      EXPECT_EQ(model->runtime().arena().used() - before, plan.device_bytes);
      EXPECT_LE(session->kv_used_bytes(), o.kv_budget_bytes);
      const kv::Refills::Stats fetched = session->resident()->refill_stats();
      EXPECT_EQ(fetched.bytes, fetched.tokens * token / (mode.rebuilds() ? 2 : 1));   // over the link they come as they are kept
    }
  }
}

TEST(DeviceTypeRefused, WhatIsFinerAndWhatHasNoDeviceCopy) {
  const auto model = open_spec("qwen3");
  const PolicyMode full{"full", "full", {}, false};
  const auto refused = [&](const engine::LanguageModel& of, const SessionOptions& o, Code code, const std::string& words) {
    const Status status = o.validate(of.hyper());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status.message();
  };
  for (const TypePair& types : kPairs)
    refused(*model, options(kStreaming, {types.second, types.first}, 0.5), Code::invalid_argument,
            std::string("type ") + name_of(types.first) + " is finer than " + name_of(types.second));
  refused(*model, options(full, {KvType::f16, KvType::q8_0}, 1.0), Code::invalid_argument,
          "the device's KV type is Q8_0, expected F16");
  SessionOptions same = options(full, {KvType::f16, KvType::f16}, 1.0);
  same.device_kv_type = KvType::f16;
  EXPECT_TRUE(same.validate(model->hyper()).ok());
  const auto odd = open_spec("llama-hd40");
  refused(*odd, options(kStreaming, {KvType::f16, KvType::q8_0}, 0.5), Code::unsupported, "multiple of 32");
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
}  // namespace orrery

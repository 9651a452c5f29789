// OmniKV on the demo model, in double precision: a layer's heads hold the tokens that the filter layer before them has found by this step's
// query. From the keys and queries on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/policy_sessions.h"
#include "tests/support/resident_oracle.h"

namespace orrery::omnikv_test {
namespace {

using namespace testing;
using engine::Resident;
using engine::Session;

struct Case {
  const char* name;
  const char *filters, *behind;
  std::vector<uint32_t> filter_of;  // by layer; its own: dense
  double share;
  KvType type, device_type;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
class EngineOmniKv : public ::testing::TestWithParam<Case> {};

TEST_P(EngineOmniKv, LayersHoldWhatTheirFilterFinds) {
  const Case& c = GetParam();
  const auto model = open_demo();
  const auto& h = model->description();
  engine::SessionOptions o;
  o.n_context = 1024;
  o.policy = "omnikv";
  o.kv_share = share_of_tokens(c.share, c.type, c.device_type);
  o.kv_type = c.type;
  o.device_kv_type = c.device_type;
  o.policy_options = {{"filters", c.filters}, {"behind", c.behind}};
  const auto session = unwrap(Session::open(model, o));
  constexpr uint32_t kPrompt = 500;
  unwrap(session->prefill(random_tokens(*model, kPrompt, 41), nullptr, nullptr));
  Resident* resident = session->resident();
  const auto kv_heads = static_cast<uint32_t>(h.kv().n_kv_heads), n_layers = static_cast<uint32_t>(h.n_layers);
  ASSERT_EQ(c.filter_of.size(), n_layers);
  int n_checked = 0;
  uint64_t n_close = 0, n_all = 0;
  resident->set_step_fault([&](uint64_t) {
    const uint32_t n_tokens = session->n_computed();
    for (uint32_t layer = 0; layer < n_layers; ++layer) {
      const uint32_t filter = c.filter_of[layer];
      const kv::HeadStore& store = resident->store();
      if (filter == layer) {
        for (uint32_t head = layer * kv_heads; head < (layer + 1) * kv_heads; ++head) EXPECT_EQ(store.length(head), n_tokens);
        continue;
      }
      std::vector<double> scores(kPrompt, -INFINITY);
      for (uint32_t head = filter * kv_heads; head < (filter + 1) * kv_heads; ++head) {
        const float* q = ring_queries(*resident, h, head, n_tokens - 1);
        for (uint32_t key = 0; key < kPrompt; ++key) {
          const std::vector<float> k = device_key(*resident, head, key);
          for (int32_t g = 0; g < h.kv().n_heads / h.kv().n_kv_heads; ++g) {
            double dot = 0;
            for (size_t d = 0; d < k.size(); ++d)
              dot += static_cast<double>(q[static_cast<size_t>(g) * k.size() + d]) * static_cast<double>(k[d]);
            scores[key] = std::max(scores[key], dot / std::sqrt(static_cast<double>(h.kv().head_dim)));
          }
        }
      }
      const Span<const uint32_t> held = store.positions(layer * kv_heads);
      const size_t n_prompt = held.size() - (n_tokens - kPrompt);
      std::set<uint32_t> kept(held.begin(), held.begin() + static_cast<ptrdiff_t>(n_prompt));
      EXPECT_EQ(kept.size(), n_prompt);
      for (size_t i = n_prompt; i < held.size(); ++i) EXPECT_EQ(held[i], kPrompt + i - n_prompt);  // all that was generated
      for (uint32_t head = layer * kv_heads + 1; head < (layer + 1) * kv_heads; ++head) {
        const Span<const uint32_t> other = store.positions(head);
        EXPECT_EQ(std::set<uint32_t>(other.begin(), other.end()), std::set<uint32_t>(held.begin(), held.end())) << "head " << head;
      }
      std::vector<double> sorted = scores;
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      const double last = sorted[n_prompt - 1], near = 2e-5 * std::max(1.0, std::fabs(sorted[0]));  // what floats round
      for (uint32_t key = 0; key < kPrompt; ++key) {
        if (scores[key] > last + near) {
          EXPECT_EQ(kept.count(key), 1u) << "layer " << layer << ", key " << key;
        }
        if (scores[key] < last - near) {
          EXPECT_EQ(kept.count(key), 0u) << "layer " << layer << ", key " << key;
        }
        n_close += std::fabs(scores[key] - last) <= near;
      }
      n_all += kPrompt, ++n_checked;
    }
    return ::testing::Test::HasFailure() ? error(Code::internal, "see above") : ok_status();
  });
  greedy(session.get(), 12);
  EXPECT_EQ(n_checked, 12 * static_cast<int>(std::count_if(c.filter_of.begin(), c.filter_of.end(),
                                                           [&, l = 0u](uint32_t f) mutable { return f != l++; })));
  EXPECT_LT(n_close, n_all / 100);
  EXPECT_GT(resident->refill_stats().tokens, 0u);
  EXPECT_EQ(resident->report().n_settled, 1u);
}

INSTANTIATE_TEST_SUITE_P(Cases, EngineOmniKv,
                         ::testing::Values(Case{"second_layer", "1", "1", {0, 1, 2, 1}, .85, KvType::f16, KvType::f16},
                                           Case{"two_without_the_layer_behind", "0+2", "0", {0, 0, 2, 2}, .7, KvType::f16, KvType::f16},
                                           Case{"first_layer_quantized", "0", "1", {0, 1, 0, 0}, .7, KvType::q8_0, KvType::q8_0},
                                           Case{"coarser_on_the_device", "0", "0", {0, 0, 0, 0}, .5, KvType::f32, KvType::q4_0},
                                           Case{"mixed_on_the_device", "1", "1", {0, 1, 2, 1}, .85, KvType::q8_0, KvType::k8v4}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace orrery::omnikv_test

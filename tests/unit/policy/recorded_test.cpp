// The selections of the methods that select once, of a text that the demo model has read, against tests/golden/policy_recorded.json: an
// independent reference's selections by the same recorded attention, set for set.
#include <gtest/gtest.h>

#include "tests/unit/policy/fake_session.h"
#include "tests/unit/policy/goldens.h"

namespace orrery::policy::recorded_test {
namespace {

using nlohmann::json;

std::vector<int16_t> from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint32_t> bytes;
  uint32_t bits = 0, n_bits = 0;
  for (const char c : text) {
    const size_t digit = digits.find(c);
    if (digit == std::string::npos) break;  // padding
    bits = (bits << 6 | static_cast<uint32_t>(digit)) & 0xFFFFF;
    n_bits += 6;
    if (n_bits >= 8) n_bits -= 8, bytes.push_back(bits >> n_bits & 0xFF);
  }
  std::vector<int16_t> out;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) out.push_back(static_cast<int16_t>(static_cast<uint16_t>(bytes[i] | bytes[i + 1] << 8)));
  return out;
}

TEST(PolicyRecorded, EveryMethodKeepsTheSameSets) {
  const json golden = read_goldens("policy_recorded.json");
  const uint32_t n_layers = golden["n_layers"], n_kv_heads = golden["n_kv_heads"], group = golden["group"], n = golden["n_tokens"];
  const uint32_t n_queries = golden["n_queries"], n_context = n + 400, n_heads = n_layers * n_kv_heads;
  const std::vector<int16_t> logits = from_base64(golden["logits"]);  // (n_layers, n_queries, n_kv_heads, group, n)
  ASSERT_EQ(logits.size(), size_t{n_heads} * n_queries * group * n);
  const Attention attention = [&](uint32_t head, uint32_t position, uint32_t n_keys) {
    std::vector<float> out;
    const uint32_t layer = head / n_kv_heads, h = head % n_kv_heads, q = position - (n - n_queries);
    for (uint32_t g = 0; g < group; ++g)
      for (uint32_t key = 0; key < n_keys; ++key)
        out.push_back(static_cast<float>(logits[(((size_t{layer} * n_queries + q) * n_kv_heads + h) * group + g) * n + key]) /
                      golden["unit"].get<float>());
    return out;
  };
  const std::vector<int32_t> windows(n_layers, 0);
  const Shape shape{n_layers, n_kv_heads, n_context, windows};
  ASSERT_GE(golden["runs"].size(), 24u);
  for (const json& run : golden["runs"]) {
    SCOPED_TRACE(run["options"].dump());
    Options options;
    for (const auto& [key, value] : run["options"].items())
      if (key != "policy" && key != "budget") options.emplace_back(key, value.get<std::string>());
    const Budget budget{std::stod(run["options"]["budget"].get<std::string>()), uint64_t{n_heads} * n_context};
    if (run["options"]["policy"] == "duoattention") options.emplace_back("rank", "attention");
    FakeSession session(must(make_policy(run["options"]["policy"], shape, budget, options)), n_heads, group, n_context, attention);
    session.root_dim = golden["root_dim"];
    session.settle(n);
    std::vector<bool> compressed(n_heads);
    for (const json& set : run["sets"]) {
      const uint32_t head = set[0].get<uint32_t>() * n_kv_heads + set[1].get<uint32_t>();
      compressed[head] = true;
      EXPECT_EQ(session.selected(head), set[2].get<Tokens>()) << "head " << head;
    }
    for (uint32_t head = 0; head < n_heads; ++head)
      if (!compressed[head]) {
        EXPECT_EQ(session.n_selected(head), n) << head;
      }
  }
}

}  // namespace
}  // namespace orrery::policy::recorded_test

// What heads attend to, step by step, of a text that the demo model has read, under the policies whose selections move: against
// policy_steps.json, the same model and methods in NumPy. The whole engine takes part: keys, digests and low-rank keys on the device,
// what is fetched within a step and behind it.
//
// The model's weights are dequantized to F32 and its KV is F32, so that the two differ by the rounding of floats alone. What that could
// decide is left open there ("maybe").
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/gguf/dequantize.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/policy_sessions.h"

namespace orrery::policy_steps_test {
namespace {

using namespace testing;
using nlohmann::json;

// The demo model with F32 tensors: the file's keys unchanged, then new tensors.
std::vector<std::byte> dequantized_demo() {
  const std::string path = source_path("samples/models/demo-q8_0.gguf");
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const gguf::File file = unwrap(gguf::File::open(path));
  const Span<const gguf::Tensor> tensors = file.tensors();
  const std::string first(tensors[0].name);
  ByteWriter out;
  out.raw(bytes.data(), bytes.find(first) - sizeof(uint64_t));  // up to where its name's length stands
  uint64_t offset = 0;
  for (const gguf::Tensor& t : tensors) {
    out.text(t.name).put(t.n_dims);
    for (uint32_t i = 0; i < t.n_dims; ++i) out.put(t.dims[i]);
    out.put(uint32_t{0}).put(offset);  // F32
    offset += (t.n_elements * sizeof(float) + 31) / 32 * 32;
  }
  out.bytes.resize((out.bytes.size() + 31) / 32 * 32);
  for (const gguf::Tensor& t : tensors) {
    std::vector<float> values(t.n_elements);
    gguf::dequantize_row(t.type, t.data, values.data(), values.size());
    out.raw(values.data(), values.size() * sizeof(float));
    out.bytes.resize((out.bytes.size() + 31) / 32 * 32);
  }
  return std::move(out.bytes);
}

// Three tokens a character: each is out (0), in (1) or maybe in (2).
uint32_t state_of(const std::string& text, size_t token) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto digit = static_cast<uint32_t>(std::strchr(kDigits, text.at(token / 3)) - kDigits);
  return digit >> 2 * (token % 3) & 3;
}

TEST(PolicySteps, HeadsAttendToWhatTheReferenceSays) {
  std::ifstream in(source_path("tests/golden/policy_steps.json"));
  const json golden = json::parse(in);
  const auto model = open_bytes(dequantized_demo(), runtime_options(2, "auto", 256u << 20));
  const auto prompt = golden.at("prompt").get<std::vector<int32_t>>(), fed = golden.at("fed").get<std::vector<int32_t>>();
  ASSERT_GE(golden.at("runs").size(), 12u);
  for (const json& run : golden.at("runs")) {
    SCOPED_TRACE(run.at("policy").get<std::string>() + " " + run.at("options").dump());
    engine::SessionOptions o;
    o.n_context = golden.at("n_context");
    o.kv_type = KvType::f32;
    o.device_kv_type = KvType::f32;
    o.policy = run.at("policy");
    o.kv_share = run.at("share");
    for (const auto& [key, value] : run.at("options").items()) o.policy_options.emplace_back(key, value.get<std::string>());
    o.policy_options = without_profile(o.policy, o.policy_options);
    const auto session = unwrap(engine::Session::open(model, o));
    unwrap(session->prefill(prompt, nullptr, nullptr));
    engine::Resident& resident = *session->resident();
    const auto dim = static_cast<size_t>(model->description().kv().head_dim);
    uint64_t n_maybe = 0, n_in = 0, n_all = 0, n_means = 0;
    resident.set_step_fault([&](uint64_t step) {
      const uint32_t n = session->n_computed();
      std::vector<uint32_t> slots;
      for (uint32_t head = 0; head < resident.store().n_heads(); ++head) slots.push_back(resident.store().capacity(head));
      EXPECT_EQ(slots, run.at("slots").get<std::vector<uint32_t>>());
      for (const json& shown : run.at("steps")) {
        if (shown.at("step") != step) continue;
        const json& means = shown.at("means");
        for (size_t head = 0; head < means.size(); ++head) {
          const HeadView& view = resident.views()[head];
          const auto weight = means[head][0].get<double>();
          EXPECT_NEAR(static_cast<double>(view.compensation_weight), weight, 1e-3 * weight) << "step " << step << ", head " << head;
          for (size_t part = 0; part < 2 && view.compensation_weight > 0; ++part) {  // K, V
            const auto* x = reinterpret_cast<const float*>(view.compensation_token.address) + part * dim;
            const double norm = std::sqrt(std::inner_product(x, x + dim, x, 0.0)), expected = means[head][part + 1].get<double>();
            EXPECT_NEAR(norm, expected, 1e-3 * expected) << "step " << step << ", head " << head << (part == 0 ? ", K" : ", V");
          }
          n_means += weight > 0;
        }
        for (uint32_t head = 0; head < resident.store().n_heads(); ++head) {
          const std::string state = shown.at("heads").at(head);
          const Span<const uint32_t> held = resident.store().positions(head);
          const std::vector<uint32_t> sorted = [&] {
            std::vector<uint32_t> s(held.begin(), held.end());
            std::sort(s.begin(), s.end());
            return s;
          }();
          if (state.empty()) {  // everything
            EXPECT_EQ(sorted.size(), n) << "step " << step << ", head " << head;
            continue;
          }
          uint32_t wrong = 0, example = 0;
          for (uint32_t token = 0; token < n; ++token) {
            const uint32_t expected = state_of(state, token);
            const bool is_in = std::binary_search(sorted.begin(), sorted.end(), token);
            n_maybe += expected == 2, n_in += expected == 1, ++n_all;
            if (expected != 2 && is_in != (expected == 1)) ++wrong, example = token;
          }
          EXPECT_EQ(wrong, 0u) << "step " << step << ", head " << head << ": token " << example << " for one, of " << held.size()
                               << " held";
        }
      }
      return ok_status();
    });
    for (const int32_t token : fed) feed(session.get(), token);
    EXPECT_GT(n_in, n_all / 20);
    EXPECT_LT(n_maybe * 20, n_all);
    EXPECT_EQ(n_means > 0, o.policy == "auto" || o.policy == "razorattention");
  }
}

}  // namespace
}  // namespace orrery::policy_steps_test

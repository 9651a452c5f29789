// The shapes of published models, as `orrery plan --shape` takes them: each is read and planned, with all tensors that its family wants,
// and keeps the bytes that its publisher's configuration gives. A file has its header alone, and a hole.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "shapes/shapes.h"
#include "tests/support/engine_fixture.h"

namespace orrery::shapes_test {
namespace {

using namespace orrery::testing;

// KiB of KV that a token takes in layers without a window; MiB of the windows, and of the recurrent states; thousand millions of weights.
struct Known {
  double kv_kib, windows_mib, states_mib, weights;
};
const std::map<std::string, Known> kKnown = {
    {"qwen3.8-27b", {64, 0, 149.6, 27}},     {"qwen3.5-9b", {32, 0, 50.3, 9}},        {"qwen3.5-0.8b", {12, 0, 0, .75}},
    {"qwen3.6-35b-a3b", {20, 0, 62.8, 35}},  {"qwen3-coder-next", {24, 0, 75.4, 80}}, {"qwen3-30b-a3b", {96, 0, 0, 30.5}},
    {"qwen3-8b", {144, 0, 0, 8.2}},          {"gpt-oss-20b", {24, 3, 0, 20.9}},       {"gpt-oss-120b", {36, 4.5, 0, 117}},
    {"gemma-4-26b-a4b", {20, 200, 0, 25.8}}, {"gemma-4-31b", {80, 800, 0, 30.7}},     {"gemma-4-e4b", {16, 20, 0, 7.5}},
    {"gemma-4-e2b", {6, 6, 0, 4.6}},         {"gemma-3-27b", {80, 416, 0, 27}},       {"gemma-3-12b", {64, 320, 0, 11.8}},
    {"gemma-3-4b", {20, 116, 0, 3.9}},       {"muse-glimmer-30b", {13, 78, 0, 28}},   {"nemotron-3-nano-30b", {6, 0, 47.6, 31.6}},
    {"glm-4.7-flash", {52.875, 0, 0, 29.9}}, {"ministral-3-8b", {136, 0, 0, 8.5}},    {"ministral-3-14b", {160, 0, 0, 13.5}},
    {"llama-3.1-8b", {128, 0, 0, 8.03}},     {"llama-3.3-70b", {320, 0, 0, 70.6}},
};

kv::Plan plan_of(const tool::GgufHeader& header, uint32_t n_context) {
  const TempDir dir;
  const std::string bytes = header.bytes();
  const std::string path = dir.write(
      "shape.gguf", {reinterpret_cast<const std::byte*>(bytes.data()), reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size()});
  std::filesystem::resize_file(path, bytes.size() + header.data_bytes());
  engine::SessionOptions options;
  options.n_context = n_context;
  return unwrap(engine::plan_file(path, runtime_options(1), engine::ModelOptions(), options));
}

TEST(PublishedShapes, AreReadAndPlannedAsTheirPublishersSay) {
  for (const std::string& name : tool::shape_names()) {
    SCOPED_TRACE(name);
    const auto known = kKnown.find(name);
    ASSERT_NE(known, kKnown.end());
    const std::optional<tool::GgufHeader> header = tool::shape_header(name);
    ASSERT_TRUE(header);
    EXPECT_NEAR(static_cast<double>(header->n_weights()) / 1e9, known->second.weights, .04 * known->second.weights);
    uint64_t pages[2], windows = 0, states = 0;
    for (const bool twice : {false, true}) {
      const kv::Plan plan = plan_of(*header, twice ? 16384 : 8192);
      for (const kv::Region& region : plan.layout.regions()) {
        if (std::string(region.name) == "KV pages") pages[twice] = region.device_bytes;
        if (std::string(region.name) == "window KV pages") windows = region.device_bytes;
        if (std::string(region.name) == "recurrent state") states = region.device_bytes;
      }
    }
    EXPECT_EQ(static_cast<double>(pages[1] - pages[0]) / 8192, known->second.kv_kib * 1024) << "KV of a token";
    EXPECT_NEAR(static_cast<double>(states) / (1 << 20),
                known->second.states_mib > 0 ? known->second.states_mib : static_cast<double>(states) / (1 << 20), .1);
    EXPECT_EQ(states > 0, known->second.states_mib > 0 || name == "qwen3.5-0.8b");
    // Windows of 128 to 2,048 tokens, and at most 1,024 more.
    const double of_windows = known->second.windows_mib * (1 << 20);
    EXPECT_GE(static_cast<double>(windows), of_windows);
    EXPECT_LE(static_cast<double>(windows), of_windows * (name.rfind("gpt-oss", 0) == 0 ? 9 : name.rfind("gemma-4-e", 0) == 0 ? 3 : 2));
  }
}

TEST(PublishedShapes, HaveWeightsOfAllTypes) {
  for (const std::string& type : tool::shape_types())
    for (const char* name : {"gpt-oss-20b", "gemma-4-26b-a4b", "nemotron-3-nano-30b"}) {
      const std::optional<tool::GgufHeader> header = tool::shape_header(std::string(name) + ':' + type);
      ASSERT_TRUE(header) << name << type;
      EXPECT_GT(plan_of(*header, 4096).weights_mapped_bytes, 5e9) << name << type;
    }
  EXPECT_FALSE(tool::shape_header("qwen3-8b:Q9_K"));
  EXPECT_FALSE(tool::shape_header("qwen"));
}

}  // namespace
}  // namespace orrery::shapes_test

// What the interface says of a model's layers, for a model of every family: they add up to its plan. The golden models come with the tests'
// own writer of files, which needs the library's objects.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/support/model_spec.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

// Every family's layers add up to the plan: their KV, and their states.
TEST(Layers, AddUpToThePlansKv) {
  std::set<uint32_t> kinds;
  int n_models = 0;
  bool reads_anothers = false, mixes_experts = false;
  TempDir dir;
  const Runtime runtime = make_runtime();
  for (const std::string& name : model_spec_names()) {
    const std::string path = dir.write("model.gguf", named_model_gguf(name));
    orrery_model_info info = options(&orrery_model_info_init);
    Error error;
    orrery_model* h = nullptr;
    const orrery_status opened = orrery_model_open(runtime.get(), path_source(path), nullptr, &h, &error);
    if (opened == ORRERY_UNSUPPORTED_ARCHITECTURE) continue;  // a golden model of a refusal
    ASSERT_EQ(opened, ORRERY_OK) << name << ": " << error.message;
    const Model model(h);
    ++n_models;
    check(orrery_model_get_info(model.get(), &info, &error), error, "orrery_model_get_info");
    for (const uint32_t type : std::initializer_list<uint32_t>{ORRERY_KV_F16, ORRERY_KV_F32}) {
      orrery_session_options s = session_options();
      s.policy = "full";
      s.kv_type = type;
      s.n_context = 256;
      uint64_t kv = 0, windows = 0, states = 0, n_states = 0;
      for (uint32_t i = 0; i < info.n_layers; ++i) {
        orrery_layer_info layer = options(&orrery_layer_info_init);
        check(orrery_model_layer_info(model.get(), i, &layer, &error), error, "orrery_model_layer_info");
        kinds.insert(layer.kind);
        const uint64_t bytes = layer.n_kv_heads * orrery_kv_type_bytes(type, layer.head_dim, layer.value_dim);
        (layer.kind == ORRERY_LAYER_WINDOW ? windows : kv) += bytes;
        states += layer.state_bytes;
        n_states += layer.state_bytes > 0;
        EXPECT_EQ(layer.window > 0, layer.kind == ORRERY_LAYER_WINDOW) << name;
        EXPECT_EQ(layer.state_bytes > 0, layer.kind == ORRERY_LAYER_RECURRENT) << name;
        EXPECT_EQ(layer.n_heads > 0, layer.kind <= ORRERY_LAYER_LATENT) << name;
        EXPECT_EQ(layer.kv_of >= 0, layer.n_heads > 0 && layer.n_kv_heads == 0) << name;
        EXPECT_LT(layer.kv_of, static_cast<int32_t>(i)) << name;
        EXPECT_EQ(layer.n_used_experts > 0, layer.n_experts > 0) << name;
        EXPECT_LE(layer.n_used_experts, layer.n_experts) << name;
        reads_anothers |= layer.kv_of >= 0;
        mixes_experts |= layer.n_experts > 0;
      }
      orrery_plan_result plan = options(&orrery_plan_result_init);
      check(orrery_plan(path_source(path), nullptr, nullptr, &s, &plan, &error), error, "orrery_plan");
      const uint64_t planned = plan.full_kv_bytes + plan.compressed_kv_bytes;
      EXPECT_GE(planned, 256 * (kv + windows) + states) << name;
      // Each state begins at a place of the arena.
      EXPECT_LE(planned, 256 * (kv + windows) + states + 256 * n_states) << name;
    }
    orrery_layer_info none = options(&orrery_layer_info_init);
    EXPECT_EQ(orrery_model_layer_info(model.get(), info.n_layers, &none, &error), ORRERY_INVALID_ARGUMENT);
    EXPECT_EQ(orrery_model_layer_info(model.get(), UINT32_MAX, &none, nullptr), ORRERY_INVALID_ARGUMENT);
  }
  EXPECT_GT(n_models, 20);
  EXPECT_EQ(kinds.size(), 5u) << "every kind of layer is among the models";
  EXPECT_TRUE(reads_anothers && mixes_experts);
}

TEST(KvTypeBytes, AreThoseOfTheFormats) {
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_F16, 128, 128), 512u);
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_F32, 128, 64), 768u);
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_Q8_0, 64, 64), 2u * 2 * 34);
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_Q4_0, 64, 64), 2u * 2 * 18);
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_K8V4, 64, 64), 2u * 34 + 2u * 18);
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_K8V4, 64, 0), 2u * 34);
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_F16, 7, 0), 14u);
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_Q8_0, 48, 64), 0u) << "blocks of 32";
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_Q8_0, 64, 48), 0u);
  EXPECT_EQ(orrery_kv_type_bytes(5, 64, 64), 0u) << "no such type";
  EXPECT_EQ(orrery_kv_type_bytes(ORRERY_KV_F32, UINT32_MAX, UINT32_MAX), 8 * uint64_t{UINT32_MAX});
}

// A model opened with these options, on a runtime with a simulated link or without, and a session that has evaluated six tokens.
struct Evaluated {
  Evaluated(const std::string& path, const orrery_model_options& wanted, bool linked) {
    orrery_runtime_options with = runtime_options();
    if (linked) with.link_bytes_per_second = 1000000000;
    orrery_runtime* made = nullptr;
    check(orrery_runtime_create(&with, &made, &error), error, "orrery_runtime_create");
    runtime.reset(made);
    orrery_model* h = nullptr;
    check(orrery_model_open(runtime.get(), path_source(path), &wanted, &h, &error), error, "orrery_model_open");
    model.reset(h);
    orrery_session_options small = session_options();
    small.n_context = 64;
    orrery_session* opened = nullptr;
    check(orrery_session_open(model.get(), &small, &opened, &error), error, "orrery_session_open");
    session.reset(opened);
    const int32_t prompt[] = {3, 4, 5, 6, 7, 8};
    check(orrery_session_evaluate(session.get(), prompt, 6, nullptr, &error), error, "orrery_session_evaluate");
    regions.resize(32);
    orrery_plan_region_init(regions.data(), sizeof regions[0]);
    size_t n = 0;
    check(orrery_plan_regions(path_source(path), &with, &wanted, nullptr, regions.data(), 32, &n, &error), error, "orrery_plan_regions");
    regions.resize(n);
  }
  void generate(uint32_t n_tokens) {
    orrery_generate_options few = options(&orrery_generate_options_init);
    few.max_tokens = n_tokens, few.ignore_end = 1;
    const int32_t more[] = {9};
    orrery_generation* g = nullptr;
    check(orrery_generate_tokens(session.get(), more, 1, &few, &g, &error), error, "orrery_generate_tokens");
    const Generation generation(g);
    orrery_event event = options(&orrery_event_init);
    do check(orrery_next(generation.get(), &event, &error), error, "orrery_next");
    while (event.type != ORRERY_EVENT_DONE);
  }
  orrery_plan_region region(const std::string& name) const {  // zeros: the plan has none
    const auto found = std::find_if(regions.begin(), regions.end(), [&](const orrery_plan_region& r) { return r.name == name; });
    return found == regions.end() ? orrery_plan_region{} : *found;
  }
  Error error;
  Runtime runtime;
  Model model;
  Session session;
  std::vector<orrery_plan_region> regions;
};

// Where a mixture's experts lie: by the options, by the plan's regions, and as the model tells once it is open.
TEST(Layers, ExpertsLieWhereTheOptionsSay) {
  const TempDir dir;
  const std::string path = dir.write("model.gguf", deep_model_gguf("qwen3moe"));
  enum Where { in_place, over_link, by_host };
  for (const Where where : {in_place, over_link, by_host}) {
    const bool linked = where != in_place;
    orrery_model_options wanted = options(&orrery_model_options_init);
    EXPECT_EQ(wanted.experts_on_device, -1);
    EXPECT_EQ(wanted.host_computes, 0u);
    wanted.experts_on_device = 17, wanted.host_computes = where == by_host;
    Evaluated e(path, wanted, linked);
    orrery_experts_info info = options(&orrery_experts_info_init);
    check(orrery_model_experts(e.model.get(), &info, &e.error), e.error, "orrery_model_experts");
    EXPECT_EQ(info.n_experts, 48u);
    EXPECT_EQ(info.n_on_device, 17u);
    EXPECT_EQ(info.in_place, linked ? 0u : 1u);
    EXPECT_EQ(info.prompt_link_bytes > 0, linked) << "by_host: what the ring holds before the first long prompt";
    EXPECT_EQ(info.prompt_n_by_host > 0, where == by_host);
    EXPECT_EQ(info.n_hits + info.n_late + info.n_missed + info.n_by_host, 0u) << "of generated tokens";
    const orrery_plan_region planned = e.region("experts");
    EXPECT_EQ(info.device_bytes, planned.device_bytes);
    EXPECT_EQ(info.reservoir_bytes, planned.reservoir_bytes);
    EXPECT_GT(planned.reservoir_bytes, 0u);
    orrery_streaming_info none = options(&orrery_streaming_info_init);
    check(orrery_model_streaming(e.model.get(), &none, &e.error), e.error, "orrery_model_streaming");
    EXPECT_EQ(none.n_layers + none.device_bytes + none.reservoir_bytes, 0u) << "all layers are on the device";
  }
}

// The same of layers in host memory.
TEST(Layers, LieInHostMemoryWhereTheOptionsSay) {
  const TempDir dir;
  const std::string path = dir.write("model.gguf", deep_model_gguf("llama-plain"));
  for (const bool linked : {false, true}) {
    orrery_model_options wanted = options(&orrery_model_options_init);
    EXPECT_EQ(wanted.layers_on_device, -1);
    wanted.layers_on_device = 1;
    Evaluated e(path, wanted, linked);
    orrery_model_info of_model = options(&orrery_model_info_init);
    check(orrery_model_get_info(e.model.get(), &of_model, &e.error), e.error, "orrery_model_get_info");
    const auto told = [&] {
      orrery_streaming_info info = options(&orrery_streaming_info_init);
      check(orrery_model_streaming(e.model.get(), &info, &e.error), e.error, "orrery_model_streaming");
      return info;
    };
    const orrery_streaming_info info = told();
    EXPECT_EQ(info.n_layers, of_model.n_layers - 1);
    EXPECT_EQ(info.in_place, linked ? 0u : 1u);
    EXPECT_EQ(info.prompt_link_bytes > 0, linked);
    EXPECT_EQ(info.n_steps_layers + info.link_bytes, 0u) << "of generated tokens";
    const orrery_plan_region planned = e.region("layers");
    EXPECT_EQ(info.device_bytes, planned.device_bytes);
    EXPECT_EQ(info.reservoir_bytes, planned.reservoir_bytes);
    EXPECT_EQ(planned.device_bytes > 0, linked);
    EXPECT_GT(planned.reservoir_bytes, 0u);
    e.generate(3);
    const orrery_streaming_info then = told();
    EXPECT_EQ(then.n_steps_layers > 0, linked);
    EXPECT_EQ(then.link_bytes > 0, linked);
    EXPECT_LE(then.n_waited, then.n_steps_layers);
  }
}

// The same of columns of feed-forward blocks that the processor computes.
TEST(Layers, AreDividedWhereTheOptionsSay) {
  const TempDir dir;
  orrery_model_options wanted = options(&orrery_model_options_init);
  EXPECT_EQ(wanted.columns_on_device, -1);
  wanted.host_computes = 1, wanted.columns_on_device = 50;
  Evaluated e(dir.write("model.gguf", deep_model_gguf("llama-plain")), wanted, true);
  orrery_streaming_info info = options(&orrery_streaming_info_init);
  const auto ask = [&] { check(orrery_model_streaming(e.model.get(), &info, &e.error), e.error, "orrery_model_streaming"); };
  ask();
  orrery_model_info of_model = options(&orrery_model_info_init);
  check(orrery_model_get_info(e.model.get(), &of_model, &e.error), e.error, "orrery_model_get_info");
  EXPECT_EQ(info.n_divided, of_model.n_layers);
  EXPECT_EQ(info.n_layers, 0u);
  EXPECT_GT(info.prompt_link_bytes, 0u);
  EXPECT_EQ(info.n_by_host + info.host_us, 0u) << "of generated tokens";
  const orrery_plan_region planned = e.region("columns");
  EXPECT_EQ(info.device_bytes, planned.device_bytes);
  EXPECT_EQ(info.reservoir_bytes, planned.reservoir_bytes);
  e.generate(3);
  ask();
  EXPECT_EQ(info.n_by_host, 2u * of_model.n_layers) << "the last token is not computed";
}

}  // namespace
}  // namespace orrery::testing

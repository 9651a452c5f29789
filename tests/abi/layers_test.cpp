// What the interface says of a model's layers, for a model of every family: they add up to its plan. The golden models come with the tests'
// own writer of files, which needs the library's objects.
#include <gtest/gtest.h>

#include <initializer_list>
#include <set>
#include <string>

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

}  // namespace
}  // namespace orrery::testing

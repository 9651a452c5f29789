// Head profiles through the C interface: calibration, sessions with a profile, and refusals.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_profile_test {
namespace {

using Json = nlohmann::json;

struct FreeCalibration {
  void operator()(orrery_calibration* h) const { orrery_calibration_free(h); }
};
using Calibration = std::unique_ptr<orrery_calibration, FreeCalibration>;

// The published format, of two layers with one KV head each.
constexpr char kPublished[] =
    "{\"meta\": {\"type_map\": {\"anchor\": 1, \"volatile\": 2, \"pivot\": 3, \"satellite\": 4},"
    " \"counts\": {\"anchor\": 1, \"volatile\": 1, \"pivot\": 0, \"satellite\": 0}},"
    " \"classification_matrix\": [[1], [2]], \"leader_member_relations\": [{}, {}],"
    " \"allocation_matrix\": [[1.0], [-1]]}";

class Profiles : public ::testing::Test {
 protected:
  Profiles() : runtime(make_runtime()), model(open(1)) {
    for (int32_t i = 0; i < 60; ++i) tokens.push_back(kByte0 + 32 + (i * 7) % 90);
  }
  Model open(uint64_t seed, uint32_t n_layers = 2) {
    TinyModel tiny;
    tiny.seed = seed;
    tiny.n_layers = n_layers;
    path = dir.write("tiny" + std::to_string(seed) + "-" + std::to_string(n_layers) + ".gguf", tiny.build());
    return open_model(runtime, path);
  }
  static orrery_calibrate_options quick() {
    orrery_calibrate_options o = options(&orrery_calibrate_options_init);
    o.n_steps = 5;
    o.top_k = 8;
    return o;
  }
  orrery_status calibrate(const orrery_calibrate_options& o, Calibration* out = nullptr, std::vector<size_t> lengths = {40, 20}) {
    orrery_calibration* h = reinterpret_cast<orrery_calibration*>(uintptr_t{0x10});
    const orrery_status s = orrery_calibrate(model.get(), tokens.data(), lengths.data(), lengths.size(), &o, &h, &error);
    if (s != ORRERY_OK) {
      EXPECT_EQ(h, nullptr);
      return s;
    }
    Calibration held(h);
    if (out) *out = std::move(held);
    return s;
  }
  template <class Get>
  std::string text_of(Get get) {
    size_t n = 0;
    check(get(nullptr, size_t{0}, &n, &error), error, "size");
    std::string text(n, '#');
    EXPECT_EQ(get(text.data(), n - 1, &n, &error), ORRERY_INVALID_ARGUMENT);  // too small: nothing is written
    EXPECT_EQ(text, std::string(n, '#'));
    check(get(text.data(), n, &n, &error), error, "text");
    return text;
  }
  std::string profile_of(const Calibration& c) {
    return text_of([&](char* t, size_t m, size_t* n, orrery_error* e) { return orrery_calibration_profile(c.get(), t, m, n, e); });
  }
  orrery_status open_with(const Model& m, const std::string& profile, const char* policy = "heterocache", float share = 1.0f) {
    orrery_session_options o = session_options();
    o.n_context = 128;
    o.policy = policy;
    o.kv_budget_share = share;
    o.head_profile = profile.c_str();
    orrery_session* h = nullptr;
    const orrery_status s = orrery_session_open(m.get(), &o, &h, &error);
    orrery_session_free(h);
    return s;
  }

  TempDir dir;
  std::string path;
  Runtime runtime;
  Model model;
  std::vector<int32_t> tokens;
  Error error;
};

TEST_F(Profiles, AreMadeAndUsed) {
  orrery_calibrate_options o = quick();
  o.note = "sixty tokens";
  o.tau_stable = .25;
  o.tau_drift = .125;
  Calibration calibration;
  ASSERT_EQ(calibrate(o, &calibration), ORRERY_OK) << error.message;
  const std::string profile = profile_of(calibration);
  const Json p = Json::parse(profile);
  EXPECT_EQ(p.at("note"), "sixty tokens");
  EXPECT_EQ(p.at("tau_sim"), .5);
  EXPECT_EQ(p.at("tau_stable"), .25);
  EXPECT_EQ(p.at("tau_drift"), .125);
  EXPECT_EQ(p.at("top_k"), 5);  // a quarter of 20
  EXPECT_EQ(p.at("layers").size(), 2u);
  orrery_model_info info = options(&orrery_model_info_init);
  ASSERT_EQ(orrery_model_get_info(model.get(), &info, nullptr), ORRERY_OK);
  std::string hex;
  for (const uint8_t byte : info.fingerprint) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    hex += digits;
  }
  EXPECT_EQ(p.at("model"), hex);

  const Json steps = Json::parse(
      text_of([&](char* t, size_t m, size_t* n, orrery_error* e) { return orrery_calibration_steps(calibration.get(), t, m, n, e); }));
  EXPECT_EQ(steps.at("n_steps"), 5);
  EXPECT_EQ(steps.at("text_tokens"), (Json{40, 20}));
  EXPECT_EQ(steps.at("top_k"), (Json{8, 5}));
  EXPECT_EQ(steps.at("drift").size(), 2u);
  EXPECT_EQ(steps.at("drift")[1][0].size(), 5u);
  EXPECT_TRUE(steps.at("layer_overlap")[0][0].is_null());  // one head: it has no companion
  EXPECT_EQ(steps.at("layer_overlap")[0][1], steps.at("layer_overlap")[1][0]);
  EXPECT_EQ(steps.at("windowed_layers"), Json::array());

  for (const char* policy : {"heterocache", "streaming", "full"})
    EXPECT_EQ(open_with(model, profile, policy), ORRERY_OK) << policy << ": " << error.message;
  // Its own words come back from the import as they are.
  EXPECT_EQ(text_of([&](char* t, size_t m, size_t* n, orrery_error* e) { return orrery_head_profile_import(profile.c_str(), t, m, n, e); }),
            profile);
}

TEST_F(Profiles, OfOtherModelsAreRefused) {
  Calibration calibration;
  ASSERT_EQ(calibrate(quick(), &calibration), ORRERY_OK) << error.message;
  const std::string profile = profile_of(calibration);
  const Model other = open(2), deeper = open(1, 3);
  EXPECT_EQ(open_with(other, profile), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "fingerprint"), nullptr) << error.message;
  EXPECT_EQ(open_with(deeper, profile, "full"), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "layers"), nullptr) << error.message;

  // The plan reads a header, and no weights: the shape.
  const auto plan = [&](const std::string& file, const std::string& text) {
    orrery_session_options o = session_options();
    o.n_context = 128;
    o.policy = "heterocache";
    o.head_profile = text.c_str();
    orrery_plan_result result = options(&orrery_plan_result_init);
    return orrery_plan(path_source(file), nullptr, nullptr, &o, &result, &error);
  };
  EXPECT_EQ(plan(dir.file("tiny2-2.gguf"), profile), ORRERY_OK) << error.message;
  EXPECT_EQ(plan(dir.file("tiny1-3.gguf"), profile), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "2 layers with 1 KV heads, the model has 3"), nullptr) << error.message;
}

TEST_F(Profiles, OfThePublishedFormatFitTheirShape) {
  EXPECT_EQ(open_with(model, kPublished), ORRERY_OK) << error.message;
  EXPECT_EQ(open_with(open(2), kPublished), ORRERY_OK) << error.message;
  EXPECT_EQ(open_with(open(1, 3), kPublished), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(open_with(model, kPublished, "synckv"), ORRERY_INVALID_ARGUMENT);            // it has no clusters
  EXPECT_EQ(open_with(model, kPublished, "heterocache", .4f), ORRERY_INVALID_ARGUMENT);  // one of two is full
  const Json imported = Json::parse(
      text_of([&](char* t, size_t m, size_t* n, orrery_error* e) { return orrery_head_profile_import(kPublished, t, m, n, e); }));
  EXPECT_EQ(imported.at("model"), "");
  EXPECT_EQ(imported.at("layers")[0].at("roles"), Json{"anchor"});
  EXPECT_EQ(imported.at("layers")[1].at("roles"), Json{"volatile"});
}

TEST_F(Profiles, OfGatesServeDuoAttention) {
  const std::string profile = text_of(
      [&](char* t, size_t m, size_t* n, orrery_error* e) { return orrery_head_profile_import_gates("0.25\n0.75\n", .5, t, m, n, e); });
  const Json imported = Json::parse(profile);
  EXPECT_EQ(imported.at("model"), "");
  EXPECT_EQ(imported.at("layers")[0].at("roles"), Json{"anchor"});
  EXPECT_EQ(imported.at("layers")[1].at("roles"), Json{"volatile"});
  EXPECT_EQ(imported.at("layers")[1].at("gates"), Json{.75});
  for (const char* policy : {"duoattention", "razorattention", "snapkv"})
    EXPECT_EQ(open_with(model, profile, policy), ORRERY_OK) << policy << ": " << error.message;
  EXPECT_EQ(open_with(open(1, 3), profile, "duoattention"), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(open_with(model, profile, "heterocache"), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "gates"), nullptr) << error.message;
  size_t n = 1;
  EXPECT_EQ(orrery_head_profile_import_gates("0.25\n0.75 x\n", .5, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(n, 0u);
  EXPECT_NE(std::strstr(error.message, "line 2, column 6"), nullptr) << error.message;
  EXPECT_EQ(orrery_head_profile_import_gates("0.25\n", 1.5, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_head_profile_import_gates(nullptr, .5, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_head_profile_import_gates("1", .5, nullptr, 0, nullptr, &error), ORRERY_INVALID_ARGUMENT);
}

TEST_F(Profiles, DamagedOnesAreRefused) {
  Calibration calibration;
  ASSERT_EQ(calibrate(quick(), &calibration), ORRERY_OK) << error.message;
  const std::string profile = profile_of(calibration);
  size_t n = 0;
  for (size_t cut = 0; cut < profile.size(); cut += 7) {
    EXPECT_EQ(open_with(model, profile.substr(0, cut)), ORRERY_INVALID_ARGUMENT) << cut;
    EXPECT_EQ(orrery_head_profile_import(profile.substr(0, cut).c_str(), nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
    EXPECT_EQ(n, 0u);
  }
  for (const char* text : {"", "[]", "{}", "null", "{\"classification_matrix\": 1}", "\xFF"})
    EXPECT_EQ(open_with(model, text, "full"), ORRERY_INVALID_ARGUMENT) << text;
  for (size_t at = 0; at < profile.size(); at += 3) {  // whatever it becomes, it is a status
    std::string other = profile;
    other[at] = static_cast<char>(other[at] ^ 1);
    open_with(model, other);
  }
}

TEST_F(Profiles, ArgumentsAreChecked) {
  const orrery_calibrate_options good = quick();
  orrery_calibration* h = nullptr;
  const size_t lengths[] = {20};
  size_t n = 0;
  EXPECT_EQ(orrery_calibrate(nullptr, tokens.data(), lengths, 1, &good, &h, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_calibrate(model.get(), nullptr, lengths, 1, &good, &h, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_calibrate(model.get(), tokens.data(), nullptr, 1, &good, &h, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_calibrate(model.get(), tokens.data(), lengths, 1, &good, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_calibrate(model.get(), tokens.data(), lengths, 0, &good, &h, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_calibration_profile(nullptr, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_calibration_steps(nullptr, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_head_profile_import(nullptr, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_head_profile_import("{}", nullptr, 0, nullptr, &error), ORRERY_INVALID_ARGUMENT);
  orrery_calibration_free(nullptr);
  orrery_calibrate_options_init(nullptr, 8);

  EXPECT_EQ(calibrate(good, nullptr, {15}), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(error.message, "text 0 has 15 tokens"), nullptr) << error.message;
  EXPECT_EQ(calibrate(good, nullptr, {20, 3}), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(calibrate(good, nullptr, {SIZE_MAX, 20}), ORRERY_INVALID_ARGUMENT);
  const auto with = [&](auto field, auto value) {
    orrery_calibrate_options o = quick();
    o.*field = value;
    return calibrate(o);
  };
  using O = orrery_calibrate_options;
  EXPECT_EQ(with(&O::n_steps, 0u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::n_steps, 1025u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::top_k, 0u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::n_representatives, 2u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::tau_sim, 1.01), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::tau_stable, -.01), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::tau_drift, 1.01), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::full_share, 1.01), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::full_share, std::numeric_limits<double>::quiet_NaN()), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::tau_drift, std::numeric_limits<double>::quiet_NaN()), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::note, "\xC3"), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::kv_type, 5u), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(with(&O::reserved, 1u), ORRERY_UNSUPPORTED);
  EXPECT_EQ(with(&O::full_share, 1.0), ORRERY_OK) << error.message;
  tokens[7] = -1;
  EXPECT_EQ(calibrate(good), ORRERY_INVALID_ARGUMENT);
}

TEST_F(Profiles, CalibrationIsCancelled) {
  struct Watch {
    int n_left;
    uint64_t last, total = 0;
    static int32_t step(void* user, uint64_t done, uint64_t total) {
      auto* w = static_cast<Watch*>(user);
      EXPECT_LE(done, total);
      EXPECT_GT(total, 40u + 20u + 2 * 5u);  // and the repeated tokens
      EXPECT_TRUE(w->total == 0 || w->total == total);
      w->last = done, w->total = total;
      return w->n_left-- == 0;
    }
  };
  orrery_calibrate_options o = quick();
  o.progress = Watch::step;
  for (int n = 0; n < 14; ++n) {
    Watch watch{n, 0};
    o.progress_user = &watch;
    EXPECT_EQ(calibrate(o), ORRERY_CANCELLED) << n;
  }
  Watch watch{-1, 0};
  o.progress_user = &watch;
  EXPECT_EQ(calibrate(o), ORRERY_OK) << error.message;
  EXPECT_EQ(watch.last, watch.total);
  EXPECT_EQ((watch.total - 70) % 4, 1u) << "BOS, and a sequence four times";
}

}  // namespace
}  // namespace orrery::testing::contract_profile_test

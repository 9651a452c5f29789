// Rotary frequencies against numbers worked out apart from the code: from the definitions by hand, and for
// YaRN and Llama 3's smoothing by double-precision scripts of the published formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/model/description/rope.h"
#include "runtime/model/families/family.h"
#include "tests/support/model_spec.h"

namespace orrery::model::rope_test {
namespace {

using namespace orrery::testing;

RopeParameters parameters(int32_t n_rot, float base) {
  RopeParameters r;
  r.interleaved = true;
  r.n_rot = n_rot;
  r.base = base;
  return r;
}

void expect_frequencies(const RopeTable& table, const std::vector<std::pair<size_t, double>>& expected) {
  for (const auto& [i, f] : expected) EXPECT_NEAR(static_cast<double>(table.inverse_frequency.at(i)) / f, 1.0, 2e-7) << "pair " << i;
}

TEST(ModelRope, WithoutScaling) {
  const RopeTable table = make_rope_table(parameters(8, 10000.0f), {}, 100);
  EXPECT_EQ(table.inverse_frequency.size(), 4u);
  expect_frequencies(table, {{0, 1.0}, {1, 0.1}, {2, 0.01}, {3, 0.001}});
  EXPECT_EQ(table.magnitude, 1.0f);
  EXPECT_TRUE(table.interleaved);
  RopeParameters halves = parameters(8, 10000.0f);
  halves.interleaved = false;
  EXPECT_FALSE(make_rope_table(halves, {}, 100).interleaved);
  const RopeSpec spec = table.spec();
  EXPECT_EQ(spec.n_rot, 8);
  EXPECT_EQ(spec.inverse_frequency, table.inverse_frequency.data());
}

TEST(ModelRope, Linear) {
  RopeParameters r = parameters(4, 10000.0f);
  r.scaling = RopeScaling::linear;
  r.factor = 4.0f;
  const RopeTable table = make_rope_table(r, {}, 100);
  expect_frequencies(table, {{0, 0.25}, {1, 0.0025}});
  EXPECT_EQ(table.magnitude, 1.0f);
}

// Pairs up to the one that turns beta_fast times keep their frequency, those from beta_slow on are divided, a
// ramp between: pairs 3 to 16 of 32, and 23 to 40 of 64.
TEST(ModelRope, Yarn) {
  RopeParameters r = parameters(64, 10000.0f);
  r.scaling = RopeScaling::yarn;
  r.factor = 8.0f;
  r.original_context = 512;
  RopeTable table = make_rope_table(r, {}, 4096);
  expect_frequencies(table, {{0, 1.0}, {4, 0.294943205}, {9, 0.0447052317}, {12, 0.0124666715}, {16, 0.00125}, {31, 1.66690179e-05}});
  EXPECT_NEAR(static_cast<double>(table.magnitude), 1.2079441541679836, 1e-7);
  EXPECT_EQ(make_rope_table(r, {}, 100).inverse_frequency, table.inverse_frequency);  // at any context

  r.attention_factor = 0.5f;  // on top
  EXPECT_NEAR(static_cast<double>(make_rope_table(r, {}, 1).magnitude), 0.5 * 1.2079441541679836, 1e-7);

  r = parameters(128, 1e6f);
  r.scaling = RopeScaling::yarn;
  r.factor = 4.0f;
  r.original_context = 32768;
  table = make_rope_table(r, {}, 131072);
  expect_frequencies(table,
                     {{0, 1.0}, {20, 0.0133352143}, {30, 0.00106436098}, {40, 4.44569853e-05}, {50, 5.13381257e-06}, {63, 3.1023444e-07}});
  EXPECT_NEAR(static_cast<double>(table.magnitude), 1.138629436111989, 1e-7);

  // A ramp from pair 8.0928 to 17.3980 (gpt-oss), which begins and ends between pairs; or at whole ones.
  r = parameters(64, 150000.0f);
  r.scaling = RopeScaling::yarn;
  r.factor = 32.0f;
  r.original_context = 4096;
  r.whole_pairs = false;
  expect_frequencies(make_rope_table(r, {}, 1),
                     {{8, 0.0508132748}, {9, 0.0317056962}, {13, 0.00386035932}, {17, 0.000129318701}, {18, 3.83088124e-05}});
  r.whole_pairs = true;
  expect_frequencies(make_rope_table(r, {}, 1), {{9, 0.0316207523}, {17, 0.000227947796}});

  // Betas that meet leave a step, not a division by zero.
  r.beta_fast = r.beta_slow = 8.0f;
  for (const float f : make_rope_table(r, {}, 1).inverse_frequency) EXPECT_TRUE(std::isfinite(f) && f > 0.0f);
}

// Llama 3.1: wavelengths above 8192 are divided by 8, those below 2048 kept.
TEST(ModelRope, Llama3) {
  RopeParameters r = parameters(128, 500000.0f);
  r.scaling = RopeScaling::llama3;
  r.factor = 8.0f;
  r.original_context = 8192;
  const RopeTable table = make_rope_table(r, {}, 131072);
  expect_frequencies(table, {{0, 1.0},
                             {20, 0.0165604401},
                             {28, 0.00321144599},
                             {29, 0.00216657076},
                             {32, 0.000524846161},
                             {34, 0.000178507813},
                             {35, 9.55621235e-05},
                             {40, 3.4281022e-05},
                             {63, 3.06892599e-07}});
  EXPECT_EQ(table.magnitude, 1.0f);
}

// Files carry Llama 3's factors ready-made; where there are some, the smoothing is not applied again.
TEST(ModelRope, FactorsFromTheFile) {
  RopeParameters r = parameters(4, 10000.0f);
  RopeFactors factors;
  factors.llama3 = {2.0f, 8.0f};
  r.scaling = RopeScaling::llama3;
  r.factor = 8.0f;
  r.original_context = 64;
  expect_frequencies(make_rope_table(r, factors, 1), {{0, 0.5}, {1, 0.01 / 8}});
  r.scaling = RopeScaling::linear;  // they go with a scaling by override
  expect_frequencies(make_rope_table(r, factors, 1), {{0, 0.0625}, {1, 0.01 / 64}});
  r.scaling = RopeScaling::none;
  expect_frequencies(make_rope_table(r, factors, 1), {{0, 1.0}, {1, 0.01}});
}

TEST(ModelRope, LongropeTakesItsLongFactorsBeyondTheOriginalContext) {
  RopeParameters r = parameters(4, 10000.0f);
  RopeFactors factors;
  factors.short_context = {1.0f, 2.0f};
  factors.long_context = {4.0f, 5.0f};
  r.scaling = RopeScaling::longrope;
  r.original_context = 128;
  r.attention_factor = 1.25f;
  for (const uint32_t n_context : {1u, 128u}) {
    const RopeTable table = make_rope_table(r, factors, n_context);
    expect_frequencies(table, {{0, 1.0}, {1, 0.005}});
    EXPECT_EQ(table.magnitude, 1.25f);
  }
  const RopeTable table = make_rope_table(r, factors, 129);
  expect_frequencies(table, {{0, 0.25}, {1, 0.002}});
  EXPECT_EQ(table.magnitude, 1.25f);
}

// From the file, and from overrides ----------------------------------------------------------------------

Result<Description> read(const nlohmann::json& spec, const RopeOverride& given = {}) {
  const std::vector<std::byte> bytes = build_model_gguf(spec);
  ORRERY_ASSIGN(const gguf::File file, gguf::File::parse(bytes, "m.gguf"));
  return read_description(file, given);
}
RopeParameters rope_of(const char* spec, const RopeOverride& given = {}) {
  auto h = read(load_model_spec(spec), given);
  EXPECT_TRUE(h.ok()) << h.status().message();
  return h.ok() ? h->rope() : RopeParameters();
}
nlohmann::json plus(const char* spec, const char* key, const char* type, const nlohmann::json& value) {
  nlohmann::json s = load_model_spec(spec);
  s["keys"].push_back({key, type, value});
  return s;
}

TEST(ModelRope, WhatFilesSay) {
  EXPECT_EQ(rope_of("llama-plain").scaling, RopeScaling::none);
  EXPECT_EQ(rope_of("llama-plain").base, 10000.0f);
  EXPECT_EQ(rope_of("llama-plain").original_context, 512u);  // as trained
  EXPECT_EQ(rope_of("llama-linear").scaling, RopeScaling::linear);
  EXPECT_EQ(rope_of("llama-linear").factor, 4.0f);
  EXPECT_EQ(rope_of("llama-scaling-none").scaling, RopeScaling::none);
  EXPECT_EQ(rope_of("llama-scaling-none").factor, 1.0f);
  EXPECT_EQ(rope_of("llama-yarn").scaling, RopeScaling::yarn);
  EXPECT_EQ(rope_of("llama-yarn").original_context, 512u);
  EXPECT_EQ(rope_of("llama-yarn-betas").beta_fast, 12.0f);
  EXPECT_EQ(rope_of("llama-yarn-betas").beta_slow, 2.0f);
  EXPECT_EQ(rope_of("llama-yarn-attn").attention_factor, 0.75f);
  EXPECT_EQ(rope_of("llama3-factors").scaling, RopeScaling::llama3);
  EXPECT_EQ(rope_of("phi3-longrope").scaling, RopeScaling::longrope);
  EXPECT_EQ(rope_of("phi4-mini").scaling, RopeScaling::longrope);
  // Without a type a factor is linear, also by the name of 2023's files; the newer name counts where both
  // stand.
  EXPECT_EQ(read(plus("llama-plain", "llama.rope.scaling.factor", "f32", 2.0))->rope().scaling, RopeScaling::linear);
  const auto old = read(plus("llama-plain", "llama.rope.scale_linear", "f32", 3.0));
  EXPECT_EQ(old.value().rope().scaling, RopeScaling::linear);
  EXPECT_EQ(old.value().rope().factor, 3.0f);
  EXPECT_EQ(read(plus("llama-linear", "llama.rope.scale_linear", "f32", 3.0))->rope().factor, 4.0f);
}

TEST(ModelRope, WhatOverridesDo) {
  RopeOverride given;
  given.base = 5e5f;  // alone: the scaling stays the file's
  EXPECT_EQ(rope_of("llama-yarn", given).base, 5e5f);
  EXPECT_EQ(rope_of("llama-yarn", given).scaling, RopeScaling::yarn);
  given = {};
  given.original_context = 77;
  EXPECT_EQ(rope_of("llama-yarn", given).original_context, 77u);
  EXPECT_EQ(rope_of("llama-yarn", given).factor, 8.0f);

  given = {};
  given.set = true;
  given.scaling = RopeScaling::yarn;
  given.factor = 3.0f;
  const RopeParameters yarn = rope_of("llama-yarn-attn", given);
  EXPECT_EQ(yarn.factor, 3.0f);
  EXPECT_EQ(yarn.attention_factor, 1.0f);  // the file's belonged to its own scaling
  EXPECT_EQ(rope_of("llama-plain", given).original_context, 512u);
  given.scaling = RopeScaling::none;
  EXPECT_EQ(rope_of("llama-linear", given).scaling, RopeScaling::none);
  EXPECT_EQ(rope_of("llama-linear", given).factor, 1.0f);

  given.scaling = RopeScaling::longrope;
  EXPECT_EQ(rope_of("phi3-longrope", given).scaling, RopeScaling::longrope);
  EXPECT_EQ(rope_of("phi3-longrope", given).attention_factor, rope_of("phi3-longrope").attention_factor);
  EXPECT_EQ(read(load_model_spec("llama-plain"), given).status().code(), Code::unsupported);

  for (const float bad : {0.0f, -1.0f, 1e7f, std::nanf("")}) {
    given.scaling = RopeScaling::linear;
    given.factor = bad;
    EXPECT_EQ(read(load_model_spec("llama-plain"), given).status().code(), Code::invalid_argument) << bad;
  }
}

TEST(ModelWindows, AreHonouredWhereTheFamilyDefinesThem) {
  EXPECT_EQ(read(load_model_spec("phi3-window"))->kv().window, 24);
  EXPECT_EQ(read(load_model_spec("phi3"))->kv().window, 0);
  EXPECT_EQ(read(load_model_spec("llama-window-key"))->kv().window, 0);
  // Of two layers the first has a window. The group of the other one comes first.
  auto d = read(plus("phi3-window", "phi3.attention.sliding_window_pattern", "u32", 2));
  ASSERT_EQ(d->groups.size(), 2u);
  EXPECT_EQ(d->groups[0].window, 0);
  EXPECT_EQ(d->groups[0].layers, (std::vector<int32_t>{1}));
  EXPECT_EQ(d->groups[1].window, 24);
  EXPECT_EQ(d->groups[1].layers, (std::vector<int32_t>{0}));
}

}  // namespace
}  // namespace orrery::model::rope_test

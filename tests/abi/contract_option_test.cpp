// orrery_error.option: a refused field of an options struct is named, by the header's word for it. For every field whose values are checked;
// the value is one that no version may accept.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/support/shared.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_option_test {
namespace {

template <class O>
struct Refusal {
  const char* option;
  void (*change)(O*);
};

class Options : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
  Session session = open_session(model);

  // Each change of the defaults is refused by `call`, and the error names the field. Without a change the call works, and names nothing.
  template <class O>
  static void expect(void (*init)(O*, size_t), const std::vector<Refusal<O>>& refusals,
                     const std::function<orrery_status(const O*, orrery_error*)>& call) {
    O usual = options(init);
    Error whole;
    EXPECT_EQ(call(&usual, &whole), ORRERY_OK) << whole.message;
    EXPECT_STREQ(whole.option, "");
    for (const Refusal<O>& refusal : refusals) {
      O o = options(init);
      refusal.change(&o);
      Error error;
      std::memset(error.option, 'x', sizeof error.option);
      const orrery_status s = call(&o, &error);
      EXPECT_TRUE(s == ORRERY_INVALID_ARGUMENT || s == ORRERY_UNSUPPORTED) << refusal.option << ": " << s << " " << error.message;
      EXPECT_STREQ(error.option, refusal.option) << error.message;
    }
  }
};

TEST_F(Options, OfARuntime) {
  using O = orrery_runtime_options;
  expect<O>(&orrery_runtime_options_init,
            {{"n_threads", [](O* o) { o->n_threads = -1; }},
             {"n_threads", [](O* o) { o->n_threads = 1025; }},
             {"backend", [](O* o) { o->backend = "abacus"; }},
             {"backend", [](O* o) { o->backend = "\xFF"; }},
             {"cpu_path", [](O* o) { o->cpu_path = "abacus"; }},
             {"cpu_path", [](O* o) { o->cpu_path = "\xFF"; }},
             {"log_level", [](O* o) { o->log_level = 9; }},
             {"max_sessions", [](O* o) { o->max_sessions = 0; }},
             {"max_sessions", [](O* o) { o->max_sessions = 65537; }},
             {"reservoir_mode", [](O* o) { o->reservoir_mode = 2; }},
             {"device", [](O* o) { o->device = -2; }},
             {"priority", [](O* o) { o->priority = 2; }}},
            [](const O* given, orrery_error* e) {
              O o = *given;
              if (o.n_threads == 0) o.n_threads = 1;
              if (o.backend == nullptr || std::strcmp(o.backend, "auto") == 0) o.backend = "cpu";
              o.device_budget_bytes = uint64_t{1} << 20;
              orrery_runtime* h = nullptr;
              const orrery_status s = orrery_runtime_create(&o, &h, e);
              orrery_runtime_free(h);
              return s;
            });
}

TEST_F(Options, OfAModel) {
  using O = orrery_model_options;
  expect<O>(&orrery_model_options_init,
            {{"load", [](O* o) { o->load = 2; }},
             {"rope_scaling", [](O* o) { o->rope_scaling = 6; }},
             {"rope_base", [](O* o) { o->rope_base = -1; }},
             {"rope_base", [](O* o) { o->rope_base = std::nanf(""); }},
             {"rope_scale", [](O* o) { o->rope_scaling = ORRERY_ROPE_LINEAR, o->rope_scale = 0; }},
             {"rope_scaling", [](O* o) { o->rope_scaling = ORRERY_ROPE_LONGROPE, o->rope_scale = 2; }},
             {"experts_on_device", [](O* o) { o->experts_on_device = -2; }},
             {"experts_on_device", [](O* o) { o->experts_on_device = 8; }},  // the model has none
             {"layers_on_device", [](O* o) { o->layers_on_device = -2; }},
             {"layers_on_device", [](O* o) { o->layers_on_device = 1000; }},  // the model has fewer
             {"host_computes", [](O* o) { o->host_computes = 3; }},
             {"columns_on_device", [](O* o) { o->columns_on_device = -2; }},
             {"columns_on_device", [](O* o) { o->host_computes = 1, o->columns_on_device = 101; }},
             {"columns_on_device", [](O* o) { o->columns_on_device = 50; }}},  // nobody would compute the others
            [&](const O* o, orrery_error* e) {
              orrery_plan_result plan = options(&orrery_plan_result_init);
              Error planned;
              orrery_plan(path_source(path), nullptr, o, nullptr, &plan, &planned);
              orrery_model* h = nullptr;
              const orrery_status s = orrery_model_open(runtime.get(), path_source(path), o, &h, e);
              EXPECT_STREQ(planned.option, e->option) << "the plan says the same";
              orrery_model_free(h);
              return s;
            });
}

TEST_F(Options, OfASession) {
  using O = orrery_session_options;
  static const Source kDraft = path_source("model.gguf");
  static const orrery_option kUnknown = {"abacus", "1"}, kNothing = {"sinks", nullptr}, kOdd = {"sinks", "\xFF"}, kText = {"sinks", "x"};
  expect<O>(&orrery_session_options_init,
            {{"n_context", [](O* o) { o->n_context = UINT32_MAX; }},
             {"kv_type", [](O* o) { o->kv_type = 5; }},
             {"overflow", [](O* o) { o->overflow = 2; }},
             {"chunk_tokens", [](O* o) { o->chunk_tokens = UINT32_MAX; }},
             {"policy", [](O* o) { o->policy = "abacus"; }},
             {"policy", [](O* o) { o->policy = "\xFF"; }},
             {"policy", [](O* o) { o->policy = "full", o->kv_budget_share = .5f; }},
             {"policy_options", [](O* o) { o->policy = "streaming", o->n_policy_options = 1; }},
             {"policy_options", [](O* o) { o->policy = "streaming", o->policy_options = &kUnknown, o->n_policy_options = 1; }},
             {"policy_options", [](O* o) { o->policy = "streaming", o->policy_options = &kNothing, o->n_policy_options = 1; }},
             {"policy_options", [](O* o) { o->policy = "streaming", o->policy_options = &kOdd, o->n_policy_options = 1; }},
             {"policy_options", [](O* o) { o->policy = "streaming", o->policy_options = &kText, o->n_policy_options = 1; }},
             {"policy_options", [](O* o) { o->policy = "full", o->policy_options = &kText, o->n_policy_options = 1; }},
             {"kv_budget_share", [](O* o) { o->policy = "streaming", o->kv_budget_share = 0; }},
             {"kv_budget_share", [](O* o) { o->policy = "streaming", o->kv_budget_share = 1.5f; }},
             {"kv_budget_share", [](O* o) { o->policy = "streaming", o->kv_budget_share = std::nanf(""); }},
             {"kv_budget_bytes", [](O* o) { o->policy = "streaming", o->kv_budget_bytes = 1; }},
             {"device_kv_type", [](O* o) { o->device_kv_type = 7; }},
             {"device_kv_type", [](O* o) { o->policy = "streaming", o->device_kv_type = 1 + ORRERY_KV_F32; }},
             {"device_kv_type", [](O* o) { o->policy = "full", o->device_kv_type = 1 + ORRERY_KV_Q8_0; }},
             {"head_profile", [](O* o) { o->policy = "heterocache", o->kv_budget_share = .5f, o->head_profile = "{"; }},
             {"speculate", [](O* o) { o->speculate = 5; }},
             {"speculate", [](O* o) { o->speculate = ORRERY_SPECULATE_MTP; }},
             {"speculate", [](O* o) { o->speculate = ORRERY_SPECULATE_NGRAM, o->policy = "streaming"; }},
             {"speculate_tokens", [](O* o) { o->speculate_tokens = 8; }},
             {"draft_model", [](O* o) { o->speculate = ORRERY_SPECULATE_DRAFT; }},
             {"draft_source", [](O* o) { o->draft_source = kDraft; }},
             {"draft_source", [](O* o) { o->speculate = ORRERY_SPECULATE_DRAFT, o->draft_source = kDraft; }},
             {"reuse_prompts", [](O* o) { o->reuse_prompts = 2; }},
             {"load_behind", [](O* o) { o->load_behind = 2; }},
             {"reserved", [](O* o) { o->reserved = 1; }}},
            [&](const O* o, orrery_error* e) {
              orrery_session* h = nullptr;
              const orrery_status s = orrery_session_open(model.get(), o, &h, e);
              orrery_session_free(h);
              return s;
            });
}

TEST_F(Options, OfAnAnswer) {
  using O = orrery_generate_options;
  static const char* const kEmpty[] = {""};
  static const char* const kOdd[] = {"\xFF"};
  static const orrery_logit_bias kFar = {100000, 1}, kNan = {5, std::nanf("")};
  say(session, "hello");
  expect<O>(
      &orrery_generate_options_init,
      {{"temperature", [](O* o) { o->temperature = -1; }},
       {"top_p", [](O* o) { o->top_p = 0; }},
       {"min_p", [](O* o) { o->min_p = 2; }},
       {"repetition_penalty", [](O* o) { o->repetition_penalty = 0; }},
       {"frequency_penalty", [](O* o) { o->frequency_penalty = std::nanf(""); }},
       {"presence_penalty", [](O* o) { o->presence_penalty = 1e9f; }},
       {"n_logprobs", [](O* o) { o->n_logprobs = 21; }},
       {"stop", [](O* o) { o->n_stop = 1; }},
       {"stop", [](O* o) { o->stop = kEmpty, o->n_stop = 1; }},
       {"stop", [](O* o) { o->stop = kOdd, o->n_stop = 1; }},
       {"logit_bias", [](O* o) { o->n_logit_bias = 1; }},
       {"logit_bias", [](O* o) { o->logit_bias = &kFar, o->n_logit_bias = 1; }},
       {"logit_bias", [](O* o) { o->logit_bias = &kNan, o->n_logit_bias = 1; }},
       {"grammar", [](O* o) { o->grammar = "root ::= ("; }},
       {"grammar", [](O* o) { o->grammar = "\xFF"; }},
       {"grammar", [](O* o) { o->grammar = "{", o->grammar_kind = ORRERY_GRAMMAR_JSON_SCHEMA; }},
       {"grammar_root", [](O* o) { o->grammar = "root ::= \"a\"", o->grammar_root = "\xFF"; }},
       {"grammar_kind", [](O* o) { o->grammar = "a", o->grammar_kind = 3; }},
       {"grammar_whitespace", [](O* o) { o->grammar = "{}", o->grammar_kind = ORRERY_GRAMMAR_JSON_SCHEMA, o->grammar_whitespace = 3; }},
       {"grammar_tokens", [](O* o) { o->grammar_tokens = 1; }},
       {"tools", [](O* o) { o->tools = 4; }},
       {"tools", [](O* o) { o->tools = ORRERY_TOOLS_REQUIRED; }},
       {"tool_name", [](O* o) { o->tool_name = "f"; }},
       {"max_reasoning_tokens", [](O* o) { o->max_reasoning_tokens = 5; }},
       {"continue_last", [](O* o) { o->continue_last = 1; }},
       {"reserved", [](O* o) { o->reserved = 1; }}},
      [&](const O* o, orrery_error* e) {
        orrery_generation* h = nullptr;
        const orrery_status s = orrery_generate(session.get(), o, &h, e);
        const Generation generation(h);
        if (s != ORRERY_OK) return s;
        orrery_event event = options(&orrery_event_init);
        return orrery_next(h, &event, e);  // the first call makes the prompt
      });
}

TEST_F(Options, OfATemplate) {
  using O = orrery_template_options;
  expect<O>(&orrery_template_options_init,
            {{"template_source", [](O* o) { o->template_source = "\xFF"; }},
             {"template_name", [](O* o) { o->template_name = "abacus"; }},
             {"template_name", [](O* o) { o->template_name = "\xFF"; }},
             {"tools_json", [](O* o) { o->tools_json = "{"; }},
             {"tools_json", [](O* o) { o->tools_json = "{}"; }},
             {"variables_json", [](O* o) { o->variables_json = "["; }},
             {"variables_json", [](O* o) { o->variables_json = "[]"; }}},
            [&](const O* o, orrery_error* e) { return orrery_session_set_template(session.get(), o, e); });
}

TEST_F(Options, OfACalibration) {
  using O = orrery_calibrate_options;
  expect<O>(&orrery_calibrate_options_init,
            {{"n_steps", [](O* o) { o->n_steps = 0; }},
             {"n_steps", [](O* o) { o->n_steps = 1025; }},
             {"top_k", [](O* o) { o->top_k = 0; }},
             {"n_representatives", [](O* o) { o->n_representatives = 99; }},
             {"tau_sim", [](O* o) { o->tau_sim = 2; }},
             {"tau_stable", [](O* o) { o->tau_stable = 2; }},
             {"tau_drift", [](O* o) { o->tau_drift = 2; }},
             {"full_share", [](O* o) { o->full_share = 2; }},
             {"note", [](O* o) { o->note = "\xFF"; }},
             {"kv_type", [](O* o) { o->kv_type = 5; }},
             {"reserved", [](O* o) { o->reserved = 1; }}},
            [&](const O* given, orrery_error* e) {
              O o = *given;
              if (o.n_steps == 99) o.n_steps = 1;
              const std::vector<int32_t> tokens(64, 70);
              const size_t n = tokens.size();
              orrery_calibration* h = nullptr;
              const orrery_status s = orrery_calibrate(model.get(), tokens.data(), &n, 1, &o, &h, e);
              orrery_calibration_free(h);
              return s;
            });
}

// Of a model whose heads differ, which needs a profile, and a profile of another model.
TEST_F(Options, OfHeadProfiles) {
  const Model demo = open_model(runtime, source_path("samples/models/demo-q8_0.gguf"));
  const std::vector<int32_t> tokens(64, 70);
  const size_t n = tokens.size();
  orrery_calibrate_options c = options(&orrery_calibrate_options_init);
  c.n_steps = 1;
  orrery_calibration* calibration = nullptr;
  ASSERT_EQ(orrery_calibrate(model.get(), tokens.data(), &n, 1, &c, &calibration, nullptr), ORRERY_OK);
  std::vector<char> profile(100000);
  size_t bytes = 0;
  ASSERT_EQ(orrery_calibration_profile(calibration, profile.data(), profile.size() - 1, &bytes, nullptr), ORRERY_OK);
  orrery_calibration_free(calibration);
  for (const char* given : {static_cast<const char*>(nullptr), static_cast<const char*>(profile.data())}) {
    orrery_session_options o = session_options();
    o.n_context = 512;
    o.policy = "duoattention";
    o.kv_budget_share = .5f;
    o.head_profile = given;
    orrery_session* h = nullptr;
    Error error;
    EXPECT_EQ(orrery_session_open(demo.get(), &o, &h, &error), ORRERY_INVALID_ARGUMENT) << error.message;
    EXPECT_STREQ(error.option, "head_profile") << error.message;
  }
}

// A caller whose struct ends before `option`, and one whose struct ends inside it.
TEST_F(Options, OlderCallersHaveAsMuchAsFits) {
  for (const uint32_t bytes : std::initializer_list<uint32_t>{1072, 1080, sizeof(orrery_error)}) {
    alignas(8) unsigned char given[sizeof(orrery_error) + 8];
    std::memset(given, 0xAA, sizeof given);
    auto* error = reinterpret_cast<orrery_error*>(given);
    orrery_error_init(error, bytes);
    orrery_session_options o = session_options();
    o.speculate_tokens = 8;
    orrery_session* h = nullptr;
    EXPECT_EQ(orrery_session_open(model.get(), &o, &h, error), ORRERY_INVALID_ARGUMENT);
    const std::string name = "speculate_tokens";
    const size_t room = bytes - offsetof(orrery_error, option), n = std::min(name.size(), room);
    EXPECT_EQ(name.compare(0, n, error->option, n), 0) << bytes;
    for (size_t i = bytes; i < sizeof given; ++i) EXPECT_EQ(given[i], 0xAA) << bytes;
  }
}

}  // namespace
}  // namespace orrery::testing::contract_option_test

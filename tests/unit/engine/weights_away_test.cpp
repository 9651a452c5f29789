// Weights in host memory that cross a link, experts of a mixture, layers of a dense model and columns of its blocks alike: with KV on the
// same link, with other sessions, with adapters, guesses and encoders, and with transfers that are late, fail, never end or are cancelled.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "tests/support/adapters.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/weights_away.h"

namespace orrery::weights_away_test {
namespace {

using namespace orrery::testing;
using engine::Session;

struct Kind {
  const char* name;
  const char* spec;
  engine::ModelOptions options;
  const char *of, *message;        // IoRequest::of; what an error of a transfer says
  uint64_t fails_every, fails_to;  // of the requests
  int failures;                    // more of them end a call
  uint64_t never;                  // a request that somebody waits for
  int tries;                       // until a call works, once nothing is stuck
  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};
const Kind kKinds[] = {
    {"experts", "qwen3moe", with_experts(16), "experts", "a transfer of experts to the device (expert ", 97, 600, 0, 30, 1},
    // What is on its way for the next step may be stuck, too: the next call gives it up.
    {"layers", "llama-plain", with_layers(0), "weights", "a transfer of weights to the device (layer ", 17, UINT64_MAX, 3, 30, 3},
    // Generated tokens ask the link for nothing.
    {"columns", "llama-plain", with_columns(50), "weights", "a transfer of weights to the device (layer ", 3, 30, 0, 2, 3},
    {"host_experts", "qwen3moe", with_host_experts(5), "weights", "a transfer of weights to the device (experts of layer ", 3, 30, 0, 2, 3},
};

class WeightsAway : public ::testing::TestWithParam<Kind> {
 protected:
  const std::vector<std::byte> file_ = deep_model_gguf(GetParam().spec);
  std::shared_ptr<engine::LanguageModel> open(const engine::RuntimeOptions& runtime = linked_options()) const {
    auto model = open_with(file_, runtime, GetParam().options);
    const model::Model& m = model->weights();
    EXPECT_TRUE(m.experts || m.host || m.layers || m.columns);
    return model;
  }
  static bool by_host() {
    return GetParam().options.host_computes == engine::HostComputes::always;
  }  // generated tokens ask the link for nothing
  static bool divided() { return GetParam().options.columns_on_device >= 0; }
  // All weights on the device; or, where a block's sums have another order then, divided in the same way, by a fast link.
  std::shared_ptr<engine::LanguageModel> reference() const {
    engine::RuntimeOptions fast = linked_options();
    fast.link.bytes_per_second = uint64_t{200} << 30;
    return divided() ? open(fast) : open_bytes(file_, linked_options());
  }
};

// KV and weights cross one link, under every kind of policy; infinigen asks the next layer's weights ahead.
TEST_P(WeightsAway, PoliciesShareTheLink) {
  const auto whole = reference(), away = open();
  const std::vector<int32_t> prompt = random_prompt(150, 3);
  for (const char* name :
       {"streaming", "heterocache", "synckv_every_step", "auto_by_window", "freekv", "auto_by_codes", "infinigen", "shadowkv"}) {
    SCOPED_TRACE(name);
    std::vector<float> traces[2];
    for (const auto& model : {whole, away}) {
      const auto session = unwrap(Session::open(model, with_mode(mode_of(name), 0.6)));
      unwrap(session->prefill(prompt, nullptr, nullptr));
      (void)greedy(session.get(), 16, &traces[model == away]);
    }
    EXPECT_TRUE(same_bits(traces[0], traces[1]));
  }
}

TEST_P(WeightsAway, SessionsDecodeTogether) {
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < 5; ++i) prompts.push_back(random_prompt(20 + 7 * i, 10 + i));
  expect_together_as_alone(open(), prompts, 6);
}

// Prompts of two sessions take turns layer by layer, so that each finds the other's weights in the arena.
TEST_P(WeightsAway, PromptsTakeTurns) {
  engine::RuntimeOptions runtime = linked_options();
  runtime.prompt_part_us = 0;
  const auto model = open(runtime);
  const std::vector<int32_t> prompts[] = {random_prompt(120, 21), random_prompt(90, 22)};
  std::vector<float> found[2];
  const auto trace = [&](size_t i) { found[i] = traced_logits(model, prompts[i], 16); };
  std::thread other([&] { trace(1); });
  trace(0);
  other.join();
  const auto whole = reference();
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(found[i], traced_logits(whole, prompts[i], 16))) << i;
}

TEST_P(WeightsAway, AdaptersAddTheSame) {
  std::vector<float> traces[2];
  for (const bool away : {false, true}) {
    const auto model = away ? open() : reference();
    AdapterSpec spec;
    spec.takes = [](const std::string& name) {
      return name.find("attn") != std::string::npos || (!divided() && name.find("ffn_down.") != std::string::npos);
    };
    engine::SessionOptions options;
    options.n_context = 128;
    options.adapters = adapters_of({{open_adapter(model, adapter_gguf(file_, spec)), 0.5f}});
    const auto session = unwrap(Session::open(model, options));
    unwrap(session->prefill(random_prompt(40, 4), nullptr, nullptr));
    (void)greedy(session.get(), 8, &traces[away]);
  }
  EXPECT_TRUE(same_bits(traces[0], traces[1]));
}

// A transfer that is late, fails or never ends: the answer is late, or the step fails by a sentence that names it, and the next one goes on.
class WeightsFaults : public WeightsAway {
 protected:
  using Fault = kv::IoThread::Fault;
  WeightsFaults() {
    expected_ = traced_logits(reference(), prompt_);
    engine::RuntimeOptions runtime = linked_options();
    runtime.io_wait_limit_us = 100'000;
    runtime.io_fault = [this](const kv::IoRequest& request) {
      const uint64_t n = n_requests_++;
      if (std::string(request.of) != GetParam().of) return Fault{};
      return fault_ ? fault_(n) : Fault{};
    };
    model_ = open(runtime);
  }

  // Tries each call again until it works; returns the number of failed ones.
  int failures(std::vector<float>* all, const std::function<void(const Status&)>& seen) {
    int failed = 0;
    const auto session = open_session(model_, 256, KvType::f16, 128);
    all->resize(prompt_.size() * session->logits().size());
    const auto again = [&](const auto& call) {
      for (int i = 0; i < 2000; ++i) {
        const Status status = call();
        if (status.ok()) return;
        ++failed;
        seen(status);
      }
      throw std::runtime_error("no try works");
    };
    again([&] { return session->prefill(prompt_, nullptr, all->data()); });
    for (int i = 0; i < 12; ++i) {
      session->push_generated(argmax(session->logits()));
      again([&] { return session->decode(); });
      all->insert(all->end(), session->logits().begin(), session->logits().end());
    }
    return failed;
  }

  uint64_t stalls_us() const {
    const model::Model& m = model_->weights();
    if (m.columns) return m.columns->prompts().stall_us;
    if (m.host) return m.host->prompts().stall_us;
    return m.experts ? m.experts->counts().stall_us : m.layers->counts().decode.stall_us;
  }

  const std::vector<int32_t> prompt_ = random_prompt(40, 5);
  std::vector<float> expected_;
  std::atomic<uint64_t> n_requests_{0};
  std::function<Fault(uint64_t)> fault_;
  std::shared_ptr<engine::LanguageModel> model_;
};

TEST_P(WeightsFaults, LateOnesAreWaitedFor) {
  fault_ = [](uint64_t n) {
    Fault fault;
    // Of prompts alone few requests come, so each is late enough to be waited for on a busy machine, too.
    if (by_host() || n % 3 == 0) fault.kind = Fault::Kind::late, fault.late_us = by_host() ? 20'000 : 300;
    return fault;
  };
  std::vector<float> found;
  EXPECT_EQ(failures(&found, [](const Status&) {}), 0);
  EXPECT_TRUE(same_bits(found, expected_));
  EXPECT_GT(stalls_us(), 0u);
}

TEST_P(WeightsFaults, FailedOnesAreNamedAndTriedAgain) {
  fault_ = [](uint64_t n) {
    Fault fault;
    if (n % GetParam().fails_every == 7 % GetParam().fails_every && n < GetParam().fails_to)
      fault.kind = Fault::Kind::fail, fault.status = error(Code::device_lost, "the cable is out");
    return fault;
  };
  std::vector<float> found;
  EXPECT_GT(failures(&found, [](const Status& status) { EXPECT_EQ(status.code(), Code::device_lost) << status.message(); }),
            GetParam().failures);
  EXPECT_TRUE(same_bits(found, expected_));
}

TEST_P(WeightsFaults, OnesThatNeverComeAreGivenUp) {
  fault_ = [](uint64_t n) {
    Fault fault;
    if (n == GetParam().never) fault.kind = Fault::Kind::never;
    return fault;
  };
  std::vector<float> found;
  EXPECT_EQ(failures(&found,
                     [](const Status& status) {
                       EXPECT_EQ(status.code(), Code::io);
                       EXPECT_NE(std::string(status.message()).find(GetParam().message), std::string::npos) << status.message();
                     }),
            1);
  EXPECT_TRUE(same_bits(found, expected_));
}

// A wait for weights ends when the generation is cancelled, in a prompt and in an answer.
TEST_P(WeightsFaults, WaitsAreCancelled) {
  for (const bool in_answer : {false, true}) {
    if (in_answer && by_host()) continue;
    SCOPED_TRACE(in_answer ? "in an answer" : "in a prompt");
    engine::RuntimeOptions runtime = linked_options();
    runtime.io_wait_limit_us = 2'000'000;
    std::atomic<bool> never{false}, cancel{false};
    std::atomic<int> stuck{0};
    runtime.io_fault = [&](const kv::IoRequest&) {
      Fault fault;
      if (never) fault.kind = Fault::Kind::never, ++stuck;
      return fault;
    };
    const auto model = open(runtime);
    const auto session = open_session(model, 256, KvType::f16, 128);
    if (in_answer) unwrap(session->prefill(prompt_, nullptr, nullptr));
    never = true;
    std::thread canceller([&] {
      while (stuck == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // by then a layer waits
      cancel = true;
    });
    Status status;
    const auto begin = std::chrono::steady_clock::now();
    if (!in_answer) status = session->prefill(prompt_, &cancel, nullptr);
    for (int i = 0; in_answer && i < 200 && status.ok(); ++i) {  // until a layer wants weights that are not there
      session->push_generated(3 + i % 90);
      status = session->decode(nullptr, &cancel);
    }
    if (stuck == 0) stuck = 1;
    canceller.join();
    EXPECT_EQ(status.code(), Code::cancelled) << status.message();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    never = false;
    Status again;
    for (int i = 0; i < GetParam().tries; ++i)
      if ((again = in_answer ? session->decode() : session->prefill(prompt_, nullptr, nullptr)).ok()) break;
    EXPECT_TRUE(again.ok()) << again.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, WeightsAway, ::testing::ValuesIn(kKinds),
                         [](const auto& tested) { return std::string(tested.param.name); });
INSTANTIATE_TEST_SUITE_P(Kinds, WeightsFaults, ::testing::ValuesIn(kKinds),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace orrery::weights_away_test

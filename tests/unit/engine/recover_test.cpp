// Tokens that are computed again for their queries, after a load and after going back: the answers that follow are the same bits in every
// chunk size, with generated tokens among prompt tokens.
#include <gtest/gtest.h>

#include "runtime/engine/session/session_file.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/session_bytes.h"

namespace orrery::recover_test {
namespace {

using namespace orrery::testing;
using engine::Session;
using engine::SessionFile;

class EngineRecoverChunks : public ::testing::TestWithParam<PolicyMode> {};

// Files without a resident state, whose sessions choose their resident KV again.
std::vector<std::byte> saved(Session* session) { return without_resident(save_bytes(session)); }

TEST_P(EngineRecoverChunks, AnyChunkGivesTheSameAnswerAfterALoad) {
  const auto model = open_deep();
  const auto first = unwrap(Session::open(model, with_mode(GetParam(), 0.55)));
  const std::vector<int32_t> prompt = random_tokens(*model, 110, 1), question = random_tokens(*model, 9, 2);
  answer(first.get(), prompt, 31);
  answer(first.get(), question, 17);  // between the generated tokens of two answers lie prompt tokens
  const std::vector<std::byte> bytes = saved(first.get());
  for (const uint32_t back : {0u, 5u, 20u}) {  // the last token that stays is generated, generated, a prompt's
    std::vector<float> expected;
    for (const uint32_t chunk : {64u, 1u, 5u, 16u, 37u, 256u}) {
      const auto session = unwrap(Session::open(model, with_mode(GetParam(), 0.55, 320, KvType::f16, chunk)));
      unwrap(SessionFile::load(session.get(), bytes, "a session"));
      unwrap(session->rewind(session->n_computed() - back));
      unwrap(session->sequence().refresh_logits());
      std::vector<float> trace;
      greedy(session.get(), 12, &trace);
      if (expected.empty()) expected = trace;
      EXPECT_TRUE(same_bits(trace, expected)) << "chunks of " << chunk << ", " << back << " tokens back";
      if (back != 20) continue;
      // The KV in the pages is the file's, whatever was computed again. (A generated last token attends to what is selected now.)
      unwrap(session->rewind(first->n_computed() - back));
      const auto untouched = unwrap(Session::open(model, with_mode(GetParam(), 0.55)));
      unwrap(SessionFile::load(untouched.get(), bytes, "a session"));
      unwrap(untouched->rewind(first->n_computed() - back));
      EXPECT_TRUE(saved(session.get()) == saved(untouched.get()));
    }
  }
}

// A session tells when its next answer may differ from that of the session that it was.
TEST(EngineRecover, ASessionTellsThatItSelectsAgain) {
  const auto model = open_demo();
  for (const char* policy : {"snapkv", "full"}) {
    const PolicyMode mode = mode_of(policy);
    const bool compressed = policy == std::string("snapkv");
    const auto options = with_mode(mode, compressed ? 0.5 : 1);
    const auto session = unwrap(Session::open(model, options));
    answer(session.get(), random_tokens(*model, 110, 1), 10);
    EXPECT_FALSE(session->sequence().selects_again());
    const auto loaded = unwrap(Session::open(model, options));
    unwrap(SessionFile::load(loaded.get(), saved(session.get()), "a session"));
    EXPECT_EQ(loaded->sequence().selects_again(), compressed);
    unwrap(loaded->sequence().refresh_logits());
    greedy(loaded.get(), 1);
    EXPECT_FALSE(loaded->sequence().selects_again());
    unwrap(SessionFile::load(loaded.get(), save_bytes(session.get()), "a session"));  // with the resident state
    EXPECT_FALSE(loaded->sequence().selects_again());
    auto other = options;
    other.kv_share = compressed ? 0.6 : 1;
    const auto of_other_options = unwrap(Session::open(model, other));
    unwrap(SessionFile::load(of_other_options.get(), save_bytes(session.get()), "a session"));
    EXPECT_EQ(of_other_options->sequence().selects_again(), compressed);
    unwrap(session->rewind(115));
    EXPECT_EQ(session->sequence().selects_again(), compressed);
    EXPECT_EQ(unwrap(session->fork())->sequence().selects_again(), compressed);
    unwrap(session->rewind(0));
    EXPECT_FALSE(session->sequence().selects_again());
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, EngineRecoverChunks, ::testing::ValuesIn(policy_modes()),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace orrery::recover_test

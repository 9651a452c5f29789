// A pinned reservoir: the system locks sessions' regions in memory as long as the sessions live; no token changes; and a refusal of the
// system comes back with its numbers.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/support/policy_sessions.h"

namespace orrery::posix_pinned_test {
namespace {

using namespace orrery::testing;
using engine::Session;

// Under a sanitizer mlock() does nothing, and says that it did.
constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

// Bytes that the system has locked for this process.
uint64_t locked_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmLck:", 0) == 0) return std::stoull(line.substr(6)) * 1024;
  ADD_FAILURE() << "the system does not say what is locked";
  return 0;
}

std::shared_ptr<engine::LanguageModel> open_model(bool pinned) {
  engine::RuntimeOptions o = runtime_options(1);
  o.pinned_reservoir = pinned;
  return open_spec("llama-plain", o);
}

engine::SessionOptions session_options(uint32_t n_context) {
  engine::SessionOptions o;
  o.n_context = n_context;
  o.policy = "synckv";
  o.policy_options = {{"representatives", "1"}};
  o.kv_share = .8;
  return o;
}

uint64_t in_pages(uint64_t bytes) { return (bytes + os::page_bytes() - 1) / os::page_bytes() * os::page_bytes(); }

TEST(EnginePinned, ChangesNoToken) {
  std::vector<float> expected;
  for (const bool pinned : {false, true}) {
    const auto model = open_model(pinned);
    const auto session = unwrap(Session::open(model, session_options(256)));
    EXPECT_EQ(model->runtime().reservoir().pinned(), pinned);
    const std::vector<float> found = answer(session.get(), random_tokens(*model, 100, 1), 40);
    if (!pinned) expected = found;
    EXPECT_TRUE(same_bits(found, expected));
  }
}

TEST(EnginePinned, LocksWhatSessionsTakeAsLongAsTheyLive) {
  if (kSanitized) GTEST_SKIP() << "sanitizers make mlock() do nothing";
  const uint64_t before = locked_bytes();
  const auto model = open_model(true);
  EXPECT_EQ(locked_bytes(), before);  // the reservoir itself is only a range of addresses
  const engine::SessionOptions options = session_options(200);
  const uint64_t each = in_pages(plan_session(*model, options).reservoir_bytes);
  EXPECT_GT(each, 0u);
  {
    const auto one = unwrap(Session::open(model, options));
    EXPECT_EQ(locked_bytes() - before, each);
    unwrap(one->prefill(random_tokens(*model, 150, 2), nullptr, nullptr));
    const auto two = unwrap(one->fork());
    EXPECT_EQ(locked_bytes() - before, 2 * each);
    greedy(two.get(), 20);
    EXPECT_EQ(locked_bytes() - before, 2 * each);  // working locks no more
  }
  EXPECT_EQ(locked_bytes(), before);
  const auto full = unwrap(Session::open(model, {}));  // has no reservoir
  EXPECT_EQ(locked_bytes(), before);
}

// Nothing may be locked beyond `bytes`, whoever runs this.
bool lower_limit(uint64_t bytes) {
  const struct rlimit limit = {bytes, bytes};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  data[0].effective &= ~(1u << CAP_IPC_LOCK);
  return ::syscall(SYS_capset, &header, data) == 0;
}

// In a process of its own: exits with 0 if all is as it should be.
void open_under_a_limit() {
  const auto expect = [](bool holds, const std::string& what) {
    if (!holds) std::fprintf(stderr, "%s\n", what.c_str()), std::_Exit(1);
  };
  const auto pinned = open_model(true), pageable = open_model(false);
  const uint64_t needed = in_pages(plan_session(*pinned, session_options(512)).reservoir_bytes);
  const uint64_t limit = needed - os::page_bytes();
  expect(lower_limit(limit), "the limit could not be lowered");
  const auto refused = Session::open(pinned, session_options(512));
  expect(!refused.ok(), "more was locked than the limit");
  const ErrorDetail& detail = refused.status().detail();
  const std::string message = refused.status().message();
  expect(refused.status().code() == Code::out_of_pinned_memory, message);
  expect(detail.bytes_requested == needed && detail.bytes_available == limit, "numbers: " + message);
  expect(detail.native_code == ENOMEM, "the system's number: " + message);
  for (const std::string& words : {std::to_string(needed), std::to_string(limit), std::string("ulimit -l")})
    expect(message.find(words) != std::string::npos, "no '" + words + "' in: " + message);
  expect(pinned->runtime().reservoir().used() == 0 && locked_bytes() == 0, "the refused session left something behind");
  // What fits the limit is locked, twice in turn; and nothing stands in the way of a pageable reservoir.
  for (int i = 0; i < 2; ++i) {
    const auto smaller = Session::open(pinned, session_options(256));
    expect(smaller.ok(), "half of it is refused as well");
    expect(locked_bytes() > 0 && locked_bytes() <= limit, "half of it is not locked");
  }
  expect(Session::open(pageable, session_options(512)).ok(), "a pageable session is refused");
  std::_Exit(0);
}

TEST(EnginePinned, ARefusalNamesWhatWasAskedAndTheLimit) {
  if (kSanitized) GTEST_SKIP() << "sanitizers make mlock() do nothing";
  EXPECT_EXIT(open_under_a_limit(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace orrery::posix_pinned_test

// Between the application's calls nothing runs: threads that wait for the next step sleep. The test measures the process's own processor
// time, so a busy machine cannot make it fail. One spinning thread would use a hundred times the bound.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_posix_idle_test {
namespace {

double process_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

constexpr double kBound = 0.01;

// What the process uses in a second in which nobody calls. Up to three are tried: what else runs in it (a sanitizer's
// thread) has its moments.
double idle_seconds() {
  double used = 1;
  for (int i = 0; i < 3 && used >= kBound; ++i) {
    const double before = process_seconds();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    used = process_seconds() - before;
  }
  return used;
}

TEST(Idle, AnOpenSessionUsesNoProcessorTime) {
  const TempDir dir;
  const Runtime runtime = make_runtime(4);
  const Model model = open_model(runtime, dir.write("tiny.gguf", TinyModel().build()));
  const Session session = open_session(model);
  EXPECT_LT(idle_seconds(), kBound) << "before anything was asked";
  say(session, "hello");
  const Generation answer = generate(session, generate_options(8));
  Error error;
  orrery_event event = options(&orrery_event_init);
  do {
    check(orrery_next(answer.get(), &event, &error), error, "orrery_next");
  } while (event.type != ORRERY_EVENT_TOKEN);
  EXPECT_LT(idle_seconds(), kBound) << "while the application thinks between two tokens";
  while (event.type != ORRERY_EVENT_DONE) check(orrery_next(answer.get(), &event, &error), error, "orrery_next");
  EXPECT_LT(idle_seconds(), kBound) << "after the answer";
}

}  // namespace
}  // namespace orrery::testing::contract_posix_idle_test

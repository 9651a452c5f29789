// The thread that reads a session's pages takes no signals of the application.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include "runtime/engine/sequence/page_feed.h"

namespace orrery::page_feed_test {
namespace {

bool takes_signals() {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, SIGUSR1) == 0;
}

TEST(EnginePageFeed, ItsThreadBlocksSignals) {
  bool takes = true;
  pthread_t reader = pthread_self();
  const auto feed = engine::PageFeed::start([&](const std::atomic<bool>*) {
    takes = takes_signals(), reader = pthread_self();
    return ok_status();
  });
  ASSERT_TRUE(feed->wait({}).ok());
  EXPECT_FALSE(pthread_equal(reader, pthread_self()));
  EXPECT_FALSE(takes);
  EXPECT_TRUE(takes_signals()) << "the caller's signals are as they were";
}

}  // namespace
}  // namespace orrery::page_feed_test

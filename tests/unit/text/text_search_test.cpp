// Two-way search: it finds what naive search finds, in time that is linear in the text, and ends when the payer refuses.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "runtime/text/text_search.h"

namespace orrery::text::text_search_test {
namespace {

TEST(TextSearch, FindsWhatNaiveSearchFinds) {
  uint32_t state = 1;
  const auto next = [&state](uint32_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % below;
  };
  const auto spend = [](size_t) { return true; };
  size_t hits = 0;
  for (int i = 0; i < 200000; ++i) {
    const uint32_t letters = 1 + next(3);
    std::string text, part;
    for (uint32_t n = next(40); n > 0; --n) text += static_cast<char>('a' + next(letters));
    for (uint32_t n = 1 + next(12); n > 0; --n) part += static_cast<char>('a' + next(letters));
    const size_t from = next(static_cast<uint32_t>(text.size()) + 1);
    size_t at;
    TextSearch<false> forward;
    ASSERT_TRUE(forward.reset(part, spend) && forward.find(text, from, spend, &at));
    ASSERT_EQ(at, text.find(part, from)) << part << " in " << text;
    TextSearch<true> backward;
    ASSERT_TRUE(backward.reset(part, spend) && backward.find(text, 0, spend, &at));
    ASSERT_EQ(at == std::string::npos ? at : text.size() - at - part.size(), text.rfind(part)) << part << " in " << text;
    hits += at != std::string::npos;
  }
  EXPECT_GT(hits, 50000u);
}

TEST(TextSearch, ComparesAFewTimesTheText) {
  const std::string text(3000000, 'a');
  for (const std::string& part :
       {std::string(1000000, 'a') + "b", "b" + std::string(1000000, 'a'), std::string(500000, 'a') + "b" + std::string(500000, 'a')}) {
    size_t compared = 0, at;
    const auto count = [&](size_t bytes) {
      compared += bytes;
      return true;
    };
    TextSearch<false> forward;
    ASSERT_TRUE(forward.reset(part, count) && forward.find(text, 0, count, &at));
    EXPECT_EQ(at, std::string::npos);
    TextSearch<true> backward;
    ASSERT_TRUE(backward.reset(part, count) && backward.find(text, 0, count, &at));
    EXPECT_EQ(at, std::string::npos);
    EXPECT_LT(compared, 20000000u);
    // Ended by whoever pays.
    EXPECT_FALSE(forward.reset(part, [](size_t) { return false; }) && forward.find(
                                                                          text, 0, [](size_t) { return false; }, &at));
  }
}

}  // namespace
}  // namespace orrery::text::text_search_test

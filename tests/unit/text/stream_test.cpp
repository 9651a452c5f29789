// TextStream against the plain definition, on random texts cut in random places; and after every piece
// nothing is withheld that need not be.
#include "runtime/text/streaming/stream.h"

#include <gtest/gtest.h>

#include "runtime/text/unicode/utf8.h"
#include "tests/support/random_strings.h"

namespace orrery::text::stream_test {
namespace {

struct Outcome {
  std::string shown;
  int32_t stop = -1;
};

std::string valid(const std::string& bytes) {
  std::string out;
  utf8_append_valid(bytes, &out);
  return out;
}

// The stop string that begins first, of those the shortest, of equals the first named.
Outcome expected_outcome(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t at = 0; at < text.size(); at++) {
    int32_t best = -1;
    for (size_t i = 0; i < stops.size(); i++)
      if (text.compare(at, stops[i].size(), stops[i]) == 0 && (best < 0 || stops[i].size() < stops[static_cast<size_t>(best)].size()))
        best = static_cast<int32_t>(i);
    if (best >= 0) return {valid(text.substr(0, at)), best};
  }
  return {valid(text), -1};
}

// How many bytes must wait: from the first place where a stop string may still be completed, or from the
// beginning of an incomplete character.
size_t must_wait(const std::string& text, const std::vector<std::string>& stops) {
  size_t open = text.size();
  for (size_t at = text.size(); at-- > 0;)
    for (const std::string& stop : stops)
      if (text.size() - at < stop.size() && stop.compare(0, text.size() - at, text, at) == 0) open = at;
  size_t tail = utf8_incomplete_tail(text.substr(0, open));
  if (tail != 0 && open < text.size()) {  // what follows is known: it may rule out that the character goes on
    const std::string longer = text.substr(open - tail, tail + 1);
    if (!utf8_valid(longer) && utf8_incomplete_tail(longer) != tail + 1) tail = 0;
  }
  return text.size() - open + tail;
}

Result<TextStream> stream_of(const std::vector<std::string>& stops) { return TextStream::create(stops); }

Outcome run(TextStream* stream, const std::string& text, const std::vector<size_t>& cuts, const std::vector<std::string>* check_withheld) {
  Outcome found;
  size_t from = 0;
  bool stopped = false;
  for (const size_t to : cuts) {
    stopped = stream->feed(std::string_view(text).substr(from, to - from), &found.shown);
    from = to;
    if (!stopped && check_withheld) {
      EXPECT_EQ(stream->withheld_bytes(), must_wait(text.substr(0, to), *check_withheld)) << text << " at " << to;
    }
  }
  if (!stopped) stopped = stream->finish(&found.shown);
  EXPECT_EQ(stopped, stream->stop_index() >= 0);
  found.stop = stream->stop_index();
  return found;
}

TEST(TextStream, AgreesWithTheDefinitionOnRandomTexts) {
  testing::RandomStrings random(31, 1);
  const std::string letters[] = {"a",    "b", "a", "b", "\xC3\xA9", "\xC3", "\xA9", "\xE4\xB8\xAD", "\xE4\xB8", "\xF0\x9F\xA6\x99",
                                 "\xF0", "c"};
  const auto draw = [&](size_t length, size_t alphabet) {
    std::string s;
    for (size_t i = 0; i < length; i++) s += letters[random.next(alphabet)];
    return s;
  };
  size_t n_stopped = 0;
  for (int round = 0; round < 100000; round++) {
    const size_t alphabet = 2 + random.next(11);
    std::vector<std::string> stops;
    for (size_t i = random.next(5); i > 0; i--) stops.push_back(draw(1 + random.next(4), alphabet));
    const std::string text = draw(random.next(24), alphabet);
    std::vector<size_t> cuts;
    for (size_t at = 0; at < text.size();) cuts.push_back(at = std::min(text.size(), at + random.next(4)));
    Result<TextStream> stream = stream_of(stops);
    ASSERT_TRUE(stream.ok());
    const Outcome expected = expected_outcome(text, stops);
    for (int twice = 0; twice < 2; twice++) {
      const Outcome found = run(&*stream, text, cuts, &stops);
      ASSERT_EQ(found.shown, expected.shown) << ::testing::PrintToString(stops) << " in " << text;
      if (expected.stop >= 0) {
        ASSERT_GE(found.stop, 0);
        ASSERT_EQ(stops[static_cast<size_t>(found.stop)], stops[static_cast<size_t>(expected.stop)]);
      }
      ASSERT_EQ(found.stop, expected.stop);
      stream->reset();
    }
    n_stopped += expected.stop >= 0;
  }
  EXPECT_GT(n_stopped, 10000u);
  EXPECT_LT(n_stopped, 90000u);
}

TEST(TextStream, CutAnywhere) {
  const std::string text = "Zwei Äpfel 中文 🦙, dann</s>mehr";
  for (const std::vector<std::string>& stops : {std::vector<std::string>{},
                                                {"</s>"},
                                                {"</s>", "mehr"},
                                                {"🦙"},
                                                {"文 🦙, ", "中文 🦙!"},
                                                {"xyz", "Zwei Äpfel 中文 🦙, dann</s>mehr!"}}) {
    const Outcome expected = expected_outcome(text, stops);
    for (size_t a = 0; a <= text.size(); a++) {
      for (size_t b = a; b <= text.size(); b++) {
        Result<TextStream> stream = stream_of(stops);
        ASSERT_TRUE(stream.ok());
        const Outcome found = run(&*stream, text, {a, b, text.size()}, nullptr);
        ASSERT_EQ(found.shown, expected.shown);
        ASSERT_EQ(found.stop, expected.stop);
      }
    }
  }
}

TEST(TextStream, AnEarlierBeginningWinsEvenIfItEndsLater) {
  Result<TextStream> stream = stream_of({"bc", "abcd", "ab"});
  ASSERT_TRUE(stream.ok());
  std::string out;
  EXPECT_TRUE(stream->feed("xabcd", &out));
  EXPECT_EQ(out, "x");
  EXPECT_EQ(stream->stop_index(), 2);  // the shortest of those that begin there

  stream = stream_of({"bc", "abcd"});
  out.clear();
  EXPECT_FALSE(stream->feed("xabc", &out));  // "abcd" may come
  EXPECT_EQ(out, "x");
  EXPECT_TRUE(stream->feed("e", &out));  // it does not
  EXPECT_EQ(out, "xa");
  EXPECT_EQ(stream->stop_index(), 0);
  EXPECT_TRUE(stream->feed("more", &out));
  EXPECT_TRUE(stream->finish(&out));
  EXPECT_EQ(out, "xa");

  stream->reset();
  out.clear();
  EXPECT_FALSE(stream->feed("xabc", &out));
  EXPECT_TRUE(stream->finish(&out));
  EXPECT_EQ(out, "xa");
  EXPECT_EQ(stream->stop_index(), 0);
}

TEST(TextStream, RefusesEmptyAndHugeStops) {
  EXPECT_EQ(stream_of({"a", ""}).status().code(), Code::invalid_argument);
  EXPECT_EQ(stream_of({std::string(600000, 'a'), std::string(600000, 'b')}).status().code(), Code::invalid_argument);
}

// A stop string of one repeated character, and a text that nearly completes it over and over.
TEST(TextStream, NearlyCompletedStopsCostLinearTime) {
  Result<TextStream> stream = stream_of({std::string(10000, 'a') + "b"});
  ASSERT_TRUE(stream.ok());
  std::string out;
  for (int i = 0; i < 1000000; i++) EXPECT_FALSE(stream->feed("a", &out));
  EXPECT_FALSE(stream->finish(&out));
  EXPECT_EQ(out.size(), 1000000u);
}

}  // namespace
}  // namespace orrery::text::stream_test

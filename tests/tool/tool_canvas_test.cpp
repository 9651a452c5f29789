// The canvas: what is drawn is read back out of the PNG file, pixel by pixel; letters; files written whole or
// not at all; coordinates that are no numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "samples/orrery/charts/chart.h"
#include "tests/support/temp_dir.h"
#include "tests/tool/picture.h"

namespace orrery::tool {
namespace {

using testing::Image;
using testing::read_png;
using testing::TempDir;

// ---- The canvas ----

TEST(Canvas, FillsCoverPixelsByTheirShare) {
  Canvas canvas(8, 4);
  canvas.fill({1, 1, 2, 2}, kBlack);
  canvas.fill({4.5, 1, 1.25, 1}, kBlack);
  canvas.fill({4, 2, 1, 1}, kBlack, .25);
  const Seen seen(canvas);
  EXPECT_EQ(seen.count(kBlack), 4u);
  EXPECT_EQ(seen.at(1, 1), kBlack);
  EXPECT_EQ(seen.at(2, 2), kBlack);
  EXPECT_EQ(seen.at(3, 1), kWhite);
  EXPECT_EQ(seen.at(4, 1), (Rgb{128, 128, 128}));  // a half: 127.5
  EXPECT_EQ(seen.at(5, 1), (Rgb{64, 64, 64}));     // three quarters: 63.75
  EXPECT_EQ(seen.at(4, 2), (Rgb{191, 191, 191}));
}

TEST(Canvas, AFrameStaysInside) {
  Canvas canvas(10, 10);
  canvas.frame({2, 3, 6, 5}, kBlack, 1);
  const Seen seen(canvas);
  EXPECT_EQ(seen.count(kBlack), 2u * 6 + 2 * 3);
  EXPECT_EQ(seen.count(kBlack, {2, 3, 6, 5}), 18u);
  EXPECT_EQ(seen.at(3, 4), kWhite);
}

TEST(Canvas, ALineOnPixelCentresIsExact) {
  Canvas canvas(20, 5);
  canvas.line({2.5, 2.5}, {17.5, 2.5}, kBlack, 1);
  const Seen seen(canvas);
  for (int x = 0; x < 20; ++x) {
    EXPECT_EQ(seen.at(x, 2), x >= 2 && x <= 17 ? kBlack : kWhite) << x;
    EXPECT_EQ(seen.at(x, 1), kWhite) << x;
    EXPECT_EQ(seen.at(x, 3), kWhite) << x;
  }
}

TEST(Canvas, AStrokeIsNoDarkerWhereItCrossesItself) {
  Canvas there(40, 40), twice(40, 40);
  there.polyline({{3, 4}, {36, 31}}, kBlack, 1.5);
  twice.polyline({{3, 4}, {36, 31}, {3, 4}, {36, 31}}, kBlack, 1.5);
  EXPECT_EQ(there.png(), twice.png());
}

TEST(Canvas, DashesHaveTheirLengths) {
  Canvas canvas(40, 3);
  canvas.line({0, 1.5}, {40, 1.5}, kBlack, 1, {6, 4});
  const Seen seen(canvas);
  for (int period = 0; period < 4; ++period) {
    for (int x = 1; x < 5; ++x) EXPECT_EQ(seen.at(period * 10 + x, 1), kBlack) << period << " " << x;
    EXPECT_EQ(seen.at(period * 10 + 7, 1), kWhite) << period;
    EXPECT_EQ(seen.at(period * 10 + 8, 1), kWhite) << period;
  }
}

TEST(Canvas, ADiscHasItsArea) {
  Canvas canvas(64, 64);
  canvas.disc({32, 32}, 20, kBlack);
  double area = 0;
  for (int y = 0; y < 64; ++y) {
    for (int x = 0; x < 64; ++x) area += (255 - canvas.pixel(x, y).r) / 255.0;
  }
  EXPECT_NEAR(area, std::acos(-1.0) * 400, 4);
}

TEST(Canvas, EveryMarkerCoversItsMiddleAndNotItsSurroundings) {
  for (Marker shape : {Marker::circle, Marker::square, Marker::triangle, Marker::diamond}) {
    Canvas canvas(40, 40);
    canvas.marker(shape, {20, 20}, 8, kBlack);
    const Seen seen(canvas);
    EXPECT_EQ(seen.at(20, 20), kBlack);
    EXPECT_EQ(seen.count(kBlack), seen.count(kBlack, {8, 8, 24, 24}));
    EXPECT_GT(seen.count(kBlack), 120u);
    EXPECT_LT(seen.count(kBlack), 256u);
  }
}

TEST(Canvas, ClipsAndForgetsIt) {
  Canvas canvas(20, 20);
  canvas.clip({5, 5, 10, 10});
  canvas.fill({0, 0, 20, 20}, kBlack);
  canvas.line({0, 0}, {20, 20}, kBlack, 3);
  EXPECT_EQ(Seen(canvas).count(kBlack), 100u);
  canvas.clip_nothing();
  canvas.fill({0, 0, 20, 20}, kBlack);
  EXPECT_EQ(Seen(canvas).count(kBlack), 400u);
}

TEST(Canvas, WhatIsNoNumberIsNotDrawnAndWhatIsFarIsCut) {
  Canvas canvas(30, 30);
  const std::string empty = canvas.png();
  for (double bad : {kMissing, kInf, -kInf}) {
    canvas.fill({bad, 0, 5, 5}, kBlack);
    canvas.fill({0, 0, 5, bad}, kBlack);
    canvas.line({bad, 0}, {5, 5}, kBlack);
    canvas.disc({5, bad}, 3, kBlack);
    canvas.marker(Marker::square, {bad, bad}, 3, kBlack);
    canvas.text({bad, 5}, "words", {});
  }
  canvas.fill({-1e300, -1e300, 1, 1}, kBlack);
  canvas.line({-1e300, -5}, {1e300, -5}, kBlack);
  canvas.disc({1e300, 1e300}, 3, kBlack);
  canvas.disc({5, 5}, kMissing, kBlack);
  canvas.text({1e300, 0}, "words", {});
  EXPECT_EQ(canvas.png(), empty);
  canvas.line({-1e300, 15.5}, {1e300, 15.5}, kBlack);
  EXPECT_EQ(Seen(canvas).count(kBlack), 30u);
}

TEST(Canvas, RefusesSidesThatAreNone) {
  for (int side : {0, -1, Canvas::kLargestSide + 1}) {
    EXPECT_NE(failure_of([&] { Canvas(side, 10); }).find(std::to_string(side)), std::string::npos);
    EXPECT_NE(failure_of([&] { Canvas(10, side); }).find(std::to_string(side)), std::string::npos);
  }
  Canvas smallest(1, 1, kBlack);
  EXPECT_EQ(Seen(smallest).at(0, 0), kBlack);
}

// ---- Letters ----

TEST(CanvasText, EveryCharacterIsDrawnAndNoTwoAlike) {
  std::set<std::string> pictures;
  for (char c = ' '; c < 0x7F; ++c) {
    Canvas canvas(24, 24);
    canvas.text({5, 12}, std::string(1, c), {});
    EXPECT_TRUE(pictures.insert(canvas.png()).second) << c;
  }
  EXPECT_EQ(pictures.size(), 95u);
}

TEST(CanvasText,
     StemsAreCrisp) {  // an I fills one column of nine pixels, and leaves almost nothing beside it
  Canvas canvas(20, 20);
  canvas.text({5, 10}, "I", {kBlack});
  const Seen seen(canvas);
  EXPECT_EQ(seen.count(kBlack), 9u);
  EXPECT_EQ(seen.count(kBlack, {6, 6, 1, 9}), 9u);
  EXPECT_GT(seen.at(5, 10).r, 230);
  EXPECT_GT(seen.at(7, 10).r, 230);
}

TEST(CanvasText, AlignsByItsWidth) {
  const double width = Canvas::text_width("HI HI");
  EXPECT_EQ(width, 8 + 3 + 4 + 8 + 3);
  EXPECT_EQ(Canvas::text_width("HI HI", 1.5), width * 1.5);
  const auto picture = [](Point at, Align align, bool upwards) {
    Canvas canvas(60, 60);
    canvas.text(at, "HI HI", {kBlack, 1, align, false, upwards});
    return canvas.png();
  };
  EXPECT_EQ(picture({10, 30}, Align::left, false), picture({10 + width / 2, 30}, Align::centre, false));
  EXPECT_EQ(picture({10, 30}, Align::left, false), picture({10 + width, 30}, Align::right, false));
  EXPECT_EQ(picture({30, 50}, Align::left, true), picture({30, 50 - width}, Align::right, true));
}

TEST(CanvasText, AQuarterTurnIsTheSamePicture) {
  Canvas level(60, 60), turned(60, 60);
  level.text({10, 20}, "Fig. 7", {kBlack});
  turned.text({20, 50}, "Fig. 7", {kBlack, 1, Align::left, false, true});
  size_t ink = 0;
  for (int y = 0; y < 60; ++y) {
    for (int x = 0; x < 60; ++x) {
      EXPECT_EQ(level.pixel(x, y), turned.pixel(y, 59 - x)) << x << " " << y;
      ink += level.pixel(x, y) == kBlack;
    }
  }
  EXPECT_GT(ink, 20u);
}

TEST(CanvasText, OtherCharactersAreOneBoxEachAndBrokenOnesAreTooByByte) {
  const double box = Canvas::text_width("\x01");
  EXPECT_EQ(Canvas::text_width("\xC3\xA9"), box);          // two bytes, one character
  EXPECT_EQ(Canvas::text_width("\xF0\x9F\x98\x80"), box);  // four
  EXPECT_EQ(Canvas::text_width("\xC3"), box);              // cut off
  EXPECT_EQ(Canvas::text_width("\xFF\xFE\x80"), 3 * box);  // never a character
  EXPECT_EQ(Canvas::text_width("\xE2\x82x"), 2 * box + Canvas::text_width("x"));
  Canvas a(20, 20), b(20, 20);
  a.text({4, 10}, "\xC3\xA9", {});
  b.text({4, 10}, "\n", {});
  EXPECT_EQ(a.png(), b.png());
}

TEST(CanvasText, FitsByWholeCharacters) {
  EXPECT_EQ(Canvas::fitted("IIIIIIII", 24), "IIIIIIII");   // 8 x 3
  EXPECT_EQ(Canvas::fitted("IIIIIIIII", 24), "IIIII...");  // 5 x 3, and three dots of 3
  const std::string accents = "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9";
  EXPECT_EQ(Canvas::fitted(accents, 26), "\xC3\xA9\xC3\xA9...");  // 2 x 8 + 9
  EXPECT_EQ(Canvas::fitted("word", 0), "...");
  const std::string huge(1 << 20, 'w');
  EXPECT_LE(Canvas::text_width(Canvas::fitted(huge, 300)), 300);
}

// ---- Files ----

TEST(CanvasFile, IsWrittenWhole) {
  const TempDir folder;
  Canvas canvas(33, 21);
  canvas.fill({3, 4, 5, 6}, {1, 2, 3});
  const std::string path = folder.file("picture.png");
  std::ofstream(path) << "what was there before";
  canvas.save_png(path);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(bytes, canvas.png());
  const Image image = read_png(bytes);
  EXPECT_EQ(image.width, 33);
  EXPECT_EQ(image.height, 21);
  EXPECT_EQ(image.channels, 3);
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.file(""))) {
    (void)entry;
    ++entries;
  }
  EXPECT_EQ(entries, 1u) << "something was left beside the picture";
}

TEST(CanvasFile, FailuresNameThePathAndLeaveNothing) {
  const TempDir folder;
  const Canvas canvas(4, 4);
  const std::string nowhere = folder.file("no/such/folder.png");
  EXPECT_EQ(failure_of([&] { canvas.save_png(nowhere); }), nowhere + ": cannot write: No such file or directory");
  const std::string is_folder = folder.file("folder");
  std::filesystem::create_directory(is_folder);
  EXPECT_EQ(failure_of([&] { canvas.save_png(is_folder); }), is_folder + ": cannot write: Is a directory");
  EXPECT_TRUE(std::filesystem::is_empty(is_folder));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.file("")), {}), 1);
}

TEST(CanvasFile, ADamagedPngIsSeenByTheReaderOfTheseTests) {
  std::string bytes = Canvas(4, 4).png();
  ASSERT_EQ(read_png(bytes).width, 4);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  EXPECT_EQ(read_png(bytes).width, 0);
  EXPECT_EQ(read_png(bytes.substr(0, 40)).width, 0);
}

}  // namespace
}  // namespace orrery::tool

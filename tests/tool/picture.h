// What tests of pictures share: the picture as whoever opens its file sees it, and what a Failure says.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string>

#include "samples/orrery/charts/canvas.h"
#include "samples/orrery/system/failure.h"
#include "tests/tool/png_reader.h"

namespace orrery::tool {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Rgb kWhite{0xFF, 0xFF, 0xFF}, kBlack{0, 0, 0};

inline void PrintTo(const Rgb& c, std::ostream* out) { *out << "rgb(" << int(c.r) << ", " << int(c.g) << ", " << int(c.b) << ")"; }

// A picture as whoever opens the file sees it.
class Seen {
 public:
  explicit Seen(const Canvas& canvas) : image_(testing::read_png(canvas.png())) {
    EXPECT_EQ(image_.width, canvas.width());
    EXPECT_EQ(image_.height, canvas.height());
  }
  Rgb at(double x, double y) const {
    const auto column = static_cast<size_t>(x), row = static_cast<size_t>(y);
    EXPECT_LT(column, static_cast<size_t>(image_.width));
    EXPECT_LT(row, static_cast<size_t>(image_.height));
    const uint8_t* p = &image_.pixels.at((row * static_cast<size_t>(image_.width) + column) * 3);
    return {p[0], p[1], p[2]};
  }
  Rgb at(Point p) const { return at(p.x, p.y); }
  // A cell's corner, where neither number nor link is drawn.
  Rgb corner(Rect cell) const { return at(cell.x + 1, cell.y + 1); }
  size_t count(Rgb color, Rect within) const {
    size_t n = 0;
    for (double y = within.y; y < within.bottom(); ++y) {
      for (double x = within.x; x < within.right(); ++x) n += at(x, y) == color;
    }
    return n;
  }
  size_t count(Rgb color) const { return count(color, {0, 0, double(image_.width), double(image_.height)}); }

 private:
  testing::Image image_;
};

inline std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), kExitFailure);
    return failure.what();
  }
  return "";
}

}  // namespace orrery::tool

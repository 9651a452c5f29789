// A picture in memory: an RGB raster for charts, and its PNG file. Strokes and letters are anti-aliased by their
// exact distance to each pixel's centre, so nothing is drawn larger and scaled down. Coordinates are pixels, x to the
// right and y down; (0, 0) is the corner of the first pixel. Shapes outside the picture, and coordinates that are no
// numbers, are not drawn.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::tool {

struct Rgb {
  uint8_t r, g, b;
  bool operator==(const Rgb& o) const { return r == o.r && g == o.g && b == o.b; }
  bool operator!=(const Rgb& o) const { return !(*this == o); }
};

struct Point {
  double x, y;
};

struct Rect {
  double x, y, w, h;
  double right() const { return x + w; }
  double bottom() const { return y + h; }
};

enum class Align { left, centre, right };
enum class Marker { circle, square, triangle, diamond };

// On and off, in pixels along the line; off 0 is a solid line.
struct Dash {
  double on = 0, off = 0;
};

struct TextStyle {
  Rgb color{0x33, 0x33, 0x33};
  double size = 1;  // 1: capitals 9 pixels high
  Align align = Align::left;
  bool bold = false;
  bool upwards = false;  // a quarter turn: reads from bottom to top; `align` works in that direction
};

class Canvas {
 public:
  static constexpr int kLargestSide = 16384;  // pixels
  static constexpr double kLineHeight = 18;   // from one line of text of size 1 to the next

  // Throws Failure unless both sides are 1 to kLargestSide.
  Canvas(int width, int height, Rgb background = {0xFF, 0xFF, 0xFF});

  int width() const { return width_; }
  int height() const { return height_; }
  Rgb pixel(int x, int y) const;  // the pixel must be inside

  // Limits the following drawing to this rectangle. At first, the rectangle is the whole picture.
  void clip(Rect inside);
  void clip_nothing();

  void fill(Rect area, Rgb color, double alpha = 1);
  void frame(Rect area, Rgb color, double thickness = 1);  // inside the area
  void line(Point from, Point to, Rgb color, double thickness = 1, Dash dash = {});
  // One stroke: a stroke that crosses itself is not darker there.
  void polyline(const std::vector<Point>& points, Rgb color, double thickness = 1, Dash dash = {});
  void disc(Point centre, double radius, Rgb color);
  void marker(Marker shape, Point centre, double radius, Rgb color);

  // UTF-8 text. A character that the font lacks, or a malformed byte, is drawn as a box. The anchor is the left end,
  // the middle or the right end of the line, at half the height of its capitals.
  void text(Point anchor, std::string_view words, const TextStyle& style);
  static double text_width(std::string_view words, double size = 1);
  // The words, cut to fit the width; "..." marks a cut.
  static std::string fitted(std::string_view words, double width, double size = 1);

  // The bytes of the picture's PNG file.
  std::string png() const;
  // Writes the PNG file whole or not at all: to a temporary first, then renamed. Throws Failure with path and reason.
  void save_png(const std::string& path) const;

 private:
  struct Span {
    int first, last;  // `last` is one past the end
  };
  Span columns(double from, double to) const;  // the clipped pixels whose centres may be in the range
  Span rows(double from, double to) const;
  void blend(int x, int y, Rgb color, double alpha);
  // A stroke is collected in mask_ as coverage, then blended once.
  void stroke(Point from, Point to, double thickness);
  void stroke_dashed(const std::vector<Point>& points, double thickness, Dash dash);
  void blend_mask(Rgb color);
  void convex(const std::vector<Point>& corners, Rgb color);

  int width_, height_;
  Span clip_x_, clip_y_;
  std::vector<uint8_t> pixels_;  // (height, width, 3)
  std::vector<float> mask_;      // (height, width), all 0 between strokes
  Span mask_x_{0, 0}, mask_y_{0, 0};
};

}  // namespace orrery::tool

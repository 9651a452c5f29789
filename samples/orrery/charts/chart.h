// Charts: plain data in, a picture out. Charts know nothing of models or of the ABI; `profile` and `eval` fill the
// structs below. A value that is no number is missing: it breaks a line, and its cell is hatched. Data with no
// points, with one point, or with many more points than pixels still gives a picture. Text is ASCII (see canvas.h);
// text that is too long for its place ends in "...".
//
// Each draw function throws Failure, with the chart's name, if the sizes of its data disagree. It returns the place
// of the drawing in pixels, so the picture can be annotated and tested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "charts/canvas.h"

namespace orrery::tool {

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// The format of numbers: 0.25, 25%, or 2K for 2,048.
enum class Numbers { plain, percent, tokens };

// ---- Lines ----

struct Axis {
  std::string label;
  Numbers numbers = Numbers::plain;
  bool log2 = false;  // values that are not positive are then missing
  // If missing, taken from the data and widened to round numbers.
  double min = kMissing, max = kMissing;
};

struct Series {
  std::string name;
  std::vector<double> x, y;  // of equal length; the line joins the points in this order
  bool line = true;          // false: markers alone
  bool dashed = false;
};

struct ReferenceLine {  // a horizontal, dashed, grey line, listed in the legend
  std::string name;
  double y = 0;
};

struct LineChart {
  std::string title, subtitle;
  Axis x, y;
  std::vector<Series> series;
  std::vector<ReferenceLine> references;
  // The series are steps of one quantity, such as layers. Their colours follow the ramp, and the legend names only
  // some of many series.
  bool ordered = false;
  int width = 960, height = 600;
};

struct LinePicture {
  Canvas canvas;
  Rect plot;                          // the axes' rectangle
  double x_min, x_max, y_min, y_max;  // the values at its edges
  bool x_log2, y_log2;
  Point at(double x, double y) const;  // the pixel of a value
};

LinePicture draw(const LineChart& chart);

// The colour of the i-th of n ordered series: along the ramp, without its end, which is too bright for lines.
Rgb ordered_color(size_t i, size_t n);
// The colour of the i-th of unordered series. Colour-blind readers can tell the first seven apart, and seven darker ones by
// their lightness; from the fifteenth on, series repeat the colours.
Rgb series_color(size_t i);

// ---- Heat maps ----

struct Grid {
  size_t rows = 0, columns = 0;
  std::vector<double> values;  // (rows, columns), row 0 at the top
};

struct ColorScale {
  std::string label;
  Numbers numbers = Numbers::plain;
  double min = kMissing, max = kMissing;  // if missing, taken from the data
};

struct HeatMap {
  std::string title, subtitle;
  std::string row_label, column_label;
  std::vector<std::string> row_names, column_names;  // empty: 0, 1, 2 ...
  Grid grid;
  ColorScale scale;
  bool square = false;  // square cells, for matrices
};

// The cells of a grid. If there are more cells than pixels, several cells share a pixel, which shows their mean.
struct CellArea {
  Rect plot;
  size_t rows, columns;
  Rect cell(size_t row, size_t column) const;
};

struct HeatPicture {
  Canvas canvas;
  CellArea cells;
  double min, max;  // the values at the ends of the colour ramp
};

HeatPicture draw(const HeatMap& map);

// Many small heat maps on one scale, such as a matrix per layer.
struct HeatGrid {
  std::string title, subtitle;
  std::vector<std::string> names;  // one per panel
  std::vector<Grid> panels;
  ColorScale scale;
};

struct HeatGridPicture {
  Canvas canvas;
  std::vector<CellArea> panels;  // the panels that have a place; of thousands, the first ones
  double min, max;
};

HeatGridPicture draw(const HeatGrid& grid);

// From dark blue (0) through green to yellow (1). Lightness rises evenly, so the ramp also works in grey.
Rgb ramp_color(double share);

// ---- Role maps ----

enum class HeadRole : uint8_t { anchor, volatile_head, pivot, satellite };
constexpr size_t kNoPivot = SIZE_MAX;

struct RoleMap {
  std::string title, subtitle;
  size_t n_layers = 0, n_kv_heads = 0;
  std::vector<HeadRole> roles;   // (n_layers, n_kv_heads)
  std::vector<size_t> pivot_of;  // (n_layers, n_kv_heads): the pivot head that a satellite follows in the same layer, else kNoPivot;
                                 // or empty
};

struct RolePicture {
  Canvas canvas;
  CellArea cells;  // rows: KV heads; columns: layers
};

RolePicture draw(const RoleMap& map);

Rgb role_color(HeadRole role);

}  // namespace orrery::tool

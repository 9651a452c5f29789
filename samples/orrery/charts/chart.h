// Charts: plain data in, a picture out. They know nothing of models or of the ABI; `profile` and `eval` fill
// the structs below. A value that is no number is missing: a line is broken there, a cell is hatched. Data of
// no points, of one, or of many more than there are pixels make a picture too. Text is ASCII (see canvas.h),
// and what is too long for its place ends in "...".
//
// Each draw function throws Failure, naming the chart, where the sizes of its data disagree, and says where
// it drew (in pixels), so that the picture can be annotated and checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "charts/canvas.h"

namespace orrery::tool {

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// How numbers are spelled: 0.25, 25%, or 2,048 as 2K.
enum class Numbers { plain, percent, tokens };

// ---- Lines ----

struct Axis {
  std::string label;
  Numbers numbers = Numbers::plain;
  bool log2 = false;  // values that are not positive are missing then
  // Missing: from the data, widened to round numbers.
  double min = kMissing, max = kMissing;
};

struct Series {
  std::string name;
  std::vector<double> x, y;  // of the same length; points in the order in which they are joined
  bool line = true;          // false: markers alone
  bool dashed = false;
};

struct ReferenceLine {  // horizontal, dashed and grey, in the legend
  std::string name;
  double y = 0;
};

struct LineChart {
  std::string title, subtitle;
  Axis x, y;
  std::vector<Series> series;
  std::vector<ReferenceLine> references;
  // The series are steps of one thing, layers say: their colours run along the ramp, and where there are many
  // the legend names some of them.
  bool ordered = false;
  int width = 960, height = 600;
};

struct LinePicture {
  Canvas canvas;
  Rect plot;                          // the axes' rectangle
  double x_min, x_max, y_min, y_max;  // what its edges stand for
  bool x_log2, y_log2;
  Point at(double x, double y) const;  // where that value lies
};

LinePicture draw(const LineChart& chart);

// The colour of the i-th of n ordered series: along the ramp, without its end, which is too bright for lines.
Rgb ordered_color(size_t i, size_t n);
// The colour of the i-th series of others. The first seven can be told apart by the colour-blind too; then
// they repeat.
Rgb series_color(size_t i);

// ---- Heat maps ----

struct Grid {
  size_t rows = 0, columns = 0;
  std::vector<double> values;  // (rows, columns), row 0 at the top
};

struct ColorScale {
  std::string label;
  Numbers numbers = Numbers::plain;
  double min = kMissing, max = kMissing;  // missing: from the data
};

struct HeatMap {
  std::string title, subtitle;
  std::string row_label, column_label;
  std::vector<std::string> row_names, column_names;  // empty: 0, 1, 2 ...
  Grid grid;
  ColorScale scale;
  bool square = false;  // cells as wide as high, for matrices
};

// Where a grid's cells are. With more of them than pixels several share one, which shows their mean.
struct CellArea {
  Rect plot;
  size_t rows, columns;
  Rect cell(size_t row, size_t column) const;
};

struct HeatPicture {
  Canvas canvas;
  CellArea cells;
  double min, max;  // what the ends of the colour ramp stand for
};

HeatPicture draw(const HeatMap& map);

// Many small heat maps under one scale: a matrix per layer, say.
struct HeatGrid {
  std::string title, subtitle;
  std::vector<std::string> names;  // one per panel
  std::vector<Grid> panels;
  ColorScale scale;
};

struct HeatGridPicture {
  Canvas canvas;
  std::vector<CellArea> panels;  // those that have a place: with thousands, the first ones
  double min, max;
};

HeatGridPicture draw(const HeatGrid& grid);

// From dark blue (0) over green to yellow (1); lightness rises evenly, so it reads in grey too.
Rgb ramp_color(double share);

// ---- Role maps ----

enum class HeadRole : uint8_t { anchor, volatile_head, pivot, satellite };
constexpr size_t kNoPivot = SIZE_MAX;

struct RoleMap {
  std::string title, subtitle;
  size_t n_layers = 0, n_kv_heads = 0;
  std::vector<HeadRole> roles;   // (n_layers, n_kv_heads)
  std::vector<size_t> pivot_of;  // (n_layers, n_kv_heads): the head in the same layer that a satellite
                                 // follows, else kNoPivot; or empty
};

struct RolePicture {
  Canvas canvas;
  CellArea cells;  // rows: KV heads; columns: layers
};

RolePicture draw(const RoleMap& map);

Rgb role_color(HeadRole role);

}  // namespace orrery::tool

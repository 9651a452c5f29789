// Heat maps and grids of heat maps (chart.h): choose the size of the cells, then draw names, cells and the colour
// bar.
#include <algorithm>
#include <cmath>

#include "charts/chart.h"
#include "charts/chart_cells.h"
#include "charts/chart_parts.h"
#include "system/failure.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

constexpr double kSmallestWidth = 420;  // room for a title
constexpr double kPanelGap = 22, kPanelName = 20;

bool holds_nothing(const Grid& grid) { return grid.rows == 0 || grid.columns == 0; }

void check(const std::string& title, const Grid& grid) {
  const bool fits =
      holds_nothing(grid) ? grid.values.empty() : grid.values.size() / grid.columns == grid.rows && grid.values.size() % grid.columns == 0;
  if (!fits) {
    throw Failure(kExitFailure,
                  format("chart '%s': %zu x %zu cells, but %zu values", title.c_str(), grid.rows, grid.columns, grid.values.size()));
  }
}

void say_no_data(Canvas* canvas, Rect area) {
  canvas->fill(area, kNoValue);
  canvas->text({area.x + area.w / 2, area.y + area.h / 2}, "no data", {kFaint, 1.5, Align::centre, false, false});
}

int pixels(double size) { return static_cast<int>(std::ceil(std::min(size, double(Canvas::kLargestSide)))); }

}  // namespace

HeatPicture draw(const HeatMap& map) {
  check(map.title, map.grid);
  const Grid& grid = map.grid;
  const bool nothing = holds_nothing(grid);
  const size_t rows = nothing ? 0 : grid.rows, columns = nothing ? 0 : grid.columns;
  double w = cell_side(columns, 760, 84), h = cell_side(rows, 560, 44);
  if (map.square) w = h = std::min({cell_side(columns, 620, 44), cell_side(rows, 620, 44)});
  const double plot_w = nothing ? 480 : std::max(1.0, std::round(w * double(columns)));
  const double plot_h = nothing ? 240 : std::max(1.0, std::round(h * double(rows)));

  const double left = std::round(kEdge + (map.row_label.empty() ? 0 : 24) + widest_name(map.row_names, rows, kWidestName) + 7);
  const double top = std::round(title_height(map.title, map.subtitle) + 4);
  const double words = std::min(std::max(Canvas::text_width(map.title, 1.5), Canvas::text_width(map.subtitle)), 900.0);
  const double width = std::max({kSmallestWidth, left + plot_w + kEdge + kColorBarRoom, words + 2 * kEdge});
  const double bar = std::max(plot_h, 120.0);
  const double height = std::max(top + plot_h + 26 + (map.column_label.empty() ? 0 : 24), top + bar) + kEdge;

  const Range range = range_of({&grid.values}, map.scale.min, map.scale.max);
  HeatPicture picture{Canvas(pixels(width), pixels(height), kPaper), {{left, top, plot_w, plot_h}, rows, columns}, range.min, range.max};
  Canvas& c = picture.canvas;
  draw_titles(&c, map.title, map.subtitle);
  if (nothing) {
    say_no_data(&c, picture.cells.plot);
    return picture;
  }
  draw_heat_cells(&c, picture.cells, grid, map.scale, range.min, range.max, true);
  draw_cell_names(&c, picture.cells, map.row_names, map.column_names, map.row_label, map.column_label);
  draw_color_bar(&c, left + plot_w + 18, top, bar, map.scale, range.min, range.max);
  return picture;
}

HeatGridPicture draw(const HeatGrid& grid) {
  std::vector<const std::vector<double>*> data;
  size_t longest = 1;  // the longest side of any panel
  for (const Grid& panel : grid.panels) {
    check(grid.title, panel);
    data.push_back(&panel.values);
    if (!holds_nothing(panel)) longest = std::max({longest, panel.rows, panel.columns});
  }
  const Range range = range_of(data, grid.scale.min, grid.scale.max);
  const size_t n = grid.panels.size();

  // A layout that is about as wide as high. Then the panels' side, in whole pixels per cell if the room allows.
  const size_t across = std::clamp<size_t>(static_cast<size_t>(std::ceil(std::sqrt(double(n) * 1.6))), 1, 12);
  const double room = std::clamp(1080 / double(across) - kPanelGap, 64.0, 240.0);
  const double cell = cell_side(longest, room, 40);
  const double side = std::max(24.0, cell * double(longest));
  const double top = title_height(grid.title, grid.subtitle) + 4;
  const double step_x = std::max(side, 64.0) + kPanelGap, step_y = side + kPanelName + 18;
  const size_t most_down = static_cast<size_t>((8000 - top) / step_y);
  const size_t down = std::clamp<size_t>((n + across - 1) / across, 1, most_down);
  const size_t drawn = std::min(n, across * down);
  const double bar_height = std::clamp(double(down) * step_y - 18, 120.0, 480.0);
  const double bar_x = kEdge + double(across) * step_x;
  const double words = std::min(std::max(Canvas::text_width(grid.title, 1.5), Canvas::text_width(grid.subtitle)), 900.0);
  const double width = std::max({kSmallestWidth, bar_x + kColorBarRoom + kEdge, words + 2 * kEdge});
  const double height = std::max(top + double(down) * step_y, top + bar_height) + kEdge;

  HeatGridPicture picture{Canvas(pixels(width), pixels(height), kPaper), {}, range.min, range.max};
  Canvas& c = picture.canvas;
  draw_titles(&c, grid.title, grid.subtitle);
  if (n == 0) {
    say_no_data(&c, {kEdge, top, width - 2 * kEdge, bar_height});
    return picture;
  }
  for (size_t i = 0; i < drawn; ++i) {
    const Grid& panel = grid.panels[i];
    const bool nothing = holds_nothing(panel);
    const double x = kEdge + double(i % across) * step_x, y = std::round(top + double(i / across) * step_y);
    c.text({x, y + 6}, Canvas::fitted(cell_name(grid.names, i), step_x - 6), {kInk, 1, Align::left, false, false});
    const Rect plot{std::round(x), y + kPanelName, nothing ? side : std::max(1.0, std::round(cell * double(panel.columns))),
                    nothing ? side : std::max(1.0, std::round(cell * double(panel.rows)))};
    picture.panels.push_back({plot, nothing ? 0 : panel.rows, nothing ? 0 : panel.columns});
    if (nothing) {
      c.fill(plot, kNoValue);
    } else {
      draw_heat_cells(&c, picture.panels.back(), panel, grid.scale, range.min, range.max, cell >= 30);
    }
  }
  if (drawn < n) {
    c.text({kEdge, height - kEdge / 2 - 4}, "and " + std::to_string(n - drawn) + " more", {kFaint, 1, Align::left, false, false});
  }
  draw_color_bar(&c, bar_x + 4, top + kPanelName, bar_height - kPanelName, grid.scale, range.min, range.max);
  return picture;
}

}  // namespace orrery::tool

// See chart_cells.h.
#include "charts/chart_cells.h"

#include <algorithm>
#include <cmath>

#include "charts/chart_parts.h"

namespace orrery::tool {
namespace {

constexpr double kGap = 1;  // pixels between cells of at least kGapFrom width and height
constexpr double kGapFrom = 8;
constexpr double kHatchStep = 6;

void hatch(Canvas* canvas, Rect area) {
  canvas->fill(area, kNoValue);
  canvas->clip(area);
  for (double x = area.x - area.h; x < area.right(); x += kHatchStep) {
    canvas->line({x, area.bottom()}, {x + area.h, area.y}, kHatch, 1);
  }
  canvas->clip_nothing();
}

// For more cells than pixels: each pixel shows the mean of the cells that it covers.
void draw_binned(Canvas* canvas, const CellArea& cells, const Grid& grid, Range range) {
  const auto across = static_cast<size_t>(std::max(1.0, std::min(cells.plot.w, double(grid.columns))));
  const auto down = static_cast<size_t>(std::max(1.0, std::min(cells.plot.h, double(grid.rows))));
  const double w = cells.plot.w / double(across), h = cells.plot.h / double(down);
  for (size_t v = 0; v < down; ++v) {
    const size_t r0 = v * grid.rows / down, r1 = (v + 1) * grid.rows / down;
    for (size_t u = 0; u < across; ++u) {
      const size_t c0 = u * grid.columns / across, c1 = (u + 1) * grid.columns / across;
      double sum = 0;
      size_t n = 0;
      for (size_t r = r0; r < r1; ++r) {
        for (size_t c = c0; c < c1; ++c) {
          const double value = grid.values[r * grid.columns + c];
          if (present(value)) sum += share_of(value, range), ++n;
        }
      }
      canvas->fill({cells.plot.x + double(u) * w, cells.plot.y + double(v) * h, w, h}, n ? ramp_color(sum / double(n)) : kNoValue);
    }
  }
}

}  // namespace

Rect CellArea::cell(size_t row, size_t column) const {
  const double w = plot.w / double(columns), h = plot.h / double(rows);
  return {plot.x + double(column) * w, plot.y + double(row) * h, w, h};
}

double cell_side(size_t n, double room, double largest) {
  if (n == 0) return largest;
  const double side = std::min(room / double(n), largest);
  return side >= 1 ? std::floor(side) : side;
}

std::string cell_name(const std::vector<std::string>& names, size_t i) {
  return i < names.size() ? names[i] : names.empty() ? std::to_string(i) : std::string();
}

double widest_name(const std::vector<std::string>& names, size_t n, double largest) {
  if (names.empty()) return n ? Canvas::text_width(std::to_string(n - 1)) : 0;
  double widest = 0;
  for (size_t i = 0; i < std::min(n, names.size()); ++i) {
    widest = std::max(widest, std::min(Canvas::text_width(names[i]), largest));
  }
  return widest;
}

void draw_cell_names(Canvas* canvas, const CellArea& cells, const std::vector<std::string>& row_names,
                     const std::vector<std::string>& column_names, const std::string& row_label, const std::string& column_label) {
  const Rect plot = cells.plot;
  // Strides of 1, 2, 5, 10 ..., which are easy to count.
  const auto stride_for = [](double needed) {
    for (size_t power = 1;; power *= 10) {
      for (const size_t factor : {size_t{1}, size_t{2}, size_t{5}}) {
        if (double(factor * power) >= needed || power > 100000000) return factor * power;
      }
    }
  };
  const TextStyle right{kFaint, 1, Align::right, false, false}, centre{kFaint, 1, Align::centre, false, false};
  const double row_names_width = widest_name(row_names, cells.rows, kWidestName);
  if (cells.rows > 0) {
    const double h = plot.h / double(cells.rows);
    const size_t stride = stride_for(15 / h);
    for (size_t r = 0; r < cells.rows; r += stride) {
      canvas->text({plot.x - 7, plot.y + (double(r) + .5) * h}, Canvas::fitted(cell_name(row_names, r), kWidestName), right);
    }
  }
  if (cells.columns > 0) {
    const double w = plot.w / double(cells.columns);
    const double widest = widest_name(column_names, cells.columns, kWidestName);
    const size_t stride = stride_for((widest + 6) / w);
    for (size_t c = 0; c < cells.columns; c += stride) {
      canvas->text({plot.x + (double(c) + .5) * w, plot.bottom() + 15}, Canvas::fitted(cell_name(column_names, c), kWidestName), centre);
    }
  }
  const double below = canvas->width() - plot.x - kEdge;
  const std::string words = Canvas::fitted(column_label, below);
  const double middle = std::max(plot.x + plot.w / 2, plot.x + Canvas::text_width(words) / 2);
  canvas->text({middle, plot.bottom() + 38}, words, {kInk, 1, Align::centre, false, false});
  canvas->text({plot.x - 7 - row_names_width - 16, plot.y + plot.h / 2}, Canvas::fitted(row_label, std::max(plot.h, 120.0)),
               {kInk, 1, Align::centre, false, true});
}

void draw_heat_cells(Canvas* canvas, const CellArea& cells, const Grid& grid, const ColorScale& scale, double min, double max,
                     bool with_numbers) {
  if (cells.rows == 0 || cells.columns == 0) return;
  const Range range{min, max};
  const double w = cells.plot.w / double(cells.columns), h = cells.plot.h / double(cells.rows);
  if (w < 1 || h < 1) {
    draw_binned(canvas, cells, grid, range);
    return;
  }
  const double gap = w >= kGapFrom && h >= kGapFrom ? kGap : 0;
  double widest = 0;  // width of the widest number
  for (double value : grid.values) {
    if (!with_numbers || w < 14 || h < 14) break;
    widest = std::max(widest, Canvas::text_width(spelled_short(value, scale.numbers)));
  }
  const bool numbers = widest > 0 && widest + 4 <= w && h >= 14;
  for (size_t r = 0; r < cells.rows; ++r) {
    for (size_t c = 0; c < cells.columns; ++c) {
      Rect area = cells.cell(r, c);
      area.w -= gap;
      area.h -= gap;
      const double value = grid.values[r * grid.columns + c];
      if (!present(value)) {
        if (gap > 0) {
          hatch(canvas, area);
        } else {
          canvas->fill(area, kNoValue);
        }
        continue;
      }
      const Rgb color = ramp_color(share_of(value, range));
      canvas->fill(area, color);
      if (numbers) {
        canvas->text({area.x + area.w / 2, area.y + area.h / 2}, spelled_short(value, scale.numbers),
                     {is_dark(color) ? kPaper : kInk, 1, Align::centre, false, false});
      }
    }
  }
}

void draw_color_bar(Canvas* canvas, double x, double top, double height, const ColorScale& scale, double min, double max) {
  constexpr double kWidth = 14;
  const Range range{min, max};
  for (double y = 0; y < height; ++y) {
    canvas->fill({x, top + y, kWidth, std::min(1.0, height - y)}, ramp_color(1 - (y + .5) / height));
  }
  const Ticks ticks = linear_ticks(range, static_cast<size_t>(std::clamp(height / 40, 2.0, 11.0)), scale.numbers);
  double widest = 0;
  for (size_t i = 0; i < ticks.values.size(); ++i) {
    const double y = top + height * (1 - share_of(ticks.values[i], range));
    canvas->fill({x + kWidth, std::floor(std::min(y, top + height - 1)), 4, 1}, kAxisLine);
    canvas->text({x + kWidth + 7, y}, ticks.labels[i], {kFaint, 1, Align::left, false, false});
    widest = std::max(widest, Canvas::text_width(ticks.labels[i]));
  }
  canvas->text({x + kWidth + 7 + widest + 14, top + height / 2}, Canvas::fitted(scale.label, std::max(height, 120.0)),
               {kInk, 1, Align::centre, false, true});
}

}  // namespace orrery::tool

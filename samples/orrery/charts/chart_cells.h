// Grids of cells, as heat maps and role maps draw them: finding their place and naming their rows and
// columns.
#pragma once

#include <string>
#include <vector>

#include "charts/chart.h"

namespace orrery::tool {

// The side of a cell, in whole pixels, such that n of them take about `room`; less than one pixel where there
// are more cells than pixels.
double cell_side(size_t n, double room, double largest);

// The name of row or column i: given, or its number.
std::string cell_name(const std::vector<std::string>& names, size_t i);
double widest_name(const std::vector<std::string>& names, size_t n, double largest);

constexpr double kWidestName = 200;  // longer ones end in "..."

// Names beside the rows and below the columns, thinned out until none touches another, and a label for each.
void draw_cell_names(Canvas* canvas, const CellArea& cells, const std::vector<std::string>& row_names,
                     const std::vector<std::string>& column_names, const std::string& row_label,
                     const std::string& column_label);

// What the cells show, with white between them where they are large enough; and, where the numbers fit,
// those.
void draw_heat_cells(Canvas* canvas, const CellArea& cells, const Grid& grid, const ColorScale& scale,
                     double min, double max, bool with_numbers);

// The scale beside a heat map, at the x given.
void draw_color_bar(Canvas* canvas, double x, double top, double height, const ColorScale& scale, double min,
                    double max);
constexpr double kColorBarRoom = 104;  // its ticks and label included

}  // namespace orrery::tool

// Grids of cells for heat maps and role maps: the places of the cells, and the names of rows and columns.
#pragma once

#include <string>
#include <vector>

#include "charts/chart.h"

namespace orrery::tool {

// The side of a cell, in whole pixels, at which n cells take about `room`. Less than one pixel if there are more
// cells than pixels.
double cell_side(size_t n, double room, double largest);

// The name of row or column i: the given name, or the number.
std::string cell_name(const std::vector<std::string>& names, size_t i);
double widest_name(const std::vector<std::string>& names, size_t n, double largest);

constexpr double kWidestName = 200;  // longer ones end in "..."

// Draws the names beside the rows and below the columns, leaving names out until none touches another, and one label
// for each axis.
void draw_cell_names(Canvas* canvas, const CellArea& cells, const std::vector<std::string>& row_names,
                     const std::vector<std::string>& column_names, const std::string& row_label, const std::string& column_label);

// Draws the cells, with white gaps between cells that are large enough, and the numbers if they fit.
void draw_heat_cells(Canvas* canvas, const CellArea& cells, const Grid& grid, const ColorScale& scale, double min, double max,
                     bool with_numbers);

// Draws the colour scale beside a heat map, at `x`.
void draw_color_bar(Canvas* canvas, double x, double top, double height, const ColorScale& scale, double min, double max);
constexpr double kColorBarRoom = 104;  // including ticks and label

}  // namespace orrery::tool

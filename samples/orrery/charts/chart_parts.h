// Shared parts of charts: ticks at round numbers, formats of numbers, the colour ramp, titles.
#pragma once

#include <string>
#include <vector>

#include "charts/canvas.h"
#include "charts/chart.h"

namespace orrery::tool {

constexpr Rgb kInk{0x22, 0x26, 0x2B}, kFaint{0x6B, 0x72, 0x7A}, kGridLine{0xE6, 0xE8, 0xEB}, kAxisLine{0x8A, 0x90, 0x98},
    kHatch{0xC4, 0xC8, 0xCD}, kNoValue{0xEE, 0xEF, 0xF1}, kPaper{0xFF, 0xFF, 0xFF};
constexpr double kEdge = 22;        // pixels around a picture
constexpr double kLargest = 1e100;  // a larger value is missing, because differences must not overflow

bool present(double value);  // whether the value is a number up to kLargest

struct Range {
  double min, max;
};

// A range over present values: the requested bounds if present, else the data's, else 0 to 1. Never empty, and never
// too narrow for a division.
Range range_of(const std::vector<const std::vector<double>*>& data, double min, double max);

struct Ticks {
  std::vector<double> values;  // ascending, inside the range
  std::vector<std::string> labels;
};

// Ticks at multiples of 1, 2 or 5 times a power of ten, as close as possible with at most `most` (2 or more) ticks.
Ticks linear_ticks(Range range, size_t most, Numbers numbers);
// The range, widened to the multiples that linear_ticks would use.
Range rounded_out(Range range, size_t most);
// Ticks at powers of two, or at every second (third ...) power if there are more than `most`. The range is positive.
Ticks log2_ticks(Range range, size_t most, Numbers numbers);
// The range, widened to powers of two. The result has at least two different powers.
Range rounded_out_log2(Range range);

// The value with `decimals` decimals; "2K" for tokens if that is exact.
std::string spelled(double value, Numbers numbers, int decimals);
// The value in few characters, for a cell.
std::string spelled_short(double value, Numbers numbers);

double share_of(double value, Range range);  // 0 at min, 1 at max
bool is_dark(Rgb color);                     // whether white text is readable on it

// Draws title and subtitle at the top left. Returns the y below them.
double draw_titles(Canvas* canvas, const std::string& title, const std::string& subtitle);
double title_height(const std::string& title, const std::string& subtitle);

}  // namespace orrery::tool

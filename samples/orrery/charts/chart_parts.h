// What charts share: ticks at round numbers, spelling numbers, the ramp of colours, titles.
#pragma once

#include <string>
#include <vector>

#include "charts/canvas.h"
#include "charts/chart.h"

namespace orrery::tool {

constexpr Rgb kInk{0x22, 0x26, 0x2B}, kFaint{0x6B, 0x72, 0x7A}, kGridLine{0xE6, 0xE8, 0xEB},
    kAxisLine{0x8A, 0x90, 0x98}, kHatch{0xC4, 0xC8, 0xCD}, kNoValue{0xEE, 0xEF, 0xF1},
    kPaper{0xFF, 0xFF, 0xFF};
constexpr double kEdge = 22;        // around a picture
constexpr double kLargest = 1e100;  // a value beyond it is missing: differences must not overflow

bool present(double value);  // a number, and not beyond kLargest

struct Range {
  double min, max;
};

// A range over present values: what was asked for where that is present, else the data's, else 0 to 1; never
// empty and never too narrow to divide.
Range range_of(const std::vector<const std::vector<double>*>& data, double min, double max);

struct Ticks {
  std::vector<double> values;  // ascending, inside the range
  std::vector<std::string> labels;
};

// At multiples of 1, 2 or 5 times a power of ten, the closest such that there are at most `most` (2 or more).
Ticks linear_ticks(Range range, size_t most, Numbers numbers);
// The range widened to the multiples that linear_ticks would use.
Range rounded_out(Range range, size_t most);
// At powers of two, every second (third ...) where there are more than `most`. The range is positive.
Ticks log2_ticks(Range range, size_t most, Numbers numbers);
// To the powers of two around it, two different ones at least.
Range rounded_out_log2(Range range);

// With so many decimals; "2K" for tokens where that is exact.
std::string spelled(double value, Numbers numbers, int decimals);
// In few characters, for a cell.
std::string spelled_short(double value, Numbers numbers);

double share_of(double value, Range range);  // 0 at min, 1 at max
bool is_dark(Rgb color);                     // whether white words can be read on it

// Title and subtitle at the top left; gives the y below them.
double draw_titles(Canvas* canvas, const std::string& title, const std::string& subtitle);
double title_height(const std::string& title, const std::string& subtitle);

}  // namespace orrery::tool

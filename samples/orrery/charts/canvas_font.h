// The letters of pictures: strokes on a small grid, original to this project, that can be drawn at any size. One unit
// is one pixel at size 1. Capitals and digits reach from 0 to 8, small letters to 6, tails to -3. A path is a row of
// steps, each a letter and a point:
//   m x y  move there                 h x y  a quarter of an ellipse to there, horizontal at its start
//   l x y  a straight line to there   v x y  a quarter of an ellipse to there, vertical at its start
#pragma once

#include <string_view>
#include <vector>

#include "charts/canvas.h"

namespace orrery::tool {

constexpr double kCapHeight = 8;
constexpr double kSideBearing = 1.5;  // space before a glyph's x = 0

struct Glyph {
  const char* path;
  double advance;  // distance to the next glyph's origin
};

// The glyphs of a UTF-8 text, one per character.
std::vector<Glyph> glyphs_of(std::string_view words);

// A glyph's strokes as polylines, with y upwards from the baseline.
std::vector<std::vector<Point>> outline_of(const Glyph& glyph);

}  // namespace orrery::tool

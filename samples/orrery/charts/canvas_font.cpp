// See canvas_font.h.
#include "charts/canvas_font.h"

#include <cmath>
#include <cstdlib>

namespace orrery::tool {
namespace {

constexpr int kArcSteps = 6;  // straight pieces per quarter

constexpr Glyph kBox = {"m0 0 l0 8 l5 8 l5 0 l0 0", 8};

constexpr Glyph kGlyphs[] = {
    {"", 4},                                                                                          // space
    {"m0 8 l0 2.6 m0 .3 l0 0", 3},                                                                    // !
    {"m0 8 l0 6 m2 8 l2 6", 5},                                                                       // "
    {"m1 0 l2 8 m4 0 l5 8 m0 2.5 l5.4 2.5 m.6 5.5 l6 5.5", 9},                                        // #
    {"m4 5.8 v2 7 h0 5.4 v2 3.6 h4 1.9 v2 .2 h0 1.4 m2 8.6 l2 -1.4", 7},                              // $
    {"m1.5 8 h3 6.3 v1.5 4.6 h0 6.3 v1.5 8 m6 3.4 h7.5 1.7 v6 0 h4.5 1.7 v6 3.4 m6 8 l1.5 0", 10.5},  // %
    {"m5.4 0 l1.2 5.1 l.8 6.4 v2.2 8 h3.6 6.4 l3.2 5.3 l.8 3.5 l0 2 v2 0 h5.2 3.4", 8},               // &
    {"m0 8 l0 6", 3},                                                                                 // '
    {"m1.6 9 l.5 7 l0 4.8 l0 2.2 l.5 0 l1.6 -2", 4},                                                  // (
    {"m0 9 l1.1 7 l1.6 4.8 l1.6 2.2 l1.1 0 l0 -2", 4.5},                                              // )
    {"m2 8 l2 4 m.3 7 l3.7 5 m3.7 7 l.3 5", 7},                                                       // *
    {"m3 1 l3 7 m0 4 l6 4", 9},                                                                       // +
    {"m.2 .2 l-.5 -1.8", 3},                                                                          // ,
    {"m0 3 l3 3", 6},                                                                                 // -
    {"m0 .3 l0 0", 3},                                                                                // .
    {"m0 -1 l3.2 8.6", 6},                                                                            // /
    {"m2 8 h4 5.5 l4 2.5 v2 0 h0 2.5 l0 5.5 v2 8", 7},                                                // 0
    {"m0 6.4 l2 8 l2 0 m0 0 l4 0", 7},                                                                // 1
    {"m0 6.2 v2 8 h4 6 l3.8 5 l3.2 4 l0 0 l4 0", 7},                                                  // 2
    {"m0 6.8 v2 8 h4 6.1 v2 4.2 m1.2 4.2 l2 4.2 h4 2.1 v2 0 h0 1.4", 7},                              // 3
    {"m3 0 l3 8 l0 2 l4.4 2", 7},                                                                     // 4
    {"m3.8 8 l.4 8 l.2 4.2 v2 5 h4 2.5 v2 0 h0 1.3", 7},                                              // 5
    {"m3.7 7.2 v2.3 8 h0 4.5 l0 2.5 v2 0 h4 2.5 v2 5 h0 2.8", 7},                                     // 6
    {"m0 8 l4 8 l1.4 0", 7},                                                                          // 7
    {"m2 8 h3.8 6.1 v2 4.2 h.2 6.1 v2 8 m2 4.2 h4 2.1 v2 0 h0 2.1 v2 4.2", 7},                        // 8
    {"m.3 .8 v1.7 0 h4 3.5 l4 5.5 v2 8 h0 5.5 v2 3 h4 5.2", 7},                                       // 9
    {"m0 .3 l0 0 m0 5.3 l0 5", 3},                                                                    // :
    {"m.2 .2 l-.5 -1.8 m.1 5.3 l.1 5", 3},                                                            // ;
    {"m5 7 l0 4 l5 1", 8},                                                                            // <
    {"m0 3 l5 3 m0 5 l5 5", 8},                                                                       // =
    {"m0 7 l5 4 l0 1", 8},                                                                            // >
    {"m0 6.4 v2 8 h4 6.2 l3.6 5 l2 3.6 l2 2.5 m2 .3 l2 0", 7},                                        // ?
    {"m5.2 5.4 l5.2 2.6 v6.2 1.6 h7.4 3.4 l7.4 4.6 v3.8 8 h0 4.6 l0 2.4 v3.8 -1 l5.4 -.8 "
     "m5.2 3.9 v3.7 5.4 h2.2 3.9 v3.7 2.4 h5.2 3.9",
     10.5},                                                                         // @
    {"m0 0 l3 8 l6 0 m1.1 3 l4.9 3", 8.5},                                          // A
    {"m0 0 l0 8 l2.8 8 h4.7 6 v2.8 4 l0 4 m2.8 4 h5 2 v2.8 0 l0 0", 8},             // B
    {"m5.2 6.2 v2.9 8 h0 5 l0 3 v2.9 0 h5.2 1.8", 8},                               // C
    {"m0 0 l0 8 l2 8 h5 5 l5 3 v2 0 l0 0", 8},                                      // D
    {"m4.3 8 l0 8 l0 0 l4.3 0 m0 4 l3.7 4", 7},                                     // E
    {"m4.2 8 l0 8 l0 0 m0 4 l3.6 4", 6.5},                                          // F
    {"m5 6.4 v2.8 8 h0 5 l0 3 v2.8 0 h5 2 l5 4 l3 4", 8},                           // G
    {"m0 0 l0 8 m5 0 l5 8 m0 4 l5 4", 8},                                           // H
    {"m0 0 l0 8", 3},                                                               // I
    {"m3 8 l3 2 v1.3 0 h0 1", 6},                                                   // J
    {"m0 0 l0 8 m4.8 8 l0 3.2 m1.6 4.8 l5 0", 7.5},                                 // K
    {"m0 8 l0 0 l4.2 0", 6.5},                                                      // L
    {"m0 0 l0 8 l3 3 l6 8 l6 0", 9},                                                // M
    {"m0 0 l0 8 l5 0 l5 8", 8},                                                     // N
    {"m3 8 h6 5 l6 3 v3 0 h0 3 l0 5 v3 8", 9},                                      // O
    {"m0 0 l0 8 l2.8 8 h5 6 v2.8 4 l0 4", 7.5},                                     // P
    {"m3 8 h6 5 l6 3 v3 0 h0 3 l0 5 v3 8 m3.8 1.8 l6 -.6", 9},                      // Q
    {"m0 0 l0 8 l2.8 8 h5 6 v2.8 4 l0 4 m2.6 4 l5 0", 8},                           // R
    {"m4.7 6.6 v2.5 8 h.2 6 v2.5 4.1 h5 2.1 v2.5 0 h0 1.6", 8},                     // S
    {"m-.5 8 l5.5 8 m2.5 8 l2.5 0", 7.5},                                           // T
    {"m0 8 l0 2.5 v2.5 0 h5 2.5 l5 8", 8},                                          // U
    {"m0 8 l3 0 l6 8", 8.5},                                                        // V
    {"m0 8 l2 0 l4 7 l6 0 l8 8", 11},                                               // W
    {"m0 8 l5 0 m5 8 l0 0", 8},                                                     // X
    {"m-.5 8 l2.5 4 l5.5 8 m2.5 4 l2.5 0", 7.5},                                    // Y
    {"m0 8 l5 8 l0 0 l5 0", 8},                                                     // Z
    {"m1.8 9 l0 9 l0 -2 l1.8 -2", 4.5},                                             // [
    {"m0 8.6 l3.2 -1", 6},                                                          // backslash
    {"m0 9 l1.8 9 l1.8 -2 l0 -2", 5},                                               // ]
    {"m0 5 l2 8 l4 5", 7},                                                          // ^
    {"m-.5 -2 l5 -2", 7},                                                           // _
    {"m0 8.6 l1.2 7", 4},                                                           // `
    {"m.3 5.2 v2 6 h4 4.2 l4 0 m4 3.4 l1.7 3.4 h0 1.7 v1.6 0 h4 1.8", 7},           // a
    {"m0 8 l0 0 m0 4 v2 6 h4 4 l4 2 v2 0 h0 2", 7},                                 // b
    {"m3.8 4.6 v2.1 6 h0 4 l0 2 v2.1 0 h3.8 1.4", 6.5},                             // c
    {"m4 8 l4 0 m4 4 v2 6 h0 4 l0 2 v2 0 h4 2", 7},                                 // d
    {"m0 3 l4 3 l4 4 v2 6 h0 4 l0 2 v2.1 0 h3.8 1.2", 7},                           // e
    {"m3 8 l2.6 8 h1 6.4 l1 0 m-.5 6 l2.8 6", 5},                                   // f
    {"m4 6 l4 -1 v2 -3 h.3 -2.3 m4 4 v2 6 h0 4 l0 2 v2 0 h4 2", 7},                 // g
    {"m0 8 l0 0 m0 4 v2 6 h4 4 l4 0", 7},                                           // h
    {"m0 0 l0 6 m0 8.3 l0 8", 3},                                                   // i
    {"m1 6 l1 -1.5 v-.5 -3 m1 8.3 l1 8", 4},                                        // j
    {"m0 0 l0 8 m3.8 6 l0 2.4 m1.4 3.7 l4 0", 6.5},                                 // k
    {"m0 8 l0 1.2 v1.2 0", 4},                                                      // l
    {"m0 6 l0 0 m0 4.4 v1.6 6 h3 4.4 l3 0 m3 4.4 v4.6 6 h6 4.4 l6 0", 9},           // m
    {"m0 6 l0 0 m0 4 v2 6 h4 4 l4 0", 7},                                           // n
    {"m2 6 h4 4 l4 2 v2 0 h0 2 l0 4 v2 6", 7},                                      // o
    {"m0 6 l0 -3 m0 4 v2 6 h4 4 l4 2 v2 0 h0 2", 7},                                // p
    {"m4 6 l4 -3 m4 4 v2 6 h0 4 l0 2 v2 0 h4 2", 7},                                // q
    {"m0 6 l0 0 m0 3.8 v2.4 6 l2.7 5.9", 5},                                        // r
    {"m3.6 5 v1.9 6 h.2 4.5 v1.9 3.1 h3.8 1.5 v1.9 0 h0 1", 6.8},                   // s
    {"m1 7.8 l1 1.4 v2.4 0 l3 0 m-.5 6 l2.8 6", 5},                                 // t
    {"m0 6 l0 2 v2 0 h4 2 m4 6 l4 0", 7},                                           // u
    {"m0 6 l2.2 0 l4.4 6", 7},                                                      // v
    {"m0 6 l1.6 0 l3.2 5.2 l4.8 0 l6.4 6", 9},                                      // w
    {"m0 6 l4 0 m4 6 l0 0", 7},                                                     // x
    {"m0 6 l2.2 0 m4.4 6 l1.6 -1.8 l.9 -2.8 l-.2 -3", 7},                           // y
    {"m0 6 l4 6 l0 0 l4 0", 7},                                                     // z
    {"m2.4 9 l2 9 h1 7.6 l1 4.6 l0 3.5 l1 2.4 l1 -.6 v2 -2 l2.4 -2", 5.5},          // {
    {"m0 9 l0 -2", 3},                                                              // |
    {"m0 9 l.4 9 h1.4 7.6 l1.4 4.6 l2.4 3.5 l1.4 2.4 l1.4 -.6 v.4 -2 l0 -2", 5.5},  // }
    {"m0 3.2 l.6 4.2 l1.6 4.4 l3.4 3.4 l4.4 3.6 l5 4.6", 8},                        // ~
};
static_assert(sizeof kGlyphs / sizeof *kGlyphs == 0x7F - 0x20, "one for each printable character of ASCII");

// The length of the character at the start; 1 for a malformed byte.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t n = byte(0) >= 0xF0 && byte(0) < 0xF8 ? 4 : byte(0) >= 0xE0 ? 3 : byte(0) >= 0xC0 ? 2 : 1;
  if (byte(0) >= 0xF8 || n > text.size()) return 1;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 1;
  }
  return n;
}

}  // namespace

std::vector<Glyph> glyphs_of(std::string_view words) {
  std::vector<Glyph> glyphs;
  while (!words.empty()) {
    const auto c = static_cast<unsigned char>(words[0]);
    glyphs.push_back(c >= 0x20 && c < 0x7F ? kGlyphs[c - 0x20] : kBox);
    words.remove_prefix(character_bytes(words));
  }
  return glyphs;
}

std::vector<std::vector<Point>> outline_of(const Glyph& glyph) {
  std::vector<std::vector<Point>> strokes;
  const char* p = glyph.path;
  while (*p) {
    if (*p == ' ') {
      ++p;
      continue;
    }
    const char step = *p++;
    char* after = nullptr;
    const double x = std::strtod(p, &after);
    const double y = std::strtod(after, &after);
    p = after;
    if (step == 'm') {
      strokes.push_back({{x, y}});
      continue;
    }
    std::vector<Point>& stroke = strokes.back();
    const Point from = stroke.back();
    const int pieces = step == 'l' ? 1 : kArcSteps;
    for (int i = 1; i <= pieces; ++i) {
      const double angle = std::acos(0.0) * i / pieces;
      const double rising = step == 'l' ? 1 : std::sin(angle);
      const double late = step == 'l' ? 1 : 1 - std::cos(angle);
      const double along_x = step == 'v' ? late : rising, along_y = step == 'v' ? rising : late;
      stroke.push_back({from.x + (x - from.x) * along_x, from.y + (y - from.y) * along_y});
    }
  }
  return strokes;
}

}  // namespace orrery::tool

// Charts: colours where the data says that they must be, read back out of the PNG file; and data that is
// missing, endless, too much or contradictory.
#include <gtest/gtest.h>

#include <cmath>

#include "samples/orrery/charts/chart.h"
#include "samples/orrery/charts/chart_parts.h"
#include "samples/orrery/charts/chart_steps.h"
#include "samples/orrery/system/failure.h"
#include "tests/tool/picture.h"

namespace orrery::tool {
namespace {

// ---- Steps ----

TEST(StepChart, PiecesFollowEachOtherToScale) {
  StepChart chart;
  chart.title = "A & B < C";
  chart.parts = {"product", "waiting"};
  chart.idle = {false, true};
  chart.bars = {"thread 0", "thread 1"};
  chart.lengths = {{300, 100}, {100, kMissing}};
  const std::string text = svg(chart);
  // 846 pixels for 400 microseconds.
  EXPECT_NE(text.find("x=\"90.0\" y=\"64.0\" width=\"634.5\""), std::string::npos) << text;
  EXPECT_NE(text.find("x=\"724.5\" y=\"64.0\" width=\"211.5\" height=\"34.0\" fill=\"#dddddd\""), std::string::npos) << text;
  EXPECT_NE(text.find("x=\"90.0\" y=\"112.0\" width=\"211.5\""), std::string::npos) << text;
  EXPECT_NE(text.find("A &amp; B &lt; C"), std::string::npos);
  size_t blocks = 0;
  for (size_t at = text.find("<title>"); at != std::string::npos; at = text.find("<title>", at + 1)) ++blocks;
  EXPECT_EQ(blocks, 5u) << "three pieces and two in the legend: a length that is no number is not drawn";
}

TEST(StepChart, NothingToDrawAndSizesThatDisagree) {
  StepChart chart;
  EXPECT_NE(svg(chart).find("</svg>"), std::string::npos);
  chart.title = "steps";
  chart.bars = {"thread 0"};
  EXPECT_THROW(svg(chart), Failure);
  chart.lengths = {{1.0}};
  EXPECT_THROW(svg(chart), Failure);
}

// ---- Line charts ----

LineChart simple_chart() {
  LineChart chart;
  chart.title = "Title";
  chart.x = {"x", Numbers::plain};
  chart.y = {"y", Numbers::plain};
  chart.y.min = 0;
  chart.y.max = 1;
  return chart;
}

// Three equal series, then one that meets them at its first point alone: every colour shows on the lines and at the markers.
TEST(LineChart, SeriesThatCoincideAreToldApart) {
  LineChart chart = simple_chart();
  chart.series = {
      {"a", {0, 5, 10}, {.5, .5, .9}}, {"b", {0, 5, 10}, {.5, .5, .9}}, {"c", {0, 5, 10}, {.5, .5, .9}}, {"d", {0, 5, 10}, {.5, .2, .1}}};
  const LinePicture picture = draw(chart);
  const Seen seen(picture.canvas);
  const auto between = [&](size_t s, double from, double to) {
    size_t n = 0;
    for (double x = from; x < to; x += .02) n += seen.at(picture.at(x, .5)) == series_color(s);
    return n;
  };
  for (size_t s = 0; s < 3; ++s) EXPECT_GT(between(s, .3, 4.7), 20u) << s;
  // Smaller markers on larger ones: all three have pixels around the common point.
  const Point p = picture.at(5, .5);
  for (size_t s = 0; s < 3; ++s) EXPECT_GE(seen.count(series_color(s), {p.x - 5, p.y - 5, 10, 10}), 2u) << s;
  // A line of its own is whole.
  for (double x : {1.0, 2.5, 3.3, 4.4, 6.0, 8.5})
    EXPECT_EQ(seen.at(picture.at(x, x < 5 ? .5 - .06 * x : .2 - .02 * (x - 5))), series_color(3)) << x;
}

TEST(LineChart, PointsAreWhereTheAxesSay) {
  LineChart chart = simple_chart();
  chart.series = {{"a", {0, 5, 10}, {.1, .9, .5}}, {"b", {0, 5, 10}, {.6, .3, .2}}};
  chart.references = {{"limit", .75}};
  const LinePicture picture = draw(chart);
  EXPECT_EQ(picture.canvas.width(), 960);
  EXPECT_EQ(picture.canvas.height(), 600);
  EXPECT_EQ(picture.x_min, 0);
  EXPECT_EQ(picture.x_max, 10);
  EXPECT_EQ(picture.at(0, 0).x, picture.plot.x);
  EXPECT_EQ(picture.at(0, 0).y, picture.plot.bottom());
  EXPECT_EQ(picture.at(10, 1).x, picture.plot.right());
  EXPECT_EQ(picture.at(10, 1).y, picture.plot.y);
  const Seen seen(picture.canvas);
  for (size_t s = 0; s < 2; ++s) {
    const Series& series = chart.series[s];
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(seen.at(picture.at(series.x[i], series.y[i])), series_color(s)) << s << " " << i;
    }
    for (double t : {.5, 1.25, 3.3}) {  // on the straight line between the first two
      const double y = series.y[0] + (series.y[1] - series.y[0]) * t / 5;
      EXPECT_EQ(seen.at(picture.at(t, y)), series_color(s)) << s << " " << t;
    }
  }
  EXPECT_EQ(seen.at(picture.at(2.6, .1)), kWhite);
  // Its series' colours stand in the legend too, above the plot.
  for (size_t s = 0; s < 2; ++s) EXPECT_GT(seen.count(series_color(s), {0, 0, 960, picture.plot.y - 8}), 20u);
  // The reference: dashes over the whole width, in its row and nowhere else.
  const double row = picture.at(0, .75).y;
  size_t dashed = 0;
  for (double x = picture.plot.x; x < picture.plot.right(); ++x) dashed += seen.at(x, row) == kFaint;
  EXPECT_GT(dashed, picture.plot.w * .2);
  EXPECT_LT(dashed, picture.plot.w * .6);
}

TEST(LineChart, ALineBreaksWhereAValueIsMissing) {
  for (double missing : {kMissing, kInf, -kInf, 1e200}) {
    LineChart chart = simple_chart();
    chart.series = {{"a", {0, 1, 2, 3, 4, 5, 6}, {.25, .25, missing, .25, .25, missing, .25}}};
    const LinePicture picture = draw(chart);
    const Seen seen(picture.canvas);
    for (double x : {.5, 3.5}) EXPECT_EQ(seen.at(picture.at(x, .25)), series_color(0)) << x;
    for (double x : {1.5, 2.25, 4.5, 5.5}) EXPECT_NE(seen.at(picture.at(x, .25)), series_color(0)) << x;
    EXPECT_EQ(seen.at(picture.at(6, .25)), series_color(0)) << "a point alone is a marker";
  }
}

TEST(LineChart, APointAloneInALongLineIsSeen) {
  LineChart chart = simple_chart();
  Series s{"long", {}, {}};
  for (int i = 0; i < 1000; ++i) {
    s.x.push_back(i);
    s.y.push_back(i < 500 ? .2 : i == 700 ? .8 : i > 900 ? .2 : kMissing);
  }
  chart.series = {s};
  const LinePicture picture = draw(chart);
  EXPECT_EQ(Seen(picture.canvas).at(picture.at(700, .8)), series_color(0));
}

TEST(LineChart, LogarithmicAxesAreLogarithmic) {
  LineChart chart = simple_chart();
  chart.x.log2 = true;
  chart.x.numbers = Numbers::tokens;
  chart.series = {{"a", {0, -4, 1024, 4096, 16384}, {.9, .9, .2, .4, .8}}};
  const LinePicture picture = draw(chart);
  EXPECT_EQ(picture.x_min, 1024);
  EXPECT_EQ(picture.x_max, 16384);
  EXPECT_EQ(picture.at(4096, 0).x, picture.plot.x + picture.plot.w / 2);
  const Seen seen(picture.canvas);
  EXPECT_EQ(seen.at(picture.at(4096, .4)), series_color(0));
  EXPECT_EQ(seen.at(picture.at(2048, .3)), series_color(0)) << "straight in the logarithm";
}

TEST(LineChart, WhatLiesOutsideTheAxesIsNotDrawnBesideThem) {
  LineChart chart = simple_chart();
  chart.x.min = 0;
  chart.x.max = 10;
  chart.series = {{"", {-5, 15, 5, 5}, {.2, .8, 1e50, -1e50}}};
  const LinePicture picture = draw(chart);
  const Seen seen(picture.canvas);
  const Rect plot = picture.plot;
  const size_t inside = seen.count(series_color(0), {plot.x - 2, plot.y - 2, plot.w + 4, plot.h + 4});
  EXPECT_GT(inside, 10u);
  EXPECT_EQ(seen.count(series_color(0)), inside);
}

TEST(LineChart, NothingAndOnePointMakePicturesToo) {
  LineChart chart = simple_chart();
  chart.y.min = chart.y.max = kMissing;
  const auto empty = draw(chart);
  EXPECT_EQ(empty.y_min, 0);
  chart.series = {{"none", {}, {}}, {"missing", {1, kMissing}, {kMissing, 3}}};
  EXPECT_EQ(Seen(draw(chart).canvas).count(series_color(0), draw(chart).plot), 0u);
  chart.series = {{"one", {3}, {7}}};
  for (bool log2 : {false, true}) {
    chart.x.log2 = chart.y.log2 = log2;
    const LinePicture picture = draw(chart);
    const Point at = picture.at(3, 7);
    EXPECT_GT(at.x, picture.plot.x);
    EXPECT_LT(at.x, picture.plot.right());
    EXPECT_EQ(Seen(picture.canvas).at(at), series_color(0));
  }
}

TEST(LineChart, VeryManyPointsKeepTheirExtremes) {
  LineChart chart = simple_chart();
  Series s{"noise", {}, {}};
  for (int i = 0; i < 1000000; ++i) {
    s.x.push_back(i);
    s.y.push_back(i == 123456 ? .95 : i == 876543 ? .05 : .5);
  }
  chart.series = {s};
  const LinePicture picture = draw(chart);
  const Seen seen(picture.canvas);
  const auto drawn_below = [&](double x, double y) {  // a spike is a pixel wide, or shared by two
    const Point p = picture.at(x, y);
    int darkest = 255;
    for (double dx : {-1, 0, 1}) darkest = std::min(darkest, int(seen.at(p.x + dx, p.y + 3).r));
    return darkest < 110;  // of the series' 0 and the paper's 255
  };
  EXPECT_TRUE(drawn_below(123456, .95));
  EXPECT_TRUE(drawn_below(876543, .45));
  EXPECT_TRUE(drawn_below(876543, .08));
  EXPECT_FALSE(drawn_below(876543, .95));
  EXPECT_FALSE(drawn_below(300000, .95));
  for (size_t i = 0; i < s.x.size(); i += 2) s.x[i] = 1000000 - s.x[i];  // zigzag: no two neighbours share a column
  chart.series = {s};
  draw(chart);
}

TEST(LineChart, ExtremeValuesAndHugeLabels) {
  LineChart chart;
  const std::string huge(100000, 'W');
  chart.title = chart.subtitle = chart.x.label = chart.y.label = huge;
  for (size_t i = 0; i < 300; ++i) chart.series.push_back({huge, {1e-90, 1e90, -1e99}, {-1e99, 1e99, 5e-324}});
  chart.references = {{huge, kMissing}, {huge, 1e99}};
  for (bool log2 : {false, true}) {
    chart.x.log2 = chart.y.log2 = log2;
    const LinePicture picture = draw(chart);
    EXPECT_GT(picture.plot.h, 200) << "the legend took the plot's room";
    EXPECT_GT(picture.plot.w, 400);
  }
  chart.x.min = 5;
  chart.x.max = -5;
  chart.y.min = kInf;
  draw(chart);
  chart.width = 320;
  chart.height = 240;
  draw(chart);
}

TEST(LineChart, ContradictionsAreNamed) {
  LineChart chart = simple_chart();
  chart.series = {{"fine", {1}, {1}}, {"lame", {1, 2, 3}, {1}}};
  EXPECT_EQ(failure_of([&] { draw(chart); }), "chart 'Title', series 'lame': 3 x values and 1 y values");
  chart.series.clear();
  chart.width = 100;
  EXPECT_NE(failure_of([&] { draw(chart); }).find("100 x 600"), std::string::npos);
}

TEST(LineChart, OrderedSeriesRunAlongTheRamp) {
  LineChart chart = simple_chart();
  chart.ordered = true;
  for (size_t i = 0; i < 32; ++i) {
    const double y = double(i + 1) / 40;
    chart.series.push_back({"layer " + std::to_string(i), {0, 1, 2}, {y, y, y}});
  }
  const LinePicture picture = draw(chart);
  const Seen seen(picture.canvas);
  const Rect legend{0, 0, 960, picture.plot.y - 8};
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(seen.at(picture.at(1, double(i + 1) / 40)), ordered_color(i, 32)) << i;
    EXPECT_EQ(seen.count(ordered_color(i, 32), legend) > 20, i % 4 == 0) << i;  // every fourth has a name
    if (i > 0) {
      EXPECT_NE(ordered_color(i, 32), ordered_color(i - 1, 32));
    }
  }
  EXPECT_EQ(ordered_color(0, 1), ramp_color(0));
}

TEST(LineChart, TheFirstFourteenColoursDiffer) {
  for (size_t i = 0; i < 14; ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(series_color(i), series_color(j));
  }
  EXPECT_EQ(series_color(14), series_color(0));
}

// ---- Heat maps ----

TEST(HeatMap, EveryCellHasItsValuesColour) {
  HeatMap map;
  map.title = "Needles";
  map.row_label = "depth";
  map.column_label = "length";
  map.row_names = {"0%", "50%", "100%"};
  map.column_names = {"1K", "2K", "4K", "8K"};
  map.grid = {3, 4, {0, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1, kMissing}};
  map.scale = {"accuracy", Numbers::percent, 0, 1};
  for (bool square : {false, true}) {
    map.square = square;
    const HeatPicture picture = draw(map);
    EXPECT_EQ(picture.min, 0);
    EXPECT_EQ(picture.max, 1);
    const Seen seen(picture.canvas);
    for (size_t i = 0; i < 11; ++i) {
      EXPECT_EQ(seen.corner(picture.cells.cell(i / 4, i % 4)), ramp_color(double(i) / 10)) << i;
    }
    const Rect cell = picture.cells.cell(2, 3);
    EXPECT_EQ(seen.count(ramp_color(0), cell) + seen.count(ramp_color(1), cell), 0u);
    EXPECT_GT(seen.count(kNoValue, cell), 50u);
    if (square) {
      EXPECT_EQ(cell.w, cell.h);
    }
    // The number in a cell: light on dark, dark on light.
    const Rect dark = picture.cells.cell(0, 0);
    EXPECT_GT(seen.count(kWhite, {dark.x, dark.y, dark.w - 1, dark.h - 1}), 5u);
    EXPECT_GT(seen.count(kInk, picture.cells.cell(2, 2)), 5u);
  }
}

TEST(HeatMap, TheScaleComesFromTheDataUnlessGiven) {
  HeatMap map;
  map.grid = {1, 3, {2, kMissing, 6}};
  const HeatPicture picture = draw(map);
  EXPECT_EQ(picture.min, 2);
  EXPECT_EQ(picture.max, 6);
  const Seen seen(picture.canvas);
  EXPECT_EQ(seen.corner(picture.cells.cell(0, 0)), ramp_color(0));
  EXPECT_EQ(seen.corner(picture.cells.cell(0, 2)), ramp_color(1));
  map.scale.min = 4;
  map.scale.max = 5;  // what lies outside takes the ends' colours
  const HeatPicture narrow = draw(map);
  EXPECT_EQ(Seen(narrow.canvas).corner(narrow.cells.cell(0, 0)), ramp_color(0));
  EXPECT_EQ(Seen(narrow.canvas).corner(narrow.cells.cell(0, 2)), ramp_color(1));
}

TEST(HeatMap, MoreCellsThanPixelsShowTheirMean) {
  HeatMap map;
  map.grid = {4000, 3000, std::vector<double>(4000u * 3000u)};
  for (size_t r = 0; r < 4000; ++r) {
    for (size_t c = 0; c < 3000; ++c) map.grid.values[r * 3000 + c] = r < 2000 ? 0 : c % 2 ? 1 : .5;
  }
  for (size_t c = 0; c < 3000; ++c) map.grid.values[c] = kMissing;  // one row of them is lost among others
  map.scale = {"", Numbers::plain, 0, 1};
  const HeatPicture picture = draw(map);
  EXPECT_LE(picture.canvas.width(), 1200);
  EXPECT_LE(picture.canvas.height(), 900);
  const Seen seen(picture.canvas);
  const Rect plot = picture.cells.plot;
  EXPECT_EQ(seen.at(plot.x + 5, plot.y + 5), ramp_color(0));
  EXPECT_EQ(seen.at(plot.x + plot.w / 2, plot.y), ramp_color(0));
  const int mean = seen.at(plot.right() - 6, plot.bottom() - 6).r;  // pixels of 3 or 4 columns: 2/3 to 5/6
  EXPECT_GE(mean, ramp_color(.66).r);
  EXPECT_LE(mean, ramp_color(.84).r);
}

TEST(HeatMap, NothingOneAndAllMissing) {
  HeatMap map;
  draw(map);
  map.grid = {0, 5, {}};
  draw(map);
  map.grid = {1, 1, {.3}};
  const HeatPicture one = draw(map);
  EXPECT_LT(one.min, one.max);
  EXPECT_EQ(Seen(one.canvas).corner(one.cells.cell(0, 0)), ramp_color(.5));
  map.grid = {2, 2, {kMissing, kInf, -kInf, 1e300}};
  draw(map);
  map.grid = {1, 2000, std::vector<double>(2000, .5)};
  draw(map);
  map.grid = {2000, 1, std::vector<double>(2000, .5)};
  const std::string huge(50000, 'M');
  map.title = map.subtitle = map.row_label = map.column_label = map.scale.label = huge;
  map.row_names = map.column_names = {huge, huge};
  EXPECT_LE(draw(map).canvas.width(), 1500);
}

TEST(HeatMap, ContradictionsAreNamed) {
  HeatMap map;
  map.title = "Odd";
  map.grid = {3, 4, std::vector<double>(11)};
  EXPECT_EQ(failure_of([&] { draw(map); }), "chart 'Odd': 3 x 4 cells, but 11 values");
  map.grid = {SIZE_MAX / 2 + 1, 2, {}};  // whose product is 0
  EXPECT_NE(failure_of([&] { draw(map); }), "");
  map.grid = {0, 4, std::vector<double>(4)};
  EXPECT_NE(failure_of([&] { draw(map); }), "");
}

TEST(HeatGrid, EveryPanelIsUnderOneScale) {
  HeatGrid grid;
  grid.title = "Overlap";
  for (size_t layer = 0; layer < 7; ++layer) {
    grid.names.push_back("layer " + std::to_string(layer));
    Grid panel{3, 3, {}};
    for (size_t i = 0; i < 9; ++i) panel.values.push_back(i % 4 == 0 ? 1 : double(layer) / 10);
    grid.panels.push_back(panel);
  }
  grid.scale = {"overlap", Numbers::plain, 0, 1};
  const HeatGridPicture picture = draw(grid);
  ASSERT_EQ(picture.panels.size(), 7u);
  const Seen seen(picture.canvas);
  for (size_t layer = 0; layer < 7; ++layer) {
    EXPECT_EQ(seen.corner(picture.panels[layer].cell(1, 1)), ramp_color(1)) << layer;
    EXPECT_EQ(seen.corner(picture.panels[layer].cell(0, 2)), ramp_color(double(layer) / 10)) << layer;
  }
}

TEST(HeatGrid, AnyNumberOfPanelsOfAnySize) {
  HeatGrid grid;
  draw(grid);
  grid.panels = {{}, {1, 1, {kMissing}}, {2, 3, {1, 2, 3, 4, 5, 6}}, {1024, 1024, std::vector<double>(1u << 20)}};
  EXPECT_EQ(draw(grid).panels.size(), 4u);
  grid.panels.assign(4096, {2, 2, {0, 1, 1, 0}});
  const HeatGridPicture many = draw(grid);
  EXPECT_GT(many.panels.size(), 100u);
  EXPECT_LE(many.panels.size(), 4096u);
  for (const CellArea& panel : many.panels) EXPECT_LE(panel.plot.bottom(), many.canvas.height());
  grid.panels = {{2, 2, {1}}};
  EXPECT_NE(failure_of([&] { draw(grid); }), "");
}

// ---- Role maps ----

TEST(RoleMap, EveryCellHasItsRolesColour) {
  using R = HeadRole;
  RoleMap map;
  map.title = "Roles";
  map.n_layers = 3;
  map.n_kv_heads = 4;
  map.roles = {R::pivot,     R::satellite, R::satellite,     R::anchor,         // layer 0
               R::anchor,    R::anchor,    R::volatile_head, R::volatile_head,  // layer 1
               R::satellite, R::pivot,     R::pivot,         R::satellite};     // layer 2
  map.pivot_of = {kNoPivot, 0, 0, kNoPivot, kNoPivot, kNoPivot, kNoPivot, kNoPivot, 2, kNoPivot, kNoPivot, 1};
  const RolePicture picture = draw(map);
  const Seen seen(picture.canvas);
  for (size_t layer = 0; layer < 3; ++layer) {
    for (size_t head = 0; head < 4; ++head) {
      EXPECT_EQ(seen.corner(picture.cells.cell(head, layer)), role_color(map.roles[layer * 4 + head])) << layer << " " << head;
    }
  }
  // Layer 0: one cluster, its line in the middle of the column from head 0 to head 2, none at head 3.
  const auto middle = [&](size_t head, size_t layer) {
    const Rect cell = picture.cells.cell(head, layer);
    return Point{cell.x + (cell.w - 1) / 2, cell.y + (cell.h - 1) / 2};
  };
  EXPECT_EQ(seen.at(middle(0, 0)), kWhite) << "the pivot's ring";
  EXPECT_EQ(seen.at(middle(1, 0)), kInk);
  EXPECT_EQ(seen.at(middle(2, 0)), kInk);
  EXPECT_EQ(seen.at(middle(3, 0)), role_color(R::anchor));
  EXPECT_EQ(seen.count(kInk, {picture.cells.cell(0, 1).x, picture.cells.plot.y, picture.cells.cell(0, 1).w, picture.cells.plot.h}), 0u)
      << "nobody follows in layer 1";
  // Layer 2: two clusters, a third and two thirds across: 1 -> 3 and 2 -> 0.
  const Rect two = picture.cells.cell(1, 2);
  const double left = two.x + (two.w - 1) / 3, right = two.x + (two.w - 1) * 2 / 3;
  EXPECT_EQ(seen.at(left, middle(1, 2).y), kWhite);
  EXPECT_EQ(seen.at(right, middle(2, 2).y), kWhite);
  EXPECT_EQ(seen.at(left, middle(3, 2).y), kInk);
  EXPECT_EQ(seen.at(right, middle(0, 2).y), kInk);
  EXPECT_EQ(seen.at(left, middle(0, 2).y), role_color(R::satellite));
}

TEST(RoleMap, OfAnyShape) {
  RoleMap map;
  draw(map);
  const std::pair<size_t, size_t> shapes[] = {{1, 1}, {1, 1024}, {4096, 1}, {48, 8}, {4096, 64}, {2, 128}};
  for (const auto& [layers, heads] : shapes) {
    map.n_layers = layers;
    map.n_kv_heads = heads;
    map.roles.assign(layers * heads, HeadRole::satellite);
    map.pivot_of.assign(layers * heads, heads - 1);
    for (size_t l = 0; l < layers; ++l) {
      map.roles[l * heads + heads - 1] = HeadRole::pivot;
      map.pivot_of[l * heads + heads - 1] = kNoPivot;
    }
    const RolePicture picture = draw(map);
    EXPECT_LE(picture.canvas.width(), 1200);
    EXPECT_LE(picture.canvas.height(), 900);
  }
}

TEST(RoleMap, ContradictionsAreNamed) {
  RoleMap map;
  map.title = "Roles";
  map.n_layers = 2;
  map.n_kv_heads = 3;
  map.roles.assign(5, HeadRole::anchor);
  EXPECT_EQ(failure_of([&] { draw(map); }), "chart 'Roles': 2 layers of 3 KV heads, but 5 roles");
  map.roles.assign(6, HeadRole::anchor);
  map.pivot_of.assign(4, kNoPivot);
  EXPECT_EQ(failure_of([&] { draw(map); }), "chart 'Roles': 2 layers of 3 KV heads, but 4 pivots");
  map.pivot_of.assign(6, 3);
  EXPECT_EQ(failure_of([&] { draw(map); }), "chart 'Roles': pivot 3, but a layer has 3 KV heads");
  map.pivot_of.clear();
  map.roles[5] = static_cast<HeadRole>(9);
  EXPECT_NE(failure_of([&] { draw(map); }), "");
  map.roles.clear();
  map.n_layers = 0;
  map.n_kv_heads = 8;
  draw(map);
}

TEST(Charts, TheSameDataGivesTheSameBytes) {
  LineChart chart = simple_chart();
  chart.series = {{"a", {0, 1, 2}, {.1, .7, .4}}};
  EXPECT_EQ(draw(chart).canvas.png(), draw(chart).canvas.png());
}

}  // namespace
}  // namespace orrery::tool

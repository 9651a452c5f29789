// Line charts (chart.h): lay out the legend, the axes and their ticks, then draw the series in order. Each series has
// its own colour and marker; from the fifteenth series on, also dashes. Where a series coincides with earlier ones, its
// line is dashed and its markers are smaller, so that the others stay visible below it.
#include <algorithm>
#include <cmath>

#include "charts/chart.h"
#include "charts/chart_parts.h"
#include "system/failure.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

// The palette of Okabe and Ito (2008), without its yellow, which is hard to see on white; then dark colours of Paul Tol's
// "muted" scheme, which differ from these by lightness too.
constexpr Rgb kSeriesColors[] = {{0x00, 0x72, 0xB2}, {0xD5, 0x5E, 0x00}, {0x00, 0x9E, 0x73}, {0xCC, 0x79, 0xA7}, {0xE6, 0x9F, 0x00},
                                 {0x56, 0xB4, 0xE9}, {0x55, 0x55, 0x55}, {0x33, 0x22, 0x88}, {0x88, 0x22, 0x55}, {0x99, 0x99, 0x33},
                                 {0x66, 0x11, 0x00}, {0x44, 0xAA, 0x99}, {0xAA, 0x44, 0x99}, {0x11, 0x11, 0x11}};
constexpr size_t kColors = sizeof kSeriesColors / sizeof *kSeriesColors;
constexpr Marker kMarkers[] = {Marker::circle, Marker::square, Marker::triangle, Marker::diamond};
constexpr double kLineWidth = 2.2, kThinLineWidth = 1.5, kReferenceWidth = 1.4, kMarkerRadius = 4.4;
constexpr Dash kSeriesDash{7, 5}, kReferenceDash{3, 4};
constexpr double kSamePlace = 1.5;       // pixels; nearer points of two series coincide
constexpr size_t kMostCompared = 4096;   // points of a series that are compared with other series
constexpr size_t kMostMarkers = 40;      // per series; a longer series is a line without markers
constexpr size_t kMostPoints = 1 << 16;  // more points do not change the picture
constexpr size_t kMostLegendRows = 3;
constexpr size_t kMostOrderedNames = 9;  // in the legend

bool is_dashed(const LineChart& chart, size_t i) { return chart.series[i].dashed || (!chart.ordered && (i / kColors) % 2 == 1); }
Marker marker_of(const LineChart& chart, size_t i) { return chart.ordered ? Marker::circle : kMarkers[i % 4]; }
Rgb color_of(const LineChart& chart, size_t i) { return chart.ordered ? ordered_color(i, chart.series.size()) : series_color(i); }

void check(const LineChart& chart) {
  for (const Series& s : chart.series) {
    if (s.x.size() != s.y.size()) {
      throw Failure(kExitFailure, format("chart '%s', series '%s': %zu x values and %zu y values", chart.title.c_str(), s.name.c_str(),
                                         s.x.size(), s.y.size()));
    }
  }
}

bool shown(const Axis& axis, double v) { return present(v) && (!axis.log2 || v > 1e-90); }

// The range of an axis: only values whose partner can be shown too.
Range axis_range(const LineChart& chart, const Axis& axis, bool is_x, size_t most) {
  std::vector<double> seen;
  for (const Series& s : chart.series) {
    for (size_t i = 0; i < s.x.size(); ++i) {
      if (shown(chart.x, s.x[i]) && shown(chart.y, s.y[i])) seen.push_back(is_x ? s.x[i] : s.y[i]);
    }
  }
  if (!is_x) {
    for (const ReferenceLine& r : chart.references) {
      if (shown(axis, r.y)) seen.push_back(r.y);
    }
  }
  if (seen.empty() && axis.log2) seen = {1, 2};
  const double min = shown(axis, axis.min) ? axis.min : kMissing, max = shown(axis, axis.max) ? axis.max : kMissing;
  Range range = range_of({&seen}, min, max);
  if (axis.log2) {
    const double low = std::max(range.min, range.max * 1e-9);  // a single value may have fallen below 0
    const Range wide = rounded_out_log2({low, range.max});
    range = {present(min) ? range.min : wide.min, present(max) ? range.max : wide.max};
    if (!(range.min > 0)) range.min = range.max / 2;
    return range;
  }
  // Along x, lines reach the edges. Along y, the plot ends at round numbers.
  if (is_x) return range;
  const Range wide = rounded_out(range, most);
  return {present(min) ? range.min : wide.min, present(max) ? range.max : wide.max};
}

Ticks axis_ticks(const Axis& axis, Range range, size_t most) {
  if (axis.log2) {
    Ticks ticks = log2_ticks(range, most, axis.numbers);
    if (ticks.values.size() >= 2) return ticks;
  }
  return linear_ticks(range, most, axis.numbers);
}

// The number of points that the axes can show.
size_t count_shown(const LineChart& chart, const Series& s) {
  size_t n = 0;
  for (size_t i = 0; i < s.x.size(); ++i) n += shown(chart.x, s.x[i]) && shown(chart.y, s.y[i]);
  return n;
}
bool has_markers(const Series& s, size_t n_shown) { return !s.line || n_shown <= kMostMarkers; }
double line_width(size_t n_shown) { return n_shown <= kMostMarkers ? kLineWidth : kThinLineWidth; }

struct LegendEntry {
  std::string name;
  Rgb color;
  double width;  // width of the line, 0 without a line
  Dash dash;
  bool with_marker;
  Marker marker;
  Point at;  // its left end
};
constexpr double kSample = 26, kBetween = 22;

// Places entries in rows from left to right. Returns the number of rows.
size_t lay_out_legend(const LineChart& chart, std::vector<LegendEntry>* entries) {
  const size_t n_series = chart.series.size();
  const size_t stride = chart.ordered ? (n_series + kMostOrderedNames - 1) / kMostOrderedNames : 1;
  for (size_t i = 0; i < n_series; i += stride) {
    const Series& s = chart.series[i];
    if (!s.name.empty()) {
      const size_t n = count_shown(chart, s);
      entries->push_back({s.name,
                          color_of(chart, i),
                          s.line ? line_width(n) : 0,
                          is_dashed(chart, i) ? kSeriesDash : Dash{},
                          has_markers(s, n),
                          marker_of(chart, i),
                          {}});
    }
  }
  for (const ReferenceLine& r : chart.references) {
    if (!r.name.empty()) entries->push_back({r.name, kFaint, kReferenceWidth, kReferenceDash, false, Marker::circle, {}});
  }
  double x = kEdge;
  size_t row = 0;
  for (size_t i = 0; i < entries->size(); ++i) {
    LegendEntry& e = (*entries)[i];
    e.name = Canvas::fitted(e.name, 260);
    const double width = kSample + 6 + Canvas::text_width(e.name);
    if (x > kEdge && x + width > chart.width - kEdge) {
      x = kEdge;
      ++row;
    }
    if (row == kMostLegendRows) {  // the last placed entry is replaced by the number of hidden entries
      const size_t rest = entries->size() - i + 1;
      entries->resize(i);
      LegendEntry& last = entries->back();
      last.name = "and " + std::to_string(rest) + " more";
      last.width = 0;
      last.with_marker = false;
      return kMostLegendRows;
    }
    e.at = {x, double(row) * 22};
    x += width + kBetween;
  }
  return entries->empty() ? 0 : row + 1;
}

void draw_legend(Canvas* canvas, const std::vector<LegendEntry>& entries, double top) {
  for (const LegendEntry& e : entries) {
    const double y = top + e.at.y + 8.5, x = e.at.x;
    if (e.width > 0) canvas->line({x + 1, y}, {x + kSample - 1, y}, e.color, e.width, e.dash);
    if (e.with_marker) canvas->marker(e.marker, {x + kSample / 2, y}, kMarkerRadius, e.color);
    canvas->text({x + kSample + 6, y}, e.name, {kInk, 1, Align::left, false, false});
  }
}

// Consecutive points in one column of pixels are reduced to four: the first, the lowest, the highest, the last.
std::vector<Point> thinned(const std::vector<Point>& points) {
  std::vector<Point> kept;
  for (size_t i = 0; i < points.size();) {
    size_t end = i + 1, low = i, high = i;
    while (end < points.size() && std::floor(points[end].x) == std::floor(points[i].x)) {  // NaN equals nothing
      if (points[end].y < points[low].y) low = end;
      if (points[end].y > points[high].y) high = end;
      ++end;
    }
    std::vector<size_t> picks = {i, low, high, end - 1};
    std::sort(picks.begin(), picks.end());
    picks.erase(std::unique(picks.begin(), picks.end()), picks.end());
    for (size_t p : picks) kept.push_back(points[p]);
    i = end;
  }
  if (kept.size() <= kMostPoints) return kept;
  std::vector<Point> some;
  const size_t stride = (kept.size() + kMostPoints - 1) / kMostPoints;
  for (size_t i = 0; i < kept.size(); i += stride) some.push_back(kept[i]);
  return some;
}

// For each point of a series, the number of earlier series that have a point at the same place.
std::vector<size_t> covered(const LinePicture& picture, const LineChart& chart, size_t index) {
  const Series& s = chart.series[index];
  std::vector<size_t> n(s.x.size(), 0);
  const auto is_shown = [&](const Series& of, size_t i) { return shown(chart.x, of.x[i]) && shown(chart.y, of.y[i]); };
  for (size_t other = 0; other < index && s.x.size() <= kMostCompared; ++other) {
    const Series& o = chart.series[other];
    if (chart.ordered || o.x.size() > kMostMarkers) continue;
    for (size_t i = 0; i < s.x.size(); ++i) {
      if (!is_shown(s, i)) continue;
      const Point p = picture.at(s.x[i], s.y[i]);
      for (size_t j = 0; j < o.x.size(); ++j) {
        if (!is_shown(o, j)) continue;
        const Point q = picture.at(o.x[j], o.y[j]);
        if (std::abs(p.x - q.x) >= kSamePlace || std::abs(p.y - q.y) >= kSamePlace) continue;
        ++n[i];
        break;
      }
    }
  }
  return n;
}

void draw_series(LinePicture* picture, const LineChart& chart, size_t index) {
  const Series& s = chart.series[index];
  const Rgb color = color_of(chart, index);
  const size_t n_shown = count_shown(chart, s);
  std::vector<Point> points(s.x.size());
  for (size_t i = 0; i < s.x.size(); ++i) {
    const bool known = shown(chart.x, s.x[i]) && shown(chart.y, s.y[i]);
    points[i] = known ? picture->at(s.x[i], s.y[i]) : Point{kMissing, kMissing};
  }
  const std::vector<size_t> below_point = covered(*picture, chart, index);
  Canvas& canvas = picture->canvas;
  const Rect plot = picture->plot;
  if (s.line) {
    canvas.clip({plot.x - 2, plot.y - 2, plot.w + 4, plot.h + 4});
    // Runs of segments that lie on as many earlier lines: a segment lies on those that both of its ends lie on.
    for (size_t from = 0; from + 1 < points.size() || from == 0;) {
      const auto below = [&](size_t i) { return std::min(below_point[i], below_point[i + 1]); };
      size_t end = from;  // the run's last point
      while (end + 1 < points.size() && below(end) == below(from)) ++end;
      if (end == from) break;
      const size_t n_below = below(from);
      const double gap = 7.0 * static_cast<double>(n_below);
      canvas.polyline(
          thinned(std::vector<Point>(points.begin() + static_cast<ptrdiff_t>(from), points.begin() + static_cast<ptrdiff_t>(end) + 1)),
          color, line_width(n_shown),
          n_below > 0               ? Dash{7, gap}
          : is_dashed(chart, index) ? kSeriesDash
                                    : Dash{});
      from = end;
    }
    canvas.clip_nothing();
  }
  const bool few = has_markers(s, n_shown);
  const double radius = n_shown <= kMostMarkers ? kMarkerRadius : 2.2;
  const auto missing = [&](size_t i) { return i >= points.size() || !std::isfinite(points[i].x); };
  size_t drawn = 0;
  for (size_t i = 0; i < points.size() && drawn < kMostPoints; ++i) {
    const Point p = points[i];
    const bool inside = p.x >= plot.x - .5 && p.x <= plot.right() + .5 && p.y >= plot.y - .5 && p.y <= plot.bottom() + .5;
    if (!inside) continue;
    const bool alone = missing(i + 1) && (i == 0 || missing(i - 1));  // no line would show this point
    if (!few && !alone) continue;
    const double size = std::max(2.4, radius - static_cast<double>(below_point[i]));
    if (few && s.line && below_point[i] == 0)
      canvas.marker(marker_of(chart, index), p, radius + 1.4, kPaper);  // a rim keeps crossings visible
    canvas.marker(marker_of(chart, index), p, size, color);
    ++drawn;
  }
}

}  // namespace

Rgb ordered_color(size_t i, size_t n) { return ramp_color(n > 1 ? .88 * double(i) / double(n - 1) : 0); }

Rgb series_color(size_t i) { return kSeriesColors[i % kColors]; }

Point LinePicture::at(double x, double y) const {
  const auto share = [](double v, double low, double high, bool log2) {
    return log2 ? (std::log2(v) - std::log2(low)) / (std::log2(high) - std::log2(low)) : (v - low) / (high - low);
  };
  return {plot.x + plot.w * share(x, x_min, x_max, x_log2), plot.bottom() - plot.h * share(y, y_min, y_max, y_log2)};
}

LinePicture draw(const LineChart& chart) {
  check(chart);
  if (chart.width < 320 || chart.height < 240) {
    throw Failure(kExitFailure,
                  format("chart '%s': %d x %d pixels, at least 320 x 240 are needed", chart.title.c_str(), chart.width, chart.height));
  }
  Canvas canvas(chart.width, chart.height, kPaper);
  double top = draw_titles(&canvas, chart.title, chart.subtitle);
  std::vector<LegendEntry> legend;
  const size_t legend_rows = lay_out_legend(chart, &legend);
  draw_legend(&canvas, legend, top);
  top += double(legend_rows) * 22 + 12;

  const double bottom = chart.height - kEdge - 22 - (chart.x.label.empty() ? 0 : 24);
  const auto most_y = static_cast<size_t>(std::clamp((bottom - top) / 45, 2.0, 11.0));
  const Range ys = axis_range(chart, chart.y, false, most_y);
  const Ticks y_ticks = axis_ticks(chart.y, ys, most_y);
  double label_width = 0;
  for (const std::string& label : y_ticks.labels) label_width = std::max(label_width, Canvas::text_width(label));
  const double left = std::round(kEdge + (chart.y.label.empty() ? 0 : 24) + label_width + 10);
  const Rect plot{left, std::round(top), std::round(chart.width - kEdge - 8 - left), std::round(bottom) - std::round(top)};

  const auto most_x = static_cast<size_t>(std::clamp(plot.w / 75, 2.0, 12.0));
  const Range xs = axis_range(chart, chart.x, true, most_x);
  const Ticks x_ticks = axis_ticks(chart.x, xs, most_x);
  LinePicture picture{std::move(canvas), plot, xs.min, xs.max, ys.min, ys.max, chart.x.log2, chart.y.log2};
  Canvas& c = picture.canvas;

  for (size_t i = 0; i < y_ticks.values.size(); ++i) {
    const double y = std::floor(picture.at(xs.min, y_ticks.values[i]).y);
    c.fill({plot.x, y, plot.w, 1}, kGridLine);
    c.text({plot.x - 10, y + .5}, y_ticks.labels[i], {kFaint, 1, Align::right, false, false});
  }
  double free_from = -1e9;
  for (size_t i = 0; i < x_ticks.values.size(); ++i) {
    const double x = std::floor(picture.at(x_ticks.values[i], ys.min).x);
    c.fill({x, plot.y, 1, plot.h}, kGridLine);
    c.fill({x, plot.bottom(), 1, 5}, kAxisLine);
    const double half = Canvas::text_width(x_ticks.labels[i]) / 2;
    if (x - half < free_from) continue;
    c.text({x + .5, plot.bottom() + 16}, x_ticks.labels[i], {kFaint, 1, Align::centre, false, false});
    free_from = x + half + 8;
  }
  c.fill({plot.x, plot.bottom(), plot.w, 1}, kAxisLine);
  c.text({plot.x + plot.w / 2, plot.bottom() + 39}, Canvas::fitted(chart.x.label, plot.w), {kInk, 1, Align::centre, false, false});
  c.text({kEdge + 4, plot.y + plot.h / 2}, Canvas::fitted(chart.y.label, plot.h), {kInk, 1, Align::centre, false, true});

  for (const ReferenceLine& r : chart.references) {
    if (!shown(chart.y, r.y) || r.y < ys.min || r.y > ys.max) continue;
    const double y = std::floor(picture.at(xs.min, r.y).y) + .5;
    c.line({plot.x, y}, {plot.right(), y}, kFaint, kReferenceWidth, kReferenceDash);
  }
  size_t n_shown = 0;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    draw_series(&picture, chart, i);
    n_shown += count_shown(chart, chart.series[i]);
  }
  if (n_shown == 0) {
    c.text({plot.x + plot.w / 2, plot.y + plot.h / 2}, "no data", {kFaint, 1.5, Align::centre, false, false});
  }
  return picture;
}

}  // namespace orrery::tool

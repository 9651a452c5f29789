// See chart_steps.h. Numbers are written with one decimal, so that the same data gives the same bytes.
#include "charts/chart_steps.h"

#include <algorithm>
#include <cmath>

#include "charts/chart.h"
#include "system/failure.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

constexpr double kWidth = 960, kLeft = 90, kRight = 24, kTop = 64, kBar = 34, kGap = 14, kLegendLine = 20;
constexpr int kLegendColumns = 3;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

std::string words(double x, double y, const std::string& text, const char* more = "") {
  return format("<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, more) + escaped(text) + "</text>\n";
}

std::string block(double x, double y, double w, double h, const std::string& color, const std::string& title) {
  return format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>", x, y, w, h, color.c_str()) +
         escaped(title) + "</title></rect>\n";
}

bool drawn(double length) { return std::isfinite(length) && length > 0; }

}  // namespace

std::string svg(const StepChart& chart) {
  const size_t n = chart.parts.size();
  bool fits = chart.lengths.size() == chart.bars.size() && chart.idle.size() == n;
  for (const auto& bar : chart.lengths) fits = fits && bar.size() == n;
  if (!fits) throw Failure(kExitFailure, chart.title + ": the sizes of the chart's data disagree");

  double longest = 0;
  for (const auto& bar : chart.lengths) {
    double sum = 0;
    for (const double length : bar) sum += drawn(length) ? length : 0;
    longest = std::max(longest, sum);
  }
  const double scale = longest > 0 ? (kWidth - kLeft - kRight) / longest : 0;
  std::vector<std::string> colors;
  size_t n_colored = 0;
  for (size_t i = 0; i < n; ++i) {
    const Rgb c = chart.idle[i] ? Rgb{0xDD, 0xDD, 0xDD} : series_color(n_colored++);
    colors.push_back(format("#%02x%02x%02x", c.r, c.g, c.b));
  }
  const double legend_top = kTop + static_cast<double>(chart.bars.size()) * (kBar + kGap) + 30;
  const size_t legend_rows = (n + kLegendColumns - 1) / kLegendColumns;
  const double height = legend_top + static_cast<double>(legend_rows) * kLegendLine + 10;

  std::string out = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"white\"/>\n",
      kWidth, height, kWidth, height, kWidth, height);
  out += words(16, 24, chart.title, "font-size=\"15\" font-weight=\"bold\"");
  out += words(16, 44, chart.subtitle, "fill=\"#555\"");
  for (size_t b = 0; b < chart.bars.size(); ++b) {
    const double y = kTop + static_cast<double>(b) * (kBar + kGap);
    out += words(kLeft - 8, y + kBar / 2 + 5, chart.bars[b], "text-anchor=\"end\"");
    double x = kLeft;
    for (size_t i = 0; i < n; ++i) {
      const double length = chart.lengths[b][i];
      if (!drawn(length)) continue;
      out += block(x, y, std::max(length * scale, 0.5), kBar, colors[i], chart.parts[i] + format(": %.0f us", length));
      x += length * scale;
    }
  }
  // Five marks, from 0 to the longest bar.
  for (int mark = 0; mark <= 4 && longest > 0; ++mark) {
    const double at = longest * mark / 4;
    out += words(kLeft + at * scale, legend_top - 18, longest < 10000 ? format("%.0f us", at) : format("%.1f ms", at / 1000),
                 mark == 0   ? "fill=\"#555\""
                 : mark == 4 ? "fill=\"#555\" text-anchor=\"end\""
                             : "fill=\"#555\" text-anchor=\"middle\"");
  }
  for (size_t i = 0; i < n; ++i) {
    const double x = 16 + static_cast<double>(i % kLegendColumns) * (kWidth - 32) / kLegendColumns;
    const double y = legend_top + static_cast<double>(i / kLegendColumns) * kLegendLine;
    out += block(x, y, 12, 12, colors[i], chart.parts[i]) + words(x + 18, y + 11, chart.parts[i]);
  }
  return out + "</svg>\n";
}

}  // namespace orrery::tool

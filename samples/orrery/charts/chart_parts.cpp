// See chart_parts.h.
#include "charts/chart_parts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "terminal/output.h"

namespace orrery::tool {
namespace {

struct Step {
  int factor, exponent;  // factor * 10^exponent
  // i steps, rounded once, so 3 * .1 is .3.
  double times(double i) const {
    const double power = std::pow(10.0, std::abs(exponent));
    return exponent < 0 ? i * factor / power : i * factor * power;
  }
  double first(Range r) const { return std::ceil(r.min / times(1) - 1e-9); }
  double last(Range r) const { return std::floor(r.max / times(1) + 1e-9); }
};

Step step_for(Range range, size_t most) {
  most = std::max<size_t>(most, 2);
  int exponent = static_cast<int>(std::floor(std::log10((range.max - range.min) / double(most)))) - 1;
  for (;; ++exponent) {
    for (int factor : {1, 2, 5}) {
      const Step step{factor, exponent};
      if (step.last(range) - step.first(range) + 1 <= double(most)) return step;
    }
  }
}

// Polar OKLab (lightness, chroma, hue in degrees) to sRGB, clipped to the colours of a screen.
Rgb from_oklch(double lightness, double chroma, double hue) {
  const double radians = hue * std::acos(-1.0) / 180;
  const double a = chroma * std::cos(radians), b = chroma * std::sin(radians);
  const auto cube = [](double v) { return v * v * v; };
  const double l = cube(lightness + .3963377774 * a + .2158037573 * b);
  const double m = cube(lightness - .1055613458 * a - .0638541728 * b);
  const double s = cube(lightness - .0894841775 * a - 1.2914855480 * b);
  const auto screen = [](double v) {
    v = std::clamp(v, 0.0, 1.0);
    v = v <= .0031308 ? 12.92 * v : 1.055 * std::pow(v, 1 / 2.4) - .055;
    return static_cast<uint8_t>(std::lround(v * 255));
  };
  return {screen(4.0767416621 * l - 3.3077115913 * m + .2309699292 * s), screen(-1.2684380046 * l + 2.6097574011 * m - .3413193965 * s),
          screen(-.0041960863 * l - .7034186147 * m + 1.7076147010 * s)};
}

}  // namespace

bool present(double value) { return std::isfinite(value) && std::abs(value) <= kLargest; }

Range range_of(const std::vector<const std::vector<double>*>& data, double min, double max) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const std::vector<double>* values : data) {
    for (double v : *values) {
      if (!present(v)) continue;
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
  const bool some = low <= high;
  if (!some) low = 0, high = 1;
  if (present(min)) low = min;
  if (present(max)) high = max;
  if (!present(min) && low > high) low = high;
  if (low > high) high = low;
  const double narrow = std::max(1e-9 * std::max(std::abs(low), std::abs(high)), 1e-90);
  if (high - low < narrow) {  // a single value goes to the middle
    const double around = low == 0 ? 1 : std::max(std::abs(low) / 2, 1e-90);
    if (present(min) && !present(max)) return {low, low + around};
    if (present(max) && !present(min)) return {high - around, high};
    return {low - around, high + around};
  }
  return {low, high};
}

Ticks linear_ticks(Range range, size_t most, Numbers numbers) {
  const Step step = step_for(range, most);
  Ticks ticks;
  const int decimals = std::max(0, -step.exponent - (numbers == Numbers::percent ? 2 : 0));
  for (double i = step.first(range); i <= step.last(range); ++i) {
    const double value = i == 0 ? 0 : step.times(i);  // no -0
    if (!ticks.values.empty() && value <= ticks.values.back()) continue;
    ticks.values.push_back(value);
    ticks.labels.push_back(spelled(value, numbers, decimals));
  }
  return ticks;
}

Range rounded_out(Range range, size_t most) {
  // The wider range may need a wider step. Two rounds are enough.
  for (int i = 0; i < 2; ++i) {
    const Step step = step_for(range, most);
    range = {step.times(std::floor(range.min / step.times(1) + 1e-9)), step.times(std::ceil(range.max / step.times(1) - 1e-9))};
  }
  return range;
}

Ticks log2_ticks(Range range, size_t most, Numbers numbers) {
  most = std::max<size_t>(most, 2);
  const int first = static_cast<int>(std::ceil(std::log2(range.min) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log2(range.max) + 1e-9));
  Ticks ticks;
  const int n = last - first + 1, at_most = static_cast<int>(most);
  const int stride = std::max(1, (n + at_most - 1) / at_most);
  for (int e = first; e <= last; e += stride) {
    ticks.values.push_back(std::ldexp(1.0, e));
    ticks.labels.push_back(spelled(ticks.values.back(), numbers, std::clamp(-e - (numbers == Numbers::percent ? 2 : 0), 0, 9)));
  }
  return ticks;
}

Range rounded_out_log2(Range range) {
  double first = std::floor(std::log2(range.min) + 1e-9), last = std::ceil(std::log2(range.max) - 1e-9);
  if (last <= first) last = first + 1;
  return {std::exp2(first), std::exp2(last)};
}

std::string spelled(double value, Numbers numbers, int decimals) {
  if (!present(value)) return "-";
  const double size = std::abs(value);
  if (numbers == Numbers::percent && size < 1e6) {
    return format("%.*f%%", std::min(decimals, 9), value * 100);
  }
  if (numbers == Numbers::tokens && size >= 1024 && size < 1e15) {
    const double mega = value / (1 << 20), kilo = value / 1024;
    if (mega == std::floor(mega)) return format("%.0fM", mega);
    if (kilo == std::floor(kilo)) return format("%.0fK", kilo);
  }
  if (size >= 1e7 || decimals > 6) return format("%.6g", value);
  std::string text = format("%.*f", decimals, size);
  const size_t point = std::min(text.find('.'), text.size());
  for (size_t i = point; i > 3; i -= 3) text.insert(i - 3, ",");
  return (value < 0 ? "-" : "") + text;
}

std::string spelled_short(double value, Numbers numbers) {
  if (!present(value)) return "";
  if (numbers == Numbers::percent && std::abs(value) < 100) return format("%.0f", value * 100);
  if (numbers == Numbers::tokens) return spelled(value, numbers, 0);
  if (value == std::floor(value) && std::abs(value) < 1e5) return format("%.0f", value);
  return std::abs(value) < 10 ? format("%.2f", value) : format("%.3g", value);
}

double share_of(double value, Range range) { return (value - range.min) / (range.max - range.min); }

bool is_dark(Rgb c) { return .299 * c.r + .587 * c.g + .114 * c.b < 140; }

Rgb ramp_color(double share) {
  static const std::array<Rgb, 256> table = [] {
    std::array<Rgb, 256> colors{};
    for (size_t i = 0; i < colors.size(); ++i) {
      const double t = double(i) / double(colors.size() - 1);
      colors[i] = from_oklch(.26 + .66 * t, .13 - .05 * std::sin(std::acos(-1.0) * t) + .04 * t, 292 - 187 * t);
    }
    return colors;
  }();
  if (!(share > 0)) return table.front();
  return table[static_cast<size_t>(std::lround(std::min(share, 1.0) * double(table.size() - 1)))];
}

double title_height(const std::string& title, const std::string& subtitle) {
  return kEdge + (title.empty() ? 0 : 22) + (subtitle.empty() ? 0 : 20) + 10;
}

double draw_titles(Canvas* canvas, const std::string& title, const std::string& subtitle) {
  const double room = canvas->width() - 2 * kEdge;
  double y = kEdge + 7;
  if (!title.empty()) {
    canvas->text({kEdge, y}, Canvas::fitted(title, room, 1.5), {kInk, 1.5, Align::left, true, false});
    y += 24;
  }
  if (!subtitle.empty()) {
    canvas->text({kEdge, y}, Canvas::fitted(subtitle, room), {kFaint, 1, Align::left, false, false});
  }
  return title_height(title, subtitle);
}

}  // namespace orrery::tool

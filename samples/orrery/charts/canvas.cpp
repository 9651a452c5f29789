// See canvas.h.
#include "charts/canvas.h"

#include <algorithm>
#include <cmath>

#include "charts/canvas_font.h"
#include "charts/canvas_png.h"
#include "system/failure.h"
#include "system/write_file.h"

namespace orrery::tool {
namespace {

constexpr double kFar = 1e6;  // pixels; farther away, exactness is invisible

bool drawable(Point p) { return std::isfinite(p.x) && std::isfinite(p.y); }
Point tamed(Point p) { return {std::clamp(p.x, -kFar, kFar), std::clamp(p.y, -kFar, kFar)}; }
double covered(double distance_inside) { return std::clamp(distance_inside + .5, 0.0, 1.0); }

}  // namespace

Canvas::Canvas(int width, int height, Rgb background) : width_(width), height_(height) {
  if (width < 1 || height < 1 || width > kLargestSide || height > kLargestSide) {
    throw Failure(kExitFailure, "a picture of " + std::to_string(width) + " x " + std::to_string(height) +
                                    " pixels: each side must be 1 to " + std::to_string(kLargestSide));
  }
  const size_t n = static_cast<size_t>(width) * static_cast<size_t>(height);
  pixels_.resize(n * 3);
  mask_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    pixels_[3 * i] = background.r;
    pixels_[3 * i + 1] = background.g;
    pixels_[3 * i + 2] = background.b;
  }
  clip_nothing();
}

Rgb Canvas::pixel(int x, int y) const {
  const size_t at = (static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x)) * 3;
  return {pixels_.at(at), pixels_.at(at + 1), pixels_.at(at + 2)};
}

void Canvas::clip_nothing() {
  clip_x_ = {0, width_};
  clip_y_ = {0, height_};
}

void Canvas::clip(Rect inside) {
  clip_nothing();
  clip_x_ = columns(inside.x, inside.right() - 1);
  clip_y_ = rows(inside.y, inside.bottom() - 1);
}

Canvas::Span Canvas::columns(double from, double to) const {
  if (!(from <= to)) return {0, 0};
  const double first = std::clamp(std::floor(from), double(clip_x_.first), double(clip_x_.last));
  const double last = std::clamp(std::floor(to) + 1, double(clip_x_.first), double(clip_x_.last));
  return {static_cast<int>(first), static_cast<int>(last)};
}

Canvas::Span Canvas::rows(double from, double to) const {
  if (!(from <= to)) return {0, 0};
  const double first = std::clamp(std::floor(from), double(clip_y_.first), double(clip_y_.last));
  const double last = std::clamp(std::floor(to) + 1, double(clip_y_.first), double(clip_y_.last));
  return {static_cast<int>(first), static_cast<int>(last)};
}

void Canvas::blend(int x, int y, Rgb color, double alpha) {
  uint8_t* p = &pixels_[(static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x)) * 3];
  const auto mix = [&](uint8_t under, uint8_t over) { return static_cast<uint8_t>(std::lround(under + (over - under) * alpha)); };
  p[0] = mix(p[0], color.r);
  p[1] = mix(p[1], color.g);
  p[2] = mix(p[2], color.b);
}

void Canvas::fill(Rect area, Rgb color, double alpha) {
  if (!drawable({area.x, area.y}) || !drawable({area.w, area.h}) || !(alpha > 0)) return;
  alpha = std::min(alpha, 1.0);
  const Span xs = columns(area.x, area.right()), ys = rows(area.y, area.bottom());
  const auto share = [](double from, double to, int at) {  // the share of the pixel that the area covers
    return std::max(0.0, std::min(to, at + 1.0) - std::max(from, double(at)));
  };
  for (int y = ys.first; y < ys.last; ++y) {
    const double down = share(area.y, area.bottom(), y);
    for (int x = xs.first; x < xs.last; ++x) {
      const double cover = down * share(area.x, area.right(), x) * alpha;
      if (cover > 0) blend(x, y, color, cover);
    }
  }
}

void Canvas::frame(Rect area, Rgb color, double thickness) {
  const double t = std::min({thickness, area.w / 2, area.h / 2});
  fill({area.x, area.y, area.w, t}, color);
  fill({area.x, area.bottom() - t, area.w, t}, color);
  fill({area.x, area.y + t, t, area.h - 2 * t}, color);
  fill({area.right() - t, area.y + t, t, area.h - 2 * t}, color);
}

void Canvas::stroke(Point from, Point to, double thickness) {
  const double reach = thickness / 2 + .5;  // farther away, no pixel is covered
  const double dx = to.x - from.x, dy = to.y - from.y, square = dx * dx + dy * dy;
  const Span ys = rows(std::min(from.y, to.y) - reach - .5, std::max(from.y, to.y) + reach - .5);
  for (int y = ys.first; y < ys.last; ++y) {
    const double cy = y + .5;
    // The part of the line that this row can touch.
    double t0 = 0, t1 = 1;
    if (std::abs(dy) > 1e-9) {
      const double a = (cy - reach - from.y) / dy, b = (cy + reach - from.y) / dy;
      t0 = std::clamp(std::min(a, b), 0.0, 1.0);
      t1 = std::clamp(std::max(a, b), 0.0, 1.0);
    }
    const double x0 = from.x + dx * t0, x1 = from.x + dx * t1;
    const Span xs = columns(std::min(x0, x1) - reach - .5, std::max(x0, x1) + reach - .5);
    for (int x = xs.first; x < xs.last; ++x) {
      const double px = x + .5 - from.x, py = cy - from.y;
      const double t = square > 0 ? std::clamp((px * dx + py * dy) / square, 0.0, 1.0) : 0;
      const double distance = std::hypot(px - dx * t, py - dy * t);
      const double cover = covered(thickness / 2 - distance);
      if (cover <= 0) continue;
      float& mask = mask_[static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x)];
      mask = std::max(mask, static_cast<float>(cover));
    }
    if (xs.first < xs.last) {
      const bool fresh = mask_x_.first == mask_x_.last;
      mask_x_ = {fresh ? xs.first : std::min(mask_x_.first, xs.first), fresh ? xs.last : std::max(mask_x_.last, xs.last)};
      mask_y_ = {fresh ? y : std::min(mask_y_.first, y), fresh ? y + 1 : std::max(mask_y_.last, y + 1)};
    }
  }
}

void Canvas::blend_mask(Rgb color) {
  for (int y = mask_y_.first; y < mask_y_.last; ++y) {
    for (int x = mask_x_.first; x < mask_x_.last; ++x) {
      float& mask = mask_[static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x)];
      if (mask > 0) blend(x, y, color, mask);
      mask = 0;
    }
  }
  mask_x_ = mask_y_ = {0, 0};
}

void Canvas::line(Point from, Point to, Rgb color, double thickness, Dash dash) { polyline({from, to}, color, thickness, dash); }

void Canvas::polyline(const std::vector<Point>& points, Rgb color, double thickness, Dash dash) {
  if (!(thickness > 0)) return;
  std::vector<Point> run;
  const auto draw_run = [&] {
    if (dash.on > 0 && dash.off > 0) {
      stroke_dashed(run, thickness, dash);
    } else {
      for (size_t i = 1; i < run.size(); ++i) stroke(run[i - 1], run[i], thickness);
    }
    run.clear();
  };
  for (const Point& p : points) {  // a point that is no number breaks the line
    if (drawable(p)) {
      run.push_back(tamed(p));
    } else {
      draw_run();
    }
  }
  draw_run();
  blend_mask(color);
}

void Canvas::stroke_dashed(const std::vector<Point>& points, double thickness, Dash dash) {
  const double period = dash.on + dash.off;
  double at = 0;  // position in the period
  for (size_t i = 1; i < points.size(); ++i) {
    const Point a = points[i - 1], b = points[i];
    const double length = std::hypot(b.x - a.x, b.y - a.y);
    for (double done = 0; done < length;) {
      const bool on = at < dash.on;
      const double step = std::min(std::max((on ? dash.on : period) - at, 1e-3), length - done);
      const auto along = [&](double d) { return Point{a.x + (b.x - a.x) * d / length, a.y + (b.y - a.y) * d / length}; };
      if (on) stroke(along(done), along(done + step), thickness);
      done += step;
      at += step;
      if (at >= period - 1e-9) at = 0;
    }
  }
}

void Canvas::disc(Point centre, double radius, Rgb color) {
  if (!drawable(centre) || !(radius > 0)) return;
  stroke(tamed(centre), tamed(centre), 2 * std::min(radius, kFar));
  blend_mask(color);
}

void Canvas::convex(const std::vector<Point>& corners, Rgb color) {
  double left = kFar, right = -kFar, top = kFar, bottom = -kFar;
  for (const Point& p : corners) {
    left = std::min(left, p.x);
    right = std::max(right, p.x);
    top = std::min(top, p.y);
    bottom = std::max(bottom, p.y);
  }
  const Span xs = columns(left - 1, right + 1), ys = rows(top - 1, bottom + 1);
  for (int y = ys.first; y < ys.last; ++y) {
    for (int x = xs.first; x < xs.last; ++x) {
      double inside = kFar;  // the distance to the nearest edge; the corners are in clockwise order
      for (size_t i = 0; i < corners.size(); ++i) {
        const Point a = corners[i], b = corners[(i + 1) % corners.size()];
        const double length = std::hypot(b.x - a.x, b.y - a.y);
        inside = std::min(inside, ((b.x - a.x) * (y + .5 - a.y) - (b.y - a.y) * (x + .5 - a.x)) / length);
      }
      const double cover = covered(inside);
      if (cover > 0) blend(x, y, color, cover);
    }
  }
}

void Canvas::marker(Marker shape, Point c, double radius, Rgb color) {
  if (!drawable(c) || !(radius > 0) || radius > kFar) return;
  c = tamed(c);
  const double r = radius;
  switch (shape) {  // radii at which all four shapes look equally large
    case Marker::circle: disc(c, r, color); break;
    case Marker::square:
      convex(
          {{c.x - .88 * r, c.y - .88 * r}, {c.x + .88 * r, c.y - .88 * r}, {c.x + .88 * r, c.y + .88 * r}, {c.x - .88 * r, c.y + .88 * r}},
          color);
      break;
    case Marker::triangle: convex({{c.x, c.y - 1.2 * r}, {c.x + 1.15 * r, c.y + .8 * r}, {c.x - 1.15 * r, c.y + .8 * r}}, color); break;
    case Marker::diamond:
      convex({{c.x, c.y - 1.25 * r}, {c.x + 1.25 * r, c.y}, {c.x, c.y + 1.25 * r}, {c.x - 1.25 * r, c.y}}, color);
      break;
  }
}

double Canvas::text_width(std::string_view words, double size) {
  double width = 0;
  for (const Glyph& glyph : glyphs_of(words)) width += glyph.advance * size;
  return width;
}

std::string Canvas::fitted(std::string_view words, double width, double size) {
  if (text_width(words, size) <= width) return std::string(words);
  const double dots = text_width("...", size);
  double used = 0;
  size_t kept = 0;
  while (kept < words.size()) {
    size_t next = kept + 1;  // never cuts a character
    while (next < words.size() && (static_cast<unsigned char>(words[next]) & 0xC0) == 0x80) ++next;
    used += text_width(words.substr(kept, next - kept), size);
    if (used + dots > width) break;
    kept = next;
  }
  return std::string(words.substr(0, kept)) + "...";
}

void Canvas::text(Point anchor, std::string_view words, const TextStyle& style) {
  if (!drawable(anchor) || !(style.size > 0)) return;
  anchor = tamed(anchor);
  const double width = text_width(words, style.size);
  const double before = style.align == Align::left ? 0 : style.align == Align::centre ? width / 2 : width;
  // Stems and the baseline are centred on pixels: at size 1, a stem fills one column and touches no other.
  const double half = kCapHeight * style.size / 2;
  const Point origin = style.upwards ? Point{std::round(anchor.x + half + .5) - .5, std::round(anchor.y + before)}
                                     : Point{std::round(anchor.x - before), std::round(anchor.y + half + .5) - .5};
  const double thickness = style.size * (style.bold ? 1.45 : 1.15);
  double pen = 0;
  for (const Glyph& glyph : glyphs_of(words)) {
    const double start = std::round(pen) + kSideBearing * style.size;
    for (const std::vector<Point>& outline : outline_of(glyph)) {
      const auto place = [&](Point p) {
        const double along = start + p.x * style.size, up = p.y * style.size;
        return style.upwards ? Point{origin.x - up, origin.y - along} : Point{origin.x + along, origin.y - up};
      };
      for (size_t i = 1; i < outline.size(); ++i) stroke(place(outline[i - 1]), place(outline[i]), thickness);
    }
    pen += glyph.advance * style.size;
    if (pen > 2 * kFar) break;
  }
  blend_mask(style.color);
}

std::string Canvas::png() const {
  std::string bytes;
  if (!encode_png(pixels_.data(), width_, height_, &bytes)) {
    throw Failure(kExitFailure, "not enough memory to make a PNG picture");
  }
  return bytes;
}

void Canvas::save_png(const std::string& path) const { write_file(path, png()); }

}  // namespace orrery::tool

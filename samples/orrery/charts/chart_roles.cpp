// The role map (chart.h): layers from left to right, a layer's KV heads from top to bottom, a colour per role. In a
// layer, a line leads from each pivot to the satellites that follow it, with a ring on the pivot and a dot on each
// satellite. Pivots and satellites share a hue, because they share their keys.
#include <algorithm>
#include <array>
#include <cmath>

#include "charts/chart.h"
#include "charts/chart_cells.h"
#include "charts/chart_parts.h"
#include "system/failure.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

constexpr std::array<HeadRole, 4> kRoles = {HeadRole::pivot, HeadRole::satellite, HeadRole::volatile_head, HeadRole::anchor};
constexpr double kLinksFrom = 13;  // in pixels of a cell; in smaller cells, lines would hide the colours

const char* role_word(HeadRole role) {
  switch (role) {
    case HeadRole::anchor: return "anchor";
    case HeadRole::volatile_head: return "volatile";
    case HeadRole::pivot: return "pivot";
    case HeadRole::satellite: return "satellite";
  }
  return "";
}

void check(const RoleMap& map) {
  const auto fits = [&](size_t n) {
    return map.n_kv_heads == 0 || map.n_layers == 0 ? n == 0 : n / map.n_kv_heads == map.n_layers && n % map.n_kv_heads == 0;
  };
  const auto complain = [&](const char* what, size_t n) {
    return Failure(kExitFailure,
                   format("chart '%s': %zu layers of %zu KV heads, but %zu %s", map.title.c_str(), map.n_layers, map.n_kv_heads, n, what));
  };
  if (!fits(map.roles.size())) throw complain("roles", map.roles.size());
  if (!map.pivot_of.empty() && !fits(map.pivot_of.size())) throw complain("pivots", map.pivot_of.size());
  for (size_t pivot : map.pivot_of) {
    if (pivot != kNoPivot && pivot >= map.n_kv_heads) {
      throw Failure(kExitFailure, format("chart '%s': pivot %zu, but a layer has %zu KV heads", map.title.c_str(), pivot, map.n_kv_heads));
    }
  }
}

void draw_links(Canvas* canvas, const RoleMap& map, const CellArea& cells, size_t layer) {
  const size_t n = map.n_kv_heads;
  std::vector<size_t> pivots;  // pivots with satellites
  for (size_t h = 0; h < n; ++h) {
    const size_t pivot = map.pivot_of[layer * n + h];
    if (pivot != kNoPivot && std::find(pivots.begin(), pivots.end(), pivot) == pivots.end()) pivots.push_back(pivot);
  }
  std::sort(pivots.begin(), pivots.end());
  const Rect first = cells.cell(0, layer);
  const double radius = std::min(3.2, (first.w - 3) / (2 * double(pivots.size()) + 1));
  for (size_t lane = 0; lane < pivots.size(); ++lane) {  // the clusters are drawn side by side in the column
    const double x = first.x + (first.w - 1) * (double(lane) + 1) / (double(pivots.size()) + 1);
    const auto middle = [&](size_t head) {
      const Rect cell = cells.cell(head, layer);
      return Point{x, cell.y + (cell.h - 1) / 2};
    };
    size_t top = pivots[lane], bottom = top;
    for (size_t h = 0; h < n; ++h) {
      if (map.pivot_of[layer * n + h] != pivots[lane]) continue;
      top = std::min(top, h);
      bottom = std::max(bottom, h);
    }
    canvas->line(middle(top), middle(bottom), kInk, 1.2);
    for (size_t h = 0; h < n; ++h) {
      if (map.pivot_of[layer * n + h] == pivots[lane] && h != pivots[lane]) {
        canvas->disc(middle(h), std::max(radius * .8, 1.0), kInk);
      }
    }
    canvas->disc(middle(pivots[lane]), radius + 1.4, kInk);
    canvas->disc(middle(pivots[lane]), radius, kPaper);
  }
}

}  // namespace

Rgb role_color(HeadRole role) {
  switch (role) {
    case HeadRole::anchor: return {0xB9, 0xBE, 0xC5};
    case HeadRole::volatile_head: return {0xE6, 0x7E, 0x22};
    case HeadRole::pivot: return {0x1F, 0x6F, 0xB4};
    case HeadRole::satellite: return {0xA3, 0xCF, 0xEE};
  }
  return kNoValue;
}

RolePicture draw(const RoleMap& map) {
  check(map);
  const bool nothing = map.roles.empty();
  const size_t rows = nothing ? 0 : map.n_kv_heads, columns = nothing ? 0 : map.n_layers;
  // Square cells, unless one side would become too small.
  double w = cell_side(columns, 1000, 36), h = cell_side(rows, 640, 36);
  if (w >= 8 && h >= 8) w = h = std::min(w, h);
  const double plot_w = nothing ? 480 : std::max(1.0, std::round(w * double(columns)));
  const double plot_h = nothing ? 200 : std::max(1.0, std::round(h * double(rows)));

  std::array<size_t, 4> counts{};
  for (HeadRole role : map.roles) {
    const auto at = static_cast<size_t>(role);
    if (at >= counts.size()) throw Failure(kExitFailure, "chart '" + map.title + "': a role that is none");
    ++counts[at];
  }
  const auto percent = [&](size_t n) { return nothing ? 0 : 100 * double(n) / double(map.roles.size()); };
  const size_t full = counts[size_t(HeadRole::pivot)] + counts[size_t(HeadRole::volatile_head)];
  const std::string sum = format("whole KV on the device: %zu of %zu heads (%.1f%%)", full, map.roles.size(), percent(full));

  // The legend sets the minimum width of the picture.
  std::array<std::string, 4> entries;
  double legend_width = 0;
  for (size_t i = 0; i < kRoles.size(); ++i) {
    const size_t count = counts[size_t(kRoles[i])];
    entries[i] = format("%s %zu (%.1f%%)", role_word(kRoles[i]), count, percent(count));
    legend_width += 20 + Canvas::text_width(entries[i]) + 22;
  }
  const double left = std::round(kEdge + 24 + widest_name({}, rows, kWidestName) + 7);
  const double legend_top = title_height(map.title, map.subtitle) + 2;
  const double top = std::round(legend_top + 54);
  const double words = std::min(std::max(Canvas::text_width(map.title, 1.5), Canvas::text_width(map.subtitle)), 900.0);
  const double width = std::ceil(std::max({left + plot_w, kEdge + legend_width, kEdge + Canvas::text_width(sum), kEdge + words}) + kEdge);
  const double height = top + plot_h + 50 + kEdge;

  RolePicture picture{Canvas(static_cast<int>(width), static_cast<int>(height), kPaper), {{left, top, plot_w, plot_h}, rows, columns}};
  Canvas& c = picture.canvas;
  draw_titles(&c, map.title, map.subtitle);
  double x = kEdge;
  for (size_t i = 0; i < kRoles.size(); ++i) {
    c.fill({std::round(x), legend_top + 2, 14, 14}, role_color(kRoles[i]));
    c.text({x + 20, legend_top + 9}, entries[i], {kInk, 1, Align::left, false, false});
    x += 20 + Canvas::text_width(entries[i]) + 22;
  }
  c.text({kEdge, legend_top + 31}, sum, {kFaint, 1, Align::left, false, false});
  if (nothing) {
    c.fill(picture.cells.plot, kNoValue);
    c.text({left + plot_w / 2, top + plot_h / 2}, "no data", {kFaint, 1.5, Align::centre, false, false});
    return picture;
  }
  const double cell_w = plot_w / double(columns), cell_h = plot_h / double(rows);
  const double gap = cell_w >= 6 && cell_h >= 6 ? 1 : 0;
  for (size_t layer = 0; layer < columns; ++layer) {
    for (size_t head = 0; head < rows; ++head) {
      Rect cell = picture.cells.cell(head, layer);
      cell.w -= gap;
      cell.h -= gap;
      c.fill(cell, role_color(map.roles[layer * map.n_kv_heads + head]));
    }
    if (!map.pivot_of.empty() && std::min(cell_w, cell_h) >= kLinksFrom) draw_links(&c, map, picture.cells, layer);
  }
  draw_cell_names(&c, picture.cells, {}, {}, "KV head", "layer");
  return picture;
}

}  // namespace orrery::tool

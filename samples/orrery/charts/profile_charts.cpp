// See profile_charts.h.
#include "charts/profile_charts.h"

#include <algorithm>
#include <array>

#include "charts/chart.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

constexpr std::array<const char*, 4> kRoleNames = {"anchor", "volatile", "pivot", "satellite"};
constexpr std::array<HeadRole, 4> kRoles = {HeadRole::anchor, HeadRole::volatile_head, HeadRole::pivot, HeadRole::satellite};

size_t role_of(const Json& name) {
  for (size_t r = 0; r < kRoleNames.size(); ++r)
    if (name == kRoleNames[r]) return r;
  return 0;
}

double number(const Json& json) { return json.is_number() ? json.get<double>() : kMissing; }

RoleMap role_map(const std::string& title, const Json& profile) {
  const Json& layers = profile.at("layers");
  RoleMap map;
  map.title = title;
  map.n_layers = layers.size();
  map.n_kv_heads = layers.at(0).at("roles").size();
  // Imported profiles do not state their thresholds.
  map.subtitle = layers.at(0).contains("stability")
                     ? format("tau_sim %g, tau_stable %g", number(profile.at("tau_sim")), number(profile.at("tau_stable")))
                     : profile.at("note").get<std::string>();
  for (const Json& layer : layers) {
    for (const Json& role : layer.at("roles")) map.roles.push_back(kRoles[role_of(role)]);
    for (const Json& pivot : layer.at("pivot_of")) map.pivot_of.push_back(pivot.is_null() ? kNoPivot : pivot.get<size_t>());
  }
  return map;
}

// (n_heads, n_heads) from the pairs i < j, row by row. The diagonal is missing.
Grid pair_grid(const Json& pairs, size_t n_heads) {
  Grid grid{n_heads, n_heads, std::vector<double>(n_heads * n_heads, kMissing)};
  size_t at = 0;
  for (size_t i = 0; i < n_heads; ++i)
    for (size_t j = i + 1; j < n_heads; ++j, ++at) grid.values[i * n_heads + j] = grid.values[j * n_heads + i] = number(pairs.at(at));
  return grid;
}

Series by_rank(const std::string& name, std::vector<double> values) {
  std::sort(values.begin(), values.end(), std::greater<>());
  Series series;
  series.name = name;
  for (size_t i = 0; i < values.size(); ++i) {
    series.x.push_back(static_cast<double>(i + 1) / static_cast<double>(values.size()));
    series.y.push_back(values[i]);
  }
  return series;
}

LineChart stability_chart(const std::string& title, const Json& profile, const std::vector<Grid>& similarity, double chance) {
  std::vector<double> stability, companion;
  const Json& layers = profile.at("layers");
  for (size_t l = 0; l < layers.size(); ++l) {
    for (const Json& s : layers.at(l).at("stability")) stability.push_back(number(s));
    const size_t n = similarity[l].rows;
    for (size_t i = 0; i < n && n > 1; ++i) {
      double most = 0;
      for (size_t j = 0; j < n; ++j)
        if (i != j) most = std::max(most, similarity[l].values[i * n + j]);
      companion.push_back(most);
    }
  }
  LineChart chart;
  chart.title = title;
  chart.subtitle = "overlap of the sets of keys that heads attend to most, median over decode steps";
  chart.x.label = "share of the heads that have at least so much";
  chart.x.numbers = Numbers::percent;
  chart.y.label = "overlap";
  chart.x.min = chart.y.min = 0;
  chart.x.max = chart.y.max = 1;
  chart.series.push_back(by_rank("stability: own set at the prompt's end", stability));
  if (!companion.empty()) chart.series.push_back(by_rank("similarity: most similar head", companion));
  const double tau_sim = number(profile.at("tau_sim")), tau_stable = number(profile.at("tau_stable"));
  if (tau_sim == tau_stable) {
    chart.references.push_back({format("tau_sim = tau_stable = %g", tau_sim), tau_sim});
  } else {
    chart.references.push_back({format("tau_sim %g", tau_sim), tau_sim});
    chart.references.push_back({format("tau_stable %g", tau_stable), tau_stable});
  }
  chart.references.push_back({format("random sets %.2g", chance), chance});
  return chart;
}

HeatMap layer_map(const std::string& title, const Json& overlap) {
  HeatMap map;
  map.title = title;
  map.subtitle = "share of a head's set that its best match there has; on the diagonal: another head of the layer";
  map.row_label = map.column_label = "layer";
  map.grid.rows = map.grid.columns = overlap.size();
  for (const Json& row : overlap)
    for (const Json& x : row) map.grid.values.push_back(number(x));
  map.scale.label = "overlap";
  map.square = true;
  return map;
}

// Mean over the heads for which `takes(layer, head)` is true. Empty if there is no such head.
template <class F>
Series mean_drift(const Json& drift, size_t n_steps, F takes) {
  Series series;
  std::vector<double> sum(n_steps, 0.0);
  size_t n = 0;
  for (size_t l = 0; l < drift.size(); ++l)
    for (size_t h = 0; h < drift[l].size(); ++h) {
      if (!takes(l, h)) continue;
      ++n;
      for (size_t t = 0; t < n_steps; ++t) sum[t] += number(drift[l][h].at(t));
    }
  for (size_t t = 0; t < n_steps && n > 0; ++t) {
    series.x.push_back(static_cast<double>(t + 1));
    series.y.push_back(sum[t] / static_cast<double>(n));
  }
  return series;
}

LineChart drift_chart(const std::string& title, const Json& profile, double chance) {
  LineChart chart;
  chart.title = title;
  chart.subtitle = "overlap with the set of the prompt's last query, mean over heads";
  chart.x.label = "decode step";
  chart.y.label = "overlap";
  chart.y.min = 0;
  chart.y.max = 1;
  const double tau = number(profile.at("tau_drift"));
  chart.references.push_back({format("tau_drift %g", tau), tau});
  chart.references.push_back({format("random sets %.2g", chance), chance});
  return chart;
}

}  // namespace

std::vector<std::string> write_profile_charts(const std::string& folder, const std::string& name, const Json& profile, const Json* steps) {
  std::vector<std::string> paths;
  const auto save = [&](const auto& chart, const char* file) {
    paths.push_back(folder + "/" + file);
    draw(chart).canvas.save_png(paths.back());
  };
  const Json& layers = profile.at("layers");
  save(role_map("Head roles: " + name, profile), "roles.png");

  const size_t n_heads = layers.at(0).at("roles").size();
  std::vector<Grid> similarity;
  for (const Json& layer : layers)
    if (layer.contains("similarity")) similarity.push_back(pair_grid(layer.at("similarity"), n_heads));
  if (similarity.size() == layers.size() && n_heads > 1) {
    HeatGrid grid;
    grid.title = "Similarity of a layer's heads: " + name;
    grid.subtitle = "overlap of their sets, median over decode steps";
    for (size_t l = 0; l < layers.size(); ++l) grid.names.push_back(format("layer %zu", l));
    grid.panels = similarity;
    grid.scale = {"overlap", Numbers::plain, 0, kMissing};
    save(grid, "similarity.png");
  }
  if (!steps) return paths;

  const double chance = number(steps->at("chance"));
  if (similarity.size() == layers.size())
    save(stability_chart("Stability and similarity: " + name, profile, similarity, chance), "stability.png");
  save(layer_map("What layers have in common: " + name, steps->at("layer_overlap")), "layers.png");

  const Json& drift = steps->at("drift");
  const auto n_steps = steps->at("n_steps").get<size_t>();
  LineChart chart = drift_chart("Drift by role: " + name, profile, chance);
  for (size_t r = 0; r < kRoleNames.size(); ++r) {
    size_t n = 0;
    Series series = mean_drift(drift, n_steps, [&](size_t l, size_t h) {
      const bool takes = role_of(layers.at(l).at("roles").at(h)) == r;
      n += takes;
      return takes;
    });
    if (n == 0) continue;
    series.name = format("%s (%zu)", kRoleNames[r], n);
    chart.series.push_back(std::move(series));
  }
  save(chart, "drift.png");
  chart = drift_chart("Drift by layer: " + name, profile, chance);
  chart.ordered = true;
  for (size_t l = 0; l < layers.size(); ++l) {
    chart.series.push_back(mean_drift(drift, n_steps, [&](size_t layer, size_t) { return layer == l; }));
    chart.series.back().name = format("layer %zu", l);
  }
  save(chart, "drift-layers.png");
  return paths;
}

}  // namespace orrery::tool

// See charts.h.
#include "eval/charts.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "system/write_file.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

constexpr size_t kDepthRows = 10;

// Text as part of a file name.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool keep = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (keep || (!out.empty() && out.back() != '-')) out += keep ? c : '-';
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.substr(0, 80);
}

// One line per policy: values of its rows at the share of full attention's KV that its budget is.
template <class Value>
std::vector<Series> lines_over_budgets(const EvalResults& results, uint64_t length, const Value& value) {
  const EvalRow full = results.row(0, length, "");
  std::map<std::string, std::vector<std::pair<double, double>>> points;
  std::vector<std::string> order;
  for (size_t c = 1; c < results.configs.size(); ++c) {
    const EvalConfig& config = results.configs[c];
    const EvalRow row = results.row(c, length, "");
    if (row.answers == 0) continue;
    // A budget in bytes is drawn at the same place as the equal share. Full attention in another type has no budget.
    const double share = (config.bytes == 0 && !config.budget.empty()) || full.device_kv_bytes == 0
                             ? static_cast<double>(config.share)
                             : static_cast<double>(row.device_kv_bytes) / static_cast<double>(full.device_kv_bytes);
    if (!points.count(config.policy)) order.push_back(config.policy);
    points[config.policy].emplace_back(share, value(row));
  }
  std::vector<Series> lines;
  for (const std::string& policy : order) {
    auto& of_policy = points[policy];
    std::sort(of_policy.begin(), of_policy.end());
    Series series;
    series.name = policy;
    for (const auto& [x, y] : of_policy) {
      series.x.push_back(x);
      series.y.push_back(y);
    }
    lines.push_back(std::move(series));
  }
  return lines;
}

LineChart over_budgets(const std::string& title, uint64_t length) {
  LineChart chart;
  chart.title = title + format(" against budget, %s tokens", grouped(length).c_str());
  chart.x.label = "KV cache on the device, share of full attention's";
  chart.x.numbers = Numbers::percent;
  chart.x.min = 0;
  chart.x.max = 1;
  return chart;
}

}  // namespace

LineChart accuracy_chart(const EvalResults& results, uint64_t length) {
  const EvalRow full = results.row(0, length, "");
  LineChart chart = over_budgets("Accuracy", length);
  chart.subtitle = format("mean score of %zu answers", full.scored);
  chart.y.label = "score";
  chart.y.min = 0;
  chart.y.max = 1;
  chart.series = lines_over_budgets(results, length, [](const EvalRow& row) { return row.scored ? row.score : kMissing; });
  if (full.scored > 0) chart.references = {{"full", full.score}};
  return chart;
}

LineChart kl_chart(const EvalResults& results, uint64_t length) {
  LineChart chart = over_budgets("Divergence from full attention", length);
  chart.subtitle = format("mean over the tokens of %zu answers; less is better", results.row(0, length, "").answers);
  chart.y.label = "KL(full || policy), nats";
  chart.y.log2 = true;
  chart.series = lines_over_budgets(results, length, [](const EvalRow& row) { return row.kl.value_or(kMissing); });
  return chart;
}

HeatMap depth_map(const EvalResults& results, size_t config) {
  const std::vector<uint64_t> lengths = results.lengths();
  HeatMap map;
  map.title = "Score by depth and length: " + results.configs[config].policy +
              (results.configs[config].budget.empty() ? "" : " " + results.configs[config].budget);
  map.row_label = "depth of the answer in the text";
  map.column_label = "tokens of the text";
  for (size_t r = 0; r < kDepthRows; ++r) {
    map.row_names.push_back(format("%zu-%zu%%", r * 100 / kDepthRows, (r + 1) * 100 / kDepthRows));
  }
  for (const uint64_t length : lengths) map.column_names.push_back(grouped(length));
  map.grid.rows = kDepthRows;
  map.grid.columns = lengths.size();
  map.grid.values.assign(kDepthRows * lengths.size(), 0);
  std::vector<size_t> n(map.grid.values.size(), 0);
  for (const EvalPoint& point : results.points()) {
    if (point.config != config || !(point.depth >= 0)) continue;
    const size_t r = std::min(kDepthRows - 1, static_cast<size_t>(point.depth * kDepthRows));
    const auto column =
        static_cast<size_t>(std::find(lengths.begin(), lengths.end(), results.samples[point.sample].length) - lengths.begin());
    map.grid.values[r * lengths.size() + column] += point.score;
    ++n[r * lengths.size() + column];
  }
  size_t all = 0;
  for (size_t i = 0; i < n.size(); ++i) {
    map.grid.values[i] = n[i] ? map.grid.values[i] / static_cast<double>(n[i]) : kMissing;
    all += n[i];
  }
  map.subtitle = format("mean score of %zu answers", all);
  map.scale.label = "score";
  map.scale.min = 0;
  map.scale.max = 1;
  return map;
}

void write_charts(const std::string& folder, const EvalResults& results) {
  for (const uint64_t length : results.lengths()) {
    const auto write = [&](const char* name, const LineChart& chart) {
      if (!chart.series.empty())
        write_file(format("%s/%s-%llu.png", folder.c_str(), name, static_cast<unsigned long long>(length)), draw(chart).canvas.png());
    };
    write("accuracy", accuracy_chart(results, length));
    write("kl", kl_chart(results, length));
  }
  for (size_t c = 0; c < results.configs.size(); ++c) {
    const HeatMap map = depth_map(results, c);
    if (std::all_of(map.grid.values.begin(), map.grid.values.end(), [](double v) { return std::isnan(v); })) continue;
    const EvalConfig& config = results.configs[c];
    write_file(format("%s/depth-%02zu-%s.png", folder.c_str(), c, plain(config.policy + "-" + config.budget).c_str()),
               draw(map).canvas.png());
  }
}

}  // namespace orrery::tool

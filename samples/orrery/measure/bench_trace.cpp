// See bench_trace.h. The library names operations, and products by type and shape; the file's tensors of that type and shape give
// their names. Times are means over all steps of all runs that count.
#include "measure/bench_trace.h"

#include <algorithm>
#include <cstring>

#include "charts/chart_steps.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

std::string product_key(const std::string& type, uint64_t n_in, uint64_t n_out) {
  return type + format(" %llux%llu", static_cast<unsigned long long>(n_in), static_cast<unsigned long long>(n_out));
}

// "blk.7.ffn_gate.weight" -> "ffn_gate"
std::string short_name(std::string name) {
  if (name.rfind("blk.", 0) == 0) name.erase(0, name.find('.', 4) + 1);
  constexpr std::string_view kEnd = ".weight";
  if (name.size() > kEnd.size() && name.compare(name.size() - kEnd.size(), kEnd.size(), kEnd) == 0) name.resize(name.size() - kEnd.size());
  return name;
}

const char* plain_name(const std::string& operation) {
  if (operation == "embed") return "embedding's row";
  if (operation == "norm") return "norms";
  if (operation == "quantize") return "activations to bytes";
  if (operation == "rope") return "rope";
  if (operation == "append_kv") return "KV written";
  if (operation == "delta_net") return "delta nets";
  if (operation == "mamba2") return "Mamba2";
  if (operation == "short_conv") return "short convolutions";
  if (operation == "attend") return "attention";
  if (operation == "swiglu") return "swiglu";
  if (operation == "add") return "additions";
  return "other";
}

}  // namespace

StepTrace::StepTrace(const Json& tensors) {
  const bool has_output = std::any_of(tensors.begin(), tensors.end(), [](const Json& t) { return t.at("name") == "output.weight"; });
  for (const Json& tensor : tensors) {
    const Json& shape = tensor.at("shape");
    if (shape.size() < 2) continue;
    const std::string full = tensor.at("name");
    if (full == "token_embd.weight" && has_output) continue;
    const std::string name = full == "token_embd.weight" || full == "output.weight" ? "vocabulary" : short_name(full);
    const std::string key = product_key(tensor.at("type"), shape[1].get<uint64_t>(), shape[0].get<uint64_t>());  // (rows, columns)
    const auto known = std::find_if(products_.begin(), products_.end(), [&](const auto& p) { return p.first == key; });
    if (known == products_.end()) {
      products_.emplace_back(key, name);
    } else if ((", " + known->second + ", ").find(", " + name + ", ") == std::string::npos) {
      known->second += ", " + name;
    }
  }
}

void StepTrace::clear() {
  rows_.clear();
  steps_ = steps_us_ = operations_us_ = 0;
  decode_us_ = 0, tokens_ = 0;
}

void StepTrace::receive(void* user, int32_t level, const char* message) {
  constexpr const char* kMark = "trace ";
  if (std::strncmp(message, kMark, std::strlen(kMark)) == 0)
    static_cast<StepTrace*>(user)->take(Json::parse(message + std::strlen(kMark), nullptr, false));
  else if (level <= ORRERY_LOG_WARNING) note(message);
}

std::string StepTrace::name_of(const Json& line) const {
  const std::string operation = line.value("operation", "");
  if (operation != "product") return plain_name(operation);
  const std::string type = line.value("type", "");
  const std::string key = product_key(type, line["shape"][0].get<uint64_t>(), line["shape"][1].get<uint64_t>());
  const auto known = std::find_if(products_.begin(), products_.end(), [&](const auto& p) { return p.first == key; });
  return (known == products_.end() ? std::string("product") : known->second) + " (" + key + ")";
}

void StepTrace::take(const Json& line) {
  if (line.is_discarded() || !line.is_object()) return;
  if (line.contains("steps")) {
    steps_ += line["steps"].get<double>();
    steps_us_ += line["ns"].get<double>() / 1000;
    operations_us_ += line["operations_ns"].get<double>() / 1000;
    n_threads_ = std::max(n_threads_, line["threads"].get<size_t>());
    return;
  }
  const std::string name = name_of(line);
  auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.name == name; });
  if (row == rows_.end()) row = rows_.insert(rows_.end(), Row{name, 0, 0, {}, {}});
  row->bytes += line["bytes"].get<double>();
  row->calls += line["calls"].get<double>();
  const auto add = [](const Json& from, std::vector<double>* to) {
    to->resize(std::max(to->size(), from.size()));
    for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i].get<double>() / 1000;
  };
  add(line["busy_ns"], &row->busy_us);
  add(line["waiting_ns"], &row->waiting_us);
}

std::vector<StepTrace::Line> StepTrace::lines() const {
  std::vector<Line> lines;
  const size_t n = rows_.empty() ? 0 : rows_[0].busy_us.size();
  const auto mean = [&](const std::vector<double>& values) {
    double sum = 0;
    for (const double v : values) sum += v;
    return values.empty() ? 0 : sum / static_cast<double>(values.size());
  };
  Line waiting{"waiting for other threads", 0, 0, std::vector<double>(n), true};
  for (const Row& row : rows_) {
    Line line{row.name, 0, row.bytes / steps_, row.busy_us, false};
    for (double& us : line.threads_us) us /= steps_;
    line.us = mean(line.threads_us);
    lines.push_back(line);
    for (size_t i = 0; i < n && i < row.waiting_us.size(); ++i) waiting.threads_us[i] += row.waiting_us[i] / steps_;
  }
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) { return a.us > b.us; });
  waiting.us = mean(waiting.threads_us);
  lines.push_back(waiting);
  const auto all_threads = [&](const char* name, double us) { lines.push_back({name, us, 0, std::vector<double>(n, us), true}); };
  all_threads("between operations", (steps_us_ - operations_us_) / steps_);
  all_threads("sampling, and around the step", std::max(0.0, step_us() - steps_us_ / steps_));
  return lines;
}

std::string StepTrace::table(double read) const {
  const double step = step_us();
  std::string out =
      format("\nA decode step: %.0f us, mean of %.0f, by operation; bytes and GB/s of all threads; of read: beside %.1f GB/s\n\n", step,
             steps_, read / 1e9);
  out += format("%10s %7s %9s %6s %8s  ", "us", "of step", "MB", "GB/s", "of read");
  const size_t n = rows_.empty() ? 0 : rows_[0].busy_us.size(), shown = std::min<size_t>(n, 4);
  for (size_t i = 0; i < shown; ++i) out += format("%9s", ("thread " + std::to_string(i)).c_str());
  out += n > shown ? format("  (of %zu)\n", n) : "\n";
  for (const Line& line : lines()) {
    out += format("%10.1f %6.1f%% ", line.us, step > 0 ? 100 * line.us / step : 0);
    if (line.bytes > 0 && line.us > 0) {
      const double rate = line.bytes / line.us * 1e6;
      out +=
          format("%9.3f %6.1f ", line.bytes / 1e6, rate / 1e9) + (read > 0 ? format("%7.0f%%  ", 100 * rate / read) : format("%8s  ", "-"));
    } else {
      out += format("%9s %6s %8s  ", "-", "-", "-");
    }
    for (size_t i = 0; i < shown; ++i) out += format("%9.1f", line.threads_us[i]);
    out += "  " + line.name + "\n";
  }
  return out;
}

std::string StepTrace::svg(const std::string& title, double read) const {
  StepChart chart;
  chart.title = title;
  chart.subtitle =
      format("one decode step, %.0f us, by thread; reading its bytes at %.1f GB/s would take the bar below", step_us(), read / 1e9);
  const std::vector<Line> all = lines();
  const size_t n = rows_.empty() ? 0 : rows_[0].busy_us.size();
  double bytes = 0;
  for (const Line& line : all) {
    chart.parts.push_back(line.name);
    chart.idle.push_back(line.idle);
    bytes += line.bytes;
  }
  chart.parts.push_back("reading alone");
  chart.idle.push_back(true);
  for (size_t i = 0; i <= n; ++i) {
    std::vector<double> bar;
    for (const Line& line : all) bar.push_back(i < n ? line.threads_us[i] : 0);
    bar.push_back(i == n && read > 0 ? bytes / read * 1e6 : 0);
    chart.lengths.push_back(bar);
    chart.bars.push_back(i < n ? "thread " + std::to_string(i) : "limit");
  }
  return tool::svg(chart);
}

Json StepTrace::json(double read) const {
  Json rows = Json::array();
  for (const Line& line : lines())
    rows.push_back({{"name", line.name},
                    {"us", line.us},
                    {"bytes", line.bytes},
                    {"gb_per_second", line.bytes > 0 && line.us > 0 ? Json(line.bytes / line.us / 1e3) : Json()},
                    {"share_of_read", line.bytes > 0 && line.us > 0 && read > 0 ? Json(line.bytes / line.us * 1e6 / read) : Json()},
                    {"threads_us", line.threads_us}});
  return {{"step_us", step_us()}, {"steps", steps_}, {"rows", rows}};
}

}  // namespace orrery::tool

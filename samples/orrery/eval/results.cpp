// See results.h.
#include "eval/results.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "answer.h"

namespace orrery::tool {
namespace {

std::string title(const EvalConfig& config) { return config.budget.empty() ? config.policy : config.policy + " " + config.budget; }

std::string shown(const std::optional<double>& value, int digits) { return value ? format("%.*f", digits, *value) : "-"; }

Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace

std::vector<uint64_t> EvalResults::lengths() const {
  std::set<uint64_t> found;
  for (const EvalSample& sample : samples) found.insert(sample.length);
  return {found.begin(), found.end()};
}

std::vector<std::string> EvalResults::tasks() const {
  std::vector<std::string> found;
  for (const EvalSample& sample : samples) {
    if (std::find(found.begin(), found.end(), sample.task) == found.end()) found.push_back(sample.task);
  }
  return found;
}

EvalRow EvalResults::row(size_t config, uint64_t length, const std::string& task) const {
  EvalRow row;
  row.config = config;
  row.length = length;
  row.task = task;
  double score = 0, both = 0;
  std::vector<float> kl;
  bool aware_seen = false, agnostic_seen = false;
  uint64_t agreed = 0, prefill_us = 0, decode_us = 0;
  uint64_t n_checks = 0, n_triggers = 0, wanted = 0, missed = 0;
  std::vector<const EvalRecord*> full(samples.size(), nullptr);
  for (const Entry& entry : entries) {
    if (entry.config == 0) full[entry.sample] = &entry.record;
  }
  for (const Entry& entry : entries) {
    const EvalSample& sample = samples[entry.sample];
    if (entry.config != config || sample.length != length || (!task.empty() && sample.task != task)) continue;
    const EvalRecord& record = entry.record;
    (aware && !sample.question_after ? aware_seen : agnostic_seen) = true;
    if (!record.error.empty()) {
      row.error = record.error;
      continue;
    }
    for (size_t i = 0; i < record.answers.size(); ++i) {
      const EvalAnswer &answer = record.answers[i], &of_full = full[entry.sample]->answers[i];
      if (sample.has_right_answer(i)) score += answer.score, ++row.scored;
      if (counts_as_kept(sample.metric, sample.questions[i].answers, of_full.score, of_full.cut)) {
        row.kept_of += of_full.score;
        both += std::min(answer.score, of_full.score);
        if (answer.score < of_full.score && margin_at_difference(entry, i).value_or(kNearTie) < kNearTie)
          row.lost_at_ties += of_full.score - answer.score;
      }
      kl.insert(kl.end(), answer.kl.begin(), answer.kl.end());
      agreed += answer.agreed;
    }
    row.answers += record.answers.size();
    row.generated_tokens += record.generated_tokens;
    row.prompt_tokens += record.prompt_tokens;
    prefill_us += record.prefill_us;
    decode_us += record.decode_us;
    row.kv_type = record.kv_type;
    row.device_kv_type = record.device_kv_type;
    row.device_kv_bytes = std::max(row.device_kv_bytes, record.device_kv_bytes);
    row.host_to_device_bytes += record.host_to_device_bytes;
    row.transfer_us += record.transfer_us;
    row.stall_us += record.stall_us;
    n_checks += record.n_checks;
    n_triggers += record.n_triggers;
    wanted += record.wanted_tokens;
    missed += record.missed_tokens;
  }
  row.question = aware_seen && agnostic_seen ? "both" : agnostic_seen ? "agnostic" : "aware";
  if (row.scored > 0) row.score = score / static_cast<double>(row.scored);
  if (row.kept_of > 0) {
    row.kept = both / row.kept_of;
    const Interval interval = wilson(*row.kept, row.kept_of);
    row.kept_low = interval.low;
    row.kept_high = interval.high;
  }
  if (!kl.empty()) {
    double sum = 0;
    for (const float x : kl) sum += static_cast<double>(x);
    row.kl = sum / static_cast<double>(kl.size());
    row.top1 = static_cast<double>(agreed) / static_cast<double>(kl.size());
    // The smallest value that at least 99% of the tokens do not exceed.
    const size_t rank = (kl.size() * 99 + 99) / 100 - 1;
    std::nth_element(kl.begin(), kl.begin() + static_cast<std::ptrdiff_t>(rank), kl.end());
    row.kl_p99 = static_cast<double>(kl[rank]);
  }
  const auto ratio = [](uint64_t part, uint64_t of) { return static_cast<double>(part) / static_cast<double>(of); };
  if (wanted > 0) row.hits = 1 - ratio(missed, wanted);
  if (row.transfer_us > 0) row.hidden = 1 - ratio(row.stall_us, row.transfer_us);
  if (row.transfer_us > 0 && row.generated_tokens > 0) row.exposed_us = ratio(row.stall_us, row.generated_tokens);
  if (n_checks > 0 && row.generated_tokens > 0) row.triggers = 100 * ratio(n_triggers, row.generated_tokens);
  row.decode_tokens_per_second = per_second(row.generated_tokens, decode_us);
  row.prefill_tokens_per_second = per_second(row.prompt_tokens, prefill_us);
  return row;
}

std::vector<EvalRow> EvalResults::rows() const {
  std::vector<EvalRow> all;
  for (const uint64_t length : lengths()) {
    for (size_t config = 0; config < configs.size(); ++config) {
      all.push_back(row(config, length, ""));
      for (const std::string& task : tasks()) {
        const EvalRow of_task = row(config, length, task);
        if (of_task.answers > 0) all.push_back(of_task);
      }
    }
  }
  return all;
}

std::vector<EvalPoint> EvalResults::points() const {
  std::vector<EvalPoint> all;
  std::vector<const EvalRecord*> full(samples.size(), nullptr);
  for (const Entry& entry : entries) {
    if (entry.config == 0) full[entry.sample] = &entry.record;
    for (size_t i = 0; i < entry.record.answers.size(); ++i) {
      all.push_back({entry.sample, i, entry.config, samples[entry.sample].questions[i].depth, entry.record.answers[i].score,
                     full[entry.sample]->answers[i].score});
    }
  }
  return all;
}

std::optional<float> EvalResults::margin_at_difference(const Entry& entry, size_t question) const {
  const auto full = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.sample == entry.sample && e.config == 0; });
  for (size_t i = samples[entry.sample].multi_turn.value_or(multi_turn) ? 0 : question; i <= question; ++i) {
    const EvalAnswer &ours = entry.record.answers[i], &theirs = full->record.answers[i];
    const size_t n = std::min({ours.tokens.size(), theirs.tokens.size(), theirs.margin.size()});
    const auto differs = std::mismatch(theirs.tokens.begin(), theirs.tokens.begin() + static_cast<std::ptrdiff_t>(n), ours.tokens.begin());
    const auto at = static_cast<size_t>(differs.first - theirs.tokens.begin());
    if (at < n) return theirs.margin[at];
  }
  return std::nullopt;
}

namespace {

// `leaves`: which column leaves a narrow table first, from 1 on; 0: never.
struct Column {
  const char* title;
  int width, leaves;
};
constexpr Column kColumns[] = {{"answers", 7, 0}, {"score", 6, 0},  {"kept", 6, 0},      {"95% between", 11, 6}, {"KL", 9, 9},
                               {"KL p99", 9, 5},  {"top-1", 6, 7},  {"tokens/s", 9, 10}, {"device KV", 16, 8},   {"moved/token", 12, 4},
                               {"hits", 6, 3},    {"hidden", 7, 2}, {"exposed", 8, 2},   {"triggers", 8, 1}};

std::string padded(const std::string& text, int width) { return format("%*s", width, text.c_str()); }

}  // namespace

EvalTable::EvalTable(const EvalResults& results, size_t columns)
    : results_(results), title_width_(32), task_width_(14), shown_(std::size(kColumns), true) {
  if (columns == 0) return;
  size_t longest = 14, task = 4;
  for (const EvalConfig& config : results.configs) longest = std::max(longest, title(config).size());
  for (const std::string& name : results.tasks()) task = std::max(task, name.size());
  title_width_ = static_cast<int>(std::min<size_t>(longest, 32)), task_width_ = static_cast<int>(std::min<size_t>(task, 14));
  const auto width = [&] {
    size_t all = 8 + 2 + static_cast<size_t>(task_width_) + 2 + static_cast<size_t>(title_width_);
    for (size_t i = 0; i < shown_.size(); ++i) all += shown_[i] ? 1 + static_cast<size_t>(kColumns[i].width) : 0;
    return all;
  };
  for (int turn = 1; turn <= 10 && width() > columns; ++turn)
    for (size_t i = 0; i < shown_.size(); ++i)
      if (kColumns[i].leaves == turn) shown_[i] = false;
}

std::string EvalTable::head() const {
  std::string line = format("%8s  %-*s  %-*s", "length", task_width_, "task", title_width_, "policy, budget");
  for (size_t i = 0; i < shown_.size(); ++i)
    if (shown_[i]) line += " " + padded(kColumns[i].title, kColumns[i].width);
  return line + "\n";
}

std::string EvalTable::left_out() const {
  std::string names;
  for (size_t i = 0; i < shown_.size(); ++i)
    if (!shown_[i]) names += (names.empty() ? "" : ", ") + std::string(kColumns[i].title);
  return names;
}

std::string EvalTable::line(const EvalRow& row) const {
  std::string line = format("%8llu  %-*s  %-*s", static_cast<unsigned long long>(row.length), task_width_,
                            row.task.empty() ? "all" : row.task.c_str(), title_width_, title(results_.configs[row.config]).c_str());
  if (row.answers == 0) return line + " " + row.error + "\n";
  const std::string cells[] = {std::to_string(row.answers),
                               row.scored ? format("%.3f", row.score) : "-",
                               shown(row.kept, 3),
                               row.kept ? format("%.3f-%.3f", row.kept_low, row.kept_high) : "-",
                               shown(row.kl, 5),
                               shown(row.kl_p99, 4),
                               shown(row.top1, 3),
                               format("%.1f", row.decode_tokens_per_second),
                               human_bytes(row.device_kv_bytes) + " " + row.device_kv_type,
                               human_bytes(row.generated_tokens ? row.host_to_device_bytes / row.generated_tokens : 0),
                               shown(row.hits, 3),
                               shown(row.hidden, 3),
                               row.exposed_us ? format("%.1f us", *row.exposed_us) : "-",
                               shown(row.triggers, 1)};
  static_assert(std::size(cells) == std::size(kColumns));
  for (size_t i = 0; i < shown_.size(); ++i)
    if (shown_[i]) line += " " + padded(cells[i], kColumns[i].width);
  line += "\n";
  if (!row.error.empty()) line += format("%8s  some samples ", "") + row.error + "\n";
  return line;
}

Interval wilson(double p, double n) {
  constexpr double z = 1.959964;
  const double scale = 1 / (1 + z * z / n), middle = scale * (p + z * z / (2 * n));
  const double half = scale * z * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

std::string task_table(const EvalResults& results, size_t columns) {
  const std::vector<std::string> tasks = results.tasks();
  size_t longest = 14;
  for (const EvalConfig& config : results.configs) longest = std::max(longest, title(config).size());
  const int title_width = static_cast<int>(columns == 0 ? 32 : std::min<size_t>(longest, 32));
  const auto width = [](const std::string& task) { return std::max<size_t>(6, task.size()); };
  std::string text;
  for (size_t first = 0, last; first < tasks.size(); first = last) {
    size_t used = 8 + 2 + static_cast<size_t>(title_width);
    for (last = first; last < tasks.size() && (columns == 0 || last == first || used + 1 + width(tasks[last]) <= columns); ++last)
      used += 1 + width(tasks[last]);
    text += (first > 0 ? "\n" : "") + format("%8s  %-*s", "length", title_width, "score by task");
    for (size_t t = first; t < last; ++t) text += " " + padded(tasks[t], static_cast<int>(width(tasks[t])));
    text += "\n";
    for (const uint64_t length : results.lengths()) {
      for (size_t config = 0; config < results.configs.size(); ++config) {
        if (results.row(config, length, "").answers == 0) continue;
        text += format("%8llu  %-*s", static_cast<unsigned long long>(length), title_width, title(results.configs[config]).c_str());
        for (size_t t = first; t < last; ++t) {
          const EvalRow row = results.row(config, length, tasks[t]);
          text += " " + padded(row.scored ? format("%.3f", row.score) : "-", static_cast<int>(width(tasks[t])));
        }
        text += "\n";
      }
    }
  }
  return text;
}

Json results_json(const EvalResults& results) {
  Json rows = Json::array(), samples = Json::array(), answers = Json::array();
  for (const EvalRow& row : results.rows()) {
    const EvalConfig& config = results.configs[row.config];
    Json entry = {{"policy", config.policy},  {"budget", config.budget.empty() ? Json() : Json(config.budget)},
                  {"length", row.length},     {"task", row.task.empty() ? Json() : Json(row.task)},
                  {"question", row.question}, {"answers", row.answers}};
    if (!row.error.empty()) entry["error"] = row.error;
    if (row.answers > 0) {
      entry["score"] = row.scored ? Json(row.score) : Json();
      entry["kept"] = optional_json(row.kept);
      entry["kept_95"] = row.kept ? Json({row.kept_low, row.kept_high}) : Json();
      entry["kept_of"] = row.kept_of;
      entry["lost_at_ties"] = row.lost_at_ties;
      entry["kl"] = optional_json(row.kl);
      entry["kl_p99"] = optional_json(row.kl_p99);
      entry["top1"] = optional_json(row.top1);
      entry["decode_tokens_per_second"] = row.decode_tokens_per_second;
      entry["prefill_tokens_per_second"] = row.prefill_tokens_per_second;
      entry["kv_type"] = row.kv_type;
      entry["device_kv_type"] = row.device_kv_type;
      entry["device_kv_bytes"] = row.device_kv_bytes;
      entry["prompt_tokens"] = row.prompt_tokens;
      entry["generated_tokens"] = row.generated_tokens;
      entry["host_to_device_bytes"] = row.host_to_device_bytes;
      entry["transfer_us"] = row.transfer_us;
      entry["stall_us"] = row.stall_us;
      entry["hits"] = optional_json(row.hits);
      entry["hidden"] = optional_json(row.hidden);
      entry["exposed_us_per_token"] = optional_json(row.exposed_us);
      entry["triggers_per_100_tokens"] = optional_json(row.triggers);
    }
    rows.push_back(entry);
  }
  for (const EvalSample& sample : results.samples) {
    Json questions = Json::array();
    for (const EvalQuestion& question : sample.questions) {
      questions.push_back(
          {{"question", question.question}, {"answers", question.answers}, {"depth", question.depth < 0 ? Json() : Json(question.depth)}});
    }
    samples.push_back({{"id", sample.id},
                       {"task", sample.task},
                       {"length", sample.length},
                       {"metric", metric_name(sample.metric)},
                       {"questions", questions}});
  }
  for (const EvalResults::Entry& entry : results.entries) {
    const EvalConfig& config = results.configs[entry.config];
    const EvalSample& sample = results.samples[entry.sample];
    for (size_t i = 0; i < sample.questions.size(); ++i) {
      Json json = {{"sample", sample.id},
                   {"question", i},
                   {"asked", results.aware && !sample.question_after ? "aware" : "agnostic"},
                   {"policy", config.policy},
                   {"budget", config.budget.empty() ? Json() : Json(config.budget)}};
      if (!entry.record.error.empty()) {
        json["error"] = entry.record.error;
      } else {
        const EvalAnswer& answer = entry.record.answers[i];
        const auto mean = [&](double sum) { return answer.kl.empty() ? Json() : Json(sum / static_cast<double>(answer.kl.size())); };
        json["answer"] = answer.text;
        json["cut"] = answer.cut;
        json["score"] = sample.has_right_answer(i) ? Json(answer.score) : Json();
        json["kl"] = mean(std::accumulate(answer.kl.begin(), answer.kl.end(), 0.0));
        json["top1"] = mean(static_cast<double>(answer.agreed));
        const std::optional<float> margin = results.margin_at_difference(entry, i);
        json["margin"] = margin ? Json(*margin) : Json();  // of full attention, where the tokens part
      }
      answers.push_back(std::move(json));
    }
  }
  return {{"rows", rows}, {"samples", samples}, {"answers", answers}};
}

}  // namespace orrery::tool

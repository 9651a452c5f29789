// See results.h.
#include "eval/results.h"

#include <algorithm>
#include <set>

#include "answer.h"

namespace orrery::tool {
namespace {

std::string title(const EvalConfig& config) {
  return config.budget.empty() ? config.policy : config.policy + " " + config.budget;
}

std::string shown(const std::optional<double>& value, int digits) {
  return value ? format("%.*f", digits, *value) : "-";
}

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
  double score = 0, full_score = 0, both = 0, kl = 0;
  uint64_t compared = 0, agreed = 0, prompt_tokens = 0, prefill_us = 0, decode_us = 0;
  uint64_t n_checks = 0, n_triggers = 0, wanted = 0, missed = 0;
  std::vector<const EvalRecord*> full(samples.size(), nullptr);
  for (const Entry& entry : entries) {
    if (entry.config == 0) full[entry.sample] = &entry.record;
  }
  for (const Entry& entry : entries) {
    const EvalSample& sample = samples[entry.sample];
    if (entry.config != config || sample.length != length || (!task.empty() && sample.task != task)) continue;
    const EvalRecord& record = entry.record;
    if (!record.error.empty()) {
      row.error = record.error;
      continue;
    }
    for (size_t i = 0; i < record.answers.size(); ++i) {
      const EvalAnswer& answer = record.answers[i];
      const double of_full = full[entry.sample]->answers[i].score;
      score += answer.score;
      full_score += of_full;
      both += std::min(answer.score, of_full);
      kl += answer.kl_sum;
      compared += answer.compared;
      agreed += answer.agreed;
    }
    row.answers += record.answers.size();
    row.generated_tokens += record.generated_tokens;
    prompt_tokens += record.prompt_tokens;
    prefill_us += record.prefill_us;
    decode_us += record.decode_us;
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
  if (row.answers > 0) row.score = score / static_cast<double>(row.answers);
  if (full_score > 0) row.kept = both / full_score;
  if (compared > 0) {
    row.kl = kl / static_cast<double>(compared);
    row.top1 = static_cast<double>(agreed) / static_cast<double>(compared);
  }
  const auto ratio = [](uint64_t part, uint64_t of) { return static_cast<double>(part) / static_cast<double>(of); };
  if (wanted > 0) row.hits = 1 - ratio(missed, wanted);
  if (row.transfer_us > 0) row.hidden = 1 - ratio(row.stall_us, row.transfer_us);
  if (row.transfer_us > 0 && row.generated_tokens > 0) row.exposed_us = ratio(row.stall_us, row.generated_tokens);
  if (n_checks > 0 && row.generated_tokens > 0) row.triggers = 100 * ratio(n_triggers, row.generated_tokens);
  row.decode_tokens_per_second = per_second(row.generated_tokens, decode_us);
  row.prefill_tokens_per_second = per_second(prompt_tokens, prefill_us);
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
      all.push_back({entry.sample, i, entry.config, samples[entry.sample].questions[i].depth,
                     entry.record.answers[i].score, full[entry.sample]->answers[i].score});
    }
  }
  return all;
}

std::string table_head() {
  return format("%8s  %-28s %6s %6s %8s %9s %6s %9s %11s %12s %6s %7s %8s %8s\n", "length", "policy, budget", "score",
                "kept", "answers", "KL", "top-1", "tokens/s", "device KV", "moved/token", "hits", "hidden", "exposed", "triggers");
}

std::string table_line(const EvalResults& results, const EvalRow& row) {
  std::string line = format("%8llu  %-28s ", static_cast<unsigned long long>(row.length),
                            title(results.configs[row.config]).c_str());
  if (row.answers == 0) return line + row.error + "\n";
  line += format("%6.3f %6s %8zu %9s %6s %9.1f %11s %12s %6s %7s %8s %8s\n", row.score, shown(row.kept, 3).c_str(),
                 row.answers, shown(row.kl, 5).c_str(), shown(row.top1, 3).c_str(),
                 row.decode_tokens_per_second, human_bytes(row.device_kv_bytes).c_str(),
                 human_bytes(row.generated_tokens ? row.host_to_device_bytes / row.generated_tokens : 0).c_str(),
                 shown(row.hits, 3).c_str(), shown(row.hidden, 3).c_str(),
                 row.exposed_us ? format("%.1f us", *row.exposed_us).c_str() : "-", shown(row.triggers, 1).c_str());
  if (!row.error.empty()) line += format("%8s  some samples ", "") + row.error + "\n";
  return line;
}

std::string task_table(const EvalResults& results) {
  const std::vector<std::string> tasks = results.tasks();
  std::string text = format("%8s  %-28s", "length", "score by task");
  for (const std::string& task : tasks) text += format(" %*s", static_cast<int>(std::max<size_t>(6, task.size())), task.c_str());
  text += "\n";
  for (const uint64_t length : results.lengths()) {
    for (size_t config = 0; config < results.configs.size(); ++config) {
      if (results.row(config, length, "").answers == 0) continue;
      text += format("%8llu  %-28s", static_cast<unsigned long long>(length), title(results.configs[config]).c_str());
      for (const std::string& task : tasks) {
        const EvalRow row = results.row(config, length, task);
        text += format(" %*s", static_cast<int>(std::max<size_t>(6, task.size())),
                       row.answers ? format("%.3f", row.score).c_str() : "-");
      }
      text += "\n";
    }
  }
  return text;
}

Json results_json(const EvalResults& results) {
  Json rows = Json::array(), samples = Json::array(), answers = Json::array();
  for (const EvalRow& row : results.rows()) {
    const EvalConfig& config = results.configs[row.config];
    Json entry = {{"policy", config.policy},
                  {"budget", config.budget.empty() ? Json() : Json(config.budget)},
                  {"length", row.length},
                  {"task", row.task.empty() ? Json() : Json(row.task)},
                  {"answers", row.answers}};
    if (!row.error.empty()) entry["error"] = row.error;
    if (row.answers > 0) {
      entry["score"] = row.score;
      entry["kept"] = optional_json(row.kept);
      entry["kl"] = optional_json(row.kl);
      entry["top1"] = optional_json(row.top1);
      entry["decode_tokens_per_second"] = row.decode_tokens_per_second;
      entry["prefill_tokens_per_second"] = row.prefill_tokens_per_second;
      entry["device_kv_type"] = row.device_kv_type;
      entry["device_kv_bytes"] = row.device_kv_bytes;
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
      questions.push_back({{"question", question.question},
                           {"answers", question.answers},
                           {"depth", question.depth < 0 ? Json() : Json(question.depth)}});
    }
    samples.push_back({{"id", sample.id},
                       {"task", sample.task},
                       {"length", sample.length},
                       {"metric", metric_name(sample.metric)},
                       {"questions", questions}});
  }
  for (const EvalResults::Entry& entry : results.entries) {
    const EvalConfig& config = results.configs[entry.config];
    if (!entry.record.error.empty()) {
      answers.push_back({{"sample", results.samples[entry.sample].id},
                         {"policy", config.policy},
                         {"budget", config.budget},
                         {"error", entry.record.error}});
    }
    for (size_t i = 0; i < entry.record.answers.size(); ++i) {
      const EvalAnswer& answer = entry.record.answers[i];
      const auto mean = [&](double sum) {
        return answer.compared ? Json(sum / static_cast<double>(answer.compared)) : Json();
      };
      answers.push_back({{"sample", results.samples[entry.sample].id},
                         {"question", i},
                         {"policy", config.policy},
                         {"budget", config.budget.empty() ? Json() : Json(config.budget)},
                         {"answer", answer.text},
                         {"score", answer.score},
                         {"kl", mean(answer.kl_sum)},
                         {"top1", mean(static_cast<double>(answer.agreed))}});
    }
  }
  return {{"rows", rows}, {"samples", samples}, {"answers", answers}};
}

}  // namespace orrery::tool

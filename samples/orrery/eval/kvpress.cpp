// See kvpress.h.
#include "eval/kvpress.h"

#include <algorithm>

#include "eval/store.h"
#include "system/write_file.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

// Text as part of a file name, with kvpress's "--" for a slash.
std::string file_part(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool keep = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
    out += c == '/' ? "--" : std::string(1, keep ? c : '-');
  }
  return out;
}

std::string csv_field(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

const char* kvpress_metric(Metric metric) { return metric == Metric::contains ? "string_match" : metric_name(metric); }

// All samples of kvpress's RULER have their question at the end and RULER's metric.
std::string dataset_of(const EvalResults& results, uint64_t length) {
  const bool ruler = std::all_of(results.samples.begin(), results.samples.end(),
                                 [&](const EvalSample& sample) { return sample.length != length || sample.metric == Metric::contains; });
  return ruler ? "ruler" : "orrery";
}

}  // namespace

void write_kvpress(const std::string& folder, const std::string& model, const EvalResults& results) {
  for (const uint64_t length : results.lengths()) {
    const uint64_t full_bytes = results.row(0, length, "").device_kv_bytes;
    for (size_t c = 0; c < results.configs.size(); ++c) {
      const EvalConfig& config = results.configs[c];
      const EvalRow all = results.row(c, length, "");
      if (all.scored == 0) continue;
      double ratio = 1 - static_cast<double>(config.share);
      if (config.bytes > 0 && full_bytes > 0) ratio = 1 - static_cast<double>(all.device_kv_bytes) / static_cast<double>(full_bytes);
      ratio = std::max(0.0, ratio);
      const bool plain_full = c == 0;
      const std::string press = plain_full ? "no_press" : config.policy, dataset = dataset_of(results, length);
      const std::string data_dir = std::to_string(length);
      std::string name = dataset + "__" + data_dir + "__" + file_part(model) + "__" + file_part(press) + format("__%.2f", ratio);
      const bool query_aware = std::string(all.question) == "aware";
      if (query_aware) name += "__query_aware";
      const std::string path = folder + "/" + name;
      make_folder(path);

      // JSON strings are YAML strings.
      const auto quoted = [](const std::string& text) { return dump_json(Json(text), -1); };
      write_file(path + "/config.yaml",
                 "dataset: " + quoted(dataset) + "\ndata_dir: " + quoted(data_dir) + "\nmodel: " + quoted(model) +
                     "\ndevice: null\npress_name: " + quoted(press) + format("\ncompression_ratio: %.4f", ratio) +
                     "\nkey_channel_compression_ratio: null\nthreshold: null\nfraction: 1.0\nmax_new_tokens: null\n" +
                     "max_context_length: null\nquery_aware: " + (query_aware ? "true" : "false") +
                     "\nneedle_depth: null\noutput_dir: " + quoted(folder) +
                     "\npress_init_command: " + quoted("orrery eval: " + press + " " + config.budget) + "\nseed: 42\nfp8: false\n");

      Json metrics = Json::object();
      for (const std::string& task : results.tasks()) {
        const EvalRow row = results.row(c, length, task);
        if (row.scored == 0) continue;
        const auto sample = std::find_if(results.samples.begin(), results.samples.end(),
                                         [&](const EvalSample& s) { return s.length == length && s.task == task; });
        metrics[task] = {{kvpress_metric(sample->metric), row.score * 100}};
      }
      write_file(path + "/metrics.json", dump_json(metrics, 4) + "\n");

      std::string csv = "task,question,answer,predicted_answer,compression_ratio\n";
      for (const EvalResults::Entry& entry : results.entries) {
        const EvalSample& sample = results.samples[entry.sample];
        if (entry.config != c || sample.length != length) continue;
        for (size_t i = 0; i < entry.record.answers.size(); ++i) {
          csv += csv_field(sample.task) + "," + csv_field(sample.questions[i].question) + "," +
                 csv_field(dump_json(Json(sample.questions[i].answers), -1)) + "," +
                 csv_field(dump_json(Json(entry.record.answers[i].text), -1)) + format(",%.4f\n", ratio);
        }
      }
      write_file(path + "/predictions.csv", csv);
    }
  }
}

}  // namespace orrery::tool

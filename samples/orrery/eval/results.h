// The results of an evaluation: one point per answer, and rows that summarise the points for each policy, budget and
// length, over all tasks and per task. The table, the JSON file and the pictures use this data alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/run.h"

namespace orrery::tool {

struct EvalPoint {
  size_t sample;    // index in EvalResults::samples
  size_t question;  // index in the sample
  size_t config;    // index in EvalResults::configs
  double depth;     // 0 to 1; -1: unknown
  double score, full_score;
};

struct EvalRow {
  size_t config;
  uint64_t length;    // tokens
  std::string task;   // "": all tasks
  std::string error;  // the reason why (some of) the samples have no answers; or ""
  size_t answers = 0;
  size_t scored = 0;  // answers to questions that have a right answer
  double score = 0;   // mean over these
  // The share of full attention's score that the policy keeps, over the answers that count (counts_as_kept()). The
  // interval is Wilson's at 95%, as if each point of full attention's score was one trial.
  std::optional<double> kept;
  double kept_low = 0, kept_high = 1, kept_of = 0;  // kept_of: full attention's score, in whole answers
  double lost_at_ties = 0;         // of the lost score: where the first token that differs was a near tie of full attention
  std::optional<double> kl, top1;  // KL(full || policy) in nats, and agreement: means over answer tokens
  std::optional<double> kl_p99;    // the 99th percentile over answer tokens
  const char* question = "aware";  // "aware", "agnostic", or "both": whether policies settle before the question
  double decode_tokens_per_second = 0, prefill_tokens_per_second = 0;
  std::string kv_type, device_kv_type;  // of the sessions
  uint64_t device_kv_bytes = 0;         // the largest of all sessions
  uint64_t prompt_tokens = 0;           // computed as prompts, without what was loaded
  uint64_t generated_tokens = 0;
  uint64_t host_to_device_bytes = 0;       // over all samples
  uint64_t transfer_us = 0, stall_us = 0;  // of refills, over all samples
  // Refills: the share of tokens that were resident when needed, the share of transfer time that no step waited for
  // (1 - stall / transfer), microseconds of waiting per generated token, and HeteroCache's triggers per 100 generated
  // tokens.
  std::optional<double> hits, hidden, exposed_us, triggers;
};

// A margin of full attention below this is a near tie: the best token is less than e^.5 = 1.65 times as likely as the second.
constexpr float kNearTie = .5f;

struct EvalResults {
  std::vector<EvalConfig> configs;  // the first is full attention
  std::vector<EvalSample> samples;
  struct Entry {
    size_t sample, config;
    EvalRecord record;
  };
  std::vector<Entry> entries;  // in the order of evaluation
  bool aware = true;           // policies settle after the question, unless the sample says otherwise
  bool multi_turn = true;      // the questions are one conversation, unless the sample says otherwise

  std::vector<uint64_t> lengths() const;   // ascending
  std::vector<std::string> tasks() const;  // in the samples' order
  EvalRow row(size_t config, uint64_t length, const std::string& task) const;
  std::vector<EvalRow> rows() const;  // for all tasks together, and for each task
  std::vector<EvalPoint> points() const;
  // Full attention's margin at the first token that differs, in the answer or before it in its conversation. No value: all tokens are
  // equal, or the question was not asked.
  std::optional<float> margin_at_difference(const Entry& entry, size_t question) const;
};

// The table: a line for each row. With `columns` (0: any number), columns are left out, the least telling ones first, until a line fits.
class EvalTable {
 public:
  EvalTable(const EvalResults& results, size_t columns);
  std::string head() const;
  std::string line(const EvalRow& row) const;
  std::string left_out() const;  // titles; "": none

 private:
  const EvalResults& results_;
  int title_width_, task_width_;
  std::vector<bool> shown_;
};
// The scores of each task at every length; as many tables below each other as `columns` (0: any number) takes.
std::string task_table(const EvalResults& results, size_t columns);

Json results_json(const EvalResults& results);

// Wilson's interval at 95% for a share p of n trials.
struct Interval {
  double low, high;
};
Interval wilson(double p, double n);

}  // namespace orrery::tool

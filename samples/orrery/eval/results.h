// What an evaluation found: one point for every answer, and rows that sum them up for each policy, budget and length,
// over all tasks and for each of them. The table, the JSON file and whatever draws are made from this alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/run.h"

namespace orrery::tool {

struct EvalPoint {
  size_t sample;    // in EvalResults::samples
  size_t question;  // in the sample
  size_t config;    // in EvalResults::configs
  double depth;     // 0 to 1, -1: unknown
  double score, full_score;
};

struct EvalRow {
  size_t config;
  uint64_t length;   // tokens
  std::string task;  // "": all together
  std::string error;  // why there are no answers to (some of) the samples; ""
  size_t answers = 0;
  double score = 0;                        // mean
  std::optional<double> kept;              // of full attention's score, the share that the policy has too
  std::optional<double> kl, top1;          // KL(full || policy) in nats and agreement, means over answer tokens
  double decode_tokens_per_second = 0, prefill_tokens_per_second = 0;
  std::string device_kv_type;              // of what sessions had there
  uint64_t device_kv_bytes = 0;            // the most that one had
  uint64_t generated_tokens = 0;
  uint64_t host_to_device_bytes = 0;       // over all samples
  uint64_t transfer_us = 0, stall_us = 0;  // of refills, over all samples
  // Of refills: tokens that were to be resident and were, transfers that no step waited for (1 - stall / transfer), what
  // was waited for by each generated token, in microseconds, and HeteroCache's triggers for 100 of them.
  std::optional<double> hits, hidden, exposed_us, triggers;
};

struct EvalResults {
  std::vector<EvalConfig> configs;  // the first is full attention
  std::vector<EvalSample> samples;
  struct Entry {
    size_t sample, config;
    EvalRecord record;
  };
  std::vector<Entry> entries;  // in the order in which they were evaluated

  std::vector<uint64_t> lengths() const;    // ascending
  std::vector<std::string> tasks() const;   // in the samples' order
  EvalRow row(size_t config, uint64_t length, const std::string& task) const;
  std::vector<EvalRow> rows() const;        // all of them, also for each task
  std::vector<EvalPoint> points() const;
};

// Lines of the table.
std::string table_head();
std::string table_line(const EvalResults& results, const EvalRow& row);
// Scores of each task, at every length.
std::string task_table(const EvalResults& results);

Json results_json(const EvalResults& results);

}  // namespace orrery::tool

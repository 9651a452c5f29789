// bench --trace: where a decode step's time goes. Collects the library's trace (ORRERY_LOG_TRACE) of the runs that count, and gives a
// table and a chart: microseconds of a step by operation and thread, the bytes beside each, and its share of the reading limit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "json_file.h"
#include "orrery.h"
#include "settings.h"

namespace orrery::tool {

class StepTrace {
 public:
  // `tensors`: of inspect(), which name the products.
  explicit StepTrace(const Json& tensors);

  LogSink sink() { return {receive, this, ORRERY_LOG_TRACE}; }
  // Forgets what came until now: of warm-up runs, and of other context lengths.
  void clear();
  // The time of `tokens` decode steps as the caller measured it, sampling included.
  void add_decode(double us, uint64_t tokens) { decode_us_ += us, tokens_ += tokens; }

  // Empty tables where the backend measures nothing (a GPU).
  bool empty() const { return steps_ == 0; }
  std::string table(double read_bytes_per_second) const;
  std::string svg(const std::string& title, double read_bytes_per_second) const;
  Json json(double read_bytes_per_second) const;

 private:
  struct Row {
    std::string name;
    double bytes = 0, calls = 0;              // in all steps
    std::vector<double> busy_us, waiting_us;  // (threads), in all steps
  };
  struct Line {  // of the table, for one step
    std::string name;
    double us = 0, bytes = 0;  // us: mean of the threads
    std::vector<double> threads_us;
    bool idle = false;
  };
  static void receive(void* user, int32_t level, const char* message);
  void take(const Json& line);
  std::string name_of(const Json& line) const;
  std::vector<Line> lines() const;
  double step_us() const { return tokens_ ? decode_us_ / static_cast<double>(tokens_) : 0; }

  std::vector<std::pair<std::string, std::string>> products_;  // "Q5_0 896x4864": "ffn_gate, ffn_up"
  std::vector<Row> rows_;
  double steps_ = 0, steps_us_ = 0, operations_us_ = 0, decode_us_ = 0;
  size_t n_threads_ = 0;
  uint64_t tokens_ = 0;
};

}  // namespace orrery::tool

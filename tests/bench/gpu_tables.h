// What bench_gpu.cpp writes, and when: tables in Markdown with figures that were measured, a limit of time, predictions beside figures.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"

namespace orrery::bench {

[[noreturn]] inline void fail(const std::string& what) {
  std::printf("\n%s\n", what.c_str());
  std::exit(1);
}
inline void check(const Status& s) {
  if (!s.ok()) fail(s.message());
}
template <class T>
T unwrap(Result<T> made) {
  if (!made.ok()) fail(made.status().message());
  return std::move(made).value();
}
template <class T>
T* pointer(uint64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// A value of a table; one that is no positive number ends the program: nothing that was not measured is printed.
inline std::string number(double x, int digits) {
  if (!(x > 0) || !std::isfinite(x)) fail("a figure that is none: " + std::to_string(x));
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}
inline std::string percent(double x) { return number(100 * x, x < 0.1 ? 1 : 0) + "%"; }
inline void row(const std::vector<std::string>& cells) {
  std::printf("|");
  for (const std::string& cell : cells) std::printf(" %s |", cell.c_str());
  std::printf("\n");
  std::fflush(stdout);
}
inline void head(const std::string& title, const std::vector<std::string>& cells) {
  std::printf("\n%s\n\n", title.c_str());
  row(cells);
  row(std::vector<std::string>(cells.size(), "---"));
}

// Whether there is time for a row: one that takes as long as the longest of its section so far ends before the limit.
class Budget {
 public:
  explicit Budget(double limit) : limit_(limit) {}  // seconds after now; 0: none
  void begin_section() { longest_ = 0, began_ = -1; }
  bool has_time_for(const std::string& row) {
    const double at = elapsed();
    if (began_ >= 0) longest_ = std::max(longest_, at - began_);
    began_ = -1;
    if (limit_ > 0 && at + longest_ > limit_) {
      left_out_ += (left_out_.empty() ? "" : "; ") + row;
      return false;
    }
    began_ = at;
    return true;
  }
  void end_section() {
    if (!left_out_.empty()) std::printf("\nleft out for time: %s\n", left_out_.c_str());
    std::fflush(stdout);
    left_out_.clear();
  }

 private:
  double elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double limit_, longest_ = 0, began_ = -1;  // seconds; began_: of the row before, or -1
  std::string left_out_;
};

// Predicted milliseconds of one card, by their keys.
using Predictions = std::map<std::string, double>;
inline Predictions read_predictions(const std::string& path, const std::string& card) {
  std::ifstream file(path);
  if (!file) fail("the predictions cannot be read: " + path);
  Predictions found;
  int n = 0;
  for (std::string line; std::getline(file, line);) {
    ++n;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    const size_t key = line.find('\t'), value = key == std::string::npos ? key : line.find('\t', key + 1);
    char* end = nullptr;
    const double ms = value == std::string::npos ? 0 : std::strtod(line.c_str() + value + 1, &end);
    if (key == 0 || !(ms > 0) || !std::isfinite(ms) || *end != 0)
      fail(path + ", line " + std::to_string(n) + ": not a card, a key and milliseconds with tabs between them");
    if (card.find(line.substr(0, key)) != std::string::npos) found[line.substr(key + 1, value - key - 1)] = ms;
  }
  return found;
}

}  // namespace orrery::bench

// See trace.h.
#include "runtime/cpu/trace.h"

#include "runtime/base/status.h"

namespace orrery::cpu {

namespace {

constexpr const char* kNames[] = {"embed", "norm",      "quantize",  "product", "rope",       "append_kv", "attend", "swiglu",
                                  "add",   "transform", "delta_net", "mamba2",  "short_conv", "gates",     "route"};

// "[1,2]": the threads' numbers, as many as fit a line of the log (512 bytes) beside the rest; the last one has the sum of the others.
std::string numbers(const std::vector<uint64_t>& values, size_t n) {
  constexpr size_t kMost = 12;
  std::string text = "[";
  uint64_t rest = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + 1 < kMost || n <= kMost) {
      text += (i ? "," : "") + std::to_string(values[i]);
    } else {
      rest += values[i];
    }
  }
  return text + (n > kMost ? "," + std::to_string(rest) : "") + "]";
}

}  // namespace

size_t StepTrace::find(Operation operation, uint64_t bytes, TensorType type, int64_t n_out, int64_t n_in) {
  if (!counts_) return kNone;
  size_t i = 0;
  while (i < rows_.size() &&
         !(rows_[i].operation == operation && rows_[i].type == type && rows_[i].n_out == n_out && rows_[i].n_in == n_in))
    ++i;
  if (i == rows_.size()) {
    if (i == kMostRows) {
      --i;
    } else {
      Row row;
      row.operation = operation, row.type = type, row.n_out = n_out, row.n_in = n_in;
      row.busy_ns.resize(n_threads_), row.waiting_ns.resize(n_threads_);
      rows_.push_back(std::move(row));
    }
  }
  ++rows_[i].calls;
  rows_[i].bytes += bytes;
  return i;
}

void StepTrace::begin_operation() {
  for (size_t i = 0; i < n_threads_; ++i) before_[i] = totals_[i].ns;
  operation_start_ = now();
}

void StepTrace::end_operation() {
  const uint64_t ns = now() - operation_start_;
  operations_ns_ += ns;
  for (size_t i = 0; i < n_threads_; ++i) {
    const uint64_t busy = totals_[i].ns - before_[i];
    rows_[row_].waiting_ns[i] += ns > busy ? ns - busy : 0;
  }
}

std::vector<std::string> StepTrace::take(int32_t n_threads) {
  std::vector<std::string> lines;
  if (n_steps_ == 0) return lines;
  const size_t n = std::min(n_threads_, static_cast<size_t>(n_threads));
  lines.push_back(format("{\"steps\":%llu,\"ns\":%llu,\"operations_ns\":%llu,\"threads\":%zu}", static_cast<unsigned long long>(n_steps_),
                         static_cast<unsigned long long>(steps_ns_), static_cast<unsigned long long>(operations_ns_), n));
  for (const Row& row : rows_)
    lines.push_back(format(
        "{\"operation\":\"%s\",\"type\":\"%s\",\"shape\":[%lld,%lld],\"calls\":%llu,\"bytes\":%llu,\"busy_ns\":%s,\"waiting_ns\":%s}",
        kNames[static_cast<size_t>(row.operation)], row.operation == Operation::product ? type_traits(row.type)->name : "",
        static_cast<long long>(row.n_in), static_cast<long long>(row.n_out), static_cast<unsigned long long>(row.calls),
        static_cast<unsigned long long>(row.bytes), numbers(row.busy_ns, n).c_str(), numbers(row.waiting_ns, n).c_str()));
  rows_.clear();
  n_steps_ = steps_ns_ = operations_ns_ = 0;
  return lines;
}

}  // namespace orrery::cpu

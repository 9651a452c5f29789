// What a sampler asks of a step in place of all logits, and what the step left: a few kilobytes of a vocabulary's half megabyte.
// The sampler asks before the step, for it knows by then which tokens it will favour or penalise; the session passes it on, where the
// backend has shortlists; and the sampler chooses, if what it got decides what all logits would (sampler.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/backend.h"
#include "runtime/base/span.h"

namespace orrery::engine {

class Shortlist {
 public:
  static constexpr size_t kMostBest = ShortlistRequest::kMostBest, kMostTokens = ShortlistRequest::kMostTokens;
  static constexpr size_t kMostBytes = sizeof(ShortlistHead) + kMostBest * sizeof(ShortlistEntry) + kMostTokens * sizeof(float);
  static constexpr size_t kHostBytes = 2 * kMostBytes + kMostTokens * sizeof(int32_t);

  Shortlist() {
    tokens_.reserve(kMostTokens);
    entries_.reserve(kMostBest);
    logits_.reserve(kMostTokens);
    result_.resize(kMostBytes);
  }

  // Asked: what for is the sampler's to fill in; nothing is there any more.
  std::vector<int32_t>& ask(float inverse_temperature) {
    there_ = false;
    n_best_ = 0, inverse_temperature_ = inverse_temperature;
    tokens_.clear();
    return tokens_;
  }
  void set_best(int32_t n) { n_best_ = n; }
  ShortlistRequest request() const { return {n_best_, tokens_, inverse_temperature_}; }

  // Left: the step writes shortlist_result_bytes(request()) here and says so.
  std::byte* result() { return result_.data(); }
  void arrived() {
    there_ = true;
    std::memcpy(&head_, result_.data(), sizeof head_);
    entries_.resize(static_cast<size_t>(head_.n_best));
    logits_.resize(tokens_.size());
    const std::byte* entries = result_.data() + sizeof head_;
    if (!entries_.empty()) std::memcpy(entries_.data(), entries, entries_.size() * sizeof(ShortlistEntry));
    if (!logits_.empty())
      std::memcpy(logits_.data(), entries + static_cast<size_t>(n_best_) * sizeof(ShortlistEntry), logits_.size() * sizeof(float));
  }
  void forget() { there_ = false; }
  bool there() const { return there_; }

  const ShortlistHead& head() const { return head_; }
  Span<const ShortlistEntry> best() const { return entries_; }
  Span<const int32_t> tokens() const { return tokens_; }   // each once
  Span<const float> logits() const { return logits_; }     // of these

 private:
  bool there_ = false;
  int32_t n_best_ = 0;
  float inverse_temperature_ = 0.0f;
  std::vector<int32_t> tokens_;
  std::vector<std::byte> result_;
  ShortlistHead head_;
  std::vector<ShortlistEntry> entries_;
  std::vector<float> logits_;
};

}  // namespace orrery::engine

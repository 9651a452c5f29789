// A shortlist by its definition (runtime/backend/shortlist.h), computed from a row of logits on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/sum_exp.h"

namespace orrery::testing {

struct ShortlistResult {
  ShortlistHead head;
  std::vector<double> sums;  // of blocks
  std::vector<ShortlistEntry> best;
  std::vector<float> logits;  // of the request's tokens
};

inline ShortlistResult expected_shortlist(const std::vector<float>& logits, const ShortlistRequest& request) {
  ShortlistResult out;
  std::vector<float> numbers(logits);
  for (float& x : numbers) x = std::isnan(x) ? -std::numeric_limits<float>::infinity() : std::min(x, std::numeric_limits<float>::max());
  const auto allowed = [&](size_t token) { return request.mask.empty() || (request.mask[token / 32] >> (token % 32) & 1) == 1; };
  std::vector<int32_t> order;
  float most_allowed = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i)
    if (allowed(i)) order.push_back(static_cast<int32_t>(i)), most_allowed = std::max(most_allowed, numbers[i]);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return numbers[static_cast<size_t>(a)] > numbers[static_cast<size_t>(b)]; });
  order.resize(std::min(order.size(), static_cast<size_t>(request.n_best)));
  for (const int32_t t : order) out.best.push_back({logits[static_cast<size_t>(t)], t});
  for (const int32_t t : request.tokens) out.logits.push_back(logits[static_cast<size_t>(t)]);
  out.sums.resize(static_cast<size_t>(request.n_sums));
  out.head.n_best = static_cast<int32_t>(order.size());
  out.head.most = *std::max_element(numbers.begin(), numbers.end());
  out.head.most_allowed = most_allowed;
  if (std::isinf(out.head.most)) return out;
  out.head.sum = SumExp::sum(numbers, out.head.most);
  const double most = most_allowed, inverse = request.inverse_temperature;
  if (!(inverse > 0) || std::isinf(most_allowed)) return out;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!allowed(i)) continue;
    const double weight = std::exp((static_cast<double>(numbers[i]) - most) * inverse);
    out.head.tempered_sum += weight;
    const size_t block = i / static_cast<size_t>(ShortlistRequest::kSumLogits);
    if (block < out.sums.size()) out.sums[block] += weight;
  }
  return out;
}

// The band of each allowed token that ranks behind tail.last; -1 for other tokens.
inline std::vector<int32_t> expected_bands(const std::vector<float>& logits, const ShortlistTail& tail) {
  std::vector<int32_t> bands(logits.size(), -1);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!tail.mask.empty() && (tail.mask[i / 32] >> (i % 32) & 1) == 0) continue;
    const float x =
        std::isnan(logits[i]) ? -std::numeric_limits<float>::infinity() : std::min(logits[i], std::numeric_limits<float>::max());
    if (x < tail.last.logit || (x == tail.last.logit && static_cast<int32_t>(i) > tail.last.token)) bands[i] = tail.band_of(x);
  }
  return bands;
}
inline std::vector<uint64_t> expected_band_sums(const std::vector<float>& logits, const ShortlistTail& tail) {
  std::vector<uint64_t> sums(ShortlistTail::kBands);
  const std::vector<int32_t> bands = expected_bands(logits, tail);
  for (size_t i = 0; i < logits.size(); ++i)
    if (bands[i] >= 0 && !std::isnan(logits[i])) {
      const double x = static_cast<double>(logits[i]) - static_cast<double>(tail.last.logit);
      sums[static_cast<size_t>(bands[i])] +=
          static_cast<uint64_t>(std::llround(std::exp(x * tail.inverse_temperature) * ShortlistTail::kUnit));
    }
  return sums;
}
inline void expected_entries(const std::vector<float>& logits, const ShortlistTail& tail, int32_t band, int32_t other,
                             ShortlistTailEntries* out) {
  const std::vector<int32_t> bands = expected_bands(logits, tail);
  out->n = 0;
  for (size_t i = logits.size(); i-- > 0;)  // in any order
    if (bands[i] >= 0 && (bands[i] == band || bands[i] == other)) {
      if (out->n < ShortlistTail::kMostEntries) out->entries[out->n] = {logits[i], static_cast<int32_t>(i)};
      ++out->n;
    }
}

// The shortlist as bytes, in the layout of a step's result.
inline void write_shortlist(const ShortlistResult& result, const ShortlistRequest& request, std::byte* to) {
  std::memcpy(to, &result.head, sizeof result.head);
  to += sizeof result.head;
  if (!result.sums.empty()) std::memcpy(to, result.sums.data(), result.sums.size() * sizeof(double));
  to += result.sums.size() * sizeof(double);
  if (!result.best.empty()) std::memcpy(to, result.best.data(), result.best.size() * sizeof(ShortlistEntry));
  to += static_cast<size_t>(request.n_best) * sizeof(ShortlistEntry);
  if (!result.logits.empty()) std::memcpy(to, result.logits.data(), result.logits.size() * sizeof(float));
}
inline ShortlistResult read_shortlist(const std::byte* from, const ShortlistRequest& request) {
  ShortlistResult out;
  std::memcpy(&out.head, from, sizeof out.head);
  from += sizeof out.head;
  out.sums.resize(static_cast<size_t>(request.n_sums));
  if (!out.sums.empty()) std::memcpy(out.sums.data(), from, out.sums.size() * sizeof(double));
  from += out.sums.size() * sizeof(double);
  out.best.resize(static_cast<size_t>(out.head.n_best));
  if (!out.best.empty()) std::memcpy(out.best.data(), from, out.best.size() * sizeof(ShortlistEntry));
  from += static_cast<size_t>(request.n_best) * sizeof(ShortlistEntry);
  out.logits.resize(request.tokens.size());
  if (!out.logits.empty()) std::memcpy(out.logits.data(), from, out.logits.size() * sizeof(float));
  return out;
}

}  // namespace orrery::testing

#include "runtime/policy/published/engines/drift.h"

#include <algorithm>

#include "runtime/policy/select/sets.h"

namespace orrery::policy {

Result<DriftVerdict> check_drift(Span<const Tokens> sets, Span<const uint32_t> base, const DriftRule& rule) {
  if (rule.block_steps == 0 || sets.size() != rule.block_steps || base.empty()) {
    return error(Code::invalid_argument, "drift over %zu queries in blocks of %u against a base of %zu tokens", sets.size(),
                 rule.block_steps, base.size());
  }
  DriftVerdict verdict;
  for (const Tokens& set : sets) {
    if (set.size() != base.size()) {
      return error(Code::invalid_argument, "drift of a set of %zu tokens against a base of %zu", set.size(), base.size());
    }
    verdict.overlaps.push_back(overlap(set, base));
  }
  verdict.median = median(verdict.overlaps);
  verdict.triggered = !reaches(verdict.median, rule.tau_drift);
  return verdict;
}

Result<Tokens> satellite_set(Span<const uint32_t> by_score, uint64_t length) {
  if (length > by_score.size()) {
    return error(Code::invalid_argument, "a satellite of %llu tokens follows a pivot that ranks only %zu",
                 static_cast<unsigned long long>(length), by_score.size());
  }
  const Span<const uint32_t> best = by_score.first(static_cast<size_t>(length));
  return Tokens(best.begin(), best.end());
}

double chance_overlap(uint64_t l_base, uint64_t n_tokens) {
  if (n_tokens == 0) return 1;
  return std::min(1.0, static_cast<double>(l_base) / static_cast<double>(n_tokens));
}

double least_overlap(uint64_t l_base, uint64_t n_tokens) {
  if (l_base == 0 || l_base >= n_tokens) return 1;
  return std::max(0.0, 2 - static_cast<double>(n_tokens) / static_cast<double>(l_base));
}

}  // namespace orrery::policy

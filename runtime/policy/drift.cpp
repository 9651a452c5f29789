#include "runtime/policy/drift.h"

#include <algorithm>

namespace orrery::policy {
namespace {

Result<Tokens> sorted_unique(Span<const uint32_t> tokens, const char* what) {
  Tokens sorted(tokens.begin(), tokens.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) return error(Code::invalid_argument, "token %u is %s twice", *twice, what);
  return sorted;
}

bool contains(const Tokens& sorted, uint32_t token) {
  return std::binary_search(sorted.begin(), sorted.end(), token);
}

}  // namespace

Result<DriftVerdict> check_drift(Span<const Tokens> sets, Span<const uint32_t> base, const DriftRule& rule) {
  if (rule.block_steps == 0 || sets.size() != rule.block_steps || base.empty()) {
    return error(Code::invalid_argument,
                 "drift over %zu queries in blocks of %u against a base of %zu tokens", sets.size(),
                 rule.block_steps, base.size());
  }
  DriftVerdict verdict;
  for (const Tokens& set : sets) {
    if (set.size() != base.size()) {
      return error(Code::invalid_argument, "drift of a set of %zu tokens against a base of %zu", set.size(),
                   base.size());
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

Result<std::vector<Replacement>> plan_refresh(Span<const uint32_t> resident, Span<const uint32_t> wanted) {
  if (resident.size() != wanted.size()) {
    return error(Code::invalid_argument, "%zu tokens are wanted in %zu slots", wanted.size(),
                 resident.size());
  }
  ORRERY_ASSIGN(const Tokens held, sorted_unique(resident, "resident"));
  ORRERY_ASSIGN(const Tokens needed, sorted_unique(wanted, "wanted"));
  std::vector<Replacement> out;
  for (uint32_t slot = 0; slot < resident.size(); ++slot) {
    if (!contains(needed, resident[slot])) out.push_back({slot, 0});
  }
  auto next = out.begin();
  for (const uint32_t token : wanted) {
    if (!contains(held, token)) next++->position = token;
  }
  return out;
}

void plan_misses(Span<const uint32_t> held, Span<const uint32_t> wanted, uint32_t first_slot,
                 std::vector<uint8_t>* marks, std::vector<Replacement>* misses) {
  // Without branches: which token is there is anybody's guess.
  enum : uint8_t { kUnknown, kWanted, kThere = 3 };
  uint8_t* mark = marks->data();
  misses->resize(wanted.size() + 1);
  Replacement* miss = misses->data();
  for (const uint32_t token : wanted) mark[token] = kWanted;
  for (const uint32_t token : held) mark[token] = static_cast<uint8_t>(mark[token] * kThere);
  size_t n = 0, n_free = 0;
  for (const uint32_t token : wanted) miss[n].position = token, n += mark[token] != kThere;
  for (uint32_t slot = 0; n_free < n; ++slot) miss[n_free].slot = first_slot + slot, n_free += mark[held[slot]] != kThere;
  for (const uint32_t token : wanted) mark[token] = kUnknown;
  misses->resize(n);
}

}  // namespace orrery::policy

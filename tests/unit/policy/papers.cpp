#include "tests/unit/policy/papers.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "runtime/base/checked.h"
#include "runtime/policy/refresh/misses.h"
#include "runtime/policy/score/pooling.h"
#include "runtime/policy/select/sets.h"

namespace orrery::policy {

size_t count_common(Span<const uint32_t> a, Span<const uint32_t> b) {
  const std::set<uint32_t> among(a.begin(), a.end());
  return static_cast<size_t>(std::count_if(b.begin(), b.end(), [&](uint32_t token) { return among.count(token) > 0; }));
}

double overlap(Span<const uint32_t> a, Span<const uint32_t> b) {
  if (a.empty()) return 1;
  return static_cast<double>(count_common(a, b)) / static_cast<double>(a.size());
}

Status head_scores(Span<const float> logits, uint32_t n_query_heads, const ScoreRule& rule, ScoreScratch* scratch, Span<float> out) {
  const size_t n = out.size();
  if (n_query_heads == 0 || logits.size() / n_query_heads != n || logits.size() % n_query_heads != 0) {
    return error(Code::invalid_argument, "%zu logits are not %u query heads of %zu keys", logits.size(), n_query_heads, n);
  }
  const auto pool = [&](Span<const float> in, Span<float> to) { return pool1d(in, rule.pooling, rule.pool_width, to); };
  std::vector<float>& weights = scratch->weights;
  weights.resize(logits.size());
  for (size_t h = 0; h < n_query_heads; ++h) softmax(logits.subspan(h * n, n), Span<float>(weights).subspan(h * n, n));
  if (rule.pooling == Pooling::none) return group_reduce(weights, n_query_heads, rule.reduce, out);
  std::vector<float>& pooled = scratch->pooled;
  if (rule.pool_first) {
    pooled.resize(logits.size());
    for (size_t h = 0; h < n_query_heads; ++h) {
      ORRERY_TRY(pool(Span<const float>(weights).subspan(h * n, n), Span<float>(pooled).subspan(h * n, n)));
    }
    return group_reduce(pooled, n_query_heads, rule.reduce, out);
  }
  pooled.resize(n);
  ORRERY_TRY(group_reduce(weights, n_query_heads, rule.reduce, pooled));
  return pool(pooled, out);
}

namespace {

using Wide = unsigned __int128;

// Rounds up at the third digit: a smallest ratio that an error names must work.
double round_up(double x) { return std::ceil(x * 1000 - 1e-9) / 1000; }

Status check_ratio(Ratio ratio) {
  if (ratio.den > 0 && ratio.den <= 1ull << 24 && ratio.num <= ratio.den) return ok_status();
  return error(Code::invalid_argument, "a budget of %llu/%llu: expected a ratio of 0 to 1 with a denominator to 2^24", ull(ratio.num),
               ull(ratio.den));
}

Status check_sizes(uint64_t n_heads, uint64_t n_tokens) {
  if (n_heads > 0 && n_heads <= kMaxHeads && n_tokens > 0 && n_tokens <= kMaxTokens) return ok_status();
  return error(Code::invalid_argument,
               "a budget over %llu heads of %llu tokens: expected 1 to %llu heads and tokens "
               "to 2^31",
               ull(n_heads), ull(n_tokens), ull(kMaxHeads));
}

}  // namespace

Result<HeteroBudget> hetero_budget(Ratio ratio, uint64_t n_full, Span<const double> weights, uint64_t n_tokens) {
  ORRERY_TRY(check_ratio(ratio));
  const uint64_t n_compressed = weights.size();
  uint64_t n = 0;
  if (!checked_add(n_full, n_compressed, &n)) return error(Code::invalid_argument, "too many heads");
  ORRERY_TRY(check_sizes(n, n_tokens));
  HeteroBudget budget;
  if (n_compressed == 0) {
    if (ratio.num < ratio.den) {
      return error(Code::invalid_argument, "a KV budget of %g: all %llu heads need their whole KV, which takes 1", ratio.value(), ull(n));
    }
    budget.l_base = n_tokens;
    return budget;
  }
  const Wide wanted = Wide{ratio.num} * n, taken = Wide{n_full} * ratio.den;
  if (wanted > taken) {
    budget.l_base = static_cast<uint64_t>((wanted - taken) * n_tokens / (Wide{n_compressed} * ratio.den));
  }
  if (budget.l_base == 0) {
    const double least =
        (static_cast<double>(n_full) + static_cast<double>(n_compressed) / static_cast<double>(n_tokens)) / static_cast<double>(n);
    return error(Code::invalid_argument,
                 "a KV budget of %g: %llu of %llu heads keep their whole KV, which leaves nothing "
                 "for the others; it must be at least %.3f",
                 ratio.value(), ull(n_full), ull(n), round_up(least));
  }
  ORRERY_ASSIGN(budget.lengths, apportion(weights, n_compressed * budget.l_base, 1, n_tokens));
  return budget;
}

Result<uint64_t> sync_budget(Ratio memory, uint64_t n_heads, uint64_t n_representatives, uint64_t n_tokens) {
  ORRERY_TRY(check_ratio(memory));
  ORRERY_TRY(check_sizes(n_heads, n_tokens));
  if (n_representatives == 0 || n_representatives > n_heads) {
    return error(Code::invalid_argument, "%llu representatives among %llu heads: expected 1 to %llu", ull(n_representatives), ull(n_heads),
                 ull(n_heads));
  }
  const Wide wanted = Wide{memory.num} * n_heads;
  const auto k_with = [&](uint64_t representatives) {
    const Wide taken = Wide{representatives} * memory.den;
    if (wanted < taken) return uint64_t{0};
    if (representatives == n_heads) return n_tokens;
    return static_cast<uint64_t>((wanted - taken) * n_tokens / (Wide{n_heads - representatives} * memory.den));
  };
  const uint64_t k = k_with(n_representatives);
  if (k > 0) return k;
  const double others = static_cast<double>(n_heads - n_representatives);
  const double least = (static_cast<double>(n_representatives) + others / static_cast<double>(n_tokens)) / static_cast<double>(n_heads);
  uint64_t fitting = std::min<uint64_t>(n_representatives - 1, static_cast<uint64_t>(wanted / memory.den));
  while (fitting > 0 && k_with(fitting) == 0) --fitting;
  const std::string hint = fitting > 0 ? format(", or take %llu representatives", ull(fitting)) : std::string();
  return error(Code::invalid_argument,
               "a KV budget of %g: %llu of %llu heads of a layer represent the others and keep "
               "their whole KV, which leaves nothing for the others; it must be at least %.3f%s",
               memory.value(), ull(n_representatives), ull(n_heads), round_up(least), hint.c_str());
}

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

Result<SyncSplit> sync_split(uint64_t k, Ratio rho) {
  if (rho.den == 0 || rho.num > rho.den) {
    return error(Code::invalid_argument, "a static share of %llu/%llu: expected 0 to 1", static_cast<unsigned long long>(rho.num),
                 static_cast<unsigned long long>(rho.den));
  }
  SyncSplit split;
  split.n_dynamic = static_cast<uint64_t>(static_cast<unsigned __int128>(rho.den - rho.num) * k / rho.den);
  split.n_static = k - split.n_dynamic;
  return split;
}

SyncSets sync_initial(Span<const float> scores, const SyncSplit& split) {
  SyncSets sets;
  Tokens best;
  top_k(scores, static_cast<size_t>(split.n_static + split.n_dynamic), &best);
  const auto cut = best.begin() + static_cast<std::ptrdiff_t>(std::min<uint64_t>(split.n_static, best.size()));
  sets.fixed.assign(best.begin(), cut);
  sets.dynamic.assign(cut, best.end());
  return sets;
}

Tokens sync_dynamic(Span<const float> scores, Span<const uint32_t> fixed, uint64_t n_dynamic) {
  Tokens out;
  top_k(scores, scores.size(), &out);
  out.erase(std::remove_if(out.begin(), out.end(), [&](uint32_t i) { return std::count(fixed.begin(), fixed.end(), i) > 0; }), out.end());
  out.resize(std::min<size_t>(out.size(), static_cast<size_t>(n_dynamic)));
  return out;
}

std::vector<Replacement> planned_misses(const Tokens& held, const Tokens& wanted) {
  uint32_t end = 0;
  for (const Tokens* tokens : {&held, &wanted})
    for (const uint32_t token : *tokens) end = std::max(end, token + 1);
  std::vector<uint8_t> marks(end, 0);
  std::vector<Replacement> misses;
  plan_misses(held, wanted, 0, &marks, &misses);
  if (std::count(marks.begin(), marks.end(), 0) != end) throw std::logic_error("plan_misses() leaves marks");
  return misses;
}

}  // namespace orrery::policy

#include "runtime/policy/published/engines/shares.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"

namespace orrery::policy {

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

}  // namespace orrery::policy

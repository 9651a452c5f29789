#include "runtime/policy/allocate.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"

namespace orrery::policy {
namespace {

using Wide = unsigned __int128;

// Bounds under which every product below fits: weights have 33 bits, tokens 31, heads 23.
constexpr uint64_t kMaxTokens = 1ull << 31;
constexpr uint64_t kMaxHeads = 1ull << 23;
constexpr double kWeightScale = 4294967296.0;

unsigned long long ull(uint64_t x) { return static_cast<unsigned long long>(x); }

// Rounded up at the third digit: a least ratio that is printed must do.
double round_up(double x) { return std::ceil(x * 1000 - 1e-9) / 1000; }

Status check_ratio(Ratio ratio) {
  if (ratio.den > 0 && ratio.den <= 1ull << 24 && ratio.num <= ratio.den) return ok_status();
  return error(Code::invalid_argument,
               "a budget of %llu/%llu: expected a ratio of 0 to 1 with a denominator to 2^24", ull(ratio.num),
               ull(ratio.den));
}

Status check_sizes(uint64_t n_heads, uint64_t n_tokens) {
  if (n_heads > 0 && n_heads <= kMaxHeads && n_tokens > 0 && n_tokens <= kMaxTokens) return ok_status();
  return error(Code::invalid_argument,
               "a budget over %llu heads of %llu tokens: expected 1 to %llu heads and tokens "
               "to 2^31",
               ull(n_heads), ull(n_tokens), ull(kMaxHeads));
}

Status check_total(uint64_t n, uint64_t total, uint64_t lowest, uint64_t highest) {
  if (n <= kMaxHeads && lowest <= highest && highest <= kMaxTokens && n * lowest <= total &&
      total <= n * highest) {
    return ok_status();
  }
  return error(Code::invalid_argument, "%llu tokens cannot be dealt to %llu heads with %llu to %llu each",
               ull(total), ull(n), ull(lowest), ull(highest));
}

// Who lies on which bound once the shares add up: of heads by ascending weight, the first n_low get the
// lowest share and the last n_high the highest.
struct Level {
  size_t n_low, n_high;
};

// Raises the water from 0. A head of weight w leaves the lowest share at a level of lowest / w and meets the
// highest at highest / w, the heaviest first either way; the level wanted lies before the first event at
// which the shares reach the total. Levels are compared as fractions.
Level find_level(const std::vector<uint64_t>& ascending, uint64_t total, uint64_t lowest, uint64_t highest) {
  const size_t n = ascending.size();
  Level level{n, 0};
  Wide moving = 0;  // the sum of weights between the bounds
  while (level.n_high < n) {
    const bool leaves = level.n_low > 0 &&
                        (n == level.n_low + level.n_high || Wide{lowest} * ascending[n - 1 - level.n_high] <=
                                                                Wide{highest} * ascending[level.n_low - 1]);
    const uint64_t bound = leaves ? lowest : highest;
    const uint64_t weight = leaves ? ascending[level.n_low - 1] : ascending[n - 1 - level.n_high];
    const Wide on_bounds = Wide{level.n_low} * lowest + Wide{level.n_high} * highest;
    if (on_bounds * weight + moving * bound >= Wide{total} * weight && moving > 0) break;
    if (moving == 0 && on_bounds >= total) break;
    if (leaves) {
      --level.n_low;
      moving += weight;
    } else {
      ++level.n_high;
      moving -= weight;
    }
  }
  return level;
}

}  // namespace

Result<Ratio> Ratio::from(double value) {
  if (!(value >= 0 && value <= 1)) {
    return error(Code::invalid_argument, "a share of %g: expected 0 to 1", value);
  }
  return Ratio{static_cast<uint64_t>(std::llround(value * 1e6)), 1000000};
}

Result<std::vector<uint64_t>> apportion(Span<const double> weights, uint64_t total, uint64_t lowest,
                                        uint64_t highest) {
  const size_t n = weights.size();
  ORRERY_TRY(check_total(n, total, lowest, highest));
  double largest = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!(weights[i] > 0) || !std::isfinite(weights[i])) {
      return error(Code::invalid_argument, "weight %zu is %g: expected a positive number", i, weights[i]);
    }
    largest = std::max(largest, weights[i]);
  }
  std::vector<uint64_t> scaled(n);
  for (size_t i = 0; i < n; ++i) {
    scaled[i] = static_cast<uint64_t>(std::max(1.0, std::round(weights[i] / largest * kWeightScale)));
  }
  std::vector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scaled[a] < scaled[b]; });
  std::vector<uint64_t> ascending(n);
  for (size_t i = 0; i < n; ++i) ascending[i] = scaled[order[i]];
  const Level level = find_level(ascending, total, lowest, highest);

  std::vector<uint64_t> shares(n, lowest);
  for (size_t i = n - level.n_high; i < n; ++i) shares[order[i]] = highest;
  const Wide rest = Wide{total} - Wide{level.n_low} * lowest - Wide{level.n_high} * highest;
  std::vector<size_t> moving(order.begin() + static_cast<std::ptrdiff_t>(level.n_low),
                             order.end() - static_cast<std::ptrdiff_t>(level.n_high));
  Wide sum = 0, dealt = 0;
  for (const size_t i : moving) sum += scaled[i];
  std::vector<Wide> remainder(n, 0);
  for (const size_t i : moving) {
    const Wide product = rest * scaled[i];
    shares[i] = static_cast<uint64_t>(product / sum);
    remainder[i] = product % sum;
    dealt += shares[i];
  }
  std::sort(moving.begin(), moving.end(), [&](size_t a, size_t b) {
    return remainder[a] > remainder[b] || (remainder[a] == remainder[b] && a < b);
  });
  // The remainders add up to (rest - dealt) * sum and each is less than sum: those that get one more had one.
  for (size_t i = 0; i < static_cast<size_t>(rest - dealt); ++i) ++shares[moving[i]];
  return shares;
}

Result<std::vector<uint64_t>> apportion_evenly(uint64_t n, uint64_t total, uint64_t highest) {
  ORRERY_TRY(check_total(n, total, 0, highest));
  std::vector<uint64_t> shares(n);
  for (uint64_t i = 0; i < n; ++i) shares[i] = total / n + (i < total % n);
  return shares;
}

Result<HeteroBudget> hetero_budget(Ratio ratio, uint64_t n_full, Span<const double> weights,
                                   uint64_t n_tokens) {
  ORRERY_TRY(check_ratio(ratio));
  const uint64_t n_compressed = weights.size();
  uint64_t n = 0;
  if (!checked_add(n_full, n_compressed, &n)) return error(Code::invalid_argument, "too many heads");
  ORRERY_TRY(check_sizes(n, n_tokens));
  HeteroBudget budget;
  if (n_compressed == 0) {
    if (ratio.num < ratio.den) {
      return error(Code::invalid_argument,
                   "a KV budget of %g: all %llu heads need their whole KV, which takes 1", ratio.value(),
                   ull(n));
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
        (static_cast<double>(n_full) + static_cast<double>(n_compressed) / static_cast<double>(n_tokens)) /
        static_cast<double>(n);
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
    return error(Code::invalid_argument, "%llu representatives among %llu heads: expected 1 to %llu",
                 ull(n_representatives), ull(n_heads), ull(n_heads));
  }
  const Wide wanted = Wide{memory.num} * n_heads;
  const auto k_with = [&](uint64_t representatives) {
    const Wide taken = Wide{representatives} * memory.den;
    if (wanted < taken) return uint64_t{0};
    if (representatives == n_heads) return n_tokens;
    return static_cast<uint64_t>((wanted - taken) * n_tokens /
                                 (Wide{n_heads - representatives} * memory.den));
  };
  const uint64_t k = k_with(n_representatives);
  if (k > 0) return k;
  const double others = static_cast<double>(n_heads - n_representatives);
  const double least = (static_cast<double>(n_representatives) + others / static_cast<double>(n_tokens)) /
                       static_cast<double>(n_heads);
  uint64_t fitting = std::min<uint64_t>(n_representatives - 1, static_cast<uint64_t>(wanted / memory.den));
  while (fitting > 0 && k_with(fitting) == 0) --fitting;
  const std::string hint =
      fitting > 0 ? format(", or take %llu representatives", ull(fitting)) : std::string();
  return error(Code::invalid_argument,
               "a KV budget of %g: %llu of %llu heads of a layer represent the others and keep "
               "their whole KV, which leaves nothing for the others; it must be at least %.3f%s",
               memory.value(), ull(n_representatives), ull(n_heads), round_up(least), hint.c_str());
}

void sinks_and_recent(uint32_t n_tokens, uint32_t n_sinks, uint32_t n_recent, Tokens* out) {
  out->clear();
  const uint32_t first = std::min(n_sinks, n_tokens), recent = std::min(n_recent, n_tokens - first);
  for (uint32_t p = 0; p < first; ++p) out->push_back(p);
  for (uint32_t p = n_tokens - recent; p < n_tokens; ++p) out->push_back(p);
}

}  // namespace orrery::policy

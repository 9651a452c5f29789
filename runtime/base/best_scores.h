// Finds two numbers that enclose the k-th best of many scores, so that a selection looks closely at few scores only.
//
// The k-th best of a sample estimates the k-th best of all scores. The two numbers are the estimate minus and plus four standard
// deviations, and nearly always enclose the true value. A count of the scores that reach each number says whether they do. Only the
// few scores between them are then compared digit by digit. One pass alone goes over all scores; it only compares, without a branch
// or a chain of waits.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace orrery {

// `value`: the n_wanted-th largest of n numbers, 1 <= n_wanted <= n. `n_larger`: the count of larger numbers. Goes digit by digit,
// the highest digit first; few numbers are partitioned instead. Reorders `numbers`.
struct Ranked {
  uint32_t value;
  int64_t n_larger;
};
inline Ranked ranked(uint32_t* numbers, int64_t n, int64_t n_wanted) {
  constexpr int64_t kFew = 512;
  if (n <= kFew) {
    uint32_t* last = numbers + n_wanted - 1;
    std::nth_element(numbers, last, numbers + n, std::greater<>());
    return {*last, std::count_if(numbers, last, [&](uint32_t x) { return x > *last; })};
  }
  constexpr struct { int shift, width; } kDigits[] = {{24, 8}, {16, 8}, {8, 8}, {0, 8}};  // narrow: few numbers pay for each counter
  Ranked found{0, 0};
  for (const auto digit : kDigits) {
    uint32_t counts[256] = {};
    const uint32_t mask = (uint32_t{1} << digit.width) - 1;
    for (int64_t i = 0; i < n; ++i) ++counts[numbers[i] >> digit.shift & mask];
    uint32_t value = mask;
    for (; counts[value] < n_wanted - found.n_larger; --value) found.n_larger += counts[value];
    found.value |= value << digit.shift;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {  // without branches, because a processor could only guess them
      const uint32_t x = numbers[i];
      numbers[kept] = x;
      kept += (x >> digit.shift & mask) == value;
    }
    n = kept;
  }
  return found;
}

// Table: for each byte of eight marks, the indices of the set bits (ascending) and their count.
struct MarkedOfEight {
  std::array<std::array<uint32_t, 8>, 256> numbers{};
  std::array<uint8_t, 256> count{};
};
constexpr MarkedOfEight marked_of_eight() {
  MarkedOfEight all;
  for (uint32_t marks = 0; marks < 256; ++marks)
    for (uint32_t i = 0; i < 8; ++i)
      if (marks >> i & 1) all.numbers[marks][all.count[marks]++] = i;
  return all;
}
inline constexpr MarkedOfEight kMarkedOfEight = marked_of_eight();

// Writes first + i to `out` for each i where marks[i] is 1. marks: (n), each 0 or 1. `out` has room for n numbers. Returns how many
// it wrote. Handles eight marks at a time, without branches and without a chain of dependent steps.
inline int64_t list_marked(const uint8_t* marks, int64_t n, uint32_t first, uint32_t* out) {
  int64_t n_out = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t bytes;
    std::memcpy(&bytes, marks + i, sizeof bytes);
    const uint64_t bits = bytes * 0x0102040810204080u >> 56;  // byte j goes to bit j (little-endian machines)
    const uint32_t base = first + static_cast<uint32_t>(i);
    for (size_t j = 0; j < 8; ++j) out[n_out + static_cast<int64_t>(j)] = base + kMarkedOfEight.numbers[bits][j];
    n_out += kMarkedOfEight.count[bits];
  }
  for (; i < n; ++i) {
    out[n_out] = first + static_cast<uint32_t>(i);
    n_out += marks[i];
  }
  return n_out;
}

// The k-th best of scores (n). Every higher score is among the k best, and so are the first n_equal scores that equal it.
struct LeastScore {
  uint32_t order;  // order() of the k-th best
  int64_t n_equal;
  // Entries of `left`: ascending, every index whose order is at least `order`, and few others. 0: not found, examine all scores.
  int64_t n_left;
};
constexpr int64_t kSampled = 1024, kMostBetween = 8192;  // of few scores a quarter of kSampled
// Writes the index of each score whose order is at least `low` to `left`, ascending. *n_high = how many orders are above `high`. Returns
// how many indices there are.
template <class Order>
int64_t list_reaching(const float* scores, int64_t n, uint32_t low, uint32_t high, const Order& order, uint32_t* left, int64_t* n_high) {
  constexpr int64_t kAtOnce = 512;
  uint8_t marks[kAtOnce];
  int64_t n_left = 0;
  *n_high = 0;
  for (int64_t first = 0; first < n; first += kAtOnce) {
    const int64_t n_here = std::min(kAtOnce, n - first);
    uint32_t high_here = 0;
    for (int64_t i = 0; i < n_here; ++i) {
      const uint32_t x = order(scores[first + i]);
      marks[i] = x >= low;
      high_here += x > high;
    }
    n_left += list_marked(marks, n_here, static_cast<uint32_t>(first), left + n_left);
    *n_high += high_here;
  }
  return n_left;
}

// order(score): a number that orders as scores do. left: room for n indices. list(low, high, left, &n_high): list_reaching(), or what does
// the same.
template <class Order, class List>
LeastScore find_least_score(const float* scores, int64_t n, int64_t k, uint32_t* left, const Order& order, const List& list) {
  constexpr LeastScore kNone{0, 0, 0};
  const int64_t n_sampled = n < 8 * kSampled ? kSampled / 4 : kSampled;
  if (n < 8 * n_sampled || k < 1 || k >= n) return kNone;
  uint32_t numbers[kMostBetween], best[kSampled];
  const auto sample = [&](auto n_here) {
    for (int64_t i = 0; i < n_here; ++i) numbers[i] = best[i] = order(scores[i * n / n_here]);
  };
  n_sampled == kSampled ? sample(std::integral_constant<int64_t, kSampled>()) : sample(std::integral_constant<int64_t, kSampled / 4>());
  const double part = static_cast<double>(k) / static_cast<double>(n), rank = part * static_cast<double>(n_sampled);
  const double margin = 4 * std::sqrt(rank * (1 - part)) + 2;
  const auto low_rank = static_cast<int64_t>(rank + margin) + 1, high_rank = static_cast<int64_t>(rank - margin);
  const uint32_t low = low_rank <= n_sampled ? ranked(numbers, n_sampled, low_rank).value : 0;
  int64_t n_best = 0;
  for (int64_t i = 0; i < n_sampled; ++i) {  // without branches
    const uint32_t x = best[i];
    best[n_best] = x;
    n_best += x >= low;
  }
  const uint32_t high = high_rank >= 1 ? ranked(best, n_best, high_rank).value : UINT32_MAX;
  int64_t n_high = 0;
  const int64_t n_left = list(low, high, left, &n_high);
  if (n_left < k || n_high >= k) return kNone;
  if (n_left - n_high > kMostBetween) return kNone;
  int64_t n_between = 0;
  for (int64_t i = 0; i < n_left && n_between < kMostBetween; ++i) {
    const uint32_t x = order(scores[left[i]]);
    numbers[n_between] = x;
    n_between += x <= high;
  }
  const Ranked last = ranked(numbers, n_between, k - n_high);
  return {last.value, k - n_high - last.n_larger, n_left};
}
template <class Order>
LeastScore find_least_score(const float* scores, int64_t n, int64_t k, uint32_t* left, const Order& order) {
  return find_least_score(scores, n, k, left, order, [&](uint32_t low, uint32_t high, uint32_t* out, int64_t* n_high) {
    return list_reaching(scores, n, low, high, order, out, n_high);
  });
}

}  // namespace orrery

// Between which numbers the last of the k best scores is: what who selects them needs to look at closely.
//
// A sample's k-th best, give or take four times what chance makes of it, are two numbers between which the scores' is nearly always; how many
// reach them says whether it is. So few scores are left to be told apart digit by digit, and only one pass is over all of them, which
// compares and waits for nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace orrery {

// The n_wanted-th largest of n numbers, 1 <= n_wanted <= n, and how many are larger. Digit by digit, the first ones first; they come
// to be in another order.
struct Ranked {
  uint32_t value;
  int64_t n_larger;
};
inline Ranked ranked(uint32_t* numbers, int64_t n, int64_t n_wanted) {
  constexpr struct {
    int shift, width;
  } kDigits[] = {{21, 11}, {10, 11}, {0, 10}};
  Ranked found{0, 0};
  for (const auto digit : kDigits) {
    uint32_t counts[2048] = {};
    const uint32_t mask = (uint32_t{1} << digit.width) - 1;
    for (int64_t i = 0; i < n; ++i) ++counts[numbers[i] >> digit.shift & mask];
    uint32_t value = mask;
    for (; counts[value] < n_wanted - found.n_larger; --value) found.n_larger += counts[value];
    found.value |= value << digit.shift;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {   // without branches: they would be guesses
      const uint32_t x = numbers[i];
      numbers[kept] = x;
      kept += (x >> digit.shift & mask) == value;
    }
    n = kept;
  }
  return found;
}

// Which of eight marks, bits of a byte, are set: their numbers, ascending, and how many.
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

// Where marks (n), 0 or 1, are 1: first + these numbers go to out, which has room for n. Returns how many there are. Eight at a time, and
// neither branches nor one that waits for the one before.
inline int64_t list_marked(const uint8_t* marks, int64_t n, uint32_t first, uint32_t* out) {
  int64_t n_out = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t bytes;
    std::memcpy(&bytes, marks + i, sizeof bytes);
    const uint64_t bits = bytes * 0x0102040810204080u >> 56;   // byte j comes to bit j: of a little-endian machine
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

// The last of the k best of scores (n): what is above it is among them, and of its equals the first n_equal.
struct LeastScore {
  uint32_t order;      // of the last one
  int64_t n_equal;
  int64_t n_left;      // in `left`: ascending, all that have its order, or a higher one, and few others; 0: not found, look at all of them
};
constexpr int64_t kSampled = 1024, kMostBetween = 8192;
// order(score): a number that orders as scores do. left: room for n.
template <class Order>
LeastScore find_least_score(const float* scores, int64_t n, int64_t k, uint32_t* left, const Order& order) {
  constexpr LeastScore kNone{0, 0, 0};
  if (n < 8 * kSampled || k < 1 || k >= n) return kNone;
  uint32_t numbers[kMostBetween], again[kSampled];
  for (int64_t i = 0; i < kSampled; ++i) numbers[i] = order(scores[i * n / kSampled]);
  std::copy_n(numbers, kSampled, again);
  const double part = static_cast<double>(k) / static_cast<double>(n), rank = part * kSampled;
  const double margin = 4 * std::sqrt(rank * (1 - part)) + 2;
  const auto low_rank = static_cast<int64_t>(rank + margin) + 1, high_rank = static_cast<int64_t>(rank - margin);
  const uint32_t low = low_rank <= kSampled ? ranked(numbers, kSampled, low_rank).value : 0;
  const uint32_t high = high_rank >= 1 ? ranked(again, kSampled, high_rank).value : UINT32_MAX;
  int64_t n_left = 0, n_high = 0;   // those above `high`
  constexpr int64_t kAtOnce = 512;
  uint8_t marks[kAtOnce];
  for (int64_t first = 0; first < n; first += kAtOnce) {
    const int64_t n_here = std::min(kAtOnce, n - first);
    uint32_t high_here = 0;
    for (int64_t i = 0; i < n_here; ++i) {
      const uint32_t x = order(scores[first + i]);
      marks[i] = x >= low;
      high_here += x > high;
    }
    n_left += list_marked(marks, n_here, static_cast<uint32_t>(first), left + n_left);
    n_high += high_here;
  }
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

}  // namespace orrery

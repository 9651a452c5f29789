// Substring search in linear worst-case time and constant memory: the two-way algorithm (Crochemore and Perrin,
// "Two-way string-matching", 1991). std::string_view::find() restarts the comparison at every position; "aa...ab" in
// "aa...a" then takes time proportional to the product of the two lengths.
//
// A search reports the number of compared bytes, block by block, to a callable that may end the search. Callers
// charge a budget there, or test a cancel flag.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace orrery::text {

// `backward`: texts and needles are read from their ends, so the last occurrence is found first.
template <bool backward>
class TextSearch {
 public:
  static constexpr size_t kBlock = 16 << 10;  // bytes between two reports

  // `needle` is not empty and outlives the search. spend(n) reports n compared bytes; returning false ends the
  // search.
  template <class Spend>
  bool reset(std::string_view needle, const Spend& spend) {
    needle_ = needle;
    // A table for the first byte alone would not pay.
    size_t period_less, period_greater, less, greater;
    if (!maximal_suffix(false, spend, &less, &period_less)) return false;
    if (!maximal_suffix(true, spend, &greater, &period_greater)) return false;
    // [0, cut_) and [cut_, n) are the critical factorization.
    cut_ = std::max(less, greater);
    period_ = less > greater ? period_less : period_greater;
    size_t same = 0;
    if (!run(needle, 0, needle, period_, std::min(cut_, needle.size() - period_), spend, &same)) return false;
    periodic_ = same == cut_;
    if (!periodic_) period_ = std::max(cut_, needle.size() - cut_) + 1;
    return true;
  }

  // The first occurrence in `text` at or after `from`, or npos. For a backward search, `from` and the result are
  // distances from the end.
  template <class Spend>
  bool find(std::string_view text, size_t from, const Spend& spend, size_t* at) const {
    const size_t n = needle_.size();
    *at = std::string_view::npos;
    size_t known = 0;  // length of the needle's start that is known to match
    size_t unpaid = 0;
    const auto pay = [&](size_t bytes) {
      unpaid += bytes;
      if (unpaid < kBlock) return true;
      const size_t due = unpaid;
      unpaid = 0;
      return static_cast<bool>(spend(due));
    };
    for (size_t here = from; n <= text.size() && here <= text.size() - n;) {
      if (known == 0) {
        // The byte at which the comparison begins is searched first, because most texts hold few such bytes.
        const size_t behind = std::min(here + kBlock, text.size() - n + 1);
        const size_t next = skip_to(text, here + cut_, behind + cut_, byte(needle_, cut_)) - cut_;
        if (!pay(next - here + 1)) return false;
        here = next;
        if (here == behind) continue;
      }
      size_t i = std::max(cut_, known);
      size_t same = 0;
      if (!run(needle_, i, text, here + i, n - i, pay, &same)) return false;
      i += same;
      if (i < n) {
        here += i - cut_ + 1;
        known = 0;
        continue;
      }
      i = cut_;
      while (i > known && byte(needle_, i - 1) == byte(text, here + i - 1)) {
        --i;
        if (i % kBlock == 0 && !pay(kBlock)) return false;
      }
      if (!pay(1 + (cut_ - i) % kBlock)) return false;
      if (i <= known) {
        *at = here;
        return spend(unpaid);
      }
      here += period_;
      known = periodic_ ? n - period_ : 0;
    }
    return spend(unpaid);
  }

 private:
  static unsigned char byte(std::string_view s, size_t i) { return static_cast<unsigned char>(backward ? s[s.size() - 1 - i] : s[i]); }
  static size_t skip_to(std::string_view s, size_t from, size_t to, unsigned char wanted) {
    if (!backward) {
      const void* found = std::memchr(s.data() + from, wanted, to - from);
      return found == nullptr ? to : static_cast<size_t>(static_cast<const char*>(found) - s.data());
    }
    while (from < to && byte(s, from) != wanted) ++from;
    return from;
  }
  // The number of equal bytes, at most `n`, of a from i and b from j.
  template <class Pay>
  static bool run(std::string_view a, size_t i, std::string_view b, size_t j, size_t n, const Pay& pay, size_t* same) {
    for (size_t k = 0;;) {
      const size_t end = std::min(n, k + kBlock);
      const size_t start = k;
      while (k < end && byte(a, i + k) == byte(b, j + k)) ++k;
      *same = k;
      if (!pay(k - start + 1)) return false;
      if (k < end || k == n) return true;
    }
  }
  template <class Spend>
  bool maximal_suffix(bool reversed_order, const Spend& spend, size_t* start, size_t* period) const {
    const size_t n = needle_.size();
    size_t suffix = 0, at = 1, k = 0, p = 1, turns = 0;
    while (at + k < n) {
      if (++turns % kBlock == 0 && !spend(kBlock)) return false;
      const unsigned char a = byte(needle_, at + k), b = byte(needle_, suffix + k);
      if (a == b) {
        if (++k == p) {
          at += p;
          k = 0;
        }
      } else if (reversed_order ? a > b : a < b) {
        at += k + 1;
        k = 0;
        p = at - suffix;
      } else {
        suffix = at++;
        k = 0;
        p = 1;
      }
    }
    *start = suffix;
    *period = p;
    return true;
  }

  std::string_view needle_;
  size_t cut_ = 0, period_ = 1;
  bool periodic_ = false;
};

}  // namespace orrery::text

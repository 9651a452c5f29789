#include "runtime/engine/shared/row_shortlist.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "runtime/base/lanes.h"
#include "runtime/base/sum_exp.h"

namespace orrery::engine {

namespace {

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();
constexpr size_t kBlockOfSums = ShortlistRequest::kSumLogits;

template <class L>
ORRERY_LANES_INLINE float largest_lane(const typename L::Floats& x) {
  float of_lanes[L::kFloats];
  std::memcpy(of_lanes, &x, sizeof of_lanes);
  for (size_t half = L::kFloats / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) of_lanes[i] = of_lanes[i + half] > of_lanes[i] ? of_lanes[i + half] : of_lanes[i];
  return of_lanes[0];
}

// The largest of each group of n logits, n a multiple of kGroup. NaNs do not count.
template <class L>
ORRERY_LANES_INLINE void group_maxima_in(const float* logits, size_t n, float* maxima) {
  for (size_t first = 0; first < n; first += RowShortlist::kGroup) {
    typename L::Floats most = typename L::Floats{} + kNoLogit;
    for (size_t i = 0; i < RowShortlist::kGroup; i += L::kFloats) {
      typename L::Floats x;
      load_numbers<L>(logits + first + i, &x);
      most = x > most ? x : most;
    }
    *maxima++ = largest_lane<L>(most);
  }
}
ORRERY_LANES(void, group_maxima, (const float* logits, size_t n, float* maxima), (logits, n, maxima))

// The logits of a word of the mask; -infinity for banned tokens.
template <class L>
ORRERY_LANES_INLINE void ban(uint32_t word, size_t first, typename L::Floats* x) {
  typename L::Ints bits;
  for (size_t i = 0; i < L::kFloats; ++i) bits[i] = static_cast<int32_t>(1u << i);
  const typename L::Ints allowed = (typename L::Ints{} + static_cast<int32_t>(word >> first)) & bits;
  const typename L::Floats banned = typename L::Floats{} + kNoLogit;
  *x = allowed != 0 ? *x : banned;
}

// As group_maxima(), of the allowed logits. A word of the mask has a group. Returns the largest logit of all, at least `most`.
template <class L>
ORRERY_LANES_INLINE float allowed_maxima_in(const float* logits, const uint32_t* mask, size_t n, float most, float* maxima) {
  typename L::Floats of_all = typename L::Floats{} + most;
  for (size_t first = 0; first < n; first += RowShortlist::kGroup) {
    typename L::Floats of_allowed = typename L::Floats{} + kNoLogit;
    for (size_t i = 0; i < RowShortlist::kGroup; i += L::kFloats) {
      typename L::Floats x;
      load_numbers<L>(logits + first + i, &x);
      of_all = x > of_all ? x : of_all;
      ban<L>(*mask, i, &x);
      of_allowed = x > of_allowed ? x : of_allowed;
    }
    ++mask;
    *maxima++ = largest_lane<L>(of_allowed);
  }
  return largest_lane<L>(of_all);
}
ORRERY_LANES(float, allowed_maxima, (const float* logits, const uint32_t* mask, size_t n, float most, float* maxima),
             (logits, mask, n, most, maxima))

// A block's logits, -infinity for banned tokens.
template <class L>
ORRERY_LANES_INLINE void ban_in_block_in(const float* from, const uint32_t* mask, float* to) {
  for (size_t i = 0; i < kBlockOfSums; i += L::kFloats) {
    typename L::Floats x;
    load_numbers<L>(from + i, &x);
    ban<L>(mask[i / 32], i % 32, &x);
    std::memcpy(to + i, &x, sizeof x);
  }
}
ORRERY_LANES(void, ban_in_block, (const float* from, const uint32_t* mask, float* to), (from, mask, to))

// exp(x) for x <= 0, to 1e-14 relative. A NaN, or an x below -700, counts as -700.
template <class L>
ORRERY_LANES_INLINE void exp_of_doubles(typename L::Doubles* to) {
  using D = typename L::Doubles;
  constexpr double kLog2E = 0x1.71547652b82fep+0, kLn2High = 0x1.62e42fefa3800p-1, kLn2Low = 0x1.ef35793c76730p-45;
  constexpr double kWhole = 0x1.8p52;  // added to a small number: its whole part stands in the lowest bits
  constexpr double kTerms[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                               1.0 / 24,      1.0 / 6,      0.5,         1.0,        1.0};
  const D least = D{} - 700.0;
  const D x = *to > least ? *to : least;
  const D shifted = x * kLog2E + kWhole, n = shifted - kWhole;
  const D r = (x - n * kLn2High) - n * kLn2Low;
  D p = D{} + 1.0 / 39916800;
  for (const double term : kTerms) p = p * r + term;
  *to = p * reinterpret_cast<D>((reinterpret_cast<typename L::Longs>(shifted) << 52) + (int64_t{1023} << 52));
}

// exp((x - most) * inverse) of a block of logits; `from` and `to` have room for kBlockOfSums values. Values after the first n have no
// meaning.
template <class L>
ORRERY_LANES_INLINE void block_weights_in(const float* from, size_t n, double most, double inverse, double* to) {
  for (size_t i = 0; i < n; i += L::kFloats) {
    typename L::Floats x;
    load_numbers<L>(from + i, &x);
    typename L::Doubles wide[2];
    widen<L>(x, wide);
    for (size_t half = 0; half < 2; ++half) {
      wide[half] = (wide[half] - most) * inverse;
      exp_of_doubles<L>(&wide[half]);
    }
    std::memcpy(to + i, wide, sizeof wide);
  }
}
ORRERY_LANES(void, block_weights, (const float* from, size_t n, double most, double inverse, double* to), (from, n, most, inverse, to))

// Calls visit(first, n, weights) for each block of the row that has an allowed token. A banned token's weight is that of -infinity.
template <class Visit>
void for_blocks(Span<const float> logits, Span<const uint32_t> mask, double most, double inverse, const Visit& visit) {
  double weights[kBlockOfSums];
  for (size_t first = 0; first < logits.size(); first += kBlockOfSums) {
    const size_t n = std::min(kBlockOfSums, logits.size() - first);
    float padded[kBlockOfSums];
    const float* from = logits.data() + first;
    if (n < kBlockOfSums) {
      std::fill(std::copy(from, from + n, padded), padded + kBlockOfSums, kNoLogit);
      from = padded;
    }
    if (!mask.empty()) {
      uint32_t words[kBlockOfSums / 32] = {}, all = ~0u, any = 0;
      std::copy_n(mask.begin() + static_cast<ptrdiff_t>(first / 32), (n + 31) / 32, words);
      for (const uint32_t word : words) all &= word, any |= word;
      if (any == 0) continue;
      if (all != ~0u) {
        ban_in_block(from, words, padded);
        from = padded;
      }
    }
    block_weights(from, kBlockOfSums, most, inverse, weights);
    visit(first, n, weights);
  }
}

size_t n_allowed(Span<const uint32_t> mask, size_t n) {
  if (mask.empty()) return n;
  size_t allowed = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    const uint32_t bits = n - 32 * i < 32 ? mask[i] & ((1u << (n % 32)) - 1) : mask[i];
    allowed += static_cast<size_t>(__builtin_popcount(bits));
  }
  return allowed;
}

double sum_of_weights(const double* weights, size_t n) {
  constexpr size_t kLanes = 8;
  double lanes[kLanes] = {}, all = 0.0;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += weights[i + j];
  for (; i < n; ++i) all += weights[i];
  for (const double lane : lanes) all += lane;
  return all;
}

}  // namespace

// Writes the n_best best tokens to `candidates`, best first: the largest n_best groups have n_best logits that reach the smallest of their
// maxima, and no other group has one that ranks before all of these.
size_t RowShortlist::select(Span<const float> logits, Span<const uint32_t> mask, size_t n_best, Span<int32_t> candidates) {
  n_best = std::min(n_best, n_allowed(mask, logits.size()));
  if (n_best == 0) return 0;
  float least = kNoLogit;
  if (n_best <= maxima_.size()) {
    std::copy(maxima_.begin(), maxima_.end(), ranked_.begin());
    const auto last = ranked_.begin() + static_cast<ptrdiff_t>(n_best - 1);
    std::nth_element(ranked_.begin(), last, ranked_.end(), std::greater<>());
    least = *last;
  }
  size_t n = 0;
  for (size_t group = 0; group < maxima_.size(); ++group) {
    if (maxima_[group] < least) continue;
    const uint32_t word = mask.empty() ? ~0u : mask[group];
    for (size_t i = group * kGroup, end = std::min(i + kGroup, logits.size()); i < end; ++i) {  // without branches
      candidates[n] = static_cast<int32_t>(i);
      n += static_cast<size_t>(as_number(logits[i]) >= least) & (word >> (i % kGroup));
    }
  }
  const auto better = [&](int32_t a, int32_t b) {
    const float x = as_number(logits[static_cast<size_t>(a)]), y = as_number(logits[static_cast<size_t>(b)]);
    return x > y || (x == y && a < b);
  };
  const auto begin = candidates.begin(), end = begin + static_cast<ptrdiff_t>(n_best);
  std::nth_element(begin, end - 1, begin + static_cast<ptrdiff_t>(n), better);
  std::sort(begin, end, better);
  return n_best;
}

// Returns the largest logit of all.
float RowShortlist::find_maxima(Span<const float> logits, Span<const uint32_t> mask) {
  const size_t whole = logits.size() / kGroup * kGroup;
  float most = kNoLogit;
  if (whole < logits.size()) {
    float last = kNoLogit;
    for (size_t i = whole; i < logits.size(); ++i) {
      const float x = as_number(logits[i]);
      most = std::max(most, x);
      if (mask_allows(mask, static_cast<int32_t>(i))) last = std::max(last, x);
    }
    maxima_.back() = last;
  }
  if (!mask.empty()) return allowed_maxima(logits.data(), mask.data(), whole, most, maxima_.data());
  group_maxima(logits.data(), whole, maxima_.data());
  return *std::max_element(maxima_.begin(), maxima_.end());
}

void RowShortlist::make(Span<const float> logits, const ShortlistRequest& request, Span<int32_t> candidates, std::byte* out) {
  ShortlistHead head;
  head.most = find_maxima(logits, request.mask);
  head.most_allowed = *std::max_element(maxima_.begin(), maxima_.end());
  head.n_best = static_cast<int32_t>(select(logits, request.mask, static_cast<size_t>(request.n_best), candidates));
  std::byte* const sums = out + sizeof head;
  std::byte* const entries = sums + static_cast<size_t>(request.n_sums) * sizeof(double);
  std::byte* const wanted = entries + static_cast<size_t>(request.n_best) * sizeof(ShortlistEntry);
  std::memset(sums, 0, static_cast<size_t>(request.n_sums) * sizeof(double));  // zeros
  if (head.most > kNoLogit) head.sum = SumExp::sum(logits, head.most);
  if (head.most_allowed > kNoLogit && request.inverse_temperature > 0.0)
    for_blocks(logits, request.mask, static_cast<double>(head.most_allowed), request.inverse_temperature,
               [&](size_t first, size_t n, const double* weights) {
                 const double of_block = sum_of_weights(weights, n);
                 head.tempered_sum += of_block;
                 const size_t block = first / kBlockOfSums;
                 if (block < static_cast<size_t>(request.n_sums)) std::memcpy(sums + block * sizeof of_block, &of_block, sizeof of_block);
               });
  std::memcpy(out, &head, sizeof head);
  for (size_t i = 0; i < static_cast<size_t>(head.n_best); ++i) {
    const ShortlistEntry entry = {logits[static_cast<size_t>(candidates[i])], candidates[i]};
    std::memcpy(entries + i * sizeof entry, &entry, sizeof entry);
  }
  for (size_t i = 0; i < request.tokens.size(); ++i)
    std::memcpy(wanted + i * sizeof(float), &logits[static_cast<size_t>(request.tokens[i])], sizeof(float));
}

void RowShortlist::bands(Span<const float> logits, const ShortlistTail& tail, uint64_t* sums) {
  std::fill(sums, sums + ShortlistTail::kBands, 0u);
  for_blocks(logits, tail.mask, static_cast<double>(tail.last.logit), tail.inverse_temperature,
             [&](size_t first, size_t n, const double* weights) {
               for (size_t i = 0; i < n; ++i) {
                 const float x = as_number(logits[first + i]);
                 if (ranks_behind(tail.last, x, static_cast<int32_t>(first + i)))
                   sums[tail.band_of(x)] += static_cast<uint64_t>(weights[i] * ShortlistTail::kUnit + 0.5);
               }
             });
}

void RowShortlist::entries(Span<const float> logits, const ShortlistTail& tail, int32_t band, int32_t other_band,
                           ShortlistTailEntries* out) {
  out->n = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float x = as_number(logits[i]);
    if (!ranks_behind(tail.last, x, static_cast<int32_t>(i)) || !mask_allows(tail.mask, static_cast<int32_t>(i))) continue;
    const int32_t its = tail.band_of(x);
    if (its != band && its != other_band) continue;
    if (out->n < ShortlistTail::kMostEntries) out->entries[out->n] = {logits[i], static_cast<int32_t>(i)};
    ++out->n;
  }
}

}  // namespace orrery::engine

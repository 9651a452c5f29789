#include "runtime/policy/score/pooling.h"

#include <algorithm>

namespace orrery::policy {

namespace {

Status check_pool(Span<const float> in, uint32_t width, Span<float> out) {
  if (width % 2 == 0) {
    return error(Code::invalid_argument, "pooling needs an odd width, not %u: an even one shifts the scores", width);
  }
  if (in.size() != out.size()) {
    return error(Code::invalid_argument, "pooling %zu scores into %zu", in.size(), out.size());
  }
  return ok_status();
}

// The window of output i, cut to the input: [from, to).
struct Window {
  size_t from, to;
  Window(size_t i, uint32_t width, size_t n)
      : from(i - std::min<size_t>(i, width / 2)), to(i + 1 + std::min<size_t>(n - 1 - i, width / 2)) {}
};

// out[i] = the fold of the values of its window, in order, by meet(). Away from the ends the outer loop runs over the window's keys, the
// inner one over the outputs: it vectorizes, on parts that stay in the first-level cache.
template <class Meet>
void pool(Span<const float> in, uint32_t width, Span<float> out, const Meet& meet) {
  const size_t n = in.size(), half = width / 2, first = std::min(half, n), last = std::max(first, n - std::min(half, n));
  const auto one = [&](size_t i) {
    const Window window(i, width, n);
    float x = in[window.from];
    for (size_t j = window.from + 1; j < window.to; ++j) x = meet(x, in[j]);
    out[i] = x;
  };
  for (size_t i = 0; i < first; ++i) one(i);
  constexpr size_t kPart = 2048;
  for (size_t i = first; i < last; i += kPart) {
    const size_t count = std::min(kPart, last - i);
    const float* from = in.data() + (i - half);
    float* to = out.data() + i;
    std::copy(from, from + count, to);
    for (size_t j = 1; j < width; ++j)
      for (size_t k = 0; k < count; ++k) to[k] = meet(to[k], from[k + j]);
  }
  for (size_t i = last; i < n; ++i) one(i);
}

}  // namespace

Status pool1d(Span<const float> in, Pooling pooling, uint32_t width, Span<float> out) {
  ORRERY_TRY(check_pool(in, pooling == Pooling::none ? 1 : width, out));
  switch (pooling) {
    case Pooling::none: std::copy(in.begin(), in.end(), out.begin()); break;
    case Pooling::avg:
      pool(in, width, out, [](float sum, float x) { return sum + x; });
      for (float& x : out) x /= static_cast<float>(width);
      break;
    case Pooling::max: pool(in, width, out, [](float largest, float x) { return std::max(largest, x); }); break;
  }
  return ok_status();
}

}  // namespace orrery::policy

#include "runtime/model/adapters/adapter.h"

#include <algorithm>

namespace orrery::model {

namespace {

// out += scale * B (A x) of n rows, at most Adapter::kRows, for at most Adapter::kPairs products.
void add_pairs(Backend* backend, const AdapterUse& use, Span<const Product> products, Span<const LowRankPair* const> pairs,
               Ptr<const float> x, int64_t x_stride, int64_t out_row, int32_t n) {
  constexpr auto kPairs = static_cast<size_t>(Adapter::kPairs);
  std::array<Product, kPairs> a;
  std::array<AdapterProduct, kPairs> b;
  int64_t width = 0;
  for (const LowRankPair* pair : pairs) width += pair->a.n_rows;
  Ptr<float> low = use.adapter->low;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const LowRankPair& pair = *pairs[i];
    const Product& product = products[i];
    a[i] = {&pair.a, {}, low, width, false};
    b[i] = {pair.b, pair.n_out, pair.a.n_rows, low, product.out + static_cast<uint64_t>(out_row * product.out_stride), product.out_stride};
    low = low + static_cast<uint64_t>(pair.a.n_rows);
  }
  backend->matmul({a.data(), pairs.size()}, x, x_stride, n);
  backend->adapters()->add_low_rank({b.data(), pairs.size()}, width, use.scale, n);
}

}  // namespace

void add_low_rank(Backend* backend, Span<const AdaptedRows> adapted, Span<const Product> products, Ptr<const float> x, int64_t x_stride,
                  int32_t first, int32_t n) {
  constexpr auto kPairs = static_cast<size_t>(Adapter::kPairs);
  for (const AdaptedRows& rows : adapted) {
    const int32_t begin = std::max(rows.first, first), end = std::min(rows.end, first + n);
    for (const AdapterUse& use : rows.uses) {
      if (begin >= end) break;
      std::array<Product, kPairs> some;
      std::array<const LowRankPair*, kPairs> pairs;
      size_t n_some = 0;
      const auto add = [&] {
        for (int32_t at = begin; at < end && n_some > 0; at += Adapter::kRows) {
          const int64_t row = at - first;
          add_pairs(backend, use, {some.data(), n_some}, {pairs.data(), n_some}, x + static_cast<uint64_t>(row * x_stride), x_stride, row,
                    std::min(Adapter::kRows, end - at));
        }
        n_some = 0;
      };
      for (const Product& product : products) {
        const LowRankPair* const pair = use.adapter->find(*product.weight);
        if (!pair) continue;
        some[n_some] = product, pairs[n_some] = pair;
        if (++n_some == kPairs) add();
      }
      add();
    }
  }
}

}  // namespace orrery::model

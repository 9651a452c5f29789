#include "runtime/cpu/planners/experts.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/cpu/formats/bands.h"

namespace orrery::cpu {

// As for other products: decode's kernel takes a few stretches for each thread, counted over all matrices; prefill's takes tiles, which are
// halved where there are too few.
ExpertsPlan::ExpertsPlan(Span<const ExpertShape> products, Span<ExpertGroup> groups, int64_t tile_out, int64_t tile_rows, int32_t n_threads)
    : n_products_(products.size()), groups_(groups), tile_out_(tile_out), tile_rows_(tile_rows) {
  constexpr int64_t kLeast = int64_t{16} << 10, kMost = int64_t{256} << 10;
  std::copy(products.begin(), products.end(), products_.begin());
  for (const ExpertShape& p : products) bytes_ += static_cast<int64_t>(groups.size()) * p.n_out * p.row_bytes;
  share_ = std::clamp(bytes_ / (8 * n_threads), kLeast, kMost);
  for (const int64_t least : {64, 32}) {
    while (tile_out_ > least && count() < 8 * n_threads) tile_out_ /= 2;
    while (tile_rows_ > 256 && count() < 8 * n_threads) tile_rows_ /= 2;
  }
  n_items_ = count();
}

ExpertsPlan::Cut ExpertsPlan::cut(const ExpertShape& p, const ExpertGroup& group) const {
  if (!p.decodes && !(p.decodes_short && group.n_rows <= kShortPrompt)) return {tile_out_, tile_rows_, false};
  const int64_t step = div_up(share_, p.row_bytes);
  return {p.in_bands ? div_up<int64_t>(step, kBandRows) * kBandRows : step, group.n_rows, true};
}

int64_t ExpertsPlan::n_items_of(const ExpertShape& p, const ExpertGroup& group) const {
  const Cut c = cut(p, group);
  return div_up(p.n_out, c.out_step) * div_up<int64_t>(group.n_rows, c.row_step);
}

// Sets where each group's items begin.
int64_t ExpertsPlan::count() {
  int64_t n = 0;
  for (ExpertGroup& group : groups_) {
    group.first_item = n;
    for (size_t p = 0; p < n_products_; ++p) n += n_items_of(products_[p], group);
  }
  return n;
}

ExpertItem ExpertsPlan::item(int64_t i) const {
  const ExpertGroup* behind =
      std::upper_bound(groups_.begin(), groups_.end(), i, [](int64_t at, const ExpertGroup& group) { return at < group.first_item; });
  const auto number = static_cast<size_t>(behind - groups_.begin()) - 1;
  const ExpertGroup& group = groups_[number];
  i -= group.first_item;
  size_t product = 0;
  for (int64_t n; i >= (n = n_items_of(products_[product], group)); ++product) i -= n;
  const ExpertShape& p = products_[product];
  const Cut c = cut(p, group);
  const int64_t row_tiles = div_up<int64_t>(group.n_rows, c.row_step);
  const int64_t first_out = i / row_tiles * c.out_step, first_row = i % row_tiles * c.row_step;
  return {
      number,
      c.decodes,
      {product, first_out, std::min(p.n_out, first_out + c.out_step), first_row, std::min<int64_t>(group.n_rows, first_row + c.row_step)}};
}

}  // namespace orrery::cpu

#include "runtime/engine/resident/recent_queries.h"

#include "runtime/base/checked.h"
#include "runtime/kv/memory/device_pieces.h"

namespace orrery::engine {

kv::Region RecentQueries::layout(const model::Description& h, uint32_t n_rows) {
  const uint64_t floats = uint64_t{n_rows} * static_cast<uint64_t>(h.kv().n_layers()) * static_cast<uint64_t>(h.kv().q_dim());
  return {"last queries", kv::Holds::staging, align_up(floats * sizeof(float), kv::kArenaAlignment), 0, n_rows * sizeof(uint32_t), 0};
}

RecentQueries::RecentQueries(const model::Description& h, kv::ArenaRegion region, uint32_t n_rows)
    : width_(static_cast<uint64_t>(h.kv().q_dim())), n_layers_(static_cast<uint64_t>(h.kv().n_layers())), region_(std::move(region)),
      positions_(n_rows, kNone) {
  ring_ = {{region_.data().address}, static_cast<int32_t>(n_rows)};
}

Result<std::unique_ptr<RecentQueries>> RecentQueries::make(kv::Arena* arena, const model::Description& h, uint32_t n_rows) {
  ORRERY_ASSIGN(kv::ArenaRegion region, kv::ArenaRegion::take(arena, layout(h, n_rows)));
  return std::unique_ptr<RecentQueries>(new RecentQueries(h, std::move(region), n_rows));
}

uint32_t RecentQueries::known(uint32_t n_tokens) const {
  uint32_t n = 0;
  while (n < n_rows() && n < n_tokens && positions_[(n_tokens - 1 - n) % n_rows()] == n_tokens - 1 - n) ++n;
  return n;
}

void RecentQueries::truncate(uint32_t n_tokens) {
  for (uint32_t& p : positions_)
    if (p != kNone && p >= n_tokens) p = kNone;
}

void RecentQueries::copy_from(Backend* backend, const RecentQueries& other) {
  positions_ = other.positions_;
  backend->copy(region_.data(), other.region_.data(), region_.bytes());
}

Status RecentQueries::state(Backend* backend, StateBytes* s, uint32_t n_tokens) {
  std::vector<uint32_t> positions = positions_;
  ORRERY_TRY(s->values(&positions, positions_.size()));
  kv::DevicePieces pieces;
  const uint64_t of_layer = n_rows() * width_;
  for (uint32_t row = 0; row < n_rows(); ++row) {
    const uint32_t p = positions[row];
    if (p == kNone) continue;
    ORRERY_TRY(s->check(p < n_tokens && p % n_rows() == row, "a query of a token that the session has not"));
    for (uint64_t layer = 0; layer < n_layers_; ++layer)
      pieces.add({(ring_.data + layer * of_layer + row * width_).address}, width_ * sizeof(float));
  }
  if (s->takes()) positions_ = std::move(positions);
  return pieces.state(backend, s);
}

}  // namespace orrery::engine

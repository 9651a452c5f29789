// A part of the resident KV: the queries of the last positions, in a ring on the device. Prefill and decode write them; settling reads
// them. Rewinding, loading and failed steps lose queries. The ring knows the positions that it holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/state_bytes.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/model/description/description.h"

namespace orrery::engine {

class RecentQueries {
 public:
  // n_rows: positions in the ring. The region is (n_layers, n_rows, q_dim) floats.
  static kv::Region layout(const model::Description& h, uint32_t n_rows);
  static Result<std::unique_ptr<RecentQueries>> make(kv::Arena* arena, const model::Description& h, uint32_t n_rows);

  uint64_t used_bytes() const { return 0; }  // not KV, nor its summary

  QueryRing ring() const { return ring_; }
  // (q_dim) a layer's queries of a position.
  Ptr<const float> row(uint64_t layer, uint64_t position) const {
    const uint64_t n = n_rows();
    return ring_.data + (layer * n + position % n) * width_;
  }
  // A step of positions [from, to) has written the ring.
  void note(uint32_t from, uint32_t to) { set(from, to, true); }
  // A step of positions [from, to) has failed: some of its queries have overwritten others.
  void forget(uint32_t from, uint32_t to) { set(from, to, false); }
  // The number of positions n_tokens - 1, n_tokens - 2, ... in the ring, up to the first missing one.
  uint32_t known(uint32_t n_tokens) const;

  void truncate(uint32_t n_tokens);
  void copy_from(Backend* backend, const RecentQueries& other);
  Status state(Backend* backend, StateBytes* s, uint32_t n_tokens);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  RecentQueries(const model::Description& h, kv::ArenaRegion region, uint32_t n_rows);
  uint32_t n_rows() const { return static_cast<uint32_t>(positions_.size()); }
  void set(uint32_t from, uint32_t to, bool known) {
    for (uint32_t p = to - std::min(to - from, n_rows()); p < to; ++p) positions_[p % n_rows()] = known ? p : kNone;
  }

  uint64_t width_, n_layers_;  // width_: q_dim
  kv::ArenaRegion region_;
  QueryRing ring_;
  std::vector<uint32_t> positions_;  // (n_rows) the position of each row's queries, or kNone
};

}  // namespace orrery::engine

// A part of the resident KV: the queries of the last positions, on the device, in a ring. Prefill and decode write them; settling reads
// them. A position's queries can be lost: a rewind, a load, or a step that did not come to its end. The ring knows which ones it holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/model/hyperparameters.h"

namespace orrery::engine {

class RecentQueries {
 public:
  // Of the last n_rows positions, (n_layers, n_rows, q_dim) floats.
  static kv::Region layout(const model::Hyperparameters& h, uint32_t n_rows);
  static Result<std::unique_ptr<RecentQueries>> make(kv::Arena* arena, const model::Hyperparameters& h, uint32_t n_rows);

  uint64_t used_bytes() const { return 0; }   // not KV, nor its summary

  QueryRing ring() const { return ring_; }
  // Where a layer's queries of a position stand, (q_dim).
  Ptr<const float> row(uint64_t layer, uint64_t position) const {
    const uint64_t n = n_rows();
    return ring_.data + (layer * n + position % n) * width_;
  }
  // Positions [from, to) have been computed with ring() in the step.
  void note(uint32_t from, uint32_t to) { set(from, to, true); }
  // A step of positions [from, to) has not come to its end: some of its queries stand in others' place.
  void forget(uint32_t from, uint32_t to) { set(from, to, false); }
  // How many of the positions n_tokens - 1, n_tokens - 2, ... are held, up to the first that is not.
  uint32_t known(uint32_t n_tokens) const;

  void truncate(uint32_t n_tokens);
  void copy_from(Backend* backend, const RecentQueries& other);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  RecentQueries(const model::Hyperparameters& h, kv::ArenaRegion region, uint32_t n_rows);
  uint32_t n_rows() const { return static_cast<uint32_t>(positions_.size()); }
  void set(uint32_t from, uint32_t to, bool known) {
    for (uint32_t p = to - std::min(to - from, n_rows()); p < to; ++p) positions_[p % n_rows()] = known ? p : kNone;
  }

  uint64_t width_;                    // q_dim
  kv::ArenaRegion region_;
  QueryRing ring_;
  std::vector<uint32_t> positions_;   // (n_rows) whose queries each row holds; kNone
};

}  // namespace orrery::engine

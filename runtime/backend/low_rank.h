// Low-rank keys: the key of position p is row p, (rank), times a basis (rank, width) that the tokens share. A basis covers either
// all KV heads of a layer side by side, before RoPE, or one head after RoPE. In the second case `rope` rotates
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/backend/memory.h"
#include "runtime/backend/step.h"
#include "runtime/base/span.h"

namespace orrery {

struct LowRankKeys {
  KvFormat kv;                      // of the pages
  RopeSpec rope;                    // rotates the keys in the pages; low-rank keys are not rotated
  int32_t layer = 0, rank = 0;      // rank <= width(): no more orthonormal rows exist
  int32_t kv_head = -1;             // this one alone; -1: all of the layer
  Ptr<std::byte> rows, basis;       // (positions, rank) and (rank, width()), in F16
  Ptr<std::byte> work;              // work_bytes(), 64-byte aligned; nothing in it survives a call
  const uint64_t* pages = nullptr;  // as in KvView
  // Optional. Cosines (n_rot / 2), then sines, times rope.magnitude: of the first position of each page, and of each position of
  // the first page. rope.n_rot floats for each position. The rotation of a position is composed of the two.
  Ptr<const float> page_rotations, rotations;

  int32_t n_heads() const { return kv_head < 0 ? kv.n_kv_heads : 1; }
  int64_t width() const { return int64_t{n_heads()} * kv.head_dim; }
  // Tokens whose keys are computed at once, as floats in rows of whole vectors.
  static constexpr int32_t kBatch = 256;
  int64_t padded_width() const { return (width() + 15) / 16 * 16; }
  // Room for a batch of keys; for their products with each other's dimensions, or with the basis; for the sums of the dimensions;
  // and for an inverse frequency for each pair.
  uint64_t work_bytes() const {
    const int64_t w = padded_width();
    return static_cast<uint64_t>(kBatch * w + (w > kBatch ? w : kBatch) * w + w + (kv.head_dim + 15) / 16 * 16) * sizeof(float);
  }
};

// Neighbouring tokens of one of the layer's heads, whose keys are rebuilt.
struct RebuiltRun {
  int32_t position = 0, count = 0;
  Ptr<std::byte> to;            // the first token's slot; the other slots follow it
  Ptr<const std::byte> values;  // (count) V in the pages' type; null: V in the slots stays as it is
  int32_t kv_head = 0;
  int32_t values_gap = 0;  // bytes between one V and the next
};

class LowRankOperations {
 public:
  // Between steps: out (width, width), host memory = the products of the keys' dimensions with each other, summed over the first n_tokens.
  // Both halves of the symmetric matrix are written. sums: (width), or null: the sums of the dimensions. `rows` and `basis` are not read.
  virtual void key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums) = 0;
  // Between steps: rows of positions [first, end), the keys' products with the rows of the basis.
  virtual void low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end) = 0;
  // Projects a layer's queries q (n_heads, head_dim): out (n_heads, rank) = their products with the rows of their own KV head's basis.
  // `keys` is the first KV head's; each next head's basis lies next_basis bytes further. Between steps, and within a decode step before it
  // attends.
  virtual void low_rank_queries(const LowRankKeys& keys, uint64_t next_basis, int32_t n_heads, Ptr<const float> q, Ptr<float> out) = 0;
  // Rebuilds K of these tokens from rows and basis, rotates it by RoPE, and writes K and V to their slots. Between steps, and
  // within a decode step before it attends to these tokens. Runs do not overlap. Runs of one head are fastest when they are
  // neighbours in the list.
  virtual void rebuild_keys(const LowRankKeys& keys, KvType slot_type, Span<const RebuiltRun> runs) = 0;

 protected:
  ~LowRankOperations() = default;
};

}  // namespace orrery

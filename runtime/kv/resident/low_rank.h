// Low-rank keys of a session, on the device: a basis, and a row of coefficients for each token (LowRankKeys). The reservoir holds the keys.
// - By layer: the KV heads of a layer share a basis, the directions that hold most of the keys before RoPE. Row times basis is
//   nearly the token's keys. A fetch of V alone then is enough, half of a transfer.
// - By head: a row holds the products of a key, after RoPE, with the principal components of the head's keys. The mean is not
//   subtracted: it would add the same number to all products of a query. Rows find tokens; a found token is fetched whole.
// - By head and skewed: the directions are the right singular vectors of the head's last queries, those along which queries
//   and keys together are largest.
//
// settle() makes the bases of the keys at that time. They stay until the next settle(); extend() adds rows. The memory is one region of the
// arena, taken when the session opens. settle() also takes host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/span.h"
#include "runtime/base/state_bytes.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/memory/page_table.h"

namespace orrery::kv {

// The layers with low-rank keys, and the number of values in a token's row. rank 0: no low-rank keys.
struct LowRankSpec {
  uint32_t rank = 0;
  std::vector<uint32_t> layers;  // ascending
  bool by_head = false;          // a basis for each KV head, not for each layer
  bool skewed = false;           // only by_head
};

// Queries of the last positions, after RoPE. rows: (n_layers, n_positions, n_heads, head_dim).
struct LastQueries {
  std::vector<float> rows;
  uint32_t n_positions = 0;
  int32_t n_heads = 0;
};

class LowRank {
 public:
  // Rows and bases.
  static uint64_t bytes_of(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context);
  static Region layout(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context);
  // Working memory. host_bytes: about what settle() takes on a backend like this one.
  static Region work_layout(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context, const BackendInfo& backend = {});
  // format: of the reservoir's pages. rope: the rotation of their keys; its frequencies outlive this object.
  static Result<std::unique_ptr<LowRank>> make(Arena* arena, const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope,
                                               uint32_t n_context);

  uint64_t used_bytes() const;
  uint32_t n_tokens() const { return n_tokens_; }  // tokens with a row
  uint32_t rank() const { return spec_.rank; }
  bool by_head() const { return spec_.by_head; }
  bool skewed() const { return spec_.skewed; }

  // Makes bases and rows again, from the reservoir's first n_tokens. Skewed bases also need `queries`.
  Status settle(Backend* backend, const PageTable& reservoir, uint32_t n_tokens, const LastQueries& queries = {});
  // Adds the missing rows of tokens before n_tokens.
  void extend(Backend* backend, const PageTable& reservoir, uint32_t n_tokens);
  // By head: addresses of the head's tiles. A tile holds kPageTokens rows, laid out as keys without V.
  const uint64_t* tiles(uint32_t head) const { return tiles_.data() + unit_of(head) * n_tiles_; }
  // By head: (rank, head_dim) in F16, on the device.
  Ptr<const std::byte> basis(uint32_t head) const { return unit(unit_of(head), nullptr).basis; }
  // By head: q, a layer's queries (n_heads, head_dim), to out, (n_heads, rank). The product of `out` with a row scores the token.
  void project(Backend* backend, uint32_t layer, int32_t n_heads, Ptr<const float> q, Ptr<float> out) const;
  // By layer: rebuilds K of runs of tokens that have rows, in slots of slot_type.
  void rebuild(Backend* backend, uint32_t layer, KvType slot_type, Span<const RebuiltRun> runs);
  // By layer: the layer's keys, for FetchShape::rebuilt.
  LowRankKeys of_layer(uint32_t layer) const { return unit(unit_of(layer * static_cast<uint32_t>(format_.n_kv_heads)), nullptr); }
  void truncate(uint32_t) {}  // rows stay until settle(): a policy asks for no tokens behind the end
  // Copies the content of `other`, which has the same shape.
  void copy_from(Backend* backend, const LowRank& other);
  // Bases and rows, of at most n_tokens.
  Status state(Backend* backend, StateBytes* s, uint32_t n_tokens);

 private:
  LowRank(const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope, uint32_t n_context, ArenaRegion region, ArenaRegion work);
  // A unit has one basis: a layer, or a head of a layer.
  size_t n_units() const;
  size_t unit_of(uint32_t head) const;
  uint64_t unit_bytes() const;
  LowRankKeys unit(size_t i, const PageTable* reservoir) const;
  void make_rotations(Backend* backend);
  void add_query_products(const LastQueries& queries, size_t unit, std::vector<float>* products) const;
  LowRankSpec spec_;
  KvFormat format_;
  RopeSpec rope_;
  uint32_t n_context_, n_tokens_ = 0;
  bool has_rotations_ = false;  // LowRankKeys::rotations are on the device: since the first settle()
  ArenaRegion region_, work_;
  size_t n_tiles_ = 0;
  std::vector<uint64_t> tiles_;  // (units, n_tiles_), by head
};

}  // namespace orrery::kv

// Low-rank keys of a session on the device: a basis, and a row for each token (LowRankKeys). The reservoir holds the keys themselves.
// - Of a layer: its KV heads share a basis, and the product with it is the token's keys before RoPE, nearly. What is rebuilt saves their
//   half of a transfer. The basis has the directions that hold most of the keys.
// - Of a head: rows are what its keys, behind RoPE, come to in the directions along which they differ most, the principal components of
//   the keys; the mean is not taken off, which would add the same to all of a query's products. Rows find what is fetched whole.
//   Skewed, the directions are those of the head's last queries, their right singular vectors, along which queries and keys come to most
//   together (InfiniGen).
//
// A basis is that of the keys that were there when it was made, and stays until the next time; rows can be added. The memory is one
// region of the arena, taken when the session opens; settle() takes host memory besides.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/memory/page_table.h"

namespace orrery::kv {

// Which layers, and how many values a token's row has; 0: there are none.
struct LowRankSpec {
  uint32_t rank = 0;
  std::vector<uint32_t> layers;   // ascending
  bool by_head = false;           // every KV head of them for itself
  bool skewed = false;            // by_head alone
};

// Of the last positions of all layers: (n_layers, n_positions, n_heads, head_dim).
struct LastQueries {
  std::vector<float> rows;
  uint32_t n_positions = 0;
  int32_t n_heads = 0;
};

class LowRank {
 public:
  static uint64_t bytes_of(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context);   // of rows and bases
  static Region layout(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context);       // likewise
  // Room to work in; in host memory what settle() takes on a backend like this, about.
  static Region work_layout(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context, const BackendInfo& backend = {});
  // Of keys in pages of `format` that went through `rope`, whose frequencies outlive this.
  static Result<std::unique_ptr<LowRank>> make(Arena* arena, const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope,
                                               uint32_t n_context);

  uint64_t used_bytes() const;
  uint32_t n_tokens() const { return n_tokens_; }   // that have rows
  uint32_t rank() const { return spec_.rank; }
  bool by_head() const { return spec_.by_head; }
  bool skewed() const { return spec_.skewed; }

  // Basis and rows anew, of the reservoir's first n_tokens; and of these queries, where they are skewed.
  Status settle(Backend* backend, const PageTable& reservoir, uint32_t n_tokens, const LastQueries& queries = {});
  // Rows up to n_tokens.
  void extend(Backend* backend, const PageTable& reservoir, uint32_t n_tokens);
  // Rows by head: addresses of the head's tiles of kPageTokens rows, one behind the other, as keys without V.
  const uint64_t* tiles(uint32_t head) const { return tiles_.data() + unit_of(head) * n_tiles_; }
  // (rank, head_dim) halves on the device.
  Ptr<const std::byte> basis(uint32_t head) const { return unit(unit_of(head), nullptr).basis; }
  // A layer's queries (n_heads, head_dim) become (n_heads, rank), to be multiplied with rows by head.
  void project(Backend* backend, uint32_t layer, int32_t n_heads, Ptr<const float> q, Ptr<float> out) const;
  // Rows by layer: tokens of its heads that have some, in slots of `slot_type`.
  void rebuild(Backend* backend, uint32_t layer, KvType slot_type, Span<const RebuiltRun> runs);
  void truncate(uint32_t) {}   // rows stay until settle(): a policy asks for no tokens behind the end
  // Takes over what `other`, of the same shape, holds.
  void copy_from(Backend* backend, const LowRank& other);

 private:
  LowRank(const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope, uint32_t n_context, ArenaRegion region, ArenaRegion work);
  // Whatever has a basis: a layer, or a head of one.
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
  bool has_rotations_ = false;        // LowRankKeys::rotations stand there: since the first settle()
  ArenaRegion region_, work_;
  size_t n_tiles_ = 0;
  std::vector<uint64_t> tiles_;   // (units, n_tiles_) of rows by head
};

}  // namespace orrery::kv

// Low-rank keys of a session on the device: for each layer that has them a basis, which keys of all its KV heads share, and a row
// for each token; the product is the token's keys before RoPE, nearly (LowRankKeys). The reservoir holds the keys themselves; what
// is rebuilt saves their half of a transfer.
//
// The basis is that of the keys that were there when it was made, and stays until the next time; rows can be added. The memory is one
// region of the arena, taken when the session opens; settle() takes host memory besides.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/kv/arena.h"
#include "runtime/kv/page_table.h"

namespace orrery::kv {

// Which layers, and how many values a token's row has; 0: there are none.
struct LowRankSpec {
  uint32_t rank = 0;
  std::vector<uint32_t> layers;   // ascending
};

class LowRank {
 public:
  // Of rows and bases; and as the arena gives it, with room to work in.
  static uint64_t bytes_of(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context);
  static uint64_t region_bytes(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context);
  // Of keys in pages of `format` that went through `rope`, whose frequencies outlive this.
  static Result<std::unique_ptr<LowRank>> make(Arena* arena, const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope,
                                               uint32_t n_context);
  static uint64_t host_bytes(const LowRankSpec& spec, const KvFormat& format, const Backend& backend);   // that settle() takes, about

  uint64_t bytes() const;                           // of rows and bases
  uint64_t used_bytes() const;
  uint32_t n_tokens() const { return n_tokens_; }   // that have rows

  // Basis and rows anew, of the reservoir's first n_tokens.
  Status settle(Backend* backend, const PageTable& reservoir, uint32_t n_tokens);
  // Rows up to n_tokens.
  void extend(Backend* backend, const PageTable& reservoir, uint32_t n_tokens);
  // Tokens of a head that have rows, in slots of `slot_type`.
  void rebuild(Backend* backend, uint32_t head, KvType slot_type, Span<const RebuiltRun> runs);
  // Takes over what `other`, of the same shape, holds.
  void copy_from(Backend* backend, const LowRank& other);

 private:
  LowRank(const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope, uint32_t n_context, ArenaRegion region);
  LowRankKeys layer(size_t i, const PageTable* reservoir) const;
  LowRankSpec spec_;
  KvFormat format_;
  RopeSpec rope_;
  uint32_t n_context_, n_tokens_ = 0;
  ArenaRegion region_;
};

}  // namespace orrery::kv

// What heads have let go, each head's as one token: the mean of their K and the mean of their V, in floats, and how much it weighs.
// Attention takes it in beside the head's slots (HeadView::compensation_token).  Two ways to make one: of tokens alike, which weigh as many as they are
// (RazorAttention's compensation token; where they are alike nothing is lost) and which others may join; or of tokens by their shares,
// with a weight that whoever deals them out gives.
//
// CompensationTokens are made of the reservoir's K and V, token by token in the order of positions. The memory is one region of the arena, taken when
// the session opens; nothing here allocates after make().
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

class CompensationTokens {
 public:
  static uint64_t bytes_of(uint32_t n_compensation_tokens, int32_t head_dim) { return uint64_t{n_compensation_tokens} * 2 * static_cast<uint64_t>(head_dim) * sizeof(float); }
  static Region layout(const KvFormat& format, uint32_t n_compensation_tokens);
  // For at most n_compensation_tokens of the heads of `format`.
  static Result<std::unique_ptr<CompensationTokens>> make(Arena* arena, const KvFormat& format, uint32_t n_compensation_tokens);

  uint64_t used_bytes() const;
  // Of a head, as much as so many tokens; null and 0: it has let nothing go.
  Ptr<const float> token(uint32_t head) const { return weight(head) > 0.0f ? at(heads_[head]) : Ptr<float>{}; }
  float weight(uint32_t head) const { return heads_[head].n > 0 ? static_cast<float>(heads_[head].n) : heads_[head].weight; }

  // No head has one, and none is wanted.
  void clear();
  // The head is to have one, from no token on; of those that clear() has left without. At most n_compensation_tokens.
  void want(uint32_t head);
  bool wanted(uint32_t head) const { return heads_[head].index != kNone; }
  // Tokens [first, end), behind those that it has: they are in it when finish() has been called.
  void add(Backend* backend, const PageTable& reservoir, uint32_t head, uint32_t first, uint32_t end);
  // In place of add(): of tokens 0 .., each by its share, which stay where they are until finish(); 0 for those that are not in it.
  void add_by_shares(const PageTable& reservoir, uint32_t head, Span<const float> shares, float weight);
  void finish(Backend* backend, const PageTable& reservoir);

  void truncate(uint32_t) {}   // they count no more until clear()
  // Takes over what `other`, of the same shape, holds.
  void copy_from(Backend* backend, const CompensationTokens& other);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Head {
    uint32_t index = kNone;   // of its compensation token
    uint32_t n = 0;           // tokens alike that it is the mean of, those to come included
    float weight = 0.0f;      // of one by shares
    bool waits = false;       // some are to come
  };
  CompensationTokens(const KvFormat& format, uint32_t n_compensation_tokens, ArenaRegion region);
  Ptr<float> at(const Head& head) const {
    return Ptr<float>{region_.data().address} + uint64_t{head.index} * 2 * static_cast<uint64_t>(head_dim_);
  }

  int32_t head_dim_;
  ArenaRegion region_;
  std::vector<Head> heads_;
  uint32_t n_wanted_ = 0;
  std::vector<CompensationJob> jobs_;   // room for n_compensation_tokens
};

}  // namespace orrery::kv

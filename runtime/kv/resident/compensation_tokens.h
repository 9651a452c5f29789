// Compensation tokens: a head's evicted tokens, merged into one token. It is a mean K and a mean V in floats, and a weight: the number of
// tokens that it stands for. Attention adds it to the head's slots (HeadView::compensation_token). Two ways to make one:
// - add(): every token counts the same, and the weight is their number. More tokens may join later. Nothing is lost where
//   the tokens are equal.
// - add_by_shares(): every token has a share, and the caller gives the weight.
//
// K and V come from the reservoir, token by token in the order of positions. The memory is one region of the arena, taken when the session
// opens. Nothing here allocates after make().
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

class CompensationTokens {
 public:
  static uint64_t bytes_of(uint32_t n_compensation_tokens, int32_t head_dim) {
    return uint64_t{n_compensation_tokens} * 2 * static_cast<uint64_t>(head_dim) * sizeof(float);
  }
  static Region layout(const KvFormat& format, uint32_t n_compensation_tokens);
  // At most n_compensation_tokens heads of `format` have one.
  static Result<std::unique_ptr<CompensationTokens>> make(Arena* arena, const KvFormat& format, uint32_t n_compensation_tokens);

  uint64_t used_bytes() const;
  // A head's token, (2, head_dim), and its weight. null and 0: the head has evicted nothing.
  Ptr<const float> token(uint32_t head) const { return weight(head) > 0.0f ? at(heads_[head]) : Ptr<float>{}; }
  float weight(uint32_t head) const { return heads_[head].n > 0 ? static_cast<float>(heads_[head].n) : heads_[head].weight; }

  // Afterwards no head has one, and none is wanted.
  void clear();
  // The head will have one, of no token yet. Once for each head after clear(), at most n_compensation_tokens times.
  void want(uint32_t head);
  bool wanted(uint32_t head) const { return heads_[head].index != kNone; }
  // Tokens [first, end) of the reservoir join the head's token. They lie behind those that have joined. finish() completes it.
  void add(Backend* backend, const PageTable& reservoir, uint32_t head, uint32_t first, uint32_t end);
  // The other way: shares[i] is the share of token i, 0 for a token that is kept. The array must stay until finish(). No add() for the
  // head.
  void add_by_shares(const PageTable& reservoir, uint32_t head, Span<const float> shares, float weight);
  void finish(Backend* backend, const PageTable& reservoir);

  void truncate(uint32_t) {}  // nothing to do: the session settles, and so calls clear(), before it uses them again
  // Copies the content of `other`, which has the same shape.
  void copy_from(Backend* backend, const CompensationTokens& other);
  // The tokens of the first n_heads heads; later heads have none.
  Status state(Backend* backend, StateBytes* s, uint32_t n_tokens, uint32_t n_heads);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Head {
    uint32_t index = kNone;  // of its compensation token in the region
    uint32_t n = 0;          // tokens given to add(), with those that wait for finish()
    float weight = 0.0f;     // given to add_by_shares()
    bool waits = false;      // whether a job waits for finish()
  };
  CompensationTokens(const KvFormat& format, uint32_t n_compensation_tokens, ArenaRegion region);
  Ptr<float> at(const Head& head) const {
    return Ptr<float>{region_.data().address} + uint64_t{head.index} * 2 * static_cast<uint64_t>(head_dim_);
  }

  int32_t head_dim_;
  ArenaRegion region_;
  std::vector<Head> heads_;
  uint32_t n_wanted_ = 0;
  std::vector<CompensationJob> jobs_;  // room for n_compensation_tokens
};

}  // namespace orrery::kv

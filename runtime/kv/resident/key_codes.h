// Key codes of a session, on the device: for each token of each head with codes a few bits for each dimension of its key (KeyCodeFormat).
// The reservoir holds the keys; a policy finds tokens by their codes, and a found token is fetched whole.
//
// settle() takes each head's mean key from the tokens present, and encodes all of them. extend() adds codes of later tokens by the same
// means. So codes follow from the reservoir's tokens; a saved session has them, for its mean values do not. The memory is one region of the arena, taken when
// the session opens. Nothing here allocates after make().
#pragma once

#include <algorithm>
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

// The heads that have codes (layer * n_kv_heads + KV head, ascending), and the bits of a dimension. bits 0: no codes. values: heads have
// mean values (KeyCodeFormat).
struct KeyCodeSpec {
  uint32_t bits = 0;
  std::vector<uint32_t> heads;
  bool values = false;
  uint32_t value_bits = 0;  // of a dimension of V; 0: no codes of V
  // Turns of a head, and the pairs of dimensions that RoPE turns. 0: no turns.
  uint32_t n_turns = 0, n_pairs = 0;
  bool interleaved = false;
};

class KeyCodes {
 public:
  // Bytes of all codes and means. What turns need beside them is a region of its own.
  static uint64_t bytes_of(const KeyCodeSpec& spec, int32_t head_dim, uint32_t n_context);
  static Region layout(const KeyCodeSpec& spec, const KvFormat& format, uint32_t n_context);
  static Region turns_layout(const KeyCodeSpec& spec, uint32_t n_context);
  // format: of the reservoir's pages. rotated: whether these hold rotated keys (KvTransform). frequencies: of RoPE, (n_pairs), if there are
  // turns; they outlive this object.
  static Result<std::unique_ptr<KeyCodes>> make(Arena* arena, const KeyCodeSpec& spec, const KvFormat& format, bool rotated,
                                                uint32_t n_context, const float* frequencies);

  const KeyCodeFormat& format() const { return shape_.codes; }
  int32_t block() const { return shape_.block; }   // of the queries' rotation: KeysShape::code_block
  uint32_t n_tokens() const { return n_tokens_; }  // tokens that have codes
  uint64_t used_bytes() const { return spec_.heads.size() * shape_.codes.head_bytes(n_tokens_); }
  bool has(uint32_t head) const { return std::binary_search(spec_.heads.begin(), spec_.heads.end(), head); }
  // Addresses of the head's tiles of codes, and of its mean key, (head_dim) floats.
  const uint64_t* tiles(uint32_t head) const { return tiles_.data() + index_of(head) * n_tiles_; }
  Ptr<const KeyTurn> turns(uint32_t head) const {
    return {spec_.n_turns > 0 ? jobs_[index_of(head)].mean.address + shape_.codes.turns_offset() : 0};
  }
  const KeyTurnTables& turn_tables() const { return shape_.turns; }
  Ptr<float> mean(uint32_t head) const { return jobs_[index_of(head)].mean; }  // with values: (2, head_dim), then the mean value

  // The heads' mean values: shares (heads, n_tokens) of the reservoir's first tokens.
  void set_values(Backend* backend, const PageTable& reservoir, Span<const float> shares);
  // Makes mean keys and codes of the reservoir's first n_tokens. Means are of the first 2^i tokens, the largest number that there is, so
  // codes of an earlier settlement stay until there are twice as many tokens. Of these at most 2 kInMean are read, evenly spread. Means
  // leave out the first kNotInMean tokens, if there are others: attention sinks have keys of their own.
  static constexpr uint32_t kNotInMean = 4, kInMean = 2048;
  void settle(Backend* backend, const PageTable& reservoir, uint32_t n_tokens);
  // Makes the missing codes of tokens before n_tokens.
  void extend(Backend* backend, const PageTable& reservoir, uint32_t n_tokens);
  void truncate(uint32_t n_tokens) {
    n_tokens_ = std::min(n_tokens_, n_tokens);
    if (n_tokens < n_in_mean_) n_in_mean_ = 0;
  }
  // Copies the content of `other`, which has the same shape.
  void copy_from(Backend* backend, const KeyCodes& other);
  // Codes and means, of at most n_tokens.
  Status state(Backend* backend, StateBytes* s, uint32_t n_tokens);

 private:
  KeyCodes(const KeyCodeSpec& spec, const KvFormat& format, bool rotated, uint32_t n_context, const float* frequencies, ArenaRegion region,
           ArenaRegion turns);
  size_t index_of(uint32_t head) const {
    return static_cast<size_t>(std::lower_bound(spec_.heads.begin(), spec_.heads.end(), head) - spec_.heads.begin());
  }
  void read_pages(const PageTable& reservoir);
  void make_turn_tables(Backend* backend);
  KeyCodeSpec spec_;
  KeyCodesShape shape_;
  const float* frequencies_;
  ArenaRegion region_, turns_region_;
  bool has_turn_tables_ = false;
  uint32_t n_tokens_ = 0, n_in_mean_ = 0;  // n_in_mean_: the first tokens, whose mean the means are; 0: none
  size_t n_tiles_ = 0;
  std::vector<uint64_t> tiles_;       // (heads, n_tiles_)
  std::vector<KeyCodesJob> jobs_;     // (heads)
  std::vector<MeanValueJob> values_;  // (heads), with values
};

}  // namespace orrery::kv

// Page digests of a session, on the device: one for each whole page of each head that has digests, in the order of pages. DigestKind lists
// the kinds. The reservoir holds the keys; a policy finds pages by their digests.
//
// The policy chooses the size of a page: a divisor of kPageTokens. The memory is one region of the arena, taken when the session opens.
// Nothing here allocates after make().
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

// The heads that have digests (layer * n_kv_heads + KV head, ascending), and the pages.
struct DigestSpec {
  uint32_t page_tokens = 0;
  DigestKind kind = DigestKind::range;
  std::vector<uint32_t> heads;
};

class Digests {
 public:
  static uint64_t digest_bytes(int32_t head_dim, DigestKind kind = DigestKind::range) {
    return (kind == DigestKind::mean ? 2u : 4u) * static_cast<uint64_t>(head_dim);
  }
  // Bytes of all digests.
  static uint64_t bytes_of(const DigestSpec& spec, int32_t head_dim, uint32_t n_context);
  static Region layout(const DigestSpec& spec, const KvFormat& format, uint32_t n_context);
  // format: of the reservoir's pages.
  static Result<std::unique_ptr<Digests>> make(Arena* arena, const DigestSpec& spec, const KvFormat& format, uint32_t n_context);

  // A digest is laid out as a token in F16: K and V, or K alone for DigestKind::mean.
  const KvFormat& format() const { return format_; }
  DigestKind kind() const { return spec_.kind; }
  uint64_t digest_bytes() const { return digest_bytes(format_.head_dim, spec_.kind); }
  uint32_t page_tokens() const { return spec_.page_tokens; }
  uint32_t n_pages() const { return n_pages_; }
  uint64_t used_bytes() const { return spec_.heads.size() * n_pages_ * digest_bytes(); }
  bool has(uint32_t head) const { return tiles_of_[head] != nullptr; }
  // Addresses of the head's tiles. A tile holds kPageTokens digests.
  const uint64_t* tiles(uint32_t head) const { return tiles_of_[head]; }

  // Makes the missing digests of whole pages among the reservoir's first n_tokens.
  void extend(Backend* backend, const PageTable& reservoir, uint32_t n_tokens);
  void truncate(uint32_t n_tokens) { n_pages_ = std::min(n_pages_, n_tokens / spec_.page_tokens); }
  // DigestKind::mean: for each page, the smallest cosine of a key with the mean (DigestJob::cosines).
  Span<const float> cosines(uint32_t head) const { return {cosines_.data() + first_cosine(head), n_pages_}; }
  // DigestKind::mean. hidden: the digest becomes NaN, so no query finds the page. Else: the digest is made again.
  void hide(Backend* backend, const PageTable& reservoir, uint32_t head, uint32_t page, bool hidden);
  // Copies the content of `other`, which has the same shape.
  void copy_from(Backend* backend, const Digests& other);
  // The digests, of all whole pages of n_tokens.
  Status state(Backend* backend, StateBytes* s, uint32_t n_tokens);

 private:
  Digests(const DigestSpec& spec, const KvFormat& format, uint32_t n_context, ArenaRegion region);
  size_t first_cosine(uint32_t head) const {
    const auto at = std::lower_bound(spec_.heads.begin(), spec_.heads.end(), head) - spec_.heads.begin();
    return static_cast<size_t>(at) * (cosines_.size() / spec_.heads.size());
  }
  void add_job(const PageTable& reservoir, uint32_t head, uint32_t first, uint32_t n);
  DigestSpec spec_;
  KvFormat format_;
  ArenaRegion region_;
  uint32_t n_pages_ = 0;
  std::vector<uint64_t> tiles_;            // (heads, tiles)
  std::vector<const uint64_t*> tiles_of_;  // (n_heads) in tiles_, or null
  std::vector<DigestJob> jobs_;
  std::vector<float> cosines_;       // (heads, pages), for DigestKind::mean
  std::vector<uint16_t> no_number_;  // (head_dim) NaN in F16, for DigestKind::mean
};

}  // namespace orrery::kv

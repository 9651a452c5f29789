// One sequence's pages: which page holds which tokens.  Grows and shrinks with the sequence, within its reservation;
// shared pages are copied before they are written.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/kv/memory/page_pool.h"

namespace orrery::kv {

class PageTable {
 public:
  // Room for `max_pages` entries, so that growing never allocates.
  PageTable(std::shared_ptr<PagePool> pool, uint32_t max_pages);
  ~PageTable() { truncate(0); }
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  const KvFormat& format() const { return pool_->format(); }
  KvView view() const { return {addresses_.data(), static_cast<int32_t>(addresses_.size())}; }
  // Where a head's tokens (layer * n_kv_heads + KV head) lie, position by position.
  struct HeadTokens {
    const uint64_t* pages;
    uint64_t in_page, token_bytes;
    uint64_t address(uint32_t position) const {
      constexpr auto kTile = static_cast<uint32_t>(kPageTokens);
      return pages[position / kTile] + in_page + position % kTile * token_bytes;
    }
  };
  HeadTokens tokens_of(uint32_t head) const {
    return {addresses_.data(), format().head_offset(head), format().token_bytes()};
  }
  uint32_t n_pages() const { return static_cast<uint32_t>(pages_.size()); }
  uint32_t n_shared() const;
  // Whether the page of this position, if there is one, is shared.
  bool shared(uint32_t position) const {
    const size_t page = position / static_cast<uint32_t>(kPageTokens);
    return page < pages_.size() && pool_->shared(pages_[page]);
  }

  // Makes positions [from, to) writable: takes new pages, copies those of them that are shared. `from` is at most the
  // number of tokens that the table's pages cover.
  void make_writable(Backend* backend, uint32_t from, uint32_t to);
  // Keeps the pages of the first n_tokens.
  void truncate(uint32_t n_tokens);
  // The content of pages [first, end), one behind the other, each one layer behind the other (KvFormat::page_bytes()), from and to host
  // memory. Allocates nothing.
  void download(Backend* backend, uint32_t first, uint32_t end, std::byte* to) const;
  void upload(Backend* backend, uint32_t first, uint32_t end, const std::byte* from) const;
  // Becomes a copy of `other` (of the same pool) that shares its pages.
  void share(const PageTable& other);

 private:
  // Calls f(where a layer lies from a page's address on, where it lies in a page's content).
  template <class F>
  void for_each_layer(F f) const;

  std::shared_ptr<PagePool> pool_;
  std::vector<Page*> pages_;
  std::vector<uint64_t> addresses_;   // (n_pages), beside pages_: what kernels read
};

}  // namespace orrery::kv

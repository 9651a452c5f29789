// The page table of one sequence: which page holds which tokens. It grows and shrinks with the sequence, within its reservation. It copies
// a shared page before it is written.
//
// The table of layers with a window may be a ring: when its reservation is used up, it gives back its oldest pages, which lie ahead of
// every window. Pages keep their numbers; those given back have address 0.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/kv/memory/page_pool.h"

namespace orrery::kv {

// Pages that the tokens of one window may lie in, without the token that sees them.
constexpr uint32_t window_pages(uint32_t window) {
  constexpr auto kTokens = static_cast<uint32_t>(kPageTokens);
  return (window + kTokens - 3) / kTokens + 1;
}

class PageTable {
 public:
  // A table with room for max_pages entries: growing never allocates. most_held > 0: a ring of at most most_held pages, whose layers see
  // `window` tokens.
  PageTable(std::shared_ptr<PagePool> pool, uint32_t max_pages, uint32_t window = 0, uint32_t most_held = 0);
  ~PageTable() { truncate(0); }
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  const KvFormat& format() const { return pool_->format(); }
  KvView view() const { return {addresses_.data(), static_cast<int32_t>(addresses_.size())}; }
  // The addresses of one head's tokens, by position.
  struct HeadTokens {
    const uint64_t* pages;
    uint64_t in_page, token_bytes;
    uint64_t address(uint32_t position) const {
      constexpr auto kTile = static_cast<uint32_t>(kPageTokens);
      return pages[position / kTile] + in_page + position % kTile * token_bytes;
    }
  };
  HeadTokens tokens_of(uint32_t head) const {  // head: layer * n_kv_heads + KV head
    return {addresses_.data(), format().head_offset(head), format().token_bytes()};
  }
  uint32_t n_pages() const { return static_cast<uint32_t>(pages_.size()); }  // with those that a ring has given back
  uint32_t n_held() const { return n_pages() - first_; }
  uint32_t n_shared() const;
  bool ring() const { return most_held_ > 0; }
  uint32_t window() const { return window_; }  // of a ring
  // The first page that the windows of tokens from n_tokens on reach.
  uint32_t first_in_reach(uint32_t n_tokens) const;
  // Whether the table has the tokens ahead of n_tokens that windows behind them reach.
  bool holds_window(uint32_t n_tokens) const;
  // Of a ring: gives all pages back, and takes those that the windows of tokens from n_tokens on reach. Errors as of make_writable(); then
  // the table is empty.
  Status take_window(Backend* backend, uint32_t n_tokens);
  // Whether the page of this position, if there is one, is shared.
  bool shared(uint32_t position) const {
    const size_t page = position / static_cast<uint32_t>(kPageTokens);
    return page < pages_.size() && pool_->shared(pages_[page]);
  }

  // Makes positions [from, to) writable: takes new pages, and copies shared ones. `from` is at most the number of tokens that the table's
  // pages cover; a ring holds the window of `from`. Waits until the device may use new pages (PagePool::wait()). After an error the table
  // has the pages before that one.
  Status make_writable(Backend* backend, uint32_t from, uint32_t to);
  // Keeps the pages of the first n_tokens.
  void truncate(uint32_t n_tokens);
  // Copies pages [first, end) to host memory, and from it. There the pages lie one behind the other, and the layers of a page too
  // (KvFormat::page_bytes()). Allocates nothing.
  void download(Backend* backend, uint32_t first, uint32_t end, std::byte* to) const;
  void upload(Backend* backend, uint32_t first, uint32_t end, const std::byte* from) const;
  // Becomes a copy of `other`, a table of the same pool, and shares its pages.
  void share(const PageTable& other);

 private:
  // Calls f(offset of a layer from the page's address, offset of the layer in the page's host copy) for every layer.
  template <class F>
  void for_each_layer(F f) const;
  // Gives back pages that the windows from n_tokens on do not reach, until there is room for one more.
  void make_room(uint32_t n_tokens);

  std::shared_ptr<PagePool> pool_;
  const uint32_t window_, most_held_;
  uint32_t first_ = 0;               // the first page that is held
  std::vector<Page*> pages_;         // null: given back
  std::vector<uint64_t> addresses_;  // (n_pages): the addresses of pages_, for kernels
};

}  // namespace orrery::kv

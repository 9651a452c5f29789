#include "runtime/kv/memory/page_table.h"

#include <algorithm>
#include <utility>

namespace orrery::kv {

namespace {
constexpr uint32_t kTokens = static_cast<uint32_t>(kPageTokens);
constexpr size_t kAtOnce = 256;  // pieces in one transfer: a layer of a page each
}  // namespace

PageTable::PageTable(std::shared_ptr<PagePool> pool, uint32_t max_pages, uint32_t window, uint32_t most_held)
    : pool_(std::move(pool)), window_(window), most_held_(most_held) {
  pages_.reserve(max_pages);
  addresses_.reserve(max_pages);
}

uint32_t PageTable::n_shared() const {
  uint32_t n = 0;
  for (uint32_t i = first_; i < pages_.size(); ++i) n += pool_->shared(pages_[i]);
  return n;
}

template <class F>
void PageTable::for_each_layer(F f) const {
  for (int32_t layer = 0; layer < format().n_layers; ++layer)
    f(format().head_offset(layer, 0), static_cast<uint64_t>(layer) * format().layer_bytes());
}

uint32_t PageTable::first_in_reach(uint32_t n_tokens) const {
  // The token at n_tokens sees itself and window - 1 tokens ahead of it.
  return ring() && n_tokens + 1 > window_ ? (n_tokens + 1 - window_) / kTokens : 0;
}

bool PageTable::holds_window(uint32_t n_tokens) const {
  return first_ <= first_in_reach(n_tokens) && pages_.size() >= (n_tokens + kTokens - 1) / kTokens;
}

void PageTable::make_room(uint32_t n_tokens) {
  if (!ring()) return;
  for (const uint32_t end = first_in_reach(n_tokens); n_held() >= most_held_ && first_ < end; ++first_) {
    pool_->drop(std::exchange(pages_[first_], nullptr));
    addresses_[first_] = 0;
  }
}

Status PageTable::take_window(Backend* backend, uint32_t n_tokens) {
  truncate(0);
  first_ = first_in_reach(n_tokens);
  pages_.assign(first_, nullptr);
  addresses_.assign(first_, 0);
  Status status = make_writable(backend, first_ * kTokens, n_tokens);
  if (!status.ok()) truncate(0);
  return status;
}

Status PageTable::make_writable(Backend* backend, uint32_t from, uint32_t to) {
  for (uint32_t i = from / kTokens; i < (to + kTokens - 1) / kTokens; ++i) {
    const bool is_new = i >= pages_.size();
    if (!is_new && !pool_->shared(pages_[i])) continue;
    if (is_new) make_room(from);
    Page* const taken = pool_->take();
    if (Status ready = pool_->wait(*taken); !ready.ok()) {
      pool_->drop(taken);
      return ready;
    }
    if (is_new) {
      pages_.push_back(taken);
      addresses_.push_back(taken->address);
    } else {
      Page* const copy = taken;
      for_each_layer(
          [&](uint64_t at, uint64_t) { backend->copy({copy->address + at}, {pages_[i]->address + at}, format().layer_bytes()); });
      pool_->drop(pages_[i]);
      pages_[i] = copy;
      addresses_[i] = copy->address;
    }
  }
  return ok_status();
}

void PageTable::truncate(uint32_t n_tokens) {
  const size_t keep = (n_tokens + kTokens - 1) / kTokens;
  while (pages_.size() > keep) {
    if (pages_.back()) pool_->drop(pages_.back());
    pages_.pop_back();
    addresses_.pop_back();
  }
  first_ = std::min(first_, n_pages());
}

void PageTable::download(Backend* backend, uint32_t first, uint32_t end, std::byte* to) const {
  Download layers[kAtOnce];
  size_t n = 0;
  for (uint32_t i = first; i < end; ++i, to += format().page_bytes())
    for_each_layer([&](uint64_t at, uint64_t packed) {
      layers[n++] = {to + packed, {addresses_[i] + at}, format().layer_bytes()};
      if (n == kAtOnce) backend->download_all({layers, std::exchange(n, 0)});
    });
  backend->download_all({layers, n});
}

void PageTable::upload(Backend* backend, uint32_t first, uint32_t end, const std::byte* from) const {
  Upload layers[kAtOnce];
  size_t n = 0;
  for (uint32_t i = first; i < end; ++i, from += format().page_bytes())
    for_each_layer([&](uint64_t at, uint64_t packed) {
      layers[n++] = {{addresses_[i] + at}, from + packed, format().layer_bytes()};
      if (n == kAtOnce) backend->upload_all({layers, std::exchange(n, 0)});
    });
  backend->upload_all({layers, n});
}

void PageTable::share(const PageTable& other) {
  truncate(0);
  first_ = other.first_;
  for (Page* page : other.pages_) {
    if (page) pool_->share(page);
    pages_.push_back(page);
    addresses_.push_back(page ? page->address : 0);
  }
}

}  // namespace orrery::kv

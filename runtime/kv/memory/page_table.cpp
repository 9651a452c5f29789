#include "runtime/kv/memory/page_table.h"

#include <utility>

namespace orrery::kv {

namespace {
constexpr uint32_t kTokens = static_cast<uint32_t>(kPageTokens);
constexpr size_t kAtOnce = 256;   // pieces in one transfer: a layer of a page each
}

PageTable::PageTable(std::shared_ptr<PagePool> pool, uint32_t max_pages) : pool_(std::move(pool)) {
  pages_.reserve(max_pages);
  addresses_.reserve(max_pages);
}

uint32_t PageTable::n_shared() const {
  uint32_t n = 0;
  for (const Page* page : pages_) n += pool_->shared(page);
  return n;
}

template <class F>
void PageTable::for_each_layer(F f) const {
  for (int32_t layer = 0; layer < format().n_layers; ++layer)
    f(format().head_offset(layer, 0), static_cast<uint64_t>(layer) * format().layer_bytes());
}

Status PageTable::make_writable(Backend* backend, uint32_t from, uint32_t to) {
  for (uint32_t i = from / kTokens; i < (to + kTokens - 1) / kTokens; ++i) {
    const bool is_new = i >= pages_.size();
    if (!is_new && !pool_->shared(pages_[i])) continue;
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
      for_each_layer([&](uint64_t at, uint64_t) {
        backend->copy({copy->address + at}, {pages_[i]->address + at}, format().layer_bytes());
      });
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
    pool_->drop(pages_.back());
    pages_.pop_back();
    addresses_.pop_back();
  }
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
  for (Page* page : other.pages_) {
    pool_->share(page);
    pages_.push_back(page);
    addresses_.push_back(page->address);
  }
}

}  // namespace orrery::kv

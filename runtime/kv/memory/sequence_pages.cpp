#include "runtime/kv/memory/sequence_pages.h"

#include <algorithm>
#include <cstring>

namespace orrery::kv {

template <class F>
void SequencePages::for_each(bool rings, F f) const {
  for (size_t g = 0; g < n_groups_; ++g)
    if (tables_[g]->ring() == rings) f(*tables_[g]);
}

uint64_t SequencePages::page_bytes() const {
  uint64_t bytes = 0;
  for_each(false, [&](const PageTable& table) { bytes += table.format().page_bytes(); });
  return bytes;
}

uint64_t SequencePages::ring_page_bytes() const {
  uint64_t bytes = 0;
  for_each(true, [&](const PageTable& table) { bytes += table.format().page_bytes(); });
  return bytes;
}

uint64_t SequencePages::used_bytes() const {
  uint64_t bytes = 0;
  for (size_t g = 0; g < n_groups_; ++g) bytes += group(g).n_held() * group(g).format().page_bytes();
  return bytes;
}

uint64_t SequencePages::shared_bytes() const {
  uint64_t bytes = 0;
  for (size_t g = 0; g < n_groups_; ++g) bytes += group(g).n_shared() * group(g).format().page_bytes();
  return bytes;
}

uint64_t SequencePages::read_bytes(uint32_t n_tokens) const {
  const auto of_tokens = [](const PageTable& table, uint64_t n) { return n * table.format().page_bytes() / kTokens; };
  uint64_t bytes = 0;
  for_each(false, [&](const PageTable& table) { bytes += of_tokens(table, n_tokens); });
  for_each(true, [&](const PageTable& table) { bytes += of_tokens(table, std::min(n_tokens, table.window())); });
  return bytes;
}

Status SequencePages::make_writable(Backend* backend, uint32_t from, uint32_t to, bool with_rings) {
  std::array<uint32_t, size_t{kMostKvGroups}> n_before;
  for (size_t g = 0; g < n_groups_; ++g) n_before[g] = tables_[g]->n_pages();
  for (size_t g = 0; g < n_groups_; ++g) {
    if (tables_[g]->ring() && !with_rings) continue;
    Status status = tables_[g]->make_writable(backend, from, to);
    if (status.ok()) continue;
    for (size_t i = 0; i <= g; ++i) tables_[i]->truncate(n_before[i] * kTokens);
    return status;
  }
  return ok_status();
}

Status SequencePages::make_writable(Backend* backend, uint32_t from, uint32_t to) { return make_writable(backend, from, to, true); }
Status SequencePages::make_whole_groups_writable(Backend* backend, uint32_t from, uint32_t to) {
  return make_writable(backend, from, to, false);
}

void SequencePages::truncate(uint32_t n_tokens) {
  for (size_t g = 0; g < n_groups_; ++g) tables_[g]->truncate(n_tokens);
}

void SequencePages::share(const SequencePages& other) {
  for (size_t g = 0; g < n_groups_; ++g) tables_[g]->share(*other.tables_[g]);
}

void SequencePages::download(Backend* backend, uint32_t first, uint32_t end, std::byte* to) const {
  if (n_groups_ == 1 && !tables_[0]->ring()) return tables_[0]->download(backend, first, end, to);  // in fewer, longer transfers
  for (uint32_t page = first; page < end; ++page)
    for_each(false, [&](const PageTable& table) { table.download(backend, page, page + 1, to), to += table.format().page_bytes(); });
}

void SequencePages::upload(Backend* backend, uint32_t first, uint32_t end, const std::byte* from) const {
  if (n_groups_ == 1 && !tables_[0]->ring()) return tables_[0]->upload(backend, first, end, from);
  for (uint32_t page = first; page < end; ++page)
    for_each(false, [&](const PageTable& table) { table.upload(backend, page, page + 1, from), from += table.format().page_bytes(); });
}

void SequencePages::download_rings(Backend* backend, uint32_t first, uint32_t end, std::byte* to) const {
  for (uint32_t page = first; page < end; ++page)
    for_each(true, [&](const PageTable& table) { table.download(backend, page, page + 1, to), to += table.format().page_bytes(); });
}

void SequencePages::upload_rings(Backend* backend, uint32_t first, uint32_t end, const std::byte* from) const {
  for (uint32_t page = first; page < end; ++page)
    for_each(true, [&](const PageTable& table) { table.upload(backend, page, page + 1, from), from += table.format().page_bytes(); });
}

uint64_t SequencePages::windows_bytes() const {
  uint64_t bytes = 0;
  for_each(true, [&](const PageTable& table) { bytes += window_pages(table.window()) * table.format().page_bytes(); });
  return bytes;
}

bool SequencePages::hold_windows(uint32_t n_tokens) const {
  bool all = true;
  for_each(true, [&](const PageTable& table) { all = all && table.holds_window(n_tokens); });
  return all;
}

Status SequencePages::download_windows(Backend* backend, uint32_t n_tokens, std::byte* to) const {
  std::memset(to, 0, windows_bytes());
  const uint32_t end = n_pages(n_tokens);
  std::byte* at = to;
  for_each(true, [&](const PageTable& table) {
    table.download(backend, table.first_in_reach(n_tokens), end, at);
    at += window_pages(table.window()) * table.format().page_bytes();
  });
  ORRERY_TRY(backend->synchronize());
  at = to;
  for_each(true, [&](const PageTable& table) {
    const uint64_t page_bytes = table.format().page_bytes();
    if (const uint32_t first = table.first_in_reach(n_tokens); first < end && n_tokens % kTokens != 0)
      clear_slots(table.format(), n_tokens % kTokens, at + (end - 1 - first) * page_bytes);
    at += window_pages(table.window()) * page_bytes;
  });
  return ok_status();
}

Status SequencePages::take_windows(Backend* backend, uint32_t n_tokens) {
  for (size_t g = 0; g < n_groups_; ++g) {
    if (!tables_[g]->ring()) continue;
    Status status = tables_[g]->take_window(backend, n_tokens);
    if (status.ok()) continue;
    for_each(true, [](PageTable& table) { table.truncate(0); });
    return status;
  }
  return ok_status();
}

Status SequencePages::upload_windows(Backend* backend, uint32_t n_tokens, const std::byte* from) {
  ORRERY_TRY(take_windows(backend, n_tokens));
  for_each(true, [&](const PageTable& table) {
    table.upload(backend, table.first_in_reach(n_tokens), n_pages(n_tokens), from);
    from += window_pages(table.window()) * table.format().page_bytes();
  });
  return backend->synchronize();
}

void clear_slots(const KvFormat& format, uint32_t n_tokens, std::byte* page) {
  const uint64_t n_heads = static_cast<uint64_t>(format.n_layers) * static_cast<uint64_t>(format.n_kv_heads);
  const uint64_t used = n_tokens * format.token_bytes();
  for (uint64_t head = 0; head < n_heads; ++head, page += format.head_bytes()) std::memset(page + used, 0, format.head_bytes() - used);
}

void StepPages::give(const SequencePages& pages, Step* step) {
  for (size_t g = 0; g < pages.n_groups(); ++g) {
    views_[g] = pages.group(g).view();
    if (g > 0) others_[g - 1] = {pages.group(g).format(), {&views_[g], 1}};
  }
  step->sequences = {&views_[0], 1};
  step->kv = pages.group(0).format();
  step->other_groups = {others_.data(), pages.n_groups() - 1};
}

}  // namespace orrery::kv

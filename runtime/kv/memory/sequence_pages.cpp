#include "runtime/kv/memory/sequence_pages.h"

namespace orrery::kv {

uint64_t SequencePages::page_bytes() const {
  uint64_t bytes = 0;
  for (size_t g = 0; g < n_groups_; ++g) bytes += group(g).format().page_bytes();
  return bytes;
}

uint64_t SequencePages::shared_bytes() const {
  uint64_t bytes = 0;
  for (size_t g = 0; g < n_groups_; ++g) bytes += group(g).n_shared() * group(g).format().page_bytes();
  return bytes;
}

Status SequencePages::make_writable(Backend* backend, uint32_t from, uint32_t to) {
  const uint32_t n_before = n_pages();
  for (size_t g = 0; g < n_groups_; ++g) {
    Status status = tables_[g]->make_writable(backend, from, to);
    if (status.ok()) continue;
    for (size_t i = 0; i <= g; ++i) tables_[i]->truncate(n_before * static_cast<uint32_t>(kPageTokens));
    return status;
  }
  return ok_status();
}

void SequencePages::truncate(uint32_t n_tokens) {
  for (size_t g = 0; g < n_groups_; ++g) tables_[g]->truncate(n_tokens);
}

void SequencePages::download(Backend* backend, uint32_t first, uint32_t end, std::byte* to) const {
  if (n_groups_ == 1) return tables_[0]->download(backend, first, end, to);   // in fewer, longer transfers
  for (uint32_t page = first; page < end; ++page)
    for (size_t g = 0; g < n_groups_; to += group(g++).format().page_bytes()) group(g).download(backend, page, page + 1, to);
}

void SequencePages::upload(Backend* backend, uint32_t first, uint32_t end, const std::byte* from) const {
  if (n_groups_ == 1) return tables_[0]->upload(backend, first, end, from);
  for (uint32_t page = first; page < end; ++page)
    for (size_t g = 0; g < n_groups_; from += group(g++).format().page_bytes()) group(g).upload(backend, page, page + 1, from);
}

void SequencePages::share(const SequencePages& other) {
  for (size_t g = 0; g < n_groups_; ++g) tables_[g]->share(*other.tables_[g]);
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

// The pages of one sequence: a page table for each KV group. All tables hold the same tokens. In host memory a page is the page of group 0,
// then that of group 1, and so on.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "runtime/backend/step.h"
#include "runtime/kv/memory/page_table.h"

namespace orrery::kv {

class SequencePages {
 public:
  // At most kMostKvGroups tables, in the order of the groups.
  void add(std::unique_ptr<PageTable> table) { tables_[n_groups_++] = std::move(table); }

  size_t n_groups() const { return n_groups_; }
  const PageTable& group(size_t i) const { return *tables_[i]; }
  KvType type() const { return tables_[0]->format().type; }
  uint64_t page_bytes() const;     // of all groups
  uint32_t n_pages() const { return tables_[0]->n_pages(); }
  uint64_t used_bytes() const { return n_pages() * page_bytes(); }
  uint64_t shared_bytes() const;   // of pages that other sequences have too

  // As the functions of PageTable.
  Status make_writable(Backend* backend, uint32_t from, uint32_t to);
  void truncate(uint32_t n_tokens);
  void download(Backend* backend, uint32_t first, uint32_t end, std::byte* to) const;
  void upload(Backend* backend, uint32_t first, uint32_t end, const std::byte* from) const;
  void share(const SequencePages& other);

 private:
  std::array<std::unique_ptr<PageTable>, size_t{kMostKvGroups}> tables_;
  size_t n_groups_ = 0;
};

// A step's view of one sequence's pages.
class StepPages {
 public:
  // Sets the step's pages and their form. They change with the sequence's pages, and live as long as this object.
  void give(const SequencePages& pages, Step* step);

 private:
  std::array<KvView, size_t{kMostKvGroups}> views_;
  std::array<KvPages, size_t{kMostKvGroups} - 1> others_;
};

}  // namespace orrery::kv

// The pages of one sequence: a page table for each KV group. All tables hold the same tokens, but for rings, which hold the last ones
// alone.
//
// In host memory a page is the page of each group that holds all tokens, in the order of the groups. The windows of rings are apart: in the
// order of the groups, as many pages as a window may reach, those that there are first.
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
  uint64_t page_bytes() const;                                                              // of all groups but rings
  uint32_t n_pages(uint32_t n_tokens) const { return (n_tokens + kTokens - 1) / kTokens; }  // of page_bytes() each
  uint64_t used_bytes() const;                                                              // with rings
  uint64_t shared_bytes() const;                                                            // of pages that other sequences have too
  // What a step reads of n_tokens tokens, at most.
  uint64_t read_bytes(uint32_t n_tokens) const;

  // As the functions of PageTable. Of whole groups: rings stay as they are.
  Status make_writable(Backend* backend, uint32_t from, uint32_t to);
  Status make_whole_groups_writable(Backend* backend, uint32_t from, uint32_t to);
  void truncate(uint32_t n_tokens);
  void share(const SequencePages& other);
  // Pages of page_bytes().
  void download(Backend* backend, uint32_t first, uint32_t end, std::byte* to) const;
  void upload(Backend* backend, uint32_t first, uint32_t end, const std::byte* from) const;

  // The pages [first, end) of rings, which have them.
  uint64_t ring_page_bytes() const;
  void download_rings(Backend* backend, uint32_t first, uint32_t end, std::byte* to) const;
  void upload_rings(Backend* backend, uint32_t first, uint32_t end, const std::byte* from) const;

  // The windows of rings behind n_tokens tokens. A window's slots that hold no such token are zero.
  uint64_t windows_bytes() const;
  bool hold_windows(uint32_t n_tokens) const;
  Status download_windows(Backend* backend, uint32_t n_tokens, std::byte* to) const;
  // The rings hold these windows and nothing else afterwards; after an error, nothing.
  Status upload_windows(Backend* backend, uint32_t n_tokens, const std::byte* from);
  // The same with windows that nothing has written yet.
  Status take_windows(Backend* backend, uint32_t n_tokens);

 private:
  static constexpr auto kTokens = static_cast<uint32_t>(kPageTokens);
  Status make_writable(Backend* backend, uint32_t from, uint32_t to, bool with_rings);
  template <class F>
  void for_each(bool rings, F f) const;  // f(table)

  std::array<std::unique_ptr<PageTable>, size_t{kMostKvGroups}> tables_;
  size_t n_groups_ = 0;
};

// Clears a page's slots from n_tokens on, at most kPageTokens, in host memory: they may hold another sequence's tokens.
void clear_slots(const KvFormat& format, uint32_t n_tokens, std::byte* page);

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

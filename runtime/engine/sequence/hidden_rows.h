// The hidden states of a sequence's last tokens that its model's head has not read (decoder/draft_model.cpp): rows of consecutive positions in host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/model/forward/forward.h"

namespace orrery::engine {

class HiddenRows {
 public:
  static kv::Region layout(const model::Description& h, uint32_t chunk) {
    return {"hidden states",
            kv::Holds::tables,
            0,
            0,
            sizeof(HiddenRows) + uint64_t{most_rows(chunk)} * static_cast<uint64_t>(h.n_embd) * sizeof(float),
            0};
  }
  HiddenRows(const model::Description& h, uint32_t chunk)
      : n_embd_(static_cast<size_t>(h.n_embd)), most_(most_rows(chunk)), rows_(size_t{most_} * n_embd_) {}

  uint32_t first() const { return first_; }  // position of the first row
  uint32_t end() const { return first_ + n_; }
  bool has(uint32_t position) const { return position >= first_ && position < end(); }
  const float* row(uint32_t position) const { return rows_.data() + (position - first_) * n_embd_; }
  // The head has read the rows. The last one stays: its cell may be computed again.
  void read() {
    if (n_ < 2) return;
    std::copy_n(row(end() - 1), n_embd_, rows_.data());
    first_ = end() - 1, n_ = 1;
  }
  // Whether the rows should be read before more come.
  bool full() const { return n_ + static_cast<uint32_t>(model::kLogitRows) > most_; }

  // Room for the rows of n tokens from `position` on, at most a chunk. Drops rows from there on, and the others where they do not precede
  // these, or where nobody has read them and they leave no room. add() follows once the rows are there.
  float* room(uint32_t position, uint32_t n) {
    truncate(position);
    if (end() != position) first_ = position, n_ = 0;
    if (n_ + n > most_) read();
    return rows_.data() + n_ * n_embd_;
  }
  void add(uint32_t n) { n_ += n; }
  void push(uint32_t position, Span<const float> row) {
    std::copy(row.begin(), row.end(), room(position, 1));
    add(1);
  }
  void truncate(uint32_t n_tokens) { n_ = std::min(n_, n_tokens - std::min(n_tokens, first_)); }
  void copy_from(const HiddenRows& other) { first_ = other.first_, n_ = other.n_, rows_ = other.rows_; }

 private:
  static uint32_t most_rows(uint32_t chunk) { return chunk + 1 + static_cast<uint32_t>(model::kLogitRows); }

  size_t n_embd_;
  uint32_t most_, first_ = 0, n_ = 0;
  std::vector<float> rows_;  // (most_, n_embd)
};

}  // namespace orrery::engine

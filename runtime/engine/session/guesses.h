// Guessed tokens that a session has computed ahead, with their rows of logits, and the index that guesses them (ngrams.h).
//
// A decode step computes the session's next token and guesses behind it. Row 0 of the logits is the one that the step of the token alone
// gives. When the sampler chooses the first guess, row 1 is the one that this guess's own step would give, and so on. When it chooses
// another token, the remaining rows are of no use: the session forgets them, and their KV lies behind its last token.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/engine/session/ngrams.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/model/forward/forward.h"

namespace orrery::engine {

class Guesses {
 public:
  static kv::Region layout(const model::Description& h, uint32_t n_context) {
    const uint64_t row = (static_cast<uint64_t>(h.n_vocab) + static_cast<uint64_t>(h.n_embd)) * sizeof(float);
    return {"guessed tokens", kv::Holds::tables, 0, 0, sizeof(Guesses) + kRows * row + Ngrams::bytes(n_context), 0};
  }
  Guesses(const model::Description& h, uint32_t n_context)
      : ngrams(n_context), logits_(kRows * static_cast<size_t>(h.n_vocab)), embeddings_(kRows * static_cast<size_t>(h.n_embd)) {}

  Ngrams ngrams;

  // The length of a draft, of at most `most` tokens: as many as pay, by the share of drafted tokens that were right. may_try: sometimes one
  // token is drafted that would not pay, to find out.
  size_t draft_length(size_t most, const GuessCosts& costs, bool may_try) {
    constexpr double kLeastGain = 1.04;
    constexpr uint32_t kTryAfter = 64;  // tokens
    double all_right = 1.0, expected = 1.0, best = kLeastGain;
    size_t n = 0;
    for (size_t i = 0; i < most; ++i) {
      all_right *= drafts_right_;
      expected += all_right;
      const double gain = expected / (1.0 + costs[i]);
      if (gain >= best) best = gain, n = i + 1;
    }
    if (n == 0 && ++since_draft_ >= kTryAfter && may_try) n = std::min<size_t>(most, 1);
    if (n > 0) since_draft_ = 0;
    return n;
  }
  // The length of n guesses that are as good as certain: as many as pay.
  size_t n_that_pay(size_t n, const GuessCosts& costs) const {
    double best = 1.0;
    size_t length = 0;
    for (size_t i = 0; i < n; ++i) {
      const double gain = static_cast<double>(i + 2) / (1.0 + costs[i]);
      if (gain > best) best = gain, length = i + 1;
    }
    return length;
  }
  void judge_draft(bool right) { drafts_right_ += ((right ? 1.0 : 0.0) - drafts_right_) / 16; }
  // The tokens of a step, (kRows), to be filled in: the session's next token, then its guesses.
  int32_t* tokens() { return tokens_.data(); }

  float* logits() { return logits_.data(); }          // (kRows, n_vocab)
  float* embeddings() { return embeddings_.data(); }  // (kRows, n_embd)

  // The step has computed n guesses. Copies row 0.
  void computed(size_t n, std::vector<float>& logits, std::vector<float>& embedding) {
    end_ = n + 1, next_ = 1;
    copy_row(0, logits, embedding);
  }
  // If the next guess is `token`, copies its row and returns true.
  bool take(int32_t token, std::vector<float>& logits, std::vector<float>& embedding) {
    if (n_ahead() == 0 || tokens_[next_] != token) return false;
    copy_row(next_++, logits, embedding);
    return true;
  }
  size_t n_ahead() const { return end_ - next_; }  // guesses that may still be taken
  void forget() { end_ = next_ = 1; }

 private:
  static constexpr size_t kRows = kMostGuesses + 1;
  static_assert(kRows <= model::kLogitRows);

  void copy_row(size_t row, std::vector<float>& logits, std::vector<float>& embedding) const {
    std::copy_n(logits_.data() + row * logits.size(), logits.size(), logits.begin());
    std::copy_n(embeddings_.data() + row * embedding.size(), embedding.size(), embedding.begin());
  }

  std::array<int32_t, kRows> tokens_ = {};
  double drafts_right_ = 0.85;
  uint32_t since_draft_ = 0;       // tokens since the last draft
  size_t next_ = 1, end_ = 1;      // tokens_[next_, end_) may still be taken
  std::vector<float> logits_;      // (kRows, n_vocab)
  std::vector<float> embeddings_;  // (kRows, n_embd)
};

// The hidden states of a session's last tokens that its head has not read (draft_model.cpp): rows of consecutive positions in host memory.
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

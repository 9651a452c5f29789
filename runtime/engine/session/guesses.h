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
#include "runtime/model/forward.h"

namespace orrery::engine {

class Guesses {
 public:
  static kv::Region layout(const model::Hyperparameters& h, uint32_t n_context) {
    const uint64_t row = (static_cast<uint64_t>(h.n_vocab) + static_cast<uint64_t>(h.n_embd)) * sizeof(float);
    return {"guessed tokens", kv::Holds::tables, 0, 0, sizeof(Guesses) + kRows * row + Ngrams::bytes(n_context), 0};
  }
  Guesses(const model::Hyperparameters& h, uint32_t n_context)
      : ngrams(n_context), logits_(kRows * static_cast<size_t>(h.n_vocab)), embeddings_(kRows * static_cast<size_t>(h.n_embd)) {}

  Ngrams ngrams;

  // The tokens of a step: the session's next token, then its guesses.
  Span<const int32_t> rows(int32_t token, Span<const int32_t> guess) {
    tokens_[0] = token;
    std::copy(guess.begin(), guess.end(), tokens_.begin() + 1);
    return {tokens_.data(), 1 + guess.size()};
  }
  float* logits() { return logits_.data(); }           // (kRows, n_vocab)
  float* embeddings() { return embeddings_.data(); }   // (kRows, n_embd)

  // The step of rows() has computed n guesses. Copies row 0.
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
  size_t n_ahead() const { return end_ - next_; }   // guesses that may still be taken
  void forget() { end_ = next_ = 1; }

 private:
  static constexpr size_t kRows = kMostGuesses + 1;
  static_assert(kRows <= model::kLogitRows);

  void copy_row(size_t row, std::vector<float>& logits, std::vector<float>& embedding) const {
    std::copy_n(logits_.data() + row * logits.size(), logits.size(), logits.begin());
    std::copy_n(embeddings_.data() + row * embedding.size(), embedding.size(), embedding.begin());
  }

  std::array<int32_t, kRows> tokens_ = {};
  size_t next_ = 1, end_ = 1;        // tokens_[next_, end_) may still be taken
  std::vector<float> logits_;        // (kRows, n_vocab)
  std::vector<float> embeddings_;    // (kRows, n_embd)
};

}  // namespace orrery::engine

// SentencePiece's BPE. A text is a row of characters. Of all neighbours that together are a token, the pair with the
// best score (of equal pairs, the leftmost) becomes one token, until no pair is left. A character that is no token is
// encoded byte by byte. Spaces are plain spaces here, because the loader replaces the vocabulary's U+2581.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/text/pace.h"
#include "runtime/text/tokenizer/tokenizer_vocab.h"

namespace orrery::text {

class SpmModel {
 public:
  struct Scratch {
    struct Symbol {
      uint32_t at, bytes;  // bytes 0: merged away
      uint32_t previous, next;
    };
    struct Candidate {
      float score;
      uint32_t left;   // symbol
      uint32_t bytes;  // of both symbols together; if they are longer by now, the candidate is stale
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // `table` and `index` outlive the model. `index` holds the tokens that text may become. scores: (n_vocab), no NaN.
  // byte_ids: (256) the token of each byte, or -1.
  void reset(const TokenTable* table, const TokenIndex* index, std::vector<float> scores, const int32_t* byte_ids);

  // Appends the tokens of `text` in O(n log n). A run of characters whose bytes have no token gives one `unknown`, or
  // nothing if `unknown` < 0. Returns false if `cancel` (may be null) ended the encoding, or if `out` grew beyond
  // `max_size`.
  bool encode(std::string_view text, int32_t unknown, const std::atomic<bool>* cancel, size_t max_size, Scratch* scratch,
              std::vector<int32_t>* out) const;

 private:
  bool encode_segment(std::string_view text, int32_t unknown, bool* after_unknown, Pace* pace, Scratch* scratch,
                      std::vector<int32_t>* out) const;

  const TokenTable* table_ = nullptr;
  const TokenIndex* index_ = nullptr;
  std::vector<float> scores_;
  int32_t byte_ids_[256];
  size_t longest_ = 0;            // bytes of the longest token
  bool space_only_first_ = true;  // no token has a space after a character other than a space, so text can be cut there
};

}  // namespace orrery::text

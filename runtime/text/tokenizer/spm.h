// SentencePiece's BPE: a text is a row of characters; of all neighbours that together are a token, those with
// the best score (of several places the leftmost) become one, until none are.  A character that is no token
// is given byte by byte.  Spaces are spaces here: the vocabulary's U+2581 is replaced when it is loaded.
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
      uint32_t bytes;  // of both together: if they are longer by now, the candidate is stale
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // `table` and `index` outlive the model and hold the tokens that text may become; scores: (n_vocab), no
  // NaN; byte_ids: (256) the token of each byte, or -1.
  void reset(const TokenTable* table, const TokenIndex* index, std::vector<float> scores,
             const int32_t* byte_ids);

  // Appends the tokens of `text`: O(n log n). Where bytes have no token, `unknown` stands once for the run of
  // such characters; if it is < 0 they are left out.  False if `cancel` (may be null) ended it, or `out` grew
  // beyond `max_size`.
  bool encode(std::string_view text, int32_t unknown, const std::atomic<bool>* cancel, size_t max_size,
              Scratch* scratch, std::vector<int32_t>* out) const;

 private:
  bool encode_segment(std::string_view text, int32_t unknown, bool* after_unknown, Pace* pace, Scratch* scratch,
                      std::vector<int32_t>* out) const;

  const TokenTable* table_ = nullptr;
  const TokenIndex* index_ = nullptr;
  std::vector<float> scores_;
  int32_t byte_ids_[256];
  size_t longest_ = 0;            // bytes of the longest token
  bool space_only_first_ = true;  // no token has a space behind anything but spaces: text can be cut there
};

}  // namespace orrery::text

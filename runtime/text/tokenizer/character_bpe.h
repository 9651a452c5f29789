// BPE over characters (Gemma 4). A text is cut into runs of newlines and runs of other characters. A run of newlines that
// is a token is that token. In every other run each character is a token, and merge rules apply as in bpe.h. A character
// that is no token becomes the tokens of its bytes. Spaces are plain spaces here, because the loader replaces the
// vocabulary's U+2581. So a space without a token becomes its byte.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/text/tokenizer/bpe.h"
#include "runtime/text/tokenizer/tokenizer_vocab.h"

namespace orrery::text {

class CharacterBpe {
 public:
  struct Scratch {
    std::vector<int32_t> row;
    BpeModel::Scratch bpe;
  };

  // `table` and `index` outlive the model. `index` holds the tokens that text may become. byte_ids: (256) the token of
  // each byte, or -1. Rules are those of BpeModel::reset().
  void reset(const TokenTable* table, const TokenIndex* index, const int32_t* byte_ids, Span<const BpeModel::MergeRule> rules,
             uint64_t seed);

  // Appends the tokens of `text` in O(n log n). A byte without a token gives `unknown`, or nothing if `unknown` < 0.
  // Returns false if `cancel` (may be null) ended the encoding, or if `out` grew beyond `max_size`.
  bool encode(std::string_view text, int32_t unknown, const std::atomic<bool>* cancel, size_t max_size, Scratch* scratch,
              std::vector<int32_t>* out) const;

 private:
  bool encode_run(std::string_view run, int32_t unknown, const std::atomic<bool>* cancel, Scratch* scratch,
                  std::vector<int32_t>* out) const;

  const TokenTable* table_ = nullptr;
  const TokenIndex* index_ = nullptr;
  int32_t byte_ids_[256];
  int32_t ascii_ids_[128];       // the token of each one-byte character, or -1
  bool before_space_[256] = {};  // some token has this byte before a space, so text cannot be cut there
  BpeModel bpe_;
};

}  // namespace orrery::text

// BPE by rules. A piece of text is a row of tokens, one for each byte (byte-level BPE) or for each character. Of all
// neighbouring pairs with a merge rule, the pair with the best rule (of equal pairs, the leftmost) becomes one token,
// until no rule applies.
//
// Rules are kept by token ids, (left, right) -> (rank, merged). Everything is in raw bytes: the loader decodes the
// printable alphabet of the file once.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/text/pace.h"

namespace orrery::text {

class BpeModel {
 public:
  // Memory for encoding, reused from piece to piece.
  struct Scratch {
    struct Symbol {
      int32_t id;
      uint32_t previous, next;
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;
  };

  struct MergeRule {
    int32_t left, right, merged;
  };
  // byte_ids: (256) the token of each byte, or -1. Rules are ordered from best to worst. If two rules have the same
  // pair, the first one applies.
  void reset(const int32_t* byte_ids, Span<const MergeRule> rules, uint64_t seed);

  // Appends the tokens of one piece in O(n log n). A byte without a token gives `unknown`, or nothing if `unknown` <
  // 0. Returns false if `cancel` (may be null) ended the encoding.
  bool encode(std::string_view piece, int32_t unknown, const std::atomic<bool>* cancel, Scratch* scratch, std::vector<int32_t>* out) const;

  // The same for a row of n tokens, of which some may be -1: token_at(i) gives the i-th one, and is called once for each
  // i, in order. n is below 2^32 - 1.
  template <class F>
  bool encode_tokens(size_t n, const F& token_at, int32_t unknown, const std::atomic<bool>* cancel, Scratch* scratch,
                     std::vector<int32_t>* out) const {
    if (n <= kShortPiece) {
      int32_t ids[kShortPiece];
      uint64_t merges[kShortPiece];  // [i]: the merge of ids[i] and ids[i + 1]
      for (size_t i = 0; i < n; i++) ids[i] = token_at(i);
      for (size_t i = 0; i + 1 < n; i++) merges[i] = merge_of(ids[i], ids[i + 1]);
      merge_short(ids, merges, n, unknown, out);
      return true;
    }
    Pace pace(cancel);
    scratch->symbols.resize(n);
    const auto last = static_cast<uint32_t>(n) - 1;
    for (uint32_t i = 0; i <= last && !pace.stop(); i++) scratch->symbols[i] = {token_at(i), i - 1, i < last ? i + 1 : kNobody};
    return merge_long(unknown, &pace, scratch, out);
  }

 private:
  // The result of merging a pair: rank in the upper half, merged id in the lower half, so the smallest value is the
  // best merge.
  static constexpr uint64_t kNoMerge = UINT64_MAX;
  struct Rule {
    uint64_t pair = UINT64_MAX;  // left << 32 | right; both are below 2^31
    uint64_t merge = kNoMerge;
  };
  static uint64_t pair_of(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right); }
  uint64_t merge_of(int32_t left, int32_t right) const;
  static constexpr size_t kShortPiece = 32;
  static constexpr uint32_t kNobody = UINT32_MAX;
  // Merge a row and append its tokens. merge_long() reads the row from scratch->symbols, and returns false if `pace` stopped it.
  void merge_short(int32_t* ids, uint64_t* merges, size_t n, int32_t unknown, std::vector<int32_t>* out) const;
  bool merge_long(int32_t unknown, Pace* pace, Scratch* scratch, std::vector<int32_t>* out) const;

  int32_t byte_ids_[256];
  std::vector<uint64_t> byte_merges_;  // (256, 256): the rules for two bytes, which are half of all look-ups
  std::vector<Rule> rules_;            // open addressing, a power of two, at most half full
  uint64_t seed_ = 0;
};

}  // namespace orrery::text

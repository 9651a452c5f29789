// Byte-level BPE: a piece of text is a row of byte tokens; of all neighbours that a merge rule names, those
// of the best rule (of several places the leftmost) become one token, until no rule applies.
//
// Rules are kept by token ids, (left, right) -> (rank, merged), and everything is in raw bytes: the printable
// alphabet in which files write them is undone once, when they are loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"

namespace orrery::text {

class BpeModel {
 public:
  // Memory that encoding a piece may need; reused from piece to piece.
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
  // byte_ids: (256) the token of each byte, or -1. Rules come best first; of two for the same pair the first
  // holds.
  void reset(const int32_t* byte_ids, Span<const MergeRule> rules, uint64_t seed);

  // Appends the tokens of one piece: O(n log n). A byte without a token gives `unknown`, or nothing if that
  // is < 0.  False if `cancel` (may be null) ended it.
  bool encode(std::string_view piece, int32_t unknown, const std::atomic<bool>* cancel, Scratch* scratch,
              std::vector<int32_t>* out) const;

 private:
  // What a pair becomes: rank in the upper half, merged id in the lower, so that the least is the best.
  static constexpr uint64_t kNoMerge = UINT64_MAX;
  struct Rule {
    uint64_t pair = UINT64_MAX;  // left << 32 | right; both are below 2^31
    uint64_t merge = kNoMerge;
  };
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  uint64_t merge_of(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, int32_t unknown, std::vector<int32_t>* out) const;
  bool encode_long(std::string_view piece, int32_t unknown, const std::atomic<bool>* cancel, Scratch* scratch,
                   std::vector<int32_t>* out) const;

  int32_t byte_ids_[256];
  std::vector<uint64_t> byte_merges_;  // (256, 256): the rule for two bytes, which are half of all look-ups
  std::vector<Rule> rules_;            // open addressing, a power of two, at most half full
  uint64_t seed_ = 0;
};

}  // namespace orrery::text

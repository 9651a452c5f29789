// Byte-level BPE. A piece of text is a row of byte tokens. Of all neighbouring pairs with a merge rule, the pair with
// the best rule (of equal pairs, the leftmost) becomes one token, until no rule applies.
//
// Rules are kept by token ids, (left, right) -> (rank, merged). Everything is in raw bytes: the loader decodes the
// printable alphabet of the file once.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"

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
  bool encode(std::string_view piece, int32_t unknown, const std::atomic<bool>* cancel, Scratch* scratch,
              std::vector<int32_t>* out) const;

 private:
  // The result of merging a pair: rank in the upper half, merged id in the lower half, so the smallest value is the
  // best merge.
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
  std::vector<uint64_t> byte_merges_;  // (256, 256): the rules for two bytes, which are half of all look-ups
  std::vector<Rule> rules_;            // open addressing, a power of two, at most half full
  uint64_t seed_ = 0;
};

}  // namespace orrery::text

// Guesses the tokens that follow, out of the session's own tokens: the longest end of the sequence that occurred before, and the tokens
// that followed it there.
//
// An index finds earlier occurrences: a hash of each pair of tokens leads to the last position of the pair, and each position to the one
// before. A match that goes on is followed, token by token, without a search. Everything is allocated once, for the whole context.
//
// The number of guessed tokens follows from two figures: how often a match of this length has been right, and what a guessed token
// costs. A match is judged by every generated token, also where nothing was guessed, so the index finds out without cost whether guesses
// pay again. Nothing here depends on time, so the same tokens give the same guesses.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/engine/shared/session_options.h"
#include "runtime/kv/memory/prefix_tree.h"

namespace orrery::engine {

class Ngrams {
 public:
  // Host bytes for a context of n_context tokens.
  static uint64_t bytes(uint32_t n_context);
  explicit Ngrams(uint32_t n_context);

  // Reads the tokens behind those that it has read. made: (tokens.size()) kv::Made.
  void read(Span<const int32_t> tokens, Span<const uint8_t> made);
  // Forgets all but the first n_tokens. tokens: still with the forgotten ones.
  void truncate(Span<const int32_t> tokens, uint32_t n_tokens);

  // The tokens that probably follow: as many as pay, at most `most` and kMostGuesses. tokens: all of them are read. The result is valid
  // until the next call.
  Span<const int32_t> guess(Span<const int32_t> tokens, uint32_t most, const GuessCosts& costs);

 private:
  static constexpr uint32_t kLeastMatch = 2;       // tokens; shorter matches guess nothing
  static constexpr uint32_t kMostMatch = 32;       // longer matches are not told apart
  static constexpr uint32_t kMostCandidates = 32;  // occurrences that a search looks at, newest first

  size_t bucket(int32_t a, int32_t b) const;
  double& right(uint32_t match);  // how often a match of this many tokens is right
  void find_match(Span<const int32_t> tokens);

  std::vector<uint32_t> last_;      // (a power of two) by pair: its last position, which is that of its second token; 0: none
  std::vector<uint32_t> previous_;  // (n_context + 1) by position: the position before with a pair of the same hash; 0: none
  uint32_t n_read_ = 0;
  uint32_t match_ = 0;                                     // tokens of the match; 0: none
  uint32_t next_ = 0;                                      // position of the token that follows the earlier occurrence
  std::array<double, 4> right_ = {0.35, 0.55, 0.75, 0.9};  // matches of 2 to 3, 4 to 7, 8 to 15, 16 and more tokens
  std::array<int32_t, kMostGuesses> guess_ = {};
};

}  // namespace orrery::engine

// Key codes: 1, 2 or 4 bits for each dimension of a key, by which queries find tokens. The key minus a mean of its head's keys, rotated by
// the Hadamard transform, has dimensions of about one size and shape, so one codebook serves them all: Lloyd and Max's levels of a normal
// distribution. A key's code is the nearest level of each dimension, in units of the key's root mean square, and one factor in F16.
//
// Codes of kPageTokens keys make a tile. It holds groups of four bits, dimension after dimension: a key's group is an index of a table of
// 16 products with the query (KeyCodeTable). So a query's products with a tile's keys are sums of table entries.
//
// **Turns.** Where keys have a mean before RoPE, RoPE turns it with the token's position, and one mean key takes out only what turns slowly.
// So a head may have turns: the pairs of dimensions whose mean turns most. In these pairs a key's code is the code of the key less
// RoPE(mean, position). A query's product gets RoPE(mean, position) q back: a sum of a cosine and a sine for each turn.
//
// **Codes of values** stand in the same tile, after the codes of keys. Here a group of four bits holds one dimension of some tokens, and the
// tables are made of the tokens' weights. So a weighted sum of a tile's values is a sum of table entries, too.
#pragma once

#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/backend/memory.h"
#include "runtime/base/span.h"

namespace orrery {

// The most turns of a head. Of the 32 pairs of Qwen2.5's heads eight do what all do (tests/bench/results/bits.md).
inline constexpr int32_t kMostTurns = 8;

// A pair of dimensions and its mean at position 0: (x, y). At position p it is (x cos - y sin, x sin + y cos) of p times the frequency of
// this pair of RoPE. x = y = 0: the pair does not turn.
struct KeyTurn {
  int32_t first = 0, second = 0, pair = 0;
  float x = 0.0f, y = 0.0f;
};

struct KeyCodeFormat {
  int32_t bits = 0;  // of a dimension: 1, 2 or 4; 0: no codes
  int32_t head_dim = 0;
  bool values = false;     // a mean value lies behind each head's mean key: the two are a compensation token
  int32_t value_bits = 0;  // of a dimension of V: 1 or 2; 0: no codes of V
  int32_t n_turns = 0;     // of a head: KeyTurn behind its means. BackendInfo::codes_values

  // Groups of four bits in a key. Group j holds dimensions j * 4 / bits and after it, the first one in the lowest bits.
  int32_t n_groups() const { return (head_dim * bits + 3) / 4; }
  // A tile: for each group kPageTokens / 2 bytes, then kPageTokens factors in F16. Byte i of a group holds key i in its low half, and key
  // i + kPageTokens / 2 in its high half.
  static constexpr uint64_t kGroupBytes = kPageTokens / 2;
  uint64_t factors_offset() const { return static_cast<uint64_t>(n_groups()) * kGroupBytes; }
  uint64_t keys_bytes() const { return factors_offset() + 2 * static_cast<uint64_t>(kPageTokens); }
  // Of V, behind that: for each block of 64 dimensions n_value_groups() groups of kGroupBytes, then kPageTokens factors in F16. Group j
  // holds tokens j * 4 / value_bits and after it, the first one in the lowest bits; byte i holds dimension i of the block in its low half,
  // and dimension i + 32 in its high half. The last block may reach beyond the head.
  static constexpr int32_t kValueBlock = kPageTokens;
  int32_t n_value_groups() const { return kPageTokens * value_bits / 4; }
  int32_t n_value_blocks() const { return (head_dim + kValueBlock - 1) / kValueBlock; }
  uint64_t value_factors_offset() const {
    return keys_bytes() + static_cast<uint64_t>(n_value_blocks()) * static_cast<uint64_t>(n_value_groups()) * kGroupBytes;
  }
  uint64_t tile_bytes() const { return value_bits > 0 ? value_factors_offset() + 2 * static_cast<uint64_t>(kPageTokens) : keys_bytes(); }
  uint64_t turns_offset() const { return (values ? 2u : 1u) * static_cast<uint64_t>(head_dim) * sizeof(float); }
  uint64_t mean_bytes() const { return turns_offset() + static_cast<uint64_t>(n_turns) * sizeof(KeyTurn); }
  // The codes of one head's n tokens, in whole tiles, and its means.
  uint64_t head_bytes(uint64_t n_tokens) const {
    constexpr uint64_t kTile = kPageTokens;
    return bits == 0 ? 0 : (n_tokens + kTile - 1) / kTile * tile_bytes() + mean_bytes();
  }
};

// Level i of a codebook with `bits` bits, ascending.
constexpr int kKeyCodeLevels = 16;
constexpr float key_code_level(int32_t bits, int32_t i) {
  constexpr float kOne[] = {.79788456f}, kTwo[] = {.45278f, 1.51042f},
                  kFour[] = {.12839f, .38805f, .65676f, .94234f, 1.25623f, 1.61805f, 2.06906f, 2.73263f};
  const float* positive = bits == 1 ? kOne : bits == 2 ? kTwo : kFour;
  const int32_t half = 1 << (bits - 1);
  return i < half ? -positive[half - 1 - i] : positive[i - half];
}

// The mean squared error of a dimension's code, where the dimension is normal and its mean square is 1. A level is the mean of the values
// that it stands for. So a key's product with a query has, given its code, the product of the code as its mean, and a variance of this
// times
// |q|^2 times the square of the key's factor.
constexpr float key_code_error(int32_t bits) { return bits == 1 ? .36338f : bits == 2 ? .11748f : .00950f; }

// The largest variance of a query's products, given the codes, at which weights by codes are used: the mean over the codes of
// kVarianceTiles tiles. With this variance, a sum of e^product is e^(1) = 2.7 times the sum by codes.
constexpr float kMostCodeVariance = 2;
constexpr int32_t kVarianceTiles = 4;  // spread evenly over the tiles, the first and the last among them

// Cosines and sines of RoPE, for turns. Position p = kPageTokens * tile + i turns by the angle of its tile, then by that of i.
struct KeyTurnTables {
  Ptr<const float> tiles;   // (n_tiles, n_pairs, 2): cosine and sine
  Ptr<const float> within;  // (n_pairs, 2, kPageTokens): cosines, then sines
  int32_t n_pairs = 0;
};

// One head's keys in pages, and its codes.
struct KeyCodesJob {
  const uint64_t* pages = nullptr;  // key s lies in the page at pages[s / kPageTokens] + offset
  uint64_t offset = 0;
  Ptr<float> mean;       // (head_dim) of the keys as they are stored, less their turns; KeyCodeFormat::mean_bytes() in all
  Ptr<std::byte> tiles;  // the head's first tile; the others follow it
};
// One head's mean value.
struct MeanValueJob {
  const uint64_t* pages = nullptr;  // token s lies in the page at pages[s / kPageTokens] + offset, its V behind its K
  uint64_t offset = 0;
  Ptr<float> value;               // (head_dim)
  Span<const float> shares = {};  // of the tokens, from the first on; host memory
};
struct KeyCodesShape {
  KvFormat kv;  // of the keys
  KeyCodeFormat codes;
  int32_t block = 1;  // of the Hadamard transform (hadamard_block()); 1: the stored keys are rotated already
  // With turns: the pairs of dimensions that RoPE turns are (2 i, 2 i + 1) if interleaved, else (i, i + n_pairs).
  KeyTurnTables turns = {};
  bool interleaved = false;
};

class KeyCodeOperations {
 public:
  // mean = the mean key of the tokens first, first + step, ... before end, summed in double, in order. With turns the operation
  // also averages the keys turned back to position 0. The pairs whose average loses most of its length by turning become the turns, and
  // mean is the mean of the keys less their turns. Between steps.
  virtual void mean_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, int32_t step) = 0;
  // value = the sum of the tokens' V, each times its share, in double, in order. Between steps.
  virtual void mean_values(Span<const MeanValueJob> jobs, const KvFormat& kv) = 0;
  // Codes of tokens [first, end), by the jobs' means and turns; of V, too, where the format has them. Other codes of their tiles stay as they are; but where [first, end) begins a tile,
  // codes of the tile's tokens behind `end` may be cleared. A key without finite values gets a factor that is NaN, so no query finds it. A
  // value without finite values gets the factor 0.
  // Between steps.
  virtual void encode_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end) = 0;

 protected:
  ~KeyCodeOperations() = default;
};

}  // namespace orrery

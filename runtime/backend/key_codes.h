// Key codes: 1, 2 or 4 bits for each dimension of a key, by which queries find tokens. The key minus a mean of its head's keys, rotated by
// the Hadamard transform, has dimensions of about one size and shape, so one codebook serves them all: Lloyd and Max's levels of a normal
// distribution. A key's code is the nearest level of each dimension, in units of the key's root mean square, and one factor in F16.
//
// Codes of kPageTokens keys make a tile. It holds groups of four bits, dimension after dimension: a key's group is an index of a table of
// 16 products with the query (KeyCodeTable). So a query's products with a tile's keys are sums of table entries.
#pragma once

#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/backend/memory.h"
#include "runtime/base/span.h"

namespace orrery {

struct KeyCodeFormat {
  int32_t bits = 0;  // of a dimension: 1, 2 or 4; 0: no codes
  int32_t head_dim = 0;
  bool values = false;  // a mean value lies behind each head's mean key: the two are a compensation token

  // Groups of four bits in a key. Group j holds dimensions j * 4 / bits and after it, the first one in the lowest bits.
  int32_t n_groups() const { return (head_dim * bits + 3) / 4; }
  // A tile: for each group kPageTokens / 2 bytes, then kPageTokens factors in F16. Byte i of a group holds key i in its low half, and key
  // i + kPageTokens / 2 in its high half.
  static constexpr uint64_t kGroupBytes = kPageTokens / 2;
  uint64_t factors_offset() const { return static_cast<uint64_t>(n_groups()) * kGroupBytes; }
  uint64_t tile_bytes() const { return factors_offset() + 2 * static_cast<uint64_t>(kPageTokens); }
  uint64_t mean_bytes() const { return (values ? 2u : 1u) * static_cast<uint64_t>(head_dim) * sizeof(float); }
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

// One head's keys in pages, and its codes.
struct KeyCodesJob {
  const uint64_t* pages = nullptr;  // key s lies in the page at pages[s / kPageTokens] + offset
  uint64_t offset = 0;
  Ptr<float> mean;       // (head_dim) of the keys as they are stored
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
};

class KeyCodeOperations {
 public:
  // mean = the mean key of the tokens first, first + step, ... before end, summed in double, in order. Between steps.
  virtual void mean_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, int32_t step) = 0;
  // value = the sum of the tokens' V, each times its share, in double, in order. Between steps.
  virtual void mean_values(Span<const MeanValueJob> jobs, const KvFormat& kv) = 0;
  // Codes of tokens [first, end), by the jobs' means. Other codes of their tiles stay as they are; but where [first, end) begins a tile,
  // codes of the tile's tokens behind `end` may be cleared. A key without finite values gets a factor that is NaN, so no query finds it.
  // Between steps.
  virtual void encode_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end) = 0;

 protected:
  ~KeyCodeOperations() = default;
};

}  // namespace orrery

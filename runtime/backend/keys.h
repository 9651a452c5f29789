// Key scoring: which keys some queries attend to most, or how much attention each key gets. Policies that choose by attention use
// it between steps. Each job gives the result that it would give alone.
#pragma once

#include <cstdint>

#include "runtime/backend/key_codes.h"
#include "runtime/backend/step.h"
#include "runtime/base/span.h"

namespace orrery {

// How the attention of the query heads that share a KV head becomes one score per key: each head's softmax over exactly these keys,
// smoothed along the keys (torch's avg_pool1d or max_pool1d, stride 1, padding width / 2), then the mean or the maximum over the heads.
struct KeyScoring {
  enum class Pooling : uint8_t { none, avg, max };
  bool max_of_group = false;
  Pooling pooling = Pooling::none;
  int32_t pool_width = 1;  // odd
};

// A KV head's keys, and the queries of some positions.
struct KeysJob {
  int32_t layer = 0, kv_head = 0;
  Ptr<const KeyTurn> turns = {};    // of codes with turns: the head's
  const uint64_t* tiles = nullptr;  // key s lies in the tile at tiles[s / kPageTokens] + offset
  uint64_t offset = 0;
  uint64_t tile_bytes = 0;  // not 0: the tiles lie side by side, from tiles[0] on, as many bytes apart
  int32_t n_keys = 0;
  int32_t first_key = 0;                        // only with KeysShape::codes: earlier keys are no candidates, and have no weight
  int32_t first_position = 0, n_positions = 0;  // in the ring
  // The exported attention weights of a single position, over these keys and perhaps further keys after them. If given, the
  // position's query is not read.
  ExportedWeights exported = {};
};
struct KeysShape {
  KvFormat kv;
  int32_t n_heads = 0;  // query heads
  float scale = 0.0f;
  QueryRing queries;
  bool bounds = false;      // keys are digests, in F16: q's score is scale * sum of max(q K, q V) over the dimensions
  bool keys_alone = false;  // keys lie side by side, without V: digests that are means, rows of low-rank keys
  // If it has bits, keys are codes: tiles[i] is the address of the i-th tile of codes. For top_keys(), and for the means of key_weights()
  // of positions that see all of the job's keys.
  KeyCodeFormat codes = {};
  int32_t code_block = 1;    // KeyCodesShape::block: how queries are rotated
  KeyTurnTables turns = {};  // of codes with turns. Tile i holds positions from i * kPageTokens on
  bool products = false;     // key_weights() gives scale * q k of every key, not weights, and no means; -infinity for a NaN
};

// Asks for the k best keys of each position's queries.
struct TopKeysJob : KeysJob {
  int32_t k = 0;            // at most n_keys
  bool by_score = false;    // in the order of scores (ties: lower key first), else ascending keys
  uint32_t* out = nullptr;  // (n_positions, k) keys, counted from first_key; host memory
  // Optional, for a single position: *n_common = how many keys of `among` are among the k best. `among` ascends. If given, `out` is
  // not written.
  Span<const uint32_t> among = {};
  uint32_t* n_common = nullptr;
  // Optional, with codes, for a single position: candidates whose scores count `stay` times, counted as n_keys.
  Span<const uint32_t> held = {};
  float stay = 1;
  // Optional, with `out`, for a single position: keys with a smaller score than `least` are left out. *n_found: the number of keys of
  // `out`, at least 1 and at most k.
  float least = 0;
  uint32_t* n_found = nullptr;
  // Optional, with `out` and with codes, for a single position: for each query head log2 of the sum of the weights e^product of the keys
  // that are not among the k best. -infinity: no key is left; or the codes tell too little of this query (kMostCodeVariance).
  Ptr<float> log_evicted = {};  // (n_heads / n_kv_heads)
  // Optional, with log_evicted and codes of V: the mean of the values of all keys that are not among the k best, by the keys' weights. A
  // query head whose log_evicted is -infinity gets none.
  Ptr<float> value_evicted = {};  // (n_heads / n_kv_heads, head_dim)
};
struct TopKeysShape : KeysShape {
  KeyScoring scoring;
};

// Asks for the attention weights: each query head's softmax over the keys up to its own position. Later keys get 0.
struct KeyWeightsJob : KeysJob {
  bool mean = false;     // the mean of all rows, not the rows
  bool add = false;      // with `mean`: adds each position's mean to `out`, in order, instead of taking a mean over positions
  float* out = nullptr;  // (n_positions, n_heads / n_kv_heads, n_keys), or (n_keys): host memory
};

// Asks for moments of the weights of key_weights(), over the job's positions and for the first n_measured keys. For each query
// head: out = mean + gamma * unbiased variance (variance 0 for a single position). `entropy` is the sum of -a log(a) over all
// weights a; `variance` is the sum of the variances. Both run over query heads and keys.
struct KeyMomentsJob : KeysJob {
  int32_t n_measured = 0;  // at most n_keys
  double gamma = 0;
  float* out = nullptr;                            // (n_heads / n_kv_heads, n_measured), host memory
  double *entropy = nullptr, *variance = nullptr;  // one number each, host memory
};

class KeyOperations {
 public:
  // The best keys of each job. A NaN ranks lowest.
  virtual void top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape) = 0;
  // The weights of each job's queries.
  virtual void key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape) = 0;
  // Moments of the weights. The weights themselves stay on the device. At most 64 positions. Available only if
  // BackendInfo::makes_moments.
  virtual void key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape) { (void)jobs, (void)shape; }

 protected:
  ~KeyOperations() = default;
};

}  // namespace orrery

// Summaries of KV on the device. Digests summarize pages, so that pages can be found. Compensation tokens stand for evicted tokens.
// Policies that keep digests or compensation tokens use this between steps.
#pragma once

#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/backend/memory.h"
#include "runtime/base/span.h"

namespace orrery {

// The content of a digest, which summarizes the keys of one page of one KV head.
enum class DigestKind : uint8_t {
  range,      // a token in F16: K is the largest value of each dimension, V the smallest, rounded outwards, so that no key's product with
              // a query exceeds the bound of KeysShape
  deviation,  // a token in F16: the middle of the range, plus and minus the keys' average distance from it (no bound)
  mean,       // a key in F16, without V
};
struct DigestJob {
  const uint64_t* tiles = nullptr;  // tiles of the keys, as in KeysJob
  uint64_t offset = 0;
  int32_t first_page = 0, n_pages = 0;  // page i: tokens i * page_tokens ..; its digest is written to slot i
  const uint64_t* digests = nullptr;    // tiles of the digests, as in HeadView
  // For DigestKind::mean, or null: (n_pages), host memory. The smallest cosine between one of the page's keys and their mean; 0
  // where a vector is 0.
  float* cosines = nullptr;
};
struct DigestShape {
  KvFormat kv;              // of the keys
  int32_t page_tokens = 0;  // a divisor of kPageTokens
  DigestKind kind = DigestKind::range;
};

// Tokens of a KV head that join a compensation token. Either all tokens count the same, or each has its own share.
struct CompensationJob {
  const uint64_t* tiles = nullptr;  // as in KeysJob
  uint64_t offset = 0;
  int32_t first = 0, end = 0;     // tokens [first, end) of these tiles
  int32_t n_before = 0;           // number of tokens that it stands for already; 0: this job starts it
  Ptr<float> compensation_token;  // (2, head_dim) K and V
  const float* shares = nullptr;  // (end - first), host memory; requires n_before = 0; tokens with share 0 are not read. Null: equal shares
};

class KvSummaries {
 public:
  // Digests of pages. Pages and slots have the same numbers, so that a job can continue where another ended.
  virtual void digest(Span<const DigestJob> jobs, const DigestShape& shape) = 0;
  // Adds tokens to compensation tokens, in order, summed in double. Each job has a token of its own.
  virtual void add_to_compensation_tokens(Span<const CompensationJob> jobs, const KvFormat& kv) = 0;

 protected:
  ~KvSummaries() = default;
};

}  // namespace orrery

// Summaries of KV on the device: digests of pages, by which pages are found, and compensation tokens, which stand for evicted tokens.
// Policies that keep either ask for this between steps.
#pragma once

#include <cstdint>

#include "runtime/backend/kv.h"
#include "runtime/backend/memory.h"
#include "runtime/base/span.h"

namespace orrery {

// What a digest holds of the keys of one page of one KV head.
enum class DigestKind : uint8_t {
  range,      // a token in F16: K is the largest value of each dimension, V the smallest, rounded outwards, so that no key's product with
              // a query exceeds the bound of KeysShape
  deviation,  // a token in F16: the middle of the range, plus and minus the keys' average distance from it (ArkVale; no bound)
  mean,       // a key in F16, without V
};
struct DigestJob {
  const uint64_t* tiles = nullptr;   // of the keys, as a KeysJob's
  uint64_t offset = 0;
  int32_t first_page = 0, n_pages = 0;   // page i: tokens i * page_tokens ..; its digest is written to slot i
  const uint64_t* digests = nullptr; // of the digests, as a HeadView's tiles
  // Of means, or null: (n_pages), host memory: the least cosine of one of the page's keys with their mean; 0 where one of the two is 0.
  float* cosines = nullptr;
};
struct DigestShape {
  KvFormat kv;                       // of the keys
  int32_t page_tokens = 0;           // a divisor of kPageTokens
  DigestKind kind = DigestKind::range;
};

// Tokens of a KV head that join a compensation token: as parts of the mean of all its tokens, or each by its share.
struct CompensationJob {
  const uint64_t* tiles = nullptr;   // as a KeysJob's
  uint64_t offset = 0;
  int32_t first = 0, end = 0;        // tokens of these tiles
  int32_t n_before = 0;              // tokens that the mean has already; 0: it begins with these
  Ptr<float> mean;                   // (2, head_dim) K and V
  const float* shares = nullptr;     // (end - first) host memory, where n_before is 0; tokens with share 0 are not read. Null: all alike
};

class KvSummaries {
 public:
  // Digests of pages. Pages and slots have the same numbers, so that a job can continue where another ended.
  virtual void digest(Span<const DigestJob> jobs, const DigestShape& shape) = 0;
  // Adds tokens to compensation tokens, in order, summed in double. Each job has a mean of its own.
  virtual void add_to_compensation_tokens(Span<const CompensationJob> jobs, const KvFormat& kv) = 0;

 protected:
  ~KvSummaries() = default;
};

}  // namespace orrery

// Tokens of one KV head as the CPU backend's tests lay them out: K and V of every type, in tiles that end where nothing may be read.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/support/kv_tokens.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::testing {

// One head's tokens, in tiles that end where nothing may be read.
class HeadTokens {
 public:
  HeadTokens(KvType type, int32_t dim, int32_t n, uint64_t seed) : format_{type, 1, 1, dim}, n_(n) {
    Random random(seed);
    std::vector<float> x(format_.token_values());
    for (int32_t t = 0; t < n; ++t) {
      if (t % kPageTokens == 0) {
        const auto bytes = static_cast<size_t>(std::min(kPageTokens, n - t)) * format_.token_bytes();
        tiles_.push_back(std::make_unique<Guarded<std::byte>>(bytes));
        addresses_.push_back(tiles_.back()->ptr().address);
      }
      for (float& v : x) v = random.normal();
      write_tokens(type, x.data(), static_cast<uint64_t>(dim), 1, at(t));
    }
  }
  std::vector<float> token(int32_t t) const {  // K, then V
    return read_tokens(format_.type, at(t), static_cast<uint64_t>(format_.head_dim));
  }
  const KvFormat& format() const { return format_; }
  const uint64_t* tiles() const { return addresses_.data(); }
  int32_t n() const { return n_; }

 private:
  std::byte* at(int32_t t) const {
    return tiles_[static_cast<size_t>(t / kPageTokens)]->data() + static_cast<size_t>(t % kPageTokens) * format_.token_bytes();
  }
  KvFormat format_;
  int32_t n_;
  std::vector<std::unique_ptr<Guarded<std::byte>>> tiles_;
  std::vector<uint64_t> addresses_;
};

}  // namespace orrery::testing

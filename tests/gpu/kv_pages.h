// Pages with a sequence's keys and values, for tests: random floats from a seed, stored as the KV types define them.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "runtime/cpu/formats/blocks.h"
#include "runtime/os/os.h"
#include "tests/gpu/device_fixture.h"
#include "tests/support/kv_tokens.h"

namespace orrery::testing {

inline KvFormat kv_format(KvType type, int32_t n_layers, int32_t n_kv_heads, int32_t head_dim, int32_t shared_values = 0) {
  KvFormat kv;
  kv.type = type;
  kv.n_layers = n_layers, kv.n_kv_heads = n_kv_heads, kv.head_dim = head_dim, kv.shared_values = shared_values;
  return kv;
}

// Writes one token, of every layer and head, to its page. The token's K and V have the order of a page.
inline void store_token(const KvFormat& kv, int32_t slot, Random* random, std::byte* page) {
  std::vector<float> x(kv.token_values());
  for (uint32_t head = 0; head < static_cast<uint32_t>(kv.n_layers * kv.n_kv_heads); ++head) {
    for (float& v : x) v = random->normal();
    std::byte* const at = page + kv.head_offset(head) + static_cast<uint64_t>(slot) * kv.token_bytes();
    if (kv.shared_values > 0) write_key(kv.type, x.data(), static_cast<uint64_t>(kv.head_dim), at);
    else write_tokens(kv.type, x.data(), static_cast<uint64_t>(kv.head_dim), 1, at);
  }
}
// Tokens of one head: (n, K and V).
inline std::vector<std::byte> stored_tokens(const KvFormat& kv, const std::vector<float>& values) {
  const uint64_t n = values.size() / kv.token_values();
  std::vector<std::byte> bytes(n * kv.token_bytes());
  write_tokens(kv.type, values.data(), static_cast<uint64_t>(kv.head_dim), n, bytes.data());
  return bytes;
}

// The pages of n tokens by a seed. Two backends want the same ones, and mostly the next case does: the last few are kept.
inline const std::vector<std::vector<std::byte>>& made_pages(const KvFormat& kv, int32_t n_tokens, uint64_t seed) {
  struct Kept {
    std::array<int64_t, 7> of;
    std::vector<std::vector<std::byte>> pages;
  };
  static std::vector<Kept> kept;
  const std::array<int64_t, 7> of = {static_cast<int64_t>(kv.type), kv.n_layers, kv.n_kv_heads, kv.head_dim, kv.shared_values, n_tokens,
                                     static_cast<int64_t>(seed)};
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const Kept& k) { return k.of == of; });
  if (found != kept.end()) return found->pages;
  if (kept.size() == 4) kept.erase(kept.begin());
  kept.push_back({of, {}});
  Random random(seed);
  for (int32_t first = 0; first < n_tokens; first += kPageTokens) {
    kept.back().pages.emplace_back(kv.page_span(), std::byte{0xFF});
    for (int32_t t = 0; t < std::min(kPageTokens, n_tokens - first); ++t) store_token(kv, t, &random, kept.back().pages.back().data());
  }
  return kept.back().pages;
}

// One sequence of n tokens. Unused slots of its pages are NaN.
class Pages {
 public:
  Pages(Machine* machine, const KvFormat& kv, int32_t n_tokens, uint64_t seed) {
    for (const std::vector<std::byte>& page : made_pages(kv, n_tokens, seed)) {
      pages_.push_back(std::make_unique<Buffer<std::byte>>(machine, page));
      addresses_.push_back(pages_.back()->address());
    }
  }
  KvView view() const { return {addresses_.data(), static_cast<int32_t>(addresses_.size())}; }
  const uint64_t* addresses() const { return addresses_.data(); }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const auto& page : pages_) {
      const std::vector<std::byte> one = page->get();
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<Buffer<std::byte>>> pages_;
  std::vector<uint64_t> addresses_;
};

// One sequence of n tokens in host memory that the device reaches. Pages lie side by side, as in the reservoir. Unused slots are NaN.
class HostPages {
 public:
  HostPages(Machine* machine, const KvFormat& kv, int32_t n_tokens, uint64_t seed) : machine_(*machine) {
    Random random(seed);
    const int32_t n_pages = (n_tokens + kPageTokens - 1) / kPageTokens;
    auto made =
        os::Region::allocate(static_cast<uint64_t>((n_pages + kPagesTogether - 1) / kPagesTogether * kPagesTogether) * kv.page_bytes());
    if (!made.ok()) throw std::runtime_error(made.status().message());
    memory_ = std::move(made).value();
    std::memset(memory_.data(), 0xFF, memory_.size());
    for (int32_t p = 0; p < n_pages; ++p) {
      std::byte* page = memory_.data() + kv.page_offset(static_cast<uint64_t>(p));
      for (int32_t t = 0; t < std::min(kPageTokens, n_tokens - p * kPageTokens); ++t) store_token(kv, t, &random, page);
      addresses_.push_back(reinterpret_cast<uintptr_t>(page));
    }
    const Status shared = machine_->share_host(memory_.data(), memory_.size());
    if (!shared.ok()) throw std::runtime_error(shared.message());
  }
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  ~HostPages() { machine_->unshare_host(memory_.data()); }
  KvView view() const { return {addresses_.data(), static_cast<int32_t>(addresses_.size())}; }

 private:
  Machine& machine_;
  os::Region memory_;
  std::vector<uint64_t> addresses_;
};

}  // namespace orrery::testing

// The tokens of a vocabulary as bytes, and the look-up from bytes to a token: one blob with offsets, and an
// open-addressing hash index over it. Look-ups are the tokenizer's inner loop. A slot therefore has eight bytes (part
// of the hash, id), and the blob is read only if that part matches.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace orrery::text {

// Mixes eight bytes at a time with 64 x 64 -> 128 bit multiplications. `seed` differs from run to run, so an attacker
// cannot prepare a vocabulary whose tokens all collide. No result depends on the seed.
inline uint64_t hash_mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
inline uint64_t hash_bytes(const char* p, size_t n, uint64_t seed) {
  constexpr uint64_t k1 = 0x9E3779B97F4A7C15, k2 = 0xD6E8FEB86659FD93;
  uint64_t h = seed ^ (n * k2), word;
  for (; n >= 8; p += 8, n -= 8) {
    std::memcpy(&word, p, 8);
    h = hash_mix(h ^ word, k1 ^ seed);
  }
  if (n >= 4) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + n - 4, 4);
    word = low | static_cast<uint64_t>(high) << 32;
  } else if (n > 0) {
    word = static_cast<uint8_t>(p[0]) | static_cast<uint64_t>(static_cast<uint8_t>(p[n / 2])) << 8 |
           static_cast<uint64_t>(static_cast<uint8_t>(p[n - 1])) << 16;
  } else {
    word = 0;
  }
  return hash_mix(h ^ word, k2 ^ seed);
}
inline uint64_t hash_pair(uint64_t key, uint64_t seed) { return hash_mix(key ^ seed, 0x9E3779B97F4A7C15 ^ seed); }

class TokenTable {
 public:
  int32_t size() const { return static_cast<int32_t>(offsets_.size()) - 1; }
  std::string_view operator[](int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return {bytes_.data() + offsets_[i], offsets_[i + 1] - offsets_[i]};
  }
  void reserve(size_t tokens, size_t bytes) {
    offsets_.reserve(tokens + 1);
    bytes_.reserve(bytes);
  }
  // Building: append to blob(), then call close(). The blob stays below 4 GiB.
  std::string& blob() { return bytes_; }
  void close() { offsets_.push_back(static_cast<uint32_t>(bytes_.size())); }

 private:
  std::string bytes_;
  std::vector<uint32_t> offsets_{0};  // (size + 1)
};

class TokenIndex {
 public:
  // Room for at most `n` tokens of a table that outlives the index.
  void reset(size_t n, uint64_t seed) {
    size_t slots = 16;
    while (slots < n * 2) slots *= 2;
    slots_.assign(slots, Slot{});
    seed_ = seed;
  }
  uint64_t hash(std::string_view bytes) const { return hash_bytes(bytes.data(), bytes.size(), seed_); }
  // Returns false if the index already has a token with the same bytes; the first token stays.
  bool insert(const TokenTable& table, int32_t id) {
    const std::string_view bytes = table[id];
    const uint64_t h = hash(bytes);
    Slot* slot = const_cast<Slot*>(probe(table, bytes, h));
    if (slot->id >= 0) return false;
    *slot = {static_cast<uint32_t>(h >> 32), id};
    return true;
  }
  int32_t find(const TokenTable& table, std::string_view bytes) const { return find(table, bytes, hash(bytes)); }
  // For many look-ups, three passes: hash and prefetch, prefetch_token, find. A vocabulary exceeds the cache, and the
  // passes overlap the misses.
  int32_t find(const TokenTable& table, std::string_view bytes, uint64_t hash) const {
    return slots_.empty() ? -1 : probe(table, bytes, hash)->id;
  }
  void prefetch(uint64_t hash) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]);
  }
  void prefetch_token(const TokenTable& table, uint64_t hash) const {
    if (slots_.empty()) return;
    const Slot& slot = slots_[hash & (slots_.size() - 1)];
    if (slot.id >= 0) __builtin_prefetch(table[slot.id].data());
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t id = -1;
  };
  const Slot* probe(const TokenTable& table, std::string_view bytes, uint64_t h) const {
    const size_t mask = slots_.size() - 1;
    const auto tag = static_cast<uint32_t>(h >> 32);
    for (size_t i = h & mask;; i = (i + 1) & mask) {
      const Slot& slot = slots_[i];
      if (slot.id < 0 || (slot.tag == tag && table[slot.id] == bytes)) return &slot;
    }
  }
  std::vector<Slot> slots_;  // a power of two, at most half full
  uint64_t seed_ = 0;
};

}  // namespace orrery::text

// Prefetching for lists of tokens whose sources and targets lie anywhere in memory, and gathering them.
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {
namespace {

constexpr uint32_t kMovesAhead = 12;
constexpr uint64_t kLineBytes = 64;

inline std::byte* at_address(uint64_t address) { return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address)); }

// Prefetches n bytes into the second-level cache, at most 512. For longer stretches the processor's own prefetcher does the rest.
template <int kWrite>
void ask_for_bytes(const std::byte* at, uint64_t n) {
  constexpr uint64_t kMost = 8 * kLineBytes;
  for (uint64_t line = 0; line < (n < kMost ? n : kMost); line += kLineBytes) __builtin_prefetch(at + line, kWrite, 2);
}

// Tokens that lie anywhere are asked for this far ahead. On an AMD EPYC 12 tokens, or into the second-level cache, are 5 to 10% slower.
constexpr int64_t kGatheredAhead = 24;

// Whether slots [first, end) of a head in place stand for the tokens at these positions: then they need not be gathered.
inline bool lie_in_order(const HeadView& head, int32_t own_position, int64_t first, int64_t end) {
  bool all = true;
  for (int64_t slot = first; slot < end; ++slot)   // without branches
    all &= (slot == head.own_slot ? own_position : static_cast<int64_t>(head.positions[slot])) == slot;
  return all;
}

// Copies the tokens of slots [first, end) of a head in place (HeadView::positions), in the order of slots.
inline void gather_tokens(const KvHead& pages, const HeadView& head, int32_t own_position, int64_t first, int64_t end, std::byte* to) {
  constexpr uint32_t kPage = kPageTokens;
  const uint64_t bytes = token_bytes(pages);
  const auto token = [&](int64_t slot) {
    const uint32_t p = slot == head.own_slot ? static_cast<uint32_t>(own_position) : head.positions[slot];
    return kv_tile(pages, p / kPage) + p % kPage * bytes;
  };
  for (int64_t slot = first; slot < end; ++slot, to += bytes) {
    if (slot + kGatheredAhead < end) {
      const std::byte* next = token(slot + kGatheredAhead);
      for (uint64_t line = 0; line < bytes; line += kLineBytes) __builtin_prefetch(next + line);
    }
    __builtin_memcpy(to, token(slot), bytes);
  }
}

}  // namespace
}  // namespace orrery::cpu

// Prefetching for lists of tokens whose sources and targets lie anywhere in memory.
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

}  // namespace
}  // namespace orrery::cpu

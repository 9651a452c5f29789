// Tokens that move: conversion from one KV type to another, prefetching for lists of tokens whose sources and targets lie anywhere in
// memory, and gathering them.
#pragma once

#include <algorithm>
#include <cstring>

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

// Converts n K or V through the stack, in whole blocks of every type.
inline void convert_values(const Kernels& kernels, std::byte* to, KvType to_type, const std::byte* from, KvType from_type, uint64_t n) {
  if (to_type == from_type) {
    std::memcpy(to, from, key_bytes(to_type, n));
    return;
  }
  constexpr uint64_t kStretch = 256;
  float values[kStretch];
  for (uint64_t at = 0; at < n; at += kStretch) {
    const int32_t count = static_cast<int32_t>(std::min(kStretch, n - at));
    kernels.load_kv(from_type, from + key_bytes(from_type, at), count, values);
    kernels.store_kv(to_type, values, count, to + key_bytes(to_type, at));
  }
}

// n tokens of token_values values each: half of them are K.
inline void convert_tokens(const Kernels& kernels, std::byte* to, KvType to_type, const std::byte* from, KvType from_type, uint64_t n,
                           uint64_t token_values) {
  const auto alike = [](KvType type) { return !mixed(type); };
  if (alike(to_type) && alike(from_type)) return convert_values(kernels, to, to_type, from, from_type, n * token_values);
  const uint64_t dim = token_values / 2, to_key = key_bytes(to_type, dim), from_key = key_bytes(from_type, dim);
  if (to_type == from_type) {
    std::memcpy(to, from, n * (to_key + value_bytes(to_type, dim)));
    return;
  }
  for (uint64_t i = 0; i < n; ++i, to += to_key + value_bytes(to_type, dim), from += from_key + value_bytes(from_type, dim)) {
    convert_values(kernels, to, key_type(to_type), from, key_type(from_type), dim);
    convert_values(kernels, to + to_key, value_type(to_type), from + from_key, value_type(from_type), dim);
  }
}

// Tokens that lie anywhere are asked for this far ahead. On an AMD EPYC 12 tokens, or into the second-level cache, are 5 to 10% slower.
constexpr int64_t kGatheredAhead = 24;

// Whether slots [first, end) of a head in place stand for the tokens at these positions: then they need not be gathered.
inline bool lie_in_order(const HeadView& head, int32_t own_position, int64_t first, int64_t end) {
  bool all = true;
  for (int64_t slot = first; slot < end; ++slot)  // without branches
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

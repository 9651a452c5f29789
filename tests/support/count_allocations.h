// Counts a test program's allocations by operator new, on every thread: their number, and the bytes that are held. This header replaces the
// program's operators, so include it in one file of a program only.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> n_allocations{0};
std::atomic<int64_t> n_bytes_held{0}, n_bytes_most{0};   // now; the maximum since most_bytes_from_here()

inline void most_bytes_from_here() { n_bytes_most = n_bytes_held.load(); }

inline void* counted(void* p) {
  ++n_allocations;
  if (!p) return p;
  const auto bytes = static_cast<int64_t>(malloc_usable_size(p));
  const int64_t held = n_bytes_held += bytes;
  for (int64_t most = n_bytes_most; held > most && !n_bytes_most.compare_exchange_weak(most, held);) {
  }
  return p;
}
inline void give_back(void* p) {
  if (p) n_bytes_held -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}
}  // namespace

// The operators call malloc, so that sanitizers still see each block. They are not inlined: GCC would see half of the pair, and warn.
__attribute__((noinline)) void* operator new(std::size_t n) {
  void* p = counted(std::malloc(n > 0 ? n : 1));
  if (!p) throw std::bad_alloc();
  return p;
}
__attribute__((noinline)) void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return counted(std::malloc(n > 0 ? n : 1)); }
__attribute__((noinline)) void operator delete(void* p) noexcept { give_back(p); }
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept { give_back(p); }

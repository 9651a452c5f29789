// Counts what a test program takes by operator new, on every thread. It replaces the program's operators: include it in
// one file of a program only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> n_allocations{0};
}

// malloc underneath, so that sanitizers still see each block. Not inlined: GCC would see half of the pair, and warn.
__attribute__((noinline)) void* operator new(std::size_t n) {
  ++n_allocations;
  void* p = std::malloc(n > 0 ? n : 1);
  if (!p) throw std::bad_alloc();
  return p;
}
__attribute__((noinline)) void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  ++n_allocations;
  return std::malloc(n > 0 ? n : 1);
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept { std::free(p); }

// Replaces the program's operators new and delete by ones that count (count_allocations.h): for one file of a program.
#pragma once

#include "tests/support/count_allocations.h"

// The operators call malloc, so that sanitizers still see each block. They are not inlined: GCC would see half of the pair, and warn.
__attribute__((noinline)) void* operator new(std::size_t n) {
  void* p = orrery::testing::counted(std::malloc(n > 0 ? n : 1));
  if (!p) throw std::bad_alloc();
  return p;
}
__attribute__((noinline)) void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return orrery::testing::counted(std::malloc(n > 0 ? n : 1));
}
__attribute__((noinline)) void operator delete(void* p) noexcept { orrery::testing::give_back(p); }
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept { orrery::testing::give_back(p); }

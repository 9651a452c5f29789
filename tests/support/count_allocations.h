// Counts a test program's allocations by operator new, on every thread: their number, and the bytes that are held. The operators
// themselves are in replaced_operators.h, which one file of the program includes.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace orrery::testing {

inline std::atomic<int64_t> n_allocations{0};
inline std::atomic<int64_t> n_bytes_held{0}, n_bytes_most{0};  // now; the maximum since most_bytes_from_here()

inline void most_bytes_from_here() { n_bytes_most = n_bytes_held.load(); }

inline size_t usable_bytes(void* p) {
#ifdef _WIN32
  return _msize(p);
#else
  return malloc_usable_size(p);
#endif
}

inline void* counted(void* p) {
  ++n_allocations;
  if (!p) return p;
  const auto bytes = static_cast<int64_t>(usable_bytes(p));
  const int64_t held = n_bytes_held += bytes;
  for (int64_t most = n_bytes_most; held > most && !n_bytes_most.compare_exchange_weak(most, held);) {
  }
  return p;
}
inline void give_back(void* p) {
  if (p) n_bytes_held -= static_cast<int64_t>(usable_bytes(p));
  std::free(p);
}

}  // namespace orrery::testing

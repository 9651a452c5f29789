// Small operations, of rows or heads, are cut into items; a thread takes several items at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "runtime/backend/memory.h"
#include "runtime/base/checked.h"
#include "runtime/cpu/trace.h"
#include "runtime/os/thread_pool.h"

namespace orrery::cpu {

// Less work than this (floats touched) runs on the calling thread, because giving it to other threads would take longer.
inline constexpr int64_t kSmallWork = 16384;

template <class T>
T* host(Ptr<T> p) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(p.address));
}

// Calls fn(i), or fn(i, thread), for each of n_items items, on the threads of `pool`. Work has `pool`, and the step's `trace` or null.
template <class Work, class F>
void for_items(const Work& work, int64_t n_items, int64_t work_per_item, const F& fn) {
  const auto call = [&fn](int64_t i, int32_t thread) {
    if constexpr (std::is_invocable_v<const F&, int64_t, int32_t>) {
      fn(i, thread);
    } else {
      (void)thread;
      fn(i);
    }
  };
  if (n_items * work_per_item < kSmallWork) {
    const StepTrace::Busy busy(work.trace, 0);
    for (int64_t i = 0; i < n_items; ++i) call(i, 0);
    return;
  }
  const int64_t together = std::max<int64_t>(1, kSmallWork / 2 / std::max<int64_t>(work_per_item, 1));
  work.pool->run(div_up(n_items, together), [&](int64_t item, int32_t thread) {
    const StepTrace::Busy busy(work.trace, thread);
    for (int64_t i = item * together; i < std::min(n_items, (item + 1) * together); ++i) call(i, thread);
  });
}

}  // namespace orrery::cpu

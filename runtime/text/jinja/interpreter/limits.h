// Bounds of one rendering. Templates are hostile input, so nesting, steps, memory and output are all bounded.
#pragma once

#include <atomic>
#include <cstdint>

namespace orrery::text {

struct TemplateLimits {
  uint32_t max_depth = 600;                  // nested evaluation, macro calls included
  uint64_t max_steps = 20'000'000;           // syntax nodes visited, plus bytes or items processed / 16
  uint64_t max_work_bytes = 256ull << 20;    // strings and lists created during the rendering, freed ones included
  uint64_t max_output_bytes = 128ull << 20;  // of the text; callers lower it to the capacity of their context
  // Set by another thread to end the rendering, which reads the flag about every millisecond. May be null.
  const std::atomic<bool>* cancel = nullptr;
};

}  // namespace orrery::text

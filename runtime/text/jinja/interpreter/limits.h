// Bounds of one rendering.  Templates come from strangers: nesting, steps, memory and output all end somewhere.
#pragma once

#include <atomic>
#include <cstdint>

namespace orrery::text {

struct TemplateLimits {
  uint32_t max_depth = 600;                // nested evaluation, macro calls included
  // Syntax nodes visited, characters converted, and bytes copied or compared / 16: each about 50 ns of a fast core,
  // so that a rendering takes a second or two at most.
  uint64_t max_steps = 20'000'000;
  uint64_t max_work_bytes = 256ull << 20;  // strings and lists made along the way, freed ones included
  uint64_t max_output_bytes = 128ull << 20;  // of the text; callers know what a context can hold
  // Set by another thread to end the rendering, which looks at it at least every millisecond or so.  May be null.
  const std::atomic<bool>* cancel = nullptr;
};

}  // namespace orrery::text

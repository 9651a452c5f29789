// What compiling one grammar may take. Each limit belongs to the source or to the result, never to time or to a cache, so the same source
// is refused on every machine or on none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace orrery::text::grammar {

struct CompileLimits {
  size_t source_bytes = 4u << 20;
  uint32_t depth = 1000;           // nesting of groups in GBNF and in regular expressions, of lists and objects in a schema
  uint32_t repeat = 1u << 20;      // the largest m and n of x{m,n}
  uint32_t states = 1u << 18;      // of all automata
  uint32_t edges = 1u << 20;       // of all automata
  size_t memory_bytes = 8u << 20;  // of the automata; a matcher's caches have their own limit
  const std::atomic<bool>* cancel = nullptr;
};

}  // namespace orrery::text::grammar

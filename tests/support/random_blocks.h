// Random weights in any block format, for tests that need matrices but no model. Blocks are valid. Values spread around zero, about as
// widely as the caller asks. The same seed gives the same bytes on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/tensor_type.h"

namespace orrery::testing {

// A small generator with one word of state (splitmix64): independent of the standard library's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return bits() % n; }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }  // [0, 1)
  float normal();  // twelve uniforms of 16 bits: close enough to N(0, 1) for test data, within [-6, 6]

 private:
  uint64_t state_;
};

// Fills row_bytes(type, n_elements) bytes. Quants are random. Scales give the values a mean near 0 and a standard deviation near `scale`,
// within about a fifth over a few thousand values. n_elements: whole blocks.
void fill_random_blocks(TensorType type, std::byte* dst, uint64_t n_elements, uint64_t seed, float scale);

// fill_random_blocks() into a vector.
inline std::vector<std::byte> random_blocks(TensorType type, uint64_t n_elements, uint64_t seed, float scale) {
  std::vector<std::byte> bytes(row_bytes(type, n_elements));
  fill_random_blocks(type, bytes.data(), n_elements, seed, scale);
  return bytes;
}

}  // namespace orrery::testing

// Low-rank adapters (LoRA): for some of a model's matrices W a pair A, B, so that a product W x becomes W x + scale * B (A x). The base
// product is computed as without adapters. Both products of the pair are float32 on every instruction set.
//
// A step may hold rows of several sessions, each with other adapters: the base product is that of all rows, and each run of rows adds its
// own pairs. The pairs are products of the backend like others, so a row's bits depend neither on the other rows nor on the threads.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/kv/memory/arena.h"

namespace orrery::model {

// What an adapter adds to one matrix (n_out, n_in).
struct LowRankPair {
  Weight a;            // (rank, n_in) float32
  Ptr<const float> b;  // (n_out, rank) float32, times alpha / rank, in tiles (backend/adapters.h)
  int64_t n_out = 0;
};

struct Adapter {
  // Rows that one call of add_low_rank() takes at once, and the pairs.
  static constexpr int32_t kRows = 256;
  static constexpr int64_t kPairs = 4;

  // matrix: a member of the model's weights. Its data tell nothing: layers in host memory share their place on the device.
  const LowRankPair* find(const Weight& matrix) const {
    const auto found = pairs.find(&matrix);
    return found == pairs.end() ? nullptr : &found->second;
  }

  std::unordered_map<const Weight*, LowRankPair> pairs;  // by the model's matrix
  int64_t rank = 0;                                      // the largest
  Ptr<float> low;                                        // (kRows, kPairs * rank): A x
  std::array<uint8_t, 16> fingerprint = {};              // of all of the file
  kv::ArenaRegion region;
};

// An adapter of a session, and the factor of what it adds. Not 0.
struct AdapterUse {
  const Adapter* adapter = nullptr;
  float scale = 1.0f;
};

// Rows of a step that have the same adapters.
struct AdaptedRows {
  int32_t first = 0, end = 0;
  Span<const AdapterUse> uses;
};

// Adds to the outputs of `products` of x what the adapters add. `x` and the outputs begin at the step's row `first` and have n rows.
void add_low_rank(Backend* backend, Span<const AdaptedRows> adapted, Span<const Product> products, Ptr<const float> x, int64_t x_stride,
                  int32_t first, int32_t n);

}  // namespace orrery::model

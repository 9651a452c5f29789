// The parts that policies are composed of, and the reader of their options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/policy/policy.h"

namespace orrery::policy {

// Allocate: every head of a layer without window gets the same number of slots; a windowed layer's heads get their
// window, which bounds their KV anyhow.
class UniformAllocation {
 public:
  UniformAllocation(const Shape& shape, const Budget& budget);
  // share of n_tokens each, at least kLeastSlots and at most what the budget and the context allow.
  void allocate(uint32_t n_tokens, Span<uint32_t> capacity) const;
  // The most slots that a head without window can have; nothing where every layer has a window.
  bool enough(uint64_t slots) const { return most_ >= slots || n_full_ == 0; }
  uint64_t least_slots(uint64_t slots) const { return windowed_slots_ + slots * n_full_; }   // of all heads together
  bool windowed(uint32_t head) const { return window_[head / n_kv_heads_] > 0; }

 private:
  uint32_t n_kv_heads_, n_context_;
  std::vector<uint32_t> window_;   // (n_layers) 0: none
  double share_;
  uint64_t n_full_ = 0;            // heads without window
  uint64_t windowed_slots_ = 0;    // slots of the others together
  uint64_t most_ = 0;              // slots of one head without window
};

// Reads a policy's options by name; finish() refuses those that nobody asked for, with the nearest known name.
class OptionReader {
 public:
  OptionReader(const char* policy, const Options& options) : policy_(policy), options_(options) {}
  Status count(const char* name, uint32_t least, uint32_t most, uint32_t* value);
  Status finish() const;

 private:
  const char* policy_;
  const Options& options_;
  std::vector<std::string> known_;
};

// The known name that `name` was probably meant to be; null when none is near.
const std::string* nearest_name(const std::string& name, const std::vector<std::string>& known);

Result<std::unique_ptr<Policy>> make_streaming(const Shape& shape, const Budget& budget, const Options& options);

}  // namespace orrery::policy

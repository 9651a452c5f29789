// The parts that policies are composed of, and the reader of their options.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/policy/allocate.h"
#include "runtime/policy/policy.h"
#include "runtime/policy/roles.h"

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
  uint32_t most() const { return static_cast<uint32_t>(std::min<uint64_t>(most_, n_context_)); }   // slots of such a head
  // Nothing ever has to make room.
  bool everything() const { return n_full_ == 0 || (share_.of_tokens() >= 1 && most_ >= n_context_); }

 private:
  uint32_t n_kv_heads_, n_context_;
  std::vector<uint32_t> window_;   // (n_layers) 0: none
  Share share_;
  uint64_t n_full_ = 0;            // heads without window
  uint64_t windowed_slots_ = 0;    // slots of the others together
  uint64_t most_ = 0;              // slots of one head without window
};

// Of layers with a sliding window: their heads hold the window, as a ring, whatever the policy.
class WindowRings {
 public:
  explicit WindowRings(const Shape& shape);
  bool has(uint32_t head) const { return window_[head / n_kv_heads_] > 0; }
  uint32_t n_other_heads() const { return n_other_; }   // heads of layers without window
  uint64_t slots() const { return slots_; }             // that the windows take
  uint32_t capacity(uint32_t head) const { return window_[head / n_kv_heads_]; }
  void settle() { std::fill(next_.begin(), next_.end(), 0); }
  void select(uint32_t head, uint32_t n_tokens, Tokens* out) const { sinks_and_recent(n_tokens, 0, capacity(head), out); }
  uint32_t slot_for(uint32_t head, uint32_t length);

 private:
  uint32_t n_kv_heads_, n_other_ = 0;
  std::vector<uint32_t> window_;   // (n_layers) at most the context; 0: none
  std::vector<uint32_t> next_;     // (n_layers * n_kv_heads)
  uint64_t slots_ = 0;
};

// How many slots a compressed head has for generated tokens: so many, or by what there is.
struct Tail {
  uint32_t slots = 0;       // 0: n_tokens / 32, 16 to 256
  // Or n_tokens / 32, but at most 1 / least_part of what a head may hold, and at least 8: choosing anew costs as much as there are tokens,
  // so that a token's part of it stays what it is however long the text is. 0: not so.
  uint32_t least_part = 0;
};

// Slots that some heads with the whole context leave to the others, which all hold a selection of the prompt and a tail
// for generated tokens; generated tokens count like the prompt's. At n tokens with a tail of T the budget is the share's
// part of (n + T) slots a head, at least kLeastSlots, at most what the plan has.
class TailedBudget {
 public:
  // n_heads: without window; max_slots: for these; beside: slots' worth that each compressed head has besides.
  TailedBudget(uint32_t n_heads, uint32_t n_context, const Share& share, uint64_t max_slots, Tail tail, Ratio beside = {})
      : n_heads_(n_heads), n_context_(n_context), share_(share), max_slots_(max_slots), tail_(tail), beside_(beside) {}

  struct Division {
    uint32_t tail = 0;      // T
    uint64_t selected = 0;  // slots for prompt tokens, all compressed heads together; 0: there is no room
  };
  // For n_full full heads. n_tokens is less than the context.
  Division divide(uint32_t n_tokens, uint32_t n_full) const;
  double least_share(uint32_t n_full) const;   // of full KV, that fits
  uint64_t least_slots(uint32_t n_full) const;
  // Whether there is room however long the context gets; where all heads are full, for all of it.
  bool fits(uint32_t n_full) const;
  bool everything() const { return max_slots_ >= uint64_t{n_heads_} * n_context_ && share_.of_tokens() >= 1; }
  // The most prompt slots of a compressed head, where they are dealt evenly: there are none more where full heads take theirs of more tokens.
  uint64_t most_of_head() const { return n_heads_ == 0 ? 0 : std::min<uint64_t>(max_slots_ / n_heads_ + 1, n_context_); }

 private:
  uint32_t tail_at(uint32_t n_tokens) const;
  // Prompt slots of all compressed heads with a tail of `tail`; less than n_compressed: no room.
  uint64_t selected_with(uint32_t n_tokens, uint32_t n_full, uint32_t tail) const;
  uint32_t n_heads_, n_context_;
  Share share_;
  uint64_t max_slots_;
  Tail tail_;
  Ratio beside_;
  uint64_t beside(uint32_t n_full) const { return ((n_heads_ - n_full) * beside_.num + beside_.den - 1) / beside_.den; }
};

// How a session without a head profile calibrates itself when it settles: with the queries of the prompt's last
// positions, newest first (the last one is the reference, step 0), over the keys that all of them see.
struct Calibration {
  uint32_t n_queries = 16, top_k = 1024;   // top_k: at most a quarter of those keys
  ScoreRule rule;
};
struct Calibrated {
  std::vector<LayerOverlaps> layers;   // those without window, in order
  uint32_t top_k = 0;                  // keys in each set
};
uint64_t calibration_bytes(const Shape& shape, const Calibration& calibration);   // of host memory
// With a single known query, that one is its own second step.
Result<Calibrated> calibrate(Heads* heads, const WindowRings& rings, const Shape& shape,
                             uint32_t n_tokens, const Calibration& calibration);

using SharedProfile = std::shared_ptr<const HeadProfile>;

// Policy::refill_share() where refills are visible in the next step: that step waits for them anyhow, and half of the ring
// is filled while the other half is read.
inline constexpr double kNextStepShare = 1. / 32;

// Host memory as a table counts it.
template <class T>
constexpr uint64_t bytes_of(uint64_t n) {
  return n * sizeof(T);
}
// The vector has n elements, any; what it had before is given back first, so that both are never there at once.
template <class Vector>
void renew(Vector* vector, size_t n) {
  if (vector->capacity() < n) *vector = Vector();
  vector->resize(n);
}

// The queries of so many last positions are kept for policies that look through a window of them, and for pages that are dealt out by
// what some of them look at.
inline constexpr uint32_t kMostWindow = 64, kPageQueries = 16;

// The head's slots from first_slot on become `wanted`, by fetching what is missing. marks: of all tokens, 0 between uses; misses: room
// for all that are wanted.
Status refill_selection(Heads* heads, uint32_t head, uint32_t first_slot, Span<const uint32_t> wanted, uint64_t visible_at,
                        std::vector<uint8_t>* marks, std::vector<Replacement>* misses, Report* report);

// What policies share whose compressed heads hold a selection of the prompt and a tail: windows and the budget, a head
// profile or the calibration in its stead, refills of selections.
class TailedPolicy : public Policy {
 public:
  uint32_t queries_wanted() const override { return profile_ ? 1 : calibration_.n_queries; }
  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (rings_.has(head)) return rings_.slot_for(head, length);
    return length < capacity ? length : kSettleAgain;
  }
  // Whether the budget holds the full heads, which `what` ("keep their whole KV"), and something of the others.
  Status check_room(const Budget& budget, const char* what) const;

 protected:
  TailedPolicy(const Shape& shape, const Budget& budget, Tail tail, const Calibration& calibration,
               SharedProfile profile, Ratio beside = {});
  Shape shape() const { return {n_layers_, n_kv_heads_, n_context_, window_}; }
  // Of layers without window.
  uint64_t max_slots(const Budget& budget) const { return budget.max_slots - std::min(budget.max_slots, rings_.slots()); }
  // The beginning of settle(): what stood there is forgotten, windows have their capacity.
  void begin_settling(uint32_t n_tokens, Span<uint32_t> capacity);
  // Host memory of what is here, where selections are refilled and heads calibrated.
  uint64_t tailed_bytes() const;
  // Where selections have been made: `most` is the longest that is refilled.
  void end_settling(size_t most);
  static void select_all(uint32_t n_tokens, std::vector<uint32_t>* out) {
    for (uint32_t p = 0; p < n_tokens; ++p) out->push_back(p);
  }
  Status refill(Heads* heads, uint32_t head, uint32_t first_slot, Span<const uint32_t> wanted, uint64_t visible_at) {
    return refill_selection(heads, head, first_slot, wanted, visible_at, &marks_, &misses_, &report_);
  }

  const SharedProfile profile_;
  const Calibration calibration_;
  const uint32_t n_kv_heads_, n_layers_, n_context_;
  const std::vector<int32_t> window_;
  WindowRings rings_;
  const TailedBudget budget_;
  // Since settling.
  uint32_t n_tokens_ = 0;
  uint64_t n_steps_ = 0;
  // Of a look at the last queries.
  Roomy<KeyQuery> queries_;
  std::vector<uint8_t> marks_;         // (n_tokens), 0 between uses
  Roomy<Replacement> misses_;
};

// Reads a policy's options by name; finish() refuses those that nobody asked for, with the nearest known name.
class OptionReader {
 public:
  OptionReader(const char* policy, const Options& options) : policy_(policy), options_(options) {}
  Status count(const char* name, uint32_t least, uint32_t most, uint32_t* value);
  Status fraction(const char* name, double* value) { return number(name, 0, 1, value); }
  Status number(const char* name, double least, double most, double* value);
  Status choice(const char* name, Span<const char* const> choices, uint32_t* index);
  Status flag(const char* name, bool* value);         // 0 or 1
  Status ascending(const char* name, uint32_t most, std::vector<uint32_t>* values);   // "2+8+18"
  bool given(const char* name) const;
  Status finish() const;

 private:
  const char* policy_;
  const Options& options_;
  std::vector<std::string> known_;
};

// The known name that `name` was probably meant to be; null when none is near.
const std::string* nearest_name(const std::string& name, const std::vector<std::string>& known);

Result<std::unique_ptr<Policy>> make_streaming(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_heterocache(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_synckv(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_h2o(const Shape&, const Budget&, const Options&, const SharedProfile&);
// The methods of static_heads.cpp, by name.
Result<std::unique_ptr<Policy>> make_static_heads(const char* name, const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_raas(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_infinigen(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_loki(const Shape&, const Budget&, const Options&, const SharedProfile&);
Result<std::unique_ptr<Policy>> make_omnikv(const Shape&, const Budget&, const Options&, const SharedProfile&);
// The methods of window.cpp, by name.
Result<std::unique_ptr<Policy>> make_window(const char* name, const Shape&, const Budget&, const Options&);
// The methods of pages.cpp, by name.
Result<std::unique_ptr<Policy>> make_pages(const char* name, const Shape&, const Budget&, const Options&);
// Those of shadowkv.cpp, by name.
Result<std::unique_ptr<Policy>> make_shadowkv(const char* name, const Shape&, const Budget&, const Options&);

}  // namespace orrery::policy

// StreamingLLM (Xiao et al., arXiv:2309.17453): attention sinks and the most recent tokens. The floor that every other policy is compared
// with.
//   score     none
//   allocate  evenly
//   select    the first `sinks` tokens and the most recent ones; the newest replaces the oldest recent token
//   refresh   never
// Paper, code and this build: the page below.
#include <algorithm>

#include "runtime/policy/allocate/uniform.h"
#include "runtime/policy/given/host_bytes.h"
#include "runtime/policy/options.h"
#include "runtime/policy/rows.h"
#include "runtime/policy/select/rings.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace streaming_method {

constexpr OptionRow kOptions[] = {{"sinks", "4", "first tokens that always stay"}};
constexpr char kPage[] =
    "The first tokens, which attention leans on, and the last ones; the tokens between do not come back.\n"
    "- Keys keep the rotary position of the text. The paper's code rotates them by slot.\n";

class Streaming final : public Policy {
 public:
  Streaming(const Shape& shape, const Budget& budget, uint32_t sinks)
      : uniform_(shape, budget), sinks_(sinks), next_(size_t{shape.n_layers} * shape.n_kv_heads) {}

  // A head holds at least its sinks and one recent token.
  Status check() const {
    if (uniform_.fits(sinks_ + uint64_t{1})) return ok_status();
    return error(Code::invalid_argument,
                 "policy streaming with %u sinks needs a KV budget of at least %llu slots (tokens of one head), %u a head", sinks_,
                 static_cast<unsigned long long>(uniform_.total_slots(sinks_ + uint64_t{1})), sinks_ + 1);
  }

  const char* name() const override { return "streaming"; }

  Status settle(Heads*, uint32_t n_tokens, Span<uint32_t> capacity) override {
    uniform_.allocate(n_tokens, capacity);
    std::fill(next_.begin(), next_.end(), 0);
    ++report_.n_settled;
    return ok_status();
  }

  void select(uint32_t head, uint32_t n_tokens, uint32_t capacity, std::vector<uint32_t>* out) override {
    const uint32_t s = sinks(head, capacity);
    sinks_and_recent(n_tokens, s, capacity - s, out);
  }

  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    if (length < capacity) return length;
    // The slots after the sinks are a ring, oldest first.
    const uint32_t s = sinks(head, capacity);
    const uint32_t slot = s + next_[head];
    next_[head] = (next_[head] + 1) % (capacity - s);
    return slot;
  }

  uint64_t host_bytes(const HostShape&) const override { return bytes_of<uint32_t>(next_.size()); }

  Status state(StateBytes* s, const SavedMoment& at) override {
    for (uint32_t head = 0; head < next_.size(); ++head) {
      const uint32_t n = at.slots->capacity[head];
      ORRERY_TRY(s->check(n > 0, "a head has no slots"));
      ORRERY_TRY(s->number(&next_[head], n - sinks(head, n), "the oldest slot of a ring is outside it"));
    }
    return ok_status();
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  // A windowed layer has no sinks; at least one slot is for recent tokens.
  uint32_t sinks(uint32_t head, uint32_t capacity) const { return uniform_.windowed(head) ? 0 : std::min(sinks_, capacity - 1); }

  UniformAllocation uniform_;
  uint32_t sinks_;
  std::vector<uint32_t> next_;  // (heads) the oldest slot of the ring, counted from the sinks
};

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  uint32_t sinks = 4;
  OptionReader reader("streaming", options);
  ORRERY_TRY(reader.count("sinks", 0, 4096, &sinks));
  ORRERY_TRY(reader.finish());
  auto policy = std::make_unique<Streaming>(shape, budget, sinks);
  ORRERY_TRY(policy->check());
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace streaming_method

constexpr Method kStreaming = {{"streaming", "StreamingLLM", "arXiv:2309.17453",
                                /* score    */ "none",
                                /* allocate */ "evenly",
                                /* keep     */ "the first and the most recent tokens",
                                /* refresh  */ "every step the newest token replaces the oldest recent one",
                                /* device   */ "nothing",
                                /* link     */ kSelectionOnLink, all(streaming_method::kOptions), streaming_method::kPage},
                               {0},
                               streaming_method::make};

}  // namespace orrery::policy

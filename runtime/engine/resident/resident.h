// The order of a step of a session under a policy: settle, prepare, attend, commit. What is kept stands in parts.h, what the policy may ask
// in answers.h, and what follows from the options in resident_shape.h. The policy decides; this file carries out.
//
// The session's pages, in the reservoir, hold everything. The resident KV can be thrown away at any time, and is chosen anew when the next
// token is to be generated.
//
// The pages keep the heads that are full here, too (a copy in host memory: 6 of the demo's 32 heads, 15 to 21% of those of
// the published profiles).  Settling again makes other heads full: of 6 on the demo model 2.8, and after no turn the
// same ones (tests/bench/results).  And what is here may be coarser, where prompts, rewinding, forks and files want the
// exact KV of every head.
//
// Steps count generated tokens over the life of this object: what a policy asks for after step s becomes visible in a
// step that it names, whatever the I/O thread does meanwhile.
//
// What uses the backend runs within a Use: in the session's turn, with the model's scratch set. After make() no device memory is
// taken, and no host memory but when settling and for top_page_keys().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/resident/answers.h"
#include "runtime/engine/resident/parts.h"
#include "runtime/engine/resident/resident_shape.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/policy/policy.h"

namespace orrery::engine {

class Resident final : public model::LayerHook {
 public:
  // During its life the resident part has the turn's backend, and `cancel` ends its waits for the link, and settling. Null: a session
  // without a resident part.
  class Use {
   public:
    Use(Resident* resident, const Turn& turn, const Cancel& cancel = {}) : resident_(resident) {
      if (resident) resident->turn_ = &turn, resident->now_.backend = &turn.backend(), resident->now_.cancel = cancel;
    }
    ~Use() {
      if (resident_) resident_->turn_ = nullptr, resident_->now_.backend = nullptr, resident_->now_.cancel = {};
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Resident* resident_;
  };
  // Whether the backend has the operations that the options' policy needs; unsupported names those that it lacks.
  static Status check_operations(Backend* backend, const model::Hyperparameters& h, const SessionOptions& options, uint32_t n_context);
  // Takes its regions of the arena, and turns. `pages` is the session's, and outlives this; so do the frequencies of `rope`.
  static Result<std::unique_ptr<Resident>> make(const LanguageModel* model, const SessionOptions& options,
                                                uint32_t n_context, const kv::PageTable* pages, const RopeSpec& rope);
  // Host memory of a step's tables.
  static kv::Region layout(const ResidentShape& shape);

  const kv::HeadStore& store() const { return *parts_.slots; }
  const kv::LowRank* low_rank() const { return parts_.low_rank.get(); }   // or null
  bool settled() const { return settled_; }
  uint64_t bytes() const { return parts_.bytes(); }   // of KV and its summaries
  uint64_t used_bytes() const { return parts_.used_bytes(settled_); }
  policy::Report report() const { return policy_->report(); }
  const policy::Policy& policy() const { return *policy_; }
  kv::Refills::Stats refill_stats() const;
  // What steps have read of the device's memory, in bytes: KV attended to, what tokens were looked for in, and rows that keys were rebuilt
  // from. Settling is not among it.
  struct Reads {
    uint64_t kv = 0, searched = 0, rebuilt = 0;
  };
  Reads reads() const;
  // Of settling, in all: copied from the reservoir, and the time.
  uint64_t settled_bytes() const { return settled_bytes_; }
  uint64_t settle_us() const { return settle_us_; }

  // Positions from `from` on are about to be written: their page, if it is shared, gives way to a copy.
  void before_write(uint32_t from);
  // Tokens from n_tokens on are gone.
  void truncate(uint32_t n_tokens);
  // A step of positions [from, to) has not come to its end: some of its queries stand in others' place.
  void forget_queries(uint32_t from, uint32_t to);
  // Positions [from, to) have been computed with queries() in the step.
  void note_queries(uint32_t from, uint32_t to);
  QueryRing queries() const { return parts_.query_ring(); }
  // Positions whose queries must be computed again before prepare(n_tokens), as first and end; both 0: none. They are
  // lost when a session is loaded, or rewound; where attention is summed all of them may be.
  struct Positions {
    uint32_t first = 0, end = 0;
  };
  Positions missing_queries(uint32_t n_tokens) const;

  // The step of the token at position n_tokens: where each head puts it, and what it attends to. Settles if need be.
  Status prepare(uint32_t n_tokens);
  Span<const HeadView> views() const { return views_; }
  const KvFormat& format() const { return format_; }
  const kv::PageTable& reservoir() const { return *pages_; }
  // What the layers of a step of positions [from, from + n) ask, or wait for, before their attention; null: nothing. Behind prepare().
  model::LayerHook* hook(Phase phase, uint32_t from, uint32_t n) {
    return (phase == Phase::decode ? waiting_ || policy_->asks_before_attend() : parts_.sums && parts_.sums->begin(from, n)) ? this : nullptr;
  }
  Status before_attend(int32_t layer, Ptr<const float> q, int64_t q_stride) override;
  bool looks_ahead() const override { return policy_->asks_a_layer_ahead(); }
  Status before_layer(int32_t layer, Ptr<const float> next_q) override;
  // It has been computed.
  Status commit(uint32_t position);
  // Which keys of the session's pages, all that it holds, the queries of some positions attend to most, settled or not.
  // Those positions' queries must be known still: the last ones, as many as the policy's kept_queries.
  Status top_page_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule, uint32_t n_tokens);
  // How much they attend to them.
  Status page_key_weights(Span<const policy::WeightsQuery> queries, uint32_t n_tokens);
  // What is resident does not count any more.
  void invalidate();
  // For benchmarks: the queries of n tokens have been.
  void assume(uint32_t n_tokens) {
    if (parts_.sums) parts_.sums->assume(n_tokens);
  }
  // For tests: asked behind each step, before the policy is; its error is the policy's.
  // The turn that a step, or a settling, is in; null between them. A step fault works in it.
  const Turn* turn() const { return turn_; }
  void set_step_fault(std::function<Status(uint64_t step)> fault) { step_fault_ = std::move(fault); }

  // Goes on exactly like `other`, of a session that has just shared its pages.
  Status copy_from(const Resident& other);

 private:
  Resident(const ResidentShape& shape, const kv::PageTable* pages)
      : hyper_(*shape.hyper), n_context_(shape.n_context), format_(shape.resident), pages_(pages) {}
  Status settle(uint32_t n_tokens);
  Status settle_heads(uint32_t n_tokens);
  Status ask(int32_t layer, Ptr<const float> q);   // the policy, by a layer's queries
  void note_rebuilt(uint32_t head, uint32_t n_slots);
  void rebuild_noted(uint32_t layer);
  void compensate(uint32_t head, uint32_t n_tokens);
  void add_replaced();
  template <class Query>
  Status check_known(Span<const Query> queries, uint32_t n_tokens) const;

  const model::Hyperparameters& hyper_;
  const uint32_t n_context_;
  KvFormat format_;                                // on the device; pages_ has its own
  const kv::PageTable* pages_;
  std::unique_ptr<policy::Policy> policy_;
  Parts parts_;
  const Turn* turn_ = nullptr;                     // within a Use
  Moment now_;                                     // its backend and cancel: within a Use
  Answers answers_;
  bool settled_ = false;
  bool waiting_ = false;                           // of a step: its layers wait for their refills, each for its own
  uint64_t step_ = 0, settled_bytes_ = 0, settle_us_ = 0, kv_read_ = 0;
  uint32_t n_unchanged_ = 0;                       // tokens that are in the pages as they were when the store got them
  std::vector<uint32_t> capacity_, slots_;         // (n_heads)
  std::vector<HeadView> views_;                    // (n_heads)
  std::vector<uint32_t> selected_;                 // room for n_context
  std::vector<RebuiltRun> runs_;                   // of the heads of a layer that is being settled
  std::function<Status(uint64_t)> step_fault_;
};

}  // namespace orrery::engine

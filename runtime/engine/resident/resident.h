// What a session under a policy keeps of its KV on the device: carries out on a head store what the policy decides, and
// answers what the policy asks.  The session's pages, in the reservoir, hold everything; this part can be thrown away at
// any time, and is chosen anew when the next token is to be generated.
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
#include "runtime/engine/resident/attention_sums.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/kv/resident/digests.h"
#include "runtime/kv/resident/head_store.h"
#include "runtime/kv/resident/low_rank.h"
#include "runtime/kv/resident/compensation_tokens.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/kv/transfers/refills.h"
#include "runtime/policy/policy.h"

namespace orrery::engine {

class Resident final : public model::LayerHook, private policy::Heads {
 public:
  // During its life the resident part has the turn's backend, and `cancel` ends its waits for the link, and settling. Null: a session
  // without a resident part.
  class Use {
   public:
    Use(Resident* resident, const Turn& turn, const Cancel& cancel = {}) : resident_(resident) {
      if (resident) resident->backend_ = &turn.backend(), resident->cancel_ = cancel;
    }
    ~Use() {
      if (resident_) resident_->backend_ = nullptr, resident_->cancel_ = {};
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
  // Device memory, and the two parts of the KV among it. digests: with low-rank keys, and means of what heads
  // have let go. staging: with room to work on these. queries: the last ones, as they are and projected, and the scores of watched heads.
  struct Bytes {
    uint64_t full_kv = 0, compressed_kv = 0, digests = 0, staging = 0, queries = 0;
    uint64_t all() const { return full_kv + compressed_kv + digests + staging + queries; }
  };
  // moves_directly: engine::moves_directly(); then there is no staging ring.
  static Bytes device_bytes(const model::Hyperparameters& h, const Device& device, const SessionOptions& options, uint32_t n_context,
                            bool moves_directly);
  static uint64_t host_bytes(const model::Hyperparameters& h, const Device& device, const SessionOptions& options, uint32_t n_context,
                             bool moves_directly);

  const kv::HeadStore& store() const { return *store_; }
  const kv::LowRank* low_rank() const { return low_rank_.get(); }   // or null
  bool settled() const { return settled_; }
  uint64_t bytes() const;   // of KV, and of what finds it and rebuilds it
  uint64_t used_bytes() const;
  policy::Report report() const { return policy_->report(); }
  const policy::Policy& policy() const { return *policy_; }
  kv::Refills::Stats refill_stats() const;
  // What steps have read of the device's memory, in bytes: KV attended to, what tokens were looked for in, and rows that keys were rebuilt
  // from. Settling is not among it.
  struct Reads {
    uint64_t kv = 0, searched = 0, rebuilt = 0;
  };
  Reads reads() const { return {kv_read_, searched_, low_rank_ && !low_rank_->by_head() ? refill_stats().tokens * 2 * low_rank_->rank() : 0}; }
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
  QueryRing queries() const { return ring_; }
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
    return (phase == Phase::decode ? waiting_ || policy_->asks_before_attend() : sums_ && sums_->begin(from, n)) ? this : nullptr;
  }
  Status before_attend(int32_t layer, Ptr<const float> q, int64_t q_stride) override;
  bool looks_ahead() const override { return policy_->asks_a_layer_ahead(); }
  Status before_layer(int32_t layer, Ptr<const float> next_q) override;
  // It has been computed.
  Status commit(uint32_t position);
  // Which keys of the session's pages, all that it holds, the queries of some positions attend to most, settled or not.
  // Those positions' queries must be known still: the last ones, as many as the policy's kept_queries.
  Status top_page_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule, uint32_t n_tokens);
  // What is resident does not count any more.
  void invalidate();
  // For benchmarks: the queries of n tokens have been.
  void assume(uint32_t n_tokens) {
    if (sums_) sums_->assume(n_tokens);
  }
  // For tests: asked behind each step, before the policy is; its error is the policy's.
  void set_step_fault(std::function<Status(uint64_t step)> fault) { step_fault_ = std::move(fault); }

  // Goes on exactly like `other`, of a session that has just shared its pages.
  Status copy_from(const Resident& other);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;    // position
  Resident(const LanguageModel* model, const SessionOptions& options, uint32_t n_context, const kv::PageTable* pages)
      : model_(model), n_context_(n_context), format_(kv_format(model->hyper(), options.resident_type(model->hyper()))), pages_(pages) {}
  Status settle(uint32_t n_tokens);
  Status settle_heads(uint32_t n_tokens);
  // Whether settling goes on: ok, or cancelled.
  Status go_on() const { return settling_ && cancel_.asked() ? error(Code::cancelled, "cancelled while choosing what is resident") : ok_status(); }
  Status ask(int32_t layer, Ptr<const float> q);   // the policy, by a layer's queries
  void note_rebuilt(uint32_t head, uint32_t n_slots);
  void rebuild_noted(uint32_t layer);
  void compensate(uint32_t head, uint32_t n_tokens);
  void add_replaced();
  Status add_weights(uint32_t position);
  void watch();
  uint32_t known_queries(uint32_t n_tokens) const;   // of positions n_tokens-1, n_tokens-2, ...
  template <class Query>
  void set_keys(const Query& query, KeysJob* job) const;
  KeysShape keys_shape() const;
  template <class Job>
  void count_searched(const std::vector<Job>& jobs, uint64_t key_bytes);
  template <class Job>
  void set_pages(uint32_t head, uint32_t position, uint32_t first_page, uint32_t n_pages, Job* job) const;
  void set_pages(uint32_t head, uint32_t position, KeysShape* shape);
  Status find_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule);

  // policy::Heads
  uint32_t n_queries() const override { return known_queries(n_tokens_); }
  Status top_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule) override;
  Status key_weights(Span<const policy::WeightsQuery> queries) override;
  Status key_moments(Span<const policy::MomentsQuery> queries, std::vector<float>* rows) override;
  Status top_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule) override;
  Status scores(Span<const policy::ScoresQuery> queries) override;
  uint32_t group() const override;
  Span<const float> attention_sums(uint32_t head) const override { return sums_->of(head); }
  Span<const uint32_t> positions(uint32_t head) const override { return store_->positions(head); }
  Status refill(uint32_t head, Span<const policy::Replacement> what, uint64_t visible_at) override;
  Status query_similarity(Span<float> out) override;
  void move_last(uint32_t head, uint32_t n, uint32_t slot) override;
  Span<const float> page_cosines(uint32_t head) const override { return digests_->cosines(head); }
  void hide_page(uint32_t head, uint32_t page, bool hidden) override;
  Status make_low_rank(uint32_t n_tokens, bool with_basis) override;
  void run(size_t n, void (*call)(const void* fn, int64_t i), const void* fn) override {
    backend_->for_each(static_cast<int64_t>(n), call, fn);
  }

  const LanguageModel* model_;
  Backend* backend_ = nullptr;                     // within a Use
  Cancel cancel_;                                  // within a Use
  const uint32_t n_context_;
  KvFormat format_;                                // on the device; pages_ has its own
  const kv::PageTable* pages_;
  std::unique_ptr<policy::Policy> policy_;
  std::unique_ptr<kv::HeadStore> store_;
  std::unique_ptr<kv::LowRank> low_rank_;          // null for policies that do not ask for any
  std::unique_ptr<kv::Refills> refills_;           // likewise
  std::unique_ptr<kv::Digests> digests_;           // likewise
  std::unique_ptr<kv::CompensationTokens> compensation_tokens_;               // likewise
  std::unique_ptr<AttentionSums> sums_;            // likewise
  std::vector<float> weights_;                     // (slots) of a step, where they are summed
  kv::ArenaRegion ring_region_;
  QueryRing ring_;
  std::vector<uint32_t> ring_positions_;           // (ring_.n_rows) whose query each row holds; kNone
  kv::ArenaRegion projected_;                      // (n_heads, rank) a layer's queries, where rows of low-rank keys find tokens
  kv::ArenaRegion exported_region_;                    // (policy's max_scored_heads) ExportedWeights
  int64_t exported_stride_ = 0;
  uint64_t left_bytes_ = 0;                        // of one of them
  std::vector<uint32_t> scored_heads_;
  uint32_t scored_position_ = UINT32_MAX;         // whose query the views' weights are of; kNone
  bool settled_ = false, settling_ = false;
  bool waiting_ = false;                           // of a step: its layers wait for their refills, each for its own
  Ptr<const float> q_;                             // within before_attend(): of layer_, at position n_tokens_
  int32_t layer_ = 0;
  std::vector<float> q_now_, q_before_;            // (q_dim) where the policy asks before layers attend
  uint64_t step_ = 0, settled_bytes_ = 0, settle_us_ = 0, kv_read_ = 0, searched_ = 0;
  uint32_t n_tokens_ = 0;                          // when settling, and of the step before its own token
  uint32_t n_unchanged_ = 0;                       // tokens that are in the pages as they were when the store got them
  std::vector<uint32_t> capacity_, slots_;         // (n_heads)
  std::vector<HeadView> views_;                    // (n_heads)
  std::vector<uint32_t> selected_;                 // room for n_context
  std::vector<TopKeysJob> jobs_;
  std::vector<KeyWeightsJob> weights_jobs_;
  std::vector<KeyMomentsJob> moments_jobs_;
  std::vector<RebuiltRun> runs_;                   // of the heads of a layer that is being settled
  std::function<Status(uint64_t)> step_fault_;
};

}  // namespace orrery::engine

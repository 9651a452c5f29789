// The order of a step of a session under a policy: settle, prepare, attend, commit. parts.h has the parts, answers.h answers the policy's
// questions, resident_shape.h derives sizes from the options. The policy decides; this file carries out.
//
// Some policies settle in parts, one before each of some steps (Policy::settle_steps). These steps attend to the pages, that is to
// everything. So the steps that compute a part are always the same, whatever takes how long. Behind the last part the heads take the tokens
// of these steps.
//
// The session's pages in the reservoir hold all KV, also of heads that are full on the device. The resident KV can be dropped at any time;
// the session then settles again before the next generated token. README.md says why full heads are kept twice.
//
// Steps count generated tokens over the life of this object. A refill that the policy asks for after step s becomes visible in the step
// that the policy names, whatever the I/O thread does meanwhile.
//
// Calls that use the backend run within a Use: in the session's turn, with the model's scratch memory set. After make() nothing takes
// device memory, and only settling and top_page_keys() take host memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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
  // While a Use exists, the resident part has the turn's backend, and `cancel` ends settling and waits for the link. resident: null for a
  // session without a resident part.
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
  // ok if the backend has the operations that the options' policy needs; else unsupported, which names the missing ones.
  static Status check_operations(Backend* backend, const model::Description& h, const SessionOptions& options, uint32_t n_context);
  // Takes the layout's regions of the arena, and turns. pages: of the session. The pages and the frequencies of `rope` outlive the object.
  static Result<std::unique_ptr<Resident>> make(const LanguageModel* model, const SessionOptions& options, uint32_t n_context,
                                                const kv::PageTable* pages, Span<const RopeSpec> ropes);
  // Host memory of a step's tables.
  static kv::Region layout(const ResidentShape& shape);

  // Its positions() of slots that the device fills by itself are those of the last read_positions(), which needs a Use.
  const kv::HeadStore& store() const { return *parts_.slots; }
  Status read_positions() { return answers_.read_positions(); }
  const kv::LowRank* low_rank() const { return parts_.low_rank.get(); }  // or null
  const kv::KeyCodes* key_codes() const { return parts_.codes.get(); }   // or null
  bool settled() const { return settled_; }
  bool settling() const { return settling_.n_steps > 0; }  // in parts: the next step has one
  uint64_t used_bytes() const { return parts_.used_bytes(settled_); }
  uint32_t held_tokens(uint32_t head) const { return settled_ ? parts_.slots->length(head) : 0; }  // on the device
  bool sums_queries() const { return parts_.sums != nullptr; }  // the policy needs the queries of all tokens
  policy::Report report() const { return policy_->report(); }
  const policy::Policy& policy() const { return *policy_; }
  kv::Refills::Stats refill_stats() const;
  // Bytes of device memory that steps have read, without settling. kv: by attention. searched: to find tokens. rebuilt: rows of low-rank
  // keys.
  struct Reads {
    uint64_t kv = 0, searched = 0, rebuilt = 0;
  };
  Reads reads() const;
  // Bytes that steps have read in the reservoir in place of slots: part of reads().kv.
  uint64_t bytes_in_place() const { return in_place_ ? kv_read_ : 0; }
  // Bytes that settling has copied from the reservoir, and its time.
  uint64_t settled_bytes() const { return settled_bytes_; }
  uint64_t settle_us() const { return settle_us_; }

  // Called before positions from `from` on are written. If their page is shared, a copy will replace it, so pending transfers are stopped.
  void before_write(uint32_t from);
  // Removes the tokens from n_tokens on.
  void truncate(uint32_t n_tokens);
  // A step of positions [from, to) has failed: some of its queries have overwritten others.
  void forget_queries(uint32_t from, uint32_t to);
  // A step of positions [from, to) has written its queries to queries().
  void note_queries(uint32_t from, uint32_t to);
  QueryRing queries() const { return parts_.query_ring(); }
  // Positions whose queries must be computed again before prepare(n_tokens), as first and end; both 0: none. Loading and rewinding lose
  // queries; with attention sums they may lose those of all positions.
  struct Positions {
    uint32_t first = 0, end = 0;
  };
  Positions missing_queries(uint32_t n_tokens) const;

  // Begins the step of the token at position n_tokens: chooses each head's slot for it and makes views(). Settles first if needed, or
  // computes the next part of it; an error or a cancellation gives the parts up. Given must_settle, it does not settle, but says so there;
  // then prepare() comes again.
  Status prepare(uint32_t n_tokens, bool* must_settle = nullptr);
  // Whether steps share no pass with other sessions': a step may wait until KV has come over a link, or the device fetches within it.
  bool steps_alone() const { return (parts_.refills && !moves_directly_) || fetches_; }
  // Of the step. Empty while the session settles in parts: the step attends to the pages.
  Span<const HeadView> views() const { return settling() ? Span<const HeadView>() : Span<const HeadView>(views_); }
  const KvFormat& format() const { return format_; }
  const kv::PageTable& reservoir() const { return *pages_; }
  // The hook of a step of positions [from, from + n), after prepare(); null if its layers neither ask nor wait before their attention.
  // goes_on: the step's first layers were computed by an earlier call with the same tokens.
  model::LayerHook* hook(Phase phase, uint32_t from, uint32_t n, bool goes_on = false) {
    const bool wanted = phase == Phase::decode ? waiting_ || policy_->asks_before_attend()
                                               : parts_.sums && (goes_on ? parts_.sums->under_way() : parts_.sums->begin(from, n));
    return wanted ? this : nullptr;
  }
  Status before_attend(KvLayer layer, Ptr<const float> q, int64_t q_stride) override;
  bool looks_ahead() const override { return policy_->asks_a_layer_ahead(); }
  Status before_layer(int32_t layer, Ptr<const float> next_q) override;
  // Ends the step: its token at `position` has been computed.
  Status commit(uint32_t position);

  // Drafts, for policies that only append: steps of tokens that may be removed again. begin_draft() gives the heads the tokens before
  // `n_tokens` that they lack, from the pages. Where they have no room for these and one more, the first prepare() settles.
  Status begin_draft(uint32_t n_tokens);
  // Whether begin_draft(n_tokens) leaves the first prepare() nothing to settle.
  bool can_draft(uint32_t n_tokens) const { return settled_ && n_tokens - n_held_ < parts_.slots->room(); }
  // Whether the heads have room for one more token of a draft.
  bool has_room() const { return parts_.slots->room() > 0; }
  // Removes the tokens of the draft, whose KV the pages will replace.
  void end_draft();
  // The keys of all the session's pages that the queries of some positions attend to most, settled or not. Only the last positions have
  // queries, as many as the policy's kept_queries.
  Status top_page_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule, uint32_t n_tokens);
  // How much those queries attend to those keys.
  Status page_key_weights(Span<const policy::WeightsQuery> queries, uint32_t n_tokens);
  // Drops the resident KV: the next prepare() settles.
  void invalidate();
  // For benchmarks: as if the queries of n tokens had been summed.
  void assume(uint32_t n_tokens) {
    if (parts_.sums) parts_.sums->assume(n_tokens);
  }
  // The turn of a step or of settling; null outside.
  const Turn* turn() const { return turn_; }
  // For tests: the host selects tokens, also where the device could.
  void select_on_host() { answers_.select_on_host(); }
  // For tests: called after each step, before the policy. Its error is reported as the policy's.
  void set_step_fault(std::function<Status(uint64_t step)> fault) { step_fault_ = std::move(fault); }

  // Continues exactly as `other`, whose session has just shared its pages.
  Status copy_from(const Resident& other);

  // The state between two steps of a session of n_tokens: all that the next ones depend on, besides the pages. Another resident part of the
  // same kind() that takes it goes on exactly alike. save() needs a Use.
  Status save(uint32_t n_tokens, std::vector<std::byte>* out);
  // Checks a saved state, which anybody may have written; without a Use. Returns the policy in that state.
  Result<std::unique_ptr<policy::Policy>> check(Span<const std::byte> state, uint32_t n_tokens);
  // Takes a state that was checked, and its policy. Needs a Use; the session's pages are there. Behind an error the session settles again.
  Status take(Span<const std::byte> state, uint32_t n_tokens, std::unique_ptr<policy::Policy> checked);
  // A hash of all that decides which states fit: policy, options, budget, sizes and formats, the kind of backend.
  using Kind = std::array<uint8_t, 16>;
  const Kind& kind() const { return kind_; }

 private:
  static constexpr uint32_t kNoDraft = UINT32_MAX;
  Resident(const ResidentShape& shape, const kv::PageTable* pages)
      : description_(*shape.description), n_context_(shape.n_context), format_(shape.resident), pages_(pages) {}
  Status state(StateBytes* s, uint32_t n_tokens, policy::Policy* policy);
  // Settles, or computes a part of it: then settling().
  Status settle(uint32_t n_tokens);
  Status settle_heads(uint32_t n_tokens);
  Status settle_part();
  void lay_out();
  Status fill_heads(uint32_t n_tokens, uint32_t first_layer, uint32_t end);
  Status commit_to_pages(uint32_t position);
  Status ask(int32_t layer, Ptr<const float> q);  // asks the policy, with a layer's queries
  void follow_held(int32_t layer);
  void note_rebuilt(uint32_t head, uint32_t n_slots);
  void rebuild_noted(uint32_t layer);
  void compensate(uint32_t head, uint32_t n_tokens);
  void add_replaced();
  template <class Query>
  Status check_known(Span<const Query> queries, uint32_t n_tokens) const;

  const model::Description& description_;
  const uint32_t n_context_;
  Kind kind_ = {};
  KvFormat format_;  // on the device; pages_ has its own
  const kv::PageTable* pages_;
  std::unique_ptr<policy::Policy> policy_;
  Parts parts_;
  const Turn* turn_ = nullptr;  // within a Use, else null
  Moment now_;                  // backend and cancel: within a Use
  Answers answers_;
  bool moves_directly_ = false;  // ResidentShape::moves_directly
  bool fetches_ = false;         // ResidentShape::fetches
  bool in_place_ = false;        // ResidentShape::in_place
  bool attends_pages_ = false;   // BackendInfo::attends_pages
  bool settled_ = false;
  struct Parted {                                                         // a settlement in parts
    uint32_t n_tokens = 0;                                                // that the session held when it began
    uint32_t n_steps = 0, step = 0;                                       // one part each; 0: none is under way. The next part
    uint32_t n_scoring() const { return std::max(1u, n_steps * 7 / 8); }  // first parts, which are the policy's. Then layers are filled
    // The layers that are filled before part i.
    uint32_t filled(uint32_t i, uint32_t n_layers) const {
      return i == n_steps ? n_layers : i <= n_scoring() ? 0 : n_layers * (i - n_scoring()) / (n_steps - n_scoring());
    }
  } settling_;
  bool waiting_ = false;           // each layer of the step waits for its own refills
  uint32_t n_resident_steps_ = 0;  // that have begun and attend to the slots
  uint64_t step_ = 0, settled_bytes_ = 0, settle_us_ = 0, kv_read_ = 0;
  uint32_t n_unchanged_ = 0;                // first tokens of the pages that have not changed since the store was filled
  uint32_t n_held_ = 0;                     // tokens that the heads were given or offered, if settled_: later ones lack
  uint32_t draft_from_ = kNoDraft;          // the first position of the draft under way
  std::vector<uint32_t> capacity_, slots_;  // (n_heads)
  std::vector<HeadView> views_;             // (n_heads)
  std::vector<uint32_t> selected_;          // room for n_context
  std::vector<RebuiltRun> runs_;            // noted while a layer settles
  std::function<Status(uint64_t)> step_fault_;
};

}  // namespace orrery::engine

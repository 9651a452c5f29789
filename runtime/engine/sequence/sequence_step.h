// One step of one sequence: its preparation, its place in the forward pass, its end.
//
// Decode steps of several sessions of a model are computed at once (model::forward_together). The thread that gets the turn prepares its
// own step. Then it gathers the steps of threads that wait for the turn, prepares them too, runs one forward pass, and ends each step. So a
// session waits for the step under way, and then for its own. A session's results, errors and exceptions are the same as in a step alone,
// and its allocations are charged to its account, whichever thread works. A gathered step whose session must settle first is handed back.
//
// Behind a step of several, whoever asks first waits for the other sessions that shared it, for 1 / kShareToAwait of the step's time.
//
// These steps take their turn alone: chunks of prompts, steps with guesses and drafts, steps on a backend without
// BackendInfo::decodes_together, and steps of sessions under some policies (Resident::steps_alone). If a step waits for transfers, the
// others would wait with it, where they cannot be cancelled. FetchOperations serve a step of one session.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

#include "runtime/backend/turn.h"
#include "runtime/base/allocation/account.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/sequence/sequence.h"
#include "runtime/model/forward/forward.h"

namespace orrery::engine {

inline constexpr uint64_t kShareToAwait = 4;

class SequenceStep final : public SharedWork, model::LayerHook {
 public:
  // The tokens of a step: prompt tokens, or a generated one; a generated one and its guesses; or a drafted one, `ahead` tokens behind
  // n_computed().
  enum class Rows : uint8_t { usual, guesses, draft };
  struct Request {
    Span<const int32_t> tokens;
    Phase phase = Phase::decode;
    const std::atomic<bool>* cancel = nullptr;
    int32_t n_logits = 0;
    float* logits = nullptr;  // (n_logits, n_vocab); null: the sequence's own row, at most one
    Shortlist* shortlist = nullptr;
    Rows rows = Rows::usual;
    float* embeddings = nullptr;  // (n_logits, n_embd): of guesses and drafts
    uint32_t ahead = 0;
    bool in_parts = false;             // computes the next part of the tokens: some layers (PromptPace)
    const float* hidden = nullptr;     // (tokens, n_embd): what the session of a head reads
    uint32_t second_from = INT32_MAX;  // Step::second_from
    float* normed = nullptr;           // (tokens, n_embd): receives the tokens' rows after the output norm; null: not wanted
    bool counts = false;               // SessionStats::generated_tokens
  };
  // The step of the token that push_generated() added last.
  static Request of_next_token(const Sequence& sequence, Shortlist* shortlist = nullptr, const std::atomic<bool>* cancel = nullptr) {
    Request request{{&sequence.tokens_.back(), 1}, Phase::decode, cancel, 1};
    request.shortlist = shortlist, request.counts = true;
    return request;
  }

  SequenceStep(Sequence* sequence, const Request& request);
  // Whether the step can share a pass with other sessions' steps.
  bool shares() const;
  // Takes a turn and computes the step. Of a step with guesses, only the first token becomes the session's.
  Status run();
  // Takes a turn and computes the steps, which share(), of different sessions of one model; at most kMostTogether. Then each has its
  // take_status().
  static void run_together(Span<SequenceStep* const> steps);
  // Rethrows what the step has thrown.
  Status take_status();

 private:
  // Whether a thread that has the turn may take the step from the thread that waits.
  bool may_join() const { return shares() && (!on_resident() || sequence_->resident()->settled()); }
  bool on_resident() const { return request_.phase == Phase::decode && (sequence_->decodes_resident() || request_.rows == Rows::draft); }
  bool failed() const { return thrown_ || !status_.ok(); }
  // Calls f() -> Status for the session. Its error and its exception become the step's.
  template <class F>
  void guarded(const F& f);
  // Prepares the step. may_settle: else a session that must settle sets hands_back_.
  Status begin(const Turn& turn, bool may_settle);
  void end(const Turn& turn);
  static void compute(const Turn& turn, Span<SequenceStep* const> steps);
  // One pass of the backend: compute() makes several where it takes fewer steps.
  static void compute_pass(const Turn& turn, Span<SequenceStep* const> live, Span<const Step> steps);
  static void gather_and_compute(const Turn& turn, Span<SequenceStep* const> own);

  Status before_attend(KvLayer layer, Ptr<const float> q, int64_t q_stride) override;
  bool in_all_groups() const override { return hook_->in_all_groups(); }
  bool looks_ahead() const override { return hook_->looks_ahead(); }
  Status before_layer(int32_t layer, Ptr<const float> next_q) override;

  Sequence* const sequence_;
  const Request request_;
  const uint32_t from_;  // position of the first token
  Status status_;
  std::exception_ptr thrown_;
  bool awaited_ = false;  // whether others wait for its session's next step
  bool begun_ = false, hands_back_ = false, ran_ = false;
  std::optional<Resident::Use> use_;  // from begin() to end()
  kv::StepPages pages_;
  Step step_;
  model::ForwardOutput out_;
  ShortlistRequest shortlist_;
  size_t row_ = 0;                          // of the logits of several steps' pass
  bool together_ = false;                   // computed in such a pass
  model::LayerHook* hook_ = nullptr;        // of the resident part
  model::Layers layers_;                    // that are computed
  uint64_t start_us_ = 0, forward_us_ = 0;  // the step's begin, and what its forward pass took
};

}  // namespace orrery::engine

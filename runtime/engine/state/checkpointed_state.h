// The part of a session's state that is not kept for every token, as a list of kinds (state_kind.h): the state of recurrent layers, which
// every token changes in place, and the rings of KV pages of layers with a window.
//
// The session's tokens are the truth, and the state is a cache of a prefix of them. The state knows how many tokens it holds, or that it
// holds none in particular (a step failed, or was given up). Checkpoints are copies of earlier states in host memory. Whoever needs the
// state of n tokens restores the latest checkpoint at or before n, and computes the tokens that follow (Sequence::catch_up). A state without
// a kind that is changed in place can be taken back as far as its kinds still hold the earlier state.
//
// Checkpoints are made every kEvery tokens, and at least kTail tokens before the end of a prompt: the next prompt of a conversation often
// parts from this one where the answer begins, or a few tokens before. They are made where a page of KV ends, so that the prefix tree can
// keep them with it. At most most_checkpoints() are kept: of the others the one goes that is closest to the one before it. Forks share
// them.
//
// Guessed tokens do not change the state of recurrent layers; their inputs are kept (backend/recurrent.h). Those that were right become the
// session's tokens, and the state is then behind them. The next step replays them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/engine/state/state_kind.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/sequence_pages.h"
#include "runtime/model/description/description.h"

namespace orrery::engine {

class CheckpointedState {
 public:
  static constexpr uint32_t kEvery = 2048, kTail = 16, kUnknown = UINT32_MAX;
  static constexpr size_t kMostCheckpoints = 8, kFewestCheckpoints = 2;
  static constexpr uint64_t kCheckpointBytes = uint64_t{1} << 30;  // of all checkpoints, if there are more than the fewest
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  struct Checkpoint {
    uint32_t n_tokens;
    Bytes bytes;
  };

  // Nothing, if the model has neither recurrent layers nor rings.
  static kv::Region layout(const model::Description& d, KvType kv_type);
  static kv::Region guesses_layout(const model::Description& d);  // of a session that guesses tokens; nothing without recurrent layers
  static size_t most_checkpoints(uint64_t bytes);
  CheckpointedState(const model::Description& d, KvType kv_type);
  // Of other kinds alone, which live as long.
  explicit CheckpointedState(std::vector<StateKind*> kinds) : kinds_(std::move(kinds)) {}
  CheckpointedState(const CheckpointedState&) = delete;
  CheckpointedState& operator=(const CheckpointedState&) = delete;

  // The places in the arena: of the state, and of the inputs of guessed tokens or empty; and the rings. All are empty while the session is
  // parked. Afterwards the state is unknown.
  void place(kv::ArenaRegion region, kv::ArenaRegion guesses, kv::SequencePages* pages) {
    floats_.place(std::move(region)), windows_.place(pages);
    guesses_ = std::move(guesses);
    position_ = kUnknown, n_guessed_ = 0;
  }
  // Of a copy: the state of recurrent layers, then the windows (kv::SequencePages::download_windows).
  uint64_t bytes() const;
  uint64_t float_bytes() const { return floats_.bytes(); }  // of recurrent layers; 0: there are none
  bool changed_in_place() const;                            // one of the kinds is

  // The number of tokens whose state it is, or kUnknown.
  uint32_t position() const { return position_; }
  // The number of tokens, at most n_tokens, that a step can go on from: it replays those behind position().
  uint32_t reach(uint32_t n_tokens) const {
    return position_ == kUnknown ? 0 : std::min(position_ + n_guessed_, std::max(n_tokens, position_));
  }
  // Whether the state is that of n_tokens, or all kinds still hold that of n_tokens and of the right guesses.
  bool reaches(uint32_t n_tokens) const;
  // The first number of tokens in (position(), reach] of which a checkpoint is due; 0: none.
  uint32_t due_before(uint32_t reach) const;
  // A step from `from` on changes the state, of which `from` is within reach. n_final: SequenceState::n_final. If it is complete, the state
  // is that of `position` tokens, and the inputs of n_guessed tokens behind them are kept.
  void begin_step(uint32_t from, int32_t n_final = 0);
  const SequenceState& step() const { return step_; }  // what begin_step() has begun
  void end_step(uint32_t position, uint32_t n_guessed = 0) { position_ = position, n_guessed_ = n_guessed; }
  // The step behind `position` tokens did not complete. Kinds that are not changed in place are what they were: rings have KV behind these
  // tokens.
  void undo_step(uint32_t position) {
    if (!changed_in_place()) position_ = position, n_guessed_ = 0;
  }
  // It is the state of no known number of tokens.
  void forget() { position_ = kUnknown, n_guessed_ = 0; }
  // The tokens behind n_tokens are not the session's any more.
  void truncate(uint32_t n_tokens);
  // Takes the latest checkpoint at or before n_tokens, or the state of no tokens, unless the state is that of at most n_tokens and later.
  Status restore(Backend* backend, uint32_t n_tokens);

  // The number of tokens, at most n_tokens, of the state from which restore(n_tokens) would go on.
  uint32_t nearest(uint32_t n_tokens) const;

  // Where a chunk of a prompt ends, of at most `most` tokens from `from` on. The prompt ends at `end`. The chunk ends where the prompt's
  // checkpoint is due, or else with a page, if it is not the prompt's last one and holds a page's end.
  uint32_t end_of_chunk(uint32_t from, uint32_t most, uint32_t end);
  // Whether a checkpoint is due: the prompt's, or kEvery tokens since the last one.
  bool due() const {
    return position_ != kUnknown && (position_ == prompts_ || (position_ % kPageTokens == 0 && position_ - last() >= kEvery));
  }
  Status checkpoint(Backend* backend);
  void add_checkpoint(uint32_t n_tokens, Bytes bytes);                         // ascending
  const std::vector<Checkpoint>& checkpoints() const { return checkpoints_; }  // ascending
  // A copy of the state, which has a position.
  Result<Bytes> read(Backend* backend) const;
  // Puts a copy back: that of n_tokens.
  Status put_back(Backend* backend, const Bytes& bytes, uint32_t n_tokens);
  // For a fork: the other's checkpoints, and its state if both have their places.
  void copy_from(Backend* backend, const CheckpointedState& other);
  void share_checkpoints(const CheckpointedState& other) { checkpoints_ = other.checkpoints_; }
  // For benchmarks: treats the state as that of n tokens.
  void assume(uint32_t n_tokens) { position_ = n_tokens, n_guessed_ = 0; }

 private:
  const Checkpoint* at_or_before(uint32_t n_tokens) const;
  uint32_t last() const { return checkpoints_.empty() ? 0 : checkpoints_.back().n_tokens; }

  RecurrentFloats floats_{0};
  RingWindows windows_{0};
  std::vector<StateKind*> kinds_;  // in the order of their copies; without those that the model lacks
  kv::ArenaRegion guesses_;
  uint32_t position_ = kUnknown;
  uint32_t n_guessed_ = 0;  // tokens behind position_, which is known then, whose inputs are kept; the wrong ones among them come last
  SequenceState step_;
  uint32_t prompts_ = kUnknown;          // where the checkpoint of the prompt under way is due
  std::vector<Checkpoint> checkpoints_;  // ascending
};

}  // namespace orrery::engine

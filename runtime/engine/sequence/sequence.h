// A sequence of tokens and their state: KV pages, the resident KV of a policy, recurrent states, the last logits. It computes prompt
// tokens in chunks (prefill) and generated tokens one at a time (decode). It can be cut, forked and parked.
//
// tokens() may have one token more than n_computed(): the last generated token, before its own step. Under a policy other than full the
// pages lie in the reservoir (host memory) and hold all KV. Prompts attend to the pages, exactly. Generated tokens attend to the resident
// KV.
//
// Each token remembers the phase that computed it. So computing it again gives the same KV for prompt tokens, and under policy full for all
// tokens. A generated token under another policy attended to the resident KV of its time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/allocation/account.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/resident/resident.h"
#include "runtime/engine/sequence/hidden_rows.h"
#include "runtime/engine/sequence/key_means.h"
#include "runtime/engine/sequence/page_feed.h"
#include "runtime/engine/sequence/prompt_pace.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/engine/shared/shortlist.h"
#include "runtime/engine/state/checkpointed_state.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/prefix_tree.h"
#include "runtime/kv/memory/sequence_pages.h"
#include "runtime/model/description/rope.h"
#include "runtime/os/os.h"

namespace orrery::engine {

struct SessionStats {
  uint64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  uint64_t guessed_tokens = 0, accepted_tokens = 0;  // tokens computed ahead; those of them that the sampler chose
  uint64_t restored_tokens = 0, folder_tokens = 0;   // of the reused tokens: from the prefix tree, from a folder of sessions
  uint64_t recomputed_tokens = 0;                    // for their recurrent state alone (Sequence::catch_up)
  uint64_t prefill_us = 0, decode_us = 0;
  uint64_t host_to_device_bytes = 0, device_to_host_bytes = 0;
};

// Whoever keeps something about a sequence's tokens beside it: a decoder.
class SequenceFollower {
 public:
  // A chunk of prompt tokens begins with this token.
  virtual Status before_chunk(int32_t first, const std::atomic<bool>* cancel) = 0;
  // The tokens behind n_tokens leave. The sequence still has them.
  virtual void before_cut(uint32_t n_tokens) = 0;

 protected:
  ~SequenceFollower() = default;
};

class Sequence {
 public:
  // A sequence is ready, or does one thing. Each way leads from `ready` or back to it.
  enum class Stage : uint8_t {
    parked,    // its KV lies in host memory alone, until resume(); a sequence begins here
    ready,     // its KV is that of n_computed() tokens
    arriving,  // its pages are read behind it (PageFeed), until finish_pages()
    chunk,     // some layers of a chunk of its prompt are computed
    ahead,     // guesses behind n_computed() are computed
    draft,     // drafted tokens stand behind n_computed(), until end_draft()
  };

  // Takes its memory: what session_layout() (session/plan.h) lists.
  static Result<std::unique_ptr<Sequence>> open(std::shared_ptr<LanguageModel> model, const SessionOptions& options, uint32_t n_context);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  // follower: null, or one that lives as long as the sequence is used.
  void set_follower(SequenceFollower* follower) { follower_ = follower; }

  const LanguageModel& model() const { return *model_; }
  const SessionOptions& options() const { return options_; }
  uint32_t n_context() const { return n_context_; }
  Stage stage() const { return stage_; }
  bool parked() const { return stage_ == Stage::parked; }
  Span<const int32_t> tokens() const { return tokens_; }
  Span<const uint8_t> made() const { return made_; }                                   // of each token: how its KV is made (kv::Made)
  uint32_t n_computed() const { return n_computed_.load(std::memory_order_relaxed); }  // from any thread
  uint64_t owner() const { return owner_; }                                            // of pages that are not everybody's
  // Whether the sequence was loaded, parked or cut, so that its next generated token selects the resident KV again.
  bool selects_again() const { return selects_again_; }
  const SessionStats& stats() const { return stats_; }
  SessionStats& stats() { return stats_; }
  uint64_t used_bytes() const;    // of KV on the device that holds tokens; 0 while parked
  uint64_t shared_bytes() const;  // of pages shared with forks
  // Tokens that a KV head holds on the device; 0 while parked. head: layer * n_kv_heads + KV head.
  uint32_t held_tokens(uint32_t head) const {
    if (parked()) return 0;
    return device_.resident ? device_.resident->held_tokens(head) : n_computed();
  }
  const CheckpointedState* state() const { return state_.get(); }      // null: the model keeps KV of all tokens alone
  const Resident* resident() const { return device_.resident.get(); }  // null for policy full, and while parked
  Resident* resident() { return device_.resident.get(); }
  const kv::SequencePages& pages() const { return *device_.pages; }  // not parked
  const model::RopeTables& ropes() const { return ropes_; }
  // How the KV of its tokens is stored.
  const StoredForm& form() const { return form_; }
  KvTransform transform() const {
    return {form_.means ? Ptr<const float>{device_.means.data().address} : Ptr<const float>(), form_.rotated};
  }
  // A hash of what decides the KV's bytes besides the model and the tokens: RoPE, formats, form and adapters.
  std::array<uint8_t, 16> formats() const;
  // Whether generated tokens attend to the resident KV.
  bool decodes_resident() const { return device_.resident && options_.speculate != Speculate::policy; }

  // Cutting -----------------------------------------------------------------------------------------------
  // Keeps the longest common prefix of tokens() and `wanted`. Returns its length.
  uint32_t reuse_prefix(Span<const int32_t> wanted);
  // Never fails. n_tokens is at most the number of tokens. To no tokens: pages that are still read are given up.
  void truncate(uint32_t n_tokens);
  // Drops the guessed tokens that are computed ahead.
  void drop_ahead();
  void drop_part();

  // Prompts -----------------------------------------------------------------------------------------------
  // Computes prompt tokens. If cancelled, it has computed whole chunks of them. logits: (n, n_vocab) of all tokens, or null.
  Status prefill(Span<const int32_t> tokens, const std::atomic<bool>* cancel, float* logits);
  // Computes one chunk: at most options().chunk() tokens. shortlist: null, or a request to fetch instead of the last token's logits. It
  // arrives if the backend has shortlists.
  Status prefill_chunk(Span<const int32_t> tokens, const std::atomic<bool>* cancel, bool want_logits, float* logits,
                       Shortlist* shortlist = nullptr);
  // Computes the next part of a chunk: some layers of its tokens. True: it is complete. Else the next call has the same arguments, or
  // drop_part() gives the part up. Between two calls other sessions may take their turns.
  Result<bool> prefill_part(Span<const int32_t> tokens, const std::atomic<bool>* cancel, bool want_logits, float* logits,
                            Shortlist* shortlist = nullptr);
  // The number of tokens of the chunk under way, or of the next chunk if `left` tokens are to be computed.
  uint32_t next_chunk(size_t left, bool all_logits = false);
  // Computes the next part of a chunk without logits, as prefill_part() does. normed: (tokens, n_embd), complete when the chunk is: the
  // tokens' rows after the output norm.
  // second_from: Step::second_from.
  Result<bool> embed_part(Span<const int32_t> tokens, const std::atomic<bool>* cancel, float* normed, uint32_t second_from);
  uint32_t part_done() const { return pace_.done(); }  // of the chunk under way, in tokens
  // For benchmarks of contexts that would take hours to compute: treats prompt tokens as computed, with invented KV pages from `fill`. The
  // sequence is empty before.
  using FillPage = std::function<void(uint32_t page, Span<std::byte> bytes)>;
  Status assume_prompt(Span<const int32_t> tokens, const FillPage& fill);

  // Generated tokens --------------------------------------------------------------------------------------
  // Adds a generated token, which decode() will compute.
  void push_generated(int32_t token) { tokens_.push_back(token), made_.push_back(kv::Made::kGenerated); }
  // Computes the token that push_generated() added. `cancel` ends settling and waits for other sessions' turns and for the link. Then the
  // status is cancelled, and the token is not computed yet.
  Status decode(Shortlist* shortlist = nullptr, const std::atomic<bool>* cancel = nullptr);
  // It computes no token soon: sequences that shared its last step do not wait for it. stays_away(): from any thread or signal handler.
  void leave_steps() { member_.leave(); }
  void stays_away() { member_.stays_away(); }
  // Makes logits() belong to the last computed token, and computes that token again if they do not. After an error, or if cancelled as
  // decode() is, the sequence no longer holds that token.
  Status refresh_logits(Shortlist* shortlist = nullptr, const std::atomic<bool>* cancel = nullptr);

  // For a decoder: tokens that may not stay. Rows of logits (n, n_vocab) and embeddings (n, n_embd) go to the decoder.
  struct OutRows {
    float* logits;
    float* embeddings;
  };
  // Computes tokens[0], which push_generated() added, as decode() does, and the guesses behind it.
  Status decode_ahead(Span<const int32_t> tokens, const OutRows& rows, const std::atomic<bool>* cancel);
  uint32_t n_ahead() const { return n_ahead_; }  // guesses that are computed
  // The next guess is the token that push_generated() added: it is computed. Its row of logits and its embedding.
  void take_ahead(const float* logits, const float* embedding);
  // Computes the last of tokens() by the resident KV, as a draft behind the earlier drafts. The caller adds its choice by push_generated().
  Status decode_draft(const OutRows& row, const std::atomic<bool>* cancel);
  void end_draft();  // removes the drafted tokens
  // Of the model's head: computes tokens that read hidden states (tokens, n_embd).
  Status read_hidden(Span<const int32_t> tokens, const float* hidden, bool want_logits, const std::atomic<bool>* cancel);
  HiddenRows* hidden() { return hidden_.get(); }  // null: options().speculate is not mtp

  // The keys of all computed tokens that some of the last queries attend to most (Resident::top_page_keys). invalid_argument under policies
  // that keep no queries.
  Status top_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule);
  // How much they attend to the keys; errors as above.
  Status key_weights(Span<const policy::WeightsQuery> queries);

  // The last logits ---------------------------------------------------------------------------------------
  bool has_logits() const { return n_computed() > 0 && logits_at_ == n_computed(); }
  // Copies logits and embedding from the device, if a step with a shortlist exported them there.
  Status fetch_logits(const Cancel& cancel = {});
  size_t n_logits() const { return logits_.size(); }
  size_t n_embedding() const { return embedding_.size(); }
  // Fetches the further data that the last step's shortlist wants. False: the logits are no longer on the device.
  Result<bool> fetch_more(Shortlist* shortlist, const Cancel& cancel = {});
  // (n_vocab) and (n_embd), if has_logits(). Empty while they are on the device alone.
  Span<const float> logits() const { return here(logits_); }
  Span<const float> embedding() const { return here(embedding_); }

  // Fork and park -----------------------------------------------------------------------------------------
  // A sequence with the same tokens, which shares its pages; parked where the device has no room. cancel: as of finish_pages().
  Result<std::unique_ptr<Sequence>> fork(const Cancel& cancel = {});
  // Takes device memory again if parked.
  Status resume();
  // Uses other adapters from now on. If they differ, the sequence has no tokens.
  void set_adapters(Adapters adapters) { options_.adapters = std::move(adapters); }

  // Pages that come and go --------------------------------------------------------------------------------
  // The sequence is not parked in any of these calls.
  // Makes the recurrent state that of all computed tokens, if right guesses are all that it lacks.
  Status complete_state(const std::atomic<bool>* cancel);
  Result<CheckpointedState::Bytes> read_state() const;
  // Appends the state of the resident part; nothing where generated tokens attend to the pages.
  Status save_resident(std::vector<std::byte>* out) const;
  // Before pages of prompt tokens come behind `from` computed tokens: waits for pages that are read behind, and chooses the form of a first
  // token's KV. False: the tokens have changed.
  Result<bool> prepare_pages(uint32_t from, const std::atomic<bool>* cancel);
  // Takes the bytes of pages [page, end) behind `from` tokens, which stay the sequence's until take_tokens(), or drop_pages().
  Status put_pages(uint32_t from, uint32_t page, uint32_t end, const std::function<const std::byte*(uint32_t page)>& bytes_of,
                   const std::atomic<bool>* cancel);
  void drop_pages(uint32_t from) { device_.pages->truncate(from); }
  // The tokens behind `from` become `tokens`, whose pages are there. made: (tokens.size()). state: of all tokens; null: the caller has none.
  void take_tokens(uint32_t from, Span<const int32_t> tokens, Span<const uint8_t> made, CheckpointedState::Bytes state);
  void set_made(uint32_t first, uint32_t end, uint8_t made) { std::fill(made_.begin() + first, made_.begin() + end, made); }
  // Before a file's tokens, of a sequence without tokens: takes their form (true), or the sequence's own, to which the pages must be changed
  // (false). It is the sequence's own where it stores plain KV, and where it has slots of four bits beside finer pages.
  Result<bool> begin_load(const StoredForm& loaded, uint32_t n_tokens);
  // Takes a state that Resident::check() has found right.
  Status take_resident(Span<const std::byte> state, uint32_t n_tokens, std::unique_ptr<policy::Policy> checked);
  void set_selects_again(bool selects_again) { selects_again_ = selects_again; }
  // The last token's logits and embedding, of any alignment.
  void set_logits(const std::byte* floats);
  // Copies pages from `first` on, in a turn of its own: each to its place, or all to one place, or from there.
  Status download_pages(uint32_t first, Span<std::byte* const> to) const;
  Status download_pages(uint32_t first, uint32_t end, std::byte* to) const;
  Status upload_pages(uint32_t first, uint32_t end, const std::byte* from, const Cancel& cancel = {}) const;
  // The pages of all tokens are read behind the sequence from now on.
  Status read_behind(PageFeed::Read read);
  // Waits for pages that are read behind the sequence, if they are. An error of reading them, once: then the sequence has lost its tokens.
  Status finish_pages(const Cancel& cancel = {});
  // The same, where no error can be returned: the next finish_pages() returns it.
  void finish_pages_later() { late_ = finish_pages(); }

 private:
  friend class SequenceStep;
  Sequence(std::shared_ptr<LanguageModel> model, const SessionOptions& options, uint32_t n_context);
  static constexpr auto kTokensOfPage = static_cast<uint32_t>(kPageTokens);
  // A ready sequence begins one thing. internal: another one is under way.
  Status enter(Stage next) {
    if (stage_ != Stage::ready && stage_ != next) return error(Code::internal, "a sequence does two things at once");
    stage_ = next;
    return ok_status();
  }
  Span<const float> here(const std::vector<float>& row) const { return row_waits_ ? Span<const float>() : Span<const float>(row); }
  // Takes session slot, page reservation, page table, workspace and resident part.
  Status acquire();
  Status park_copy_of(const Sequence& other);
  // Before a first token: the form that the options and the model give.
  Status choose_form(const Turn& turn, const std::atomic<bool>* cancel);
  void upload_means(Backend* backend);
  // Readies the backend for steps outside SequenceStep.
  Status prepare_backend(const Turn& turn) const;
  // Makes the recurrent state that of n_tokens, of which the KV is there: takes an earlier state, and computes the tokens that follow
  // again. Of right guesses the next step replays the inputs; whole: they are in the state, too.
  Status catch_up(const Turn& turn, uint32_t n_tokens, const std::atomic<bool>* cancel, bool whole = false);
  // Computes tokens of the sequence again for their queries. Their KV does not change.
  Status recover_queries(const Turn& turn, uint32_t n_tokens, const std::atomic<bool>* cancel);
  // Computes tokens [from, from + n) of the sequence again, in one step.
  Status compute_again(const Turn& turn, Phase phase, uint32_t from, uint32_t n, const std::atomic<bool>* cancel, const QueryRing& queries,
                       model::LayerHook* hook, CheckpointedState* state);
  void cut_tokens(uint32_t n_tokens);  // of tokens_ alone
  // Of a step with guesses: the row of its next token.
  void end_decode(const float* logits, const float* embedding);
  void add_prompt_tokens(Span<const int32_t> tokens);  // which a chunk has computed
  template <class F>
  Status ask_resident(const F& f);  // f(), within a turn and a Use

  // All that a parked sequence lacks.
  struct DevicePart {
    SessionSlot slot;
    std::array<kv::PageReservation, size_t{kMostKvGroups}> reservations;  // of each KV group
    std::unique_ptr<kv::SequencePages> pages;
    std::unique_ptr<Resident> resident;  // null for full
    kv::ArenaRegion means;               // of form_.means, where the options centre keys
  };
  // All that a parked sequence has instead.
  struct ParkedPart {
    os::Region pages;                 // (pages of n_computed, page_bytes)
    std::vector<std::byte> resident;  // the state of the resident part; empty for policy full
  };

  const AccountRef account_ = AccountRef::current();  // the session's, for steps that another thread computes
  std::shared_ptr<LanguageModel> model_;
  Member member_;  // of the sequences that compute steps together
  SessionOptions options_;
  uint32_t n_context_;
  SequenceFollower* follower_ = nullptr;
  model::RopeTables ropes_;
  Stage stage_ = Stage::parked;
  DevicePart device_;
  ParkedPart parked_;
  bool selects_again_ = false;
  StoredForm form_;                           // of the tokens' KV
  std::unique_ptr<CheckpointedState> state_;  // null: the model keeps KV of all tokens alone
  uint64_t owner_;                            // of pages that are not everybody's; forks have the same
  std::vector<int32_t> tokens_;               // room for n_context + 1
  std::vector<uint8_t> made_;                 // of each token of tokens_: how its KV is made (kv::Made)
  std::atomic<uint32_t> n_computed_{0};
  uint32_t n_ahead_ = 0;                // guesses that are computed behind n_computed_; not 0 in Stage::ahead alone
  uint32_t logits_at_ = 0;              // the n_computed() that logits_ belongs to; 0: none
  std::vector<float> logits_;           // (n_vocab)
  std::vector<float> embedding_;        // (n_embd)
  std::atomic<bool> row_waits_{false};  // logits and embedding are still on the device (WaitingRows)
  PromptPace pace_;
  std::vector<Row> rows_;               // room for a chunk, or for a token and its guesses
  std::unique_ptr<HiddenRows> hidden_;  // null: options().speculate is not mtp
  SessionStats stats_;
  std::unique_ptr<PageFeed> feed_;  // last: its thread uses the members above. null: all pages are there
  Status late_;                     // of a feed that has ended in truncate(): for the next finish_pages()
};

}  // namespace orrery::engine

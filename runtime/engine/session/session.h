// A session: one sequence of tokens, its KV, and the conversation that the tokens come from. Prefill computes prompt tokens in chunks,
// decode computes generated tokens one at a time. A session can rewind, fork, park and be saved.
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
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/allocation/account.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/folder/folder.h"
#include "runtime/engine/session/key_means.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/engine/resident/resident.h"
#include "runtime/engine/session/guesses.h"
#include "runtime/engine/session/page_feed.h"
#include "runtime/engine/session/prompt_pace.h"
#include "runtime/engine/shared/shortlist.h"
#include "runtime/engine/shared/vocabulary.h"
#include "runtime/engine/state/checkpointed_state.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/sequence_pages.h"
#include "runtime/kv/memory/plan.h"
#include "runtime/kv/memory/prefix_tree.h"
#include "runtime/model/description/rope.h"
#include "runtime/os/os.h"
#include "runtime/text/json/value.h"

namespace orrery::engine {

// The messages, and the template that renders them.
struct Conversation {
  std::vector<text::Value> messages;     // maps with at least "role" and "content"
  size_t n_dropped = 0;                  // oldest non-system messages that have left the context (Overflow::drop_oldest)
  std::optional<ChatRenderer> renderer;  // made when it is first used
  TemplateChoice choice;
};

struct SessionStats {
  uint64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  uint64_t guessed_tokens = 0, accepted_tokens = 0;  // tokens computed ahead; those of them that the sampler chose
  uint64_t restored_tokens = 0, folder_tokens = 0;   // of the reused tokens: from the prefix tree, from a folder of sessions
  uint64_t recomputed_tokens = 0;                    // for their recurrent state alone (Session::catch_up)
  uint64_t prefill_us = 0, decode_us = 0;
  uint64_t host_to_device_bytes = 0, device_to_host_bytes = 0;
};

// What an answer knows about its next tokens: chooses tokens of a draft as the sampler would, and checks guesses.
class Drafter {
 public:
  // The token that would follow `tokens`; -1: none.
  virtual int32_t draft(Span<const float> logits, Span<const int32_t> tokens) = 0;
  // The likeliest token that may follow `guesses`, by a draft model's logits; -1: none.
  virtual int32_t likeliest(Span<const float> logits, Span<const int32_t> guesses) = 0;
  // The number of first `guesses` that the answer may hold.
  virtual size_t n_allowed(Span<const int32_t> guesses) = 0;
  // Tokens that the answer's form demands, most of them at most. Returns their number.
  virtual size_t forced(int32_t* tokens, size_t most) = 0;

 protected:
  ~Drafter() = default;
};

class Session {
 public:
  // The host memory of every session: tokens, page table, logits, and the sampler of its generations.
  static kv::Layout layout(const model::Description& h, const SessionOptions& options, uint32_t n_context);
  static Result<std::unique_ptr<Session>> open(std::shared_ptr<LanguageModel> model, SessionOptions options);
  ~Session();

  const LanguageModel& model() const { return *model_; }
  const SessionOptions& options() const { return options_; }
  uint32_t n_context() const { return n_context_; }
  Span<const int32_t> tokens() const { return tokens_; }
  uint32_t n_computed() const { return n_computed_.load(std::memory_order_relaxed); }  // from any thread
  bool parked() const { return !pages_; }
  const char* policy() const { return policy_; }  // static
  double kv_share() const { return kv_share_; }   // what the policy may keep of full KV's bytes
  // Whether the session was loaded, parked or cut, so that its next generated token selects the resident KV again.
  bool selects_again() const { return selects_again_; }
  const Session* drafting() const { return draft_.get(); }  // the session of the draft model or the head; null without one
  const SessionStats& stats() const { return stats_; }
  SessionStats& stats() { return stats_; }
  uint64_t kv_bytes() const;         // KV and its summaries on the device; 0 while parked
  uint64_t kv_used_bytes() const;    // the part of kv_bytes() that holds tokens
  uint64_t kv_shared_bytes() const;  // of pages shared with forks
  // Tokens that a KV head holds on the device; 0 while parked. head: layer * n_kv_heads + KV head.
  uint32_t held_tokens(uint32_t head) const {
    if (parked()) return 0;
    return resident_ ? resident_->held_tokens(head) : n_computed();
  }
  const CheckpointedState* state() const { return state_.get(); }  // null: the model keeps KV of all tokens alone
  const Resident* resident() const { return resident_.get(); }     // null for policy full, and while parked
  Resident* resident() { return resident_.get(); }
  uint64_t reservoir_bytes() const;  // KV in host memory; 0 for policy full, and while parked
  Conversation& conversation() { return conversation_; }
  const Conversation& conversation() const { return conversation_; }

  // How the KV of its tokens is stored.
  KvTransform transform() const {
    return {form_.means ? Ptr<const float>{means_region_.data().address} : Ptr<const float>(), form_.rotated};
  }

  // Keeps the longest common prefix of tokens() and `wanted`. Returns its length.
  uint32_t reuse_prefix(Span<const int32_t> wanted);
  // Behind the held tokens, a prefix of `wanted`: takes the KV of the next pages from the prefix tree. If cancelled, or after an error,
  // the session holds the tokens as before.
  Status find_prefix(Span<const int32_t> wanted, const std::atomic<bool>* cancel);
  // The same, from the folder of the options.
  Status find_in_folder(Span<const int32_t> wanted, const std::atomic<bool>* cancel);
  // Keeps the KV of the held tokens in the prefix tree, as far as it has room.
  void keep_prefix() noexcept;
  // cancel: of waiting for pages (finish_pages()). Then the session is as before.
  Status rewind(uint32_t n_tokens, const Cancel& cancel = {});
  // Never fails. n_tokens is at most the number of tokens. To no tokens: pages that are still read are given up.
  void truncate(uint32_t n_tokens);

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
  void drop_part();
  // Adds a generated token, which decode() will compute.
  void push_generated(int32_t token) { tokens_.push_back(token), made_.push_back(kv::Made::kGenerated); }
  // Computes the token that push_generated() added. `cancel` ends settling and waits for other sessions' turns and for the link. Then the
  // status is cancelled, and the token is not computed yet.
  // With options().speculate, the step also computes up to `most_guesses` tokens that may follow. When push_generated() adds the guessed
  // token, the next decode() has its logits already. Guesses change no token, no logit and no KV of the session. drafter: chooses the
  // drafted tokens of Speculate::policy; null: the likeliest. Speculate::draft and mtp take the likeliest.
  Status decode(Shortlist* shortlist = nullptr, const std::atomic<bool>* cancel = nullptr, uint32_t most_guesses = 0,
                Drafter* drafter = nullptr);
  // The calls of decode() for several sessions of one model, at most kMostTogether. Their steps are computed at once; none makes guesses.
  // Sets each call's status and exception. A call changes its session as decode() does.
  struct DecodeCall {
    Session* session = nullptr;
    Shortlist* shortlist = nullptr;
    const std::atomic<bool>* cancel = nullptr;
    Status status;
    std::exception_ptr thrown;
  };
  static void decode_together(Span<DecodeCall> calls);
  // Whether decode_together() may take the session, which has a token to compute.
  bool decodes_together() const;
  // It computes no token soon: sessions that shared its last step do not wait for it. stays_away(): from any thread or signal handler.
  void leave_steps() { member_.leave(); }
  void stays_away() { member_.stays_away(); }
  // Drops the guessed tokens that are computed ahead.
  void forget_guesses();
  // Makes logits() belong to the last computed token, and computes that token again if they do not. After an error, or if cancelled as
  // decode() is, the session no longer holds that token.
  Status refresh_logits(Shortlist* shortlist = nullptr, const std::atomic<bool>* cancel = nullptr);

  // The keys of all computed tokens that some of the last queries attend to most (Resident::top_page_keys). invalid_argument under policies
  // that keep no queries.
  Status top_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule);
  // How much they attend to the keys; errors as above.
  Status key_weights(Span<const policy::WeightsQuery> queries);

  // For benchmarks of contexts that would take hours to compute: treats prompt tokens as computed, with invented KV pages from `fill`. The
  // session is empty before.
  using FillPage = std::function<void(uint32_t page, Span<std::byte> bytes)>;
  Status assume_prompt(Span<const int32_t> tokens, const FillPage& fill);

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

  Result<std::unique_ptr<Session>> fork(const Cancel& cancel = {});  // cancel: as of rewind()
  // Takes device memory again if parked.
  Status resume();
  // Uses other adapters from now on. If they differ, the session drops its tokens: their KV is that of the old ones.
  Status set_adapters(Adapters adapters);
  // Waits for pages that are read behind the session (SessionFile::Pages::behind), if they are. An error of reading them, once: then the
  // session has lost its tokens, and keeps its conversation.
  Status finish_pages(const Cancel& cancel = {});

  // Enters the session: one call at a time. While a generation is under way, calls only read (capi checks that).
  bool try_enter() {
    if (in_call_.exchange(true, std::memory_order_acquire)) return false;
    caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void leave() {
    caller_.store(std::thread::id(), std::memory_order_relaxed);
    in_call_.store(false, std::memory_order_release);
  }
  // Whether this thread is inside a call already: in a callback, or after a callback that never returned.
  bool entered_here() const { return caller_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  bool generating() const { return generating_; }
  // A generation begins; it stops when its flag is set. null: it has ended.
  void set_generating(std::atomic<bool>* stop) {
    generating_ = stop != nullptr;
    set_stop(stop);
  }
  // Sets the flag of the work that runs now: a generation, or a call within a Stoppable. Does nothing if nothing runs. From any thread.
  void stop_running() {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    if (stop_) stop_->store(true, std::memory_order_relaxed);
  }
  // A call that may take long, on a session without a generation under way.
  class Stoppable {
   public:
    explicit Stoppable(Session* session) : session_(session) { session_->set_stop(&session->call_stop_); }
    ~Stoppable() { session_->set_stop(nullptr); }
    Stoppable(const Stoppable&) = delete;
    Stoppable& operator=(const Stoppable&) = delete;
    const std::atomic<bool>* flag() const { return &session_->call_stop_; }

   private:
    Session* session_;
  };

 private:
  void set_stop(std::atomic<bool>* stop) {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    call_stop_.store(false, std::memory_order_relaxed);
    stop_ = stop;
  }
  Span<const float> here(const std::vector<float>& row) const { return row_waits_ ? Span<const float>() : Span<const float>(row); }
  friend class SessionFile;
  friend class SessionStep;
  Session(std::shared_ptr<LanguageModel> model, const SessionOptions& options, uint32_t n_context);
  void tell(const kv::Plan& plan, const SessionOptions& wanted) const;
  // Takes session slot, page reservation, page table, workspace and resident part.
  Status acquire();
  Status park_copy_of(const Session& other);
  // Appends the state of the resident part; nothing where generated tokens attend to the pages.
  Status save_resident(std::vector<std::byte>* out) const;
  // Takes a state that Resident::check() has found right.
  Status take_resident(Span<const std::byte> state, uint32_t n_tokens, std::unique_ptr<policy::Policy> checked);
  // Before a first token: the form that the options and the model give.
  Status choose_form(const Turn& turn, const std::atomic<bool>* cancel);
  // Before a file's tokens: takes their form (true), or the session's own, to which the pages must be changed (false). It is the session's
  // own where the session stores plain KV, and where it has slots of four bits beside finer pages.
  Result<bool> take_form(const Turn& turn, const StoredForm& loaded);
  void upload_means(Backend* backend);
  kv::PrefixTree::Key prefix_key() const;
  EntryKey folder_key(const Folder& folder) const;
  // Whether find_prefix() and find_in_folder() may have a use: `wanted` goes on for a page behind `from` computed tokens. Waits for pages
  // that are read behind, and chooses the form of a first token's KV.
  Result<bool> may_find(Span<const int32_t> wanted, uint32_t from, const std::atomic<bool>* cancel);
  // Takes the bytes of pages [page, end) behind `from` tokens, which stay the session's until it takes the pages' tokens.
  Status put_pages(const Turn& turn, uint32_t from, uint32_t page, uint32_t end,
                   const std::function<const std::byte*(uint32_t page)>& bytes_of);
  // Of an entry of the folder, whose first n_pages pages have the first tokens of `wanted`: all of them, or those before the first damaged
  // one.
  Status take_found(const Folder::Found& found, Span<const int32_t> wanted, const std::atomic<bool>* cancel);
  // Makes the recurrent state that of n_tokens, of which the KV is there: takes an earlier state, and computes the tokens that follow
  // again. Of right guesses the next step replays the inputs; whole: they are in the state, too.
  Status catch_up(const Turn& turn, uint32_t n_tokens, const std::atomic<bool>* cancel, bool whole = false);
  // Makes the recurrent state that of all computed tokens, if right guesses are all that it lacks.
  Status complete_state(const std::atomic<bool>* cancel);
  // Computes tokens of the session again for their queries. Their KV does not change.
  Status recover_queries(const Turn& turn, uint32_t n_tokens, const std::atomic<bool>* cancel);
  Status decode_next(int32_t token, Shortlist* shortlist, const std::atomic<bool>* cancel, uint32_t most_guesses, Drafter* drafter);
  // Fills guesses_->tokens() with a token and its draft. Returns the number of drafted tokens.
  Result<size_t> draft(int32_t token, size_t n, const std::atomic<bool>* cancel, Drafter* drafter);
  Status open_draft();
  void add_prompt_tokens(Span<const int32_t> tokens);  // which a chunk has computed
  // The token that a draft model or a head chooses behind n_drafted tokens of a draft; -1: none.
  int32_t likeliest_draft(Span<const float> logits, size_t n_drafted, Drafter* drafter) const;
  // Lets the head read the hidden states that wait. next: the token behind the computed ones. wants_logits: the head's session then has the
  // logits behind it, and its own hidden state.
  Status feed_head(int32_t next, bool wants_logits, const std::atomic<bool>* cancel);
  // Fills guesses_->tokens() with at most n tokens that the head chooses behind tokens().
  Result<size_t> draft_by_head(size_t n, const std::atomic<bool>* cancel, Drafter* drafter);
  // Fills guesses_->tokens() with n tokens that the draft model chooses behind tokens().
  Result<size_t> draft_by_model(size_t n, const std::atomic<bool>* cancel, Drafter* drafter);
  Status follow(Span<const int32_t> tokens, const std::atomic<bool>* cancel);  // a draft session computes all of them but the last
  GuessCosts guess_costs() const;
  // Whether generated tokens attend to the resident KV.
  bool decodes_resident() const { return resident_ && options_.speculate != Speculate::policy; }

  const AccountRef account_ = AccountRef::current();  // the session's, for steps that another thread computes
  std::shared_ptr<LanguageModel> model_;
  Member member_;  // of the sessions that compute steps together
  SessionOptions options_;
  uint32_t n_context_;
  kv::Layout layout_;  // the session's own regions, for statistics
  model::RopeTables ropes_;
  SessionSlot slot_;
  std::array<kv::PageReservation, size_t{kMostKvGroups}> reservations_;  // of each KV group
  std::unique_ptr<kv::SequencePages> pages_;                             // null while parked
  std::unique_ptr<Resident> resident_;                                   // null for full, and while parked
  const char* policy_ = "full";
  double kv_share_ = 1;
  bool selects_again_ = false;
  StoredForm form_;                           // of the tokens' KV
  kv::ArenaRegion means_region_;              // of form_.means, where the options centre keys; empty while parked
  std::unique_ptr<CheckpointedState> state_;  // null: the model keeps KV of all tokens alone
  os::Region parked_pages_;                   // (pages of n_computed, page_bytes) while parked
  std::vector<std::byte> parked_state_;       // of the resident part, while parked; empty for policy full
  uint64_t owner_;                            // of pages that are not everybody's; forks have the same
  std::vector<int32_t> tokens_;               // room for n_context + 1
  std::vector<uint8_t> made_;                 // of each token of tokens_: how its KV is made (kv::Made)
  std::atomic<uint32_t> n_computed_{0};
  uint32_t logits_at_ = 0;              // the n_computed() that logits_ belongs to; 0: none
  std::vector<float> logits_;           // (n_vocab)
  std::vector<float> embedding_;        // (n_embd)
  std::atomic<bool> row_waits_{false};  // logits and embedding are still on the device (WaitingRows)
  PromptPace pace_;
  std::vector<Row> rows_;               // room for a chunk, or for a token and its guesses
  std::unique_ptr<Guesses> guesses_;    // null: options().speculate is off
  std::unique_ptr<Session> draft_;      // of a draft model or a head, or null. Its tokens follow before each draft (follow(), feed_head())
  std::unique_ptr<HiddenRows> hidden_;  // null: options().speculate is not mtp
  uint32_t head_base_ = 0;              // position of the head's first cell
  Conversation conversation_;
  SessionStats stats_;
  std::atomic<bool> in_call_{false};
  std::atomic<std::thread::id> caller_{};  // while in_call_
  bool generating_ = false;                // changes while in_call_
  std::mutex stop_mutex_;                  // guards stop_: the flag lives as long as stop_ points to it
  std::atomic<bool>* stop_ = nullptr;      // the flag of the work that runs now
  std::atomic<bool> call_stop_{false};     // of a Stoppable: here, because a callback may leave its stack by longjmp()
  std::unique_ptr<PageFeed> feed_;         // last: its thread uses the members above. null: all pages are there
  Status late_;                            // of a feed that has ended in truncate(): for the next finish_pages()
};

}  // namespace orrery::engine

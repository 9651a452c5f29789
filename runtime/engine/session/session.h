// One sequence of tokens and its KV, with the conversation that they come from.  Advances by prefill (prompt tokens,
// in chunks) and decode (generated tokens, one at a time); rewinds, forks, parks, saves.
//
// tokens() may be one longer than what is computed: the last generated token, before its own step has run.
// Under a policy other than full the pages lie in the reservoir (host memory) and hold everything: prompts attend to
// them, exactly. Generated tokens attend to the resident part, which the policy chooses of them.
//
// Each token remembers which phase computed it, so that recomputing it gives the same KV again: that of prompt tokens, and
// under policy full of all. A generated token under another policy attended to what was resident then.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/engine/resident/resident.h"
#include "runtime/engine/shared/shortlist.h"
#include "runtime/engine/shared/vocabulary.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/kv/memory/plan.h"
#include "runtime/model/rope.h"
#include "runtime/os/os.h"
#include "runtime/text/json/value.h"

namespace orrery::engine {

// The messages, and how they become a prompt.
struct Conversation {
  std::vector<text::Value> messages;       // maps with at least "role" and "content"
  size_t n_dropped = 0;                    // oldest non-system messages that left the context (Overflow::drop_oldest)
  std::optional<ChatRenderer> renderer;    // made at the first use
  TemplateChoice choice;
};

struct SessionStats {
  uint64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0;
  uint64_t prefill_us = 0, decode_us = 0;
  uint64_t host_to_device_bytes = 0, device_to_host_bytes = 0;
};

class Session {
 public:
  // Host memory that every session takes beside its KV: tokens, page table, logits, and the sampler of its generations.
  static kv::Layout layout(const model::Hyperparameters& h, uint32_t n_context);
  static Result<std::unique_ptr<Session>> open(std::shared_ptr<LanguageModel> model, SessionOptions options);
  ~Session();

  const LanguageModel& model() const { return *model_; }
  const SessionOptions& options() const { return options_; }
  uint32_t n_context() const { return n_context_; }
  Span<const int32_t> tokens() const { return tokens_; }
  uint32_t n_computed() const { return n_computed_.load(std::memory_order_relaxed); }   // from any thread
  bool parked() const { return !table_; }
  const SessionStats& stats() const { return stats_; }
  SessionStats& stats() { return stats_; }
  uint64_t kv_bytes() const;               // KV on the device: pages, or the resident part of a compressed session
  uint64_t kv_used_bytes() const;          // of those, what holds tokens
  uint64_t kv_shared_bytes() const;        // of pages shared with forks
  const Resident* resident() const { return resident_.get(); }     // null for policy full, and while parked
  Resident* resident() { return resident_.get(); }
  uint64_t reservoir_bytes() const;        // KV in host memory; 0 for policy full
  Conversation& conversation() { return conversation_; }
  const Conversation& conversation() const { return conversation_; }

  // Keeps the longest common prefix of what is held and `wanted`; returns its length.
  uint32_t reuse_prefix(Span<const int32_t> wanted);
  Status rewind(uint32_t n_tokens);
  void truncate(uint32_t n_tokens);        // never fails; n_tokens at most what is held

  // Computes prompt tokens, all of them or, cancelled, whole chunks of them. `progress(done)` after each chunk; false
  // cancels. logits: (n, n_vocab) of every token, or null.
  Status prefill(Span<const int32_t> tokens, const std::atomic<bool>* cancel, float* logits);
  // One chunk of it: at most options().chunk() tokens.
  // shortlist: null, or what to fetch in place of the last token's logits, where the backend has such: it arrives, or it does not.
  Status prefill_chunk(Span<const int32_t> tokens, const std::atomic<bool>* cancel, bool want_logits, float* logits,
                       Shortlist* shortlist = nullptr);
  // Adds a generated token, still to be computed.
  void push_generated(int32_t token) { tokens_.push_back(token), by_decode_.push_back(1); }
  // Computes the token that push_generated() added. `cancel` ends what it waits for, others' turns and the link, and settling: then the
  // status is cancelled, and the token waits to be computed still.
  Status decode(Shortlist* shortlist = nullptr, const std::atomic<bool>* cancel = nullptr);
  // Makes logits() those of the last computed token, computing it again if they are not. After an error, or cancelled as decode() is, the
  // session no longer holds that token.
  Status refresh_logits(Shortlist* shortlist = nullptr, const std::atomic<bool>* cancel = nullptr);

  // Which of the computed tokens' keys some of the last queries attend to most, whatever is resident: see
  // Resident::top_page_keys. invalid_argument under policies that keep no queries.
  Status top_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule);
  // How much they attend to the keys; errors as above.
  Status key_weights(Span<const policy::WeightsQuery> queries);

  // For benchmarks of contexts that would take hours to compute: takes prompt tokens as computed, with KV pages whose
  // bytes `fill` makes up. The session is empty before.
  using FillPage = std::function<void(uint32_t page, Span<std::byte> bytes)>;
  Status assume_prompt(Span<const int32_t> tokens, const FillPage& fill);

  bool has_logits() const { return n_computed() > 0 && logits_at_ == n_computed(); }
  // Brings logits and embedding from the device, where a step that gave a shortlist left them.
  Status fetch_logits(const Cancel& cancel = {});
  size_t n_logits() const { return logits_.size(); }
  size_t n_embedding() const { return embedding_.size(); }
  // Brings what the shortlist of the last step wants besides; false: logits are not on the device any more.
  Result<bool> fetch_more(Shortlist* shortlist, const Cancel& cancel = {});
  // (n_vocab) and (n_embd), if has_logits(); empty while they are left on the device.
  Span<const float> logits() const { return here(logits_); }
  Span<const float> embedding() const { return here(embedding_); }

  Result<std::unique_ptr<Session>> fork();
  // Takes device memory again, if parked.
  Status resume();

  // One call at a time, and nothing but reading while a generation is under way.
  bool try_enter() {
    if (in_call_.exchange(true, std::memory_order_acquire)) return false;
    caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void leave() {
    caller_.store(std::thread::id(), std::memory_order_relaxed);
    in_call_.store(false, std::memory_order_release);
  }
  // This thread is inside a call already: in a callback, or behind one that never returned.
  bool entered_here() const { return caller_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  bool generating() const { return generating_; }
  // A generation begins, which stops when its flag is set; null: it has ended.
  void set_generating(std::atomic<bool>* stop) {
    generating_ = stop != nullptr;
    set_stop(stop);
  }
  // Sets the flag of what runs now, if anything does: a generation, or a call within a Stoppable. From any thread.
  void stop_running() {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    if (stop_) stop_->store(true, std::memory_order_relaxed);
  }
  // A call that may take long, of a session without a generation under way.
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
  Session(std::shared_ptr<LanguageModel> model, const SessionOptions& options, uint32_t n_context);
  void tell(const kv::Plan& plan, const SessionOptions& wanted) const;
  // Slot, reservation, page table and workspace.
  Status acquire();
  Status park_copy_of(const Session& other);
  // Computes tokens that are there once more, for their queries; their KV stays as it is.
  Status recover_queries(const Turn& turn, uint32_t n_tokens, const std::atomic<bool>* cancel);
  Status step(Span<const int32_t> tokens, Phase phase, const std::atomic<bool>* cancel, int32_t n_logits, float* logits, Shortlist* shortlist);

  std::shared_ptr<LanguageModel> model_;
  SessionOptions options_;
  uint32_t n_context_;
  model::RopeTable rope_;
  SessionSlot slot_;
  kv::PageReservation reservation_;
  std::unique_ptr<kv::PageTable> table_;       // null while parked
  std::unique_ptr<Resident> resident_;         // null for full, and while parked
  os::Region parked_pages_;                    // (pages of n_computed, page_bytes) while parked
  std::vector<int32_t> tokens_;                // room for n_context + 1
  std::vector<uint8_t> by_decode_;             // beside tokens_: 1 if generated
  std::atomic<uint32_t> n_computed_{0};
  uint32_t logits_at_ = 0;                     // n_computed that logits_ belongs to
  std::vector<float> logits_;                  // (n_vocab)
  std::vector<float> embedding_;               // (n_embd)
  std::atomic<bool> row_waits_{false};         // both are still on the device
  std::vector<Row> rows_;                      // room for a chunk
  Conversation conversation_;
  SessionStats stats_;
  std::atomic<bool> in_call_{false};
  std::atomic<std::thread::id> caller_{};      // while in_call_
  bool generating_ = false;                    // under in_call_
  std::mutex stop_mutex_;                      // over stop_: what it points to lives as long as it stands there
  std::atomic<bool>* stop_ = nullptr;          // of what runs now
  std::atomic<bool> call_stop_{false};         // of a Stoppable: here, and not on a stack that a callback may leave by longjmp()
};

}  // namespace orrery::engine

// A session: a conversation, the sequence of its tokens, and the decoder that computes the next ones. It can rewind, fork, park and be
// saved; it takes the KV of earlier prompts, and keeps its own for later ones.
//
//   Session       messages, forks, prefixes, files          (session/)
//   Decoder       guesses and verifies the next tokens      (decoder/)
//   Sequence      computes tokens, and owns their state     (sequence/)
//
// Each uses the public functions of the ones below it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/decoder/decoder.h"
#include "runtime/engine/folder/folder.h"
#include "runtime/engine/sequence/sequence.h"
#include "runtime/engine/session/calls.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/engine/shared/vocabulary.h"
#include "runtime/kv/memory/layout.h"
#include "runtime/kv/memory/plan.h"
#include "runtime/kv/memory/prefix_tree.h"
#include "runtime/text/json/value.h"

namespace orrery::engine {

// The messages, and the template that renders them.
struct Conversation {
  std::vector<text::Value> messages;     // maps with at least "role" and "content"
  size_t n_dropped = 0;                  // oldest non-system messages that have left the context (Overflow::drop_oldest)
  std::optional<ChatRenderer> renderer;  // made when it is first used
  TemplateChoice choice;
};

class Session {
 public:
  // The host memory of every session: tokens, page table, logits, and the sampler of its generations.
  static kv::Layout layout(const model::Description& h, const SessionOptions& options, uint32_t n_context);
  static Result<std::unique_ptr<Session>> open(std::shared_ptr<LanguageModel> model, SessionOptions options);

  Sequence& sequence() { return *sequence_; }
  const Sequence& sequence() const { return *sequence_; }
  Decoder& decoder() { return *decoder_; }
  const Decoder& decoder() const { return *decoder_; }
  Conversation& conversation() { return conversation_; }
  const Conversation& conversation() const { return conversation_; }
  Calls& calls() { return calls_; }

  // Of the sequence and the decoder, for those who ask most.
  const LanguageModel& model() const { return sequence_->model(); }
  const SessionOptions& options() const { return sequence_->options(); }
  uint32_t n_context() const { return sequence_->n_context(); }
  Span<const int32_t> tokens() const { return sequence_->tokens(); }
  uint32_t n_computed() const { return sequence_->n_computed(); }  // from any thread
  Span<const float> logits() const { return sequence_->logits(); }
  const Resident* resident() const { return std::as_const(*sequence_).resident(); }
  Resident* resident() { return sequence_->resident(); }
  const SessionStats& stats() const { return std::as_const(*sequence_).stats(); }
  SessionStats& stats() { return sequence_->stats(); }
  Status prefill(Span<const int32_t> tokens, const std::atomic<bool>* cancel, float* logits) {
    return sequence_->prefill(tokens, cancel, logits);
  }
  void push_generated(int32_t token) { sequence_->push_generated(token); }
  Status decode(Shortlist* shortlist = nullptr, const std::atomic<bool>* cancel = nullptr, uint32_t most_guesses = 0,
                Drafter* drafter = nullptr) {
    return decoder_->decode(shortlist, cancel, most_guesses, drafter);
  }

  const char* policy() const { return policy_; }  // static
  double kv_share() const { return kv_share_; }   // what the policy may keep of full KV's bytes
  const kv::Layout& regions() const { return layout_; }
  uint64_t kv_bytes() const;         // KV and its summaries on the device; 0 while parked
  uint64_t kv_used_bytes() const;    // the part of kv_bytes() that holds tokens
  uint64_t reservoir_bytes() const;  // KV in host memory; 0 for policy full, and while parked

  // cancel: of waiting for pages (Sequence::finish_pages()). Then the session is as before.
  Status rewind(uint32_t n_tokens, const Cancel& cancel = {});
  Result<std::unique_ptr<Session>> fork(const Cancel& cancel = {});  // cancel: as of rewind()
  // Takes device memory again if parked.
  Status resume();
  // Uses other adapters from now on. If they differ, the session drops its tokens: their KV is that of the old ones.
  Status set_adapters(Adapters adapters);

  // Behind the held tokens, a prefix of `wanted`: takes the KV of the next pages from the prefix tree. If cancelled, or after an error,
  // the session holds the tokens as before.
  Status find_prefix(Span<const int32_t> wanted, const std::atomic<bool>* cancel);
  // The same, from the folder of the options.
  Status find_in_folder(Span<const int32_t> wanted, const std::atomic<bool>* cancel);
  // Keeps the KV of the held tokens in the prefix tree, as far as it has room.
  void keep_prefix() noexcept;
  // What the session's KV is in a folder.
  EntryKey folder_key(const Folder& folder) const;

 private:
  Session(std::unique_ptr<Sequence> sequence, std::unique_ptr<Decoder> decoder, kv::Layout layout, const char* policy, double kv_share)
      : sequence_(std::move(sequence)), decoder_(std::move(decoder)), layout_(std::move(layout)), policy_(policy), kv_share_(kv_share) {}
  Runtime& runtime() const { return sequence_->model().runtime(); }
  kv::PrefixTree::Key prefix_key() const;
  // Whether find_prefix() and find_in_folder() may have a use: `wanted` goes on for a page behind `from` computed tokens.
  Result<bool> may_find(Span<const int32_t> wanted, uint32_t from, const std::atomic<bool>* cancel);
  // Of an entry of the folder, whose first n_pages pages have the first tokens of `wanted`: all of them, or those before the first damaged
  // one.
  Status take_found(const Folder::Found& found, Span<const int32_t> wanted, const std::atomic<bool>* cancel);

  std::unique_ptr<Sequence> sequence_;
  std::unique_ptr<Decoder> decoder_;
  kv::Layout layout_;  // the session's own regions, for statistics
  const char* policy_;
  double kv_share_;
  Conversation conversation_;
  Calls calls_;
};

}  // namespace orrery::engine

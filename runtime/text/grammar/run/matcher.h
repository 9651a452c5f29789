// One answer's place in a grammar, over the tokens of one vocabulary: which tokens may follow, what a token leads to, and back again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/text/grammar/run/deferred.h"
#include "runtime/text/grammar/run/shared.h"

namespace orrery::text::grammar {

class Matcher {
 public:
  // deferred: compiles the network's deferred rules; null where it has none.
  explicit Matcher(std::shared_ptr<MatcherShared> shared, std::shared_ptr<Deferred> deferred = nullptr);

  // The tokens that may follow, ends of generation included: bit i of word w is token 32 w + i. (n_words), valid until the next call.
  // Errors: cancelled; unsupported where every token leads to a configuration that is too ambiguous.
  Result<const uint32_t*> mask(const std::atomic<bool>* cancel = nullptr);
  // False: the token is not allowed, and nothing changes. An end of generation is allowed where the grammar may end; nothing follows it.
  // Error: unsupported, the text has become too ambiguous, or a deferred rule is refused.
  Result<bool> accept(int32_t token);
  void rewind(size_t n_tokens);  // the matcher keeps the first `n_tokens` accepted tokens
  size_t n_tokens() const { return tokens_.size(); }
  bool may_end() const { return !ended_ && space_.may_end(now()); }
  bool ended() const { return ended_; }
  // Nothing but the end is possible.
  bool must_end() const { return ended_ || (space_.may_end(now()) && space_.n_items(now()) == 0); }
  // The bytes that follow in any case, at most `most`.
  std::string forced(size_t most);
  // A number of tokens that suffices to complete the text: of the shortest text that completes it. 0: it may end. kNever: none is known.
  uint32_t tokens_to_end();
  // Whether `left` tokens suffice to complete the text, before the next token or after `token`, which is allowed.
  bool can_close(uint32_t left);
  bool can_close_after(int32_t token, uint32_t left);
  // The tokens of mask() after which `left` tokens suffice: words (n_words). False: there are none.
  Result<bool> closing_mask(uint32_t left, uint32_t* words, const std::atomic<bool>* cancel = nullptr);
  size_t n_words() const { return shared_->trie->n_words(); }
  size_t memory_bytes() const { return space_.memory_bytes(); }

  // Reads bytes without tokens, for texts as a whole: the number of bytes that the grammar takes. It stops at a deferred rule and adds the
  // rule's number to `deferred`.
  static size_t match(const Network& network, std::string_view text, bool* complete, std::vector<uint32_t>* deferred = nullptr);

 private:
  struct Cached {
    uint32_t configuration = Space::kUnset;
    std::vector<uint32_t> words;
  };
  uint32_t now() const { return history_.back(); }
  // False: `pace` said stop.
  bool add_item(const Item& item, uint32_t* words, Pace* pace);
  bool add_together(uint32_t* words, Pace* pace, bool* together);
  bool is_text(const Item& item) const;
  uint8_t groups_read(uint32_t below, size_t n_pending);
  bool add_pending(uint32_t below, uint32_t node, uint32_t* words, Pace* pace);
  void make_room();
  void begin();
  // Takes a network with the rules in met_, and reads all tokens again.
  Status grow(const std::atomic<bool>* cancel);
  Status compile_what_begins_here(const std::atomic<bool>* cancel);
  bool closing_grows();
  Result<uint32_t> follow(int32_t token);

  std::shared_ptr<MatcherShared> shared_;
  std::shared_ptr<Deferred> deferred_;
  std::vector<uint32_t> met_;  // deferred rules that the work under way has met
  Space space_;
  std::optional<MaskMaker> masks_;
  std::optional<Closing> closing_;
  std::vector<int32_t> tokens_;
  std::vector<uint32_t> history_;  // (n_tokens + 1) configurations; those before `kept_from_` are forgotten
  size_t kept_from_ = 0;
  bool ended_ = false;
  static constexpr size_t kCached = 8;
  Cached cached_[kCached];
  size_t next_cached_ = 0;
  std::vector<uint32_t> stack_;  // (depth + 1) configurations on the way to a node of the token tree
};

}  // namespace orrery::text::grammar

// An answer's grammar on its way through the answer: the mask of the next token, what guesses and drafts may say, and whether the answer
// can still be closed within the tokens that are left.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/text/grammar/grammar.h"

namespace orrery::engine {

class Constraint {
 public:
  // ignore_end: ends of generation are banned where anything else is allowed.
  Constraint(std::shared_ptr<text::grammar::Grammar> grammar, bool ignore_end)
      : grammar_(std::move(grammar)), matcher_(grammar_->matcher()), words_(matcher_.n_words()), ignore_end_(ignore_end) {}

  // Narrows the coming masks to one token, where they allow it; -1: no longer.
  void force(int32_t token) { forced_token_ = token; }
  int32_t longest_token(std::string_view text) const { return grammar_->trie().longest_prefix(text); }

  // Makes the mask of the next token. Errors: cancelled; unsupported, the grammar is too ambiguous here.
  Status prepare(const std::atomic<bool>* cancel);
  Span<const uint32_t> mask() const { return {words_.data(), words_.size()}; }  // bit i of word w: token 32 w + i
  // The answer ends here, whatever the model says: the last prepare() found ends of generation alone, or nothing may follow.
  bool must_end() const { return only_end_ || matcher_.must_end(); }
  bool complete() const { return matcher_.ended() || matcher_.may_end(); }  // the text so far is a whole answer
  // The answer goes on with `token`. invalid_argument: it is not allowed.
  Status accept(int32_t token);

  // Narrows mask() to the tokens after which `left` more tokens can complete the answer. False, and nothing changes: `token` is one of
  // them, or no token is.
  Result<bool> close_in_time(int32_t token, uint32_t left, const std::atomic<bool>* cancel);

  // The number of first `guesses` that may follow one after the other.
  size_t n_allowed(Span<const int32_t> guesses);
  // Tokens of the text that follows in any case, (most) at most. Returns their number.
  size_t forced(int32_t* tokens, size_t most);

  // Drafts: the answer goes on with a drafted token, and back to where it was.
  size_t n_tokens() const { return matcher_.n_tokens(); }
  bool draft(int32_t token);
  void rewind(size_t n_tokens) { matcher_.rewind(n_tokens); }

 private:
  std::shared_ptr<text::grammar::Grammar> grammar_;
  text::grammar::Matcher matcher_;
  std::vector<uint32_t> words_;
  std::vector<uint32_t> closing_;  // (n_words), once it is needed
  size_t hopeless_bytes_ = 0;      // of the answer to come: meanwhile no end fits, and none is searched
  bool ignore_end_, only_end_ = false;
  int32_t forced_token_ = -1;
};

}  // namespace orrery::engine

#include "runtime/engine/answer/constraint.h"

#include <algorithm>

namespace orrery::engine {

Status Constraint::prepare(const std::atomic<bool>* cancel) {
  ORRERY_ASSIGN(const uint32_t* const allowed, matcher_.mask(cancel));
  std::copy_n(allowed, words_.size(), words_.begin());
  only_end_ = false;
  if (forced_token_ >= 0 && (words_[static_cast<size_t>(forced_token_) >> 5] >> (forced_token_ & 31) & 1) != 0) {
    std::fill(words_.begin(), words_.end(), 0u);
    words_[static_cast<size_t>(forced_token_) >> 5] = 1u << (forced_token_ & 31);
    return ok_status();
  }
  if (!ignore_end_ || !matcher_.may_end()) return ok_status();
  for (const int32_t id : grammar_->trie().ends()) words_[static_cast<size_t>(id) >> 5] &= ~(1u << (id & 31));
  only_end_ = std::all_of(words_.begin(), words_.end(), [](uint32_t w) { return w == 0; });
  return ok_status();
}

Status Constraint::accept(int32_t token) {
  only_end_ = false;
  ORRERY_ASSIGN(const bool accepted, matcher_.accept(token));
  if (!accepted)
    return error(Code::invalid_argument, "the grammar does not allow token %d after %zu tokens of the answer", token, matcher_.n_tokens());
  return ok_status();
}

Result<bool> Constraint::close_in_time(int32_t token, uint32_t left, const std::atomic<bool>* cancel) {
  if (left >= text::grammar::Closing::kMostClosing) return false;
  const size_t bytes = std::max<size_t>(grammar_->trie().bytes(token).size(), 1);
  if (hopeless_bytes_ > 0) {
    hopeless_bytes_ -= std::min(hopeless_bytes_, bytes);
    return false;
  }
  if (matcher_.can_close_after(token, left)) return false;
  if (!matcher_.can_close(left + 1)) {  // a byte of the answer spares a token of its end at most, unless the answer finds a shorter end
    const uint32_t needed = std::min(matcher_.tokens_to_end(), text::grammar::Closing::kMostClosing);
    hopeless_bytes_ = needed > left ? needed - left : 0;
    return false;
  }
  closing_.resize(words_.size());
  ORRERY_ASSIGN(const bool any, matcher_.closing_mask(left, closing_.data(), cancel));
  if (!any) return false;
  for (size_t i = 0; i < words_.size(); ++i) closing_[i] &= words_[i];
  if (std::all_of(closing_.begin(), closing_.end(), [](uint32_t w) { return w == 0; })) return false;
  words_.swap(closing_);
  return true;
}

bool Constraint::draft(int32_t token) {
  Result<bool> accepted = matcher_.accept(token);
  return accepted.ok() && *accepted;
}

size_t Constraint::n_allowed(Span<const int32_t> guesses) {
  const size_t before = matcher_.n_tokens();
  size_t n = 0;
  while (n < guesses.size() && draft(guesses[n])) ++n;
  matcher_.rewind(before);
  return n;
}

size_t Constraint::forced(int32_t* tokens, size_t most) {
  constexpr size_t kBytesOfAToken = 24;  // of forced text; more than tokens of such text have
  const std::vector<int32_t> forced = grammar_->trie().cut(matcher_.forced(most * kBytesOfAToken), most);
  std::copy(forced.begin(), forced.end(), tokens);
  return forced.size();
}

}  // namespace orrery::engine

#include "runtime/engine/decoder/ngrams.h"

#include <algorithm>

namespace orrery::engine {

namespace {

// Weight of one more token in the share of right matches.
constexpr double kRate = 1.0 / 16;
// Expected tokens by time, against a step of one token, from which guesses are worth their risk.
constexpr double kLeastGain = 1.04;
constexpr uint32_t kMostBuckets = 1u << 17;

uint32_t n_buckets(uint32_t n_context) {
  uint32_t n = 64;
  while (n < n_context && n < kMostBuckets) n *= 2;
  return n;
}

}  // namespace

uint64_t Ngrams::bytes(uint32_t n_context) { return sizeof(Ngrams) + (uint64_t{n_buckets(n_context)} + n_context + 1) * sizeof(uint32_t); }

Ngrams::Ngrams(uint32_t n_context) : last_(n_buckets(n_context)), previous_(size_t{n_context} + 1) {}

size_t Ngrams::bucket(int32_t a, int32_t b) const {
  const uint64_t pair = uint64_t{static_cast<uint32_t>(a)} << 32 | static_cast<uint32_t>(b);
  return static_cast<size_t>((pair * 0x9e3779b97f4a7c15u) >> 32) & (last_.size() - 1);
}

double& Ngrams::right(uint32_t match) { return right_[match < 4 ? 0 : match < 8 ? 1 : match < 16 ? 2 : 3]; }

void Ngrams::read(Span<const int32_t> tokens, Span<const uint8_t> made) {
  const auto end = static_cast<uint32_t>(std::min(tokens.size(), previous_.size()));
  if (n_read_ == end) return;
  for (; n_read_ < end; ++n_read_) {
    const int32_t token = tokens[n_read_];
    if (match_ > 0) {
      const bool is_right = tokens[next_] == token;
      if (made[n_read_] & kv::Made::kGenerated) right(match_) += kRate * ((is_right ? 1.0 : 0.0) - right(match_));
      match_ = is_right ? std::min(match_ + 1, kMostMatch) : 0;
      ++next_;
    }
    if (n_read_ == 0) continue;
    uint32_t& last = last_[bucket(tokens[n_read_ - 1], token)];
    previous_[n_read_] = last;
    last = n_read_;
  }
  if (match_ == 0) find_match(tokens);
}

void Ngrams::find_match(Span<const int32_t> tokens) {
  if (n_read_ < 2) return;
  const uint32_t end = n_read_ - 1;  // the last token
  uint32_t at = previous_[end];
  for (uint32_t i = 0; i < kMostCandidates && at > 0 && match_ < kMostMatch; ++i, at = previous_[at]) {
    uint32_t n = 0;
    while (n <= at && n < kMostMatch && tokens[at - n] == tokens[end - n]) ++n;
    if (n >= kLeastMatch && n > match_) match_ = n, next_ = at + 1;
  }
}

void Ngrams::truncate(Span<const int32_t> tokens, uint32_t n_tokens) {
  if (n_tokens >= n_read_) return;
  while (n_read_ > n_tokens) {
    --n_read_;
    if (n_read_ > 0) last_[bucket(tokens[n_read_ - 1], tokens[n_read_])] = previous_[n_read_];
  }
  match_ = 0;
  find_match(tokens);
}

Span<const int32_t> Ngrams::guess(Span<const int32_t> tokens, uint32_t most, const GuessCosts& costs) {
  if (match_ == 0) return {};
  double all_right = 1.0, expected = 1.0, best = kLeastGain;  // tokens of the step
  uint32_t n_best = 0;
  for (uint32_t i = 0; i < std::min(most, kMostGuesses); ++i) {
    const uint32_t at = next_ + i;  // behind the last token, the guess repeats itself
    guess_[i] = at < n_read_ ? tokens[at] : guess_[at - n_read_];
    all_right *= right(match_ + i);
    expected += all_right;
    const double gain = expected / (1.0 + costs[i]);
    if (gain >= best) best = gain, n_best = i + 1;
  }
  return {guess_.data(), n_best};
}

}  // namespace orrery::engine

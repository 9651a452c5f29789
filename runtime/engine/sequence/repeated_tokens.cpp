#include "runtime/engine/sequence/repeated_tokens.h"

#include <algorithm>

namespace orrery::engine {

namespace {

// SplitMix64 (Steele et al. 2014).
class Random {
 public:
  uint64_t below(uint64_t n) { return next() % n; }

 private:
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_ = 20240722;
};

}  // namespace

Result<RepeatedTokens> RepeatedTokens::make(const LanguageModel& model) {
  const text::Tokenizer& tokenizer = model.tokenizer();
  const int32_t n_vocab = std::min(model.description().n_vocab, tokenizer.n_vocab());
  std::vector<int32_t> plain;
  for (int32_t id = 0; id < n_vocab; ++id)
    if (!tokenizer.is_special(id) && tokenizer.token_type(id) != text::TokenType::unused) plain.push_back(id);
  if (plain.size() < 2)
    return error(Code::unsupported, "the vocabulary has %zu tokens that stand for text, ranking heads needs two", plain.size());
  Random random;
  RepeatedTokens repeated;
  repeated.n_distinct = static_cast<uint32_t>(std::min<size_t>(kMostDistinct, plain.size()));
  for (uint32_t i = 0; i < repeated.n_distinct; ++i) std::swap(plain[i], plain[i + random.below(plain.size() - i)]);
  if (tokenizer.add_bos() && tokenizer.bos() >= 0) repeated.tokens.push_back(tokenizer.bos());
  repeated.first = static_cast<uint32_t>(repeated.tokens.size());
  for (uint32_t i = 0; i < kTimes; ++i) repeated.tokens.insert(repeated.tokens.end(), plain.begin(), plain.begin() + repeated.n_distinct);
  return repeated;
}

}  // namespace orrery::engine

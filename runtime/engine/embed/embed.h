// Texts to vectors, and pairs of a query and a text to scores. Each text is computed by itself, from position 0, and its KV is given back before the next text: so a text's vector has
// the same bits in any list. One call opens one session, with the context of its longest text, and closes it at its end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/model/description/description.h"

namespace orrery::engine {

struct EmbedOptions {
  model::Pooling pooling = model::Pooling::mean;  // not rank
  bool normalize = true;                          // each vector has length 1; a vector of zeros stays
  uint32_t dimensions = 0;                        // the first values of each vector, before it is normalised; 0: all
  bool truncate = false;                          // a text of too many tokens is cut; else it is context_full
  uint32_t max_tokens = 0;                        // of a text, with the tokens that the tokenizer adds; 0: the trained context
  // Called with (tokens done, tokens of all texts) before the first text, and after each part of a prompt. Returning false cancels.
  std::function<bool(uint64_t, uint64_t)> progress;
};

// Texts as tokens, each with the tokens that the tokenizer puts around it.
struct EncodedTexts {
  std::vector<std::vector<int32_t>> tokens;  // (n_texts), none empty
  std::vector<uint32_t> second;              // (n_texts) of a pair: where the text's own tokens begin; else the number of tokens
  uint64_t n_tokens = 0, longest = 0;        // of all texts; of the longest one
  int32_t dimensions = 0;                    // of a vector
  void add(std::vector<int32_t> text, size_t second_from) {
    n_tokens += text.size(), longest = std::max<uint64_t>(longest, text.size());
    tokens.push_back(std::move(text));
    second.push_back(static_cast<uint32_t>(second_from));
  }
  // The number of values that embed() gives.
  uint64_t n_floats(model::Pooling pooling) const {
    return (pooling == model::Pooling::none ? n_tokens : tokens.size()) * static_cast<uint64_t>(dimensions);
  }
};

// The pooling of a model whose caller names none: the file's; or an encoder's mean; or the last token's row, as a
// decoder's last token alone has seen them all.
model::Pooling default_pooling(const model::Description& d);
// texts: UTF-8. Errors: invalid_argument (an option; a text without tokens), context_full; the message has the text's number.
Result<EncodedTexts> encode_texts(const LanguageModel& model, Span<const std::string_view> texts, const EmbedOptions& options);
// vectors: (EncodedTexts::n_floats()), of each text or token (dimensions). Errors: cancelled; the errors of opening a session.
Result<std::vector<float>> embed(const std::shared_ptr<LanguageModel>& model, const EncodedTexts& texts, const EmbedOptions& options);

// The same of a query with each text, as the file's template "rerank" prints them; or [bos] query [sep] text [sep], with the tokenizer's
// separator, or eos if it has none. options.truncate cuts the text. unsupported: the model has no reranker's head.
Result<EncodedTexts> encode_pairs(const LanguageModel& model, std::string_view query, Span<const std::string_view> texts,
                                  const EmbedOptions& options);
// One score of each pair: with options.normalize the probability that the text answers the query, else its log-odds.
Result<std::vector<float>> rank(const std::shared_ptr<LanguageModel>& model, const EncodedTexts& pairs, const EmbedOptions& options);

}  // namespace orrery::engine

#include "runtime/engine/embed/embed.h"

#include <algorithm>
#include <cmath>

#include "runtime/engine/session/session.h"

namespace orrery::engine {

namespace {

using model::Pooling;

// A text's tokens, with the tokens that the tokenizer puts around it; `most` at most.
Result<std::vector<int32_t>> encode_text(const text::Tokenizer& tokenizer, std::string_view text, size_t number, size_t most,
                                         bool truncate) {
  text::EncodeOptions encode;
  encode.add_bos = tokenizer.add_bos(), encode.add_eos = tokenizer.add_eos();
  if (!truncate) encode.max_tokens = most;
  std::vector<int32_t> tokens;
  if (Status status = tokenizer.encode(text, encode, &tokens); !status.ok()) {
    if (status.code() != Code::context_full) return error(status.code(), "text %zu: %s", number, status.message());
    return memory_error(Code::context_full, status.detail().bytes_requested, most,
                        "text %zu has at least %llu tokens, more than the %zu that are taken: a shorter text, or the option truncate",
                        number, static_cast<unsigned long long>(status.detail().bytes_requested), most);
  }
  if (tokens.size() > most) {  // the token at the end stays there
    const bool ends = encode.add_eos && tokenizer.eos() >= 0;
    const int32_t last = tokens.back();
    tokens.resize(most);
    if (ends) tokens.back() = last;
  }
  if (tokens.empty())
    return error(Code::invalid_argument, "text %zu has no tokens, and the model's tokenizer adds none: expected a text that is not empty",
                 number);
  return tokens;
}

// Adds the vector of rows (n_rows, n_embd) to `out`, as float64 sums in the order of the rows.
void pool(Pooling pooling, Span<const float> rows, size_t n_embd, size_t dimensions, std::vector<float>* out) {
  const size_t n_rows = rows.size() / n_embd;
  if (pooling == Pooling::mean) {
    for (size_t i = 0; i < dimensions; ++i) {
      double sum = 0;
      for (size_t row = 0; row < n_rows; ++row) sum += static_cast<double>(rows[row * n_embd + i]);
      out->push_back(static_cast<float>(sum / static_cast<double>(n_rows)));
    }
    return;
  }
  const size_t first = pooling == Pooling::last ? n_rows - 1 : 0, end = pooling == Pooling::first ? 1 : n_rows;
  for (size_t row = first; row < end; ++row) out->insert(out->end(), rows.begin() + row * n_embd, rows.begin() + row * n_embd + dimensions);
}

void normalize(float* x, size_t n) {
  double squares = 0;
  for (size_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  if (!(squares > 0)) return;
  const double length = std::sqrt(squares);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(static_cast<double>(x[i]) / length);
}

}  // namespace

Pooling default_pooling(const model::Description& d) {
  const bool says = d.pooling != Pooling::none && d.pooling != Pooling::rank;
  return says ? d.pooling : d.encoder ? Pooling::mean : Pooling::last;
}

namespace {

Status check_limits(const model::Description& d, const EmbedOptions& options) {
  const auto trained = static_cast<uint32_t>(d.trained_context), n_embd = static_cast<uint32_t>(d.n_embd);
  if (options.max_tokens > trained)
    return option_error(Code::invalid_argument, "max_tokens",
                        "max_tokens is %u, expected at most %u, the context that the model was trained for", options.max_tokens, trained);
  if (options.dimensions > n_embd)
    return option_error(Code::invalid_argument, "n_dimensions", "n_dimensions is %u, expected at most %u, the model's", options.dimensions,
                        n_embd);
  return ok_status();
}

}  // namespace

Result<EncodedTexts> encode_texts(const LanguageModel& model, Span<const std::string_view> texts, const EmbedOptions& options) {
  const model::Description& d = model.description();
  ORRERY_TRY(check_limits(d, options));
  const size_t most = options.max_tokens ? options.max_tokens : static_cast<size_t>(d.trained_context);
  EncodedTexts out;
  out.dimensions = options.dimensions ? static_cast<int32_t>(options.dimensions) : d.n_embd;
  for (size_t i = 0; i < texts.size(); ++i) {
    ORRERY_ASSIGN(std::vector<int32_t> tokens, encode_text(model.tokenizer(), texts[i], i, most, options.truncate));
    const size_t n = tokens.size();
    out.add(std::move(tokens), n);
  }
  return out;
}

namespace {

// Computes texts one after another, and calls use(rows (n_tokens, n_embd)) with each text's rows.
Status compute(const std::shared_ptr<LanguageModel>& model, const EncodedTexts& texts, const EmbedOptions& options,
               const std::function<void(Span<const float>)>& use) {
  SessionOptions session_options;
  session_options.n_context = static_cast<uint32_t>(texts.longest);
  session_options.embeds = true;
  if (model->description().encoder) session_options.kv_type = KvType::f32;  // of one text: it is small, and so vectors are exact
  ORRERY_ASSIGN(const std::unique_ptr<Session> session, Session::open(model, session_options));
  const auto n_embd = static_cast<size_t>(model->description().n_embd);
  std::vector<float> rows(texts.longest * n_embd);
  uint64_t done = 0;
  const auto goes_on = [&](uint64_t now) { return !options.progress || options.progress(now, texts.n_tokens); };
  if (!goes_on(0)) return error(Code::cancelled, "cancelled");
  for (size_t i = 0; i < texts.tokens.size(); ++i) {
    session->sequence().truncate(0);
    const Span<const int32_t> all(texts.tokens[i]);
    for (size_t from = 0; from < all.size();) {
      const size_t n = session->sequence().next_chunk(all.size() - from);
      ORRERY_ASSIGN(const bool complete,
                    session->sequence().embed_part(all.subspan(from, n), nullptr, rows.data() + from * n_embd, texts.second[i]));
      if (complete) from += n;
      if (!goes_on(done + from + session->sequence().part_done())) return error(Code::cancelled, "cancelled");
    }
    done += all.size();
    use({rows.data(), all.size() * n_embd});
  }
  return ok_status();
}

}  // namespace

Result<std::vector<float>> embed(const std::shared_ptr<LanguageModel>& model, const EncodedTexts& texts, const EmbedOptions& options) {
  std::vector<float> vectors;
  if (texts.tokens.empty()) return vectors;
  const auto n_embd = static_cast<size_t>(model->description().n_embd), dimensions = static_cast<size_t>(texts.dimensions);
  vectors.reserve(texts.n_floats(options.pooling));
  const model::dense_modules::Weights& dense = model->weights().weights.dense;
  ORRERY_TRY(compute(model, texts, options, [&](Span<const float> rows) {
    if (dense.in.empty() || options.pooling == Pooling::none) return pool(options.pooling, rows, n_embd, dimensions, &vectors);
    std::vector<float> pooled;
    pool(options.pooling, rows, n_embd, n_embd, &pooled);
    model::dense_modules::apply(dense, {pooled.data(), pooled.size()});
    vectors.insert(vectors.end(), pooled.begin(), pooled.begin() + static_cast<ptrdiff_t>(dimensions));
  }));
  if (options.normalize)
    for (size_t at = 0; at < vectors.size(); at += dimensions) normalize(vectors.data() + at, dimensions);
  return vectors;
}

namespace {

constexpr const char* kPairTemplate = "rerank";  // of the file's named templates

// The template's text with the query and the text in their places. What they spell out stays text.
text::Text fill_template(std::string_view source, std::string_view query, std::string_view text) {
  text::Text out;
  for (size_t at = 0; at < source.size();) {
    const size_t open = std::min(source.find('{', at), source.size());
    out.append(source.substr(at, open - at), text::Origin::chat_template);
    const std::string_view rest = source.substr(open);
    constexpr std::string_view kQuery = "{query}", kText = "{document}";
    const bool is_query = rest.substr(0, kQuery.size()) == kQuery, is_text = rest.substr(0, kText.size()) == kText;
    if (is_query || is_text) out.append(is_query ? query : text, text::Origin::data);
    else out.append(rest.substr(0, 1), text::Origin::chat_template);
    at = open + (is_query ? kQuery.size() : is_text ? kText.size() : rest.empty() ? 0 : 1);
  }
  return out;
}

struct Pair {
  std::vector<int32_t> tokens;
  uint32_t second = 0;  // where the text's own tokens begin; by a template: all
};

Result<Pair> encode_by_template(const text::Tokenizer& tokenizer, std::string_view source, std::string_view query, std::string_view text,
                                size_t most) {
  text::EncodeOptions encode;
  encode.add_bos = tokenizer.add_bos(), encode.add_eos = tokenizer.add_eos(), encode.parse_special = true;
  encode.max_tokens = most;
  Pair pair;
  const text::Text filled = fill_template(source, query, text);
  ORRERY_TRY(tokenizer.encode(filled.view(), encode, &pair.tokens));
  pair.second = static_cast<uint32_t>(pair.tokens.size());
  return pair;
}

// [bos] query [sep] text [sep]
Result<Pair> encode_by_separator(const text::Tokenizer& tokenizer, std::string_view query, std::string_view text, size_t most,
                                 bool truncate) {
  const int32_t separator = tokenizer.sep() >= 0 ? tokenizer.sep() : tokenizer.eos();
  Pair pair;
  text::EncodeOptions encode;
  if (tokenizer.bos() >= 0) pair.tokens.push_back(tokenizer.bos());
  ORRERY_TRY(tokenizer.encode(query, encode, &pair.tokens));
  if (separator >= 0) pair.tokens.push_back(separator);
  pair.second = static_cast<uint32_t>(pair.tokens.size());
  ORRERY_TRY(tokenizer.encode(text, encode, &pair.tokens));
  const size_t needed = pair.tokens.size() + (separator >= 0 ? 1 : 0);
  if (needed > most && (!truncate || pair.second + size_t{1} >= most))
    return memory_error(Code::context_full, needed, most, "the text has at least %zu tokens, more than the %zu allowed", needed, most);
  if (needed > most) pair.tokens.resize(most - (needed - pair.tokens.size()));
  if (separator >= 0) pair.tokens.push_back(separator);
  return pair;
}

// The longest beginning of the text, of whole characters, whose pair has at most `most` tokens.
Result<Pair> encode_truncated(const text::Tokenizer& tokenizer, std::string_view source, std::string_view query, std::string_view text,
                              size_t most) {
  size_t fits = 0, too_long = text.size();
  ORRERY_ASSIGN(Pair pair, encode_by_template(tokenizer, source, query, {}, most));
  while (fits + 1 < too_long) {
    size_t middle = fits + (too_long - fits) / 2;
    while (middle > fits && (static_cast<uint8_t>(text[middle]) & 0xC0) == 0x80) --middle;
    if (middle == fits) break;  // one character more is too long
    Result<Pair> longer = encode_by_template(tokenizer, source, query, text.substr(0, middle), most);
    if (!longer.ok() && longer.status().code() != Code::context_full) return longer;
    if (longer.ok()) pair = std::move(*longer), fits = middle;
    else too_long = middle;
  }
  return pair;
}

}  // namespace

Result<EncodedTexts> encode_pairs(const LanguageModel& model, std::string_view query, Span<const std::string_view> texts,
                                  const EmbedOptions& options) {
  const model::Description& d = model.description();
  if (!d.score)
    return error(Code::unsupported,
                 "the model '%.64s' has no head that scores a text by a query: expected a file whose key '%.64s.pooling_type' is 4 (rank)",
                 d.name.c_str(), d.family);
  ORRERY_TRY(check_limits(d, options));
  const size_t most = options.max_tokens ? options.max_tokens : static_cast<size_t>(d.trained_context);
  const text::Tokenizer& tokenizer = model.tokenizer();
  const std::string* source = model.vocabulary()->template_source(kPairTemplate);
  EncodedTexts out;
  out.dimensions = 1;
  for (size_t i = 0; i < texts.size(); ++i) {
    Result<Pair> pair = source ? encode_by_template(tokenizer, *source, query, texts[i], most)
                               : encode_by_separator(tokenizer, query, texts[i], most, options.truncate);
    if (source && options.truncate && !pair.ok() && pair.status().code() == Code::context_full)
      pair = encode_truncated(tokenizer, *source, query, texts[i], most);
    if (!pair.ok()) {
      Status status = pair.take_status();
      status.detail().message = "text " + std::to_string(i) + " with its query: " + status.detail().message;
      return status;
    }
    out.add(std::move(pair->tokens), pair->second);
  }
  return out;
}

Result<std::vector<float>> rank(const std::shared_ptr<LanguageModel>& model, const EncodedTexts& pairs, const EmbedOptions& options) {
  std::vector<float> scores;
  if (pairs.tokens.empty()) return scores;
  const model::Description& d = model->description();
  const auto n_embd = static_cast<size_t>(d.n_embd);
  ORRERY_TRY(compute(model, pairs, options, [&](Span<const float> rows) {
    const double odds =
        model::score_head::log_odds(d.score, model->weights().weights.score, rows.subspan(d.encoder ? 0 : rows.size() - n_embd, n_embd));
    scores.push_back(static_cast<float>(options.normalize ? 1.0 / (1.0 + std::exp(-odds)) : odds));
  }));
  return scores;
}

}  // namespace orrery::engine

// A vocabulary and a text, both hostile: whatever Tokenizer::from_vocab() accepts must encode any text into
// ids of the vocabulary, without control tokens unless they are asked for, and give the text back where it
// has every byte; and what TextStream shows of it is UTF-8 that no cut changes.
//
// Input: three bytes (family and pre-tokenizer, flags, special ids), then fields separated by 0x1E: tokens
// (one per line: type digit, score letter, text), merges (one per line), stop strings (one per line), the
// text.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer/pretokenize.h"
#include "runtime/text/streaming/stream.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/text/unicode/utf8.h"

using namespace orrery;
using namespace orrery::text;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (;;) {
    const size_t at = text.find(separator);
    out.push_back(text.substr(0, at));
    if (at == text.npos) return out;
    text.remove_prefix(at + 1);
  }
}

// Every byte as a token, as the family writes it.
std::vector<std::string> byte_tokens(bool bpe) {
  std::vector<std::string> out;
  for (uint32_t b = 0, next = 0x100; b < 256; b++) {
    std::string token;
    if (bpe) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      utf8_append(printable ? b : next++, &token);
    } else {
      const char* digits = "0123456789ABCDEF";
      token = {'<', '0', 'x', digits[b / 16], digits[b % 16], '>'};
    }
    out.push_back(token);
  }
  return out;
}

void check_pieces(PreTokenizer kind, std::string_view text) {
  std::vector<uint32_t> ends;
  pre_tokenize(kind, text, &ends);
  uint32_t from = 0;
  for (const uint32_t end : ends) {
    require(end > from && end <= text.size());
    from = end;
  }
  require(from == text.size());
}

void check_stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const std::vector<std::string>& stops) {
  Result<TextStream> stream = TextStream::create(stops);
  if (!stream.ok()) return;
  std::string shown, at_once, all;
  bool stopped = false;
  for (const int32_t id : ids) {
    all += tokenizer.token_bytes(id);
    if (stopped) continue;
    stopped = stream->feed(tokenizer.token_bytes(id), &shown);
    require(utf8_valid(shown));
  }
  stopped = stream->finish(&shown);
  require(utf8_valid(shown));
  for (const std::string& stop : stops) require(all.find(stop) == all.npos || stopped);
  stream->reset();
  require(((stream->feed(all, &at_once) || stream->finish(&at_once)) == stopped) && at_once == shown);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 3, size - 3);
  const bool bpe = (data[0] & 1) == 0, all_bytes = (data[1] & 1) != 0;
  VocabData vocab;
  vocab.model = bpe ? "gpt2" : (data[0] & 2) ? "bert" : "llama";
  vocab.lowercase = (data[0] >> 2 & 3) - 1, vocab.strip_accents = (data[0] >> 4 & 3) - 1;
  const auto aliases = pre_tokenizer_aliases();
  vocab.pre = aliases[static_cast<size_t>(data[0] >> 1) % aliases.size()].name;
  vocab.add_space_prefix = data[1] >> 1 & 1;
  vocab.remove_extra_whitespaces = (data[1] >> 2 & 1) != 0;
  vocab.strip_after_special = (data[1] >> 3 & 1) != 0;
  vocab.special.unk = (data[1] & 16) ? data[2] : -1;
  vocab.special.bos = (data[1] & 32) ? data[2] + 1 : -1;
  vocab.special.eos = (data[1] & 64) ? data[2] * 8 : -1;

  const std::vector<std::string> bytes = byte_tokens(bpe);
  if (all_bytes) {
    for (const std::string& token : bytes) {
      vocab.tokens.push_back(token);
      vocab.types.push_back(bpe ? 1 : 6);
      vocab.scores.push_back(0);
    }
  }
  const std::vector<std::string_view> fields = split(input, '\x1E');
  for (const std::string_view line : split(fields[0], '\n')) {
    if (line.size() < 2) continue;
    vocab.types.push_back(line[0] - '0');
    vocab.scores.push_back(static_cast<float>(line[1]));
    vocab.tokens.push_back(line.substr(2));
  }
  if (data[1] & 128) vocab.scores.clear();
  if (fields.size() > 1 && !fields[1].empty()) vocab.merges = split(fields[1], '\n');
  std::vector<std::string> stops;
  if (fields.size() > 2 && !fields[2].empty())
    for (const std::string_view stop : split(fields[2], '\n')) stops.emplace_back(stop);
  const std::string_view text = fields.size() > 3 ? fields[3] : std::string_view();

  check_pieces(aliases[static_cast<size_t>(data[0] >> 1) % aliases.size()].kind, text);
  Result<Tokenizer> tokenizer = Tokenizer::from_vocab(vocab);
  if (!tokenizer.ok()) {
    const ErrorDetail& e = tokenizer.status().detail();
    require(e.code == Code::bad_model && e.message.compare(0, 15, "tokenizer.ggml.") == 0 && utf8_valid(e.message));
    require(e.message.size() < 1000);
    return 0;
  }
  for (const bool parse_special : {false, true}) {
    EncodeOptions options;
    options.parse_special = parse_special;
    std::vector<int32_t> ids;
    require(tokenizer->encode(text, options, &ids).ok());
    std::string pieces;
    for (const int32_t id : ids) {
      require(id >= 0 && id < tokenizer->n_vocab());
      require(parse_special || !tokenizer->is_special(id) || id == tokenizer->unk());
      pieces += tokenizer->token_bytes(id);
    }
    if (all_bytes && bpe && !vocab.strip_after_special) {
      require(pieces == text);
      require(tokenizer->decode(ids, true) == text);
    }
    check_stream(*tokenizer, ids, stops);
    options.add_bos = options.add_eos = true;
    require(tokenizer->encode(text, options, &ids).ok());
  }
  for (int32_t id = -1; id <= tokenizer->n_vocab(); id++) {
    const int32_t found = tokenizer->find(tokenizer->token_bytes(id));
    require(found < tokenizer->n_vocab() && (found < 0 || tokenizer->token_bytes(found) == tokenizer->token_bytes(id)));
  }
  return 0;
}

// Encoding and decoding. Text is split at special tokens. The model's family (pretokenize + bpe, spm, or character_bpe)
// turns the text between special tokens into tokens.
#include "runtime/text/tokenizer/tokenizer.h"

#include <algorithm>

#include "runtime/text/tokenizer/tokenizer_impl.h"

namespace orrery::text {

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

int32_t Tokenizer::n_vocab() const { return impl_->table.size(); }
const SpecialTokens& Tokenizer::special() const { return impl_->special; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
bool Tokenizer::add_eos() const { return impl_->add_eos; }
Span<const int32_t> Tokenizer::end_of_generation() const { return impl_->end_of_generation; }
bool Tokenizer::is_end_of_generation(int32_t id) const {
  const auto& set = impl_->end_of_generation;
  return std::binary_search(set.begin(), set.end(), id);
}

TokenType Tokenizer::token_type(int32_t id) const {
  return id >= 0 && id < n_vocab() ? impl_->types[static_cast<size_t>(id)] : TokenType::unused;
}
bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < n_vocab() && impl_->is_special(id); }
std::string_view Tokenizer::token_bytes(int32_t id) const { return id >= 0 && id < n_vocab() ? impl_->table[id] : std::string_view(); }

int32_t Tokenizer::find(std::string_view bytes) const {
  int32_t id = impl_->text_index.find(impl_->table, bytes);
  if (id < 0 && bytes.size() == 1) id = impl_->byte_ids[static_cast<uint8_t>(bytes[0])];
  return id >= 0 ? id : impl_->name_index.find(impl_->table, bytes);
}

Status Tokenizer::encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>* out) const {
  const ByteRange whole = {0, text.size()};
  return encode_within(text, {&whole, options.parse_special ? size_t{1} : size_t{0}}, options, out);
}

Status Tokenizer::encode(TextView text, const EncodeOptions& options, std::vector<int32_t>* out) const {
  std::vector<ByteRange> written;
  size_t from = 0;
  if (options.parse_special)
    text.each_run([&](std::string_view run, Origin origin) {
      if (origin == Origin::chat_template) written.push_back({from, from + run.size()});
      from += run.size();
      return true;
    });
  return encode_within(text.bytes(), written, options, out);
}

Status Tokenizer::encode_within(std::string_view text, Span<const ByteRange> written, const EncodeOptions& options,
                                std::vector<int32_t>* out) const {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  if (text.size() >= kMaxBytes) return error(Code::invalid_argument, "a text of %zu bytes: expected less than %zu", text.size(), kMaxBytes);
  const size_t first = out->size();
  Status status = encode_bounded(text, written, options, out);
  if (!status.ok()) out->resize(first);
  return status;
}

Status Tokenizer::encode_bounded(std::string_view text, Span<const ByteRange> written, const EncodeOptions& options,
                                 std::vector<int32_t>* out) const {
  const Impl& impl = *impl_;
  const SpecialMatcher& matcher = written.empty() ? impl.user_defined : impl.all_special;
  Impl::Scratch scratch;
  const size_t first = out->size();
  const Impl::Bounds bounds = {options.cancel, options.max_tokens == 0 ? SIZE_MAX : first + options.max_tokens};
  const auto ended = [&] {
    if (is_cancelled(options.cancel)) return error(Code::cancelled, "encoding a text was cancelled");
    return memory_error(Code::context_full, out->size() - first, options.max_tokens,
                        "the text has at least %zu tokens, more than the %zu allowed", out->size() - first, options.max_tokens);
  };
  for (size_t at = 0; at < text.size();) {
    const SpecialMatcher::Match match = matcher.find(text, at, written, options.cancel);
    if (match.id < 0 && is_cancelled(options.cancel)) return ended();
    if (match.at > at && !impl.encode_text(text.substr(at, match.at - at), bounds, &scratch, out)) return ended();
    if (match.id < 0) break;
    out->push_back(match.id);
    if (!bounds.allow(out->size())) return ended();
    at = match.at + match.bytes;
    if (impl.swallows_space(match.id)) {
      at = text.find_first_not_of(" \t\n\v\f\r", at);
      if (at == text.npos) break;
    }
  }
  const int32_t bos = impl.special.bos, eos = impl.special.eos;
  if (options.add_bos && bos >= 0 && (out->size() == first || (*out)[first] != bos))
    out->insert(out->begin() + static_cast<ptrdiff_t>(first), bos);
  if (options.add_eos && eos >= 0) out->push_back(eos);
  return bounds.allow(out->size()) ? ok_status() : ended();
}

void Tokenizer::find_control(std::string_view text, std::vector<TokenSpan>* out) const {
  const ByteRange whole = {0, text.size()};
  for (size_t from = 0;;) {
    const SpecialMatcher::Match match = impl_->all_special.find(text, from, {&whole, 1});
    if (match.id < 0) return;
    if (is_special(match.id)) out->push_back({match.at, match.at + match.bytes, match.id});
    from = match.at + 1;
  }
}

std::string Tokenizer::decode(Span<const int32_t> ids, bool render_special) const {
  std::string out;
  bool prefix = impl_->add_space_prefix;  // whether the space prefix must still be removed
  for (const int32_t id : ids) {
    if (!is_special(id)) {
      std::string_view bytes = token_bytes(id);
      if (prefix && !bytes.empty() && bytes[0] == ' ') bytes.remove_prefix(1);
      prefix = false;
      out.append(bytes);
    } else if (render_special) {
      out.append(token_bytes(id));
    }
  }
  return out;
}

size_t Tokenizer::longest_token_bytes() const { return impl_->longest_token_bytes; }
size_t Tokenizer::max_text_bytes(size_t n_tokens) const {
  const size_t each = impl_->text_bytes_per_token;
  return each == 0 || n_tokens > SIZE_MAX / each ? SIZE_MAX : n_tokens * each;
}

bool Tokenizer::Impl::encode_text(std::string_view text, const Bounds& bounds, Scratch* scratch, std::vector<int32_t>* out) const {
  if (family == Family::spm) {
    normalize(text, &scratch->normalized);
    return spm.encode(scratch->normalized, special.unk, bounds.cancel, bounds.max_size, &scratch->spm, out);
  }
  if (family == Family::gemma4) {
    normalize(text, &scratch->normalized);
    return character_bpe.encode(scratch->normalized, special.unk, bounds.cancel, bounds.max_size, &scratch->character_bpe, out);
  }
  if (family == Family::wordpiece)
    return word_pieces.encode(text, special.unk, &scratch->word_pieces, [&](const std::vector<int32_t>& ids) {
      out->insert(out->end(), ids.begin(), ids.end());
      return bounds.allow(out->size());
    });
  scratch->ends.clear();
  if (!pre_tokenize(pre, text, &scratch->ends, bounds.cancel)) return false;
  size_t from = 0;
  for (const uint32_t end : scratch->ends) {
    if (!bounds.allow(out->size())) return false;
    const std::string_view piece = text.substr(from, end - from);
    from = end;
    if (ignore_merges || piece.size() == 1) {
      const int32_t id = piece.size() == 1 ? byte_ids[static_cast<uint8_t>(piece[0])] : text_index.find(table, piece);
      if (id >= 0) {
        out->push_back(id);
        continue;
      }
    }
    if (!bpe.encode(piece, special.unk, bounds.cancel, &scratch->bpe, out)) return false;
  }
  return bounds.allow(out->size());
}

// SentencePiece and Gemma 4 read U+2581 as a space, but not as an extra space. In SentencePiece one more space goes in front, so that the
// first word looks like all other words.
void Tokenizer::Impl::normalize(std::string_view text, std::string* out) const {
  if (remove_extra_whitespaces) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  out->clear();
  if (add_space_prefix && !text.empty()) out->push_back(' ');
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] == ' ' && remove_extra_whitespaces && text[i - 1] == ' ') continue;
    if (text[i] == '\xE2' && text.compare(i, 3, "\xE2\x96\x81") == 0) {
      out->push_back(' ');
      i += 2;
    } else {
      out->push_back(text[i]);
    }
  }
  if (remove_extra_whitespaces) out->resize(out->find_last_not_of(' ') + 1);  // npos + 1 is 0
}

// Phi-3's special tokens absorb the white space that templates write after them, except these three tokens.
bool Tokenizer::Impl::swallows_space(int32_t id) const {
  if (!strip_after_special) return false;
  const std::string_view name = table[id];
  return name != "<unk>" && name != "<s>" && name != "<|endoftext|>";
}

}  // namespace orrery::text

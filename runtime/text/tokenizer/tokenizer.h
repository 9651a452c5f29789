// Tokenizers: text -> token ids and back, as the model's GGUF describes them.  Two families: byte-level BPE
// ("gpt2": pre-tokenizer, then merges by rank) and SentencePiece BPE ("llama": merges by score, with byte
// fallback).  A Tokenizer is built once from a file's metadata (or a VocabData), owns everything it needs,
// and never changes afterwards: any number of threads may use one at the same time.
//
// Vocabularies come from strangers: whatever contradicts itself is refused as bad_model naming the key; a
// tokenizer or pre-tokenizer that is not known here is refused as unsupported, never approximated.
//
// No Unicode normalization is applied, whatever a publisher's own tokenizer does (Qwen's composes: NFC): what
// comes back out is what went in.
//
// Text is bytes. Where it is not valid UTF-8 every offending byte is encoded as that byte, so that a
// vocabulary with all 256 bytes gives decode(encode(x)) == x for any x (BPE exactly; SentencePiece up to its
// space prefix, and U+2581, which it cannot tell from a space).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::gguf {
class File;
}

namespace orrery::text {

enum class TokenType : uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

// Ids of the tokens with a role; -1 where the vocabulary has none.
struct SpecialTokens {
  int32_t bos = -1, eos = -1, eot = -1, eom = -1, unk = -1, pad = -1, sep = -1;
};

// What a GGUF says about a vocabulary, with nothing checked yet; the strings belong to the caller and are
// only read while a Tokenizer is made.
struct VocabData {
  std::string_view model;                // tokenizer.ggml.model: "gpt2" or "llama"
  std::string_view pre;                  // tokenizer.ggml.pre; "" where absent (BPE: "default")
  std::vector<std::string_view> tokens;  // (n_vocab)
  std::vector<float> scores;             // (n_vocab), or empty: all 0
  std::vector<int32_t> types;            // (n_vocab) TokenType, or empty: all normal
  std::vector<std::string_view> merges;  // "left right", best first; BPE only
  SpecialTokens special;                 // as in the file
  int add_bos = -1, add_eos = -1;        // 0, 1, or -1: the family's default
  int add_space_prefix = -1;  // SentencePiece: a space before every stretch of text between special tokens
  bool remove_extra_whitespaces = false;
  bool strip_after_special = false;  // Phi-3: whitespace after a special token belongs to it
};

// A stretch of text that spells a token's name.
struct TokenSpan {
  size_t begin = 0, end = 0;  // bytes
  int32_t id = -1;
};

struct EncodeOptions {
  bool add_bos = false;  // bos() first (never twice: not where the text itself begins with it)
  bool add_eos = false;  // eos() last
  bool parse_special =
      false;  // control tokens written in the text are recognized; leave false for users' text
  // Byte offsets, ascending, that no control token may span: where a spelling is known to be somebody's text.
  Span<const size_t> barriers = {};
  // More tokens than this, bos() and eos() included, end the encoding early as context_full; 0: no limit.
  size_t max_tokens = 0;
  // Set by another thread to end the encoding, which looks at it at least every millisecond or so.  May be null.
  const std::atomic<bool>* cancel = nullptr;
};

class Tokenizer {
 public:
  static Result<Tokenizer> from_gguf(const gguf::File& file);
  static Result<Tokenizer> from_vocab(const VocabData& vocab);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  int32_t n_vocab() const;
  const SpecialTokens& special() const;
  int32_t bos() const { return special().bos; }
  int32_t eos() const { return special().eos; }
  int32_t eot() const { return special().eot; }
  int32_t eom() const { return special().eom; }
  int32_t unk() const { return special().unk; }
  int32_t pad() const { return special().pad; }
  int32_t sep() const { return special().sep; }
  bool add_bos() const;  // the model wants bos() in front of a prompt: pass it on in EncodeOptions
  bool add_eos() const;

  // Eos, eot, eom, and the tokens that chat models end a turn with, by their text ("<|im_end|>",
  // "<|eot_id|>", ...). The set in ascending order:
  Span<const int32_t> end_of_generation() const;
  bool is_end_of_generation(int32_t id) const;

  // Ids outside [0, n_vocab()) are allowed in what follows: type `unused`, no bytes.
  TokenType token_type(int32_t id) const;
  bool is_special(int32_t id) const;  // control or unknown: has a name, but stands for no text
  // The bytes a token stands for: byte-level decoded; U+2581 as a space; "<0x0A>" as that byte; special
  // tokens by name. One token need not be whole UTF-8 characters. Lives as long as the Tokenizer.
  std::string_view token_bytes(int32_t id) const;
  // Appends token_bytes(id), special tokens only if `render_special`.
  void append_piece(int32_t id, bool render_special, std::string* out) const;
  // The token that stands for exactly these bytes (special tokens: by name), or -1; of several the lowest
  // id, text before special tokens.
  int32_t find(std::string_view bytes) const;

  // Appends to `out`.  Time is O(n log n) in the text at worst, whatever the text. Texts from 1 GiB on are
  // invalid_argument. BPE bytes that a vocabulary lacks become unk(), or are dropped where there is none.
  // Beyond options.max_tokens: context_full, whose detail holds the number of tokens reached (bytes_requested,
  // at least one too many; text may be left) and the limit (bytes_available).  After options.cancel: cancelled.
  // After an error `out` is as it was.
  Status encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>* out) const;
  // Appends every place where `text` spells the name of a control token, overlapping ones too, in order.
  void find_control(std::string_view text, std::vector<TokenSpan>* out) const;
  // Bytes of the longest token, special tokens by name.
  size_t longest_token_bytes() const;
  // A longer text than this encodes to more than `n_tokens` tokens, whatever it says, so it need not be encoded.
  // SIZE_MAX for vocabularies that may leave out any amount of text (white space, characters they lack).
  size_t max_text_bytes(size_t n_tokens) const;
  // The bytes of all tokens; SentencePiece: without the space that encode() put in front of the first word.
  std::string decode(Span<const int32_t> ids, bool render_special = false) const;

 private:
  friend struct TokenizerLoader;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  Status encode_bounded(std::string_view text, const EncodeOptions& options, std::vector<int32_t>* out) const;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace orrery::text

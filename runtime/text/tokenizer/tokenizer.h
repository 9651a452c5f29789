// Tokenizers: text -> token ids and back, as the model's GGUF describes. Four families: byte-level BPE ("gpt2":
// pre-tokenizer, then merges by rank), SentencePiece BPE ("llama": merges by score, with byte fallback), BPE over
// characters ("gemma4": merges by rank, with byte fallback), and WordPiece ("bert": the longest tokens of each word). A
// Tokenizer is built once from a file's metadata (or a VocabData), owns all its data, and never changes afterwards.
// Any number of threads may use it at the same time.
//
// Vocabularies are hostile input. A contradiction is refused as bad_model, and the error names the key. An unknown
// tokenizer or pre-tokenizer is refused as unsupported, never approximated. runtime/text/README.md says what encode()
// guarantees about bytes and Unicode.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/text/origin_text.h"

namespace orrery::gguf {
class File;
}

namespace orrery::text {

struct ByteRange;

enum class TokenType : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// Ids of the tokens with a role; -1 if the vocabulary has none.
struct SpecialTokens {
  int32_t bos = -1, eos = -1, eot = -1, eom = -1, unk = -1, pad = -1, sep = -1;
};

// Most tokens of a vocabulary, and most of its merges; published vocabularies have some hundred thousand. A file of 256 MiB could list 33
// million empty tokens, and whatever is built of them takes memory and time that nobody can stop.
constexpr size_t kMostVocabTokens = size_t{1} << 22;

// A GGUF's description of a vocabulary, not yet checked. The strings belong to the caller and are read only while a
// Tokenizer is built.
struct VocabData {
  std::string_view model;                // tokenizer.ggml.model: "gpt2", "llama", "gemma4" or "bert"
  std::string_view pre;                  // tokenizer.ggml.pre; "" if absent (BPE: "default")
  std::vector<std::string_view> tokens;  // (n_vocab)
  std::vector<float> scores;             // (n_vocab), or empty: all 0
  std::vector<int32_t> types;            // (n_vocab) TokenType, or empty: all normal
  std::vector<std::string_view> merges;  // "left right", best first; not SentencePiece
  SpecialTokens special;                 // as in the file
  int add_bos = -1, add_eos = -1;        // 0, 1, or -1: the family's default
  int add_space_prefix = -1;             // SentencePiece: a space before every text between special tokens
  bool remove_extra_whitespaces = false;
  int lowercase = -1, strip_accents = -1;  // WordPiece: 0, 1, or -1: yes; as lowercase
  bool strip_after_special = false;        // Phi-3: white space after a special token belongs to the token
};

// A part of a text that spells a token's name.
struct TokenSpan {
  size_t begin = 0, end = 0;  // bytes
  int32_t id = -1;
};

struct EncodeOptions {
  bool add_bos = false;        // bos() first, unless the text itself begins with bos()
  bool add_eos = false;        // eos() last
  bool parse_special = false;  // recognize control tokens in the text; keep false for users' text
  // Limit on the number of tokens, bos() and eos() included. Beyond it, the encoding ends early with context_full. 0:
  // no limit.
  size_t max_tokens = 0;
  // Set by another thread to end the encoding, which reads the flag about every millisecond. May be null.
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
  bool add_bos() const;  // the model wants bos() before a prompt; the caller passes this on in EncodeOptions
  bool add_eos() const;

  // Eos, eot, eom, and the tokens that end a turn of a chat model, found by their text ("<|im_end|>", "<|eot_id|>",
  // ...). Ascending.
  Span<const int32_t> end_of_generation() const;
  bool is_end_of_generation(int32_t id) const;

  // The functions below accept ids outside [0, n_vocab()): type `unused`, no bytes.
  TokenType token_type(int32_t id) const;
  bool is_special(int32_t id) const;  // control or unknown: the token has a name but stands for no text
  // The bytes of a token: byte-level decoded, U+2581 as a space, "<0x0A>" as that byte, special tokens by name. A
  // token need not hold whole UTF-8 characters. Valid as long as the Tokenizer.
  std::string_view token_bytes(int32_t id) const;
  // The token with exactly these bytes (special tokens: by name), or -1. Of several, text comes before special
  // tokens, then the lowest id wins.
  int32_t find(std::string_view bytes) const;

  // Appends tokens to `out`. Worst-case time is O(n log n) in the length of the text. Texts of 1 GiB or more are
  // invalid_argument. BPE bytes that the vocabulary lacks become unk(), or are dropped if it has no unk(). Beyond
  // options.max_tokens the error is context_full. Its detail holds the number of tokens reached (bytes_requested, at
  // least one above the limit; text may be left) and the limit (bytes_available). If options.cancel is set, the error
  // is cancelled. After an error, `out` is unchanged.
  Status encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>* out) const;
  // The same for the text of a chat template. With options.parse_special, control tokens are made of the template's bytes alone:
  // elsewhere the text encodes as if the vocabulary lacked the control tokens that it spells.
  Status encode(TextView text, const EncodeOptions& options, std::vector<int32_t>* out) const;
  // Appends every place where `text` spells the name of a control token, in order, overlapping places included.
  void find_control(std::string_view text, std::vector<TokenSpan>* out) const;
  // Bytes of the longest token, special tokens by name.
  size_t longest_token_bytes() const;
  // Every text longer than this encodes to more than `n_tokens` tokens, so the caller need not encode it. SIZE_MAX
  // for vocabularies that may drop any amount of text (white space, characters without a token).
  size_t max_text_bytes(size_t n_tokens) const;
  // The bytes of all tokens. SentencePiece: without the space that encode() put before the first word.
  std::string decode(Span<const int32_t> ids, bool render_special = false) const;

 private:
  friend struct TokenizerLoader;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  Status encode_within(std::string_view text, Span<const ByteRange> written, const EncodeOptions& options, std::vector<int32_t>* out) const;
  Status encode_bounded(std::string_view text, Span<const ByteRange> written, const EncodeOptions& options,
                        std::vector<int32_t>* out) const;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace orrery::text

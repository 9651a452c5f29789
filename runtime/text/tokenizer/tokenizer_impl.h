// The members of a Tokenizer. tokenizer_load.cpp builds and checks them; tokenizer.cpp uses them.
#pragma once

#include "runtime/text/tokenizer/bpe.h"
#include "runtime/text/tokenizer/character_bpe.h"
#include "runtime/text/pace.h"
#include "runtime/text/tokenizer/pretokenize.h"
#include "runtime/text/tokenizer/spm.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/text/tokenizer/tokenizer_special.h"
#include "runtime/text/tokenizer/tokenizer_vocab.h"
#include "runtime/text/tokenizer/wordpiece.h"

namespace orrery::text {

struct Tokenizer::Impl {
  enum class Family : uint8_t { bpe, spm, gemma4, wordpiece };
  Family family = Family::bpe;
  PreTokenizer pre = PreTokenizer::classic;
  bool ignore_merges = false;
  bool add_bos = false, add_eos = false;
  bool add_space_prefix = false;
  bool remove_extra_whitespaces = false;
  bool strip_after_special = false;

  TokenTable table;              // the bytes of all tokens
  std::vector<TokenType> types;  // (n_vocab)
  TokenIndex text_index;         // tokens that text may become: normal and user-defined
  TokenIndex name_index;         // control and unknown tokens, by name
  int32_t byte_ids[256];         // the token of each byte, or -1
  SpecialTokens special;
  std::vector<int32_t> end_of_generation;  // ascending
  SpecialMatcher user_defined;             // matched in every text
  SpecialMatcher all_special;              // with parse_special: control and unknown tokens too
  BpeModel bpe;
  SpmModel spm;
  CharacterBpe character_bpe;
  WordPieces word_pieces;
  size_t longest_token_bytes = 0;
  size_t text_bytes_per_token = 0;  // upper bound on the average over any text; 0: no bound

  struct Scratch {
    std::vector<uint32_t> ends;
    std::string normalized;
    BpeModel::Scratch bpe;
    SpmModel::Scratch spm;
    CharacterBpe::Scratch character_bpe;
    WordPieces::Scratch word_pieces;
  };
  bool is_special(int32_t id) const {
    const TokenType type = types[static_cast<size_t>(id)];
    return type == TokenType::control || type == TokenType::unknown;
  }
  // Limits of one encoding.
  struct Bounds {
    const std::atomic<bool>* cancel;
    size_t max_size;  // of `out`
    // Whether the encoding may continue with `size` tokens.
    bool allow(size_t size) const { return size <= max_size && !is_cancelled(cancel); }
  };
  // Encodes text without special tokens. Returns false if `bounds` ended the encoding.
  bool encode_text(std::string_view text, const Bounds& bounds, Scratch* scratch, std::vector<int32_t>* out) const;
  void normalize(std::string_view text, std::string* out) const;
  bool swallows_space(int32_t special) const;
};

}  // namespace orrery::text

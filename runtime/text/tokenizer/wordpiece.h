// WordPiece, as BERT has it. Text is cleaned (control characters go, white space becomes a space), Chinese characters stand alone, accents and
// upper case go where the vocabulary says so. Words end at white space, and each punctuation character is a word. A word is the longest token
// that begins it, then the longest token that continues it, and so on. A word that cannot be taken apart, or of more than 100 characters, is
// one unknown token.
//
// Tokens that begin a word are stored with a space before them (the file has U+2581 there), the others as they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer/tokenizer_vocab.h"

namespace orrery::text {

struct WordPieces {
  const TokenTable* table = nullptr;
  const TokenIndex* index = nullptr;
  size_t longest_bytes = 0;  // of a token
  bool lowercase = true, strip_accents = true;

  static constexpr size_t kMostCharacters = 100;  // of a word
  struct Scratch {
    std::string word;
    std::vector<int32_t> ids;
  };

  // Calls piece(ids) with the tokens of each word, until it returns false. unknown: -1: unknown words are dropped. Returns false if piece() did.
  template <class F>
  bool encode(std::string_view text, int32_t unknown, Scratch* scratch, const F& piece) const {
    bool goes_on = true;
    each_word(text, &scratch->word, [&](std::string_view word, size_t n_characters) {
      take_apart(word, n_characters, unknown, &scratch->ids);
      goes_on = piece(scratch->ids);
      return goes_on;
    });
    return goes_on;
  }

 private:
  struct Words;
  // A word has a space before it.
  using Visit = bool (*)(void* context, std::string_view word, size_t n_characters);
  void visit_words(std::string_view text, std::string* word, Visit visit, void* context) const;
  template <class F>
  void each_word(std::string_view text, std::string* word, const F& visit) const {
    visit_words(
        text, word, [](void* f, std::string_view w, size_t n) { return (*static_cast<const F*>(f))(w, n); }, const_cast<F*>(&visit));
  }
  void take_apart(std::string_view word, size_t n_characters, int32_t unknown, std::vector<int32_t>* ids) const;
};

}  // namespace orrery::text

#include "runtime/text/tokenizer/wordpiece.h"

#include <algorithm>

#include "runtime/text/unicode/accents.h"
#include "runtime/text/unicode/character_sets.h"
#include "runtime/text/unicode/python_characters.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::text {

namespace {

// The blocks that BERT calls Chinese.
bool is_chinese(uint32_t c) {
  static constexpr uint32_t kBlocks[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                                            {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return c >= 0x3400 && std::any_of(std::begin(kBlocks), std::end(kBlocks), [c](const auto& b) { return c >= b[0] && c <= b[1]; });
}

// U+0085 and other controls that are white space elsewhere are dropped.
bool is_space(uint32_t c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || (c > 0x85 && (char_set(c) & kSpace) != 0); }
// Control, format, private and unassigned characters, and bytes that are not UTF-8.
bool is_dropped(uint32_t c) { return c < 0x20 || c == 0x85 || c == 0xFFFD || char_set(c) == 0; }
bool is_punctuation(uint32_t c) {
  if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  return (char_set(c) & kPunctuation) != 0;
}

}  // namespace

void WordPieces::visit_words(std::string_view text, std::string* word, Visit visit, void* context) const {
  word->assign(1, ' ');
  size_t n_characters = 0;
  bool goes_on = true;
  const auto end_word = [&] {
    if (n_characters > 0) goes_on = visit(context, *word, n_characters);
    word->resize(1), n_characters = 0;
  };
  std::string changed;
  // A character behind all changes: white space ends a word, punctuation is a word.
  const auto take = [&](uint32_t c, std::string_view bytes) {
    if (is_space(c)) return end_word();
    const bool alone = is_punctuation(c);
    if (alone) end_word();
    // What is longer than any word that can be taken apart need not be kept.
    if (n_characters <= kMostCharacters) word->append(bytes);
    ++n_characters;
    if (alone) end_word();
  };
  for (size_t at = 0; at < text.size() && goes_on;) {
    const size_t n = unicode::sequence_length(text, at);
    const uint32_t c = unicode::decode(text, at);
    const std::string_view bytes = text.substr(at, n);
    at += n;
    if (is_space(c)) {
      end_word();
      continue;
    }
    if (is_dropped(c)) continue;
    const bool alone = is_chinese(c);
    if (alone) end_word();
    if (!goes_on) return;
    if (c < 0x80) {
      const char lower = static_cast<char>(lowercase && c >= 'A' && c <= 'Z' ? c + 32 : c);
      take(c, {&lower, 1});
    } else if (!lowercase && !strip_accents) {
      take(c, bytes);
    } else {
      changed.clear();
      if (strip_accents && lowercase) unicode::append_lower_without_accents(c, &changed);
      else if (lowercase) unicode::append_lower(c, &changed);
      else unicode::append_without_accents(c, &changed);
      for (size_t i = 0; i < changed.size() && goes_on;) {
        const size_t length = unicode::sequence_length(changed, i);
        take(unicode::decode(changed, i), std::string_view(changed).substr(i, length));
        i += length;
      }
    }
    if (alone && goes_on) end_word();
  }
  if (goes_on) end_word();
}

void WordPieces::take_apart(std::string_view word, size_t n_characters, int32_t unknown, std::vector<int32_t>* ids) const {
  ids->clear();
  const auto give_up = [&] {
    ids->clear();
    if (unknown >= 0) ids->push_back(unknown);
  };
  if (n_characters > kMostCharacters) return give_up();
  for (size_t at = 0; at < word.size();) {
    size_t n = std::min(word.size() - at, longest_bytes);
    int32_t id = -1;
    for (; n > 0; --n) {
      if (at + n < word.size() && (static_cast<uint8_t>(word[at + n]) & 0xC0) == 0x80) continue;  // inside a character
      if (at == 0 && n == 1) break;                                                               // the space alone
      id = index->find(*table, word.substr(at, n));
      if (id >= 0) break;
    }
    if (id < 0) return give_up();
    ids->push_back(id);
    at += n;
  }
}

}  // namespace orrery::text

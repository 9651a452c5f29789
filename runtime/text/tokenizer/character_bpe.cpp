// A run is also cut before a space, if no token has the byte before the space and the space side by side. No merge
// crosses such a place, so the result is the same, and most rows are words, which BpeModel merges fastest.
#include "runtime/text/tokenizer/character_bpe.h"

#include <algorithm>

#include "runtime/text/unicode/utf8.h"

namespace orrery::text {

void CharacterBpe::reset(const TokenTable* table, const TokenIndex* index, const int32_t* byte_ids, Span<const BpeModel::MergeRule> rules,
                         uint64_t seed) {
  table_ = table;
  index_ = index;
  std::copy(byte_ids, byte_ids + 256, byte_ids_);
  for (int c = 0; c < 128; c++) {
    const char byte = static_cast<char>(c);
    ascii_ids_[c] = index->find(*table, {&byte, 1});
  }
  std::fill(before_space_, before_space_ + 256, false);
  for (int32_t id = 0; id < table->size(); id++) {
    const std::string_view token = (*table)[id];
    for (size_t at = token.find(' ', 1); at != token.npos; at = token.find(' ', at + 1))
      before_space_[static_cast<uint8_t>(token[at - 1])] = true;
  }
  bpe_.reset(byte_ids, rules, seed);
}

bool CharacterBpe::encode(std::string_view text, int32_t unknown, const std::atomic<bool>* cancel, size_t max_size, Scratch* scratch,
                          std::vector<int32_t>* out) const {
  for (size_t from = 0, at = 0; from < text.size(); from = at) {
    const bool newlines = text[from] == '\n';
    for (at = from + 1; at < text.size() && (text[at] == '\n') == newlines; at++)
      if (text[at] == ' ' && !before_space_[static_cast<uint8_t>(text[at - 1])]) break;
    if (!encode_run(text.substr(from, at - from), unknown, cancel, scratch, out)) return false;
    if (out->size() > max_size || is_cancelled(cancel)) return false;
  }
  return true;
}

bool CharacterBpe::encode_run(std::string_view run, int32_t unknown, const std::atomic<bool>* cancel, Scratch* scratch,
                              std::vector<int32_t>* out) const {
  if (run[0] == '\n')
    if (const int32_t id = index_->find(*table_, run); id >= 0) {
      out->push_back(id);
      return true;
    }
  auto& row = scratch->row;
  row.clear();
  Pace pace(cancel);
  for (const char *p = run.data(), *end = p + run.size(); p < end;) {
    if (pace.stop()) return false;
    const uint32_t length = utf8_decode(p, end).length;
    const auto byte = static_cast<uint8_t>(*p);
    const int32_t id = byte < 0x80 ? ascii_ids_[byte] : index_->find(*table_, {p, length});
    if (id >= 0) row.push_back(id);
    else
      for (uint32_t i = 0; i < length; i++) row.push_back(byte_ids_[static_cast<uint8_t>(p[i])]);
    p += length;
  }
  return bpe_.encode_tokens(
      row.size(), [&](size_t i) { return row[i]; }, unknown, cancel, &scratch->bpe, out);
}

}  // namespace orrery::text

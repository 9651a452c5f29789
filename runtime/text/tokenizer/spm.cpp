// The text is cut before every space that follows another character, if no token crosses such a place. No merge
// crosses it either, so the result is the same, and the work on each part stays in the cache. In each part, a heap
// gives the next merge.
#include "runtime/text/tokenizer/spm.h"

#include <algorithm>

#include "runtime/text/unicode/utf8.h"

namespace orrery::text {
namespace {
constexpr uint32_t kNoSymbol = UINT32_MAX;
}  // namespace

void SpmModel::reset(const TokenTable* table, const TokenIndex* index, std::vector<float> scores, const int32_t* byte_ids) {
  table_ = table;
  index_ = index;
  scores_ = std::move(scores);
  std::copy(byte_ids, byte_ids + 256, byte_ids_);
  longest_ = 0;
  space_only_first_ = true;
  for (int32_t id = 0; id < table->size(); id++) {
    const std::string_view token = (*table)[id];
    longest_ = std::max(longest_, token.size());
    const size_t word = token.find_first_not_of(' ');
    if (word != token.npos && token.find(' ', word) != token.npos && index->find(*table, token) >= 0) space_only_first_ = false;
  }
}

bool SpmModel::encode(std::string_view text, int32_t unknown, const std::atomic<bool>* cancel, size_t max_size, Scratch* scratch,
                      std::vector<int32_t>* out) const {
  Pace pace(cancel);
  bool after_unknown = false;
  size_t from = 0;
  if (space_only_first_) {
    for (size_t i = 1; i < text.size(); i++) {
      if (text[i] != ' ' || text[i - 1] == ' ') continue;
      if (!encode_segment(text.substr(from, i - from), unknown, &after_unknown, &pace, scratch, out)) return false;
      if (out->size() > max_size) return false;
      from = i;
    }
  }
  if (from < text.size() && !encode_segment(text.substr(from), unknown, &after_unknown, &pace, scratch, out)) return false;
  return out->size() <= max_size;
}

bool SpmModel::encode_segment(std::string_view text, int32_t unknown, bool* after_unknown, Pace* pace, Scratch* scratch,
                              std::vector<int32_t>* out) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  symbols.clear();
  heap.clear();
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    if (pace->stop()) return false;
    const auto i = static_cast<uint32_t>(symbols.size());
    const uint32_t length = utf8_decode(p, end).length;
    symbols.push_back({static_cast<uint32_t>(p - text.data()), length, i - 1, i + 1});
    p += length;
  }
  symbols.back().next = kNoSymbol;

  using Candidate = Scratch::Candidate;
  const auto worse = [](const Candidate& a, const Candidate& b) { return a.score < b.score || (a.score == b.score && a.left > b.left); };
  // The candidate of a symbol and its right neighbour, if together they are a token.
  const auto candidate = [&](uint32_t left, Candidate* c) {
    const uint32_t right = symbols[left].next;
    if (right == kNoSymbol) return false;
    const uint32_t bytes = symbols[left].bytes + symbols[right].bytes;
    if (bytes > longest_) return false;
    const int32_t id = index_->find(*table_, text.substr(symbols[left].at, bytes));
    if (id < 0) return false;
    *c = {scores_[static_cast<size_t>(id)], left, bytes};
    return true;
  };
  const auto push = [&](uint32_t left) {
    Candidate c;
    if (!candidate(left, &c)) return;
    heap.push_back(c);
    std::push_heap(heap.begin(), heap.end(), worse);
  };
  for (uint32_t i = 0; i + 1 < symbols.size() && !pace->stop(); i++)
    if (Candidate c; candidate(i, &c)) heap.push_back(c);
  if (pace->stopped()) return false;
  std::make_heap(heap.begin(), heap.end(), worse);
  while (!heap.empty()) {
    if (pace->stop()) return false;
    std::pop_heap(heap.begin(), heap.end(), worse);
    const Candidate c = heap.back();
    heap.pop_back();
    const uint32_t left = c.left, right = symbols[left].next;
    // Symbols only grow, so equal length means equal text.
    if (symbols[left].bytes == 0 || right == kNoSymbol || symbols[left].bytes + symbols[right].bytes != c.bytes) continue;
    symbols[left].bytes = c.bytes;
    symbols[right].bytes = 0;
    symbols[left].next = symbols[right].next;
    if (symbols[left].next != kNoSymbol) symbols[symbols[left].next].previous = left;
    if (left != 0) push(symbols[left].previous);
    push(left);
  }

  for (uint32_t i = 0; i != kNoSymbol; i = symbols[i].next) {
    if (pace->stop()) return false;
    const std::string_view symbol = text.substr(symbols[i].at, symbols[i].bytes);
    const int32_t id = index_->find(*table_, symbol);
    if (id >= 0) {
      out->push_back(id);
      *after_unknown = false;
      continue;
    }
    const bool all_bytes = std::all_of(symbol.begin(), symbol.end(), [this](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; });
    if (all_bytes) {
      for (const char c : symbol) out->push_back(byte_ids_[static_cast<uint8_t>(c)]);
    } else if (unknown >= 0 && !*after_unknown) {
      out->push_back(unknown);
    }
    *after_unknown = !all_bytes;
  }
  return true;
}

}  // namespace orrery::text

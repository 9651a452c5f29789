// Two algorithms with the same result. Most pieces are words; searching the row again after every merge is fastest
// for them. Long pieces use a heap of (rank, place) over a linked row, so a megabyte of one letter takes O(n log n).
#include "runtime/text/tokenizer/bpe.h"

#include <algorithm>
#include <functional>

#include "runtime/text/tokenizer/tokenizer_vocab.h"

namespace orrery::text {

void BpeModel::reset(const int32_t* byte_ids, Span<const MergeRule> rules, uint64_t seed) {
  int32_t largest = -1;
  for (int b = 0; b < 256; b++) largest = std::max(largest, byte_ids_[b] = byte_ids[b]);
  std::vector<int32_t> byte_of_id(static_cast<size_t>(largest + 1), -1);
  for (int b = 0; b < 256; b++)
    if (byte_ids[b] >= 0) byte_of_id[static_cast<size_t>(byte_ids[b])] = b;
  const auto byte_of = [&](int32_t id) { return id <= largest ? byte_of_id[static_cast<size_t>(id)] : -1; };

  byte_merges_.assign(256 * 256, kNoMerge);
  size_t slots = 16;
  while (slots < rules.size() * 2) slots *= 2;
  rules_.assign(slots, Rule{});
  seed_ = seed;
  const size_t mask = slots - 1;
  const auto slot_of = [&](size_t rank) { return hash_pair(pair_of(rules[rank].left, rules[rank].right), seed) & mask; };
  constexpr size_t kAhead = 16;  // the table exceeds the cache, so look-ups overlap their misses
  for (size_t rank = 0; rank < rules.size(); rank++) {
    if (rank + kAhead < rules.size()) __builtin_prefetch(&rules_[slot_of(rank + kAhead)], 1);
    const MergeRule& rule = rules[rank];
    const uint64_t pair = pair_of(rule.left, rule.right);
    size_t i = slot_of(rank);
    while (rules_[i].pair != UINT64_MAX && rules_[i].pair != pair) i = (i + 1) & mask;
    if (rules_[i].pair == pair) continue;
    rules_[i] = {pair, static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(rule.merged)};
    if (const int32_t l = byte_of(rule.left), r = byte_of(rule.right); l >= 0 && r >= 0)
      byte_merges_[static_cast<size_t>(l) << 8 | static_cast<size_t>(r)] = rules_[i].merge;
  }
}

uint64_t BpeModel::merge_of(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return kNoMerge;
  const uint64_t pair = pair_of(left, right);
  const size_t mask = rules_.size() - 1;
  for (size_t i = hash_pair(pair, seed_) & mask;; i = (i + 1) & mask) {
    const Rule& rule = rules_[i];
    if (rule.pair == pair || rule.pair == UINT64_MAX) return rule.merge;
  }
}

bool BpeModel::encode(std::string_view piece, int32_t unknown, const std::atomic<bool>* cancel, Scratch* scratch,
                      std::vector<int32_t>* out) const {
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(piece[i])); };
  const size_t n = piece.size();
  if (n > kShortPiece)
    return encode_tokens(
        n, [&](size_t i) { return byte_ids_[byte(i)]; }, unknown, cancel, scratch, out);
  int32_t ids[kShortPiece];
  uint64_t merges[kShortPiece];
  for (size_t i = 0; i < n; i++) ids[i] = byte_ids_[byte(i)];
  for (size_t i = 0; i + 1 < n; i++) merges[i] = byte_merges_[byte(i) << 8 | byte(i + 1)];
  merge_short(ids, merges, n, unknown, out);
  return true;
}

void BpeModel::merge_short(int32_t* ids, uint64_t* merges, size_t n, int32_t unknown, std::vector<int32_t>* out) const {
  while (n > 1) {
    const uint64_t* best = std::min_element(merges, merges + n - 1);  // the first of equal merges
    if (*best == kNoMerge) break;
    const auto i = static_cast<size_t>(best - merges);
    ids[i] = static_cast<int32_t>(*best & UINT32_MAX);
    n--;
    for (size_t j = i + 1; j < n; j++) ids[j] = ids[j + 1];
    for (size_t j = i + 1; j + 1 < n; j++) merges[j] = merges[j + 1];
    if (i > 0) merges[i - 1] = merge_of(ids[i - 1], ids[i]);
    if (i + 1 < n) merges[i] = merge_of(ids[i], ids[i + 1]);
  }
  for (size_t i = 0; i < n; i++) {
    const int32_t id = ids[i] >= 0 ? ids[i] : unknown;
    if (id >= 0) out->push_back(id);
  }
}

bool BpeModel::merge_long(int32_t unknown, Pace* pace, Scratch* scratch, std::vector<int32_t>* out) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;  // rank << 32 | place of the left token; the smallest on top
  const auto n = static_cast<uint32_t>(symbols.size());
  heap.clear();
  const auto key_of = [&](uint32_t left) {
    const uint32_t right = symbols[left].next;
    if (right == kNobody) return kNoMerge;
    const uint64_t merge = merge_of(symbols[left].id, symbols[right].id);
    return merge == kNoMerge ? kNoMerge : (merge & ~uint64_t{UINT32_MAX}) | left;
  };
  const auto push = [&](uint32_t left) {
    const uint64_t key = key_of(left);
    if (key == kNoMerge) return;
    heap.push_back(key);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (uint32_t i = 0; i + 1 < n && !pace->stop(); i++)
    if (const uint64_t key = key_of(i); key != kNoMerge) heap.push_back(key);
  if (pace->stopped()) return false;
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  constexpr int32_t kMergedAway = -2;
  while (!heap.empty()) {
    if (pace->stop()) return false;
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t key = heap.back();
    heap.pop_back();
    const auto left = static_cast<uint32_t>(key & UINT32_MAX);
    // A rank identifies its pair. If the place now has another pair, the entry is stale.
    if (symbols[left].id == kMergedAway || key_of(left) != key) continue;
    const uint32_t right = symbols[left].next;
    symbols[left].id = static_cast<int32_t>(merge_of(symbols[left].id, symbols[right].id) & UINT32_MAX);
    symbols[right].id = kMergedAway;
    symbols[left].next = symbols[right].next;
    if (symbols[left].next != kNobody) symbols[symbols[left].next].previous = left;
    if (left != 0) push(symbols[left].previous);
    push(left);
  }
  for (uint32_t i = 0; i != kNobody && !pace->stop(); i = symbols[i].next) {
    const int32_t id = symbols[i].id >= 0 ? symbols[i].id : unknown;
    if (id >= 0) out->push_back(id);
  }
  return !pace->stopped();
}

}  // namespace orrery::text

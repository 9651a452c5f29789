#include "runtime/text/tokenizer/tokenizer_special.h"

#include <algorithm>

// std::string_view compares bytes as unsigned numbers; this file relies on that order.
namespace orrery::text {

void SpecialMatcher::reset(std::vector<Entry> entries) {
  entries_ = std::move(entries);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [](const Entry& e) { return e.name.empty() || e.name.size() > kMaxBytes; }),
                 entries_.end());
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.name != b.name ? a.name < b.name : a.id < b.id; });
  entries_.erase(std::unique(entries_.begin(), entries_.end(),
                             [](const Entry& a, const Entry& b) { return a.name == b.name; }),
                 entries_.end());
  std::fill(first_bytes_, first_bytes_ + 256, false);
  for (const Entry& e : entries_) first_bytes_[static_cast<uint8_t>(e.name[0])] = true;
}

SpecialMatcher::Match SpecialMatcher::find(std::string_view text, size_t from) const {
  if (entries_.empty()) return {text.size(), 0, -1};
  for (size_t at = from; at < text.size(); at++) {
    if (!first_bytes_[static_cast<uint8_t>(text[at])]) continue;
    const Entry* low = entries_.data();
    const Entry* high = low + entries_.size();
    const Entry* longest = nullptr;
    for (size_t depth = 0; low != high && at + depth < text.size(); depth++) {
      // All names in [low, high) match the text up to depth. A name that ends here sorts first, and at most one does.
      const auto byte = static_cast<uint8_t>(text[at + depth]);
      const auto byte_of = [depth](const Entry& e) {
        return depth < e.name.size() ? static_cast<int>(static_cast<uint8_t>(e.name[depth])) : -1;
      };
      low = std::partition_point(low, high, [&](const Entry& e) { return byte_of(e) < byte; });
      high = std::partition_point(low, high, [&](const Entry& e) { return byte_of(e) == byte; });
      if (low != high && low->name.size() == depth + 1) longest = low;
    }
    if (longest) return {at, longest->name.size(), longest->id};
  }
  return {text.size(), 0, -1};
}

}  // namespace orrery::text

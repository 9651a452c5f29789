#include "runtime/text/tokenizer/tokenizer_special.h"

#include <algorithm>

#include "runtime/text/pace.h"

// See tokenizer_special.h. std::string_view compares bytes as unsigned, which is the order used here.
namespace orrery::text {

void SpecialMatcher::reset(std::vector<Entry> entries) {
  entries_ = std::move(entries);
  entries_.erase(
      std::remove_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.name.empty() || e.name.size() > kMaxBytes; }),
      entries_.end());
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.name != b.name ? a.name < b.name : a.id < b.id; });
  entries_.erase(std::unique(entries_.begin(), entries_.end(),
                             [](const Entry& a, const Entry& b) { return a.name == b.name && a.control == b.control; }),
                 entries_.end());
  std::fill(first_bytes_, first_bytes_ + 256, false);
  for (const Entry& e : entries_) first_bytes_[static_cast<uint8_t>(e.name[0])] = true;
}

SpecialMatcher::Match SpecialMatcher::find(std::string_view text, size_t from, Span<const ByteRange> written,
                                           const std::atomic<bool>* cancel) const {
  const Match none = {text.size(), 0, -1};
  if (entries_.empty()) return none;
  Pace pace(cancel);
  const auto* range = std::partition_point(written.begin(), written.end(), [&](const ByteRange& r) { return r.end <= from; });
  for (size_t at = from; at < text.size(); at++) {
    if (!first_bytes_[static_cast<uint8_t>(text[at])]) continue;
    while (range != written.end() && range->end <= at) ++range;
    const size_t control_bytes = range != written.end() && range->begin <= at ? range->end - at : 0;
    const Entry* low = entries_.data();
    const Entry* high = low + entries_.size();
    const Entry* longest = nullptr;
    for (size_t depth = 0; low != high && at + depth < text.size(); depth++) {
      if (pace.stop()) return none;
      // All of [low, high) agree with the text up to depth. Those that end here sort first; there are two at most.
      const auto byte = static_cast<uint8_t>(text[at + depth]);
      const auto byte_of = [depth](const Entry& e) {
        return depth < e.name.size() ? static_cast<int>(static_cast<uint8_t>(e.name[depth])) : -1;
      };
      low = std::partition_point(low, high, [&](const Entry& e) { return byte_of(e) < byte; });
      high = std::partition_point(low, high, [&](const Entry& e) { return byte_of(e) == byte; });
      for (const Entry* e = low; e != high && e->name.size() == depth + 1; ++e) {
        if (e->control && depth >= control_bytes) continue;
        longest = e;
        break;
      }
    }
    if (longest) return {at, longest->name.size(), longest->id};
  }
  return none;
}

}  // namespace orrery::text

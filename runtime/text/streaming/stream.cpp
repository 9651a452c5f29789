// The automaton of TextStream: each byte costs amortized constant time (times the logarithm of a node's children).
#include "runtime/text/streaming/stream.h"

#include <algorithm>
#include <numeric>

#include "runtime/text/unicode/utf8.h"

namespace orrery::text {

TextStream::TextStream() : nodes_(1) {}

Result<TextStream> TextStream::create(Span<const std::string> stops) {
  constexpr size_t kMaxBytes = 1u << 20;
  TextStream stream;
  size_t total = 0;
  for (size_t i = 0; i < stops.size(); i++) {
    if (stops[i].empty()) return error(Code::invalid_argument, "stop string %zu is empty", i);
    if (stops[i].size() > kMaxBytes - total) return error(Code::invalid_argument, "stop strings of more than %zu bytes in all", kMaxBytes);
    total += stops[i].size();
    stream.stop_bytes_.push_back(static_cast<uint32_t>(stops[i].size()));
  }
  // After sorting, strings with a common prefix are adjacent, so all nodes of one depth come out in order: strings of
  // a range that share `depth` bytes form one node. Of equal strings, the first is the match.
  std::vector<uint32_t> order(stops.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int compared = stops[a].compare(stops[b]);
    return compared != 0 ? compared < 0 : a < b;
  });
  struct Range {
    uint32_t begin, end;  // part of `order`: the stop strings that begin with the node's prefix
  };
  std::vector<Range> ranges{{0, static_cast<uint32_t>(order.size())}};  // parallel to nodes_
  for (uint32_t at = 0; at < stream.nodes_.size(); at++) {
    const uint32_t depth = stream.nodes_[at].depth;
    Range rest = ranges[at];
    for (; rest.begin < rest.end && stops[order[rest.begin]].size() == depth; rest.begin++)
      if (stream.nodes_[at].match < 0) stream.nodes_[at].match = static_cast<int32_t>(order[rest.begin]);
    stream.nodes_[at].first_child = static_cast<uint32_t>(stream.nodes_.size());
    while (rest.begin < rest.end) {
      const auto byte_of = [&](uint32_t i) { return static_cast<uint8_t>(stops[order[i]][depth]); };
      Node child;
      child.byte = byte_of(rest.begin);
      child.depth = depth + 1;
      const uint32_t begin = rest.begin;
      while (rest.begin < rest.end && byte_of(rest.begin) == child.byte) rest.begin++;
      stream.nodes_.push_back(child);
      ranges.push_back({begin, rest.begin});
      stream.nodes_[at].n_children++;
    }
  }
  // A node's fail link leads to a shallower node, which is complete by then.
  for (uint32_t at = 0; at < stream.nodes_.size(); at++) {
    const Node node = stream.nodes_[at];
    for (uint32_t c = node.first_child; c < node.first_child + node.n_children; c++) {
      if (at != 0) stream.nodes_[c].fail = stream.step(node.fail, stream.nodes_[c].byte);
      if (stream.nodes_[c].match < 0) stream.nodes_[c].match = stream.nodes_[stream.nodes_[c].fail].match;
    }
  }
  return stream;
}

uint32_t TextStream::child(uint32_t node, uint8_t byte) const {
  const auto first = nodes_.begin() + nodes_[node].first_child, end = first + nodes_[node].n_children;
  const auto at = std::lower_bound(first, end, byte, [](const Node& n, uint8_t b) { return n.byte < b; });
  return at != end && at->byte == byte ? static_cast<uint32_t>(at - nodes_.begin()) : 0;
}

uint32_t TextStream::step(uint32_t node, uint8_t byte) const {
  for (;;) {
    const uint32_t c = child(node, byte);
    if (c != 0 || node == 0) return c;
    node = nodes_[node].fail;
  }
}

bool TextStream::feed(std::string_view bytes, std::string* out) {
  if (stopped_) return true;
  for (const char c : bytes) {
    held_.push_back(c);
    state_ = step(state_, static_cast<uint8_t>(c));
    const Node& node = nodes_[state_];
    if (node.match >= 0) {
      // If the starts are equal, a shorter stop string is already the candidate and stays the candidate.
      const size_t at = held_.size() - stop_bytes_[static_cast<size_t>(node.match)];
      if (candidate_ < 0 || at < candidate_at_) candidate_ = node.match, candidate_at_ = at;
    }
    if (candidate_ >= 0 && held_.size() - node.depth >= candidate_at_) {
      stopped_ = true;  // no stop string that began earlier can still complete
      emit(candidate_at_, true, out);
      return true;
    }
  }
  // The candidate, if any, begins after the open prefix.
  emit(held_.size() - nodes_[state_].depth, false, out);
  return false;
}

bool TextStream::finish(std::string* out) {
  if (stopped_) return true;
  stopped_ = candidate_ >= 0;
  emit(stopped_ ? candidate_at_ : held_.size(), true, out);
  state_ = 0;
  return stopped_;
}

void TextStream::reset() {
  held_.clear();
  state_ = 0;
  candidate_ = -1;
  candidate_at_ = 0;
  stopped_ = false;
}

// Moves the first `bytes` of held_ to *out. An incomplete character at their end stays, unless the bytes are the
// `last` of the text, or the next byte in held_ does not continue the character.
void TextStream::emit(size_t bytes, bool last, std::string* out) {
  const std::string_view held(held_), ready = held.substr(0, bytes);
  size_t tail = last ? 0 : utf8_incomplete_tail(ready);
  if (tail != 0 && bytes < held.size()) {
    const std::string_view longer = held.substr(bytes - tail, tail + 1);
    if (!utf8_valid(longer) && utf8_incomplete_tail(longer) != tail + 1) tail = 0;
  }
  const size_t n = bytes - tail;
  utf8_append_valid(ready.substr(0, n), out);
  if (last) {
    held_.clear();
  } else {
    held_.erase(0, n);
    candidate_at_ -= candidate_ >= 0 ? n : 0;
  }
}

}  // namespace orrery::text

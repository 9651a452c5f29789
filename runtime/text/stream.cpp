// The automaton of TextStream: each byte costs amortized constant time (times the children of a node).
#include "runtime/text/stream.h"

#include "runtime/text/utf8.h"

namespace orrery::text {

TextStream::TextStream() : nodes_(1) {}

Result<TextStream> TextStream::create(Span<const std::string> stops) {
  constexpr size_t kMaxBytes = 1u << 20;
  TextStream stream;
  size_t total = 0;
  for (size_t i = 0; i < stops.size(); i++) {
    if (stops[i].empty()) return error(Code::invalid_argument, "stop string %zu is empty", i);
    if (stops[i].size() > kMaxBytes - total)
      return error(Code::invalid_argument, "stop strings of more than %zu bytes in all", kMaxBytes);
    total += stops[i].size();
    uint32_t node = 0;
    for (const char c : stops[i]) {
      const auto byte = static_cast<uint8_t>(c);
      uint32_t next = stream.child(node, byte);
      if (next == 0) {
        next = static_cast<uint32_t>(stream.nodes_.size());
        Node fresh;
        fresh.byte = byte;
        fresh.depth = stream.nodes_[node].depth + 1;
        fresh.next_sibling = stream.nodes_[node].first_child;
        stream.nodes_.push_back(fresh);
        stream.nodes_[node].first_child = next;
      }
      node = next;
    }
    if (stream.nodes_[node].match < 0)
      stream.nodes_[node].match = static_cast<int32_t>(i);  // the first of equals
    stream.stop_bytes_.push_back(static_cast<uint32_t>(stops[i].size()));
  }
  // Breadth first: a node's fail is shallower than itself, so it is finished when it is needed.
  std::vector<uint32_t> queue{0};
  for (size_t at = 0; at < queue.size(); at++) {
    const uint32_t node = queue[at];
    for (uint32_t c = stream.nodes_[node].first_child; c != 0; c = stream.nodes_[c].next_sibling) {
      if (node != 0) stream.nodes_[c].fail = stream.step(stream.nodes_[node].fail, stream.nodes_[c].byte);
      if (stream.nodes_[c].match < 0) stream.nodes_[c].match = stream.nodes_[stream.nodes_[c].fail].match;
      queue.push_back(c);
    }
  }
  return stream;
}

uint32_t TextStream::child(uint32_t node, uint8_t byte) const {
  uint32_t c = nodes_[node].first_child;
  while (c != 0 && nodes_[c].byte != byte) c = nodes_[c].next_sibling;
  return c;
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
      // An equal start means that a shorter stop string is already the candidate, and it stays.
      const size_t at = held_.size() - stop_bytes_[static_cast<size_t>(node.match)];
      if (candidate_ < 0 || at < candidate_at_) candidate_ = node.match, candidate_at_ = at;
    }
    if (candidate_ >= 0 && held_.size() - node.depth >= candidate_at_) {
      stopped_ = true;  // nothing that began earlier is still open
      emit(candidate_at_, true, out);
      return true;
    }
  }
  // The candidate, if any, begins behind the open prefix.
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

// Moves the first `bytes` of held_ to *out, all but an incomplete character at their end unless they are the
// `last` or the byte behind them, already here, does not go on with it.
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

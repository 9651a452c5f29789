// From generated tokens to text that can be shown. Token bytes enter with any cut, even inside a character. Whole
// UTF-8 characters leave. Bytes that may still belong to a stop string are withheld.
//
// If the text has several stop strings, the one that begins first counts; of two that begin at the same place, the
// shorter counts. The result therefore depends on the text alone, not on the cuts. The text before the stop string is
// emitted; the stop string and all later text is not. runtime/text/README.md says when bytes are withheld and when
// they are emitted.
// At most the longest stop string plus three bytes are withheld. Buffers grow to that size once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery::text {

class TextStream {
 public:
  // A stream without stop strings.
  TextStream();
  // An empty stop string, or more than 1 MiB of stop strings, is invalid_argument.
  static Result<TextStream> create(Span<const std::string> stops);

  // Takes a token's bytes and appends the text that can be shown now to *out. Returns true once a stop string has
  // been found; later bytes are ignored.
  bool feed(std::string_view bytes, std::string* out);
  // Ends the text: appends the withheld bytes. Returns true if a stop string was found, now or earlier.
  bool finish(std::string* out);
  // The index of the stop string that was found, or -1.
  int32_t stop_index() const { return stopped_ ? candidate_ : -1; }
  size_t withheld_bytes() const { return held_.size(); }
  // Prepares for another text with the same stop strings.
  void reset();

 private:
  // The stop strings as an Aho-Corasick automaton: a node is a prefix of one or more stop strings. Nodes are ordered
  // by depth. The children of a node are adjacent, by rising byte. `match` is the longest stop string that ends at
  // the node.
  struct Node {
    uint32_t first_child = 0;
    uint32_t fail = 0;  // the longest proper suffix that is also a prefix
    uint32_t depth = 0;
    int32_t match = -1;
    uint16_t n_children = 0;
    uint8_t byte = 0;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;
  uint32_t step(uint32_t node, uint8_t byte) const;
  void emit(size_t bytes, bool last, std::string* out);

  std::vector<Node> nodes_;
  std::vector<uint32_t> stop_bytes_;  // length of each stop string
  std::string held_;                  // text not yet emitted
  uint32_t state_ = 0;                // the longest suffix of the text that begins a stop string
  int32_t candidate_ = -1;            // a complete stop string, at held_[candidate_at_]
  size_t candidate_at_ = 0;
  bool stopped_ = false;
};

}  // namespace orrery::text

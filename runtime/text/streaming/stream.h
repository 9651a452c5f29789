// From generated tokens to text that can be shown: bytes go in as tokens give them (cut anywhere, even inside
// a character), whole UTF-8 characters come out, and nothing that may yet turn out to belong to a stop
// string.
//
// Of several stop strings in the text the one that begins first counts; of those that begin at the same place
// the shortest. So the outcome depends on the text alone, not on how it was cut.  What stands before it is
// emitted; it and everything behind it is not.  While a stop string that began earlier may still be
// completed, a later one that is already complete waits for it.
//
// Stop strings are compared with the bytes as they come; then bytes that are not UTF-8 become U+FFFD (one for
// each maximal ill-formed part) as soon as no further byte can repair them, at the latest in finish().
// Withheld is never more than the longest stop string plus three bytes; buffers grow to that once.
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
  // No stop strings.
  TextStream();
  // An empty stop string, or more than 1 MiB of them, is invalid_argument.
  static Result<TextStream> create(Span<const std::string> stops);

  // Takes a token's bytes; appends to *out what can be shown now.  True once a stop string has been found:
  // from then on bytes are ignored.
  bool feed(std::string_view bytes, std::string* out);
  // The text ends here: appends what was withheld.  True if a stop string was found (now or before).
  bool finish(std::string* out);
  // The index of the stop string that was found, or -1.
  int32_t stop_index() const { return stopped_ ? candidate_ : -1; }
  size_t withheld_bytes() const { return held_.size(); }
  // Ready for another text, with the same stop strings.
  void reset();

 private:
  // The stop strings as an Aho-Corasick automaton: a node is a prefix of some of them.  Nodes stand in order of
  // depth, and the children of a node side by side, by rising byte; `match` is the longest stop string that ends here.
  struct Node {
    uint32_t first_child = 0;
    uint32_t fail = 0;  // the longest proper suffix that is a prefix too
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

// A vocabulary as a tree of bytes, in depth-first order, so that all tokens are tried at once: a refused node's subtree is skipped by
// adding its size. Control, unknown, unused and padding tokens are not in it, nor are tokens longer than 2,047 bytes.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace orrery::text::grammar {

struct LeafMask;

class TokenTrie {
 public:
  struct Node {
    uint32_t size : 24;  // nodes of the subtree, this one included
    uint32_t byte : 8;
    uint32_t depth : 11;  // of the byte in its token
    uint32_t token : 21;  // or kNoToken
  };
  static constexpr uint32_t kNoToken = (1u << 21) - 1;
  static constexpr size_t kLongest = 2047;

  // `tokens` (n_vocab): the bytes of each id; an empty text is left out. `ends`: the ids that may end an answer; they must be empty texts.
  static Result<std::shared_ptr<TokenTrie>> make(const std::vector<std::string_view>& tokens, std::vector<int32_t> ends);
  static Result<std::shared_ptr<TokenTrie>> make(const Tokenizer& tokenizer);
  ~TokenTrie();

  uint32_t n_vocab() const { return n_vocab_; }
  size_t n_words() const { return (size_t{n_vocab_} + 31) / 32; }  // of a mask
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<uint8_t>& plain() const { return plain_; }    // (nodes) plain_heights()
  const std::vector<uint8_t>& groups() const { return groups_; }  // (nodes) groups_below()
  uint32_t depth() const { return depth_; }                       // bytes of the longest token
  const std::vector<int32_t>& ends() const { return ends_; }
  std::string_view bytes(int32_t id) const {  // empty: not in the tree
    return std::string_view(text_).substr(offset_[static_cast<size_t>(id)],
                                          offset_[static_cast<size_t>(id) + 1] - offset_[static_cast<size_t>(id)]);
  }
  // The token of exactly these bytes, or -1; the longest token that begins `text`.
  int32_t longest_prefix(std::string_view text) const;
  // The text as tokens, the longest one each time; at most `most`, and none from a byte on that begins no token.
  std::vector<int32_t> cut(std::string_view text, size_t most) const;
  size_t memory_bytes() const;

  // Masks of automata that call no rule, by a digest of the automaton, so that grammars share them: text in quotes, numbers, keys.
  std::shared_ptr<LeafMask> find_leaf(const std::string& digest) const;
  void keep_leaf(const std::string& digest, std::shared_ptr<LeafMask> mask) const;

 private:
  TokenTrie() = default;
  static Result<std::shared_ptr<TokenTrie>> build(std::string text, std::vector<uint32_t> offset, std::vector<int32_t> ends);

  uint32_t n_vocab_ = 0, depth_ = 0;
  std::vector<Node> nodes_;
  std::vector<uint8_t> plain_, groups_;
  std::vector<int32_t> ends_;
  std::string text_;              // all tokens' bytes
  std::vector<uint32_t> offset_;  // (n_vocab + 1) in text_
  mutable std::mutex mutex_;      // of what follows
  mutable std::unordered_map<std::string, std::shared_ptr<LeafMask>> leaves_;
  mutable size_t leaf_bytes_ = 0;
};

}  // namespace orrery::text::grammar

#include "runtime/text/grammar/run/token_trie.h"

#include <algorithm>
#include <cstring>

#include "runtime/text/grammar/run/local_masks.h"
#include "runtime/text/grammar/run/plain_text.h"

namespace orrery::text::grammar {
namespace {

constexpr size_t kMostLeafBytes = 64u << 20;

// The first eight bytes as a number whose order is the bytes' order.
uint64_t sort_key(std::string_view bytes) {
  uint64_t key = 0;
  for (size_t i = 0; i < 8; ++i) key = key << 8 | (i < bytes.size() ? static_cast<uint8_t>(bytes[i]) : 0);
  return key;
}

// GGUF files fill a vocabulary up with ordinary tokens of this name.
bool is_padding(std::string_view bytes, int32_t id) {
  return bytes.size() > 5 && bytes.substr(0, 4) == "[PAD" && bytes == "[PAD" + std::to_string(id) + "]";
}

}  // namespace

TokenTrie::~TokenTrie() = default;

Result<std::shared_ptr<TokenTrie>> TokenTrie::make(const std::vector<std::string_view>& tokens, std::vector<int32_t> ends) {
  std::string text;
  std::vector<uint32_t> offset = {0};
  for (const std::string_view token : tokens) {
    if (token.size() <= kLongest) text += token;
    offset.push_back(static_cast<uint32_t>(text.size()));
  }
  return build(std::move(text), std::move(offset), std::move(ends));
}

Result<std::shared_ptr<TokenTrie>> TokenTrie::make(const Tokenizer& tokenizer) {
  std::vector<std::string_view> tokens(static_cast<size_t>(tokenizer.n_vocab()));
  for (int32_t id = 0; id < tokenizer.n_vocab(); ++id) {
    const TokenType type = tokenizer.token_type(id);
    if (type == TokenType::control || type == TokenType::unknown || type == TokenType::unused) continue;
    if (tokenizer.is_end_of_generation(id)) continue;
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (!is_padding(bytes, id)) tokens[static_cast<size_t>(id)] = bytes;
  }
  const Span<const int32_t> ends = tokenizer.end_of_generation();
  return make(tokens, std::vector<int32_t>(ends.begin(), ends.end()));
}

Result<std::shared_ptr<TokenTrie>> TokenTrie::build(std::string text, std::vector<uint32_t> offset, std::vector<int32_t> ends) {
  const size_t n = offset.size() - 1;
  if (n >= kNoToken) return error(Code::unsupported, "grammars take vocabularies of fewer than %u tokens, not %zu", kNoToken, n);
  std::shared_ptr<TokenTrie> trie(new TokenTrie);
  trie->n_vocab_ = static_cast<uint32_t>(n);
  trie->text_ = std::move(text);
  trie->offset_ = std::move(offset);
  trie->ends_ = std::move(ends);
  struct Sorted {
    uint64_t key;
    uint32_t id;
  };
  std::vector<Sorted> order;
  for (uint32_t id = 0; id < n; ++id) {
    const std::string_view bytes = trie->bytes(static_cast<int32_t>(id));
    if (!bytes.empty()) order.push_back({sort_key(bytes), id});
  }
  std::sort(order.begin(), order.end(), [&](const Sorted& a, const Sorted& b) {
    if (a.key != b.key) return a.key < b.key;
    const int compared = trie->bytes(static_cast<int32_t>(a.id)).compare(trie->bytes(static_cast<int32_t>(b.id)));
    return compared != 0 ? compared < 0 : a.id < b.id;
  });
  std::vector<uint32_t> path;  // the nodes of the last token's bytes
  std::string_view last;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back())
      trie->nodes_[path.back()].size = static_cast<uint32_t>(trie->nodes_.size() - path.back()) & 0xFFFFFF;
  };
  const auto open = [&](uint8_t byte, size_t depth, uint32_t token) {
    path.push_back(static_cast<uint32_t>(trie->nodes_.size()));
    trie->nodes_.push_back({1, byte, static_cast<uint32_t>(depth) & 0x7FF, token & kNoToken});
  };
  for (const Sorted& s : order) {
    const std::string_view bytes = trie->bytes(static_cast<int32_t>(s.id));
    size_t common = 0;
    while (common < bytes.size() && common < last.size() && bytes[common] == last[common]) ++common;
    if (common == bytes.size()) --common;  // equal texts: one more node of the same byte
    close(common);
    for (size_t d = common; d < bytes.size(); ++d) open(static_cast<uint8_t>(bytes[d]), d, d + 1 == bytes.size() ? s.id : kNoToken);
    last = bytes;
    trie->depth_ = std::max(trie->depth_, static_cast<uint32_t>(bytes.size()));
    if (trie->nodes_.size() >= (1u << 24))
      return error(Code::unsupported, "the vocabulary's texts need more than %u nodes of a tree", 1u << 24);
  }
  close(0);
  trie->nodes_.shrink_to_fit();
  trie->plain_ = plain_heights(trie->nodes_, trie->depth_);
  trie->groups_ = groups_below(trie->nodes_, trie->depth_);
  return trie;
}

int32_t TokenTrie::longest_prefix(std::string_view text) const {
  int32_t best = -1;
  size_t at = 0, end = nodes_.size(), depth = 0;
  while (at < end && depth < text.size()) {
    const Node& node = nodes_[at];
    if (node.byte != static_cast<uint8_t>(text[depth])) {
      at += node.size;
      continue;
    }
    if (node.token != kNoToken && (best < 0 || bytes(best).size() <= depth)) best = static_cast<int32_t>(node.token);
    if (node.size == 1) {  // an equal text's first node: the next one may have children
      at += 1;
      continue;
    }
    end = at + node.size;
    ++at;
    ++depth;
  }
  return best;
}

std::vector<int32_t> TokenTrie::cut(std::string_view text, size_t most) const {
  std::vector<int32_t> tokens;
  while (!text.empty() && tokens.size() < most) {
    const int32_t token = longest_prefix(text);
    if (token < 0) break;
    tokens.push_back(token);
    text.remove_prefix(bytes(token).size());
  }
  return tokens;
}

size_t TokenTrie::memory_bytes() const {
  return nodes_.capacity() * sizeof(Node) + plain_.capacity() + groups_.capacity() + text_.capacity() +
         offset_.capacity() * sizeof(uint32_t);
}

std::shared_ptr<LeafMask> TokenTrie::find_leaf(const std::string& digest) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = leaves_.find(digest);
  return at == leaves_.end() ? nullptr : at->second;
}

void TokenTrie::keep_leaf(const std::string& digest, std::shared_ptr<LeafMask> mask) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t bytes = mask->memory_bytes() + digest.size();
  if (leaf_bytes_ + bytes > kMostLeafBytes) {
    leaves_.clear();
    leaf_bytes_ = 0;
  }
  if (leaves_.emplace(digest, std::move(mask)).second) leaf_bytes_ += bytes;
}

}  // namespace orrery::text::grammar

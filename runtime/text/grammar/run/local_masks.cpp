#include "runtime/text/grammar/run/local_masks.h"

#include <algorithm>

#include "runtime/base/hash.h"

namespace orrery::text::grammar {
namespace {

constexpr size_t kMostRows = 4096;   // 1 KiB each
constexpr size_t kMostShared = 512;  // states of an automaton whose masks other grammars may use
constexpr size_t kMostSpaceBytes = 4u << 20;
constexpr uint32_t kSmallTree = 8;    // nodes that are walked without a look at their groups
constexpr uint32_t kKeptLimits = 64;  // numbers of rounds whose bits are kept

// Without a branch: half of the nodes have a token, in no order. The number of tokens added.
inline uint32_t add_if_token(uint32_t token, uint32_t* bits) {
  const uint32_t is = token != TokenTrie::kNoToken;
  bits[(token >> 5) & (0 - is)] |= is << (token & 31);
  return is;
}

}  // namespace

void Tokens::assign(std::vector<uint32_t> list, size_t n_words) {
  ids.clear();
  words.clear();
  if (list.size() < n_words) {
    list.shrink_to_fit();
    ids = std::move(list);
    return;
  }
  words.assign(n_words, 0);
  for (const uint32_t id : list) words[id >> 5] |= 1u << (id & 31);
}

void Tokens::assign_bits(std::vector<uint32_t> bits, size_t n_tokens) {
  ids.clear();
  words.clear();
  if (n_tokens >= bits.size()) {
    words = std::move(bits);
    return;
  }
  ids.reserve(n_tokens);
  for (size_t w = 0; w < bits.size(); ++w)
    for (uint32_t rest = bits[w], bit = 0; rest != 0; rest >>= 1, ++bit)
      if (rest & 1) ids.push_back(static_cast<uint32_t>(32 * w + bit));
}

void Tokens::add_to(uint32_t* mask) const {
  for (const uint32_t id : ids) mask[id >> 5] |= 1u << (id & 31);
  for (size_t i = 0; i < words.size(); ++i) mask[i] |= words[i];
}

void LeafMask::add_to(uint32_t* mask, size_t n_words, uint32_t most) const {
  const size_t n_rounds = rounds_begin.empty() ? 0 : rounds_begin.size() - 1;
  if (most + size_t{1} >= n_rounds) return tokens.add_to(mask);
  const uint32_t end = rounds_begin[most + 1];
  if (end < n_words / 2) {
    for (uint32_t i = 0; i < end; ++i) mask[by_rounds[i] >> 5] |= 1u << (by_rounds[i] & 31);
    return;
  }
  const std::vector<uint32_t>* words = nullptr;
  std::vector<uint32_t> made;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (most < limited_.size() && limited_[most]) words = limited_[most].get();
  }
  if (words == nullptr) {
    if (end * size_t{2} < by_rounds.size() || tokens.words.empty()) {
      made.assign(n_words, 0);
      for (uint32_t i = 0; i < end; ++i) made[by_rounds[i] >> 5] |= 1u << (by_rounds[i] & 31);
    } else {
      made = tokens.words;
      for (size_t i = end; i < by_rounds.size(); ++i) made[by_rounds[i] >> 5] &= ~(1u << (by_rounds[i] & 31));
    }
    words = &made;
    if (most < kKeptLimits) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (limited_.size() <= most) limited_.resize(most + 1);
      if (!limited_[most]) limited_[most] = std::make_unique<std::vector<uint32_t>>(made);
    }
  }
  for (size_t i = 0; i < n_words; ++i) mask[i] |= (*words)[i];
}

size_t LeafMask::memory_bytes() const {
  // The bits by number of rounds are counted as if they were all there.
  return (tokens.ids.size() + tokens.words.size() + by_rounds.size()) * sizeof(uint32_t) + (left.size() + pending.size()) * sizeof(Rounds) +
         std::min<size_t>(kKeptLimits, rounds_begin.size()) * tokens.words.size() * sizeof(uint32_t) + sizeof *this;
}

// ---- The cache ----

std::shared_ptr<const LocalMask> MaskCache::find(uint64_t state, uint64_t counts) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = masks_.find({state, counts});
  return at == masks_.end() ? nullptr : at->second;
}

std::shared_ptr<LeafMask> MaskCache::find_leaf(uint32_t state) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = leaves_.find(state);
  return at == leaves_.end() ? nullptr : at->second;
}

std::shared_ptr<LeafMask> MaskCache::find_leaf(const std::vector<uint32_t>& states) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = joint_leaves_.find(states);
  return at == joint_leaves_.end() ? nullptr : at->second;
}

void MaskCache::make_room(size_t bytes) {
  if (bytes_ + bytes > most_bytes_) {
    masks_.clear();
    leaves_.clear();
    joint_leaves_.clear();
    bytes_ = 0;
  }
  bytes_ += bytes;
}

void MaskCache::keep(uint64_t state, uint64_t counts, std::shared_ptr<const LocalMask> mask) {
  const std::lock_guard<std::mutex> lock(mutex_);
  make_room((mask->tokens.ids.size() + mask->tokens.words.size() + mask->pending.size()) * sizeof(uint32_t) + 128);
  masks_.emplace(Key{state, counts}, std::move(mask));
}

void MaskCache::keep_leaf(uint32_t state, std::shared_ptr<LeafMask> mask) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Large ones are the vocabulary's, which counts them.
  make_room(mask->tokens.words.empty() ? mask->memory_bytes() : 128);
  leaves_.emplace(state, std::move(mask));
}

void MaskCache::keep_leaf(const std::vector<uint32_t>& states, std::shared_ptr<LeafMask> mask) {
  const std::lock_guard<std::mutex> lock(mutex_);
  make_room((mask->tokens.words.empty() ? mask->memory_bytes() : 128) + states.size() * sizeof(uint32_t));
  joint_leaves_.emplace(states, std::move(mask));
}

size_t MaskCache::memory_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

// ---- Walks ----

MaskMaker::MaskMaker(const Network& network, const TokenTrie& trie, MaskCache& cache)
    : network_(network), trie_(trie), cache_(cache), space_(network), states_(network) {}

uint32_t MaskMaker::row_of(uint32_t state) {
  if (state >= row_of_.size()) row_of_.resize(states_.size(), kDead);
  if (row_of_[state] != kDead) return row_of_[state];
  row_of_[state] = static_cast<uint32_t>(rows_.size());
  row_states_.push_back(state);
  row_reach_.push_back(static_cast<uint8_t>(plain_.reach(states_, state)));
  Row& made = rows_.emplace_back();
  std::fill(std::begin(made.cells), std::end(made.cells), kDead);
  for (const Edge& edge : states_.edges(state)) {
    const uint32_t flags = (edge.action == Edge::begins_round ? kBegins : 0) | (edge.action == Edge::leaves_rounds ? kLeaves : 0) |
                           (states_.ends(edge.target) ? kFinal : 0) | (states_.tail(edge.target) ? kTail : 0);
    std::fill(made.cells + edge.first, made.cells + edge.last + 1, edge.target | kHasNoRow | flags);
  }
  return row_of_[state];
}

uint32_t MaskMaker::make_target(uint32_t row, uint8_t byte, uint32_t state) {
  const uint32_t to = row_of(state);
  uint32_t& cell = rows_[row].cells[byte];
  cell = (cell & ~(kTarget | kHasNoRow)) | to;
  return to;
}

void MaskMaker::forget_rows() {
  for (const uint32_t state : row_states_) row_of_[state] = kDead;
  rows_.clear();
  row_states_.clear();
  row_reach_.clear();
}

// The automaton that a state begins, as text: equal texts, equal masks. Empty: too large to share.
std::string MaskMaker::digest(uint32_t state) {
  std::vector<uint32_t> order, words;
  const auto number_of = [&](uint32_t s) {
    if (s >= number_.size()) number_.resize(states_.size(), kDead);
    if (number_[s] == kDead) {
      number_[s] = static_cast<uint32_t>(order.size());
      order.push_back(s);
    }
    return number_[s];
  };
  number_of(state);
  for (size_t i = 0; i < order.size() && order.size() <= kMostShared; ++i) {
    const uint32_t s = order[i];
    const LeafStates::Edges edges = states_.edges(s);
    words.insert(words.end(), {static_cast<uint32_t>(edges.end() - edges.begin()), states_.ends(s), states_.boundary(s)});
    for (const Edge& edge : edges)
      words.insert(words.end(), {uint32_t{edge.first} | uint32_t{edge.last} << 8 | uint32_t{edge.action} << 16, number_of(edge.target)});
  }
  for (const uint32_t s : order) number_[s] = kDead;
  if (order.size() > kMostShared) return {};
  Hash128 hash;
  hash.update(words.data(), words.size() * sizeof(uint32_t));
  uint8_t out[16];
  hash.digest(out);
  return std::string(reinterpret_cast<const char*>(out), sizeof out);
}

// The state that most characters lead to, if they lead on to it from there: its mask is nearly this state's.
uint32_t MaskMaker::majority(uint32_t state) {
  const auto state_of = [&](uint32_t cell) { return cell == kDead || (cell & kHasNoRow) ? cell & kTarget : row_states_[cell & kTarget]; };
  const uint32_t from = row_of(state);
  uint32_t target = kDead & kTarget, votes = 0;  // a target of more than half of the characters wins the vote
  for (uint32_t byte = 0x20; byte < 0x7F; ++byte) {
    const uint32_t to = state_of(rows_[from].cells[byte]);
    if (votes == 0) target = to;
    votes += to == target ? 1 : uint32_t{0} - 1;
  }
  if (target == (kDead & kTarget) || target == state) return kDead;
  const uint32_t next = row_of(target);
  uint32_t same = 0;
  for (uint32_t byte = 0x20; byte < 0x7F; ++byte)
    same += state_of(rows_[from].cells[byte]) == target && state_of(rows_[next].cells[byte]) == target;
  return same > 48 ? target : kDead;
}

std::shared_ptr<LeafMask> MaskMaker::leaf(uint32_t state, Pace* pace) {
  const bool joint = states_.is_joint(state);
  if (auto known = joint ? cache_.find_leaf(states_.parts(state)) : cache_.find_leaf(state)) return known;
  const std::string key = joint ? std::string() : digest(state);
  std::shared_ptr<LeafMask> mask = key.empty() ? nullptr : trie_.find_leaf(key);
  if (!mask) {
    mask = std::make_shared<LeafMask>();
    const bool counted = states_.counted(state);
    const uint32_t base = counted ? kDead : majority(state);
    if (base == kDead) {
      if (!(counted ? walk<true>(state, mask.get(), pace) : walk<false>(state, mask.get(), pace))) return nullptr;
    } else {
      const auto base_mask = leaf(base, pace);  // whose majority is itself: no deeper
      if (!base_mask || !walk_difference(state, base, *base_mask, mask.get(), pace)) return nullptr;
    }
    if (!key.empty() && (!mask->tokens.words.empty() || mask->pending.size() > 1024)) trie_.keep_leaf(key, mask);
  }
  if (joint) cache_.keep_leaf(states_.parts(state), mask);
  else cache_.keep_leaf(state, mask);
  return mask;
}

std::shared_ptr<LeafMask> MaskMaker::leaf_together(const std::vector<uint32_t>& states, Pace* pace) {
  if (auto known = cache_.find_leaf(states)) return known;
  if (states_.full()) {
    states_.forget();
    plain_.forget();
    forget_rows();
  }
  return leaf(states_.together(states), pace);
}

template <bool counted>
bool MaskMaker::walk(uint32_t state, LeafMask* mask, Pace* pace) {
  // On the way to a node, as one number: the row, whether the rounds have been left, the rounds.
  constexpr uint64_t kLeft = 1u << 31;
  const TokenTrie::Node* const nodes = trie_.nodes().data();
  const uint8_t* const plain = trie_.plain().data();
  const bool joint = states_.is_joint(state);
  if (rows_.size() > kMostRows) forget_rows();
  const size_t n_nodes = trie_.nodes().size();
  std::vector<uint64_t> stack(trie_.depth() + 1);
  stack[0] = row_of(state);
  std::vector<uint32_t> bits(counted ? 0 : trie_.n_words(), 0);
  size_t n_tokens = 0;
  std::vector<LeafMask::Rounds> with_rounds;
  const auto add = [&](uint32_t token, [[maybe_unused]] uint32_t rounds) {
    if constexpr (counted) {
      with_rounds.push_back({token, rounds});
    } else {
      bits[token >> 5] |= 1u << (token & 31);
      ++n_tokens;
    }
  };
  // The nodes below `top`, whose bytes are plain text: a character begins a round.
  std::vector<uint32_t> rounds_at(counted ? trie_.depth() + 2 : 0);
  const auto add_below = [&](size_t top, [[maybe_unused]] uint32_t rounds) {
    const size_t end = top + nodes[top].size;
    if constexpr (counted) rounds_at[nodes[top].depth + 1] = rounds;
    for (size_t at = top + 1; at < end; ++at) {
      const TokenTrie::Node node = nodes[at];
      if constexpr (counted) {
        rounds = rounds_at[node.depth + 1] = rounds_at[node.depth] + ((node.byte & 0xC0) != 0x80);
        if (node.token != TokenTrie::kNoToken) add(node.token, rounds);
      } else {
        n_tokens += add_if_token(node.token, bits.data());
      }
    }
  };
  uint64_t n_steps = 0;
  for (size_t at = 0; at < n_nodes; ++n_steps) {
    if (pace->stop() || (joint && states_.full())) return false;
    const TokenTrie::Node node = nodes[at];
    const uint64_t from = stack[node.depth];
    const auto from_row = static_cast<uint32_t>(from & kTarget);
    const uint32_t cell = rows_[from_row].cells[node.byte];
    if (cell == kDead) {
      at += node.size;
      continue;
    }
    const uint32_t to_row = target(from_row, static_cast<uint8_t>(node.byte), cell);
    uint32_t rounds = 0;
    bool left = false;
    if constexpr (counted) {
      rounds = static_cast<uint32_t>(from >> 32) + ((cell & kBegins) != 0);
      left = (from & kLeft) != 0 || (cell & kLeaves) != 0;
    }
    if (node.token != TokenTrie::kNoToken) {
      if (left) {
        mask->left.push_back({node.token, rounds});
      } else {
        add(node.token, rounds);
      }
    }
    if (cell & kFinal) mask->pending.push_back({static_cast<uint32_t>(at), counted ? rounds : states_.ends(row_states_[to_row])});
    if (node.size == 1 || (cell & kTail) != 0) {
      at += node.size;
      continue;
    }
    if (plain[at] != 0 && plain[at] <= row_reach_[to_row] && !left) {
      add_below(at, rounds);
      at += node.size;
    } else {
      stack[node.depth + 1] = to_row | (left ? kLeft : 0) | uint64_t{rounds} << 32;
      ++at;
    }
  }
  n_steps_ += n_steps;
  if constexpr (!counted) {
    mask->tokens.assign_bits(std::move(bits), n_tokens);
    return true;
  }
  uint32_t most = 0;
  for (const auto& t : with_rounds) most = std::max(most, t.rounds);
  mask->rounds_begin.assign(most + 2, 0);
  for (const auto& t : with_rounds) ++mask->rounds_begin[t.rounds + 1];
  for (uint32_t r = 0; r <= most; ++r) mask->rounds_begin[r + 1] += mask->rounds_begin[r];
  std::vector<uint32_t> fill(mask->rounds_begin.begin(), mask->rounds_begin.end() - 1);
  mask->by_rounds.resize(with_rounds.size());
  for (const auto& t : with_rounds) mask->by_rounds[fill[t.rounds]++] = t.at;
  mask->tokens.assign(mask->by_rounds, trie_.n_words());
  return true;
}

// Walks only where the two states' steps part.
bool MaskMaker::walk_difference(uint32_t state, uint32_t base_state, const LeafMask& base, LeafMask* mask, Pace* pace) {
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes();
  const bool joint = states_.is_joint(state);
  if (rows_.size() > kMostRows) forget_rows();
  std::vector<std::pair<uint32_t, uint32_t>> stack(trie_.depth() + 1);  // the rows of this state's place and of the base's
  stack[0] = {row_of(state), row_of(base_state)};
  std::vector<uint32_t> words(trie_.n_words(), 0);
  base.tokens.add_to(words.data());
  std::vector<LeafMask::Rounds> added;
  std::vector<uint32_t> removed;
  const auto step = [&](uint32_t row, uint8_t byte) {
    const uint32_t cell = row == kDead ? kDead : rows_[row].cells[byte];
    return cell == kDead ? kDead : target(row, byte, cell);
  };
  for (size_t at = 0; at < nodes.size(); ++n_steps_) {
    if (pace->stop() || (joint && states_.full())) return false;
    const TokenTrie::Node node = nodes[at];
    const auto [from_a, from_b] = stack[node.depth];
    const uint32_t a = step(from_a, static_cast<uint8_t>(node.byte)), b = step(from_b, static_cast<uint8_t>(node.byte));
    if (a == b) {
      at += node.size;
      continue;
    }
    if (node.token != TokenTrie::kNoToken) {
      uint32_t& word = words[node.token >> 5];
      const uint32_t bit = 1u << (node.token & 31);
      word = a == kDead ? word & ~bit : word | bit;
    }
    if (const uint32_t ends = a == kDead ? 0 : states_.ends(row_states_[a]); ends != 0) added.push_back({static_cast<uint32_t>(at), ends});
    if (b != kDead && states_.ends(row_states_[b]) != 0) removed.push_back(static_cast<uint32_t>(at));
    stack[node.depth + 1] = {a, b};
    ++at;
  }
  size_t r = 0, k = 0;
  for (const LeafMask::Rounds& p : base.pending) {
    while (k < added.size() && added[k].at < p.at) mask->pending.push_back(added[k++]);
    while (r < removed.size() && removed[r] < p.at) ++r;
    if (r < removed.size() && removed[r] == p.at) continue;
    mask->pending.push_back(p);
  }
  mask->pending.insert(mask->pending.end(), added.begin() + static_cast<std::ptrdiff_t>(k), added.end());
  mask->tokens.words = std::move(words);
  return true;
}

std::shared_ptr<const LocalMask> MaskMaker::local(const Item& item, Pace* pace) {
  const NetworkRule& rule = network_.rules[network_.states[item.state].rule];
  uint64_t counts = 0;
  if (rule.counted) {  // a token begins no more rounds than it has bytes, so larger numbers are alike
    const uint32_t beyond = trie_.depth() + 1;
    const uint32_t least = item.count < rule.least ? std::min(rule.least - item.count, beyond) : 0;
    const uint32_t most = rule.most == kUnbounded ? beyond : std::min(rule.most - std::min(rule.most, item.count), beyond);
    counts = uint64_t{least} << 32 | most;
  }
  if (auto known = cache_.find(item.state, counts)) return known;
  if (space_.memory_bytes() > kMostSpaceBytes) {
    space_.clear();
    loops_.forget();
  }
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes();
  const uint8_t* const groups = trie_.groups().data();
  std::vector<uint32_t> stack(trie_.depth() + 1), tokens, bits;  // bits (n_words): once a subtree is passed by
  size_t n_tokens = 0;                                           // in bits
  stack[0] = space_.single({item.state, item.count, Space::kUnknown});
  auto mask = std::make_shared<LocalMask>();
  for (size_t at = 0; at < nodes.size(); ++n_steps_) {
    if (pace->stop()) return nullptr;
    const TokenTrie::Node node = nodes[at];
    if (space_.deferred(stack[node.depth])) {
      space_.add_deferred(stack[node.depth], &mask->deferred);
      break;
    }
    const uint32_t to = space_.step(stack[node.depth], static_cast<uint8_t>(node.byte));
    if (to == Space::kRefused || to == Space::kTooAmbiguous) {
      at += node.size;
      continue;
    }
    if (node.token != TokenTrie::kNoToken) tokens.push_back(node.token);
    if (space_.escapes(to)) mask->pending.push_back(static_cast<uint32_t>(at));
    if (space_.n_items(to) == 0) {
      at += node.size;
      continue;
    }
    if (node.size > kSmallTree && (groups[at] & ~loops_.of(&space_, to)) == 0) {  // nothing below leads to another configuration
      const size_t first = at + 1, end = at + node.size;
      bits.resize(trie_.n_words(), 0);
      for (at = first; at < end; ++at) n_tokens += add_if_token(nodes[at].token, bits.data());
      if (!space_.escapes(to)) continue;
      for (size_t below = first; below < end; ++below)
        if ((groups[below] & kMidCharacter) == 0) mask->pending.push_back(static_cast<uint32_t>(below));
      continue;
    }
    stack[node.depth + 1] = to;
    ++at;
  }
  if (bits.empty()) {
    mask->tokens.assign(std::move(tokens), trie_.n_words());
  } else {
    for (const uint32_t token : tokens) bits[token >> 5] |= 1u << (token & 31);
    mask->tokens.assign_bits(std::move(bits), n_tokens + tokens.size());
  }
  cache_.keep(item.state, counts, mask);
  return mask;
}

}  // namespace orrery::text::grammar

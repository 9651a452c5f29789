#include "runtime/text/grammar/run/local_masks.h"

#include <algorithm>

#include "runtime/base/hash.h"

namespace orrery::text::grammar {
namespace {

constexpr size_t kMostRows = 2048;   // 4 KiB each
constexpr size_t kMostShared = 512;  // states of an automaton whose masks other grammars may use
constexpr size_t kMostSpaceBytes = 4u << 20;
constexpr uint32_t kKeptLimits = 64;  // numbers of rounds whose bits are kept

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

void MaskCache::make_room(size_t bytes) {
  if (bytes_ + bytes > most_bytes_) {
    masks_.clear();
    leaves_.clear();
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

size_t MaskCache::memory_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

// ---- Walks ----

MaskMaker::MaskMaker(const Network& network, const TokenTrie& trie, MaskCache& cache)
    : network_(network), trie_(trie), cache_(cache), space_(network), row_of_(network.n_states(), kDead) {}

const MaskMaker::Row& MaskMaker::row(uint32_t state) {
  if (row_of_[state] != kDead) return *rows_[row_of_[state]];
  auto made = std::make_unique<Row>();
  for (Step& step : made->steps) step = {kDead, Edge::none};
  for (uint32_t e = network_.states[state].edges; e < network_.states[state + 1].edges; ++e) {
    const Edge& edge = network_.edges[e];
    for (uint32_t b = edge.first; b <= edge.last; ++b) made->steps[b] = {edge.target, edge.action};
  }
  row_of_[state] = static_cast<uint32_t>(rows_.size());
  with_rows_.push_back(state);
  rows_.push_back(std::move(made));
  return *rows_.back();
}

// The automaton that a state begins, as text: equal texts, equal masks. Empty: too large to share.
std::string MaskMaker::digest(uint32_t state) {
  std::unordered_map<uint32_t, uint32_t> number = {{state, 0}};
  std::vector<uint32_t> order = {state};
  Hash128 hash;
  const NetworkRule& rule = network_.rules[network_.states[state].rule];
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t s = order[i];
    const uint32_t n = network_.states[s + 1].edges - network_.states[s].edges;
    const uint32_t head[3] = {n, network_.states[s].final, rule.counted && s == rule.boundary};
    hash.update(head, sizeof head);
    for (uint32_t e = network_.states[s].edges; e < network_.states[s].edges + n; ++e) {
      const Edge& edge = network_.edges[e];
      const auto [at, is_new] = number.emplace(edge.target, static_cast<uint32_t>(order.size()));
      if (is_new) order.push_back(edge.target);
      if (order.size() > kMostShared) return {};
      const uint32_t words[2] = {uint32_t{edge.first} | uint32_t{edge.last} << 8 | uint32_t{edge.action} << 16, at->second};
      hash.update(words, sizeof words);
    }
  }
  uint8_t out[16];
  hash.digest(out);
  return std::string(reinterpret_cast<const char*>(out), sizeof out);
}

bool MaskMaker::pops(uint32_t state) const { return network_.states[state].final; }

// The state that most characters lead to, if they lead on to it from there: its mask is nearly this state's.
uint32_t MaskMaker::majority(uint32_t state) {
  const Row& from = row(state);
  uint32_t target = kDead, votes = 0;  // a target of more than half of the characters wins the vote
  for (uint32_t byte = 0x20; byte < 0x7F; ++byte) {
    const uint32_t to = from.steps[byte].target;
    if (votes == 0) target = to;
    votes += to == target ? 1 : uint32_t{0} - 1;
  }
  if (target == kDead || target == state) return kDead;
  const Row &a = row(state), &b = row(target);
  uint32_t same = 0;
  for (uint32_t byte = 0x20; byte < 0x7F; ++byte) same += a.steps[byte].target == target && b.steps[byte].target == target;
  return same > 48 ? target : kDead;
}

std::shared_ptr<LeafMask> MaskMaker::leaf(uint32_t state, Pace* pace) {
  if (auto known = cache_.find_leaf(state)) return known;
  if (rows_.size() > kMostRows) {
    for (const uint32_t s : with_rows_) row_of_[s] = kDead;
    rows_.clear();
    with_rows_.clear();
  }
  const std::string key = digest(state);
  std::shared_ptr<LeafMask> mask = key.empty() ? nullptr : trie_.find_leaf(key);
  if (!mask) {
    mask = std::make_shared<LeafMask>();
    const bool counted = network_.rules[network_.states[state].rule].counted;
    const uint32_t base = counted ? kDead : majority(state);
    if (base == kDead) {
      if (!walk_leaf(state, mask.get(), pace)) return nullptr;
    } else {
      const auto base_mask = leaf(base, pace);  // whose majority is itself: no deeper
      if (!base_mask || !walk_difference(state, base, *base_mask, mask.get(), pace)) return nullptr;
    }
    if (!key.empty() && (!mask->tokens.words.empty() || mask->pending.size() > 1024)) trie_.keep_leaf(key, mask);
  }
  cache_.keep_leaf(state, mask);
  return mask;
}

bool MaskMaker::walk_leaf(uint32_t state, LeafMask* mask, Pace* pace) {
  const bool counted = network_.rules[network_.states[state].rule].counted;
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes();
  std::vector<Place> stack(trie_.depth() + 1);
  stack[0] = {state, 0, false};
  std::vector<uint32_t> tokens;
  std::vector<LeafMask::Rounds> with_rounds;
  for (size_t at = 0; at < nodes.size();) {
    if (pace->stop()) return false;
    const TokenTrie::Node node = nodes[at];
    const Place from = stack[node.depth];
    const Step step = row(from.state).steps[node.byte];
    if (step.target == kDead) {
      at += node.size;
      continue;
    }
    const Place to{step.target, from.rounds + (step.action == Edge::begins_round), from.left || step.action == Edge::leaves_rounds};
    if (node.token != TokenTrie::kNoToken) {
      if (to.left) {
        mask->left.push_back({node.token, to.rounds});
      } else if (counted) {
        with_rounds.push_back({node.token, to.rounds});
      } else {
        tokens.push_back(node.token);
      }
    }
    if (pops(to.state)) mask->pending.push_back({static_cast<uint32_t>(at), to.rounds});
    if (network_.states[to.state].tail) {
      at += node.size;
      continue;
    }
    stack[node.depth + 1] = to;
    ++at;
  }
  if (counted) {
    uint32_t most = 0;
    for (const auto& t : with_rounds) most = std::max(most, t.rounds);
    mask->rounds_begin.assign(most + 2, 0);
    for (const auto& t : with_rounds) ++mask->rounds_begin[t.rounds + 1];
    for (uint32_t r = 0; r <= most; ++r) mask->rounds_begin[r + 1] += mask->rounds_begin[r];
    std::vector<uint32_t> fill(mask->rounds_begin.begin(), mask->rounds_begin.end() - 1);
    mask->by_rounds.resize(with_rounds.size());
    for (const auto& t : with_rounds) mask->by_rounds[fill[t.rounds]++] = t.at;
    tokens = mask->by_rounds;
  }
  mask->tokens.assign(std::move(tokens), trie_.n_words());
  return true;
}

// Walks only where the two states' steps part.
bool MaskMaker::walk_difference(uint32_t state, uint32_t base_state, const LeafMask& base, LeafMask* mask, Pace* pace) {
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes();
  std::vector<std::pair<uint32_t, uint32_t>> stack(trie_.depth() + 1);  // this state's place, the base's
  stack[0] = {state, base_state};
  std::vector<uint32_t> words(trie_.n_words(), 0);
  base.tokens.add_to(words.data());
  std::vector<LeafMask::Rounds> added;
  std::vector<uint32_t> removed;
  for (size_t at = 0; at < nodes.size();) {
    if (pace->stop()) return false;
    const TokenTrie::Node node = nodes[at];
    const auto from = stack[node.depth];
    const uint32_t a = from.first == kDead ? kDead : row(from.first).steps[node.byte].target;
    const uint32_t b = from.second == kDead ? kDead : row(from.second).steps[node.byte].target;
    if (a == b) {
      at += node.size;
      continue;
    }
    if (node.token != TokenTrie::kNoToken) {
      uint32_t& word = words[node.token >> 5];
      const uint32_t bit = 1u << (node.token & 31);
      word = a == kDead ? word & ~bit : word | bit;
    }
    if (a != kDead && pops(a)) added.push_back({static_cast<uint32_t>(at), 0});
    if (b != kDead && pops(b)) removed.push_back(static_cast<uint32_t>(at));
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
  if (space_.memory_bytes() > kMostSpaceBytes) space_.clear();
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes();
  std::vector<uint32_t> stack(trie_.depth() + 1), tokens;
  stack[0] = space_.single({item.state, item.count, Space::kUnknown});
  auto mask = std::make_shared<LocalMask>();
  for (size_t at = 0; at < nodes.size();) {
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
    stack[node.depth + 1] = to;
    ++at;
  }
  mask->tokens.assign(std::move(tokens), trie_.n_words());
  cache_.keep(item.state, counts, mask);
  return mask;
}

}  // namespace orrery::text::grammar

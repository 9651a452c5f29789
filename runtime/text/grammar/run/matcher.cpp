#include "runtime/text/grammar/run/matcher.h"

#include <algorithm>
#include <utility>

namespace orrery::text::grammar {

Matcher::Matcher(std::shared_ptr<MatcherShared> shared, std::shared_ptr<Deferred> deferred)
    : shared_(std::move(shared)), deferred_(std::move(deferred)), space_(shared_->network), stack_(shared_->trie->depth() + 2) {
  begin();
}

void Matcher::begin() {
  masks_.emplace(shared_->network, *shared_->trie, shared_->masks);
  closing_.emplace(shared_->network, *shared_->trie);
  for (Cached& c : cached_) c.configuration = Space::kUnset;
  history_.assign(1, space_.start());
  kept_from_ = 0;
  ended_ = false;
}

Status Matcher::grow(const std::atomic<bool>* cancel) {
  ORRERY_ASSIGN(std::shared_ptr<MatcherShared> grown, deferred_->grown(*shared_, std::exchange(met_, {}), cancel));
  std::shared_ptr<MatcherShared> before = std::move(shared_);  // until nothing refers to it
  shared_ = std::move(grown);
  space_ = Space(shared_->network);
  const std::vector<int32_t> tokens = std::exchange(tokens_, {});
  begin();
  for (const int32_t token : tokens) {
    ORRERY_ASSIGN(const bool accepted, accept(token));
    if (!accepted) return error(Code::internal, "a grammar with a compiled rule refuses token %d, which it had taken", token);
  }
  return ok_status();
}

Status Matcher::compile_what_begins_here(const std::atomic<bool>* cancel) {
  while (space_.deferred(now())) {
    space_.add_deferred(now(), &met_);
    ORRERY_TRY(grow(cancel));
  }
  return ok_status();
}

// Forgets every configuration but the last. Those before it are found again by reading the tokens again.
void Matcher::make_room() {
  if (space_.memory_bytes() <= shared_->cache_bytes) return;
  Space fresh(shared_->network);
  const uint32_t last = fresh.copy(space_, now());
  space_ = std::move(fresh);
  history_.back() = last;
  kept_from_ = history_.size() - 1;
  for (Cached& c : cached_) c.configuration = Space::kUnset;
  closing_->forget();
}

Result<uint32_t> Matcher::follow(int32_t token) {
  ORRERY_TRY(compile_what_begins_here(nullptr));
  const std::string_view bytes = shared_->trie->bytes(token);
  uint32_t to = now();
  for (size_t i = 0; i < bytes.size();) {
    if (space_.deferred(to)) {
      space_.add_deferred(to, &met_);
      ORRERY_TRY(grow(nullptr));
      i = 0;
      to = now();
    }
    to = space_.step(to, static_cast<uint8_t>(bytes[i++]));
    if (to == Space::kRefused || to == Space::kTooAmbiguous) break;
  }
  if (bytes.empty()) to = Space::kRefused;
  if (shared_->network.token_edges.empty()) return to;
  const auto& ends = shared_->trie->ends();
  return space_.step_token(now(), token, std::find(ends.begin(), ends.end(), token) != ends.end(), to);
}

Result<bool> Matcher::accept(int32_t token) {
  if (ended_ || token < 0 || token >= static_cast<int32_t>(shared_->trie->n_vocab())) return false;
  make_room();
  ORRERY_ASSIGN(const uint32_t to, follow(token));
  if (to == Space::kTooAmbiguous)
    return error(Code::unsupported, "the grammar is too ambiguous: more than %u places or %u stacks after %zu tokens", Space::kMostItems,
                 Space::kMostEntries, tokens_.size());
  if (to == Space::kRefused) {
    const auto& ends = shared_->trie->ends();
    if (!may_end() || std::find(ends.begin(), ends.end(), token) == ends.end()) return false;
    ended_ = true;
    history_.push_back(now());
  } else {
    history_.push_back(to);
  }
  tokens_.push_back(token);
  return true;
}

void Matcher::rewind(size_t n_tokens) {
  if (n_tokens >= tokens_.size()) return;
  ended_ = false;
  if (n_tokens >= kept_from_) {
    history_.resize(n_tokens + 1);
    tokens_.resize(n_tokens);
    return;
  }
  const std::vector<int32_t> tokens(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(n_tokens));
  tokens_.clear();
  kept_from_ = 0;
  history_.assign(1, space_.start());
  for (const int32_t token : tokens) (void)accept(token);
}

Result<const uint32_t*> Matcher::mask(const std::atomic<bool>* cancel) {
  make_room();
  ORRERY_TRY(compile_what_begins_here(cancel));
  for (Cached& c : cached_)
    if (c.configuration == now() && !ended_) return static_cast<const uint32_t*>(c.words.data());
  Cached& slot = cached_[next_cached_++ % kCached];
  slot.configuration = Space::kUnset;
  slot.words.assign(n_words(), 0);
  if (ended_) return static_cast<const uint32_t*>(slot.words.data());
  Pace pace(cancel);
  met_.clear();
  bool together = false;
  if (!add_together(slot.words.data(), &pace, &together)) return error(Code::cancelled, "making a mask was cancelled");
  const uint32_t n = space_.n_items(now());
  for (uint32_t i = 0; i < n; ++i) {
    const Item item = space_.items(now())[i];  // a copy: the space grows
    if (together && is_text(item)) continue;
    if (!add_item(item, slot.words.data(), &pace)) return error(Code::cancelled, "making a mask was cancelled");
  }
  if (!met_.empty()) {  // a token reads on in a rule that is not compiled
    ORRERY_TRY(grow(cancel));
    return mask(cancel);
  }
  if (space_.may_end(now()))
    for (const int32_t id : shared_->trie->ends()) slot.words[static_cast<size_t>(id) >> 5] |= 1u << (id & 31);
  if (std::all_of(slot.words.begin(), slot.words.end(), [](uint32_t w) { return w == 0; }) && !space_.may_end(now()))
    return error(Code::unsupported, "no token can follow %zu tokens: the grammar is too ambiguous there, or the vocabulary lacks a byte",
                 tokens_.size());
  slot.configuration = now();
  return static_cast<const uint32_t*>(slot.words.data());
}

// A state of a text: it reads more than half of the characters, so its walk is long.
bool Matcher::is_text(const Item& item) const {
  const Network& network = shared_->network;
  const NetworkRule& rule = network.rules[network.states[item.state].rule];
  if (!MaskMaker::has_leaf(rule) || rule.counted) return false;
  uint32_t n = 0;
  for (uint32_t e = network.states[item.state].edges; e < network.states[item.state + 1].edges; ++e)
    n += network.edges[e].last - network.edges[e].first + 1u;
  return n > 128;
}

// Texts that are under way at once (an object's keys by their patterns, choices of a string) share one walk, unless they had theirs before.
bool Matcher::add_together(uint32_t* words, Pace* pace, bool* together) {
  if (space_.n_items(now()) < 2) return true;  // nearly always
  std::vector<uint32_t> states, nodes;
  size_t unknown = 0;
  for (uint32_t i = 0; i < space_.n_items(now()); ++i) {
    const Item& item = space_.items(now())[i];
    if (!is_text(item)) continue;
    states.push_back(item.state);
    nodes.push_back(item.node);
    unknown += !masks_->knows_leaf(item.state);
  }
  if (unknown < 2) return true;
  for (size_t first = 0; first < states.size(); first += LeafStates::kMostTogether) {
    const size_t n = std::min(LeafStates::kMostTogether, states.size() - first);
    const auto begin = states.begin() + static_cast<std::ptrdiff_t>(first);
    const auto mask =
        n == 1 ? masks_->leaf(states[first], pace) : masks_->leaf_together({begin, begin + static_cast<std::ptrdiff_t>(n)}, pace);
    if (!mask) return !pace->stopped();  // too many joint states: each text has a walk of its own
    mask->tokens.add_to(words);
    for (size_t i = 0; i < n; ++i) {
      const uint32_t below = space_.after_pop(nodes[first + i]);
      for (const LeafMask::Rounds& p : mask->pending)
        if ((n == 1 || (p.rounds >> i & 1) != 0) && !add_pending(below, p.at, words, pace)) return false;
    }
  }
  *together = true;
  return true;
}

bool Matcher::add_item(const Item& item, uint32_t* words, Pace* pace) {
  const Network& network = shared_->network;
  const State& state = network.states[item.state];
  const NetworkRule& rule = network.rules[state.rule];
  for (uint32_t t = state.tokens; t < network.states[item.state + 1].tokens; ++t) {
    const TokenEdge& edge = network.token_edges[t];
    if (edge.action == Edge::begins_round && rule.most != kUnbounded && item.count >= rule.most) continue;
    const TokenSet& set = network.token_sets[edge.set];
    if (!set.negated) {
      for (const int32_t id : set.ids)
        if (static_cast<uint32_t>(id) < shared_->trie->n_vocab()) words[static_cast<size_t>(id) >> 5] |= 1u << (id & 31);
      continue;
    }
    std::vector<uint32_t> others(n_words(), 0xFFFFFFFF);
    if (shared_->trie->n_vocab() % 32 != 0) others.back() = (1u << (shared_->trie->n_vocab() % 32)) - 1;
    for (const int32_t id : set.ids)
      if (static_cast<uint32_t>(id) < shared_->trie->n_vocab()) others[static_cast<size_t>(id) >> 5] &= ~(1u << (id & 31));
    for (const int32_t id : shared_->trie->ends()) others[static_cast<size_t>(id) >> 5] &= ~(1u << (id & 31));
    for (size_t i = 0; i < others.size(); ++i) words[i] |= others[i];
  }
  if (state.edges == network.states[item.state + 1].edges) return true;
  const uint8_t* const groups = shared_->trie->groups().data();
  if (MaskMaker::has_leaf(rule)) {
    const auto mask = masks_->leaf(item.state, pace);
    if (!mask) return false;
    const uint32_t most = !rule.counted || rule.most == kUnbounded ? kUnbounded - 1 : rule.most - std::min(rule.most, item.count);
    mask->add_to(words, n_words(), most);
    const auto allowed = [&](const LeafMask::Rounds& r) {
      return !rule.counted || state.suffix || (r.rounds <= most && uint64_t{item.count} + r.rounds >= rule.least);
    };
    for (const LeafMask::Rounds& t : mask->left)
      if (allowed(t)) words[t.at >> 5] |= 1u << (t.at & 31);
    if (mask->pending.empty()) return true;
    const uint32_t below = space_.after_pop(item.node);
    const uint8_t read = groups_read(below, mask->pending.size());
    for (const LeafMask::Rounds& p : mask->pending)
      if ((groups[p.at] & read) != 0 && allowed(p) && !add_pending(below, p.at, words, pace)) return false;
    return true;
  }
  const auto mask = masks_->local(item, pace);
  if (!mask) return false;
  mask->tokens.add_to(words);
  met_.insert(met_.end(), mask->deferred.begin(), mask->deferred.end());
  if (mask->pending.empty()) return true;
  const uint32_t below = space_.after_pop(item.node);
  const uint8_t read = groups_read(below, mask->pending.size());
  for (const uint32_t p : mask->pending)
    if ((groups[p] & read) != 0 && !add_pending(below, p, words, pace)) return false;
  return true;
}

// Looks once at what can be read behind a text that ends nearly everywhere; otherwise the look costs more than it saves.
uint8_t Matcher::groups_read(uint32_t below, size_t n_pending) {
  constexpr size_t kFew = 256;
  if (n_pending < kFew || below == Space::kRefused || below == Space::kTooAmbiguous || space_.deferred(below)) return 0xFF;
  return grammar::groups_read(&space_, below);
}

// The tokens below a node whose bytes end a rule, read on from where the rule's end leads.
bool Matcher::add_pending(uint32_t below, uint32_t node, uint32_t* words, Pace* pace) {
  const std::vector<TokenTrie::Node>& nodes = shared_->trie->nodes();
  const TokenTrie::Node top = nodes[node];
  if (top.size == 1 || below == Space::kRefused || below == Space::kTooAmbiguous || space_.n_items(below) == 0) return true;
  stack_[top.depth + 1] = below;
  const size_t end = node + top.size;
  for (size_t at = node + 1; at < end;) {
    if (pace->stop()) return false;
    const TokenTrie::Node n = nodes[at];
    if (space_.deferred(stack_[n.depth])) {
      space_.add_deferred(stack_[n.depth], &met_);
      return true;  // the mask is made again
    }
    const uint32_t to = space_.step(stack_[n.depth], static_cast<uint8_t>(n.byte));
    if (to == Space::kRefused || to == Space::kTooAmbiguous) {
      at += n.size;
      continue;
    }
    if (n.token != TokenTrie::kNoToken) words[n.token >> 5] |= 1u << (n.token & 31);
    if (space_.n_items(to) == 0) {
      at += n.size;
      continue;
    }
    stack_[n.depth + 1] = to;
    ++at;
  }
  return true;
}

std::string Matcher::forced(size_t most) {
  std::string out;
  if (ended_ || !shared_->network.token_edges.empty()) return out;
  const Network& network = shared_->network;
  uint32_t at = now();
  while (out.size() < most && !space_.may_end(at) && !space_.deferred(at)) {
    uint32_t byte = 256;
    bool one = space_.n_items(at) > 0;
    for (uint32_t i = 0; i < space_.n_items(at) && one; ++i) {
      const Item& item = space_.items(at)[i];
      const NetworkRule& rule = network.rules[network.states[item.state].rule];
      for (uint32_t e = network.states[item.state].edges; e < network.states[item.state + 1].edges && one; ++e) {
        const Edge& edge = network.edges[e];
        if (edge.action == Edge::begins_round && rule.most != kUnbounded && item.count >= rule.most) continue;
        if (edge.action == Edge::leaves_rounds && item.count < rule.least) continue;
        one = edge.first == edge.last && (byte == 256 || byte == edge.first);
        byte = edge.first;
      }
    }
    if (!one || byte == 256) break;
    at = space_.step(at, static_cast<uint8_t>(byte));
    if (at == Space::kRefused || at == Space::kTooAmbiguous) break;
    out += static_cast<char>(byte);
  }
  return out;
}

// Whether the way to the end led through a rule that is now compiled.
bool Matcher::closing_grows() {
  closing_->take_deferred(&met_);
  return !met_.empty() && grow(nullptr).ok();
}

uint32_t Matcher::tokens_to_end() {
  for (;;) {
    const uint32_t n = closing_->tokens(shared_->costs(), &space_, now());
    if (!closing_grows()) return n;
  }
}

bool Matcher::can_close(uint32_t left) {
  if (ended_) return true;
  for (;;) {
    const bool fits = closing_->fits(shared_->costs(), &space_, now(), left);
    if (!closing_grows()) return fits;
  }
}

bool Matcher::can_close_after(int32_t token, uint32_t left) {
  for (;;) {
    const Result<uint32_t> to = follow(token);
    if (!to.ok() || to.value() == Space::kTooAmbiguous) return false;
    if (to.value() == Space::kRefused) return may_end();
    const bool fits = closing_->fits(shared_->costs(), &space_, to.value(), left);
    if (!closing_grows()) return fits;
  }
}

Result<bool> Matcher::closing_mask(uint32_t left, uint32_t* words, const std::atomic<bool>* cancel) {
  ORRERY_ASSIGN(const uint32_t* const allowed, mask(cancel));
  std::copy_n(allowed, n_words(), words);
  Pace pace(cancel);
  bool any = false;
  for (size_t w = 0; w < n_words(); ++w) {
    for (uint32_t bit = 0; bit < 32; ++bit) {
      if ((words[w] >> bit & 1) == 0) continue;
      if (pace.stop()) return error(Code::cancelled, "making a mask was cancelled");
      if (can_close_after(static_cast<int32_t>(32 * w + bit), left)) any = true;
      else words[w] &= ~(1u << bit);
    }
  }
  return any;
}

size_t Matcher::match(const Network& network, std::string_view text, bool* complete, std::vector<uint32_t>* deferred) {
  constexpr size_t kMostBytes = 64u << 20;
  Space space(network);
  uint32_t at = space.start();
  for (size_t i = 0; i < text.size(); ++i) {
    if (space.memory_bytes() > kMostBytes) {
      Space fresh(network);
      const uint32_t copied = fresh.copy(space, at);
      space = std::move(fresh);
      at = copied;
    }
    if (deferred != nullptr && space.deferred(at)) space.add_deferred(at, deferred);
    const uint32_t to = space.step(at, static_cast<uint8_t>(text[i]));
    if (to == Space::kRefused || to == Space::kTooAmbiguous || (deferred != nullptr && !deferred->empty())) {
      *complete = false;
      return i;
    }
    at = to;
  }
  *complete = space.may_end(at);
  return text.size();
}

}  // namespace orrery::text::grammar

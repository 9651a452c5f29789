#include "runtime/text/grammar/run/space.h"

#include <algorithm>

namespace orrery::text::grammar {
namespace {

constexpr uint32_t kWideNode = 16;  // entries of a node
constexpr size_t kLinear = 12;      // items that are found without a table

uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9E3779B97F4A7C15u;
  return h ^ (h >> 29);
}

}  // namespace

void Space::Index::clear() {
  slots_.assign(64, {0, kUnset});
  hashes_.clear();
  numbers_.clear();
}

void Space::Index::place(uint64_t hash, uint64_t at, uint32_t number) {
  while (slots_[at & (slots_.size() - 1)].number != kUnset) ++at;
  slots_[at & (slots_.size() - 1)] = {static_cast<uint32_t>(hash >> 32), number};
}

void Space::Index::insert(uint64_t hash, uint32_t number) {
  hashes_.push_back(hash);
  numbers_.push_back(number);
  if (hashes_.size() * 2 > slots_.size()) {
    slots_.assign(slots_.size() * 2, {0, kUnset});
    for (size_t i = 0; i < hashes_.size(); ++i) place(hashes_[i], hashes_[i], numbers_[i]);
  } else {
    place(hash, hash, number);
  }
}

Space::Space(const Network& network) : network_(&network) { clear(); }

void Space::clear() {
  nodes_.clear();
  entries_.clear();
  configurations_.clear();
  items_.clear();
  rows_.clear();
  unions_.clear();
  reached_.clear();
  node_index_.clear();
  configuration_index_.clear();
  union_index_.clear();
  taken_.clear();
  taken_words_.clear();
  taken_index_.clear();
  taken({}, 0);
  node(nullptr, 0);
  push(kBottomState, 0, 0);
  push(kUnknownState, 0, 0);
  configuration({}, false, false);
}

size_t Space::memory_bytes() const {
  return nodes_.size() * sizeof(Node) + entries_.size() * sizeof(Entry) + configurations_.size() * sizeof(Configuration) +
         items_.size() * sizeof(Item) + rows_.size() * sizeof(uint32_t) + unions_.size() * sizeof(Union) + node_index_.memory_bytes() * 2 +
         configuration_index_.memory_bytes() * 2 + union_index_.memory_bytes() * 2 + taken_.size() * sizeof(Taken) +
         taken_words_.size() * sizeof(uint64_t) + taken_index_.memory_bytes() * 2;
}

// ---- Members in any order ----

uint32_t Space::taken(const std::vector<uint64_t>& words, uint32_t n_repeated) {
  size_t n = words.size();
  while (n > 0 && words[n - 1] == 0) --n;
  uint64_t hash = mix(n, n_repeated);
  for (size_t i = 0; i < n; ++i) hash = mix(hash, words[i]);
  const uint32_t known = taken_index_.find(hash, [&](uint32_t i) {
    const Taken& t = taken_[i];
    return t.n == n && t.n_repeated == n_repeated &&
           std::equal(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(n), taken_words_.begin() + t.begin);
  });
  if (known != kUnset) return known;
  const auto number = static_cast<uint32_t>(taken_.size());
  taken_.push_back({static_cast<uint32_t>(taken_words_.size()), static_cast<uint32_t>(n), n_repeated});
  taken_words_.insert(taken_words_.end(), words.begin(), words.begin() + static_cast<std::ptrdiff_t>(n));
  taken_index_.insert(hash, number);
  return number;
}

Space::Tally Space::tally(const NetworkMembers& members, uint32_t set) const {
  const auto n_bits = [](uint64_t word) {
    uint32_t n = 0;
    for (; word != 0; word &= word - 1) ++n;
    return n;
  };
  const Taken& t = taken_[set];
  Tally out = {t.n_repeated, members.n_needed};
  for (uint32_t i = 0; i < t.n; ++i) {
    out.taken += n_bits(taken_words_[t.begin + i]);
    out.missing -= n_bits(taken_words_[t.begin + i] & members.required[i]);
  }
  return out;
}

uint32_t Space::with_member(uint32_t set, const NetworkMembers& members, uint32_t member) {
  const Taken from = taken_[set];
  std::vector<uint64_t> words(members.required.size(), 0);
  std::copy_n(taken_words_.begin() + from.begin, from.n, words.begin());
  if (!members.list[member].repeats) {
    words[member / 64] |= uint64_t{1} << (member % 64);
    return taken(words, from.n_repeated);
  }
  return taken(words, members.most == kUnbounded ? std::min(from.n_repeated + 1, members.least) : from.n_repeated + 1);
}

// Whether a call may be made; the count changes with it. A member may come only if the required ones still have room behind it.
bool Space::call(const NetworkRule& rule, const Call& call, uint32_t* count) {
  if (!rule.any_order) return begin_round(rule, call.action, count);
  if (call.action == Edge::none) return true;
  const NetworkMembers& members = network_->members[rule.boundary];
  const Tally now = tally(members, *count);
  const bool full = members.most != kUnbounded && uint64_t{now.taken} + now.missing >= members.most;
  if (call.action == Edge::closes) {
    if (now.missing > 0 || now.taken < members.least) return false;
    *count = 0;
    return true;
  }
  if (call.action == Edge::goes_on)
    return now.missing > 0 || (!full && (members.n_once < members.list.size() || now.taken < members.n_once));
  const Members::Member& member = members.list[call.member];
  if ((!member.repeats && is_taken(*count, call.member)) || (full && !member.required)) return false;
  *count = with_member(*count, members, call.member);
  return true;
}

// ---- Nodes ----

uint32_t Space::node(const Entry* entries, size_t n) {
  uint64_t hash = n;
  for (size_t i = 0; i < n; ++i) hash = mix(mix(hash, uint64_t{entries[i].state} << 32 | entries[i].count), entries[i].parent);
  const uint32_t known = node_index_.find(
      hash, [&](uint32_t i) { return nodes_[i].n == n && std::equal(entries, entries + n, entries_.begin() + nodes_[i].begin); });
  if (known != kUnset) return known;
  const auto number = static_cast<uint32_t>(nodes_.size());
  auto width = static_cast<uint32_t>(n);
  for (size_t i = 0; i < n; ++i)
    if (number > kUnknown) width = std::max(width, nodes_[entries[i].parent].width);
  nodes_.push_back({static_cast<uint32_t>(entries_.size()), static_cast<uint32_t>(n), kUnset, width});
  entries_.insert(entries_.end(), entries, entries + n);
  node_index_.insert(hash, number);
  return number;
}

// Both nodes' entries in order; parents of equal entries are united first. A stack of frames stands for the recursion.
uint32_t Space::unite(uint32_t a, uint32_t b) {
  if (a == b || b == kEmpty) return a;
  if (a == kEmpty) return b;
  const auto known_union = [&](uint32_t x, uint32_t y, uint64_t* hash) {
    if (x > y) std::swap(x, y);
    *hash = mix(mix(7, x), y);
    return union_index_.find(*hash, [&](uint32_t i) { return unions_[i].a == x && unions_[i].b == y; });
  };
  uint64_t hash;
  if (const uint32_t known = known_union(a, b, &hash); known != kUnset) return unions_[known].result;
  frames_.clear();
  united_.clear();
  frames_.push_back({std::min(a, b), std::max(a, b), 0, 0, 0});
  uint32_t result = kUnset;  // of the frame that has just ended
  for (;;) {
    Frame& frame = frames_.back();
    const Node &x = nodes_[frame.a], &y = nodes_[frame.b];
    bool deeper = false;
    while (frame.i < x.n || frame.j < y.n) {
      const Entry* p = frame.i < x.n ? &entries_[x.begin + frame.i] : nullptr;
      const Entry* q = frame.j < y.n ? &entries_[y.begin + frame.j] : nullptr;
      const bool less = q == nullptr || (p != nullptr && (p->state != q->state ? p->state < q->state : p->count < q->count));
      const bool equal = p != nullptr && q != nullptr && p->state == q->state && p->count == q->count;
      if (!equal) {
        united_.push_back(less ? *p : *q);
        ++(less ? frame.i : frame.j);
        continue;
      }
      uint32_t parent = p->parent;
      if (p->parent != q->parent) {
        if (result != kUnset) {
          parent = result;
          result = kUnset;
        } else if (const uint32_t known = known_union(p->parent, q->parent, &hash); known != kUnset) {
          parent = unions_[known].result;
        } else {
          frames_.push_back({std::min(p->parent, q->parent), std::max(p->parent, q->parent), 0, 0, united_.size()});
          deeper = true;
          break;
        }
      }
      united_.push_back({p->state, p->count, parent});
      ++frame.i;
      ++frame.j;
    }
    if (deeper) continue;
    const Frame done = frames_.back();
    if (united_.size() - done.base > kMostEntries) too_ambiguous_ = true;
    result = node(united_.data() + done.base, united_.size() - done.base);
    united_.resize(done.base);
    known_union(done.a, done.b, &hash);
    unions_.push_back({done.a, done.b, result});
    union_index_.insert(hash, static_cast<uint32_t>(unions_.size() - 1));
    frames_.pop_back();
    if (frames_.empty()) return result;
  }
}

// ---- Configurations ----

void Space::begin_closure() {
  work_.clear();
  todo_.clear();
  queued_.clear();
  work_slots_.clear();
  may_end_ = escapes_ = too_ambiguous_ = false;
}

void Space::add(uint32_t q, uint32_t count, uint32_t node) {
  size_t at = work_.size();
  if (work_slots_.empty()) {
    for (size_t i = 0; i < work_.size(); ++i)
      if (work_[i].state == q && work_[i].count == count) at = i;
  } else {
    for (size_t s = mix(q, count) & (work_slots_.size() - 1); work_slots_[s] != kUnset; s = (s + 1) & (work_slots_.size() - 1)) {
      const Item& item = work_[work_slots_[s]];
      if (item.state == q && item.count == count) {
        at = work_slots_[s];
        break;
      }
    }
  }
  if (at < work_.size()) {
    const uint32_t united = unite(work_[at].node, node);
    if (united == work_[at].node) return;
    work_[at].node = united;
  } else {
    if (work_.size() >= 4 * size_t{kMostItems}) {
      too_ambiguous_ = true;
      return;
    }
    work_.push_back({q, count, node});
    queued_.push_back(false);
    const auto place = [&](size_t i) {
      size_t s = mix(work_[i].state, work_[i].count) & (work_slots_.size() - 1);
      while (work_slots_[s] != kUnset) s = (s + 1) & (work_slots_.size() - 1);
      work_slots_[s] = static_cast<uint32_t>(i);
    };
    if (work_.size() > kLinear && work_.size() * 2 > work_slots_.size()) {
      work_slots_.assign(std::max<size_t>(64, work_slots_.size() * 2), kUnset);
      for (size_t i = 0; i < work_.size(); ++i) place(i);
    } else if (!work_slots_.empty()) {
      place(at);
    }
  }
  if (!queued_[at]) {
    queued_[at] = true;
    todo_.push_back(static_cast<uint32_t>(at));
  }
}

void Space::pop(uint32_t node) {
  const Node popped = nodes_[node];
  for (uint32_t i = 0; i < popped.n; ++i) {
    const Entry entry = entries_[popped.begin + i];
    if (entry.state == kBottomState) {
      may_end_ = true;
    } else if (entry.state == kUnknownState) {
      escapes_ = true;
    } else {
      add(entry.state, entry.count, entry.parent);
    }
  }
}

// Counts the round that an edge begins. Without an upper bound, counts beyond `least` are alike.
bool Space::begin_round(const NetworkRule& rule, Edge::Action action, uint32_t* count) const {
  if (action == Edge::none) return true;
  if (action == Edge::leaves_rounds) {
    if (*count < rule.least) return false;
    *count = 0;
    return true;
  }
  if (rule.most != kUnbounded && *count >= rule.most) return false;
  if (rule.most != kUnbounded || *count < rule.least) ++*count;
  return true;
}

// Counted only where some node is wide: deep stacks alone are as good as free.
bool Space::too_many_reachable() {
  uint32_t width = 0;
  for (const Item& item : kept_) width = std::max(width, nodes_[item.node].width);
  if (width < kWideNode) return false;
  reached_.resize(nodes_.size(), 0);
  ++turn_;
  todo_.clear();
  const auto reach = [&](uint32_t n) {
    if (reached_[n] == turn_) return;
    reached_[n] = turn_;
    todo_.push_back(n);
  };
  for (const Item& item : kept_) reach(item.node);
  for (uint32_t entries = 0; !todo_.empty();) {
    const Node at = nodes_[todo_.back()];
    todo_.pop_back();
    if (at.width < kWideNode) continue;
    entries += at.n;
    if (entries > kMostReachable) return true;
    for (uint32_t e = 0; e < at.n; ++e) reach(entries_[at.begin + e].parent);
  }
  return false;
}

uint32_t Space::close() {
  while (!todo_.empty() && !too_ambiguous_) {
    const uint32_t at = todo_.back();
    todo_.pop_back();
    queued_[at] = false;
    const Item item = work_[at];
    const State& s = state(item.state);
    const NetworkRule& rule = network_->rules[s.rule];
    if (s.final && (!rule.counted || item.state != rule.boundary || item.count >= rule.least)) pop(item.node);
    if (s.ends_round) add(rule.boundary, item.count, item.node);
    for (uint32_t i = s.calls; i < state(item.state + 1).calls; ++i) {
      const Call call = network_->calls[i];
      uint32_t count = item.count;
      if (!this->call(rule, call, &count)) continue;
      add(network_->rules[call.rule].start, 0, state(call.target).tail ? item.node : push(call.target, count, item.node));
    }
  }
  if (too_ambiguous_) return kTooAmbiguous;
  kept_.clear();
  for (const Item& item : work_) {
    const State &s = state(item.state), &next = state(item.state + 1);
    if (s.edges != next.edges || s.tokens != next.tokens) kept_.push_back(item);
  }
  if (kept_.size() > 1) {
    std::sort(kept_.begin(), kept_.end(),
              [](const Item& a, const Item& b) { return a.state != b.state ? a.state < b.state : a.count < b.count; });
    // Once a state may leave its rounds, fewer rounds allow all that more rounds allow.
    size_t n = 0;
    for (const Item& item : kept_) {
      if (n > 0 && kept_[n - 1].state == item.state && kept_[n - 1].node == item.node &&
          kept_[n - 1].count >= network_->rules[state(item.state).rule].least)
        continue;
      kept_[n++] = item;
    }
    kept_.resize(n);
  }
  if (kept_.size() > kMostItems || too_many_reachable()) return kTooAmbiguous;
  return configuration(kept_, may_end_, escapes_);
}

uint32_t Space::configuration(const std::vector<Item>& items, bool may_end, bool escapes) {
  uint64_t hash = uint64_t{may_end} * 2 + escapes;
  for (const Item& item : items) hash = mix(mix(hash, uint64_t{item.state} << 32 | item.count), item.node);
  const uint32_t known = configuration_index_.find(hash, [&](uint32_t i) {
    const Configuration& c = configurations_[i];
    return c.n == items.size() && c.may_end == may_end && c.escapes == escapes &&
           std::equal(items.begin(), items.end(), items_.begin() + c.begin,
                      [](const Item& a, const Item& b) { return a.state == b.state && a.count == b.count && a.node == b.node; });
  });
  if (known != kUnset) return known;
  const auto number = static_cast<uint32_t>(configurations_.size());
  const bool deferred = network_->has_deferred && std::any_of(items.begin(), items.end(), [&](const Item& item) {
                          return network_->rules[state(item.state).rule].deferred != kNoNode;
                        });
  configurations_.push_back(
      {static_cast<uint32_t>(items_.size()), static_cast<uint32_t>(items.size()), kUnset, may_end, escapes, deferred});
  items_.insert(items_.end(), items.begin(), items.end());
  configuration_index_.insert(hash, number);
  return number;
}

void Space::add_deferred(uint32_t configuration, std::vector<uint32_t>* numbers) const {
  for (uint32_t i = 0; i < n_items(configuration); ++i)
    if (const uint32_t number = network_->rules[state(items(configuration)[i].state).rule].deferred; number != kNoNode)
      numbers->push_back(number);
}

uint32_t Space::start() {
  begin_closure();
  add(network_->rules[network_->root].start, 0, kBottom);
  may_end_ = network_->root_nullable;
  return close();
}

uint32_t Space::single(const Item& item) { return configuration({item}, false, false); }

uint32_t Space::after_pop(uint32_t node) {
  if (nodes_[node].popped == kUnset) {
    begin_closure();
    pop(node);
    const uint32_t popped = close();
    nodes_[node].popped = popped;
  }
  return nodes_[node].popped;
}

uint32_t Space::step(uint32_t number, uint8_t byte) {
  if (configurations_[number].row == kUnset) {
    configurations_[number].row = static_cast<uint32_t>(rows_.size());
    rows_.resize(rows_.size() + network_->n_classes, kUnset);
  }
  const size_t cell = configurations_[number].row + network_->byte_class[byte];
  if (rows_[cell] != kUnset) return rows_[cell];
  begin_closure();
  const Configuration from = configurations_[number];
  for (uint32_t i = 0; i < from.n; ++i) {
    const Item item = items_[from.begin + i];
    const NetworkRule& rule = network_->rules[state(item.state).rule];
    for (uint32_t e = state(item.state).edges; e < state(item.state + 1).edges; ++e) {
      const Edge& edge = network_->edges[e];
      if (edge.first > byte) break;
      uint32_t count = item.count;
      if (byte <= edge.last && begin_round(rule, edge.action, &count)) add(edge.target, count, item.node);
    }
  }
  const uint32_t to = close();
  rows_[cell] = to;
  return to;
}

uint32_t Space::step_token(uint32_t number, int32_t token, bool is_end, uint32_t by_bytes) {
  begin_closure();
  const Configuration from = configurations_[number];
  bool read = false;
  for (uint32_t i = 0; i < from.n; ++i) {
    const Item item = items_[from.begin + i];
    const NetworkRule& rule = network_->rules[state(item.state).rule];
    for (uint32_t e = state(item.state).tokens; e < state(item.state + 1).tokens; ++e) {
      const TokenEdge& edge = network_->token_edges[e];
      const TokenSet& set = network_->token_sets[edge.set];
      const bool listed = std::binary_search(set.ids.begin(), set.ids.end(), token);
      uint32_t count = item.count;
      if (listed == set.negated || (set.negated && is_end) || !begin_round(rule, edge.action, &count)) continue;
      add(edge.target, count, item.node);
      read = true;
    }
  }
  if (!read || by_bytes == kTooAmbiguous) return by_bytes;
  if (by_bytes != kRefused) {
    const Configuration bytes = configurations_[by_bytes];
    for (uint32_t i = 0; i < bytes.n; ++i) {
      const Item item = items_[bytes.begin + i];
      add(item.state, item.count, item.node);
    }
    may_end_ = may_end_ || bytes.may_end;
    escapes_ = escapes_ || bytes.escapes;
  }
  return close();
}

uint32_t Space::copy(const Space& other, uint32_t number) {
  // Parents have smaller numbers than the nodes that name them.
  std::vector<bool> reached(other.nodes_.size(), false);
  const Configuration from = other.configurations_[number];
  for (uint32_t i = 0; i < from.n; ++i) reached[other.items_[from.begin + i].node] = true;
  for (size_t i = other.nodes_.size(); i-- > 0;) {
    if (!reached[i]) continue;
    for (uint32_t e = 0; e < other.nodes_[i].n; ++e) reached[other.entries_[other.nodes_[i].begin + e].parent] = true;
  }
  std::vector<uint32_t> renamed(other.nodes_.size(), 0);
  std::vector<Entry> entries;
  for (size_t i = 0; i < other.nodes_.size(); ++i) {
    if (!reached[i] && i > kUnknown) continue;
    entries.assign(other.entries_.begin() + other.nodes_[i].begin, other.entries_.begin() + other.nodes_[i].begin + other.nodes_[i].n);
    bool moved = false;  // sets of members have other numbers here
    for (Entry& e : entries) {
      e.parent = renamed[e.parent];
      if (e.state >= kUnknownState || !network_->rules[state(e.state).rule].any_order) continue;
      const Taken set = other.taken_[e.count];
      const auto words = other.taken_words_.begin() + set.begin;
      e.count = taken({words, words + set.n}, set.n_repeated);
      moved = true;
    }
    if (moved)
      std::sort(entries.begin(), entries.end(),
                [](const Entry& a, const Entry& b) { return a.state != b.state ? a.state < b.state : a.count < b.count; });
    renamed[i] = node(entries.data(), entries.size());
  }
  std::vector<Item> items(other.items_.begin() + from.begin, other.items_.begin() + from.begin + from.n);
  for (Item& item : items) item.node = renamed[item.node];
  return configuration(items, from.may_end, from.escapes);
}

}  // namespace orrery::text::grammar

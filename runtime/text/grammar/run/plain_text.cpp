#include "runtime/text/grammar/run/plain_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace orrery::text::grammar {
namespace {

constexpr size_t kMostExpanded = 8192;                // places of one find(); from the others, the next byte is taken to lead nowhere
constexpr uint32_t kAnyLength = kMostPlainBytes + 1;  // a reach without end

// UTF-8, by what is still missing of a character. Bytes first..last lead from one part to the next.
enum Part : uint8_t { kWhole, kOne, kTwo, kThree, kAfterE0, kAfterED, kAfterF0, kAfterF4, kParts, kBroken = kParts };
struct PartEdge {
  uint8_t first, last, to;
};
struct PartEdges {
  PartEdge edges[12];
  uint32_t n;
};
constexpr PartEdges kPartEdges[kParts] = {
    {{{0x20, 0x21, kWhole},
      {0x23, 0x5B, kWhole},
      {0x5D, 0x7E, kWhole},
      {0xC2, 0xDF, kOne},
      {0xE0, 0xE0, kAfterE0},
      {0xE1, 0xEC, kTwo},
      {0xED, 0xED, kAfterED},
      {0xEE, 0xEF, kTwo},
      {0xF0, 0xF0, kAfterF0},
      {0xF1, 0xF3, kThree},
      {0xF4, 0xF4, kAfterF4}},
     11},
    {{{0x80, 0xBF, kWhole}}, 1},
    {{{0x80, 0xBF, kOne}}, 1},
    {{{0x80, 0xBF, kTwo}}, 1},
    {{{0xA0, 0xBF, kOne}}, 1},
    {{{0x80, 0x9F, kOne}}, 1},
    {{{0x90, 0xBF, kTwo}}, 1},
    {{{0x80, 0x8F, kTwo}}, 1},
};

uint8_t part_after(uint8_t part, uint8_t byte) {
  if (part == kBroken) part = kWhole;  // the next character may be whole again
  const PartEdges& edges = kPartEdges[part];
  for (uint32_t i = 0; i < edges.n; ++i)
    if (byte >= edges.edges[i].first && byte <= edges.edges[i].last) return edges.edges[i].to;
  return kBroken;
}

}  // namespace

uint8_t group_of(uint8_t byte) {
  if (byte >= 0x80) return kCharacterGroup;
  if (byte < 0x20 || byte == 0x7F) return 1 << 4;
  for (const auto& [bytes, bit] : {std::pair("<", 1), std::pair("[]{}", 2), std::pair("\"\\`|>'", 3)})
    if (std::string_view(bytes).find(static_cast<char>(byte)) != std::string_view::npos) return static_cast<uint8_t>(1 << bit);
  return 1;
}

std::vector<uint8_t> groups_below(const std::vector<TokenTrie::Node>& nodes, uint32_t depth) {
  uint8_t group[256], after[kParts + 1][128];  // after: of bytes from 0x80 on
  for (uint32_t byte = 0; byte < 256; ++byte) group[byte] = group_of(static_cast<uint8_t>(byte));
  for (uint8_t part = 0; part <= kBroken; ++part)
    for (uint32_t byte = 0x80; byte < 256; ++byte) after[part][byte - 0x80] = part_after(part, static_cast<uint8_t>(byte));
  std::vector<uint8_t> out(nodes.size());  // first each byte's own group
  std::vector<uint8_t> part(depth + 1, kWhole);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const uint8_t from = part[nodes[i].depth], byte = static_cast<uint8_t>(nodes[i].byte);
    const bool in_character = from != kWhole && from != kBroken;
    const uint8_t to = byte >= 0x80 ? after[from][byte - 0x80] : in_character ? uint8_t{kBroken} : uint8_t{kWhole};
    part[nodes[i].depth + 1] = to;
    out[i] = static_cast<uint8_t>((to == kBroken ? kBrokenGroup : group[byte]) | (to == kWhole ? 0 : kMidCharacter));
  }
  std::vector<uint8_t> below(depth + 2, 0);  // by depth: of the nodes that were met since the last node above them
  for (size_t i = nodes.size(); i-- > 0;) {
    const uint32_t d = nodes[i].depth;
    const uint8_t its = below[d + 1], middle = out[i] & kMidCharacter;
    below[d + 1] = 0;
    below[d] = static_cast<uint8_t>(below[d] | its | (out[i] & ~kMidCharacter));
    out[i] = its | middle;
  }
  return out;
}

uint8_t groups_read(Space* space, uint32_t configuration) {
  uint32_t out = kMidCharacter;
  for (uint32_t byte = 0; byte < 256; ++byte)
    if (space->step(configuration, static_cast<uint8_t>(byte)) != Space::kRefused)
      out |= byte < 0x80 ? group_of(static_cast<uint8_t>(byte)) : kCharacterGroup | kBrokenGroup;
  return static_cast<uint8_t>(out);
}

uint8_t TextLoops::find(Space* space, uint32_t configuration) {
  constexpr size_t kMostPlaces = 64;
  // One step finds nearly all configurations that do not read letters for ever.
  if (space->deferred(configuration) || space->step(configuration, 'e') != configuration) return 0;
  uint32_t out = kCharacterGroup - 1;
  for (uint32_t byte = 0; byte < 0x80; ++byte)
    if (space->step(configuration, static_cast<uint8_t>(byte)) != configuration) out &= ~uint32_t{group_of(static_cast<uint8_t>(byte))};
  // Characters of several bytes: all ways on from all parts of one.
  std::vector<std::pair<uint32_t, uint8_t>> places = {{configuration, kWhole}};
  for (size_t i = 0; i < places.size(); ++i) {
    const auto [from, part] = places[i];
    for (uint32_t k = 0; k < kPartEdges[part].n; ++k) {
      const PartEdge& edge = kPartEdges[part].edges[k];
      for (uint32_t byte = std::max<uint32_t>(edge.first, 0x80); byte <= edge.last; ++byte) {
        const uint32_t to = space->step(from, static_cast<uint8_t>(byte));
        if (edge.to == kWhole ? to != configuration
                              : to == Space::kRefused || to == Space::kTooAmbiguous || space->escapes(to) || space->deferred(to))
          return static_cast<uint8_t>(out);
        const std::pair<uint32_t, uint8_t> next = {to, edge.to};
        if (edge.to == kWhole || std::find(places.begin(), places.end(), next) != places.end()) continue;
        if (places.size() == kMostPlaces) return static_cast<uint8_t>(out);
        places.push_back(next);
      }
    }
  }
  return static_cast<uint8_t>(out | kCharacterGroup);
}

std::vector<uint8_t> plain_heights(const std::vector<TokenTrie::Node>& nodes, uint32_t depth) {
  uint8_t after[kParts + 1][256];
  for (uint8_t part = 0; part <= kBroken; ++part)
    for (uint32_t byte = 0; byte < 256; ++byte) after[part][byte] = part_after(part, static_cast<uint8_t>(byte));
  std::vector<uint8_t> out(nodes.size());  // first the parts of characters, then the heights
  std::vector<uint8_t> part(depth + 1, kWhole);
  for (size_t i = 0; i < nodes.size(); ++i) out[i] = part[nodes[i].depth + 1] = after[part[nodes[i].depth]][nodes[i].byte];
  // Children come behind their parents, so the way back meets them first.
  constexpr uint32_t kNotPlain = kMostPlainBytes;
  std::vector<uint32_t> below(depth + 2, 0);  // by depth: the height of the nodes that were met since the last node above them
  for (size_t i = nodes.size(); i-- > 0;) {
    const uint32_t d = nodes[i].depth, height = below[d + 1];
    below[d + 1] = 0;
    below[d] = std::max(below[d], out[i] == kBroken ? kNotPlain : std::min(height + 1, kNotPlain));
    out[i] = static_cast<uint8_t>(out[i] == kWhole && height < kNotPlain ? height + 1 : 0);
  }
  return out;
}

void PlainReach::forget() {
  reach_.clear();
  first_.clear();
  places_.clear();
}

uint32_t PlainReach::place(const LeafStates& states, uint32_t state, uint8_t part) {
  if (state >= first_.size()) {
    first_.resize(states.size(), kNone);
    reach_.resize(states.size(), 0);
  }
  for (uint32_t i = first_[state]; i != kNone; i = places_[i].next)
    if (places_[i].part == part) return i;
  places_.push_back({state, first_[state], kNone, part, 0});
  first_[state] = static_cast<uint32_t>(places_.size() - 1);
  return first_[state];
}

// The reach as far as the next byte and the places of earlier searches decide it. Adds the steps to other places.
uint32_t PlainReach::expand(LeafStates& states, uint32_t from) {
  const Place at = places_[met_[from]];
  const Edge::Action action = states.counted(at.state) && at.part == kWhole ? Edge::begins_round : Edge::none;
  const size_t known_steps = steps_.size();
  uint32_t reach = kAnyLength, last_state = kNone;
  uint8_t last_part = kWhole;
  const LeafStates::Edges edges = states.edges(at.state);
  const Edge* e = edges.begin();
  for (uint32_t i = 0; i < kPartEdges[at.part].n; ++i) {
    const PartEdge& bytes = kPartEdges[at.part].edges[i];
    while (e < edges.end() && e->last < bytes.first) ++e;
    for (uint32_t byte = bytes.first; byte <= bytes.last;) {
      if (e == edges.end() || e->first > byte || e->action != action || states.ends(e->target) != 0) {
        steps_.resize(known_steps);
        return 1;
      }
      const uint32_t to = e->target;
      byte = e->last + 1u;
      if (byte <= bytes.last) ++e;
      if (to == last_state && bytes.to == last_part) continue;
      last_state = to;
      last_part = bytes.to;
      const uint32_t next = place(states, to, bytes.to);
      if (places_[next].reach != 0) reach = std::min(reach, std::min(places_[next].reach + 1u, kAnyLength));
      else steps_.push_back({from, next});
    }
  }
  return reach;
}

void PlainReach::find(LeafStates& states, uint32_t state) {
  const uint32_t start = place(states, state, kWhole);
  // Places by breadth first.
  steps_.clear();
  met_.assign(1, start);
  places_[start].met = 0;
  std::vector<uint32_t> reach;
  for (uint32_t i = 0; i < met_.size() && i < kMostExpanded && !(states.is_joint(state) && states.full()); ++i) {
    const size_t known_steps = steps_.size();
    reach.push_back(expand(states, i));
    if (i == 0 && reach[0] == 1) break;  // most states of words and numbers
    for (size_t s = known_steps; s < steps_.size(); ++s) {
      Place& next = places_[steps_[s].to];
      if (next.met == kNone) {
        next.met = static_cast<uint32_t>(met_.size());
        met_.push_back(steps_[s].to);
      }
      steps_[s].to = next.met;
    }
  }
  const size_t n_expanded = reach.size();
  reach.resize(met_.size(), 1);
  // The shortest way to a place of reach 1, for all places at once: by growing reach, from each place to those before it.
  std::vector<uint32_t> begin(met_.size() + 1, 0), before(steps_.size());
  for (const Step& s : steps_) ++begin[s.to + 1];
  for (size_t i = 0; i < met_.size(); ++i) begin[i + 1] += begin[i];
  std::vector<uint32_t> fill(begin.begin(), begin.end() - 1);
  for (const Step& s : steps_) before[fill[s.to]++] = s.from;
  by_reach_.resize(kAnyLength);
  for (uint32_t i = 0; i < met_.size(); ++i)
    if (reach[i] < kAnyLength) by_reach_[reach[i]].push_back(i);
  for (uint32_t r = 1; r < kAnyLength; ++r) {
    for (const uint32_t i : by_reach_[r]) {
      if (reach[i] != r) continue;
      for (uint32_t k = begin[i]; k < begin[i + 1]; ++k) {
        if (reach[before[k]] <= r + 1) continue;
        reach[before[k]] = r + 1;
        if (r + 1 < kAnyLength) by_reach_[r + 1].push_back(before[k]);
      }
    }
    by_reach_[r].clear();
  }
  for (size_t i = 0; i < met_.size(); ++i) {
    Place& at = places_[met_[i]];
    at.met = kNone;
    if (i >= n_expanded) continue;  // its reach is found when it is asked for
    at.reach = static_cast<uint8_t>(reach[i]);
    if (at.part == kWhole) reach_[at.state] = at.reach;
  }
}

}  // namespace orrery::text::grammar

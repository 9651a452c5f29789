// What a token costs on a card that has room for some units of a model: bytes, rates, and the division of the card's memory. A unit is an
// expert of a mixture, or the matrices of a dense model's layer. Arithmetic alone; the numbers come from a file's header, the plan and the
// table of cards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/work.h"

namespace orrery::tool {

struct Card {
  const char* name;  // "rtx-3060-12g"
  double memory_gib;
  double read_gb_per_second;  // of the data sheet
  double link_gb_per_second;  // that PCIe carries of pinned memory
};
const std::vector<Card>& all_cards();
const Card* find_card(const std::string& name);  // null: no such card

// What no sheet says, and no card has measured of this library: the share of the sheet's rate at which weights are read, as others reach it
// (dense: 47 tokens/s of a 27B on an RTX 4090; mixtures: 512 tokens/s of a 35B-A3B on an RTX 5090); the share of a layer's choices that the
// layer before guesses; and the time in which the host learns a layer's choice and answers, where experts cross the link.
constexpr double kReadShare = 0.75, kMixtureReadShare = 0.55, kGuessedShare = 0.7, kRoundTrip = 25e-6;
// The rate at which the processor reads the experts that it computes, of two channels of DDR5-5600, whose sheet says 90 GB/s.
constexpr double kHostBytesPerSecond = 60e9;

struct Rates {
  double read = 0, link = 0;  // bytes per second
  double guessed = kGuessedShare;
  double round_trip = 0;  // seconds, of each layer with experts
  double host = kHostBytesPerSecond;
};
Rates rates_of(const Card& card, bool mixture);

// How often a token meets an expert that an earlier one has brought. uniform: as often as there is room for it. reused: as often as a cache
// of published models has been seen to have it (67% with a quarter of the experts, 81% with half: llama.cpp #27861), share^.3.
enum class Reuse { uniform, reused };
double hit_share(double share_on_device, Reuse reuse);

struct TokenTime {  // seconds
  double weights = 0, kv = 0, experts = 0;
  double link = 0;     // units that cross the link
  double exposed = 0;  // of `link`, what no computation hides, and the host's round trips
  double total() const { return weights + kv + experts + exposed; }
};

// session_bytes: KV and work memory; kv_bytes: what the token reads of it.
struct Division {
  Work work;
  double session_bytes = 0, kv_bytes = 0;

  bool mixture() const { return work.n_experts > 0; }
  uint64_t n_units() const { return mixture() ? work.n_experts : work.n_layers; }
  double unit_bytes() const;
  uint64_t least() const;  // units on the device: of experts, twice a layer's number, for the cache
  // Units that fit into `budget` bytes, at most all. Check bytes(): perhaps least() of them do not fit.
  uint64_t fitting(double budget) const;
  double bytes(uint64_t n_on_device) const;  // of the card; two slots for the layers that cross the link are among them
  // hit: of a mixture, the share of a token's experts that are there already, of a cache that has room for some; hit_share().
  TokenTime time(const Rates& rates, uint64_t n_on_device, double hit) const;
  TokenTime time(const Rates& rates, uint64_t n_on_device, Reuse reuse) const;
  // The same if the processor computes the experts that are not there, each chosen as often as another. exposed: what the layers' experts take
  // longer than all of them there; less than 0 where the processor is faster. Of a dense model, if it computes as many bytes of feed-forward
  // blocks as the layers have that are not there; where the blocks have fewer, the rest crosses the link.
  TokenTime time_by_host(const Rates& rates, uint64_t n_on_device) const;
  // Of a prompt's chunk: the time in which all that is not there crosses the link, once.
  double chunk_link_seconds(const Rates& rates, uint64_t n_on_device) const {
    return static_cast<double>(n_units() - n_on_device) * unit_bytes() / rates.link;
  }
};

}  // namespace orrery::tool

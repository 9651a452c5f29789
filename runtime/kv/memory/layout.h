// The layout of a session: the list of named regions that it takes, with the bytes of each in every kind of memory. It follows from
// hyperparameters, options and context alone. The plan adds it up, opening takes the regions that it names, and statistics read it.
//
// Whoever keeps something describes it once, by a function that returns its Region (PagePool::layout, Digests::layout, ...). The same Region
// goes into the plan and, when the session opens, to ArenaRegion::take(). So the plan cannot differ from what is taken.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/base/span.h"

namespace orrery::kv {

// What a region holds, as the plan sums it up.
enum class Holds : uint8_t {
  weights,     // host_bytes: of the file, mapped or read
  workspace,
  kv,          // pages, or resident KV
  summaries,   // of tokens that are not on the device: digests, low-rank keys, compensation tokens
  staging,     // what refills and settling need: the ring, room to work in, queries, exported attention weights
  tables,      // host memory beside the KV
};

struct Region {
  const char* name = "";           // of static storage; names the region in plans and in errors ("the session's ...")
  Holds holds = Holds::tables;
  uint64_t device_bytes = 0;       // of the device's arena, in its units
  uint64_t reservoir_bytes = 0;    // of the reservoir
  uint64_t host_bytes = 0;         // besides, at most
  uint64_t full_heads_bytes = 0;   // of device_bytes: KV of heads that hold the whole context
  bool empty() const { return device_bytes == 0 && reservoir_bytes == 0 && host_bytes == 0; }
};

class Layout {
 public:
  // Regions without bytes are left out.
  void add(const Region& region) {
    if (!region.empty()) regions_.push_back(region);
  }
  void add(const Layout& more) {
    for (const Region& region : more.regions_) add(region);
  }
  Span<const Region> regions() const { return regions_; }

  uint64_t device_bytes() const { return sum(&Region::device_bytes); }
  uint64_t device_bytes(Holds what) const { return sum(&Region::device_bytes, what); }
  uint64_t reservoir_bytes() const { return sum(&Region::reservoir_bytes); }
  uint64_t full_heads_bytes() const { return sum(&Region::full_heads_bytes); }
  uint64_t weights_mapped_bytes() const { return sum(&Region::host_bytes, Holds::weights); }
  uint64_t host_bytes() const { return sum(&Region::host_bytes) - weights_mapped_bytes(); }   // without the weights'

 private:
  uint64_t sum(uint64_t Region::*bytes) const {
    uint64_t total = 0;
    for (const Region& region : regions_) total += region.*bytes;
    return total;
  }
  uint64_t sum(uint64_t Region::*bytes, Holds what) const {
    uint64_t total = 0;
    for (const Region& region : regions_) total += region.holds == what ? region.*bytes : 0;
    return total;
  }
  std::vector<Region> regions_;
};

}  // namespace orrery::kv

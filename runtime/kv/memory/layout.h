// The layout of a session: the list of named regions that it takes, with the bytes of each in every kind of memory. It follows from
// the description, options and context alone. The plan adds it up and lists it (orrery_plan_regions), opening takes its regions, and an
// open session's statistics are sums of it.
//
// Each part has one function that returns its Region (PagePool::layout, Digests::layout, ...). The plan adds that Region, and opening
// passes the same Region to ArenaRegion::take(). So the plan cannot differ from the taken memory.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/base/span.h"

namespace orrery::kv {

// The kind of a region's content. The plan has a sum for each kind. The numbers are those of ORRERY_REGION_ in the public header.
enum class Holds : uint8_t {
  weights,    // host_bytes: of the file, mapped or read
  workspace,  // activations, scratch memory, logits
  kv,         // pages, or resident KV
  summaries,  // digests, low-rank keys, compensation tokens: they stand for tokens that are not on the device
  staging,    // needed by refills and settling: the ring, working memory, queries, exported attention weights
  tables,     // host memory beside the KV
};

struct Region {
  const char* name = "";  // of static storage; plans and errors show it ("the session's ...")
  Holds holds = Holds::tables;
  uint64_t device_bytes = 0;      // in the device arena
  uint64_t reservoir_bytes = 0;   // in the reservoir
  uint64_t host_bytes = 0;        // in other host memory: an upper bound
  uint64_t full_heads_bytes = 0;  // of device_bytes: KV of heads that hold the whole context
  bool empty() const { return device_bytes == 0 && reservoir_bytes == 0 && host_bytes == 0; }
};

class Layout {
 public:
  // Leaves out a region without bytes.
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
  uint64_t host_bytes() const { return sum(&Region::host_bytes) - weights_mapped_bytes(); }  // without the weights

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

// A compiled grammar for one vocabulary. Any number of matchers and threads share it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/text/grammar/run/closing.h"
#include "runtime/text/grammar/run/local_masks.h"

namespace orrery::text::grammar {

struct MatcherShared {
  MatcherShared(Network n, std::shared_ptr<const TokenTrie> t, size_t bytes)
      : network(std::move(n)), trie(std::move(t)), masks(bytes), cache_bytes(bytes) {}
  const Network network;
  const std::shared_ptr<const TokenTrie> trie;
  MaskCache masks;
  const size_t cache_bytes;        // of the masks, and of each matcher's configurations
  std::vector<uint32_t> compiled;  // the numbers of deferred rules that have their bodies
  const Costs& costs() {           // made on first use
    std::call_once(costs_once, [this] { costs_made.emplace(network, *trie); });
    return *costs_made;
  }
  std::once_flag costs_once;
  std::optional<Costs> costs_made;
};

}  // namespace orrery::text::grammar

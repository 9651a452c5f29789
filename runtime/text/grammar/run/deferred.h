// Rules that are compiled when an answer reaches them. A grammar may have many parts, of which an answer needs few. The first network then
// holds the rules around the parts, without the bodies of the deferred rules. When an answer reaches a deferred rule, the matcher compiles
// a network with the rule's body, and reads the answer's tokens again. So the grammar accepts the same answers as a grammar that compiles
// all rules at once.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/text/grammar/run/shared.h"
#include "runtime/text/grammar/tree/limits.h"
#include "runtime/text/grammar/tree/tree.h"

namespace orrery::text::grammar {

class Deferred {
 public:
  static constexpr size_t kMostKept = 8;
  // The tree in which the rules of these numbers, which rise, have their bodies.
  using Grow = std::function<Result<Tree>(const std::vector<uint32_t>& numbers, const CompileLimits& limits)>;

  Deferred(Grow grow, const CompileLimits& limits, std::shared_ptr<const TokenTrie> trie, size_t cache_bytes)
      : grow_(std::move(grow)), limits_(limits), trie_(std::move(trie)), cache_bytes_(cache_bytes) {}
  // `from` with further rules: compiled, or found among the last ones. Errors: those of compiling.
  Result<std::shared_ptr<MatcherShared>> grown(const MatcherShared& from, std::vector<uint32_t> numbers, const std::atomic<bool>* cancel);

 private:
  const Grow grow_;
  const CompileLimits limits_;
  const std::shared_ptr<const TokenTrie> trie_;
  const size_t cache_bytes_;
  std::mutex mutex_;                                // of what follows
  std::list<std::shared_ptr<MatcherShared>> kept_;  // the last used first
};

}  // namespace orrery::text::grammar

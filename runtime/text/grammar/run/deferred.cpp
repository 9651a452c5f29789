#include "runtime/text/grammar/run/deferred.h"

#include <algorithm>

namespace orrery::text::grammar {

Result<std::shared_ptr<MatcherShared>> Deferred::grown(const MatcherShared& from, std::vector<uint32_t> numbers,
                                                       const std::atomic<bool>* cancel) {
  numbers.insert(numbers.end(), from.compiled.begin(), from.compiled.end());
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = std::find_if(kept_.begin(), kept_.end(), [&](const auto& kept) { return kept->compiled == numbers; });
    if (at != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, at);
      return kept_.front();
    }
  }
  CompileLimits limits = limits_;
  limits.cancel = cancel;
  ORRERY_ASSIGN(const Tree tree, grow_(numbers, limits));
  ORRERY_ASSIGN(Network network, compile(tree, limits));
  auto made = std::make_shared<MatcherShared>(std::move(network), trie_, cache_bytes_);
  made->compiled = std::move(numbers);
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_front(made);
  if (kept_.size() > kMostKept) kept_.pop_back();
  return made;
}

}  // namespace orrery::text::grammar

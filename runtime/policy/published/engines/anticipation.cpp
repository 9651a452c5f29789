#include "runtime/policy/published/engines/anticipation.h"

#include <algorithm>

namespace orrery::policy {

Result<SyncSplit> sync_split(uint64_t k, Ratio rho) {
  if (rho.den == 0 || rho.num > rho.den) {
    return error(Code::invalid_argument, "a static share of %llu/%llu: expected 0 to 1", static_cast<unsigned long long>(rho.num),
                 static_cast<unsigned long long>(rho.den));
  }
  SyncSplit split;
  split.n_dynamic = static_cast<uint64_t>(static_cast<unsigned __int128>(rho.den - rho.num) * k / rho.den);
  split.n_static = k - split.n_dynamic;
  return split;
}

SyncSets sync_initial(Span<const float> scores, const SyncSplit& split) {
  SyncSets sets;
  Tokens best;
  top_k(scores, static_cast<size_t>(split.n_static + split.n_dynamic), &best);
  const auto cut = best.begin() + static_cast<std::ptrdiff_t>(std::min<uint64_t>(split.n_static, best.size()));
  sets.fixed.assign(best.begin(), cut);
  sets.dynamic.assign(cut, best.end());
  return sets;
}

Tokens sync_dynamic(Span<const float> scores, Span<const uint32_t> fixed, uint64_t n_dynamic) {
  Tokens out;
  top_k_excluding(scores, static_cast<size_t>(n_dynamic), fixed, &out);
  return out;
}

}  // namespace orrery::policy

#include "runtime/engine/resident/scored_heads.h"

#include "runtime/base/checked.h"

namespace orrery::engine {

uint64_t ScoredHeads::head_bytes(const model::Description& h, int64_t stride) {
  return align_up(ExportedWeights::bytes(h.kv().n_heads / h.kv().n_kv_heads, stride), kv::kArenaAlignment);
}

kv::Region ScoredHeads::layout(const model::Description& h, uint32_t n_heads, int64_t stride) {
  return {"exported attention weights", kv::Holds::staging, n_heads * head_bytes(h, stride), 0, 0, 0};
}

ScoredHeads::ScoredHeads(const model::Description& h, kv::ArenaRegion region, uint32_t n_heads, int64_t stride)
    : region_(std::move(region)), n_heads_(n_heads), stride_(stride), head_bytes_(head_bytes(h, stride)) {
  heads_.reserve(n_heads);
}

Result<std::unique_ptr<ScoredHeads>> ScoredHeads::make(kv::Arena* arena, const model::Description& h, uint32_t n_heads, int64_t stride) {
  ORRERY_ASSIGN(kv::ArenaRegion region, kv::ArenaRegion::take(arena, layout(h, n_heads, stride)));
  return std::unique_ptr<ScoredHeads>(new ScoredHeads(h, std::move(region), n_heads, stride));
}

void ScoredHeads::begin(const policy::Policy& policy, Span<HeadView> views) {
  policy.scored_heads(&heads_);
  for (size_t i = 0; i < heads_.size() && i < n_heads_; ++i)
    if (views[heads_[i]].n_keys <= stride_) views[heads_[i]].exported = {{region_.data().address + i * head_bytes_}, stride_};
}

}  // namespace orrery::engine

#include "runtime/engine/resident/parts.h"

#include <algorithm>
#include <type_traits>

namespace orrery::engine {

namespace {

// Parts that the prompt writes: their content counts before settling, too.
template <class T>
constexpr bool kOfPrompt = std::is_same_v<T, RecentQueries> || std::is_same_v<T, AttentionSums>;
// Parts that summarize the reservoir's tokens: their content counts after invalidate(), too.
template <class T>
constexpr bool kOfReservoir = std::is_same_v<T, kv::Digests> || std::is_same_v<T, kv::LowRank> || std::is_same_v<T, kv::KeyCodes>;

template <class T>
Status copy_part(Backend* backend, const T& from, const kv::PageTable&, T* to) {
  to->copy_from(backend, from);
  return ok_status();
}
Status copy_part(Backend* backend, const kv::Refills& from, const kv::PageTable& reservoir, kv::Refills* to) {
  return to->copy_from(backend, from, reservoir);
}

kv::Region slots_layout(const ResidentShape& shape) {
  kv::Region slots = kv::HeadStore::layout(shape.resident, shape.n_slots, shape.in_place, shape.backend.keeps_tiles);
  const uint64_t full = shape.policy->n_full_heads() * uint64_t{shape.n_context} * shape.resident.token_bytes();
  slots.full_heads_bytes = std::min(slots.device_bytes, full);
  return slots;
}

}  // namespace

kv::Layout Parts::layout(const ResidentShape& s) {
  const model::Description& h = *s.description;
  kv::Layout layout;
  layout.add(slots_layout(s));
  layout.add(kv::Digests::layout(s.digests, s.kept, s.n_context));
  layout.add(kv::LowRank::layout(s.low_rank, s.kept, s.n_context));
  layout.add(kv::LowRank::work_layout(s.low_rank, s.kept, s.n_context, s.backend));
  layout.add(kv::KeyCodes::layout(s.codes, s.kept, s.n_context));
  layout.add(kv::KeyCodes::turns_layout(s.codes, s.n_context));
  layout.add(kv::CompensationTokens::layout(s.kept, s.n_compensation_tokens));
  if (s.refills) layout.add(kv::Refills::layout(s.kept, s.n_slots, s.staging_tokens, s.rebuilds()));
  layout.add(RecentQueries::layout(h, s.n_query_rows));
  layout.add(ScoredHeads::layout(h, s.n_scored_heads, s.exported_stride));
  if (s.policy->sums_attention()) layout.add(AttentionSums::layout(h, s.n_context, s.n_slots));
  return layout;
}

Result<Parts> Parts::make(const ResidentShape& s, Runtime* runtime, Span<const RopeSpec> ropes) {
  const model::Description& h = *s.description;
  const RopeSpec rope = s.rope >= 0 ? ropes[static_cast<size_t>(s.rope)] : RopeSpec{};
  kv::Arena* arena = &runtime->arena();
  Parts parts;
  if (!s.digests.heads.empty()) {
    ORRERY_ASSIGN(parts.digests, kv::Digests::make(arena, s.digests, s.kept, s.n_context));
  }
  if (s.low_rank.rank > 0) {
    ORRERY_ASSIGN(parts.low_rank, kv::LowRank::make(arena, s.low_rank, s.kept, rope, s.n_context));
  }
  if (!s.codes.heads.empty()) {
    ORRERY_ASSIGN(parts.codes, kv::KeyCodes::make(arena, s.codes, s.kept, s.rotated, s.n_context, rope.inverse_frequency));
  }
  if (s.n_compensation_tokens > 0) {
    ORRERY_ASSIGN(parts.compensation_tokens, kv::CompensationTokens::make(arena, s.kept, s.n_compensation_tokens));
  }
  if (s.policy->sums_attention()) parts.sums = std::make_unique<AttentionSums>(h, s.n_context, s.n_slots);
  ORRERY_ASSIGN(parts.slots, kv::HeadStore::make(arena, s.resident, s.n_slots, s.in_place, s.backend.keeps_tiles));
  if (s.refills) {
    kv::IoThread* io = nullptr;
    if (s.staging_tokens > 0) {
      ORRERY_ASSIGN(io, runtime->io());
    }
    const Turn turn = runtime->take_turn();
    ORRERY_ASSIGN(parts.refills, kv::Refills::make(io, &turn.backend(), arena, s.kept, s.n_slots, s.staging_tokens,
                                                   s.rebuilds() ? parts.low_rank.get() : nullptr, s.moves_ahead));
  }
  if (s.n_query_rows > 0) {
    ORRERY_ASSIGN(parts.queries, RecentQueries::make(arena, h, s.n_query_rows));
  }
  if (s.n_scored_heads > 0) {
    ORRERY_ASSIGN(parts.scored_heads, ScoredHeads::make(arena, h, s.n_scored_heads, s.exported_stride));
  }
  return parts;
}

void Parts::truncate(uint32_t n_tokens) {
  each_member([&](auto member) {
    if (const auto& part = this->*member) part->truncate(n_tokens);
  });
}

Status Parts::copy_from(Backend* backend, const Parts& other, const kv::PageTable& reservoir, bool settled) {
  Status status = ok_status();
  each_member([&](auto member) {
    using Part = std::decay_t<decltype(*(this->*member))>;
    const auto& to = this->*member;
    if (to && status.ok() && (settled || kOfPrompt<Part>)) status = copy_part(backend, *(other.*member), reservoir, to.get());
  });
  return status;
}

uint64_t Parts::used_bytes(bool settled) const {
  uint64_t bytes = 0;
  each_member([&](auto member) {
    using Part = std::decay_t<decltype(*(this->*member))>;
    if (this->*member && (settled || kOfReservoir<Part>)) bytes += (this->*member)->used_bytes();
  });
  return bytes;
}

}  // namespace orrery::engine

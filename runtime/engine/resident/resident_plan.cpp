// What a session's resident part takes of each kind of memory, what it needs of a backend, and how it is made: the plan and make() go by the
// same sizes.
#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/engine/resident/resident.h"

namespace orrery::engine {

namespace {

// Tokens of the staging ring: as the policy says, and at least so many; 0 where it asks for no refills, or nothing is transferred.
constexpr uint64_t kLeastStaging = 4096;
uint64_t staging_tokens(const policy::Policy& policy, uint64_t n_slots, bool moves_directly) {
  const double share = moves_directly ? 0 : policy.refill_share();
  return share > 0 ? std::max(kLeastStaging, static_cast<uint64_t>(share * static_cast<double>(n_slots))) : 0;
}

uint64_t ring_bytes(const model::Hyperparameters& h, uint32_t n_rows) {
  return align_up(uint64_t{n_rows} * static_cast<uint64_t>(h.n_layers) * static_cast<uint64_t>(h.q_dim()) * sizeof(float),
                  kv::kArenaAlignment);
}

// Of the last queries: those that the policy wants survive a step that has overwritten the oldest one's row, and not come to its end.
uint32_t ring_rows(const SessionOptions& options, const policy::Policy& policy) {
  const uint32_t rows = policy::policy_needs(options.policy, options.policy_options).kept_queries;
  return rows > 0 ? std::max(rows, policy.queries_wanted() + 1) : 0;
}

int64_t exported_stride(uint32_t n_context) { return static_cast<int64_t>(align_up(n_context, kPageTokens)); }
uint64_t exported_bytes(const model::Hyperparameters& h, int64_t stride) {
  return align_up(ExportedWeights::bytes(h.n_heads / h.n_kv_heads, stride), kv::kArenaAlignment);
}

// What stands on the device beside the slots, and takes its part of the budget.
struct Beside {
  kv::DigestSpec digests;
  kv::LowRankSpec low_rank;
  uint32_t n_compensation_tokens = 0;
  bool rebuilds() const { return low_rank.rank > 0 && !low_rank.by_head; }
  // Of a layer's queries as rows are of keys.
  uint64_t projected_bytes(const model::Hyperparameters& h) const {
    return low_rank.by_head ? align_up(static_cast<uint64_t>(h.n_heads) * low_rank.rank * sizeof(float), kv::kArenaAlignment) : 0;
  }
};
Beside beside_of(const policy::Policy& policy, const model::Hyperparameters& h) {
  const policy::PageDigests asked = policy.digests();
  Beside beside;
  beside.digests = {asked.page_tokens,
                    asked.kind == policy::PageDigest::mean        ? DigestKind::mean
                    : asked.kind == policy::PageDigest::deviation ? DigestKind::deviation
                                                                  : DigestKind::range,
                    asked.heads};
  beside.n_compensation_tokens = policy.max_compensation_tokens();
  if (asked.rank == 0) return beside;
  beside.low_rank.rank = asked.rank;
  beside.low_rank.by_head = policy::is_low_rank(asked.kind);
  beside.low_rank.skewed = asked.kind == policy::PageDigest::skewed;
  if (beside.low_rank.by_head) beside.digests.heads.clear();   // rows are what pages of a token are found by
  for (const uint32_t head : asked.heads) {
    const uint32_t layer = head / static_cast<uint32_t>(h.n_kv_heads);
    if (beside.low_rank.layers.empty() || beside.low_rank.layers.back() != layer) beside.low_rank.layers.push_back(layer);
  }
  return beside;
}
uint64_t slots_beside(const Beside& beside, uint64_t slots, const KvFormat& format, uint32_t n_context) {
  const uint64_t bytes = kv::Digests::bytes_of(beside.digests, format.head_dim, n_context) +
                         kv::LowRank::bytes_of(beside.low_rank, format, n_context) + kv::CompensationTokens::bytes_of(beside.n_compensation_tokens, format.head_dim);
  return slots - std::min(slots, div_up(bytes, format.token_bytes()));
}

}  // namespace

Resident::Bytes Resident::device_bytes(const model::Hyperparameters& h, const Device& device,
                                       const SessionOptions& options, uint32_t n_context, bool moves_directly) {
  const KvFormat format = kv_format(h, options.resident_type(h));
  uint64_t slots = resident_slots(h, options, n_context);
  Bytes bytes;
  const auto policy = make_policy(h, options, n_context);
  if (policy.ok()) {
    bytes.queries = ring_bytes(h, ring_rows(options, *policy.value()));
    const Beside beside = beside_of(*policy.value(), h);
    bytes.digests = kv::Digests::region_bytes(beside.digests, h.head_dim, n_context) +
                    align_up(kv::LowRank::bytes_of(beside.low_rank, format, n_context), kv::kArenaAlignment) +
                    kv::CompensationTokens::region_bytes(beside.n_compensation_tokens, h.head_dim);
    // As it comes from the reservoir.
    const KvFormat fetched = kv_format(h, options.kv_type);
    bytes.staging = kv::LowRank::region_bytes(beside.low_rank, fetched, n_context) -
                    align_up(kv::LowRank::bytes_of(beside.low_rank, fetched, n_context), kv::kArenaAlignment);
    slots = slots_beside(beside, slots, format, n_context);
    bytes.staging += kv::Refills::staging_bytes(fetched, staging_tokens(*policy.value(), slots, moves_directly), beside.rebuilds());
    bytes.queries += beside.projected_bytes(h);
  }
  const uint64_t kv = kv::HeadStore::region_bytes(format, slots);
  if (policy.ok()) {
    bytes.full_kv = std::min(kv, policy.value()->n_full_heads() * uint64_t{n_context} * format.token_bytes());
    if (device.info().exports_weights) bytes.queries += policy.value()->max_scored_heads() * exported_bytes(h, exported_stride(policy.value()->max_scored_keys(n_context)));
  }
  bytes.compressed_kv = kv - bytes.full_kv;
  return bytes;
}

uint64_t Resident::host_bytes(const model::Hyperparameters& h, const Device& device, const SessionOptions& options, uint32_t n_context,
                              bool moves_directly) {
  const auto policy = make_policy(h, options, n_context);
  if (!policy.ok()) return 0;
  const policy::Policy& p = *policy.value();
  const BackendInfo info = device.info();
  const Beside beside = beside_of(p, h);
  const KvFormat format = kv_format(h, options.resident_type(h)), fetched = kv_format(h, options.kv_type);
  const uint64_t heads = static_cast<uint64_t>(h.n_layers) * static_cast<uint64_t>(h.n_kv_heads), n = n_context;
  const uint64_t slots = slots_beside(beside, resident_slots(h, options, n_context), format, n_context);
  const uint64_t kept_queries = ring_rows(options, p);
  const uint64_t jobs = sizeof(TopKeysJob) + sizeof(KeyWeightsJob) + sizeof(KeyMomentsJob);
  uint64_t bytes = kv::HeadStore::host_bytes(heads, slots) + heads * (sizeof(HeadView) + 2 * sizeof(uint32_t) + jobs) + n * sizeof(uint32_t) +
                   kept_queries * sizeof(uint32_t);
  if (p.refill_share() > 0)
    bytes += kv::Refills::host_bytes(fetched, slots, staging_tokens(p, slots, moves_directly), beside.rebuilds());
  if (beside.rebuilds())   // a layer's chunks
    bytes += static_cast<uint64_t>(h.n_kv_heads) * div_up(n, uint64_t{beside.digests.page_tokens}) * sizeof(RebuiltRun);
  if (beside.low_rank.skewed) bytes += static_cast<uint64_t>(h.n_layers) * kept_queries * static_cast<uint64_t>(h.q_dim()) * sizeof(float);
  if (p.asks_before_attend()) bytes += 2 * static_cast<uint64_t>(h.q_dim()) * sizeof(float);
  if (p.sums_attention()) bytes += AttentionSums::host_bytes(h, n_context) + slots * sizeof(float);
  const auto n_threads = static_cast<uint32_t>(std::max(info.n_threads, 1));
  return bytes + p.host_bytes({static_cast<uint32_t>(h.n_heads / h.n_kv_heads), n_threads, info.makes_moments}) +
         kv::Digests::host_bytes(beside.digests, heads, n_context) + kv::CompensationTokens::host_bytes(beside.n_compensation_tokens, beside.n_compensation_tokens > 0 ? heads : 0) +
         kv::LowRank::host_bytes(beside.low_rank, fetched, n_context, device);
}

Status Resident::check_operations(Backend* backend, const model::Hyperparameters& h, const SessionOptions& options, uint32_t n_context) {
  ORRERY_ASSIGN(const auto policy, make_policy(h, options, n_context));
  const Beside beside = beside_of(*policy, h);
  const bool has_digests = !beside.digests.heads.empty(), has_low_rank = beside.low_rank.rank > 0;
  const bool scores = ring_rows(options, *policy) > 0 || policy->sums_attention() || policy->asks_before_attend() || has_digests || has_low_rank;
  const char* missing = !backend->kv_moves()                                               ? "no operation that moves resident KV"
                        : scores && !backend->keys()                                       ? "no key scoring"
                        : (has_digests || beside.n_compensation_tokens > 0) && !backend->summaries()     ? "no page digests and compensation tokens"
                        : has_low_rank && !backend->low_rank()                             ? "no low-rank keys"
                                                                                           : nullptr;
  if (!missing) return ok_status();
  return error(Code::unsupported, "policy %s cannot run on backend %s, which has %s", options.policy.c_str(), backend->info().name, missing);
}

Result<std::unique_ptr<Resident>> Resident::make(const LanguageModel* model, const SessionOptions& options,
                                                 uint32_t n_context, const kv::PageTable* pages, const RopeSpec& rope) {
  const model::Hyperparameters& h = model->hyper();
  Runtime& runtime = model->runtime();
  {
    const Turn turn = runtime.take_turn();
    ORRERY_TRY(check_operations(&turn.backend(), h, options, n_context));
  }
  std::unique_ptr<Resident> r(new Resident(model, options, n_context, pages));
  ORRERY_ASSIGN(r->policy_, make_policy(h, options, n_context));
  const Beside beside = beside_of(*r->policy_, h);
  if (!beside.digests.heads.empty()) {
    ORRERY_ASSIGN(r->digests_, kv::Digests::make(&runtime.arena(), beside.digests, pages->format(), n_context));
  }
  if (beside.low_rank.rank > 0) {
    ORRERY_ASSIGN(r->low_rank_, kv::LowRank::make(&runtime.arena(), beside.low_rank, pages->format(), rope, n_context));
  }
  if (const uint64_t bytes = beside.projected_bytes(h)) {
    ORRERY_ASSIGN(r->projected_, kv::ArenaRegion::take(&runtime.arena(), bytes, "the session's queries by low-rank keys"));
  }
  if (beside.n_compensation_tokens > 0) {
    ORRERY_ASSIGN(r->compensation_tokens_, kv::CompensationTokens::make(&runtime.arena(), pages->format(), beside.n_compensation_tokens));
  }
  const uint64_t n_slots = slots_beside(beside, resident_slots(h, options, n_context), r->format_, n_context);
  if (r->policy_->sums_attention()) {
    r->sums_ = std::make_unique<AttentionSums>(h, n_context);
    r->weights_.resize(n_slots);
  }
  ORRERY_ASSIGN(r->store_, kv::HeadStore::make(&runtime.arena(), r->format_, n_slots));
  if (r->policy_->refill_share() > 0) {
    const uint64_t staging = staging_tokens(*r->policy_, n_slots, runtime.moves_directly());
    kv::IoThread* io = nullptr;
    if (staging > 0) {
      ORRERY_ASSIGN(io, runtime.io());
    }
    const Turn turn = runtime.take_turn();
    ORRERY_ASSIGN(r->refills_,
                  kv::Refills::make(io, &turn.backend(), &runtime.arena(), pages->format(), n_slots, staging, beside.rebuilds() ? r->low_rank_.get() : nullptr));
  }
  if (const uint32_t n_rows = ring_rows(options, *r->policy_); n_rows > 0) {
    ORRERY_ASSIGN(r->ring_region_, kv::ArenaRegion::take(&runtime.arena(), ring_bytes(h, n_rows), "the session's last queries"));
    r->ring_ = {{r->ring_region_.data().address}, static_cast<int32_t>(n_rows)};
    r->ring_positions_.assign(n_rows, kNone);
  }
  r->scored_heads_.reserve(r->policy_->max_scored_heads());
  if (const uint64_t n = r->policy_->max_scored_heads(); n > 0 && runtime.device().info().exports_weights) {
    r->exported_stride_ = exported_stride(r->policy_->max_scored_keys(n_context));
    r->left_bytes_ = exported_bytes(h, r->exported_stride_);
    ORRERY_ASSIGN(r->exported_region_,
                  kv::ArenaRegion::take(&runtime.arena(), n * r->left_bytes_, "the weights of watched heads"));
  }
  const uint32_t n_heads = r->store_->n_heads();
  r->capacity_.resize(n_heads);
  r->slots_.resize(n_heads);
  r->views_.resize(n_heads);
  if (r->policy_->asks_before_attend()) {
    r->q_now_.resize(static_cast<size_t>(h.q_dim()));
    r->q_before_.resize(static_cast<size_t>(h.q_dim()));
  }
  r->selected_.reserve(n_context);
  r->jobs_.reserve(n_heads);
  r->weights_jobs_.reserve(n_heads);
  r->moments_jobs_.reserve(n_heads);
  return r;
}

}  // namespace orrery::engine

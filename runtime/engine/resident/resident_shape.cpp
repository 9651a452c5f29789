#include "runtime/engine/resident/resident_shape.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/base/hash.h"
#include "runtime/engine/resident/answers.h"
#include "runtime/engine/resident/parts.h"
#include "runtime/engine/resident/resident.h"

namespace orrery::engine {

namespace {

// Tokens of the staging ring: the policy's share of the slots, at least kLeastStaging. 0: no refills, or nothing is transferred.
constexpr uint64_t kLeastStaging = 4096;
uint64_t ring_tokens(const policy::Policy& policy, uint64_t n_slots, bool moves_directly) {
  const double share = moves_directly ? 0 : policy.refill_share();
  return share > 0 ? std::max(kLeastStaging, static_cast<uint64_t>(share * static_cast<double>(n_slots))) : 0;
}

// One row more than the policy wants: a step that fails may have overwritten the oldest row.
uint32_t query_rows(const SessionOptions& options, const policy::Policy& policy) {
  const uint32_t rows = policy::policy_needs(options.policy, options.policy_options).kept_queries;
  return rows > 0 ? std::max(rows, policy.queries_wanted() + 1) : 0;
}

void set_summaries(const policy::Policy& policy, const SessionOptions& options, ResidentShape* shape) {
  const policy::PageDigests asked = policy.digests();
  shape->digests = {asked.page_tokens,
                    asked.kind == policy::PageDigest::mean        ? DigestKind::mean
                    : asked.kind == policy::PageDigest::deviation ? DigestKind::deviation
                                                                  : DigestKind::range,
                    asked.heads};
  shape->n_compensation_tokens = policy.max_compensation_tokens();
  if (asked.kind == policy::PageDigest::codes) {  // codes take the place of digests, with pages of one token
    shape->codes.bits = asked.bits, shape->codes.heads = asked.heads;
    shape->codes.values = asked.values, shape->codes.value_bits = asked.value_bits;
    const CodeTurns turns = options.code_turns(*shape->description);
    shape->codes.n_turns = turns.n_turns, shape->codes.n_pairs = turns.n_pairs, shape->codes.interleaved = turns.interleaved;
    shape->rope = turns.rope;
    shape->digests.heads.clear();
  }
  if (asked.rank == 0) return;
  kv::LowRankSpec& low_rank = shape->low_rank;
  low_rank.rank = asked.rank;
  low_rank.by_head = policy::is_low_rank(asked.kind);
  low_rank.skewed = asked.kind == policy::PageDigest::skewed;
  if (low_rank.by_head) shape->digests.heads.clear();  // rows take the place of digests, with pages of one token
  for (const uint32_t head : asked.heads) {
    const uint32_t layer = head / static_cast<uint32_t>(shape->description->kv().n_kv_heads);
    if (low_rank.layers.empty() || low_rank.layers.back() != layer) low_rank.layers.push_back(layer);
  }
}

uint64_t slots_beside(const ResidentShape& shape, uint64_t slots) {
  const KvFormat& format = shape.resident;
  const uint64_t bytes = kv::Digests::bytes_of(shape.digests, format.head_dim, shape.n_context) +
                         kv::LowRank::bytes_of(shape.low_rank, format, shape.n_context) +
                         kv::KeyCodes::bytes_of(shape.codes, format.head_dim, shape.n_context) +
                         kv::CompensationTokens::bytes_of(shape.n_compensation_tokens, format.head_dim);
  return slots - std::min(slots, div_up(bytes, format.token_bytes()));
}

// Low-rank keys are those before RoPE: their layers must share one.
Status set_rope(const char* policy_name, ResidentShape* shape) {
  const model::Description& h = *shape->description;
  const auto layer_of = [&](uint32_t kv_layer) { return h.kv().layers[kv_layer]; };
  const Span<const uint32_t> layers = shape->low_rank.layers;
  for (const uint32_t layer : layers) {
    const int32_t first = layer_of(layers[0]), other = layer_of(layer);
    shape->rope = h.layer(first).attention.rope;
    if (h.layer(other).attention.rope != shape->rope)
      return error(Code::unsupported,
                   "policy %s keeps low-rank keys, which need the same RoPE in all its layers; layers %d and %d have others", policy_name,
                   first, other);
  }
  return ok_status();
}

// Takes in numbers and texts, each told apart from the next.
class KindHash {
 public:
  KindHash& operator<<(uint64_t x) {
    hash_.update(&x, sizeof x);
    return *this;
  }
  KindHash& operator<<(double x) {
    hash_.update(&x, sizeof x);
    return *this;
  }
  KindHash& operator<<(const std::string& text) {
    *this << uint64_t{text.size()};
    hash_.update(text.data(), text.size());
    return *this;
  }
  std::array<uint8_t, 16> digest() const {
    std::array<uint8_t, 16> out;
    hash_.digest(out.data());
    return out;
  }

 private:
  Hash128 hash_;
};

}  // namespace

std::array<uint8_t, 16> ResidentShape::kind(const SessionOptions& options) const {
  KindHash hash;
  hash << std::string(backend.name) << options.policy << uint64_t{options.policy_options.size()};
  for (const auto& [name, value] : options.policy_options) hash << name << value;
  hash << options.kv_share << options.kv_budget_bytes << uint64_t{n_context} << n_slots << uint64_t{in_place};
  hash << static_cast<uint64_t>(kept.type) << static_cast<uint64_t>(resident.type) << uint64_t{rotated};
  hash << uint64_t{digests.page_tokens} << static_cast<uint64_t>(digests.kind) << uint64_t{digests.heads.size()};
  hash << uint64_t{low_rank.rank} << uint64_t{low_rank.by_head} << uint64_t{low_rank.skewed} << uint64_t{low_rank.layers.size()};
  hash << uint64_t{codes.bits} << uint64_t{codes.heads.size()} << uint64_t{codes.values} << uint64_t{codes.value_bits};
  hash << uint64_t{codes.n_turns} << uint64_t{codes.n_pairs} << uint64_t{n_compensation_tokens} << uint64_t{refills};
  hash << uint64_t{n_query_rows} << uint64_t{policy->sums_attention()} << uint64_t{options.head_profile != nullptr};
  if (options.head_profile) {
    const Result<std::string> profile = policy::write_profile(*options.head_profile);
    hash << (profile.ok() ? profile.value() : std::string(profile.status().message()));
  }
  return hash.digest();
}

Result<ResidentShape> ResidentShape::make(const model::Description& h, const BackendInfo& backend, const SessionOptions& options,
                                          uint32_t n_context, bool moves_directly) {
  ResidentShape shape;
  ORRERY_ASSIGN(shape.policy, make_policy(h, options, n_context));
  const policy::Policy& policy = *shape.policy;
  shape.description = &h;
  shape.backend = backend;
  shape.n_context = n_context;
  shape.kept = kv_format(h, options.kv_type);
  shape.in_place = policy.slots_in_place() > 0;
  shape.resident = kv_format(h, shape.in_place ? options.kv_type : options.resident_type(h));
  shape.rotated = options.rotated(h);
  set_summaries(policy, options, &shape);
  ORRERY_TRY(set_rope(options.policy.c_str(), &shape));
  shape.n_slots = shape.in_place ? policy.slots_in_place() : slots_beside(shape, resident_slots(h, options, n_context));
  shape.refills = policy.refill_share() > 0;
  shape.moves_ahead = moves_directly && backend.moves_ahead && shape.refills && !policy.refills_its_layer() && !shape.rebuilds();
  shape.moves_directly = moves_directly && (!backend.has_link || policy.refills_its_layer() || shape.moves_ahead);
  shape.fetches = backend.fetches && shape.moves_directly && policy.fetches_pages();
  shape.staging_tokens = ring_tokens(policy, shape.n_slots, shape.moves_directly);
  shape.n_query_rows = query_rows(options, policy);
  shape.n_scored_heads = backend.exports_weights ? policy.max_scored_heads() : 0;
  shape.exported_stride = static_cast<int64_t>(align_up(policy.max_scored_keys(n_context), kPageTokens));
  return shape;
}

Status ResidentShape::check_operations(Backend* backend_of, const char* policy_name) const {
  const bool has_digests = !digests.heads.empty(), has_low_rank = low_rank.rank > 0, has_codes = !codes.heads.empty();
  const bool summarizes = has_digests || n_compensation_tokens > 0 || codes.values;
  const bool finds = has_digests || has_low_rank || has_codes;
  const bool scores = n_query_rows > 0 || policy->sums_attention() || policy->asks_before_attend() || finds;
  const char* missing = !backend_of->kv_moves()                   ? "no operation that moves resident KV"
                        : scores && !backend_of->keys()           ? "no key scoring"
                        : summarizes && !backend_of->summaries()  ? "no page digests and compensation tokens"
                        : has_low_rank && !backend_of->low_rank() ? "no low-rank keys"
                        : has_codes && !backend_of->key_codes()   ? "no key codes"
                                                                  : nullptr;
  if (!missing) return ok_status();
  return error(Code::unsupported, "policy %s cannot run on backend %s, which has %s", policy_name, backend_of->info().name, missing);
}

kv::Layout resident_layout(const model::Description& h, const BackendInfo& backend, const SessionOptions& options, uint32_t n_context,
                           bool moves_directly) {
  kv::Layout layout;
  const auto made = ResidentShape::make(h, backend, options, n_context, moves_directly);
  if (!made.ok()) {
    kv::Region slots =
        kv::HeadStore::layout(kv_format(h, options.resident_type(h)), resident_slots(h, options, n_context), false, backend.keeps_tiles);
    slots.host_bytes = 0;
    layout.add(slots);
    return layout;
  }
  const ResidentShape& shape = made.value();
  layout.add(Parts::layout(shape));
  layout.add(Answers::layout(shape));
  layout.add(Resident::layout(shape));
  const policy::HostShape host = {static_cast<uint32_t>(h.kv().n_heads / h.kv().n_kv_heads),
                                  static_cast<uint32_t>(std::max(backend.n_threads, 1)), backend.makes_moments};
  layout.add({"policy", kv::Holds::tables, 0, 0, shape.policy->host_bytes(host), 0});
  return layout;
}

}  // namespace orrery::engine

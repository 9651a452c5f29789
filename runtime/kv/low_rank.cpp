#include "runtime/kv/low_rank.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/base/half.h"
#include "runtime/base/subspace.h"
#include "runtime/base/thread_pool.h"
#include "runtime/os/os.h"

namespace orrery::kv {

namespace {

uint64_t width_of(const KvFormat& format) { return static_cast<uint64_t>(format.n_kv_heads) * static_cast<uint64_t>(format.head_dim); }
// Of a layer, in halves.
uint64_t rows_bytes(const LowRankSpec& spec, uint32_t n_context) { return 2 * uint64_t{n_context} * spec.rank; }
uint64_t basis_bytes(const LowRankSpec& spec, const KvFormat& format) { return 2 * width_of(format) * spec.rank; }
uint64_t work_at(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context) {
  return align_up(LowRank::bytes_of(spec, format, n_context), kArenaAlignment);
}
LowRankKeys shape_of(const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope) {
  LowRankKeys keys;
  keys.kv = format, keys.rope = rope, keys.rank = static_cast<int32_t>(spec.rank);
  return keys;
}
// Layers whose bases are looked for at once: a processor each, or those that the backend has anyhow.
size_t n_at_once(const LowRankSpec& spec, const Backend& backend) {
  const BackendInfo info = backend.info();
  const int32_t n = info.unified_memory ? info.n_threads : os::available_processors();
  return std::clamp<size_t>(static_cast<size_t>(std::max(n, 1)), 1, std::max<size_t>(spec.layers.size(), 1));
}

}  // namespace

uint64_t LowRank::bytes_of(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context) {
  return spec.rank == 0 ? 0 : spec.layers.size() * (rows_bytes(spec, n_context) + basis_bytes(spec, format));
}

uint64_t LowRank::region_bytes(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context) {
  if (spec.rank == 0) return 0;
  return work_at(spec, format, n_context) + align_up(shape_of(spec, format, {}).work_bytes(), kArenaAlignment);
}

uint64_t LowRank::host_bytes(const LowRankSpec& spec, const KvFormat& format, const Backend& backend) {
  if (spec.rank == 0) return 0;
  const uint64_t width = width_of(format), each = width * width * sizeof(float) + 3 * width * (spec.rank + 16) * sizeof(double);
  return n_at_once(spec, backend) * each;
}

LowRank::LowRank(const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope, uint32_t n_context, ArenaRegion region)
    : spec_(spec), format_(format), rope_(rope), n_context_(n_context), region_(std::move(region)) {}

Result<std::unique_ptr<LowRank>> LowRank::make(Arena* arena, const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope,
                                               uint32_t n_context) {
  ORRERY_ASSIGN(ArenaRegion region, ArenaRegion::take(arena, region_bytes(spec, format, n_context), "the session's low-rank keys"));
  return std::unique_ptr<LowRank>(new LowRank(spec, format, rope, n_context, std::move(region)));
}

uint64_t LowRank::bytes() const { return work_at(spec_, format_, n_context_); }

uint64_t LowRank::used_bytes() const { return n_tokens_ > 0 ? bytes_of(spec_, format_, n_tokens_) : 0; }

LowRankKeys LowRank::layer(size_t i, const PageTable* reservoir) const {
  LowRankKeys keys = shape_of(spec_, format_, rope_);
  keys.layer = static_cast<int32_t>(spec_.layers[i]);
  keys.basis = region_.data() + i * (basis_bytes(spec_, format_) + rows_bytes(spec_, n_context_));
  keys.rows = keys.basis + basis_bytes(spec_, format_);
  keys.work = region_.data() + work_at(spec_, format_, n_context_);
  if (reservoir) keys.pages = reservoir->view().pages;
  return keys;
}

Status LowRank::settle(Backend* backend, const PageTable& reservoir, uint32_t n_tokens) {
  const size_t n_layers = spec_.layers.size(), width = width_of(format_), n_threads = n_at_once(spec_, *backend);
  std::vector<std::vector<float>> products(n_threads, std::vector<float>(width * width)), bases(n_threads, std::vector<float>(spec_.rank * width));
  std::vector<Subspace> finders(n_threads, Subspace(static_cast<int64_t>(width), spec_.rank));
  std::vector<uint16_t> halves(spec_.rank * width);
  // Where there are no threads to be had one after the other will do.
  auto pool = ThreadPool::make(static_cast<int32_t>(n_threads), static_cast<int32_t>(n_threads));
  for (size_t first = 0; first < n_layers; first += n_threads) {
    const size_t n = std::min(n_threads, n_layers - first);
    for (size_t i = 0; i < n; ++i)
      backend->key_products(layer(first + i, &reservoir), static_cast<int32_t>(n_tokens), products[i].data());
    ORRERY_TRY(backend->synchronize());
    const auto find = [&](int64_t i, int32_t) {
      const auto at = static_cast<size_t>(i);
      finders[at].find(products[at].data(), bases[at].data());
    };
    if (pool.ok()) {
      pool.value()->run(static_cast<int64_t>(n), find);
    } else {
      for (size_t i = 0; i < n; ++i) find(static_cast<int64_t>(i), 0);
    }
    for (size_t i = 0; i < n; ++i) {
      std::transform(bases[i].begin(), bases[i].end(), halves.begin(), float_to_half);
      backend->upload(layer(first + i, nullptr).basis, halves.data(), 2 * halves.size());
    }
  }
  n_tokens_ = 0;
  extend(backend, reservoir, n_tokens);
  return backend->synchronize();
}

void LowRank::extend(Backend* backend, const PageTable& reservoir, uint32_t n_tokens) {
  for (size_t i = 0; i < spec_.layers.size(); ++i)
    backend->low_rank_rows(layer(i, &reservoir), static_cast<int32_t>(n_tokens_), static_cast<int32_t>(n_tokens));
  n_tokens_ = std::max(n_tokens_, n_tokens);
}

void LowRank::rebuild(Backend* backend, uint32_t head, KvType slot_type, Span<const RebuiltRun> runs) {
  const auto n_kv_heads = static_cast<uint32_t>(format_.n_kv_heads);
  const auto found = std::lower_bound(spec_.layers.begin(), spec_.layers.end(), head / n_kv_heads);
  backend->rebuild_keys(layer(static_cast<size_t>(found - spec_.layers.begin()), nullptr), static_cast<int32_t>(head % n_kv_heads), slot_type, runs);
}

void LowRank::copy_from(Backend* backend, const LowRank& other) {
  backend->copy(region_.data(), other.region_.data(), bytes_of(spec_, format_, n_context_));
  n_tokens_ = other.n_tokens_;
}

}  // namespace orrery::kv

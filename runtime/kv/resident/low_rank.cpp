#include "runtime/kv/resident/low_rank.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/checked.h"
#include "runtime/base/half.h"
#include "runtime/base/subspace.h"
#include "runtime/kv/memory/device_pieces.h"
#include "runtime/os/thread_pool.h"
#include "runtime/os/os.h"

namespace orrery::kv {

namespace {

constexpr uint32_t kTileTokens = static_cast<uint32_t>(kPageTokens);

uint64_t heads_of_unit(const LowRankSpec& spec, const KvFormat& format) {
  return spec.by_head ? 1 : static_cast<uint64_t>(format.n_kv_heads);
}
uint64_t units_of(const LowRankSpec& spec, const KvFormat& format) {
  return spec.layers.size() * (static_cast<uint64_t>(format.n_kv_heads) / heads_of_unit(spec, format));
}
uint64_t width_of(const LowRankSpec& spec, const KvFormat& format) {
  return heads_of_unit(spec, format) * static_cast<uint64_t>(format.head_dim);
}
// Bytes of one unit's rows and basis, in F16.
uint64_t rows_bytes(const LowRankSpec& spec, uint32_t n_context) { return 2 * uint64_t{n_context} * spec.rank; }
uint64_t basis_bytes(const LowRankSpec& spec, const KvFormat& format) { return 2 * width_of(spec, format) * spec.rank; }
// LowRankKeys::rotations behind the working memory: those of the pages, then those of the positions within a page.
uint64_t rotations_bytes(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context) {
  return spec.by_head ? 0
                      : (div_up(n_context, kTileTokens) + uint64_t{kTileTokens}) * static_cast<uint64_t>(format.head_dim) * sizeof(float);
}
LowRankKeys shape_of(const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope) {
  LowRankKeys keys;
  keys.kv = format, keys.rank = static_cast<int32_t>(spec.rank);
  if (spec.by_head) keys.kv_head = 0;
  else keys.rope = rope;
  return keys;
}
// Units whose bases are found in parallel: one for each processor, or for each thread of a backend that computes on the host.
size_t n_at_once(const LowRankSpec& spec, const KvFormat& format, const BackendInfo& info) {
  const int32_t n = info.computes_on_host ? info.n_threads : os::available_processors();
  return std::clamp<size_t>(static_cast<size_t>(std::max(n, 1)), 1, std::max<size_t>(units_of(spec, format), 1));
}

// Finds a unit's basis. The constructor takes all memory.
class BasisFinder {
 public:
  BasisFinder(const LowRankSpec& spec, size_t width)
      : products(width * width), sums(width), of_queries(spec.skewed ? width * width : 0), basis((spec.skewed ? width : spec.rank) * width),
        rank_(spec.rank), width_(width), weights_(width), order_(width),
        subspace_(static_cast<int64_t>(width), static_cast<int64_t>(basis.size() / width)) {}
  std::vector<float> products, sums, of_queries;  // (width, width) of the keys, (width) of the keys, (width, width) of the queries
  std::vector<float> basis;                       // (rank, width) first

  // The largest directions of `products`.
  void find() { subspace_.find(products.data(), basis.data()); }
  // The largest directions of `products` with the mean subtracted.
  void find_centred(uint32_t n_keys) {
    for (size_t i = 0; i < width_; ++i)
      for (size_t j = 0; j < width_; ++j) {
        float& x = products[i * width_ + j];
        x = static_cast<float>(static_cast<double>(x) - static_cast<double>(sums[i]) * static_cast<double>(sums[j]) / n_keys);
      }
    find();
  }
  // The directions of the queries with the largest sums of root mean squares, of queries and of keys, in the order of the directions.
  void find_skewed(double n_keys, double n_queries) {
    subspace_.find(of_queries.data(), basis.data());
    for (size_t r = 0; r < width_; ++r) weights_[r] = along(r, of_queries, n_queries) + along(r, products, n_keys);
    std::iota(order_.begin(), order_.end(), size_t{0});
    const auto before = [&](size_t a, size_t b) { return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b; };
    std::sort(order_.begin(), order_.end(), before);
    std::sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(rank_));
    for (size_t r = 0; r < rank_; ++r)  // order_ ascends, so order_[r] >= r: a copy overwrites nothing that is still needed
      std::copy_n(basis.begin() + static_cast<ptrdiff_t>(order_[r] * width_), width_, basis.begin() + static_cast<ptrdiff_t>(r * width_));
  }

 private:
  double along(size_t direction, const std::vector<float>& squares, double n) const {
    const float* x = &basis[direction * width_];
    double sum = 0;
    for (size_t i = 0; i < width_; ++i)
      for (size_t j = 0; j < width_; ++j)
        sum += static_cast<double>(x[i]) * static_cast<double>(squares[i * width_ + j]) * static_cast<double>(x[j]);
    return std::sqrt(std::max(sum, 0.0) / n);
  }
  const size_t rank_, width_;
  std::vector<double> weights_;
  std::vector<size_t> order_;
  Subspace subspace_;
};

}  // namespace

uint64_t LowRank::bytes_of(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context) {
  return spec.rank == 0 ? 0 : units_of(spec, format) * (rows_bytes(spec, n_context) + basis_bytes(spec, format));
}

Region LowRank::layout(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context) {
  if (spec.rank == 0) return {};
  const uint64_t tiles = spec.by_head ? units_of(spec, format) * div_up(n_context, kTileTokens) * sizeof(uint64_t) : 0;
  return {"low-rank keys", Holds::summaries, align_up(bytes_of(spec, format, n_context), kArenaAlignment), 0, tiles, 0};
}

Region LowRank::work_layout(const LowRankSpec& spec, const KvFormat& format, uint32_t n_context, const BackendInfo& backend) {
  if (spec.rank == 0) return {};
  const uint64_t width = width_of(spec, format), n_basis = spec.skewed ? width : spec.rank, n_found = std::min(width, n_basis + 16);
  const uint64_t each = ((1 + spec.skewed) * width + n_basis) * width * sizeof(float) + 2 * (width + n_found) * n_found * sizeof(double);
  const uint64_t halves = spec.rank * width * sizeof(uint16_t), rotations = rotations_bytes(spec, format, n_context);
  return {"low-rank keys' working memory",
          Holds::staging,
          align_up(shape_of(spec, format, {}).work_bytes(), kArenaAlignment) + align_up(rotations, kArenaAlignment),
          0,
          std::max(n_at_once(spec, format, backend) * each + halves, rotations),
          0};
}

LowRank::LowRank(const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope, uint32_t n_context, ArenaRegion region,
                 ArenaRegion work)
    : spec_(spec), format_(format), rope_(rope), n_context_(n_context), region_(std::move(region)), work_(std::move(work)) {
  if (!spec.by_head) return;
  n_tiles_ = div_up(n_context, kTileTokens);
  tiles_.reserve(n_units() * n_tiles_);
  for (size_t i = 0; i < n_units(); ++i)
    for (uint32_t tile = 0; tile < n_tiles_; ++tile)
      tiles_.push_back(unit(i, nullptr).rows.address + 2 * uint64_t{tile} * kTileTokens * spec.rank);
}

size_t LowRank::n_units() const { return units_of(spec_, format_); }

size_t LowRank::unit_of(uint32_t head) const {
  const auto n_kv_heads = static_cast<uint32_t>(format_.n_kv_heads);
  const auto at = static_cast<size_t>(std::lower_bound(spec_.layers.begin(), spec_.layers.end(), head / n_kv_heads) - spec_.layers.begin());
  return spec_.by_head ? at * n_kv_heads + head % n_kv_heads : at;
}

uint64_t LowRank::unit_bytes() const { return basis_bytes(spec_, format_) + rows_bytes(spec_, n_context_); }

Result<std::unique_ptr<LowRank>> LowRank::make(Arena* arena, const LowRankSpec& spec, const KvFormat& format, const RopeSpec& rope,
                                               uint32_t n_context) {
  ORRERY_ASSIGN(ArenaRegion region, ArenaRegion::take(arena, layout(spec, format, n_context)));
  ORRERY_ASSIGN(ArenaRegion work, ArenaRegion::take(arena, work_layout(spec, format, n_context)));
  return std::unique_ptr<LowRank>(new LowRank(spec, format, rope, n_context, std::move(region), std::move(work)));
}

uint64_t LowRank::used_bytes() const { return n_tokens_ > 0 ? bytes_of(spec_, format_, n_tokens_) : 0; }

LowRankKeys LowRank::unit(size_t i, const PageTable* reservoir) const {
  LowRankKeys keys = shape_of(spec_, format_, rope_);
  const size_t of_layer = spec_.by_head ? static_cast<size_t>(format_.n_kv_heads) : 1;
  keys.layer = static_cast<int32_t>(spec_.layers[i / of_layer]);
  if (spec_.by_head) keys.kv_head = static_cast<int32_t>(i % of_layer);
  keys.basis = region_.data() + i * unit_bytes();
  keys.rows = keys.basis + basis_bytes(spec_, format_);
  keys.work = work_.data();
  if (reservoir) keys.pages = reservoir->view().pages;
  if (has_rotations_) {
    const Ptr<std::byte> rotations = keys.work + align_up(keys.work_bytes(), kArenaAlignment);
    keys.page_rotations = {rotations.address};
    keys.rotations = keys.page_rotations + uint64_t{div_up(n_context_, kTileTokens)} * static_cast<uint64_t>(rope_.n_rot);
  }
  return keys;
}

void LowRank::make_rotations(Backend* backend) {
  if (has_rotations_ || spec_.by_head || rope_.n_rot == 0) return;
  const uint32_t n_pages = div_up(n_context_, kTileTokens), half = static_cast<uint32_t>(rope_.n_rot) / 2;
  std::vector<float> rotations;
  rotations.reserve((n_pages + size_t{kTileTokens}) * 2 * half);
  const auto add = [&](uint32_t position, double magnitude) {
    const auto each = [&](double (*f)(double)) {
      for (uint32_t i = 0; i < half; ++i)
        rotations.push_back(static_cast<float>(f(position * static_cast<double>(rope_.inverse_frequency[i])) * magnitude));
    };
    each(std::cos), each(std::sin);
  };
  for (uint32_t page = 0; page < n_pages; ++page) add(page * kTileTokens, static_cast<double>(rope_.magnitude));
  for (uint32_t p = 0; p < kTileTokens; ++p) add(p, 1);
  has_rotations_ = true;
  backend->upload({unit(0, nullptr).page_rotations.address}, rotations.data(), rotations.size() * sizeof(float));
}

// products: (width, width) sums over the queries of the head's group.
void LowRank::add_query_products(const LastQueries& queries, size_t at, std::vector<float>* products) const {
  const LowRankKeys keys = unit(at, nullptr);
  const auto width = static_cast<size_t>(format_.head_dim), n_heads = static_cast<size_t>(queries.n_heads);
  const size_t group = n_heads / static_cast<size_t>(format_.n_kv_heads), first = static_cast<size_t>(keys.layer) * queries.n_positions;
  std::fill(products->begin(), products->end(), 0.0f);
  for (size_t row = first; row < first + queries.n_positions; ++row)
    for (size_t g = 0; g < group; ++g) {
      const float* q = &queries.rows[(row * n_heads + static_cast<size_t>(keys.kv_head) * group + g) * width];
      for (size_t i = 0; i < width; ++i)
        for (size_t j = 0; j < width; ++j) (*products)[i * width + j] += q[i] * q[j];
    }
}

Status LowRank::settle(Backend* backend, const PageTable& reservoir, uint32_t n_tokens, const LastQueries& queries) {
  const size_t width = width_of(spec_, format_), n_threads = n_at_once(spec_, format_, backend->info());
  std::vector<BasisFinder> finders;
  finders.reserve(n_threads);  // no copies: each finder is made at its place
  for (size_t i = 0; i < n_threads; ++i) finders.emplace_back(spec_, width);
  std::vector<uint16_t> halves(spec_.rank * width);
  // If the system gives no threads, the units are found one after the other.
  auto pool = ThreadPool::make(static_cast<int32_t>(n_threads), static_cast<int32_t>(n_threads));
  for (size_t first = 0; first < n_units(); first += n_threads) {
    const size_t n = std::min(n_threads, n_units() - first);
    const bool centred = spec_.by_head && !spec_.skewed;
    for (size_t i = 0; i < n; ++i)
      backend->low_rank()->key_products(unit(first + i, &reservoir), static_cast<int32_t>(n_tokens), finders[i].products.data(),
                                        centred ? finders[i].sums.data() : nullptr);
    ORRERY_TRY(backend->synchronize());
    const auto find = [&](int64_t i, int32_t) {
      BasisFinder& finder = finders[static_cast<size_t>(i)];
      if (centred) return finder.find_centred(n_tokens);
      if (!spec_.skewed) return finder.find();
      add_query_products(queries, first + static_cast<size_t>(i), &finder.of_queries);
      finder.find_skewed(n_tokens, static_cast<double>(queries.n_positions) * queries.n_heads / format_.n_kv_heads);
    };
    if (pool.ok()) {
      pool.value()->run(static_cast<int64_t>(n), find);
    } else {
      for (size_t i = 0; i < n; ++i) find(static_cast<int64_t>(i), 0);
    }
    for (size_t i = 0; i < n; ++i) {
      const auto basis = finders[i].basis.begin();
      std::transform(basis, basis + static_cast<ptrdiff_t>(halves.size()), halves.begin(), float_to_half);
      backend->upload(unit(first + i, nullptr).basis, halves.data(), 2 * halves.size());
    }
  }
  make_rotations(backend);
  n_tokens_ = 0;
  extend(backend, reservoir, n_tokens);
  return backend->synchronize();
}

void LowRank::extend(Backend* backend, const PageTable& reservoir, uint32_t n_tokens) {
  for (size_t i = 0; i < n_units(); ++i)
    backend->low_rank()->low_rank_rows(unit(i, &reservoir), static_cast<int32_t>(n_tokens_), static_cast<int32_t>(n_tokens));
  n_tokens_ = std::max(n_tokens_, n_tokens);
}

void LowRank::project(Backend* backend, uint32_t layer, int32_t n_heads, Ptr<const float> q, Ptr<float> out) const {
  const size_t first = unit_of(layer * static_cast<uint32_t>(format_.n_kv_heads));
  backend->low_rank()->low_rank_queries(unit(first, nullptr), unit_bytes(), n_heads, q, out);
}

void LowRank::rebuild(Backend* backend, uint32_t layer, KvType slot_type, Span<const RebuiltRun> runs) {
  backend->low_rank()->rebuild_keys(of_layer(layer), slot_type, runs);
}

void LowRank::copy_from(Backend* backend, const LowRank& other) {
  backend->copy(region_.data(), other.region_.data(), bytes_of(spec_, format_, n_context_));
  n_tokens_ = other.n_tokens_;
  if (other.has_rotations_) make_rotations(backend);
}

Status LowRank::state(Backend* backend, StateBytes* s, uint32_t n_tokens) {
  uint32_t n_rows = n_tokens_;
  ORRERY_TRY(s->number(&n_rows, uint64_t{n_tokens} + 1, "low-rank keys of more tokens than the session has"));
  DevicePieces pieces;
  for (size_t i = 0; i < n_units(); ++i) {
    const LowRankKeys keys = unit(i, nullptr);
    pieces.add(keys.basis, basis_bytes(spec_, format_));
    pieces.add(keys.rows, rows_bytes(spec_, n_rows));
  }
  if (s->takes()) make_rotations(backend), n_tokens_ = n_rows;
  return pieces.state(backend, s);
}

}  // namespace orrery::kv

#include "runtime/kv/resident/key_codes.h"

#include <cmath>
#include <cstring>

#include "runtime/base/checked.h"
#include "runtime/kv/memory/device_pieces.h"

namespace orrery::kv {

namespace {

KeyCodeFormat code_format(const KeyCodeSpec& spec, int32_t head_dim) {
  return {static_cast<int32_t>(spec.bits), head_dim, spec.values, static_cast<int32_t>(spec.value_bits),
          static_cast<int32_t>(spec.n_turns)};
}
size_t tiles_of(uint32_t n_context) { return div_up(n_context, static_cast<uint32_t>(kPageTokens)); }

}  // namespace

uint64_t KeyCodes::bytes_of(const KeyCodeSpec& spec, int32_t head_dim, uint32_t n_context) {
  return spec.heads.size() * code_format(spec, head_dim).head_bytes(n_context);
}

Region KeyCodes::layout(const KeyCodeSpec& spec, const KvFormat& format, uint32_t n_context) {
  if (spec.bits == 0 || spec.heads.empty()) return {};
  const uint64_t host =
      spec.heads.size() * (tiles_of(n_context) * sizeof(uint64_t) + sizeof(KeyCodesJob) + sizeof(MeanValueJob) + sizeof(uint32_t));
  return {"key codes", Holds::summaries, align_up(bytes_of(spec, format.head_dim, n_context), kArenaAlignment), 0, host, 0};
}

// The tables of turns: first the tables of tiles, then the tables within a tile.
Region KeyCodes::turns_layout(const KeyCodeSpec& spec, uint32_t n_context) {
  if (spec.bits == 0 || spec.heads.empty() || spec.n_turns == 0) return {};
  const uint64_t bytes = 2 * sizeof(float) * uint64_t{spec.n_pairs} * (tiles_of(n_context) + static_cast<uint64_t>(kPageTokens));
  return {"turns of key codes", Holds::staging, align_up(bytes, kArenaAlignment), 0, bytes, 0};
}

// Tiles of all heads first, then all means: tiles are whole cache lines where a tile is.
KeyCodes::KeyCodes(const KeyCodeSpec& spec, const KvFormat& format, bool rotated, uint32_t n_context, const float* frequencies,
                   ArenaRegion region, ArenaRegion turns)
    : spec_(spec), shape_{format, code_format(spec, format.head_dim), rotated ? 1 : hadamard_block(format.head_dim), {}, false},
      frequencies_(frequencies), region_(std::move(region)), turns_region_(std::move(turns)), n_tiles_(tiles_of(n_context)) {
  if (spec.n_turns > 0) {
    shape_.interleaved = spec.interleaved;
    const uint64_t of_tiles = 2 * uint64_t{spec.n_pairs} * n_tiles_;
    shape_.turns.tiles = {turns_region_.data().address};
    shape_.turns.within = shape_.turns.tiles + of_tiles;
    shape_.turns.n_pairs = static_cast<int32_t>(spec.n_pairs);
  }
  const uint64_t tile = shape_.codes.tile_bytes(), first = region_.data().address;
  const uint64_t means = first + spec.heads.size() * n_tiles_ * tile;
  tiles_.reserve(spec.heads.size() * n_tiles_);
  jobs_.resize(spec.heads.size());
  values_.resize(spec.values ? spec.heads.size() : 0);
  for (size_t i = 0; i < spec.heads.size(); ++i) {
    jobs_[i].tiles = {first + i * n_tiles_ * tile};
    jobs_[i].mean = {means + i * shape_.codes.mean_bytes()};
    for (size_t t = 0; t < n_tiles_; ++t) tiles_.push_back(jobs_[i].tiles.address + t * tile);
  }
}

Result<std::unique_ptr<KeyCodes>> KeyCodes::make(Arena* arena, const KeyCodeSpec& spec, const KvFormat& format, bool rotated,
                                                 uint32_t n_context, const float* frequencies) {
  ORRERY_ASSIGN(ArenaRegion region, ArenaRegion::take(arena, layout(spec, format, n_context)));
  ArenaRegion turns;
  if (spec.n_turns > 0) {
    ORRERY_ASSIGN(turns, ArenaRegion::take(arena, turns_layout(spec, n_context)));
  }
  return std::unique_ptr<KeyCodes>(new KeyCodes(spec, format, rotated, n_context, frequencies, std::move(region), std::move(turns)));
}

void KeyCodes::make_turn_tables(Backend* backend) {
  if (has_turn_tables_ || spec_.n_turns == 0) return;
  std::vector<float> table;
  table.reserve(2 * uint64_t{spec_.n_pairs} * (n_tiles_ + static_cast<uint64_t>(kPageTokens)));
  for (size_t tile = 0; tile < n_tiles_; ++tile)
    for (uint32_t i = 0; i < spec_.n_pairs; ++i) {
      const double angle = static_cast<double>(tile * size_t{kPageTokens}) * static_cast<double>(frequencies_[i]);
      table.push_back(static_cast<float>(std::cos(angle))), table.push_back(static_cast<float>(std::sin(angle)));
    }
  for (uint32_t i = 0; i < spec_.n_pairs; ++i)
    for (double (*f)(double) : {static_cast<double (*)(double)>(std::cos), static_cast<double (*)(double)>(std::sin)})
      for (int32_t p = 0; p < kPageTokens; ++p) table.push_back(static_cast<float>(f(p * static_cast<double>(frequencies_[i]))));
  has_turn_tables_ = true;
  backend->upload({turns_region_.data().address}, table.data(), table.size() * sizeof(float));
}

void KeyCodes::read_pages(const PageTable& reservoir) {
  for (size_t i = 0; i < jobs_.size(); ++i) {
    jobs_[i].pages = reservoir.view().pages;
    jobs_[i].offset = reservoir.format().head_offset(spec_.heads[i]);
  }
}

void KeyCodes::set_values(Backend* backend, const PageTable& reservoir, Span<const float> shares) {
  const size_t n_tokens = shares.size() / values_.size();
  const auto dim = static_cast<uint64_t>(shape_.codes.head_dim);
  for (size_t i = 0; i < values_.size(); ++i)
    values_[i] = {reservoir.view().pages, reservoir.format().head_offset(spec_.heads[i]), jobs_[i].mean + dim,
                  shares.subspan(i * n_tokens, n_tokens)};
  backend->key_codes()->mean_values(values_, reservoir.format());
}

void KeyCodes::settle(Backend* backend, const PageTable& reservoir, uint32_t n_tokens) {
  make_turn_tables(backend);
  uint32_t n_in_mean = 1;
  while (n_in_mean <= n_tokens / 2) n_in_mean *= 2;
  if (n_in_mean != n_in_mean_) {
    read_pages(reservoir);
    const uint32_t first = n_in_mean > kNotInMean ? kNotInMean : 0, step = std::max(n_in_mean / kInMean, 1u);
    backend->key_codes()->mean_keys(jobs_, shape_, static_cast<int32_t>(first), static_cast<int32_t>(n_in_mean),
                                    static_cast<int32_t>(step));
    n_in_mean_ = n_in_mean, n_tokens_ = 0;
  }
  extend(backend, reservoir, n_tokens);
}

void KeyCodes::extend(Backend* backend, const PageTable& reservoir, uint32_t n_tokens) {
  if (n_tokens <= n_tokens_) return;
  read_pages(reservoir);
  backend->key_codes()->encode_keys(jobs_, shape_, static_cast<int32_t>(n_tokens_), static_cast<int32_t>(n_tokens));
  n_tokens_ = n_tokens;
}

void KeyCodes::copy_from(Backend* backend, const KeyCodes& other) {
  make_turn_tables(backend);
  const auto n_tokens = static_cast<uint32_t>(n_tiles_) * static_cast<uint32_t>(kPageTokens);
  backend->copy(region_.data(), other.region_.data(), bytes_of(spec_, shape_.codes.head_dim, n_tokens));
  n_tokens_ = other.n_tokens_, n_in_mean_ = other.n_in_mean_;
}

Status KeyCodes::state(Backend* backend, StateBytes* s, uint32_t n_tokens) {
  uint32_t n_codes = n_tokens_, n_in_mean = n_in_mean_;
  ORRERY_TRY(s->number(&n_codes, uint64_t{n_tokens} + 1, "codes of more tokens than the session has"));
  ORRERY_TRY(s->number(&n_in_mean, uint64_t{n_tokens} + 1, "means of more tokens than the session has"));
  // Means first: turns name dimensions, which kernels trust.
  std::vector<uint8_t> means(spec_.heads.size() * shape_.codes.mean_bytes());
  DevicePieces of_means, of_tiles;
  const uint64_t n_tiles = div_up(uint64_t{n_codes}, static_cast<uint64_t>(kPageTokens));
  for (const KeyCodesJob& job : jobs_) {
    of_means.add({job.mean.address}, shape_.codes.mean_bytes());
    of_tiles.add({job.tiles.address}, n_tiles * shape_.codes.tile_bytes());
  }
  if (StateBytes probe = *s; s->reads()) {
    ORRERY_TRY(probe.raw(means.data(), means.size()));
    for (size_t i = 0; i < spec_.heads.size(); ++i)
      for (uint32_t turn = 0; turn < spec_.n_turns; ++turn) {
        KeyTurn t;
        std::memcpy(&t, &means[i * shape_.codes.mean_bytes() + shape_.codes.turns_offset() + turn * sizeof t], sizeof t);
        const auto below = [](int32_t x, int64_t end) { return x >= 0 && x < end; };
        ORRERY_TRY(s->check(below(t.first, shape_.codes.head_dim) && below(t.second, shape_.codes.head_dim) && below(t.pair, spec_.n_pairs),
                            "a turn of key codes is outside the head"));
      }
  }
  if (s->takes()) make_turn_tables(backend), n_tokens_ = n_codes, n_in_mean_ = n_in_mean;
  ORRERY_TRY(of_means.state(backend, s));
  return of_tiles.state(backend, s);
}

}  // namespace orrery::kv

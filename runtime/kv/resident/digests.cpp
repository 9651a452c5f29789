#include "runtime/kv/resident/digests.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/kv/memory/device_pieces.h"

namespace orrery::kv {

namespace {

uint64_t head_bytes(const DigestSpec& spec, int32_t head_dim, uint32_t n_context) {
  return n_context / spec.page_tokens * Digests::digest_bytes(head_dim, spec.kind);
}

}  // namespace

uint64_t Digests::bytes_of(const DigestSpec& spec, int32_t head_dim, uint32_t n_context) {
  return spec.heads.empty() ? 0 : spec.heads.size() * head_bytes(spec, head_dim, n_context);
}

// host_bytes: the tables of tiles, and the cosines.
Region Digests::layout(const DigestSpec& spec, const KvFormat& format, uint32_t n_context) {
  if (spec.heads.empty()) return {};
  const uint64_t n_heads = static_cast<uint64_t>(format.n_layers) * static_cast<uint64_t>(format.n_kv_heads);
  const uint32_t n_pages = n_context / spec.page_tokens;
  const uint64_t cosines = spec.kind == DigestKind::mean ? n_pages * sizeof(float) : 0;
  const uint64_t tiles = div_up(n_pages, static_cast<uint32_t>(kPageTokens)) * sizeof(uint64_t);
  const uint64_t host = n_heads * sizeof(uint64_t*) + spec.heads.size() * (tiles + sizeof(DigestJob) + cosines);
  return {"page digests", Holds::summaries, align_up(bytes_of(spec, format.head_dim, n_context), kArenaAlignment), 0, host, 0};
}

Digests::Digests(const DigestSpec& spec, const KvFormat& format, uint32_t n_context, ArenaRegion region)
    : spec_(spec), format_(format), region_(std::move(region)) {
  format_.type = KvType::f16;
  const uint64_t head = head_bytes(spec, format.head_dim, n_context), tile = kPageTokens * digest_bytes();
  const size_t n_tiles = div_up(n_context / spec.page_tokens, static_cast<uint32_t>(kPageTokens));
  tiles_.reserve(spec.heads.size() * n_tiles);
  tiles_of_.resize(static_cast<size_t>(format.n_layers) * static_cast<size_t>(format.n_kv_heads));
  for (size_t i = 0; i < spec.heads.size(); ++i) {
    tiles_of_[spec.heads[i]] = tiles_.data() + tiles_.size();
    for (size_t t = 0; t < n_tiles; ++t) tiles_.push_back(region_.data().address + i * head + t * tile);
  }
  jobs_.reserve(spec.heads.size());
  if (spec.kind != DigestKind::mean) return;
  cosines_.resize(spec.heads.size() * (n_context / spec.page_tokens));
  no_number_.assign(static_cast<size_t>(format.head_dim), 0x7E00);
}

Result<std::unique_ptr<Digests>> Digests::make(Arena* arena, const DigestSpec& spec, const KvFormat& format, uint32_t n_context) {
  ORRERY_ASSIGN(ArenaRegion region, ArenaRegion::take(arena, layout(spec, format, n_context)));
  return std::unique_ptr<Digests>(new Digests(spec, format, n_context, std::move(region)));
}

void Digests::add_job(const PageTable& reservoir, uint32_t head, uint32_t first, uint32_t n) {
  jobs_.push_back({reservoir.view().pages, reservoir.format().head_offset(head), static_cast<int32_t>(first), static_cast<int32_t>(n),
                   tiles_of_[head], cosines_.empty() ? nullptr : cosines_.data() + first_cosine(head) + first});
}

void Digests::extend(Backend* backend, const PageTable& reservoir, uint32_t n_tokens) {
  const uint32_t end = n_tokens / spec_.page_tokens;
  if (end <= n_pages_) return;
  jobs_.clear();
  for (const uint32_t head : spec_.heads) add_job(reservoir, head, n_pages_, end - n_pages_);
  backend->summaries()->digest(jobs_, {reservoir.format(), static_cast<int32_t>(spec_.page_tokens), spec_.kind});
  n_pages_ = end;
}

void Digests::hide(Backend* backend, const PageTable& reservoir, uint32_t head, uint32_t page, bool hidden) {
  if (hidden) {
    const auto tile = static_cast<uint32_t>(kPageTokens);
    backend->upload({tiles_of_[head][page / tile] + page % tile * digest_bytes()}, no_number_.data(), 2 * no_number_.size());
    return;
  }
  jobs_.clear();
  add_job(reservoir, head, page, 1);
  backend->summaries()->digest(jobs_, {reservoir.format(), static_cast<int32_t>(spec_.page_tokens), spec_.kind});
}

void Digests::copy_from(Backend* backend, const Digests& other) {
  backend->copy(region_.data(), other.region_.data(), region_.bytes());
  n_pages_ = other.n_pages_;
  cosines_ = other.cosines_;
}

Status Digests::state(Backend* backend, StateBytes* s, uint32_t n_tokens) {
  const uint32_t n_pages = n_tokens / spec_.page_tokens;
  ORRERY_TRY(s->known(n_pages, "digests of another number of pages"));
  const bool has_cosines = !cosines_.empty();
  std::vector<float> cosines;
  DevicePieces pieces;
  for (const uint32_t head : spec_.heads) {
    pieces.add({tiles_of_[head][0]}, n_pages * digest_bytes());
    if (has_cosines) cosines.insert(cosines.end(), &cosines_[first_cosine(head)], &cosines_[first_cosine(head)] + n_pages);
  }
  ORRERY_TRY(s->values(&cosines, has_cosines ? spec_.heads.size() * n_pages : 0));
  if (s->takes()) {
    n_pages_ = n_pages;
    for (size_t i = 0; has_cosines && i < spec_.heads.size(); ++i)
      std::copy_n(cosines.begin() + static_cast<ptrdiff_t>(i * n_pages), n_pages,
                  cosines_.begin() + static_cast<ptrdiff_t>(first_cosine(spec_.heads[i])));
  }
  return pieces.state(backend, s);
}

}  // namespace orrery::kv

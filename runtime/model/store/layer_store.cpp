#include "runtime/model/store/layer_store.h"

#include <algorithm>
#include <utility>

#include "runtime/base/checked.h"

namespace orrery::model {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20, kMostPieces = 64;  // 8 MiB take .3 ms on PCIe 4.0

}  // namespace

uint64_t LayerUnits::slot_bytes() const {
  uint64_t most = 0;
  for (const Layer& layer : layers) most = std::max(most, layer.bytes);
  return most;
}

LayerUnits LayerUnits::spread(Span<const uint64_t> bytes, int32_t n_away) {
  LayerUnits units;
  const auto all = static_cast<int64_t>(bytes.size()), n = std::clamp<int64_t>(n_away, 0, all);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t layer = (2 * i + 1) * all / (2 * n);  // the middle of the i-th of n equal parts
    units.layers.push_back({static_cast<int32_t>(layer), align_up(bytes[static_cast<size_t>(layer)], kv::kArenaAlignment), units.bytes()});
  }
  return units;
}

LayerStore::Needs LayerStore::needs(const LayerUnits& units, bool in_place) {
  const size_t n_slots = std::min(units.layers.size(), kSlots);
  if (in_place) return {0, units.bytes()};
  return {n_slots * units.slot_bytes(), align_up(units.bytes(), kv::kHostAlignment)};
}

LayerStore::LayerStore(LayerUnits units, kv::IoThread* io) : units_(std::move(units)), io_(io), slot_bytes_(units_.slot_bytes()) {
  index_of_.resize(static_cast<size_t>(units_.layers.back().layer) + 1, -1);
  for (size_t l = 0; l < units_.layers.size(); ++l) index_of_[static_cast<size_t>(units_.layers[l].layer)] = static_cast<int64_t>(l);
  piece_bytes_ = std::max(kPieceBytes, align_up(slot_bytes_ / kMostPieces, kv::kArenaAlignment));
  if (!io_) return;
  for (Slot& slot : slots_) slot.pieces = std::vector<Piece>((slot_bytes_ + piece_bytes_ - 1) / piece_bytes_);
}

Result<std::unique_ptr<LayerStore>> LayerStore::make(const LayerUnits& units, kv::Arena* arena, kv::Arena* reservoir, kv::IoThread* io) {
  if (!units) return error(Code::internal, "a store for layers without layers");
  std::unique_ptr<LayerStore> store(new LayerStore(units, io));
  const Needs needs = LayerStore::needs(units, io == nullptr);
  ORRERY_ASSIGN(store->device_, kv::ArenaRegion::take(arena, needs.arena_bytes, "layers that cross the link"));
  ORRERY_ASSIGN(store->host_, kv::ArenaRegion::take(reservoir, needs.reservoir_bytes, "layers in host memory"));
  return store;
}

LayerStore::~LayerStore() {
  for (Slot& slot : slots_) give_up(&slot);
}

// Stops the slot's transfers.
void LayerStore::give_up(Slot* slot) {
  for (size_t i = slot->n_there; i < slot->n_submitted; ++i) io_->cancel(&slot->pieces[i].request);
  slot->layer = -1, slot->n = slot->n_submitted = slot->n_there = 0, slot->in_use = false;
}

std::byte* LayerStore::at(int32_t layer) const {
  const LayerUnits::Layer& of = units_.layers[static_cast<size_t>(index_of(layer))];
  return reinterpret_cast<std::byte*>(host_.data().address + of.host_offset);
}

Ptr<std::byte> LayerStore::place(int32_t layer) const {
  return io_ ? slot_at(static_cast<size_t>(index_of(layer)) % kSlots) : Ptr<std::byte>{reinterpret_cast<uint64_t>(at(layer))};
}

// The slot's next layer is layer l of the store.
void LayerStore::choose(Slot* slot, size_t l) {
  give_up(slot);
  const uint64_t bytes = units_.layers[l].bytes;
  slot->layer = static_cast<int64_t>(l), slot->n = (bytes + piece_bytes_ - 1) / piece_bytes_;
  for (size_t i = 0; i < slot->n; ++i) {
    Piece& piece = slot->pieces[i];
    const uint64_t from = i * piece_bytes_;
    piece.from = {reinterpret_cast<const std::byte*>(host_.data().address + units_.layers[l].host_offset + from),
                  std::min(piece_bytes_, bytes - from), true};
    piece.request.to = slot_at(l % kSlots) + from, piece.request.pieces = {&piece.from, 1};
    piece.request.of = "weights", piece.request.part = "layer", piece.request.head = static_cast<uint32_t>(units_.layers[l].layer);
  }
}

// False: the queue is full.
bool LayerStore::submit_next(Slot* slot, kv::IoThread::Urgency urgency, Phase phase) {
  Piece& piece = slot->pieces[slot->n_submitted];
  if (!io_->submit(&piece.request, urgency)) return false;
  ++slot->n_submitted;
  (phase == Phase::decode ? counts_.decode : counts_.prefill).bytes += piece.from.bytes;
  return true;
}

Status LayerStore::begin() {
  if (!io_) return ok_status();
  ORRERY_TRY(host_.wait_shared(host_.bytes()));
  for (size_t l = 0; l < std::min(units_.layers.size(), kSlots); ++l) {
    choose(&slots_[l], l);
    while (slots_[l].n_submitted < slots_[l].n && submit_next(&slots_[l], kv::IoThread::Urgency::later, Phase::prefill)) {
    }
  }
  publish();
  return ok_status();
}

Status LayerStore::bring(int32_t layer, Phase phase, const Cancel& cancel) {
  const int64_t l = index_of(layer);
  if (l < 0 || !io_) return ok_status();
  Slot& slot = slots_[static_cast<size_t>(l) % kSlots];
  if (slot.layer != l) choose(&slot, static_cast<size_t>(l));
  Counts& counts = phase == Phase::decode ? counts_.decode : counts_.prefill;
  counts.asked += !std::exchange(slot.in_use, true);
  uint64_t stall_ns = 0;
  Status status;
  while (status.ok() && slot.n_there < slot.n) {
    while (slot.n_submitted < slot.n && submit_next(&slot, kv::IoThread::Urgency::now, phase)) {
    }
    if (slot.n_submitted == slot.n_there) {
      kv::IoThread::Waited waited = io_->wait_for_room(cancel);
      stall_ns += waited.stall_ns, status = std::move(waited.status);
      continue;
    }
    kv::IoThread::Waited waited = io_->wait(&slot.pieces[slot.n_there].request, cancel);
    stall_ns += waited.stall_ns, status = std::move(waited.status);
    ++slot.n_there;
  }
  if (!status.ok())
    for (Slot& any : slots_) give_up(&any);
  counts.waited += stall_ns > 0, counts.stall_us += stall_ns / 1000;
  publish();
  return status;
}

Status LayerStore::leave(Backend* backend, int32_t layer, Phase phase) {
  const int64_t l = index_of(layer);
  if (l < 0 || !io_) return ok_status();
  slots_[static_cast<size_t>(l) % kSlots].in_use = false;
  if (units_.layers.size() <= kSlots) return ok_status();
  ORRERY_TRY(backend->synchronize());
  const size_t after = static_cast<size_t>(l) + kSlots, next = after < units_.layers.size() ? after : static_cast<size_t>(l) % kSlots;
  Slot& slot = slots_[next % kSlots];
  choose(&slot, next);
  while (slot.n_submitted < slot.n && submit_next(&slot, kv::IoThread::Urgency::later, phase)) {
  }
  publish();
  return ok_status();
}

LayerStore::AllCounts LayerStore::counts() const {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  return published_;
}

void LayerStore::publish() {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  published_ = counts_;
}

}  // namespace orrery::model

#include "runtime/model/store/weight_ring.h"

#include <algorithm>
#include <utility>

#include "runtime/base/checked.h"

namespace orrery::model {

namespace {

constexpr uint64_t kPieceBytes = uint64_t{8} << 20, kMostPieces = 64;  // 8 MiB take .3 ms on PCIe 4.0

// f(offset from the load's first part, bytes) of each piece of a load; ends() behind the last piece of a request.
template <class F, class Ends>
void for_pieces(const RingLoad& load, uint64_t most, const F& f, const Ends& ends) {
  uint64_t gathered = 0;
  for (uint32_t part = 0; part < load.n; ++part) {
    for (uint64_t at = 0; at < load.bytes;) {
      const uint64_t n = std::min(most - gathered, load.bytes - at);
      f(part * load.stride + at, n);
      at += n, gathered += n;
      if (gathered < most) continue;
      ends();
      gathered = 0;
    }
  }
  if (gathered > 0) ends();
}

}  // namespace

uint64_t WeightRing::slot_bytes(Span<const RingLoad> loads) {
  uint64_t most = 0;
  for (const RingLoad& load : loads) most = std::max(most, load.all_bytes());
  return align_up(most, kv::kArenaAlignment);
}

uint64_t WeightRing::arena_bytes(Span<const RingLoad> loads) { return std::min(loads.size(), kSlots) * slot_bytes(loads); }

WeightRing::WeightRing(std::vector<RingLoad> loads, Ptr<std::byte> slots, const std::byte* host, const char* part, kv::IoThread* io)
    : loads_(std::move(loads)), slots_at_(slots), host_(host), part_(part), io_(*io),
      slot_bytes_(slot_bytes({loads_.data(), loads_.size()})),
      piece_bytes_(std::max(kPieceBytes, align_up(slot_bytes_ / kMostPieces, kv::kArenaAlignment))) {
  size_t n_pieces = 0, n_requests = 0;
  for (const RingLoad& load : loads_) {
    size_t pieces = 0, requests = 0;
    for_pieces(
        load, piece_bytes_, [&](uint64_t, uint64_t) { ++pieces; }, [&] { ++requests; });
    n_pieces = std::max(n_pieces, pieces), n_requests = std::max(n_requests, requests);
  }
  for (Slot& slot : slots_) slot.requests = std::vector<kv::IoRequest>(n_requests), slot.from.resize(n_pieces);
}

WeightRing::~WeightRing() {
  for (Slot& slot : slots_) give_up(&slot);
}

// Stops the slot's transfers.
void WeightRing::give_up(Slot* slot) {
  for (size_t i = slot->n_there; i < slot->n_submitted; ++i) io_.cancel(&slot->requests[i]);
  slot->load = -1, slot->n = slot->n_submitted = slot->n_there = 0, slot->in_use = false;
}

// The slot's next load is load i.
void WeightRing::choose(Slot* slot, size_t i) {
  give_up(slot);
  slot->load = static_cast<int64_t>(i);
  const RingLoad& load = loads_[i];
  Ptr<std::byte> to = place(i);
  size_t n_pieces = 0, first = 0;
  uint64_t bytes = 0;
  for_pieces(
      load, piece_bytes_,
      [&](uint64_t offset, uint64_t n) {
        slot->from[n_pieces++] = {host_ + load.host_offset + offset, n, true};
        bytes += n;
      },
      [&] {
        kv::IoRequest& request = slot->requests[slot->n++];
        request.to = to, request.pieces = {&slot->from[first], n_pieces - first};
        request.of = "weights", request.part = part_, request.head = static_cast<uint32_t>(load.layer);
        to = to + std::exchange(bytes, 0), first = n_pieces;
      });
}

// False: the queue is full.
bool WeightRing::submit_next(Slot* slot, kv::IoThread::Urgency urgency, Phase phase) {
  kv::IoRequest& request = slot->requests[slot->n_submitted];
  if (!io_.submit(&request, urgency)) return false;
  ++slot->n_submitted;
  (phase == Phase::decode ? counts_.decode : counts_.prefill).bytes += request.bytes();
  return true;
}

void WeightRing::begin() {
  for (size_t i = 0; i < std::min(loads_.size(), kSlots); ++i) {
    choose(&slots_[i], i);
    while (slots_[i].n_submitted < slots_[i].n && submit_next(&slots_[i], kv::IoThread::Urgency::later, Phase::prefill)) {
    }
  }
  publish();
}

Status WeightRing::bring(size_t i, Phase phase, const Cancel& cancel) {
  Slot& slot = slots_[i % kSlots];
  if (slot.load != static_cast<int64_t>(i)) choose(&slot, i);
  Counts& counts = phase == Phase::decode ? counts_.decode : counts_.prefill;
  counts.asked += !std::exchange(slot.in_use, true);
  uint64_t stall_ns = 0;
  Status status;
  while (status.ok() && slot.n_there < slot.n) {
    while (slot.n_submitted < slot.n && submit_next(&slot, kv::IoThread::Urgency::now, phase)) {
    }
    if (slot.n_submitted == slot.n_there) {
      kv::IoThread::Waited waited = io_.wait_for_room(cancel);
      stall_ns += waited.stall_ns, status = std::move(waited.status);
      continue;
    }
    kv::IoThread::Waited waited = io_.wait(&slot.requests[slot.n_there], cancel);
    stall_ns += waited.stall_ns, status = std::move(waited.status);
    ++slot.n_there;
  }
  if (!status.ok())
    for (Slot& any : slots_) give_up(&any);
  counts.waited += stall_ns > 0, counts.stall_us += stall_ns / 1000;
  publish();
  return status;
}

Status WeightRing::leave(Backend* backend, size_t i, Phase phase) {
  slots_[i % kSlots].in_use = false;
  const size_t after = i + kSlots, next = after < loads_.size() ? after : i % kSlots;
  if (next == i) return ok_status();  // the slot has no other load, and keeps it
  ORRERY_TRY(backend->synchronize());
  Slot& slot = slots_[next % kSlots];
  choose(&slot, next);
  while (slot.n_submitted < slot.n && submit_next(&slot, kv::IoThread::Urgency::later, phase)) {
  }
  publish();
  return ok_status();
}

WeightRing::AllCounts WeightRing::counts() const {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  return published_;
}

void WeightRing::publish() {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  published_ = counts_;
}

}  // namespace orrery::model

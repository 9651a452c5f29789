#include "runtime/model/store/expert_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/clock.h"

namespace orrery::model {

namespace {

constexpr const char *kOnDevice = "the model's experts on the device", *kInHostMemory = "the model's experts in host memory";
constexpr uint64_t kMostAhead = 64;   // units that wait for the link, beside those that a layer waits for
constexpr double kLargest = 0x1p500;  // of growth_

uint64_t table_bytes(const ExpertUnits& units) { return align_up(units.n_units() * sizeof(uint64_t), kv::kArenaAlignment); }

}  // namespace

ExpertStore::Needs ExpertStore::needs(const ExpertUnits& units, uint64_t n_on_device, bool in_place) {
  const uint64_t n = std::min(n_on_device, units.n_units());
  if (!in_place) return {n * units.slot_bytes() + table_bytes(units), units.bytes()};
  uint64_t on_device = 0;
  units.for_first(n, [&](size_t l, int32_t) { on_device += units.layers[l].bytes; });
  return {on_device + table_bytes(units), units.bytes() - on_device};
}

ExpertStore::ExpertStore(ExpertUnits units, uint64_t n_on_device, kv::IoThread* io)
    : units_(std::move(units)), n_on_device_(std::min(n_on_device, units_.n_units())), io_(io), slot_bytes_(units_.slot_bytes()),
      places_(units_.n_units()) {
  index_of_.resize(static_cast<size_t>(units_.layers.back().layer) + 1, -1);
  for (size_t l = 0; l < units_.layers.size(); ++l) index_of_[static_cast<size_t>(units_.layers[l].layer)] = static_cast<int32_t>(l);
  if (!io_) return;
  slot_of_.assign(units_.n_units(), -1);
  worth_.assign(units_.n_units(), 0.0);
  slots_ = std::vector<Slot>(n_on_device_);
  const auto n_experts = units_.least_slots() / 2;
  free_.reserve(n_experts + 1), wanted_.reserve(n_experts), missing_.reserve(n_experts);
}

Result<std::unique_ptr<ExpertStore>> ExpertStore::make(const ExpertUnits& units, uint64_t n_on_device, kv::Arena* arena,
                                                       kv::Arena* reservoir, kv::IoThread* io) {
  if (!units) return error(Code::internal, "a store for experts of a model without experts");
  std::unique_ptr<ExpertStore> store(new ExpertStore(units, n_on_device, io));
  const Needs needs = ExpertStore::needs(units, n_on_device, io == nullptr);
  ORRERY_ASSIGN(store->device_, kv::ArenaRegion::take(arena, needs.arena_bytes, kOnDevice));
  ORRERY_ASSIGN(store->host_, kv::ArenaRegion::take(reservoir, needs.reservoir_bytes, kInHostMemory));
  store->tables_at_ = needs.arena_bytes - table_bytes(units);
  if (io) return store;
  // Host addresses: the first units in the arena, the others in the reservoir, each in the order of for_first().
  uint64_t u = 0, on_device = 0, on_host = 0;
  units.for_first(units.n_units(), [&](size_t l, int32_t e) {
    const ExpertUnits::Layer& layer = units.layers[l];
    uint64_t& used = u++ < n_on_device ? on_device : on_host;
    const Ptr<std::byte> region = &used == &on_device ? store->device_.data() : store->host_.data();
    store->places_[layer.first_unit + static_cast<uint64_t>(e)] = region.address + used;
    used += layer.bytes;
  });
  return store;
}

ExpertStore::~ExpertStore() { give_up(); }

// Stops all transfers.
void ExpertStore::give_up() {
  for (Slot& slot : slots_) {
    if (!slot.arriving) continue;
    io_->cancel(&slot.request);
    empty(&slot);
  }
}

size_t ExpertStore::index_of(int32_t layer) const { return static_cast<size_t>(index_of_[static_cast<size_t>(layer)]); }

const std::byte* ExpertStore::host_unit(size_t l, int64_t expert) const {
  const ExpertUnits::Layer& layer = units_.layers[l];
  return reinterpret_cast<const std::byte*>(host_.data().address + layer.host_offset + static_cast<uint64_t>(expert) * layer.bytes);
}

std::byte* ExpertStore::at(int32_t layer, int32_t expert) const {
  const size_t l = index_of(layer);
  if (io_) return const_cast<std::byte*>(host_unit(l, expert));
  return reinterpret_cast<std::byte*>(places_[units_.layers[l].first_unit + static_cast<uint64_t>(expert)]);
}

Ptr<const uint64_t> ExpertStore::places(int32_t layer) const { return {table_at(index_of(layer)).address}; }

Status ExpertStore::begin(Backend* backend) {
  if (io_) {
    ORRERY_TRY(host_.wait_shared(host_.bytes()));
    size_t s = 0;
    Status copied;
    units_.for_first(n_on_device_, [&](size_t l, int32_t e) {
      if (!copied.ok()) return;
      Slot& slot = slots_[s];
      slot.unit = static_cast<int64_t>(units_.layers[l].first_unit) + e, slot.layer = l;
      slot_of_[static_cast<size_t>(slot.unit)] = static_cast<int32_t>(s);
      const HostPiece piece{host_unit(l, e), units_.layers[l].bytes, true};
      copied = backend->copy_in(slot_at(s), {&piece, 1});
      places_[static_cast<size_t>(slot.unit)] = slot_at(s++).address;
    });
    ORRERY_TRY(std::move(copied));
  }
  backend->upload(table_at(0), places_.data(), places_.size() * sizeof(uint64_t));
  return backend->synchronize();
}

int32_t ExpertStore::next_layer(int32_t layer) const {
  const size_t next = index_of(layer) + 1;
  return next < units_.layers.size() ? units_.layers[next].layer : -1;
}

void ExpertStore::empty(Slot* slot) {
  if (slot->unit < 0) return;
  counts_.wasted += slot->expected;
  slot_of_[static_cast<size_t>(slot->unit)] = -1;
  slot->unit = -1, slot->expected = slot->transit = slot->arriving = false;
}

// Finds the n slots whose units are worth least, and that may leave: free_. Of equal worth, what a prompt brought leaves first, the latest
// before the others: so a prompt that reads all layers again and again keeps some of them. Then the unit that was used longest ago.
bool ExpertStore::free_slots(size_t n) {
  const auto comes_before = [this](size_t a, size_t b) {
    const Slot &x = slots_[a], &y = slots_[b];
    const double worth_x = x.unit < 0 ? -1.0 : worth_[static_cast<size_t>(x.unit)],
                 worth_y = y.unit < 0 ? -1.0 : worth_[static_cast<size_t>(y.unit)];
    if (worth_x < worth_y || worth_y < worth_x) return worth_x < worth_y;
    if (x.transit != y.transit) return x.transit;
    if (x.tick != y.tick) return x.transit ? x.tick > y.tick : x.tick < y.tick;
    return a < b;
  };
  free_.clear();  // a heap: the first is the one that would leave last
  for (size_t s = 0; s < slots_.size(); ++s) {
    Slot& slot = slots_[s];
    if (slot.unit >= 0 && slot.pinned == tick_) continue;
    if (slot.arriving) {  // nobody has asked for it yet
      if (!io_->arrived(slot.request)) continue;
      slot.arriving = false;
      if (!io_->wait(&slot.request).status.ok()) empty(&slot);
    }
    if (free_.size() == n && !comes_before(s, free_[0])) continue;
    free_.push_back(s);
    std::push_heap(free_.begin(), free_.end(), comes_before);
    if (free_.size() <= n) continue;
    std::pop_heap(free_.begin(), free_.end(), comes_before);
    free_.pop_back();
  }
  std::sort_heap(free_.begin(), free_.end(), comes_before);
  return free_.size() == n;
}

// False: the request was not taken, because the queue is full, or of an error.
bool ExpertStore::submit(size_t s, size_t l, int64_t expert, Phase phase, bool urgent, const Cancel& cancel, Status* status) {
  Slot& slot = slots_[s];
  empty(&slot);
  slot.piece = {host_unit(l, expert), units_.layers[l].bytes, true};
  slot.request.to = slot_at(s), slot.request.pieces = {&slot.piece, 1};
  slot.request.of = "experts", slot.request.part = "expert", slot.request.head = static_cast<uint32_t>(expert);
  while (!io_->submit(&slot.request, urgent ? kv::IoThread::Urgency::now : kv::IoThread::Urgency::later)) {
    if (!urgent) return false;
    *status = io_->wait_for_room(cancel).status;
    if (!status->ok()) return false;
  }
  slot.unit = static_cast<int64_t>(units_.layers[l].first_unit) + expert, slot.layer = l;
  slot_of_[static_cast<size_t>(slot.unit)] = static_cast<int32_t>(s);
  slot.arriving = true, slot.pinned = tick_;
  (phase == Phase::decode ? counts_.bytes : counts_.prompt_bytes) += slot.piece.bytes;
  return true;
}

ExpertStore::Counts ExpertStore::counts() const {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  return published_;
}

void ExpertStore::publish() {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  published_ = counts_;
}

Status ExpertStore::bring(Backend* backend, int32_t layer, Span<const int32_t> first_slots, Phase phase, const Cancel& cancel) {
  if (in_place()) return ok_status();
  const size_t l = index_of(layer);
  const ExpertUnits::Layer& of = units_.layers[l];
  if (phase == Phase::decode && l <= last_layer_) {  // the next token
    growth_ *= std::exp2(1.0 / static_cast<double>(kHalfLife));
    if (growth_ > kLargest) {
      for (double& worth : worth_) worth /= growth_;
      growth_ = 1.0;
    }
  }
  last_layer_ = l;
  ++tick_;
  wanted_.clear(), missing_.clear();
  for (int64_t e = 0; e < of.n_experts; ++e) {
    if (first_slots[static_cast<size_t>(e) + 1] == first_slots[static_cast<size_t>(e)]) continue;
    const uint64_t unit = of.first_unit + static_cast<uint64_t>(e);
    const int32_t s = slot_of_[unit];
    if (phase == Phase::decode) worth_[unit] += growth_;
    if (s < 0) {
      missing_.push_back(e);
      continue;
    }
    Slot& slot = slots_[static_cast<size_t>(s)];
    slot.pinned = tick_;
    wanted_.push_back(static_cast<size_t>(s));
  }
  if (!missing_.empty()) {
    if (!free_slots(missing_.size()))
      return error(Code::internal, "%zu experts of layer %d have no place in a cache of %zu", missing_.size(), layer, slots_.size());
    Status status;
    for (size_t i = 0; i < missing_.size(); ++i) {
      if (!submit(free_[i], l, missing_[i], phase, true, cancel, &status)) {
        give_up();
        return status;
      }
      slots_[free_[i]].transit = phase == Phase::prefill;
    }
  }
  const size_t n_found = wanted_.size();
  wanted_.insert(wanted_.end(), free_.begin(), free_.begin() + static_cast<ptrdiff_t>(missing_.size()));
  Counts prompt;  // of which the times alone are kept
  Counts& counts = phase == Phase::decode ? counts_ : prompt;
  counts.missed += missing_.size();
  for (size_t i = 0; i < wanted_.size(); ++i) {
    Slot& slot = slots_[wanted_[i]];
    slot.tick = tick_, slot.expected = false;
    if (phase == Phase::decode) slot.transit = false;
    if (!slot.arriving) {
      ++counts.hits;
      continue;
    }
    const bool late = i < n_found && !io_->arrived(slot.request);
    if (i < n_found) ++(late ? counts.late : counts.hits);
    const kv::IoThread::Waited waited = io_->wait(&slot.request, cancel);
    (phase == Phase::decode ? counts_.stall_us : counts_.prompt_stall_us) += waited.stall_ns / 1000;
    if (!waited.status.ok()) {
      empty(&slot);
      give_up();
      return Status(waited.status.detail());
    }
    slot.arriving = false;
  }
  for (const size_t s : wanted_) places_[static_cast<size_t>(slots_[s].unit)] = slot_at(s).address;
  backend->upload(table_at(l), &places_[of.first_unit], static_cast<uint64_t>(of.n_experts) * sizeof(uint64_t));
  publish();
  return ok_status();
}

void ExpertStore::expect(int32_t layer, Span<const int32_t> first_slots, Phase phase) {
  if (in_place()) return;
  const size_t l = index_of(layer), most = kMostAhead - std::min<size_t>(io_->n_waiting(), kMostAhead);
  const ExpertUnits::Layer& of = units_.layers[l];
  missing_.clear();
  for (int64_t e = 0; e < of.n_experts; ++e) {
    if (!first_slots.empty() && first_slots[static_cast<size_t>(e) + 1] == first_slots[static_cast<size_t>(e)]) continue;
    const int32_t s = slot_of_[of.first_unit + static_cast<uint64_t>(e)];
    if (s >= 0) slots_[static_cast<size_t>(s)].pinned = tick_;
    else if (missing_.size() < most || phase == Phase::prefill) missing_.push_back(e);
  }
  if (missing_.empty()) return;
  (void)free_slots(missing_.size());
  Status none;
  for (size_t i = 0; i < std::min(free_.size(), missing_.size()); ++i) {
    Slot& slot = slots_[free_[i]];
    if (!submit(free_[i], l, missing_[i], phase, false, {}, &none)) return;
    slot.tick = tick_, slot.transit = phase == Phase::prefill, slot.expected = phase == Phase::decode;
    counts_.expected += slot.expected;
  }
  publish();
}

}  // namespace orrery::model

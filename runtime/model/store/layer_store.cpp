#include "runtime/model/store/layer_store.h"

#include <algorithm>
#include <utility>

#include "runtime/base/checked.h"

namespace orrery::model {

namespace {

std::vector<RingLoad> loads_of(const LayerUnits& units) {
  std::vector<RingLoad> loads;
  for (const LayerUnits::Layer& layer : units.layers) loads.push_back({layer.host_offset, layer.bytes, layer.bytes, 1, layer.layer});
  return loads;
}

}  // namespace

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
  if (in_place) return {0, units.bytes()};
  const std::vector<RingLoad> loads = loads_of(units);
  return {WeightRing::arena_bytes({loads.data(), loads.size()}), align_up(units.bytes(), kv::kHostAlignment)};
}

LayerStore::LayerStore(LayerUnits units) : units_(std::move(units)) {
  index_of_.resize(static_cast<size_t>(units_.layers.back().layer) + 1, -1);
  for (size_t l = 0; l < units_.layers.size(); ++l) index_of_[static_cast<size_t>(units_.layers[l].layer)] = static_cast<int64_t>(l);
}

Result<std::unique_ptr<LayerStore>> LayerStore::make(const LayerUnits& units, kv::Arena* arena, kv::Arena* reservoir, kv::IoThread* io) {
  if (!units) return error(Code::internal, "a store for layers without layers");
  std::unique_ptr<LayerStore> store(new LayerStore(units));
  const Needs needs = LayerStore::needs(units, io == nullptr);
  ORRERY_ASSIGN(store->device_, kv::ArenaRegion::take(arena, needs.arena_bytes, "layers that cross the link"));
  ORRERY_ASSIGN(store->host_, kv::ArenaRegion::take(reservoir, needs.reservoir_bytes, "layers in host memory"));
  if (io)
    store->ring_ = std::make_unique<WeightRing>(loads_of(units), store->device_.data(),
                                                reinterpret_cast<const std::byte*>(store->host_.data().address), "layer", io);
  return store;
}

std::byte* LayerStore::at(int32_t layer) const {
  const LayerUnits::Layer& of = units_.layers[static_cast<size_t>(index_of(layer))];
  return reinterpret_cast<std::byte*>(host_.data().address + of.host_offset);
}

Ptr<std::byte> LayerStore::place(int32_t layer) const {
  return ring_ ? ring_->place(static_cast<size_t>(index_of(layer))) : Ptr<std::byte>{reinterpret_cast<uint64_t>(at(layer))};
}

Status LayerStore::begin() {
  if (!ring_) return ok_status();
  ORRERY_TRY(host_.wait_shared(host_.bytes()));
  ring_->begin();
  return ok_status();
}

Status LayerStore::bring(int32_t layer, Phase phase, const Cancel& cancel) {
  const int64_t l = index_of(layer);
  return l < 0 || !ring_ ? ok_status() : ring_->bring(static_cast<size_t>(l), phase, cancel);
}

Status LayerStore::leave(Backend* backend, int32_t layer, Phase phase) {
  const int64_t l = index_of(layer);
  return l < 0 || !ring_ ? ok_status() : ring_->leave(backend, static_cast<size_t>(l), phase);
}

}  // namespace orrery::model

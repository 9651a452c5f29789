#include "runtime/model/store/host_experts.h"

#include <algorithm>
#include <utility>

#include "runtime/base/checked.h"

namespace orrery::model {

namespace {

uint64_t table_bytes(int32_t n_experts) { return align_up(static_cast<uint64_t>(n_experts) * sizeof(uint64_t), kv::kArenaAlignment); }

template <class T>
T* host_pointer(Ptr<std::byte> base, uint64_t offset) {
  return reinterpret_cast<T*>(base.address + offset);
}

// Offsets of the work memory.
struct Work {
  uint64_t chosen, input, ffn, act, slots, lists, host_rows, host_firsts, scratch, bytes = 0;
  Work(const Device& host, const StepLimits& limits, const HostExperts::WorkShape& shape) {
    const auto take = [this](uint64_t n, uint64_t size) {
      const uint64_t at = bytes;
      bytes += align_up(n * size, kv::kArenaAlignment);
      return at;
    };
    const auto rows = static_cast<uint64_t>(limits.max_rows), n_slots = rows * static_cast<uint64_t>(shape.router.n_used);
    const auto n_embd = static_cast<uint64_t>(shape.n_embd), width = rows * static_cast<uint64_t>(shape.used_width);
    const auto n_firsts = static_cast<uint64_t>(shape.router.n_experts) + 1;
    chosen = take(n_slots, sizeof(int32_t));
    input = take(rows * n_embd, sizeof(float));
    ffn = take(2 * width, sizeof(float));
    act = take(width, sizeof(float));
    slots = take(n_slots * n_embd, sizeof(float));
    lists = take(3 * n_slots + n_firsts, sizeof(int32_t));
    host_rows = take(n_slots, sizeof(int32_t));
    host_firsts = take(n_firsts, sizeof(int32_t));
    scratch = take(HostSide::scratch_bytes(host, limits), 1);
    bytes = align_up(bytes, kv::kHostAlignment);
  }
};

}  // namespace

HostExperts::Layout HostExperts::layout(const ExpertUnits& units, Span<const Unit> of_layer, bool as_in_file, uint64_t n_on_device) {
  Layout layout;
  layout.as_in_file = as_in_file;
  layout.n_units = units.n_units(), layout.n_on_device = std::min(n_on_device, layout.n_units);
  for (const ExpertUnits::Layer& from : units.layers) {
    const Unit& unit = of_layer[layout.layers.size()];
    Layout::Layer layer;
    layer.layer = from.layer, layer.n_experts = from.n_experts;
    layer.device = unit.device, layer.host = unit.host;
    layer.device_bytes = align_up(unit.device.end, kv::kArenaAlignment);
    layer.host_bytes = align_up(unit.host.end, kv::kArenaAlignment);
    layout.layers.push_back(layer);
  }
  units.for_first(layout.n_on_device, [&](size_t l, int32_t) { ++layout.layers[l].n_on_device; });
  const auto take = [](uint64_t* region, uint64_t bytes) { return std::exchange(*region, *region + bytes); };
  uint64_t stored_bytes = 0;
  for (size_t l = 0; l < layout.layers.size(); ++l) {
    Layout::Layer& layer = layout.layers[l];
    const auto here = static_cast<uint64_t>(layer.n_on_device), there = static_cast<uint64_t>(layer.n_experts) - here;
    layer.device_offset = take(&layout.arena_bytes, here * layer.device_bytes);
    layer.device_table = take(&layout.arena_bytes, table_bytes(layer.n_experts));
    layer.host_offset = take(&layout.reservoir_bytes, there * layer.host_bytes);
    layer.host_table = take(&layout.reservoir_bytes, table_bytes(layer.n_experts));
    layer.biases_offset = take(&layout.reservoir_bytes, align_up(of_layer[l].biases_bytes, kv::kArenaAlignment));
    for (const Part part : kParts) {
      Layout::Groups& groups = layer.groups[static_cast<size_t>(part)];
      groups.table = take(&layout.arena_bytes, table_bytes(layer.n_experts));
      groups.first_load = layout.loads.size();
      if (there == 0) continue;
      const uint64_t bytes = layer.host.bytes(part);
      const uint64_t n =
          std::min(std::max(kGroupBytes / bytes, uint64_t{1}), (there + 1) / 2);  // two groups, so that one crosses beside another
      groups.n_experts = static_cast<int32_t>(n);
      for (uint64_t first = 0; first < there; first += n) {
        const RingLoad load = {layer.host_offset + first * layer.host_bytes + layer.host.from(part), bytes, layer.host_bytes,
                               static_cast<uint32_t>(std::min(n, there - first)), layer.layer};
        layout.loads.push_back(load);
        if (as_in_file) stored_bytes = std::max(stored_bytes, load.n * layer.device.bytes(part));
      }
      groups.n_loads = layout.loads.size() - groups.first_load;
    }
  }
  layout.slots_offset = take(&layout.arena_bytes, WeightRing::arena_bytes({layout.loads.data(), layout.loads.size()}));
  layout.stored_offset = take(&layout.arena_bytes, align_up(stored_bytes, kv::kArenaAlignment));
  layout.reservoir_bytes = align_up(layout.reservoir_bytes, kv::kHostAlignment);
  return layout;
}

HostExperts::HostExperts(Layout layout, Backend* host, TwoSides* sides)
    : layout_(std::move(layout)), host_(host, sides), matrices_(layout_.layers.size()), biases_used_(layout_.layers.size()) {
  index_of_.resize(static_cast<size_t>(layout_.layers.back().layer) + 1, -1);
  for (size_t l = 0; l < layout_.layers.size(); ++l) index_of_[static_cast<size_t>(layout_.layers[l].layer)] = static_cast<int32_t>(l);
}

Result<std::unique_ptr<HostExperts>> HostExperts::make(Layout layout, Backend* host, TwoSides* sides, kv::Arena* arena,
                                                       kv::Arena* reservoir, kv::IoThread* io) {
  if (!layout) return error(Code::internal, "experts on the host of a model without experts");
  std::unique_ptr<HostExperts> made(new HostExperts(std::move(layout), host, sides));
  ORRERY_ASSIGN(made->device_, kv::ArenaRegion::take(arena, made->layout_.arena_bytes, "the model's experts on the device"));
  ORRERY_ASSIGN(made->reservoir_, kv::ArenaRegion::take(reservoir, made->layout_.reservoir_bytes, "the model's experts on the host"));
  made->ring_ = std::make_unique<WeightRing>(made->layout_.loads, made->device_at(made->layout_.slots_offset),
                                             reinterpret_cast<const std::byte*>(made->reservoir_.data().address), "experts of layer", io);
  return made;
}

Ptr<std::byte> HostExperts::device_unit(int32_t layer, int32_t expert) const {
  const Layout::Layer& l = of(layer);
  return {device_.data().address + l.device_offset + static_cast<uint64_t>(expert) * l.device_bytes};
}

std::byte* HostExperts::host_unit(int32_t layer, int32_t expert) const {
  const Layout::Layer& l = of(layer);
  return host_pointer<std::byte>(reservoir_.data(), l.host_offset + static_cast<uint64_t>(expert - l.n_on_device) * l.host_bytes);
}

float* HostExperts::take_biases(int32_t layer, uint64_t n) {
  uint64_t& used = biases_used_[index(layer)];
  return host_pointer<float>(reservoir_.data(), of(layer).biases_offset + std::exchange(used, used + n * sizeof(float)));
}

Status HostExperts::begin(Backend* backend) {
  std::vector<uint64_t> there;
  const auto upload = [&](uint64_t offset) { backend->upload(device_at(offset), there.data(), there.size() * sizeof(uint64_t)); };
  for (const Layout::Layer& l : layout_.layers) {
    there.assign(static_cast<size_t>(l.n_experts), 0);
    auto* const here = host_pointer<uint64_t>(reservoir_.data(), l.host_table);
    for (int32_t e = 0; e < l.n_experts; ++e) {
      const auto at = static_cast<size_t>(e);
      here[at] = 0;
      if (e < l.n_on_device) there[at] = device_unit(l.layer, e).address;
      else here[at] = reinterpret_cast<uintptr_t>(host_unit(l.layer, e));
    }
    upload(l.device_table);
    for (const Part part : kParts) {
      const Layout::Groups& groups = l.groups[static_cast<size_t>(part)];
      for (int32_t e = 0; e < l.n_experts; ++e) {
        const auto i = static_cast<size_t>(std::max(e - l.n_on_device, 0)), n = static_cast<size_t>(std::max(groups.n_experts, 1));
        const Ptr<std::byte> load = layout_.as_in_file ? device_at(layout_.stored_offset) : ring_->place(groups.first_load + i / n);
        const Ptr<std::byte> at = e < l.n_on_device ? device_unit(l.layer, e) + l.device.from(part) : load + i % n * l.device.bytes(part);
        there[static_cast<size_t>(e)] = at.address;
      }
      upload(groups.table);
    }
  }
  ORRERY_TRY(backend->synchronize());
  ORRERY_TRY(reservoir_.wait_shared(layout_.reservoir_bytes));
  ring_->begin();
  return ok_status();
}

bool HostExperts::streams(int32_t layer, int32_t n_rows, Phase phase) const {
  const Layout::Layer& l = of(layer);
  return phase == Phase::prefill && l.n_on_device < l.n_experts &&
         int64_t{n_rows} * shape_.router.n_used >= kLeastRowsToStream * int64_t{l.n_experts};
}

ExpertMatrices HostExperts::streamed(int32_t layer, const ExpertMatrices& matrices) const {
  const Layout::Layer& l = of(layer);
  const auto table = [&](Part part) { return Ptr<const uint64_t>{device_at(l.groups[static_cast<size_t>(part)].table).address}; };
  ExpertMatrices all = matrices;
  all.gate.units = all.up.units = table(Part::gate_up);
  all.down.units = table(Part::down), all.down.offset -= l.device.down;
  return all;
}

void HostExperts::store(Backend* backend, const Layout::Layer& l, Part part, size_t load, int32_t n, const ExpertMatrices& matrices) {
  const ExpertMatrices& on_host = matrices_[index(l.layer)];
  const Ptr<std::byte> from = ring_->place(load), to = device_at(layout_.stored_offset);
  const auto all = [&](const ExpertWeights& there, const ExpertWeights& here, uint64_t n_matrices) {
    if (!there) return;
    for (uint64_t e = 0; e < static_cast<uint64_t>(n); ++e)
      for (uint64_t i = 0; i < n_matrices; ++i)
        backend->repack_there(there.first.type, there.first.n_rows, there.first.n_cols,
                              from + (e * l.host.bytes(part) + here.offset - l.host.from(part) + i * here.stride),
                              to + (e * l.device.bytes(part) + there.offset - l.device.from(part) + i * there.stride));
  };
  if (part == Part::down) return all(matrices.down, on_host.down, 1);
  all(matrices.gate, on_host.gate, matrices.up ? 1 : 2);  // or both in one tensor
  all(matrices.up, on_host.up, 1);
}

void HostExperts::count_streamed(int32_t layer) {
  const Layout::Layer& l = of(layer);
  const auto n = [&](int32_t expert) { return static_cast<uint64_t>(host_firsts_[expert]); };
  counts_.prompt_on_device += n(l.n_experts), counts_.prompt_brought += n(l.n_experts) - n(l.n_on_device);
  publish();
}

uint64_t HostExperts::work_bytes(const Device& host, const StepLimits& limits, const WorkShape& shape) {
  return Work(host, limits, shape).bytes;
}

Status HostExperts::reserve(kv::Arena* reservoir, const StepLimits& limits, const WorkShape& shape) {
  const Work work(host_.backend(), limits, shape);
  ORRERY_ASSIGN(work_, kv::ArenaRegion::take(reservoir, work.bytes, "the work memory of experts on the host"));
  const Ptr<std::byte> at = work_.data();
  chosen_ = host_pointer<int32_t>(at, work.chosen), input_ = host_pointer<float>(at, work.input);
  ffn_ = host_pointer<float>(at, work.ffn), act_ = host_pointer<float>(at, work.act), slots_ = host_pointer<float>(at, work.slots);
  lists_ = host_pointer<int32_t>(at, work.lists), host_rows_ = host_pointer<int32_t>(at, work.host_rows);
  host_firsts_ = host_pointer<int32_t>(at, work.host_firsts);
  host_.use(host_pointer<std::byte>(at, work.scratch), limits);
  shape_ = shape;
  return ok_status();
}

HostExperts::Dealt HostExperts::deal(int32_t layer, int32_t n_rows, Phase phase) {
  const Layout::Layer& l = of(layer);
  const int32_t k = shape_.router.n_used, n = n_rows * k, n_experts = l.n_experts;
  int32_t *const slots = lists_, *const rows = slots + n, *const owners = rows + n, *const firsts = owners + n;
  std::fill_n(firsts, n_experts + 1, 0), std::fill_n(host_firsts_, n_experts + 1, 0);
  for (int32_t i = 0; i < n; ++i) ++(chosen_[i] < l.n_on_device ? firsts : host_firsts_)[chosen_[i] + 1];
  for (int32_t e = 0; e < n_experts; ++e) firsts[e + 1] += firsts[e], host_firsts_[e + 1] += host_firsts_[e];
  Dealt dealt;
  dealt.n_on_device = firsts[n_experts], dealt.n_on_host = host_firsts_[n_experts];
  dealt.lists = {lists_, static_cast<size_t>(3 * n + n_experts + 1)};
  for (int32_t i = 0; i < n; ++i) {  // the firsts are the next free slots
    const int32_t e = chosen_[i], row = i / k;
    if (e < l.n_on_device) {
      slots[i] = firsts[e]++;
      rows[slots[i]] = row, owners[slots[i]] = e;
    } else {
      const int32_t slot = host_firsts_[e]++;
      host_rows_[slot] = row;
      slots[i] = dealt.n_on_device + slot;
      rows[slots[i]] = row, owners[slots[i]] = -1;
    }
  }
  for (int32_t e = n_experts; e > 0; --e) firsts[e] = firsts[e - 1], host_firsts_[e] = host_firsts_[e - 1];
  firsts[0] = 0, host_firsts_[0] = 0;
  const bool generated = phase == Phase::decode;
  (generated ? counts_.on_device : counts_.prompt_on_device) += static_cast<uint64_t>(dealt.n_on_device);
  (generated ? counts_.by_host : counts_.prompt_by_host) += static_cast<uint64_t>(dealt.n_on_host);
  if (dealt.n_on_host == 0) publish();
  return dealt;
}

void HostExperts::publish() {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  published_ = counts_;
}

HostExperts::Side HostExperts::side(int32_t n_rows) const {
  const auto at = [](const void* p) { return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(p)); };
  Side side;
  side.routed.rows = {at(host_rows_)}, side.routed.first_slots = {at(host_firsts_)};
  side.input = {at(input_)}, side.gate = {at(ffn_)}, side.act = {at(act_)}, side.slots = {at(slots_)};
  side.up = side.gate + static_cast<uint64_t>(n_rows) * static_cast<uint64_t>(shape_.used_width);
  return side;
}

HostExperts::Counts HostExperts::counts() const {
  const std::lock_guard<std::mutex> lock(published_mutex_);
  return published_;
}

}  // namespace orrery::model

#include "runtime/model/store/host_columns.h"

#include <algorithm>
#include <utility>

#include "runtime/base/checked.h"

namespace orrery::model {

namespace {

constexpr uint64_t kMatrixAlignment = 64;
constexpr int32_t kLeastColumns = 32;  // of a part; a block of the format of `down` may be longer

// Both parts have whole blocks.
int32_t columns_there(const HostColumns::Source& source, int64_t share) {
  const auto block = static_cast<int32_t>(type_traits(source.down)->block_elements);
  const int32_t unit = std::max(kLeastColumns, block);
  return static_cast<int32_t>(source.width * share / HostColumns::kWhole / unit * unit);
}

// `width` columns of a block, of bytes_of(type, rows, cols) bytes a matrix.
template <class F>
HostColumns::Block block_of(const HostColumns::Source& source, int32_t width, const F& bytes_of) {
  HostColumns::Block block;
  const auto add = [&](HostColumns::Matrix* m, TensorType type, int64_t rows, int64_t cols) {
    *m = {type, rows, cols, block.bytes, width > 0 ? bytes_of(type, rows, cols) : 0};
    block.bytes += align_up(m->bytes, kMatrixAlignment);
  };
  add(&block.gate, source.gate, width, source.n_embd);
  add(&block.up, source.up, width, source.n_embd);
  add(&block.down, source.down, source.n_embd, width);
  block.bytes = align_up(block.bytes, kv::kArenaAlignment);
  return block;
}

// Offsets of the work memory.
struct ColumnsWork {
  int32_t n_rows;
  StepLimits limits;
  uint64_t input, ffn, act, sums, scratch, bytes = 0;
  ColumnsWork(const Device& host, const StepLimits& of_model, int64_t n_embd, int64_t width)
      : n_rows(std::min(of_model.max_rows, kMostTogether)), limits(of_model) {
    limits.max_rows = n_rows;
    const auto take = [this](int64_t floats) {
      const uint64_t at = bytes;
      bytes += align_up(static_cast<uint64_t>(floats) * sizeof(float), kv::kArenaAlignment);
      return at;
    };
    input = take(n_rows * n_embd), ffn = take(n_rows * 2 * width), act = take(n_rows * width), sums = take(n_rows * n_embd);
    scratch = bytes;
    bytes = align_up(bytes + HostSide::scratch_bytes(host, limits), kv::kHostAlignment);
  }
};

}  // namespace

HostColumns::Layout HostColumns::layout(Span<const Source> sources, const Device& device, int64_t share) {
  Layout layout;
  const bool reads_file = device.info().reads_host_memory;
  const auto in_file = [](TensorType type, int64_t rows, int64_t cols) { return row_bytes(type, static_cast<uint64_t>(rows * cols)); };
  const auto on_device = [&](TensorType type, int64_t rows, int64_t cols) {
    const uint64_t repacked = device.weight_bytes(type, rows, cols);
    return repacked ? repacked : in_file(type, rows, cols);
  };
  for (const Source& source : sources) {
    Layout::Layer layer;
    layer.layer = source.layer, layer.width = source.width, layer.n_there = columns_there(source, share);
    if (layer.n_there >= layer.width) continue;
    layer.there = block_of(source, layer.n_there, on_device);
    layer.host = block_of(source, layer.width - layer.n_there, in_file);
    layer.brought = reads_file ? layer.host : block_of(source, layer.width - layer.n_there, on_device);
    layer.there_offset = std::exchange(layout.there_bytes, layout.there_bytes + layer.there.bytes);
    if (!reads_file) layout.brought_bytes = std::max(layout.brought_bytes, layer.brought.bytes);
    layout.units.layers.push_back({layer.layer, layer.host.bytes, layout.units.bytes()});
    layout.layers.push_back(layer);
  }
  layout.there_bytes += layout.brought_bytes;
  if (layout) layout.ring = LayerStore::needs(layout.units, false);
  return layout;
}

int32_t HostColumns::Layout::width() const {
  int32_t most = 0;
  for (const Layer& layer : layers) most = std::max(most, layer.width - layer.n_there);
  return most;
}

HostColumns::HostColumns(Layout layout, Backend* host, TwoSides* sides) : layout_(std::move(layout)), host_(host, sides) {
  index_of_.resize(static_cast<size_t>(layout_.layers.back().layer) + 1, -1);
  for (size_t l = 0; l < layout_.layers.size(); ++l) index_of_[static_cast<size_t>(layout_.layers[l].layer)] = static_cast<int64_t>(l);
}

Result<std::unique_ptr<HostColumns>> HostColumns::make(Layout layout, Backend* host, TwoSides* sides, kv::Arena* arena,
                                                       kv::Arena* reservoir, kv::IoThread* io) {
  if (!layout) return error(Code::internal, "columns on the host of a model that has none there");
  std::unique_ptr<HostColumns> made(new HostColumns(std::move(layout), host, sides));
  ORRERY_ASSIGN(made->there_, kv::ArenaRegion::take(arena, made->layout_.there_bytes, "the columns of feed-forward blocks on the device"));
  ORRERY_ASSIGN(made->ring_, LayerStore::make(made->layout_.units, arena, reservoir, io));
  return made;
}

uint64_t HostColumns::work_bytes(const Device& host, const StepLimits& limits, int64_t n_embd, int64_t width) {
  return ColumnsWork(host, limits, n_embd, width).bytes;
}

Status HostColumns::reserve(kv::Arena* reservoir, const StepLimits& limits, int64_t n_embd) {
  const ColumnsWork work(host_.backend(), limits, n_embd, layout_.width());
  ORRERY_ASSIGN(work_, kv::ArenaRegion::take(reservoir, work.bytes, "the work memory of columns on the host"));
  auto* const at = reinterpret_cast<std::byte*>(work_.data().address);
  const auto floats_at = [at](uint64_t offset) { return reinterpret_cast<float*>(at + offset); };
  n_rows_ = work.n_rows;
  input_ = floats_at(work.input), ffn_ = floats_at(work.ffn), act_ = floats_at(work.act), sums_ = floats_at(work.sums);
  host_.use(at + work.scratch, work.limits);
  return ok_status();
}

Status HostColumns::bring(Backend* backend, int32_t layer, const Cancel& cancel, FeedForwardMatrices* brought) {
  ORRERY_TRY(ring_->bring(layer, Phase::prefill, cancel));
  const Layout::Layer& l = of(layer);
  const Ptr<const std::byte> from{ring_->place(layer).address};
  if (layout_.brought_bytes == 0) {
    brought->gate = l.host.weight(l.host.gate, from, false), brought->up = l.host.weight(l.host.up, from, false);
    brought->down = l.host.weight(l.host.down, from, false);
    return ok_status();
  }
  const Ptr<std::byte> to = there_.data() + (layout_.there_bytes - layout_.brought_bytes);
  const std::pair<const Matrix*, const Matrix*> all[] = {
      {&l.host.gate, &l.brought.gate}, {&l.host.up, &l.brought.up}, {&l.host.down, &l.brought.down}};
  for (const auto& [file, device] : all)
    backend->repack_there(file->type, file->rows, file->cols, from + file->offset, to + device->offset);
  brought->gate = l.brought.weight(l.brought.gate, {to.address}, true), brought->up = l.brought.weight(l.brought.up, {to.address}, true);
  brought->down = l.brought.weight(l.brought.down, {to.address}, true);
  return ok_status();
}

void HostColumns::count(uint64_t us) {
  const std::lock_guard<std::mutex> lock(counts_mutex_);
  ++counts_.layers, counts_.host_us += us;
}

HostColumns::Counts HostColumns::counts() const {
  const std::lock_guard<std::mutex> lock(counts_mutex_);
  return counts_;
}

}  // namespace orrery::model

// A step. Each operation is recorded in a list (operations.h). The list is sent when a result is downloaded or the step ends: as one CUDA
// graph at decode, in stretches of up to kPrefillStretch operations at prefill.
#include <algorithm>
#include <cstring>

#include "cuda/backend.h"
#include "runtime/base/checked.h"

namespace orrery::cuda {

namespace {

constexpr size_t kPrefillStretch = 64;                 // operations that are sent together

// These copy field by field: lists of operations are compared as bytes, so padding must stay zero.
void set_weight(Weight* to, const Weight& from) {
  to->type = from.type;
  to->n_rows = from.n_rows;
  to->n_cols = from.n_cols;
  to->data = from.data;
}
void set_format(KvFormat* to, const KvFormat& from) {
  to->type = from.type;
  to->n_layers = from.n_layers;
  to->n_kv_heads = from.n_kv_heads;
  to->head_dim = from.head_dim;
}

}  // namespace

// Whether the scratch memory has room for the step's upload. It has, unless the step exceeds its StepLimits.
bool CudaBackend::within(const Step& step) const {
  uint64_t tiles = 0;
  for (const HeadView& head : step.heads) tiles += static_cast<uint64_t>(div_up(head.n_keys, kPageTokens));
  return step.rows.size() * sizeof(Row) <= plan_.pages - plan_.rows &&
         step.sequences.size() <= static_cast<size_t>(plan_.n_sequences) &&
         std::all_of(step.sequences.begin(), step.sequences.end(), [&](const KvView& s) { return s.n_pages <= plan_.max_pages; }) &&
         step.heads.size() * sizeof(DeviceHead) <= plan_.tiles - plan_.heads &&
         tiles * sizeof(uint64_t) <= plan_.upload_bytes - plan_.tiles;
}

void CudaBackend::begin_steps(Span<const Step> steps) {
  const Step& step = steps[0];
  const OnDevice here(*gpu_, queue_);
  step_ = step;
  tables_sent_.clear(), tables_bytes_ = 0;
  context_.phase = step.phase;
  context_.query_ring = device(step.queries.data);
  context_.n_ring = step.queries.n_rows;
  const bool staged = staging_.takes(step, address(arena_), arena_bytes_);
  context_.staging = staged ? &staging_ : nullptr, context_.of = staged ? &step_ : nullptr;
  if (queue_.failed() || !queue_.check(within(step) ? DriverError::none : DriverError::invalid_value, "taking a step beyond its limits")) return;
  Pinned& bounce = step_bounce_.next(queue_);
  std::memcpy(bounce.data() + plan_.rows, step.rows.data(), step.rows.size() * sizeof(Row));
  for (size_t i = 0; i < step.sequences.size(); ++i)
    std::memcpy(bounce.data() + plan_.pages + i * static_cast<size_t>(plan_.max_pages) * sizeof(uint64_t), step.sequences[i].pages,
                static_cast<size_t>(step.sequences[i].n_pages) * sizeof(uint64_t));
  step_bytes_ = plan_.tiles;
  for (size_t i = 0; i < step.heads.size(); ++i) {   // the heads' tiles lie one after another
    const HeadView& head = step.heads[i];
    const uint64_t bytes = static_cast<uint64_t>(div_up(head.n_keys, kPageTokens)) * sizeof(uint64_t);
    const DeviceHead there{reinterpret_cast<const uint64_t*>(scratch_ + step_bytes_), head.append_at, device(head.compensation_token),
                           head.n_keys, head.compensation_weight};
    std::memcpy(bounce.data() + plan_.heads + i * sizeof there, &there, sizeof there);
    if (bytes > 0) std::memcpy(bounce.data() + step_bytes_, head.tiles, bytes);
    step_bytes_ += bytes;
  }
  step_waits_ = true;
  if (staged) staging_.begin(queue_);
}

Operation& CudaBackend::note(Operation::Kind kind, int32_t rows) {
  const size_t most = step_.phase == Phase::decode ? kMostOperations : kPrefillStretch;
  if (operations_.size() >= most) send();
  operations_.emplace_back(kind, rows);
  return operations_.back();
}

void CudaBackend::send() {
  const OnDevice here(*gpu_, queue_);
  if (step_waits_ && !queue_.failed()) {
    Pinned& bounce = step_bounce_.now();
    queue_.copy(scratch_, bounce.data(), step_bytes_, "copying a step to the device");
    bounce.mark(queue_);
  }
  step_waits_ = false;
  if (step_.phase == Phase::decode)
    graphs_.run(queue_, context_, operations_);
  else
    run(queue_, context_, operations_);
  operations_.clear();
}

void CudaBackend::embed(const Weight& table, Ptr<float> out) {
  Operation& op = note(Operation::Kind::embed, n_rows());
  set_weight(&op.products.list[0].weight, table);
  op.out = {device(out), table.n_cols};
}

void CudaBackend::rms_norm(Ptr<const float> x, int64_t x_stride, Ptr<const float> weight, Ptr<float> out, int64_t out_stride,
                           int32_t n_vectors, int64_t dim, float eps) {
  Operation& op = note(Operation::Kind::rms_norm, n_rows());
  op.in = {device(x), x_stride};
  op.weight = device(weight);
  op.out = {device(out), out_stride};
  op.n_vectors = n_vectors;
  op.dim = dim;
  op.eps = eps;
}

void CudaBackend::matmul(Span<const Product> products, Ptr<const float> x, int64_t x_stride, int32_t rows) {
  if (products.empty() || rows <= 0) return;
  Operation& op = note(Operation::Kind::matmul, rows);
  op.in = {device(x), x_stride};
  op.products.n = static_cast<int32_t>(products.size());
  for (size_t i = 0; i < products.size(); ++i) {
    DeviceProduct& p = op.products.list[i];
    set_weight(&p.weight, *products[i].weight);
    p.bias = device(products[i].bias);
    p.out = device(products[i].out);
    p.out_stride = products[i].out_stride;
    p.accumulate = products[i].accumulate;
  }
}

void CudaBackend::prepare_ropes(Span<const RopeSpec> specs) {
  const RopeSpec& spec = specs[0];
  n_rot_ = std::min(spec.n_rot, plan_.rope_floats);
  interleaved_ = spec.interleaved;
  if (!queue_.failed())   // the frequencies travel with the step's upload, which has not been sent yet
    std::memcpy(step_bounce_.now().data() + plan_.frequencies, spec.inverse_frequency,
                static_cast<size_t>(n_rot_ / 2) * sizeof(float));
  Operation& op = note(Operation::Kind::prepare_rope, n_rows());
  op.n_rot = n_rot_;
  op.eps = spec.magnitude;
}

void CudaBackend::rope(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim) {
  Operation& op = note(Operation::Kind::rope, n_rows());
  op.out = {device(x), stride};
  op.n_vectors = n_heads;
  op.dim = head_dim;
  op.n_rot = n_rot_;
  op.flag = interleaved_;
}

void CudaBackend::transform_rows(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, Span<const HeadTransform> transforms) {
  Operation& op = note(Operation::Kind::transform, n_rows());
  op.out = {device(x), stride};
  op.weight = device(transforms[0].shift);
  op.n_vectors = n_heads;
  op.dim = head_dim;
  op.flag = transforms[0].rotate;
}

void CudaBackend::append_kv(int32_t layer, Ptr<const float> k, Ptr<const float> v, int64_t stride) {
  Operation& op = note(Operation::Kind::append_kv, n_rows());
  op.in = {device(k), stride};
  op.in2 = {device(v), stride};
  op.attention.layer = layer;
  set_format(&op.attention.kv, step_.kv);
  op.flag = !step_.heads.empty();
  op.heads_type = step_.heads_kv.type;
}

void CudaBackend::attend(int32_t layer, Ptr<const float> q, Ptr<float> out, const AttendShape& shape) {
  Operation& op = note(Operation::Kind::attend, n_rows());
  op.in = {device(q), shape.q_stride};
  op.out = {device(out), shape.out_stride};
  op.attention.layer = layer;
  op.attention.n_heads = shape.n_heads;
  op.attention.scale = shape.scale;
  op.attention.window = shape.window;
  op.attention.resident = !step_.heads.empty();
  set_format(&op.attention.kv, op.attention.resident ? step_.heads_kv : step_.kv);
}

void CudaBackend::swiglu(Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride, int64_t n) {
  Operation& op = note(Operation::Kind::swiglu, n_rows());
  op.in = {device(gate), stride};
  op.in2 = {device(up), stride};
  op.out = {device(out), out_stride};
  op.dim = n;
}

void CudaBackend::add(Ptr<float> x, Ptr<const float> y, int64_t n) {
  Operation& op = note(Operation::Kind::add, n_rows());
  op.out = {device(x), n};
  op.in = {device(y), n};
  op.dim = n;
}

}  // namespace orrery::cuda

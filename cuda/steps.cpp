// A step. Each operation is recorded in a list (operations.h). The list is sent when a result is downloaded or the step ends: as one CUDA
// graph at decode, in stretches of up to kPrefillStretch operations at prefill.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "cuda/backend.h"
#include "runtime/base/checked.h"

namespace orrery::cuda {

namespace {

constexpr size_t kPrefillStretch = 64;  // operations that are sent together

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
  to->shared_values = from.shared_values;
}

// The device may have a list of the head's tiles already.
uint64_t n_sent_tiles(const HeadView& head) { return head.tiles_there ? 0 : static_cast<uint64_t>(div_up(head.n_keys, kPageTokens)); }

}  // namespace

// Whether the scratch memory has room for the steps' upload. It has for any step, unless the step exceeds its StepLimits.
bool CudaBackend::within(Span<const Step> steps) const {
  size_t n_rows = 0, n_sequences = 0;
  uint64_t n_tiles = 0;
  for (const Step& step : steps) {
    n_rows += step.rows.size();
    n_sequences += std::max<size_t>(step.sequences.size(), 1);
    if (step.other_groups.size() >= static_cast<size_t>(plan_.n_groups)) return false;
    for (size_t g = 0; g <= step.other_groups.size(); ++g)
      for (const KvView& pages : step.pages(static_cast<int32_t>(g)).sequences)
        if (pages.n_pages > plan_.max_pages) return false;
    if (step.heads.size() > static_cast<size_t>(plan_.n_heads)) return false;
    for (const HeadView& head : step.heads) n_tiles += n_sent_tiles(head);
  }
  return n_rows <= static_cast<size_t>(plan_.max_rows) && n_sequences <= static_cast<size_t>(plan_.n_sequences) &&
         n_tiles * sizeof(uint64_t) <= plan_.tiles_bytes;
}

size_t CudaBackend::most_steps(Span<const Step> steps) const {
  size_t n = 1;
  while (n < steps.size() && within(steps.subspan(0, n + 1))) ++n;
  return n;
}

// Writes the blocks of a step's sequences, from the given block on, and the tiles of its heads.
void CudaBackend::upload_sequences(const Step& step, size_t first_block, std::byte* upload) {
  for (size_t i = 0; i < std::max<size_t>(step.sequences.size(), 1); ++i) {
    std::byte* const block = upload + plan_.sequences + (first_block + i) * plan_.sequence_bytes;
    const DeviceSequence sequence{
        device(step.queries.data), device(step.transform.key_means), nullptr, nullptr, 0,
        step.queries.n_rows,       step.transform.rotated,           {},      {}};  // set_states() knows the state, prepare_ropes() the magnitudes
    std::memcpy(block, &sequence, sizeof sequence);
    for (size_t g = 0; g <= step.other_groups.size() && i < step.sequences.size(); ++g) {
      const KvView& pages = step.pages(static_cast<int32_t>(g)).sequences[i];
      std::memcpy(block + plan_.pages + g * static_cast<size_t>(plan_.max_pages) * sizeof(uint64_t), pages.pages,
                  static_cast<size_t>(pages.n_pages) * sizeof(uint64_t));
    }
  }
  std::byte* const heads = upload + plan_.sequences + first_block * plan_.sequence_bytes + plan_.heads;
  for (size_t i = 0; i < step.heads.size(); ++i) {  // the heads' tiles lie one after another
    const HeadView& head = step.heads[i];
    const uint64_t bytes = n_sent_tiles(head) * sizeof(uint64_t);
    const uint64_t* tiles = head.tiles_there ? device(head.tiles_there) : reinterpret_cast<const uint64_t*>(scratch_ + step_bytes_);
    const DeviceHead there{tiles,
                           head.append_at,
                           device(head.compensation_token),
                           device(head.compensation_logs),
                           device(head.compensation_values),
                           head.n_keys,
                           head.compensation_weight};
    std::memcpy(heads + i * sizeof there, &there, sizeof there);
    if (bytes > 0) std::memcpy(upload + step_bytes_, head.tiles, bytes);
    step_bytes_ += bytes;
  }
}

void CudaBackend::begin_steps(Span<const Step> steps) {
  const OnDevice here(*gpu_, queue_);
  n_steps_ = std::min(steps.size(), steps_.size());
  std::copy_n(steps.begin(), n_steps_, steps_.begin());
  n_rows_ = 0;
  for (const Step& step : steps) n_rows_ += static_cast<int32_t>(step.rows.size());
  told_ = {}, told_sent_ = false;
  ahead_parts_.clear();
  n_shortlists_ = 0;
  context_.phase = steps[0].phase;
  const bool staged = n_steps_ == 1 && staging_.takes(steps_[0], address(arena_), arena_bytes_);
  context_.staging = staged ? &staging_ : nullptr, context_.of = staged ? &steps_[0] : nullptr;
  const DriverError fits = within(steps) ? DriverError::none : DriverError::invalid_value;
  if (queue_.failed() || !queue_.check(fits, "taking a step beyond its limits")) return;
  std::byte* const upload = step_bounce_->next(queue_).data();
  size_t n_blocks = 0;
  for (const Step& step : steps) n_blocks += std::max<size_t>(step.sequences.size(), 1);
  step_bytes_ = plan_.sequences + n_blocks * plan_.sequence_bytes;
  std::byte* row = upload + plan_.rows;
  n_blocks_ = 0;
  for (const Step& step : steps) {
    for (Row r : step.rows) {
      r.sequence += static_cast<int32_t>(n_blocks_);
      std::memcpy(row, &r, sizeof r);
      row += sizeof r;
    }
    upload_sequences(step, n_blocks_, upload);
    n_blocks_ += std::max<size_t>(step.sequences.size(), 1);
  }
  step_waits_ = true;
  if (staged) staging_.begin(queue_);
}

Operation& CudaBackend::note(Operation::Kind kind, int32_t rows) {
  const size_t most = context_.phase == Phase::decode ? kMostOperations : kPrefillStretch;
  if (operations_.size() >= most) send();
  operations_.emplace_back(kind, rows);
  return operations_.back();
}

void CudaBackend::send() {
  const OnDevice here(*gpu_, queue_);
  if (step_waits_ && !queue_.failed()) {
    Pinned& bounce = step_bounce_->now();
    queue_.copy(scratch_, bounce.data(), step_bytes_, "copying a step to the device");
    bounce.mark(queue_);
  }
  step_waits_ = false;
  if (context_.phase == Phase::decode) graphs_.run(queue_, context_, operations_);
  else run(queue_, context_, operations_);
  if (!operations_.empty()) fill_ahead();  // behind the layer's attention, the first of them
  operations_.clear();
}

void CudaBackend::embed(const Weight& table, float scale, Ptr<float> out) {
  Operation& op = note(Operation::Kind::embed, n_rows());
  set_weight(&op.products.list[0].weight, table);
  op.out = {device(out), table.n_cols};
  op.factor = scale;
}

// The host writes the rows to pinned memory, from which they are copied. The copies run ahead of the operations that are recorded but not
// sent.
void CudaBackend::read_rows(RowReader read, const void* context, int64_t n_cols, Ptr<float> out) {
  const OnDevice here(*gpu_, queue_);
  const uint64_t row_size = static_cast<uint64_t>(n_cols) * sizeof(float), fitting = kBounceBytes / row_size;
  if (queue_.failed() ||
      !queue_.check(fitting > 0 ? DriverError::none : DriverError::invalid_value, "uploading a row that is longer than its buffer"))
    return;
  std::byte* half = nullptr;
  uint64_t n = 0;  // rows in the buffer
  float* to = device(out);
  const auto flush = [&] {
    if (n == 0 || queue_.failed()) return;
    queue_.copy(to, half, n * row_size, "uploading rows of a table");
    bounce_.now().mark(queue_);
    to += n * static_cast<uint64_t>(n_cols), n = 0;
  };
  for (size_t i = 0; i < n_steps_; ++i)
    for (const Row& row : steps_[i].rows) {
      if (n == fitting) flush();
      if (queue_.failed()) return;
      if (n == 0) half = bounce_.next(queue_).data();
      read(context, row.token, reinterpret_cast<float*>(half + n++ * row_size));
    }
  flush();
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
  const size_t n_tables = specs.size() / n_steps_;
  int32_t at = 0;
  for (size_t t = 0; t < n_tables; at += tables_[t++].n_rot)
    tables_[t] = {at, std::min(specs[t].n_rot, plan_.rope_floats - at), specs[t].interleaved};
  for (size_t i = 0; i < n_blocks_ && !queue_.failed(); ++i) {  // they travel with the step's upload, which has not been sent yet
    std::byte* const block = step_bounce_->now().data() + plan_.sequences + i * plan_.sequence_bytes;
    for (size_t t = 0; t < n_tables; ++t) {
      const RopeSpec& spec = specs[(n_steps_ > 1 ? i : 0) * n_tables + t];
      std::memcpy(block + plan_.frequencies + static_cast<size_t>(tables_[t].at / 2) * sizeof(float), spec.inverse_frequency,
                  static_cast<size_t>(tables_[t].n_rot / 2) * sizeof(float));
      std::memcpy(block + offsetof(DeviceSequence, rope_magnitude) + t * sizeof(float), &spec.magnitude, sizeof spec.magnitude);
      std::memcpy(block + offsetof(DeviceSequence, rope_period) + t * sizeof(int32_t), &spec.period, sizeof spec.period);
    }
  }
  for (size_t t = 0; t < n_tables; ++t) {
    Operation& op = note(Operation::Kind::prepare_rope, n_rows());
    op.n_rot = tables_[t].n_rot, op.rope_at = tables_[t].at, op.n_vectors = static_cast<int32_t>(t), op.factor = specs[t].temperature;
  }
}

void CudaBackend::set_states(Span<const SequenceState> states) {
  for (size_t i = 0; i < n_blocks_ && !queue_.failed(); ++i) {  // as the frequencies
    const SequenceState& its = states[n_steps_ > 1 ? i : 0];
    std::byte* const sequence = step_bounce_->now().data() + plan_.sequences + i * plan_.sequence_bytes;
    float *const state = device(its.data), *const guessed = device(its.guessed);
    std::memcpy(sequence + offsetof(DeviceSequence, state), &state, sizeof state);
    std::memcpy(sequence + offsetof(DeviceSequence, guessed), &guessed, sizeof guessed);
    std::memcpy(sequence + offsetof(DeviceSequence, n_replayed), &its.n_replayed, sizeof its.n_replayed);
  }
  recurrent_rows_.step_rows = n_steps_ > 1 ? 1 : n_rows();
  recurrent_rows_.n_final = n_steps_ > 1 ? 1 : states[0].final_rows(n_rows());
  recurrent_rows_.most_replayed = n_steps_ > 1 || !states[0].guessed ? 0 : kMostGuessedRows;
}

void CudaBackend::delta_net(const DeltaNetShape& shape, const DeltaNetWeights& weights, const DeltaNetRows& rows, const StatePlace& at) {
  Operation& op = note(Operation::Kind::delta_net, n_rows());
  DeltaNet& net = op.net;  // field by field, as above
  net.u = device(rows.u), net.c = device(rows.c), net.z = device(rows.z), net.a = device(rows.a), net.b = device(rows.b),
  net.out = device(rows.out);
  net.conv = device(weights.conv), net.dt = device(weights.dt), net.decay = device(weights.decay), net.norm = device(weights.norm);
  net.at = at, net.rows = recurrent_rows_;
  net.shape.n_key_heads = shape.n_key_heads, net.shape.n_value_heads = shape.n_value_heads;
  net.shape.key_dim = shape.key_dim, net.shape.value_dim = shape.value_dim, net.shape.n_taps = shape.n_taps;
  net.shape.eps = shape.eps, net.shape.grouped = shape.grouped;
}

void CudaBackend::mamba2(const Mamba2Shape& shape, const Mamba2Weights& weights, const Mamba2Rows& rows, const StatePlace& at) {
  Operation& op = note(Operation::Kind::mamba2, n_rows());
  Mamba2& net = op.mamba2;  // field by field, as above
  net.projected = device(rows.projected), net.c = device(rows.c), net.out = device(rows.out);
  net.conv = device(weights.conv), net.conv_bias = device(weights.conv_bias), net.norm = device(weights.norm);
  net.dt = device(weights.dt), net.decay = device(weights.decay), net.skip = device(weights.skip);
  net.at = at, net.rows = recurrent_rows_;
  net.shape.n_heads = shape.n_heads, net.shape.head_dim = shape.head_dim, net.shape.n_groups = shape.n_groups;
  net.shape.state_dim = shape.state_dim, net.shape.n_taps = shape.n_taps, net.shape.eps = shape.eps;
}

void CudaBackend::short_conv(const ShortConvShape& shape, Ptr<const float> conv, const ShortConvRows& rows, const StatePlace& at) {
  Operation& op = note(Operation::Kind::short_conv, n_rows());
  ShortConv& net = op.short_conv;
  net.projected = device(rows.projected), net.out = device(rows.out), net.conv = device(conv);
  net.at = at, net.rows = recurrent_rows_;
  net.shape.n_channels = shape.n_channels, net.shape.n_taps = shape.n_taps;
}

void CudaBackend::split_gates(Ptr<const float> x, int32_t n_heads, int32_t head_dim, Ptr<float> q, int64_t q_stride, Ptr<float> gates) {
  Operation& op = note(Operation::Kind::split_gates, n_rows());
  op.in = {device(x), 2 * int64_t{n_heads} * head_dim};
  op.out = {device(q), q_stride};
  op.net.out = device(gates);
  op.n_vectors = n_heads;
  op.dim = head_dim;
}

void CudaBackend::apply_gates(Ptr<float> x, Ptr<const float> gates, int64_t n) {
  Operation& op = note(Operation::Kind::apply_gates, n_rows());
  op.out = {device(x), n};
  op.in = {device(gates), n};
  op.dim = n;
}

void CudaBackend::note_router(Operation* op, const RouterShape& shape, const RoutedRows& routed) {
  DeviceRouter& r = op->router;
  r.weights = device(routed.weights), r.experts = device(routed.experts), r.slots = device(routed.slots), r.rows = device(routed.rows);
  r.owners = device(routed.owners), r.first_slots = device(routed.first_slots);
  r.first_slot = routed.first_slot, r.n_slots = routed.n_slots;
  r.n_experts = shape.n_experts, r.n_used = shape.n_used, r.normalised = shape.normalised, r.scale = shape.scale;
  r.gating = shape.gating == Gating::softmax   ? DeviceRouter::kSoftmax
             : shape.gating == Gating::sigmoid ? DeviceRouter::kSigmoid
                                               : DeviceRouter::kOfChosen;
}

void CudaBackend::route(Ptr<const float> logits, Ptr<const float> bias, Ptr<const float> scales, const RouterShape& shape,
                        const RoutedRows& routed) {
  Operation& op = note(Operation::Kind::route, n_rows());
  op.in = {device(logits), shape.n_experts};
  note_router(&op, shape, routed);
  op.router.bias = device(bias), op.router.scales = device(scales);
}

void CudaBackend::multiply_experts(Span<const ExpertProduct> products, const RouterShape& shape, const RoutedRows& routed,
                                   Ptr<const float> x, bool of_rows) {
  Operation& op = note(Operation::Kind::expert_products, n_rows());
  op.in = {device(x), products[0].weights->first.n_cols};
  note_router(&op, shape, routed);
  op.router.of_rows = of_rows;
  op.products.n = static_cast<int32_t>(products.size());
  for (size_t i = 0; i < products.size(); ++i) {
    DeviceProduct& p = op.products.list[i];
    set_weight(&p.weight, products[i].weights->first);
    p.bias = device(products[i].bias);
    p.out = device(products[i].out);
    p.out_stride = p.weight.n_rows;
    const ExpertWeights& experts = *products[i].weights;
    p.expert_units = device(experts.units);
    p.expert_stride = p.expert_units ? experts.offset : experts.stride;
  }
}

void CudaBackend::add_experts(Ptr<float> x, Ptr<const float> y, int64_t n, const RouterShape& shape, const RoutedRows& routed,
                              bool accumulate) {
  Operation& op = note(Operation::Kind::add_experts, n_rows());
  op.out = {device(x), n};
  op.in = {device(y), n};
  op.dim = n;
  op.flag = accumulate;
  note_router(&op, shape, routed);
}

void CudaBackend::clamped_swiglu(Ptr<const float> gate, Ptr<const float> up, Ptr<float> out, int64_t n) {
  Operation& op = note(Operation::Kind::clamped_swiglu, n_rows());
  op.in = {device(gate), n};
  op.in2 = {device(up), n};
  op.out = {device(out), n};
  op.dim = n;
}

void CudaBackend::squared_relu(Ptr<float> x, int64_t n) {
  Operation& op = note(Operation::Kind::squared_relu, n_rows());
  op.out = {device(x), n};
  op.dim = n;
}

void CudaBackend::gate_rows(Ptr<float> x, Ptr<const float> gates, int64_t n) {
  Operation& op = note(Operation::Kind::gate_rows, n_rows());
  op.out = {device(x), n};
  op.in = {device(gates), 1};
  op.dim = n;
}

void CudaBackend::multiply_heads(const Weight& weight, int32_t n_heads, Ptr<const float> x, int64_t x_dim, Ptr<float> out,
                                 int64_t out_dim) {
  Operation& op = note(Operation::Kind::head_products, n_rows());
  set_weight(&op.products.list[0].weight, weight);
  op.products.n = 1;
  op.in = {device(x), x_dim};
  op.out = {device(out), out_dim};
  op.n_vectors = n_heads;
}

void CudaBackend::add_low_rank(Span<const AdapterProduct> products, int64_t low_stride, float scale, int32_t rows) {
  for (size_t i = 0; i < products.size();) {
    Operation& op = note(Operation::Kind::add_low_rank, rows);
    op.in.stride = low_stride, op.factor = scale;
    for (; i < products.size() && op.products.n < kMostProducts; ++i) {
      const AdapterProduct& product = products[i];
      DeviceProduct& p = op.products.list[op.products.n++];
      p.weight.data = {product.b.address}, p.weight.n_rows = product.n_out, p.weight.n_cols = product.rank;
      p.low = device(product.low), p.out = device(product.out), p.out_stride = product.out_stride;
    }
  }
}

void CudaBackend::rope(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, int32_t table) {
  const RotaryTable& own = tables_[static_cast<size_t>(table)];
  Operation& op = note(Operation::Kind::rope, n_rows());
  op.out = {device(x), stride};
  op.n_vectors = n_heads;
  op.dim = head_dim;
  op.n_rot = own.n_rot, op.rope_at = own.at;
  op.flag = own.interleaved;
}

void CudaBackend::transform_rows(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, Span<const HeadTransform> transforms) {
  Operation& op = note(Operation::Kind::transform, n_rows());
  op.out = {device(x), stride};
  op.n_vectors = n_heads;
  op.dim = head_dim;
  if (n_steps_ == 1) {
    op.weight = device(transforms[0].shift);
    op.flag = transforms[0].rotate ? Operation::kRotates : 0;
    return;
  }
  op.flag = Operation::kAsSequences;
  op.mean_at = -1;
  for (size_t i = 0; i < n_steps_; ++i) {  // the shifts begin at one place of all steps' means
    op.flag |= transforms[i].rotate ? Operation::kRotates : 0;
    if (transforms[i].shift) op.mean_at = device(transforms[i].shift) - device(steps_[i].transform.key_means);
  }
}

// Calls f(first row, number of rows, step) for each stretch of rows whose KV has one form: one launch serves them.
template <class F>
void CudaBackend::for_each_form(const F& f) {
  if (n_steps_ == 1) return f(0, n_rows(), steps_[0]);
  const auto alike = [](const Step& a, const Step& b) {
    return a.kv.type == b.kv.type && a.heads.empty() == b.heads.empty() && (a.heads.empty() || a.heads_kv.type == b.heads_kv.type);
  };
  for (size_t first = 0, end; first < n_steps_; first = end) {
    end = first + 1;
    while (end < n_steps_ && alike(steps_[first], steps_[end])) ++end;
    f(static_cast<int32_t>(first), static_cast<int32_t>(end - first), steps_[first]);
  }
}

void CudaBackend::append_kv(KvLayer layer, Ptr<const float> k, Ptr<const float> v, int64_t stride) {
  for_each_form([&](int32_t first, int32_t n, const Step& step) {
    Operation& op = note(Operation::Kind::append_kv, n);
    op.in = {device(k), stride};
    op.in2 = {device(v), stride};
    op.first_row = first;
    op.attention.layer = layer.layer, op.attention.first_page = layer.group * plan_.max_pages;
    set_format(&op.attention.kv, step.pages(layer.group).kv);
    op.flag = !step.heads.empty() && layer.group == 0;
    op.heads_type = step.heads_kv.type;
  });
}

void CudaBackend::attend(KvLayer layer, Ptr<const float> q, Ptr<float> out, const AttendShape& shape) {
  // Of one sequence's rows, the last ones fill its ring; of several steps, each has its own.
  int32_t n_kept = n_steps_ == 1 ? std::min(n_rows(), steps_[0].queries.n_rows) : 0;
  for (size_t i = 0; n_steps_ > 1 && i < n_steps_; ++i)
    if (steps_[i].queries.n_rows > 0) n_kept = n_rows();
  if (layer.group != 0) n_kept = 0;
  for_each_form([&](int32_t first, int32_t n, const Step& step) {
    Operation& op = note(Operation::Kind::attend, n);
    op.in = {device(q), shape.q_stride};
    op.out = {device(out), shape.out_stride};
    op.first_row = first;
    op.first_kept = n_rows() - n_kept;
    op.n_kept = std::exchange(n_kept, 0);
    op.attention.layer = layer.layer, op.attention.first_page = layer.group * plan_.max_pages;
    op.attention.n_heads = shape.n_heads;
    op.attention.scale = shape.scale;
    op.attention.window = shape.window;
    op.attention.sinks = device(shape.sinks);
    op.attention.resident = !step.heads.empty() && layer.group == 0;
    set_format(&op.attention.kv, op.attention.resident ? step.heads_kv : step.pages(layer.group).kv);
  });
}

void CudaBackend::activate(Activation activation, Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out,
                           int64_t out_stride, int64_t n) {
  Operation& op = note(Operation::Kind::activate, n_rows());
  op.activation = activation;
  op.in = {device(gate), stride};
  op.in2 = {device(up), stride};
  op.out = {device(out), out_stride};
  op.dim = n;
}

void CudaBackend::soft_cap(Ptr<float> x, int32_t rows, int64_t n, float scale, float cap) {
  Operation& op = note(Operation::Kind::soft_cap, rows);
  op.out = {device(x), n};
  op.dim = n;
  op.factor = scale, op.eps = cap;
}

void CudaBackend::add(Ptr<float> x, Ptr<const float> y, int64_t n) {
  Operation& op = note(Operation::Kind::add, n_rows());
  op.out = {device(x), n};
  op.in = {device(y), n};
  op.dim = n;
}

}  // namespace orrery::cuda

// See operations.h. The functions before run() find operations that one kernel computes together.
#include "cuda/operations.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include "cuda/device/formats.h"
#include "cuda/staging.h"

namespace orrery::cuda {

static_assert(std::is_trivially_copyable_v<Operation> && std::is_trivially_copyable_v<StepContext>, "compared as bytes");

Operation::Operation(Kind k, int32_t rows) {
  std::memset(static_cast<void*>(this), 0, sizeof *this);
  kind = k;
  n_rows = rows;
}

StepContext::StepContext() { std::memset(static_cast<void*>(this), 0, sizeof *this); }

namespace {

// Whether cuBLAS computes the product.
bool uses_cublas(const StepContext& c, const Operation& op, const DeviceProduct& p) {
  const int32_t least = least_cublas_rows(c.tuning, p.weight.type);
  return c.cublas && c.phase == Phase::prefill && least > 0 && op.n_rows >= least;
}
bool takes_quantized(const StepContext& c, const Operation& op) {
  const DeviceProduct* list = op.products.list;
  return std::any_of(list, list + op.products.n,
                     [&](const DeviceProduct& p) { return !is_float(p.weight.type) && !uses_cublas(c, op, p); });
}
int64_t n_in(const Operation& op) { return op.products.list[0].weight.n_cols; }

// Whether `out`, `dim` values in each of the step's rows, is the input that the next product takes quantized. If so, the kernel that writes
// `out` also quantizes it. The floats are written, too.
bool rows_feed(const StepContext& c, Rows out, int64_t dim, int32_t n_rows, const Operation* next) {
  return next && next->kind == Operation::Kind::matmul && takes_quantized(c, *next) && dim == n_in(*next) && n_rows == next->n_rows &&
         out.data == next->in.data && out.stride == next->in.stride;
}

// Whether the norm is of the same head vectors that RoPE rotates next, in place.
bool norms_heads(const Operation& norm, const Operation& rope) {
  return norm.kind == Operation::Kind::rms_norm && rope.kind == Operation::Kind::rope && norm.in.data == rope.out.data &&
         norm.out.data == rope.out.data && norm.in.stride == rope.out.stride && norm.out.stride == rope.out.stride &&
         norm.n_vectors == rope.n_vectors && norm.dim == rope.dim && norm.n_rows == rope.n_rows;
}
// Counts the operations, from the first on, that one kernel computes: queries and keys get their norms, if any, and RoPE; then keys and
// values are appended. Returns 0 if the list begins with anything else. `rows` and `append` receive the kernel's arguments.
size_t heads_to_cache(Span<const Operation> operations, HeadRows* rows, const Operation** append) {
  *rows = {};
  size_t i = 0;
  const Operation* rotated[2] = {};
  for (int part = 0; part < 2; ++part) {
    if (i + 1 < operations.size() && norms_heads(operations[i], operations[i + 1])) {
      if (rows->q_norm && rows->eps != operations[i].eps) return 0;
      (part == 0 ? rows->q_norm : rows->k_norm) = operations[i].weight;
      rows->eps = operations[i++].eps;
    }
    if (i >= operations.size() || operations[i].kind != Operation::Kind::rope) return 0;
    rotated[part] = &operations[i++];
  }
  if (i >= operations.size() || operations[i].kind != Operation::Kind::append_kv) return 0;
  const Operation &q = *rotated[0], &k = *rotated[1], &last = operations[i++];
  const KvFormat& kv = last.attention.kv;
  if (kv.shared_values > 0 || last.in.data != k.out.data || last.in.stride != k.out.stride || k.n_vectors != kv.n_kv_heads ||
      k.dim != kv.head_dim || q.dim != k.dim || q.n_rows != last.n_rows || k.n_rows != last.n_rows || q.n_rot != k.n_rot ||
      q.flag != k.flag || kv.head_dim > 256)
    return 0;
  rows->q = q.out, rows->k = k.out, rows->v = last.in2;
  rows->n_heads = q.n_vectors, rows->n_rot = q.n_rot, rows->rope_at = q.rope_at, rows->k_rope_at = k.rope_at,
  rows->interleaved = q.flag != 0;
  *append = &last;
  return i;
}

// Whether the products are activate()'s gate and up: two matrices, or one matrix that holds both. If so, one kernel writes its output, and
// gate and up are written nowhere. Callers of activate() have no other use for its inputs.
bool gates(const Operation& op, const Operation* next, DeviceProduct* gate, DeviceProduct* up) {
  if (!next || next->kind != Operation::Kind::activate || next->n_rows != op.n_rows) return false;
  *gate = op.products.list[0];
  if (op.products.n == 2) {
    *up = op.products.list[1];
  } else if (op.products.n == 1 && gate->weight.n_rows == 2 * next->dim) {
    gate->weight.n_rows = next->dim;
    *up = *gate;
    up->out += next->dim;
    if (up->bias) up->bias += next->dim;
    up->weight.data = up->weight.data + static_cast<uint64_t>(next->dim) * device_row_bytes(up->weight.type, up->weight.n_cols);
  } else {
    return false;
  }
  return gate->weight.type == up->weight.type && gate->weight.n_rows == next->dim && up->weight.n_rows == next->dim && !gate->accumulate &&
         !up->accumulate && gate->out == next->in.data && up->out == next->in2.data && gate->out_stride == next->in.stride &&
         up->out_stride == next->in2.stride;
}

// Returns the number of operations that it ran: two where it ran the next one, activate(). `quantized`: the input is quantized already.
size_t run_matmul(Queue& queue, const StepContext& c, const Operation& op, const Operation* next, bool quantized) {
  const QuantizedRows rows = quantized_rows(c.quantized_at, op.n_rows, n_in(op));
  if (!quantized && takes_quantized(c, op)) quantize_rows(queue, op.in, n_in(op), op.n_rows, rows);
  DeviceProduct gate, up;
  const bool gated = gates(op, next, &gate, &up);
  if (c.phase == Phase::prefill) {
    if (gated && !uses_cublas(c, op, gate) && matmul_prefill_gated(queue, c.device, next->activation, gate, up, rows, next->out, op.n_rows))
      return 2;
    Products ours = {}, others = {};
    for (int32_t i = 0; i < op.products.n; ++i) {
      const DeviceProduct& p = op.products.list[i];
      Products& to = uses_cublas(c, op, p) ? others : ours;
      to.list[to.n++] = p;
    }
    if (ours.n > 0) matmul_prefill(queue, c.device, ours, op.in, rows, op.n_rows);
    if (others.n > 0) matmul_cublas(queue, *c.cublas, c.cublas_plan, c.cublas_scratch, others, op.in, op.n_rows);
    return 1;
  }
  if (gated) {
    matmul_gated(queue, next->activation, gate, up, op.in, rows, next->out, op.n_rows);
    return 2;
  }
  matmul_decode(queue, c.device, op.products, op.in, rows, op.n_rows);
  return 1;
}

void run_experts(Queue& queue, const StepContext& c, const Operation& op) {
  const int32_t n_inputs = op.router.of_rows ? op.n_rows : op.n_rows * op.router.n_used;
  const QuantizedRows rows = quantized_rows(c.quantized_at, n_inputs, n_in(op));
  const DeviceProduct* list = op.products.list;
  if (std::any_of(list, list + op.products.n, [](const DeviceProduct& p) { return !is_float(p.weight.type); }))
    quantize_rows(queue, op.in, n_in(op), n_inputs, rows);
  expert_products(queue, op.products, op.router, op.in, op.router.of_rows != 0, rows, op.n_rows);
}

void run_head_products(Queue& queue, const StepContext& c, const Operation& op) {
  const Weight& weight = op.products.list[0].weight;
  const int32_t n_inputs = op.n_rows * op.n_vectors;
  const QuantizedRows rows =
      quantized_rows(c.quantized_at, n_inputs, weight.n_cols);  // but for `scales`, which only prefill's products need
  if (!is_float(weight.type)) quantize_rows(queue, op.in, weight.n_cols, n_inputs, rows);
  multiply_heads(queue, weight, op.n_vectors, op.in, op.out, rows, op.n_rows);
}

// Returns whether it has quantized the next operation's input.
bool run_attend(Queue& queue, const StepContext& c, const Operation& op, const Operation* next) {
  const Attention& a = op.attention;
  if (op.n_kept > 0) keep_queries(queue, c.step, a.layer, op.in, int64_t{a.n_heads} * a.kv.head_dim, op.first_kept, op.n_kept);
  if (c.phase == Phase::prefill) {
    if (c.staging && a.first_page == 0)  // other groups' pages lie in the arena
      c.staging->attend(queue, c.device, c.step, *c.of, a, op.in, op.out);
    else attend_prefill(queue, c.device, c.step, a, op.in, op.out, op.n_rows, {});
    return false;
  }
  const int64_t width = int64_t{a.n_heads} * a.kv.value_dim();
  const bool quantized = a.kv.value_dim() % 32 == 0 && padded_columns(width) == width && rows_feed(c, op.out, width, op.n_rows, next);
  const QuantizedRows to = quantized_rows(c.quantized_at, op.n_rows, width);
  attend_decode(queue, c.device, c.step, a, op.in, op.out, quantized ? &to : nullptr, op.first_row, op.n_rows, c.max_context,
                c.attend_scratch);
  return quantized;
}

}  // namespace

void run(Queue& queue, const StepContext& c, Span<const Operation> operations) {
  size_t n_done = 1;
  bool quantized = false;  // the previous operation has quantized this one's input
  for (size_t i = 0; i < operations.size(); i += n_done) {
    const Operation& op = operations[i];
    const Operation* next = i + 1 < operations.size() ? &operations[i + 1] : nullptr;
    const bool input_quantized = quantized;
    n_done = 1;
    quantized = false;
    HeadRows heads;
    const Operation* append = nullptr;
    if (const size_t n = heads_to_cache(operations.last(operations.size() - i), &heads, &append)) {
      rotate_and_append_kv(queue, c.step, heads, append->attention, append->heads_type, append->flag != 0, append->first_row,
                           append->n_rows);
      n_done = n;
      continue;
    }
    switch (op.kind) {
      case Operation::Kind::embed: embed(queue, c.step, op.products.list[0].weight, op.factor, op.out.data, op.n_rows); break;
      case Operation::Kind::prepare_rope: prepare_rope(queue, c.step, op.n_rows, op.n_rot, op.rope_at, op.n_vectors, op.factor); break;
      case Operation::Kind::rms_norm:
        quantized = op.n_vectors == 1 && rows_feed(c, op.out, op.dim, op.n_rows, next);
        if (quantized)
          rms_norm_quantized(queue, op.in, op.weight, op.out, quantized_rows(c.quantized_at, op.n_rows, op.dim), op.n_rows, op.dim, op.eps);
        else rms_norm(queue, op.in, op.weight, op.out, op.n_rows, op.n_vectors, op.dim, op.eps);
        break;
      case Operation::Kind::matmul: n_done = run_matmul(queue, c, op, next, input_quantized); break;
      case Operation::Kind::rope:
        rope(queue, c.step, op.out, op.n_rows, op.n_vectors, static_cast<int32_t>(op.dim), op.n_rot, op.rope_at, op.flag != 0);
        break;
      case Operation::Kind::transform:
        if (op.flag & Operation::kAsSequences)
          transform_heads(queue, c.step, op.out, op.mean_at, op.n_rows, op.n_vectors, static_cast<int32_t>(op.dim));
        else transform_heads(queue, op.out, op.weight, op.n_rows, op.n_vectors, static_cast<int32_t>(op.dim), op.flag != 0);
        break;
      case Operation::Kind::append_kv:
        append_kv(queue, c.step, op.attention, op.heads_type, op.flag != 0, op.in, op.in2, op.first_row, op.n_rows);
        break;
      case Operation::Kind::attend: quantized = run_attend(queue, c, op, next); break;
      case Operation::Kind::activate:
        quantized = rows_feed(c, op.out, op.dim, op.n_rows, next);
        if (quantized)
          activate_quantized(queue, op.activation, op.in, op.in2, op.out, quantized_rows(c.quantized_at, op.n_rows, op.dim), op.n_rows,
                             op.dim);
        else activate(queue, op.activation, op.in, op.in2, op.out, op.n_rows, op.dim);
        break;
      case Operation::Kind::add: add(queue, op.out.data, op.in.data, op.dim * op.n_rows); break;
      case Operation::Kind::add_low_rank: add_low_rank(queue, op.products, op.in.stride, op.factor, op.n_rows); break;
      case Operation::Kind::soft_cap: soft_cap(queue, op.out.data, op.dim * op.n_rows, op.factor, op.eps); break;
      case Operation::Kind::delta_net: delta_net(queue, c.step, op.net, op.n_rows); break;
      case Operation::Kind::mamba2: mamba2(queue, c.step, op.mamba2, op.n_rows); break;
      case Operation::Kind::short_conv: short_conv(queue, c.step, op.short_conv, op.n_rows); break;
      case Operation::Kind::split_gates:
        split_gates(queue, op.in, op.out, op.net.out, op.n_rows, op.n_vectors, static_cast<int32_t>(op.dim));
        break;
      case Operation::Kind::apply_gates: apply_gates(queue, op.out.data, op.in.data, op.dim * op.n_rows); break;
      case Operation::Kind::route: route(queue, op.router, op.in.data, op.n_rows); break;
      case Operation::Kind::expert_products: run_experts(queue, c, op); break;
      case Operation::Kind::add_experts: add_experts(queue, op.router, op.out.data, op.in.data, op.dim, op.n_rows, op.flag != 0); break;
      case Operation::Kind::clamped_swiglu: clamped_swiglu(queue, op.in.data, op.in2.data, op.out.data, op.dim * op.n_rows); break;
      case Operation::Kind::squared_relu: squared_relu(queue, op.out.data, op.dim * op.n_rows); break;
      case Operation::Kind::gate_rows: gate_rows(queue, op.out.data, op.in.data, op.dim, op.n_rows); break;
      case Operation::Kind::head_products: run_head_products(queue, c, op); break;
      case Operation::Kind::shortlist:
        shortlist(queue, c.step, op.first_row, op.in.data, op.dim, reinterpret_cast<std::byte*>(op.out.data));
        break;
    }
  }
}

Graphs::~Graphs() { clear(); }

void Graphs::clear() {
  const OnDevice here(gpu_);
  for (Entry& entry : entries_)
    if (entry.exec && here.in_its_process()) gpu_.driver().destroy_exec(entry.exec);
  entries_.clear();
  n_all_nodes_ = 0;
}

// Gives up the graphs that were used longest ago, until n_nodes more fit.
void Graphs::make_room(size_t n_nodes) {
  while (!entries_.empty() && n_all_nodes_ + n_nodes > kMostNodes) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
    gpu_.driver().destroy_exec(oldest->exec);
    n_all_nodes_ -= oldest->n_nodes;
    entries_.erase(oldest);
  }
}

void Graphs::run(Queue& queue, const StepContext& context, Span<const Operation> operations) {
  if (queue.failed() || operations.empty()) return;
  if (n_without_ > 0) {
    --n_without_;
    return cuda::run(queue, context, operations);
  }
  const Driver& driver = queue.driver();
  key_.resize(sizeof context + operations.size() * sizeof(Operation));
  std::memcpy(key_.data(), &context, sizeof context);
  std::memcpy(key_.data() + sizeof context, operations.data(), operations.size() * sizeof(Operation));

  const size_t hash = std::hash<std::string_view>()({reinterpret_cast<const char*>(key_.data()), key_.size()});
  Entry* entry = nullptr;
  for (Entry& e : entries_)
    if (e.hash == hash && e.key == key_) entry = &e;
  if (entry == nullptr) {
    Graph graph = nullptr;
    if (!queue.check(driver.begin_capture(queue.stream(), kCaptureThreadLocal), "beginning a graph")) return;
    queue.set_overlaps(context.starts_early != 0);
    cuda::run(queue, context, operations);
    queue.set_overlaps(false);
    const bool ended = queue.check(driver.end_capture(queue.stream(), &graph), "ending a graph");
    if (!ended || queue.failed()) {  // a graph without the kernel that failed is not the list's
      if (graph) driver.destroy_graph(graph);
      return;
    }
    Entry made;
    made.key = key_, made.hash = hash;
    queue.check(driver.get_nodes(graph, nullptr, &made.n_nodes), "counting a graph's nodes");
    make_room(made.n_nodes);
    DriverError e = driver.instantiate(&made.exec, graph, 0);
    if (e == DriverError::out_of_memory && !entries_.empty()) {
      clear();
      e = driver.instantiate(&made.exec, graph, 0);
    }
    driver.destroy_graph(graph);
    if (e == DriverError::out_of_memory) return run_without(queue, context, operations);
    if (!queue.check(e, "making a graph")) return;
    n_all_nodes_ += made.n_nodes;
    entries_.push_back(std::move(made));
    entry = &entries_.back();
  }
  entry->used = ++clock_;
  n_nodes_ = entry->n_nodes;
  const DriverError e = driver.launch_graph(entry->exec, queue.stream());
  if (e != DriverError::out_of_memory) {
    queue.check(e, "launching a graph");
    return;
  }
  clear();  // the first launch of a graph takes memory, too
  run_without(queue, context, operations);
}

void Graphs::run_without(Queue& queue, const StepContext& context, Span<const Operation> operations) {
  n_without_ = kStepsWithout;
  n_nodes_ = 0;
  cuda::run(queue, context, operations);
}

}  // namespace orrery::cuda

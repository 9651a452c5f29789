#include "cuda/operations.h"

#include <algorithm>
#include <cstring>

#include "cuda/formats.h"

namespace orrery::cuda {

static_assert(std::is_trivially_copyable_v<Operation> && std::is_trivially_copyable_v<StepContext>, "compared as bytes");

Operation::Operation(Kind k, int32_t rows) {
  std::memset(static_cast<void*>(this), 0, sizeof *this);
  kind = k;
  n_rows = rows;
}

StepContext::StepContext() { std::memset(static_cast<void*>(this), 0, sizeof *this); }

namespace {

bool takes_quantized(const Operation& op) {
  const DeviceProduct* list = op.products.list;
  return std::any_of(list, list + op.products.n, [](const DeviceProduct& p) { return !is_float(p.weight.type); });
}
int64_t n_in(const Operation& op) { return op.products.list[0].weight.n_cols; }

// Whether the norm's rows are what the product takes, quantized: one kernel does both. The floats are written too.
bool norm_feeds(const Operation& norm, const Operation* next) {
  return next && next->kind == Operation::Kind::matmul && takes_quantized(*next) && norm.n_vectors == 1 && norm.dim == n_in(*next) &&
         norm.n_rows == next->n_rows && norm.out.data == next->in.data && norm.out.stride == next->in.stride;
}

// Whether the products, of two matrices or of one that holds both, are swiglu's gate and up: then one kernel writes what
// swiglu would, and gate and up are written nowhere; who calls swiglu() has no other use for its inputs.
bool gates(const Operation& op, const Operation* next, DeviceProduct* gate, DeviceProduct* up) {
  if (!next || next->kind != Operation::Kind::swiglu || next->n_rows != op.n_rows) return false;
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
  return gate->weight.type == up->weight.type && gate->weight.n_rows == next->dim && up->weight.n_rows == next->dim &&
         !gate->accumulate && !up->accumulate && gate->out == next->in.data && up->out == next->in2.data &&
         gate->out_stride == next->in.stride && up->out_stride == next->in2.stride;
}

// Returns how many operations it did: two, where the next one is a gate. `quantized`: the input lies there already.
size_t run_matmul(Queue& queue, const StepContext& c, const Operation& op, const Operation* next, bool quantized) {
  const QuantizedRows rows = quantized_rows(c.quantized_at, op.n_rows, n_in(op));
  if (!quantized && takes_quantized(op)) quantize_rows(queue, op.in, n_in(op), op.n_rows, rows);
  if (c.phase == Phase::prefill) {
    matmul_prefill(queue, c.device, op.products, op.in, rows, op.n_rows);
    return 1;
  }
  DeviceProduct gate, up;
  if (gates(op, next, &gate, &up)) {
    matmul_gated(queue, gate, up, op.in, rows, next->out, op.n_rows);
    return 2;
  }
  matmul_decode(queue, c.device, op.products, op.in, rows, op.n_rows);
  return 1;
}

void run_attend(Queue& queue, const StepContext& c, const Operation& op) {
  const Attention& a = op.attention;
  if (c.n_ring > 0) {
    const int64_t width = int64_t{a.n_heads} * a.kv.head_dim;
    keep_queries(queue, c.step, c.query_ring + a.layer * c.n_ring * width, c.n_ring, op.in, width, op.n_rows);
  }
  if (c.phase == Phase::decode)
    attend_decode(queue, c.device, c.step, a, op.in, op.out, op.n_rows, c.max_context, c.attend_scratch);
  else
    attend_prefill(queue, c.device, c.step, a, op.in, op.out, op.n_rows, c.attend_scratch);
}

}  // namespace

void run(Queue& queue, const StepContext& c, Span<const Operation> operations) {
  size_t n_done = 1;
  bool quantized = false;   // the input of the operation at hand, by the one before
  for (size_t i = 0; i < operations.size(); i += n_done) {
    const Operation& op = operations[i];
    const Operation* next = i + 1 < operations.size() ? &operations[i + 1] : nullptr;
    const bool input_quantized = quantized;
    n_done = 1;
    quantized = false;
    switch (op.kind) {
      case Operation::Kind::embed:
        embed(queue, c.step, op.products.list[0].weight, op.out.data, op.n_rows);
        break;
      case Operation::Kind::prepare_rope:
        prepare_rope(queue, c.step, op.n_rows, op.n_rot, op.eps);
        break;
      case Operation::Kind::rms_norm:
        quantized = norm_feeds(op, next);
        if (quantized)
          rms_norm_quantized(queue, op.in, op.weight, op.out, quantized_rows(c.quantized_at, op.n_rows, op.dim), op.n_rows, op.dim, op.eps);
        else
          rms_norm(queue, op.in, op.weight, op.out, op.n_rows, op.n_vectors, op.dim, op.eps);
        break;
      case Operation::Kind::matmul: n_done = run_matmul(queue, c, op, next, input_quantized); break;
      case Operation::Kind::rope:
        rope(queue, c.step, op.out, op.n_rows, op.n_vectors, static_cast<int32_t>(op.dim), op.n_rot, op.flag != 0);
        break;
      case Operation::Kind::append_kv:
        append_kv(queue, c.step, op.attention.kv, op.heads_type, op.flag != 0, op.attention.layer, op.in, op.in2, op.n_rows);
        break;
      case Operation::Kind::attend: run_attend(queue, c, op); break;
      case Operation::Kind::swiglu: swiglu(queue, op.in, op.in2, op.out, op.n_rows, op.dim); break;
      case Operation::Kind::add: add(queue, op.out.data, op.in.data, op.dim * op.n_rows); break;
    }
  }
}

Graphs::~Graphs() { clear(); }

void Graphs::clear() {
  for (Entry& entry : entries_)
    if (entry.exec) cudaGraphExecDestroy(entry.exec);
  entries_.clear();
}

void Graphs::run(Queue& queue, const StepContext& context, Span<const Operation> operations) {
  if (queue.failed() || operations.empty()) return;
  key_.resize(sizeof context + operations.size() * sizeof(Operation));
  std::memcpy(key_.data(), &context, sizeof context);
  std::memcpy(key_.data() + sizeof context, operations.data(), operations.size() * sizeof(Operation));

  Entry* entry = nullptr;
  for (Entry& e : entries_)
    if (e.key == key_) entry = &e;
  if (entry == nullptr) {
    cudaGraph_t graph = nullptr;
    if (!queue.check(cudaStreamBeginCapture(queue.stream(), cudaStreamCaptureModeThreadLocal), "beginning a graph")) return;
    cuda::run(queue, context, operations);
    if (!queue.check(cudaStreamEndCapture(queue.stream(), &graph), "ending a graph")) {
      if (graph) cudaGraphDestroy(graph);
      return;
    }
    Entry made;
    made.key = key_;
    queue.check(cudaGraphGetNodes(graph, nullptr, &made.n_nodes), "counting a graph's nodes");
    const bool ok = queue.check(cudaGraphInstantiate(&made.exec, graph, 0), "making a graph");
    cudaGraphDestroy(graph);
    if (!ok) return;
    if (entries_.size() == kMost) {
      const auto oldest =
          std::min_element(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
      cudaGraphExecDestroy(oldest->exec);
      entries_.erase(oldest);
    }
    entries_.push_back(std::move(made));
    entry = &entries_.back();
  }
  entry->used = ++clock_;
  n_nodes_ = entry->n_nodes;
  queue.check(cudaGraphLaunch(entry->exec, queue.stream()), "launching a graph");
}

}  // namespace orrery::cuda

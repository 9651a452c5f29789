#include "cuda/operations.h"

#include <algorithm>
#include <cstring>

namespace orrery::cuda {

static_assert(std::is_trivially_copyable_v<Operation> && std::is_trivially_copyable_v<StepContext>, "compared as bytes");

Operation::Operation(Kind k, int32_t rows) {
  std::memset(static_cast<void*>(this), 0, sizeof *this);
  kind = k;
  n_rows = rows;
}

namespace {

bool quantized(TensorType type) { return type != TensorType::f32 && type != TensorType::f16 && type != TensorType::bf16; }

void run_matmul(Queue& queue, const StepContext& c, const Operation& op) {
  const int64_t n_in = op.products.list[0].weight.n_cols;
  const QuantizedRows rows = quantized_rows(c.quantized_at, op.n_rows, n_in);
  const DeviceProduct* list = op.products.list;
  if (std::any_of(list, list + op.products.n, [](const DeviceProduct& p) { return quantized(p.weight.type); }))
    quantize_rows(queue, op.in, n_in, op.n_rows, rows);
  (c.phase == Phase::decode ? matmul_decode : matmul_prefill)(queue, c.device, op.products, op.in, rows, op.n_rows);
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
  for (const Operation& op : operations) {
    switch (op.kind) {
      case Operation::Kind::embed:
        embed(queue, c.step, op.products.list[0].weight, op.out.data, op.n_rows);
        break;
      case Operation::Kind::prepare_rope:
        prepare_rope(queue, c.step, op.n_rows, op.n_rot, op.eps);
        break;
      case Operation::Kind::rms_norm:
        rms_norm(queue, op.in, op.weight, op.out, op.n_rows, op.n_vectors, op.dim, op.eps);
        break;
      case Operation::Kind::matmul: run_matmul(queue, c, op); break;
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

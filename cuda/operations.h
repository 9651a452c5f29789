// A step as a list: the operations of runtime/backend/step.h, recorded as they are called and sent to the device together.
//
// A decode step's list becomes a CUDA graph when it is seen first. The same list launches that graph later, unpatched: everything that
// changes between two steps lies in device memory (device/step.h). run() fuses operations: two become one kernel where one's output is
// only the next one's input.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/kernels.h"
#include "cuda/device/queue.h"
#include "cuda/device/tuning.h"

namespace orrery::cuda {

class Staging;

struct Operation {
  enum class Kind : uint32_t {
    embed,
    prepare_rope,
    rms_norm,
    matmul,
    rope,
    append_kv,
    attend,
    activate,
    add,
    shortlist,
    transform,
    delta_net,
    mamba2,
    short_conv,
    split_gates,
    apply_gates,
    route,
    expert_products,
    add_experts,
    clamped_swiglu,
    squared_relu,
    gate_rows,
    head_products,
    soft_cap,
    add_low_rank
  };
  Kind kind;
  int32_t n_rows;
  ConstRows in, in2;  // append_kv: keys, values; activate: gate, up; add_low_rank: the stride alone
  Rows out;
  const float* weight;  // rms_norm; transform: the shift, or null
  Products products;    // embed: the table alone
  Attention attention;
  int64_t dim;                 // width of a vector; activate, add, shortlist, soft_cap: values in a row
  int64_t mean_at;             // transform, of each row as its sequence says: where the layer's means begin in key_means; -1: no means
  int32_t first_row;           // append_kv, attend: the first of the rows, where pointers are row 0's; shortlist: its number in the step
  int32_t n_kept, first_kept;  // attend: rows whose queries go to their sequences' rings
  int32_t n_vectors;           // rms_norm, rope, transform, split_gates, head_products: vectors in a row; prepare_rope: the table's number
  int32_t n_rot, rope_at;      // prepare_rope, rope: of the table; where it begins in a row of StepView::rope
  float eps;                   // rms_norm; soft_cap: the cap
  float factor;                // embed, soft_cap, add_low_rank: the scale; prepare_rope: the temperature
  Activation activation;
  uint32_t flag;  // rope: interleaved pairs; append_kv: also to the slots of StepView::heads; add_experts: accumulates; transform: below
  KvType heads_type;  // append_kv: the type of these slots
  DeltaNet net;       // delta_net; split_gates: `out` has the gates
  Mamba2 mamba2;
  ShortConv short_conv;
  DeviceRouter router;  // route, expert_products, add_experts

  static constexpr uint32_t kRotates = 1, kAsSequences = 2;  // transform; kAsSequences: each row as its sequence says

  Operation() = default;
  explicit Operation(Kind k, int32_t rows);  // all other bytes are zero, padding too: lists are compared as bytes
};

// What all operations of a step share.
struct StepContext {
  DeviceShape device;
  StepView step;
  Phase phase;
  int32_t max_context;
  std::byte* quantized_at;  // the quantized input of a product: room for the widest
  std::byte* attend_scratch;
  Cublas* cublas;  // null: our own kernels compute all products
  Tuning tuning;
  CublasPlan cublas_plan;
  std::byte* cublas_scratch;
  Staging* staging;      // of a prompt whose keys are staged; else null
  const Step* of;        // the step of such a prompt; else null
  int32_t starts_early;  // 1: kernels of a graph may start early (launch.h)

  StepContext();  // all bytes are zero, padding too: contexts are compared as bytes
};

// Sends operations to the queue, fused where possible.
void run(Queue& queue, const StepContext& context, Span<const Operation> operations);

// The graphs of the lists that ran last, up to kMostNodes kernels in all. A policy that asks within steps cuts a step into a list for each
// layer: a token then runs a graph for each layer, and its lists come again with the next token. Each number of rows has lists of its own.
class Graphs {
 public:
  explicit Graphs(const Gpu* gpu) : gpu_(*gpu) {}
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;
  ~Graphs();

  // The most device memory that the driver takes for all graphs, beside the arena. An estimate: some 0.6 KB a kernel, and the graph that is
  // being made.
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;

  // As run(), by a graph: the graph of an earlier call with the same list and context, or a new one. Where the driver has no memory for a
  // graph, all graphs are given up; if that does not help, lists run without graphs for a while, with the same results.
  void run(Queue& queue, const StepContext& context, Span<const Operation> operations);
  void clear();
  // The number of kernels in the graph that ran last.
  size_t n_nodes() const { return n_nodes_; }

 private:
  struct Entry {
    std::vector<std::byte> key;
    size_t hash = 0;
    GraphExec exec = nullptr;
    size_t n_nodes = 0;
    uint64_t used = 0;
  };
  static constexpr size_t kMostNodes = 12288;
  static constexpr int kStepsWithout = 1024;  // lists, before another graph is tried: of 10 to 1,000 tokens
  void run_without(Queue& queue, const StepContext& context, Span<const Operation> operations);
  void make_room(size_t n_nodes);
  const Gpu& gpu_;
  std::vector<Entry> entries_;
  std::vector<std::byte> key_;  // of the list that runs now
  uint64_t clock_ = 0;
  size_t n_nodes_ = 0;      // of the graph that ran last
  size_t n_all_nodes_ = 0;  // of all entries
  int n_without_ = 0;       // lists that still run without a graph
};

}  // namespace orrery::cuda

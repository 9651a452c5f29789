// A step as a list: the operations of backend.h, recorded as they are called and sent to the device together. A list that
// was sent before is a graph by now and is launched as one: what changes between two steps lies in device memory (step.h).
// Where one operation's output is only the next one's input, the two are one kernel (run()).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "cuda/kernels/kernels.h"
#include "cuda/device/queue.h"
#include "cuda/device/tuning.h"

namespace orrery::cuda {

class Staging;

struct Operation {
  enum class Kind : uint32_t { embed, prepare_rope, rms_norm, matmul, rope, append_kv, attend, swiglu, add, shortlist };
  Kind kind;
  int32_t n_rows;
  ConstRows in, in2;      // of append_kv: keys, values; of swiglu: gate, up
  Rows out;
  const float* weight;    // of rms_norm
  Products products;      // of embed: the table alone
  Attention attention;
  int64_t dim;            // width of a vector, or what swiglu, add and shortlist go over
  int32_t n_vectors;      // of rms_norm and rope: vectors in a row
  int32_t n_rot;
  float eps;              // or rope's magnitude
  uint32_t flag;          // rope: pairs are interleaved; append_kv: to StepView::heads too
  KvType heads_type;      // of append_kv, there

  Operation() = default;
  explicit Operation(Kind k, int32_t rows);   // all else zero, padding too: lists are compared as bytes
};

// What the operations of a step share.
struct StepContext {
  DeviceShape device;
  StepView step;
  Phase phase;
  int32_t max_context;
  float* query_ring;   // null: not kept
  int32_t n_ring;
  std::byte* quantized_at;   // room for quantized rows, of each product's width
  std::byte* attend_scratch;
  Cublas* cublas;            // null: not here
  Tuning tuning;
  CublasPlan cublas_plan;
  std::byte* cublas_scratch;
  Staging* staging;          // of a prompt whose keys come that way; else null
  const Step* of;            // likewise: the step

  StepContext();   // zero, padding too: it is compared as bytes
};

// Sends operations to the queue, fused where they can be.
void run(Queue& queue, const StepContext& context, Span<const Operation> operations);

// Lists that became graphs: the latest few.
class Graphs {
 public:
  Graphs() = default;
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;
  ~Graphs();

  // run(), as a graph: of an earlier call with the same list and context, or a new one.
  void run(Queue& queue, const StepContext& context, Span<const Operation> operations);
  void clear();
  // Kernels of the graph that ran last.
  size_t n_nodes() const { return n_nodes_; }

 private:
  struct Entry {
    std::vector<std::byte> key;
    cudaGraphExec_t exec = nullptr;
    size_t n_nodes = 0;
    uint64_t used = 0;
  };
  static constexpr size_t kMost = 4;
  std::vector<Entry> entries_;
  std::vector<std::byte> key_;   // of the list at hand
  uint64_t clock_ = 0;
  size_t n_nodes_ = 0;
};

}  // namespace orrery::cuda

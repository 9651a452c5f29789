// The CPU backend. Device memory is host memory. Weights are used where the file is mapped, or lie in bands in the arena.
// Operations run at once.
//
// Every operation is cut into items, either at places that do not depend on the number of threads, or where a cut changes no sum. Planners
// (planners/) say which items products and attention have. The pool gives the items to threads, and a kernel (kernels/kernels.h) computes
// one item. Nothing here allocates: memory for steps is scratch memory, laid out by scratch_plan.h.
#include "runtime/cpu/cpu_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "runtime/base/checked.h"
#include "runtime/os/thread_pool.h"
#include "runtime/cpu/formats/bands.h"
#include "runtime/cpu/formats/blocks.h"
#include "runtime/cpu/digests.h"
#include "runtime/cpu/experts.h"
#include "runtime/cpu/head_products.h"
#include "runtime/cpu/items.h"
#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/key_codes.h"
#include "runtime/cpu/low_rank.h"
#include "runtime/cpu/kernels/moves.h"
#include "runtime/cpu/paths/paths.h"
#include "runtime/cpu/encoder/encoder.h"
#include "runtime/cpu/planners/attend.h"
#include "runtime/cpu/planners/matmul.h"
#include "runtime/cpu/planners/rows.h"
#include "runtime/cpu/recurrent.h"
#include "runtime/cpu/scratch_plan.h"
#include "runtime/cpu/step_cost.h"
#include "runtime/cpu/top_keys.h"
#include "runtime/cpu/trace.h"
#include "runtime/os/os.h"

namespace orrery::cpu {

namespace {

static_assert(kShortPrompt <= kFewRows);
// Lists of tokens of at least this many bytes have left the second-level cache before they are read.
constexpr uint64_t kPastCaches = 1 << 20;

bool quantized_type(TensorType type) { return block_format(type) != nullptr; }

class CpuBackend final : public Backend,
                         KvMoves,
                         KeyOperations,
                         KvSummaries,
                         LowRankOperations,
                         KeyCodeOperations,
                         RecurrentOperations,
                         ExpertOperations,
                         EncoderOperations,
                         HeadProducts,
                         AdapterOperations {
 public:
  // `n_processors`: there are for this process. set_threads() stays within what scratch memory is planned for.
  CpuBackend(const Kernels& kernels, std::unique_ptr<ThreadPool> pool, int32_t n_processors, bool traces)
      : kernels_(kernels), pool_(std::move(pool)), n_processors_(n_processors), max_threads_(std::max(pool_->n_threads(), n_processors)),
        n_threads_(pool_->n_threads()), trace_(traces ? std::make_unique<StepTrace>(max_threads_) : nullptr) {}

  BackendInfo info() const override {
    BackendInfo info;
    info.name = "cpu", info.instruction_set = kernels_.name, info.n_threads = n_threads_.load(std::memory_order_relaxed);
    info.computes_on_host = info.reads_host_memory = info.exports_weights = info.makes_moments = info.has_key_codes = info.codes_values =
        true;
    info.decodes_rows = info.decodes_together = info.attends_pages = info.attends_positions = info.keeps_bits_in_chunks = true;
    return info;
  }
  StepCost step_cost() const override { return cpu::step_cost(kernels_.name, n_threads_.load(std::memory_order_relaxed)); }
  Status set_threads(int32_t n_threads, Priority priority) override;
  std::vector<std::string> take_trace() override { return trace_ ? trace_->take(pool_->n_threads()) : std::vector<std::string>(); }

  Status reserve_arena(uint64_t bytes) override {
    ORRERY_ASSIGN(arena_, os::Region::allocate(bytes));
    return ok_status();
  }
  Ptr<std::byte> arena() const override { return {reinterpret_cast<uintptr_t>(arena_.data())}; }
  void upload(Ptr<std::byte> to, const void* from, uint64_t bytes) override {
    if (bytes) std::memcpy(host(to), from, bytes);
  }
  void download(void* to, Ptr<const std::byte> from, uint64_t bytes) override {
    if (bytes) std::memcpy(to, host(from), bytes);
  }
  void copy(Ptr<std::byte> to, Ptr<const std::byte> from, uint64_t bytes) override {
    if (bytes) std::memmove(host(to), host(from), bytes);
  }
  void move_kv(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) override;
  Status synchronize() override { return ok_status(); }
  void for_each(int64_t n, void (*call)(const void* context, int64_t i), const void* context) override {
    pool_->begin_burst();
    pool_->run(n, [&](int64_t i, int32_t) { call(context, i); });
    pool_->end_burst();
  }
  Status copy_in(Ptr<std::byte> to, Span<const HostPiece> pieces) override {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i + kMovesAhead < pieces.size()) ask_for_bytes<0>(pieces[i + kMovesAhead].data, pieces[i + kMovesAhead].bytes);
      if (pieces[i].bytes) std::memcpy(host(to), pieces[i].data, pieces[i].bytes);
      to = to + pieces[i].bytes;
    }
    return ok_status();
  }
  void commit(Ptr<std::byte> at, uint64_t bytes) override;
  void discard(Ptr<std::byte> at, uint64_t bytes) override { arena_.discard(at.address - arena().address, bytes); }

  uint64_t weight_bytes(TensorType type, int64_t n_rows, int64_t n_cols) const override {
    return n_rows > 0 && n_rows % kBandRows == 0 && kernels_.in_bands(type)
               ? static_cast<uint64_t>(n_rows / kBandRows) * band_bytes(type, static_cast<uint64_t>(n_cols))
               : 0;
  }
  Status place_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, Ptr<std::byte> at, Weight* weight) override;
  Status repack_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, std::byte* to) override {
    Weight weight;
    return place_weight(type, n_rows, n_cols, source, {reinterpret_cast<uintptr_t>(to)}, &weight);  // the arena is host memory
  }

  uint64_t scratch_bytes(const StepLimits& limits) const override { return ScratchPlan(limits, kernels_, max_threads_).total; }
  KvMoves* kv_moves() override { return this; }
  KeyOperations* keys() override { return this; }
  KvSummaries* summaries() override { return this; }
  LowRankOperations* low_rank() override { return this; }
  KeyCodeOperations* key_codes() override { return this; }
  RecurrentOperations* recurrent() override { return this; }
  Status check_recurrent(const DeltaNetShape*) const override { return ok_status(); }
  Status check_mamba2(const Mamba2Shape&) const override { return ok_status(); }
  ExpertOperations* experts() override { return this; }
  EncoderOperations* encoder() override { return this; }
  Status check_encoder() const override { return ok_status(); }
  HeadProducts* head_products() override { return this; }
  Status check_adapters() const override { return ok_status(); }
  AdapterOperations* adapters() override { return this; }
  void add_low_rank(Span<const AdapterProduct> products, int64_t low_stride, float scale, int32_t rows) override;
  Status check_experts(const RouterShape&) const override { return ok_status(); }

  Status set_scratch(Ptr<std::byte> scratch, const StepLimits& limits) override {
    scratch_ = host(scratch);
    plan_ = ScratchPlan(limits, kernels_, max_threads_);
    return ok_status();
  }

  void begin_steps(Span<const Step> steps) override;
  void end_step() override {
    pool_->end_burst();
    if (trace_) trace_->end_step();
  }

  void embed(const Weight& table, float scale, Ptr<float> out) override;
  void read_rows(RowReader read, const void* context, int64_t n_cols, Ptr<float> out) override;
  void rms_norm(Ptr<const float> x, int64_t x_stride, Ptr<const float> weight, Ptr<float> out, int64_t out_stride, int32_t n_vectors,
                int64_t dim, float eps) override;
  void matmul(Span<const Product> products, Ptr<const float> x, int64_t x_stride, int32_t n_rows) override;
  void prepare_ropes(Span<const RopeSpec> specs) override;
  using StepOperations::rope;
  void rope(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, int32_t table) override;
  void transform_rows(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, Span<const HeadTransform> transforms) override;
  void append_kv(KvLayer layer, Ptr<const float> k, Ptr<const float> v, int64_t stride) override;
  void attend(KvLayer layer, Ptr<const float> q, Ptr<float> out, const AttendShape& shape) override;
  void digest(Span<const DigestJob> jobs, const DigestShape& shape) override;
  void add_to_compensation_tokens(Span<const CompensationJob> jobs, const KvFormat& kv) override;
  void top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape) override;
  void key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape) override;
  void key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape) override;
  void key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums) override;
  void low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end) override;
  void low_rank_queries(const LowRankKeys& keys, uint64_t next_basis, int32_t n_heads, Ptr<const float> q, Ptr<float> out) override {
    cpu::low_rank_queries(keys, next_basis, n_heads, host(q), host(out), low_rank_work());
  }
  void rebuild_keys(const LowRankKeys& keys, KvType slot_type, Span<const RebuiltRun> runs) override {
    cpu::rebuild_keys(keys, slot_type, runs, low_rank_work());
  }
  void mean_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, int32_t step) override {
    cpu::mean_keys(jobs, shape, first, end, step, key_codes_work());
  }
  void mean_values(Span<const MeanValueJob> jobs, const KvFormat& kv) override { cpu::mean_values(jobs, kv, key_codes_work()); }
  void encode_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end) override {
    cpu::encode_keys(jobs, shape, first, end, key_codes_work());
  }
  void activate(Activation activation, Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride,
                int64_t n) override;
  void add(Ptr<float> x, Ptr<const float> y, int64_t n) override;
  void soft_cap(Ptr<float> x, int32_t rows, int64_t n, float scale, float cap) override;
  void layer_norm(Ptr<const float> x, Ptr<const float> weight, Ptr<const float> bias, Ptr<float> out, int64_t n, float eps) override;
  void gelu_erf(Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride, int64_t n) override;
  void set_states(Span<const SequenceState> states) override { std::copy(states.begin(), states.end(), states_.begin()); }
  void delta_net(const DeltaNetShape& shape, const DeltaNetWeights& weights, const DeltaNetRows& rows, const StatePlace& at) override {
    const StepTrace::Scope scope(trace_.get(), Operation::delta_net, 2 * n_steps_ * shape.state_floats() * sizeof(float));
    cpu::delta_net(recurrent_work(), shape, weights, rows, {states_.data(), n_steps_}, at);
  }
  void mamba2(const Mamba2Shape& shape, const Mamba2Weights& weights, const Mamba2Rows& rows, const StatePlace& at) override {
    const StepTrace::Scope scope(trace_.get(), Operation::mamba2, 2 * n_steps_ * shape.state_floats() * sizeof(float));
    cpu::mamba2(recurrent_work(), shape, weights, rows, {states_.data(), n_steps_}, at);
  }
  void short_conv(const ShortConvShape& shape, Ptr<const float> conv, const ShortConvRows& rows, const StatePlace& at) override {
    const StepTrace::Scope scope(trace_.get(), Operation::short_conv,
                                 static_cast<uint64_t>(6 * n_rows() * shape.n_channels) * sizeof(float));
    cpu::short_conv(recurrent_work(), shape, host(conv), rows, {states_.data(), n_steps_}, at);
  }
  void split_gates(Ptr<const float> x, int32_t n_heads, int32_t head_dim, Ptr<float> q, int64_t q_stride, Ptr<float> gates) override {
    const StepTrace::Scope scope(trace_.get(), Operation::gates, static_cast<uint64_t>(4 * n_rows() * n_heads * head_dim) * sizeof(float));
    cpu::split_gates(recurrent_work(), host(x), n_heads, head_dim, host(q), q_stride, host(gates));
  }
  void apply_gates(Ptr<float> x, Ptr<const float> gates, int64_t n) override {
    const StepTrace::Scope scope(trace_.get(), Operation::gates, static_cast<uint64_t>(3 * n_rows() * n) * sizeof(float));
    cpu::apply_gates(recurrent_work(), host(x), host(gates), n);
  }

  void route(Ptr<const float> logits, Ptr<const float> bias, Ptr<const float> scales, const RouterShape& shape,
             const RoutedRows& routed) override {
    const StepTrace::Scope scope(trace_.get(), Operation::route, static_cast<uint64_t>(n_rows() * shape.n_experts) * sizeof(float));
    cpu::route(experts_work(), host(logits), host(bias), host(scales), shape, routed);
  }
  void multiply_experts(Span<const ExpertProduct> products, const RouterShape& shape, const RoutedRows& routed, Ptr<const float> x,
                        bool of_rows) override {
    cpu::multiply_experts(experts_work(), products, shape, routed, host(x), of_rows);
  }
  void add_experts(Ptr<float> x, Ptr<const float> y, int64_t n, const RouterShape& shape, const RoutedRows& routed,
                   bool accumulate) override {
    cpu::add_experts(experts_work(), host(x), host(y), n, shape, routed, accumulate);
  }
  void clamped_swiglu(Ptr<const float> gate, Ptr<const float> up, Ptr<float> out, int64_t n) override {
    cpu::clamped_swiglu(experts_work(), host(gate), host(up), host(out), n);
  }
  void squared_relu(Ptr<float> x, int64_t n) override { cpu::squared_relu(experts_work(), host(x), n); }
  void gate_rows(Ptr<float> x, Ptr<const float> gates, int64_t n) override { cpu::gate_rows(experts_work(), host(x), host(gates), n); }
  void multiply_heads(const Weight& weight, int32_t n_heads, Ptr<const float> x, int64_t x_dim, Ptr<float> out, int64_t out_dim) override {
    cpu::multiply_heads(experts_work(), weight, n_heads, host(x), x_dim, host(out), out_dim);
  }

 private:
  cpu::ExpertsWork experts_work() {
    return {kernels_,
            pool_.get(),
            trace_.get(),
            n_rows(),
            steps_[0].phase == Phase::decode,
            scratch_ + plan_.quantized,
            reinterpret_cast<float*>(scratch_ + plan_.expert_inputs),
            reinterpret_cast<ExpertGroup*>(scratch_ + plan_.expert_groups),
            plan_.expert_rows,
            scratch_ + plan_.threads,
            plan_.thread_bytes};
  }
  cpu::RecurrentWork recurrent_work() {
    return {kernels_, pool_.get(), trace_.get(), n_rows(), scratch_ + plan_.threads, plan_.thread_bytes};
  }
  cpu::KeysWork keys_work() {
    return {kernels_, pool_.get(), plan_.top_keys_scratch, scratch_ + plan_.top_keys, scratch_ + plan_.threads, plan_.thread_bytes};
  }
  cpu::KeyCodesWork key_codes_work() { return {kernels_, pool_.get(), scratch_ + plan_.threads, plan_.thread_bytes}; }
  cpu::LowRankWork low_rank_work() { return {kernels_, pool_.get(), scratch_ + plan_.threads, plan_.thread_bytes}; }
  int64_t n_rows() const { return n_rows_; }
  StepRows step_rows() const { return {{steps_.data(), n_steps_}, n_rows_}; }
  size_t step_number(int64_t row) const { return step_rows().step_number(row); }
  const Step& step_of(int64_t row) const { return step_rows().step(row); }
  const Row& row_at(int64_t i) const { return step_rows().row(i); }
  std::byte* thread_scratch(int32_t thread) const { return scratch_ + plan_.threads + static_cast<uint64_t>(thread) * plan_.thread_bytes; }
  float* rope_row(int64_t row) const { return reinterpret_cast<float*>(scratch_ + plan_.rope) + row * plan_.rope_floats; }
  KvHead kv_head(int64_t row, KvLayer layer, int32_t head) const;  // the pages of the row's sequence
  const HeadView* head_view(int64_t row, KvLayer layer, int32_t head) const { return step_rows().head_view(row, layer, head); }

  // Bytes from row to row; in bands, an eighth of a band's.
  uint64_t placed_row_bytes(const Weight& w) const {
    const uint64_t n = static_cast<uint64_t>(w.n_cols);
    return w.repacked ? band_bytes(w.type, n) / kBandRows : row_bytes(w.type, n);
  }

  // fn(item, thread) for each item, on all threads.
  template <class F>
  void run(int64_t n_items, const F& fn) {
    if (!trace_) return pool_->run(n_items, fn);
    pool_->run(n_items, [&](int64_t item, int32_t thread) {
      const StepTrace::Busy busy(trace_.get(), thread);
      fn(item, thread);
    });
  }
  template <class F>
  void in_burst(const F& fn) {
    pool_->begin_burst();
    fn();
    pool_->end_burst();
  }
  // Calls fn(first, last) for ranges that cover [0, n): on all threads if n * work_per_unit is large enough.
  template <class F>
  void for_ranges(int64_t n, int64_t work_per_unit, const F& fn);

  void keep_queries(KvLayer layer, const float* q, const AttendShape& shape);
  KvHead kv_of(const DecodeItem& item, KvLayer layer) const;
  void attend_decode(KvLayer layer, const float* q, float* out, const AttendShape& shape);
  void attend_prefill(KvLayer layer, const float* q, float* out, const AttendShape& shape);

  const Kernels& kernels_;
  std::unique_ptr<ThreadPool> pool_;
  std::array<SequenceState, static_cast<size_t>(kMostTogether)> states_;  // of the steps
  const int32_t n_processors_, max_threads_;
  std::atomic<int32_t> n_threads_;  // the pool's, for any thread that asks
  os::Region arena_;
  std::byte* scratch_ = nullptr;
  ScratchPlan plan_;
  std::array<Step, static_cast<size_t>(kMostTogether)> steps_;
  size_t n_steps_ = 0;
  int64_t n_rows_ = 0;                      // of all steps
  Span<RowRun> runs_;                       // of their rows, in the scratch memory
  const std::unique_ptr<StepTrace> trace_;  // null: nothing is measured
  struct RotaryTable {
    int32_t at, n_rot;  // from a row's first float
    bool interleaved;
  };
  std::array<RotaryTable, static_cast<size_t>(kMostRopes)> tables_ = {};  // from prepare_ropes()
  size_t n_tables_ = 0;
};

template <class F>
void CpuBackend::for_ranges(int64_t n, int64_t work_per_unit, const F& fn) {
  const int64_t units = std::max<int64_t>(1, div_up<int64_t>(kSmallWork / 2, std::max<int64_t>(work_per_unit, 1)));
  if (n * work_per_unit < kSmallWork || units >= n) {
    const StepTrace::Busy busy(trace_.get(), 0);
    if (n > 0) fn(int64_t{0}, n);
    return;
  }
  run(div_up(n, units), [&](int64_t item, int32_t) { fn(item * units, std::min(n, (item + 1) * units)); });
}

Status CpuBackend::place_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, Ptr<std::byte> at,
                                Weight* weight) {
  const TypeTraits* traits = type_traits(type);
  if (!traits)
    return error(Code::unsupported_quantization, "tensor type %u is not one that the CPU backend reads", static_cast<unsigned>(type));
  if (n_rows <= 0 || n_cols <= 0 || n_cols % traits->block_elements != 0)
    return error(Code::bad_model, "a %s matrix of %lld x %lld: columns must be a positive multiple of %u", traits->name,
                 static_cast<long long>(n_rows), static_cast<long long>(n_cols), traits->block_elements);
  *weight = {type, n_rows, n_cols, {reinterpret_cast<uintptr_t>(source)}};
  if (!at || weight_bytes(type, n_rows, n_cols) == 0) return ok_status();
  weight->data = at, weight->repacked = true;
  const uint64_t from_bytes = row_bytes(type, static_cast<uint64_t>(kBandRows * n_cols)),
                 to_bytes = band_bytes(type, static_cast<uint64_t>(n_cols));
  for_ranges(n_rows / kBandRows, kBandRows * n_cols, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      make_band(type, source + static_cast<uint64_t>(i) * from_bytes, n_cols, host(at) + static_cast<uint64_t>(i) * to_bytes);
  });
  return ok_status();
}

// Writes a byte of every page, on all threads, because the system takes its time over fresh pages.
void CpuBackend::commit(Ptr<std::byte> at, uint64_t bytes) {
  constexpr int64_t kPage = 4096, kUnit = int64_t{2} << 20;  // kPage: the smallest page of any system
  const int64_t n = static_cast<int64_t>(bytes);
  for_ranges(div_up(n, kUnit), kUnit, [&](int64_t first, int64_t last) {
    for (int64_t i = first * kUnit; i < std::min(n, last * kUnit); i += kPage) host(at)[i] = std::byte{0};
  });
}

void CpuBackend::begin_steps(Span<const Step> steps) {
  n_steps_ = steps.size();
  std::copy(steps.begin(), steps.end(), steps_.begin());
  n_rows_ = n_steps_ > 1 ? static_cast<int64_t>(n_steps_) : static_cast<int64_t>(steps_[0].rows.size());
  RowRun* runs = reinterpret_cast<RowRun*>(scratch_ + plan_.runs);
  size_t n_runs = 0;
  for (int64_t i = 0; i < n_rows_; ++i) {
    const bool continues =
        n_steps_ == 1 && i > 0 && row_at(i).sequence == row_at(i - 1).sequence && row_at(i).position == row_at(i - 1).position + 1;
    if (!continues) runs[n_runs++] = {static_cast<int32_t>(i), 0};
    ++runs[n_runs - 1].n_rows;
  }
  runs_ = {runs, n_runs};
  if (trace_) trace_->begin_step(steps_[0].phase == Phase::decode);
  pool_->begin_burst();
}

void CpuBackend::embed(const Weight& table, float scale, Ptr<float> out) {
  const StepTrace::Scope scope(trace_.get(), Operation::embed, static_cast<uint64_t>(n_rows()) * placed_row_bytes(table));
  const uint64_t row_size = placed_row_bytes(table);
  for_ranges(n_rows(), table.n_cols, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const int32_t token = row_at(r).token, in_band = table.repacked ? token % kBandRows : 0;
      const std::byte* at = host(table.data) + static_cast<uint64_t>(token - in_band) * row_size;
      float* to = host(out) + r * table.n_cols;
      if (table.repacked) dequantize_band_row(table.type, at, in_band, table.n_cols, to);
      else dequantize(table.type, at, table.n_cols, to);
      for (int64_t i = 0; scale != 1.0f && i < table.n_cols; ++i) to[i] *= scale;
    }
  });
}

void CpuBackend::read_rows(RowReader read, const void* context, int64_t n_cols, Ptr<float> out) {
  const StepTrace::Scope scope(trace_.get(), Operation::embed, static_cast<uint64_t>(n_rows() * n_cols) * sizeof(float));
  for_ranges(n_rows(), 4 * n_cols, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) read(context, row_at(r).token, host(out) + r * n_cols);
  });
}

void CpuBackend::rms_norm(Ptr<const float> x, int64_t x_stride, Ptr<const float> weight, Ptr<float> out, int64_t out_stride,
                          int32_t n_vectors, int64_t dim, float eps) {
  const StepTrace::Scope scope(trace_.get(), Operation::norm, static_cast<uint64_t>(3 * n_rows() * n_vectors * dim) * sizeof(float));
  for_ranges(n_rows() * n_vectors, dim, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / n_vectors, vector = i % n_vectors;
      kernels_.rms_norm(host(x) + row * x_stride + vector * dim, weight ? host(weight) : nullptr,
                        host(out) + row * out_stride + vector * dim, dim, eps);
    }
  });
}

void CpuBackend::matmul(Span<const Product> products, Ptr<const float> x, int64_t x_stride, int32_t rows) {
  if (products.empty() || rows <= 0) return;
  if (products.size() > MatmulPlan::kMostProducts) {
    matmul(products.first(MatmulPlan::kMostProducts), x, x_stride, rows);
    return matmul(products.last(products.size() - MatmulPlan::kMostProducts), x, x_stride, rows);
  }
  const int64_t n_in = products[0].weight->n_cols;
  // A short prompt's few rows take decode's kernel where it gives the same bits.
  const auto decodes = [&](const Product& p) {
    return steps_[0].phase == Phase::decode || (rows <= kShortPrompt && p.weight->repacked && kernels_.bands_as_prefill(p.weight->type));
  };
  const auto packed = [&](const Product& p) { return !decodes(p) && kernels_.packs && kernels_.packs(p.weight->type); };
  const bool packs = packed(products[0]);
  // Activations exist in one form at a time. Products that take the other form run afterwards.
  for (size_t i = 1; i < products.size(); ++i)
    if (packed(products[i]) != packs) {
      matmul(products.first(i), x, x_stride, rows);
      return matmul(products.subspan(i, products.size() - i), x, x_stride, rows);
    }
  // Each product's items count as its own. The first product's row has the waiting of all.
  constexpr size_t kMostTraced = 4;
  size_t traced[kMostTraced] = {};
  const auto weight_of = [&](size_t i) { return products[i].weight; };
  const auto read_bytes = [&](size_t i) { return static_cast<uint64_t>(weight_of(i)->n_rows) * placed_row_bytes(*weight_of(i)); };
  const StepTrace::Scope scope(trace_.get(), Operation::product, read_bytes(0), weight_of(0)->type, weight_of(0)->n_rows, n_in);
  if (trace_) {
    traced[0] = trace_->current();
    for (size_t i = 1; i < products.size() && i < kMostTraced; ++i)
      traced[i] = trace_->find(Operation::product, read_bytes(i), weight_of(i)->type, weight_of(i)->n_rows, n_in);
  }
  std::byte* quantized = scratch_ + plan_.quantized;
  const int64_t quantized_stride = quantized_row_bytes(n_in);
  if (packs) {
    for_ranges(div_up<int64_t>(rows, kPackedRows), n_in * kPackedRows, [&](int64_t first, int64_t last) {
      for (int64_t strip = first; strip < last; ++strip)
        kernels_.pack_rows(host(x) + strip * kPackedRows * x_stride, x_stride, std::min<int64_t>(rows - strip * kPackedRows, kPackedRows),
                           n_in, quantized + strip * packed_strip_bytes(n_in));
    });
  } else if (std::any_of(products.begin(), products.end(), [](const Product& p) { return quantized_type(p.weight->type); })) {
    const StepTrace::Scope quantizing(trace_.get(), Operation::quantize, static_cast<uint64_t>(rows * n_in) * sizeof(float));
    for_ranges(rows, n_in, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) kernels_.quantize_row(host(x) + r * x_stride, n_in, quantized + r * quantized_stride);
    });
  }

  std::array<ProductShape, MatmulPlan::kMostProducts> shapes;
  for (size_t i = 0; i < products.size(); ++i) {
    const Weight& w = *products[i].weight;
    shapes[i] = {w.n_rows, static_cast<int64_t>(placed_row_bytes(w)), w.repacked, decodes(products[i])};
  }
  const MatmulPlan plan({shapes.data(), products.size()}, rows, kernels_.tile_out, kernels_.tile_rows, pool_->n_threads());
  pool_->run(plan.n_items(), [&](int64_t i, int32_t thread) {
    const MatmulItem item = plan.item(i);
    const Product& p = products[item.product];
    const ProductShape& shape = shapes[item.product];
    const MatmulTask task{p.weight->type,
                          host(p.weight->data),
                          shape.in_bands,
                          shape.row_bytes,
                          n_in,
                          item.first_out,
                          item.last_out,
                          host(x),
                          x_stride,
                          quantized,
                          quantized_stride,
                          packs ? quantized : nullptr,
                          item.first_row,
                          item.last_row,
                          host(p.bias),
                          host(p.out),
                          p.out_stride,
                          p.accumulate,
                          thread_scratch(thread)};
    const StepTrace::Busy busy(trace_.get(), thread, traced[std::min(item.product, kMostTraced - 1)]);
    (shape.decodes ? kernels_.matmul_decode : kernels_.matmul_prefill)(task);
  });
}

// Items are stretches of a product's outputs and of its rows: no cut changes a sum.
void CpuBackend::add_low_rank(Span<const AdapterProduct> products, int64_t low_stride, float scale, int32_t rows) {
  constexpr int64_t kRows = 32;
  uint64_t bytes = 0;
  int64_t most_out = 0, most_rank = 0;
  for (const AdapterProduct& p : products) {
    bytes += static_cast<uint64_t>(p.n_out * p.rank) * sizeof(float);
    most_out = std::max(most_out, p.n_out), most_rank = std::max(most_rank, p.rank);
  }
  const StepTrace::Scope scope(trace_.get(), Operation::product, bytes, TensorType::f32, most_out, most_rank);
  // Two items for each thread of a few rows; of many rows, items whose part of B stays in the first-level cache.
  const int64_t least = std::max<int64_t>(64, (int64_t{16} << 10) / std::max<int64_t>(4 * most_rank, 1));
  const int64_t n_row_items = div_up<int64_t>(rows, kRows), n_each = n_row_items > 1 ? 8 : 2 * pool_->n_threads();
  const int64_t outs = div_up(std::max(least, div_up(most_out, n_each)), kAdapterTile) * kAdapterTile;
  const int64_t n_out_items = div_up(most_out, outs), n_products = static_cast<int64_t>(products.size());
  run(n_products * n_out_items * n_row_items, [&](int64_t item, int32_t) {
    const AdapterProduct& p = products[static_cast<size_t>(item / (n_out_items * n_row_items))];
    const int64_t first = item / n_row_items % n_out_items * outs, row = item % n_row_items * kRows;
    if (first >= p.n_out) return;
    kernels_.add_low_rank({host(p.b), p.rank, host(p.low) + row * low_stride, low_stride, scale, host(p.out) + row * p.out_stride,
                           p.out_stride, first, std::min(p.n_out, first + outs), std::min<int64_t>(kRows, rows - row)});
  });
}

// Angles in double: position * frequency reaches 1e5 radians, where the last bit of a float is a hundredth of a turn.
void CpuBackend::prepare_ropes(Span<const RopeSpec> specs) {
  n_tables_ = specs.size() / n_steps_;
  int32_t n_floats = 0;
  for (size_t i = 0; i < n_tables_; n_floats += tables_[i++].n_rot)
    tables_[i] = {n_floats, std::min(specs[i].n_rot, plan_.rope_floats - n_floats), specs[i].interleaved};
  const StepTrace::Scope scope(trace_.get(), Operation::rope, 0);
  for_ranges(n_rows(), 32 * n_floats, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const double position = row_at(r).position;
      for (size_t t = 0; t < n_tables_; ++t) {
        const RopeSpec& spec = specs[step_number(r) * n_tables_ + t];
        float* table = rope_row(r) + tables_[t].at;
        const int32_t half = tables_[t].n_rot / 2;
        float magnitude = spec.magnitude;
        if (spec.temperature != 0.0f)
          magnitude *= static_cast<float>(1.0 + static_cast<double>(spec.temperature) * std::log1p(std::floor(position / spec.period)));
        for (int32_t i = 0; i < half; ++i) {
          const double angle = position * static_cast<double>(spec.inverse_frequency[i]);
          table[i] = static_cast<float>(std::cos(angle)) * magnitude;
          table[half + i] = static_cast<float>(std::sin(angle)) * magnitude;
        }
      }
    }
  });
}

void CpuBackend::rope(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, int32_t table) {
  const auto [at, n_rot, interleaved] = tables_[static_cast<size_t>(table)];
  const StepTrace::Scope scope(trace_.get(), Operation::rope, static_cast<uint64_t>(2 * n_rows() * n_heads * head_dim) * sizeof(float));
  for_ranges(n_rows(), static_cast<int64_t>(n_heads) * n_rot,
             [&, at = at, n_rot = n_rot, interleaved = interleaved](int64_t first, int64_t last) {
               for (int64_t r = first; r < last; ++r) {
                 const float* cosines = rope_row(r) + at;
                 kernels_.rope(host(x) + r * stride, cosines, cosines + n_rot / 2, n_rot, interleaved, n_heads, head_dim);
               }
             });
}

void CpuBackend::transform_rows(Ptr<float> x, int64_t stride, int32_t n_heads, int32_t head_dim, Span<const HeadTransform> transforms) {
  const auto n_values = static_cast<uint64_t>(n_rows() * n_heads * head_dim);
  const StepTrace::Scope scope(trace_.get(), Operation::transform, 2 * n_values * sizeof(float));
  for_ranges(n_rows(), static_cast<int64_t>(n_heads) * head_dim, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const HeadTransform& t = transforms[step_number(r)];
      if (t.shift || t.rotate)
        kernels_.transform_heads(host(x) + r * stride, t.shift ? host(t.shift) : nullptr, n_heads, head_dim,
                                 t.rotate ? hadamard_block(head_dim) : 1);
    }
  });
}

KvHead CpuBackend::kv_head(int64_t row, KvLayer layer, int32_t head) const {
  const KvPages pages = step_of(row).pages(layer.group);
  return cpu::kv_head(pages.kv.type, pages.kv.head_dim, pages.kv.shared_values,
                      pages.sequences[static_cast<size_t>(row_at(row).sequence)].pages, pages.kv.head_offset(layer.layer, head));
}

void CpuBackend::append_kv(KvLayer layer, Ptr<const float> k, Ptr<const float> v, int64_t stride) {
  const KvFormat form = steps_[0].pages(layer.group).kv;
  const int32_t n_kv = form.n_kv_heads, dim = form.head_dim;
  uint64_t written = 0;
  for (int64_t r = 0; trace_ && r < n_rows(); ++r) written += static_cast<uint64_t>(n_kv) * step_of(r).pages(layer.group).kv.token_bytes();
  const StepTrace::Scope scope(trace_.get(), Operation::append_kv, written);
  for_ranges(n_rows() * n_kv, int64_t{8} * dim, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t r = i / n_kv;
      const int32_t head = static_cast<int32_t>(i % n_kv), position = row_at(r).position;
      const KvFormat format = step_of(r).pages(layer.group).kv;
      const KvHead kv = kv_head(r, layer, head);
      std::byte* token =
          const_cast<std::byte*>(kv_tile(kv, position / kPageTokens)) + static_cast<uint64_t>(position % kPageTokens) * token_bytes(kv);
      const int64_t at = r * stride + static_cast<int64_t>(head) * dim;
      kernels_.store_kv(key_type(format.type), host(k) + at, dim, token);
      if (v) kernels_.store_kv(value_type(format.type), host(v) + at, dim, token + kv.key_bytes);
      if (const HeadView* view = head_view(r, layer, head); view && view->append_at)
        convert_tokens(kernels_, reinterpret_cast<std::byte*>(view->append_at), step_of(r).heads_kv.type, token, format.type, 1,
                       format.token_values());
    }
  });
}

void CpuBackend::move_kv(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) {
  if (moves.empty()) return;
  const auto bytes = [&](KvType type) { return KvFormat{type, 1, 1, static_cast<int32_t>(token_values / 2)}.token_bytes(); };
  const uint64_t to_bytes = bytes(to_type), from_bytes = bytes(from_type);
  uint64_t n_tokens = 0;  // counted only up to the limit
  for (size_t i = 0; i < moves.size() && n_tokens * to_bytes < kPastCaches; ++i) n_tokens += moves[i].n_tokens;
  const bool past = n_tokens * to_bytes >= kPastCaches, small = static_cast<int64_t>(n_tokens * token_values) < kSmallWork;
  // Few ranges, because the first tokens of each range are not prefetched.
  const int64_t n = static_cast<int64_t>(moves.size()), n_ranges = small ? 1 : std::min<int64_t>(n, 4 * pool_->n_threads());
  pool_->run(n_ranges, [&](int64_t range, int32_t) {
    const int64_t first = n * range / n_ranges, last = n * (range + 1) / n_ranges;
    if (to_type == from_type) return kernels_.move_tokens({moves.data() + first, last - first, to_bytes, past});
    for (int64_t i = first; i < last; ++i) {
      if (i + kMovesAhead < last) {
        const KvMove& next = moves[static_cast<size_t>(i + kMovesAhead)];
        ask_for_bytes<0>(at_address(next.from), next.n_tokens * from_bytes),
            ask_for_bytes<1>(at_address(next.to), next.n_tokens * to_bytes);
      }
      const KvMove& m = moves[static_cast<size_t>(i)];
      convert_tokens(kernels_, at_address(m.to), to_type, at_address(m.from), from_type, m.n_tokens, token_values);
    }
  });
}

void CpuBackend::keep_queries(KvLayer layer, const float* q, const AttendShape& shape) {
  if (layer.group != 0) return;
  const int64_t width = int64_t{shape.n_heads} * steps_[0].kv.head_dim;
  for (int64_t r = 0; r < n_rows(); ++r) {
    const QueryRing& queries = step_of(r).queries;
    const int64_t n_ring = queries.n_rows;
    if (n_ring == 0 || (n_steps_ == 1 && r < n_rows() - n_ring)) continue;  // a later row would overwrite it
    std::memcpy(host(queries.data) + (layer.layer * n_ring + row_at(r).position % n_ring) * width, q + r * shape.q_stride,
                static_cast<size_t>(width) * sizeof(float));
  }
}

void CpuBackend::digest(Span<const DigestJob> jobs, const DigestShape& shape) {
  in_burst([&] { cpu::digest(jobs, shape, kernels_, pool_.get(), scratch_ + plan_.threads, plan_.thread_bytes); });
}

void CpuBackend::add_to_compensation_tokens(Span<const CompensationJob> jobs, const KvFormat& kv) {
  in_burst([&] { cpu::add_to_compensation_tokens(jobs, kv, kernels_, pool_.get(), scratch_ + plan_.threads, plan_.thread_bytes); });
}

void CpuBackend::top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape) {
  in_burst([&] { cpu::top_keys(jobs, shape, keys_work()); });
}

void CpuBackend::key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape) {
  in_burst([&] { cpu::key_weights(jobs, shape, keys_work()); });
}

void CpuBackend::key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape) {
  in_burst([&] { cpu::key_moments(jobs, shape, keys_work()); });
}

void CpuBackend::key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums) {
  in_burst([&] { cpu::key_products(keys, n_tokens, out, sums, low_rank_work()); });
}

void CpuBackend::low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end) {
  in_burst([&] { cpu::low_rank_rows(keys, first, end, low_rank_work()); });
}

void CpuBackend::attend(KvLayer layer, Ptr<const float> q, Ptr<float> out, const AttendShape& shape) {
  keep_queries(layer, host(q), shape);
  if (steps_[0].phase == Phase::decode) {
    attend_decode(layer, host(q), host(out), shape);
  } else {
    attend_prefill(layer, host(q), host(out), shape);
  }
}

// Where an item's keys lie. Slots in place lie in the sequence's pages.
KvHead CpuBackend::kv_of(const DecodeItem& item, KvLayer layer) const {
  const HeadView* view = head_view(item.row, layer, item.head);
  if (!view || (view->positions && !item.is_mean)) return kv_head(item.row, layer, item.head);
  const int32_t dim = steps_[0].pages(layer.group).kv.head_dim;
  return item.is_mean ? cpu::kv_head(KvType::f32, dim, 0, &view->compensation_token.address, 0)
                      : cpu::kv_head(step_of(item.row).heads_kv.type, dim, 0, view->tiles, 0);
}

// The splits of each query head are merged, in order. A compensation token is the last split of its head, one token alone. Its sums are
// multiplied by the number of tokens that it stands for, which gives the sums of that many equal tokens.
void CpuBackend::attend_decode(KvLayer layer, const float* q, float* out, const AttendShape& shape) {
  const KvFormat form = steps_[0].pages(layer.group).kv;
  const int32_t dim = form.head_dim, value_dim = form.value_dim(), n_kv = form.n_kv_heads, group = shape.n_heads / n_kv;
  const int64_t floats = partial_floats(value_dim);
  float* partials = reinterpret_cast<float*>(scratch_ + plan_.partials);
  uint64_t kv_read = 0;
  for (int64_t row = 0; trace_ && row < n_rows(); ++row)
    for (int32_t head = 0; head < n_kv; ++head) {
      const Splits s = splits_of(step_rows(), layer, shape.window, row, head);
      const Step& step = step_of(row);
      kv_read += static_cast<uint64_t>(s.last_key - s.first_key) *
                 (head_view(row, layer, head) ? step.heads_kv : step.pages(layer.group).kv).token_bytes();
    }
  const StepTrace::Scope scope(trace_.get(), Operation::attend, kv_read);
  for (int64_t first = 0; first < n_rows(); first += plan_.wave_rows) {
    const Wave wave{first, std::min(plan_.wave_rows, n_rows() - first)};
    const DecodePlan plan(step_rows(), layer, n_kv, shape.window, runs_.size() == 1, wave, pool_->n_threads());
    const auto partial = [&](int64_t row, int64_t head, int64_t split) {
      return partials + (((row - wave.first_row) * shape.n_heads + head) * plan_.max_splits + split) * floats;
    };
    run(plan.n_items(), [&](int64_t i, int32_t thread) {
      DecodeItem item = plan.item(i);
      if (item.first_key == item.last_key) return;
      const HeadView* view = head_view(item.row, layer, item.head);
      KvHead kv = kv_of(item, layer);
      const DecodeItem then = i + 1 < plan.n_items() ? plan.item(i + 1) : DecodeItem{};  // most likely this thread's next item
      const std::byte* next = nullptr;
      if (then.first_key < then.last_key) {
        const HeadView* its = head_view(then.row, layer, then.head);
        if (then.is_mean || !its || !its->positions) next = kv_tile(kv_of(then, layer), then.first_key / kPageTokens);
      }
      std::array<uint64_t, kSplitTokens / kPageTokens> tiles;
      const int32_t position = row_at(item.row).position;
      if (view && view->positions && !item.is_mean && !lie_in_order(*view, position, item.first_key, item.last_key)) {
        std::byte* to = scratch_ + plan_.gathered + static_cast<uint64_t>(thread) * plan_.gathered_bytes;
        gather_tokens(kv, *view, position, item.first_key, item.last_key, to);
        for (size_t t = 0; t < tiles.size(); ++t) tiles[t] = reinterpret_cast<uintptr_t>(to) + t * uint64_t{kPageTokens} * token_bytes(kv);
        kv.pages = tiles.data(), kv.offset = 0;
        item.last_key -= item.first_key, item.first_key = 0;
      }
      const DecodeTask task{kv,
                            item.n_heads,
                            q + item.row * shape.q_stride + int64_t{item.head} * group * dim,
                            group,
                            item.first_key,
                            item.last_key,
                            next,
                            shape.scale,
                            partial(item.row, int64_t{item.head} * group, item.split),
                            plan_.max_splits * floats,
                            weight_rows(view && !item.is_mean ? view->exported : ExportedWeights{}, group),
                            thread_scratch(thread)};
      kernels_.attend_decode(task);
      const float n_alike = item.is_mean ? view->compensation_weight : 0.0f;
      const float* logs = item.is_mean ? host(view->compensation_logs) : nullptr;
      for (int32_t g = 0; (n_alike > 0.0f || logs) && g < group; ++g) {
        float* sums = task.partials + g * task.partial_stride;
        if (logs) {  // the unit takes the weight, so no weight is too large
          if (logs[g] == -INFINITY) sums[1] = 0.0f;
          sums[0] += logs[g] * kernels_.log_of_two;
          if (const float* values = host(view->compensation_values); values && logs[g] != -INFINITY)
            for (int32_t j = 0; j < dim; ++j) sums[16 + j] = sums[1] * values[int64_t{g} * dim + j];
          continue;
        }
        sums[1] *= n_alike;
        for (int32_t j = 16; j < 16 + dim; ++j) sums[j] *= n_alike;
      }
    });
    for_ranges(wave.n_rows * shape.n_heads, plan.most_splits() * dim, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = wave.first_row + i / shape.n_heads, head = i % shape.n_heads;
        kernels_.merge_partials(
            partial(row, head, 0), splits_of(step_rows(), layer, shape.window, row, static_cast<int32_t>(head / group)).count, floats,
            value_dim, shape.sinks ? host(shape.sinks) + head : nullptr, out + row * shape.out_stride + head * value_dim);
      }
    });
  }
}

void CpuBackend::attend_prefill(KvLayer layer, const float* q, float* out, const AttendShape& shape) {
  const KvFormat form = steps_[0].pages(layer.group).kv;
  const int32_t dim = form.head_dim, n_kv = form.n_kv_heads;
  const PrefillPlan plan({runs_.data(), runs_.size()}, n_kv, shape.n_heads / n_kv, kernels_.prefill_queries(form.type, dim),
                         pool_->n_threads());
  pool_->run(plan.n_items(), [&](int64_t i, int32_t thread) {
    const PrefillItem item = plan.item(i);
    const PrefillTask task{kv_head(item.row, layer, item.kv_head),
                           q + item.row * shape.q_stride + int64_t{item.first_head} * dim,
                           shape.q_stride,
                           out + item.row * shape.out_stride + int64_t{item.first_head} * form.value_dim(),
                           shape.out_stride,
                           item.n_rows,
                           item.n_heads,
                           row_at(item.row).position,
                           shape.window,
                           shape.ahead,
                           steps_[0].rows[steps_[0].rows.size() - 1].position + int64_t{1},
                           shape.scale,
                           shape.sinks ? host(shape.sinks) + item.first_head : nullptr,
                           thread_scratch(thread)};
    kernels_.attend_prefill(task);
  });
}

void CpuBackend::activate(Activation activation, Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out,
                          int64_t out_stride, int64_t n) {
  // A unit is a stretch of one row. 16 columns are whole vectors for every instruction set, so cuts change nothing.
  constexpr int64_t kStretch = 2048;
  const StepTrace::Scope scope(trace_.get(), Operation::swiglu, static_cast<uint64_t>(3 * n_rows() * n) * sizeof(float));
  const int64_t stretches = div_up(n, kStretch);
  const auto activate = activation == Activation::gelu ? kernels_.geglu : kernels_.swiglu;
  for_ranges(n_rows() * stretches, 4 * std::min(n, kStretch), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / stretches, at = i % stretches * kStretch;
      activate(host(gate) + row * stride + at, host(up) + row * stride + at, host(out) + row * out_stride + at, std::min(kStretch, n - at));
    }
  });
}

void CpuBackend::add(Ptr<float> x, Ptr<const float> y, int64_t n) {
  constexpr int64_t kStretch = 4096;
  const int64_t total = n_rows() * n;
  const StepTrace::Scope scope(trace_.get(), Operation::add, static_cast<uint64_t>(3 * total) * sizeof(float));
  for_ranges(div_up(total, kStretch), kStretch / 2, [&](int64_t first, int64_t last) {
    const int64_t from = first * kStretch, to = std::min(total, last * kStretch);
    kernels_.add(host(x) + from, host(y) + from, to - from);
  });
}

void CpuBackend::layer_norm(Ptr<const float> x, Ptr<const float> weight, Ptr<const float> bias, Ptr<float> out, int64_t n, float eps) {
  const StepTrace::Scope scope(trace_.get(), Operation::norm, static_cast<uint64_t>(3 * n_rows() * n) * sizeof(float));
  for_ranges(n_rows(), 2 * n, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      cpu::layer_norm(host(x) + row * n, host(weight), bias ? host(bias) : nullptr, host(out) + row * n, n, eps);
  });
}

void CpuBackend::gelu_erf(Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride, int64_t n) {
  const StepTrace::Scope scope(trace_.get(), Operation::swiglu, static_cast<uint64_t>(2 * n_rows() * n) * sizeof(float));
  for_ranges(n_rows(), 16 * n, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      cpu::gelu_erf(host(gate) + row * stride, up ? host(up) + row * stride : nullptr, host(out) + row * out_stride, n);
  });
}

void CpuBackend::soft_cap(Ptr<float> x, int32_t rows, int64_t n, float scale, float cap) {
  constexpr int64_t kStretch = 2048;  // whole vectors, as above
  const int64_t total = rows * n;
  const StepTrace::Scope scope(trace_.get(), Operation::add, static_cast<uint64_t>(2 * total) * sizeof(float));
  for_ranges(div_up(total, kStretch), 2 * kStretch, [&](int64_t first, int64_t last) {
    const int64_t from = first * kStretch, to = std::min(total, last * kStretch);
    for (int64_t i = from; scale != 1.0f && i < to; ++i) host(x)[i] *= scale;
    if (cap > 0.0f) kernels_.soft_cap(host(x) + from, to - from, cap);
  });
}

// More threads than can run at once never spin.
int32_t spinning_threads(const os::Processors& p) { return p.quota < p.allowed ? std::max(1, static_cast<int32_t>(p.quota)) : p.allowed; }

Status CpuBackend::set_threads(int32_t n_threads, Priority priority) {
  const os::Processors processors = os::processors();  // affinity and quota may have changed
  if (n_threads == 0) n_threads = std::min(default_threads(processors), max_threads_);
  if (n_threads < 0 || n_threads > max_threads_)
    return option_error(Code::invalid_argument, "n_threads", "n_threads is %d, expected 0 to %d: this process has %d processors", n_threads,
                        max_threads_, n_processors_);
  ORRERY_ASSIGN(std::unique_ptr<ThreadPool> pool, ThreadPool::make(n_threads, spinning_threads(processors), priority));
  pool_ = std::move(pool);
  n_threads_.store(n_threads, std::memory_order_relaxed);
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const Options& options) {
  ORRERY_ASSIGN(const Kernels* kernels, find_kernels(options.path));
  const os::Processors processors = os::processors();
  const int32_t n_processors = processors.allowed;
  if (options.n_threads < 0 || options.n_threads > 1024)
    return option_error(Code::invalid_argument, "n_threads", "%d threads: expected 0 (as many as there are processors, nearly) to 1024",
                        options.n_threads);
  const int32_t n_threads = options.n_threads ? options.n_threads : default_threads(processors);
  ORRERY_ASSIGN(std::unique_ptr<ThreadPool> pool, ThreadPool::make(n_threads, spinning_threads(processors), options.priority));
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(*kernels, std::move(pool), n_processors, options.trace));
}

}  // namespace orrery::cpu

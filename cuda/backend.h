// The backend's class. Each file of this folder defines the members that stand under its name below.
//
// All members share the queue and the scratch memory. Everything but copy_in() happens in the queue's order. Each file has its own part
// of the scratch memory (scratch.h). Any thread may call them: those that call the driver begin with an OnDevice.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/device/cublas.h"
#include "cuda/cuda_backend.h"
#include "cuda/kernels/kernels.h"
#include "cuda/operations.h"
#include "cuda/device/gpu.h"
#include "cuda/device/owners.h"
#include "cuda/device/queue.h"
#include "cuda/scratch.h"
#include "cuda/staging.h"
#include "cuda/device/tuning.h"
#include "cuda/weights.h"
#include "runtime/backend/backend.h"

namespace orrery::cuda {

inline constexpr uint64_t kBounceBytes = uint64_t{4} << 20;  // of one half of the pinned memory
inline constexpr uint64_t kResultsBytes = uint64_t{1} << 20;
inline constexpr uint64_t kToldBytes = uint64_t{128} << 10;  // of FetchTold: 16,384 heads
inline constexpr uint64_t kAheadBytes = uint64_t{1} << 20;
inline constexpr size_t kMostOperations = 8192;
inline constexpr size_t kMostCompensationParts = 4096, kMostCodesParts = 4096;

template <class T>
T* device(Ptr<T> p) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(p.address));
}
template <class T>
uint64_t address(T* p) {
  return reinterpret_cast<uintptr_t>(p);
}

class CudaBackend final : public Backend,
                          KvMoves,
                          KeyOperations,
                          FetchOperations,
                          KvSummaries,
                          LowRankOperations,
                          KeyCodeOperations,
                          ShortlistOperations,
                          RecurrentOperations,
                          ExpertOperations,
                          HeadProducts,
                          AdapterOperations {
 public:
  // cuda_backend.cpp
  static Result<std::unique_ptr<Backend>> make(const Options& options);
  ~CudaBackend() override;
  BackendInfo info() const override;
  StepCost step_cost() const override;
  uint64_t free_bytes() const override;
  uint64_t driver_bytes() const override { return Graphs::kMostBytes + (cublas_ ? Cublas::kDriverBytes : 0); }
  uint64_t pinned_bytes() const override { return pinned_bytes_; }
  Status reserve_arena(uint64_t bytes) override;
  Ptr<std::byte> arena() const override { return {address(arena_)}; }
  Status check_heads(int32_t head_dim, KvType type, int32_t shared_values) const override;
  Status check_recurrent(const DeltaNetShape* shape) const override;
  Status check_mamba2(const Mamba2Shape& shape) const override;
  Status check_experts(const RouterShape& router) const override;
  Status check_adapters() const override { return ok_status(); }
  uint64_t scratch_bytes(const StepLimits& limits) const override { return scratch_plan(limits).total; }
  Status set_scratch(Ptr<std::byte> scratch, const StepLimits& limits) override;
  KvMoves* kv_moves() override { return this; }
  KeyOperations* keys() override { return this; }
  FetchOperations* fetches() override { return this; }
  KvSummaries* summaries() override { return this; }
  LowRankOperations* low_rank() override { return this; }
  KeyCodeOperations* key_codes() override { return this; }
  ShortlistOperations* shortlists() override { return this; }
  RecurrentOperations* recurrent() override { return this; }
  ExpertOperations* experts() override { return this; }
  HeadProducts* head_products() override { return this; }
  AdapterOperations* adapters() override { return this; }
  size_t graph_nodes() const { return graphs_.n_nodes(); }
  bool has_cublas() const { return cublas_ != nullptr; }
  Waits waits() const { return {queue_.n_waits() + ahead_queue_.n_waits(), queue_.waited_ns() + ahead_queue_.waited_ns()}; }

  // weights.cpp
  std::unique_ptr<Loading> begin_loading(uint64_t bytes, int32_t n_threads, Priority priority) override;
  uint64_t weight_bytes(TensorType type, int64_t n_rows, int64_t n_cols) const override;
  Status place_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, Ptr<std::byte> at, Weight* weight) override;
  void repack_there(TensorType type, int64_t n_rows, int64_t n_cols, Ptr<const std::byte> from, Ptr<std::byte> to) override;
  Status repack_weight(TensorType type, int64_t n_rows, int64_t n_cols, const std::byte* source, std::byte* to) override;

  // transfers.cpp
  void upload(Ptr<std::byte> to, const void* from, uint64_t bytes) override;
  void download(void* to, Ptr<const std::byte> from, uint64_t bytes) override;
  void upload_all(Span<const Upload> uploads) override;
  void download_all(Span<const Download> downloads) override;
  void copy(Ptr<std::byte> to, Ptr<const std::byte> from, uint64_t bytes) override;
  void move_kv(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) override;
  uint64_t move_kv_ahead(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) override;
  void join_moves(uint64_t n) override;
  void send() override;
  Status synchronize() override;
  void end_turn() override;
  Status copy_in(Ptr<std::byte> to, Span<const HostPiece> pieces) override;
  bool shares_by_allocating() const override { return !gpu_->properties().registered_at_host_address; }
  Status share_host(std::byte* at, uint64_t bytes) override;
  void unshare_host(std::byte* at) override;
  Result<std::byte*> allocate_shared(uint64_t bytes) override;
  void free_shared(std::byte* at) override;

  // steps.cpp
  size_t most_steps(Span<const Step> steps) const override;
  void begin_steps(Span<const Step> steps) override;
  void end_step() override { send(); }
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
  void activate(Activation activation, Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride,
                int64_t n) override;
  void soft_cap(Ptr<float> x, int32_t rows, int64_t n, float scale, float cap) override;
  void add(Ptr<float> x, Ptr<const float> y, int64_t n) override;
  void set_states(Span<const SequenceState> states) override;
  void delta_net(const DeltaNetShape& shape, const DeltaNetWeights& weights, const DeltaNetRows& rows, const StatePlace& at) override;
  void mamba2(const Mamba2Shape& shape, const Mamba2Weights& weights, const Mamba2Rows& rows, const StatePlace& at) override;
  void short_conv(const ShortConvShape& shape, Ptr<const float> conv, const ShortConvRows& rows, const StatePlace& at) override;
  void split_gates(Ptr<const float> x, int32_t n_heads, int32_t head_dim, Ptr<float> q, int64_t q_stride, Ptr<float> gates) override;
  void apply_gates(Ptr<float> x, Ptr<const float> gates, int64_t n) override;

  void route(Ptr<const float> logits, Ptr<const float> bias, Ptr<const float> scales, const RouterShape& shape,
             const RoutedRows& routed) override;
  void multiply_experts(Span<const ExpertProduct> products, const RouterShape& shape, const RoutedRows& routed, Ptr<const float> x,
                        bool of_rows) override;
  void add_experts(Ptr<float> x, Ptr<const float> y, int64_t n, const RouterShape& shape, const RoutedRows& routed,
                   bool accumulate) override;
  void clamped_swiglu(Ptr<const float> gate, Ptr<const float> up, Ptr<float> out, int64_t n) override;
  void squared_relu(Ptr<float> x, int64_t n) override;
  void gate_rows(Ptr<float> x, Ptr<const float> gates, int64_t n) override;
  void add_low_rank(Span<const AdapterProduct> products, int64_t low_stride, float scale, int32_t rows) override;
  void multiply_heads(const Weight& weight, int32_t n_heads, Ptr<const float> x, int64_t x_dim, Ptr<float> out, int64_t out_dim) override;

  // jobs.cpp
  void digest(Span<const DigestJob> jobs, const DigestShape& shape) override;
  void add_to_compensation_tokens(Span<const CompensationJob> jobs, const KvFormat& kv) override;
  void top_keys(Span<const TopKeysJob> jobs, const TopKeysShape& shape) override;
  void key_weights(Span<const KeyWeightsJob> jobs, const KeysShape& shape) override;
  void key_moments(Span<const KeyMomentsJob> jobs, const KeysShape& shape) override;
  void fetch_best(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, const Download& told) override;
  void fetch_changed(Span<const FetchJob> jobs, Span<const FetchJob> next, const TopKeysShape& shape, const FetchShape& fetch,
                     const QueryChange& change, const Download& told) override;
  void fetch_followers(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, const QueryChange& change,
                       const Download& told) override;
  uint64_t fetch_near_best(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, float alpha,
                           const Download& told) override;
  void download_told(const Download& told) override;

  // low_rank.cpp
  void key_products(const LowRankKeys& keys, int32_t n_tokens, float* out, float* sums) override;
  void low_rank_rows(const LowRankKeys& keys, int32_t first, int32_t end) override;
  void low_rank_queries(const LowRankKeys& keys, uint64_t next_basis, int32_t n_heads, Ptr<const float> q, Ptr<float> out) override;
  void rebuild_keys(const LowRankKeys& keys, KvType slot_type, Span<const RebuiltRun> runs) override;

  // key_codes.cpp
  void mean_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, int32_t step) override;
  void mean_values(Span<const MeanValueJob> jobs, const KvFormat& kv) override;
  void encode_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end) override;

  // shortlist.cpp
  uint64_t shortlist_bytes(int64_t n) const override { return cuda::shortlist_bytes(n); }
  void shortlist(Ptr<const float> logits, int64_t n, const ShortlistRequest& request, Ptr<std::byte> out) override;
  void shortlist_bands(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, Ptr<std::byte> out, uint64_t* sums) override;
  void shortlist_entries(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, int32_t band, int32_t other_band,
                         Ptr<std::byte> out, ShortlistTailEntries* entries) override;
  void upload_mask(Span<const uint32_t> mask, int64_t n, Ptr<std::byte> out);

 private:
  explicit CudaBackend(std::unique_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  // The first failure, which the caller is told. Behind one that the device survives, the backend is ready for work again.
  Status report();
  void wait_for_all();
  ScratchPlan scratch_plan(const StepLimits& limits) const { return ScratchPlan(limits, shape_, cublas_ ? &tuning_ : nullptr); }
  int32_t n_rows() const { return n_rows_; }
  bool within(Span<const Step> steps) const;
  void upload_sequences(const Step& step, size_t first_block, std::byte* upload);
  template <class F>
  void for_each_form(const F& f);
  Operation& note(Operation::Kind kind, int32_t rows);
  static void note_router(Operation* op, const RouterShape& shape, const RoutedRows& routed);
  // Parts of one launch of add_to_compensation_tokens(): as many as fit in the memory of top_keys' entries.
  size_t most_compensation_parts() const {
    return std::min(kMostCompensationParts,
                    static_cast<size_t>(TopKeysPlan::kBatch * plan_.top_keys_plan.entry_bytes / sizeof(CompensationPart)));
  }
  size_t most_codes_parts() const {
    return std::min(kMostCodesParts, static_cast<size_t>(TopKeysPlan::kBatch * plan_.top_keys_plan.entry_bytes / sizeof(CodesPart)));
  }
  // Calls use(parts on the device, their number) for batches of jobs over tokens of pages [first_page, end_page).
  template <class Use>
  void for_each_codes_batch(Span<const KeyCodesJob> jobs, int32_t first_page, int32_t end_page, const Use& use);
  template <class Job, class Fill, class Use>
  void for_each_batch(Span<const Job> jobs, const KeysShape& shape, const Fill& fill, const Use& use);
  // Selection on the device.
  void add_fetch_part(const FetchJob& job, int32_t entry, int32_t n_out);
  const FetchPart* upload_fetch_parts();
  int32_t most_held() const;
  int32_t most_selected_keys() const;
  std::byte* scores_of(int32_t entry) const;  // of top_keys(), as numbers of order
  // (n_kv_heads) 1 where a head's query has changed, in the memory of moments.
  const uint32_t* find_changes(const TopKeysShape& shape, const QueryChange& change);
  // changed: null, or of fetch_changed(), for jobs with these candidates.
  void fetch_by_head(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch, const uint32_t* changed = nullptr,
                     Candidates candidates = Candidates::of_both);
  void fetch_by_one_set(Span<const FetchJob> jobs, const TopKeysShape& shape, const FetchShape& fetch);
  void fill_fetched(const FetchPart* parts, const FetchShape& fetch);
  void note_told(const Download& told) { told_ = told, told_sent_ = false; }
  void send_told();
  // The fills of ahead_parts_, in parallel with what comes behind.
  void fill_ahead();
  void upload_ahead(std::byte* to, const void* from, uint64_t bytes);
  // Rebuilds the keys of the misses. low_rank.cpp
  void rebuild_fetched(const FetchPart* parts, const FetchShape& fetch, int32_t n_parts, int32_t most_held);
  // has_turns: the tables of turns serve, and the frequencies stay where they are.
  LowRankWork low_rank_work(const LowRankKeys& keys, bool has_turns = false);
  // Sends lists of moves to a queue. upload(to, moves, bytes) sends a list ahead of its kernel.
  template <class Upload>
  void send_moves(Queue& queue, std::byte* list, Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values,
                  const Upload& upload);
  Status refused_memory(uint64_t bytes, DriverError e) const;
  // Downloads whose targets are written by finish_collecting(), which waits once. What does not fit results_ is downloaded at once.
  void collect(Span<const Download> downloads);
  void finish_collecting();

  // The device.
  std::unique_ptr<Gpu> gpu_;         // destroyed last
  std::optional<OnDevice> leaving_;  // of the thread that destroys the backend, until all other members are gone
  DeviceShape shape_;
  Tuning tuning_ = kTuning[0];
  bool starts_early_ = true;
  void* arena_ = nullptr;
  uint64_t arena_bytes_ = 0;
  std::byte* scratch_ = nullptr;
  ScratchPlan plan_;

  // Streams, queues and pinned memory. io_: of copy_in(), in parallel with everything else. ahead_: of move_kv_ahead().
  StreamOwner main_stream_, io_stream_, ahead_stream_;  // destroyed after their users
  std::unique_ptr<Cublas> cublas_;                      // null: the options allow our own kernels alone, or the machine has no cuBLAS
  Queue queue_{gpu_.get(), nullptr}, io_queue_{gpu_.get(), nullptr}, ahead_queue_{gpu_.get(), nullptr};
  PinnedHalves bounce_, io_bounce_;
  std::mutex io_mutex_;
  std::weak_ptr<WeightUploads> weight_uploads_;  // of the models that are loaded now
  PinnedHalves ahead_bounce_;
  // Call n of move_kv_ahead() marks behind_ahead_[n % kAheadEvents]. Whoever joins a call whose event a later call has marked joins the
  // later one.
  static constexpr uint64_t kAheadEvents = 32;
  EventOwner before_ahead_, behind_ahead_[kAheadEvents];
  uint64_t n_ahead_ = 0, n_joined_ = 0;  // calls so far; of these, the ones that the queue's later work finds
  Staging staging_{gpu_.get()};

  // A step.
  std::array<Step, static_cast<size_t>(kMostTogether)> steps_;
  size_t n_steps_ = 0, n_blocks_ = 0;  // blocks of sequences (ScratchPlan)
  RecurrentRows recurrent_rows_ = {};  // of the step's recurrent layers
  size_t n_shortlists_ = 0;            // that have been asked for
  int32_t n_rows_ = 0;                 // of all steps
  std::unique_ptr<PinnedHalves> step_bounce_;
  uint64_t step_bounce_bytes_ = 0;         // of one half
  std::atomic<uint64_t> pinned_bytes_{0};  // of this object's buffers
  uint64_t step_bytes_ = 0;                // of the step's upload, in the current half
  bool step_waits_ = false;                // the step's upload has not been sent yet
  StepContext context_;
  struct RotaryTable {
    int32_t at, n_rot;  // from the first float of a row of StepView::rope
    bool interleaved;
  };
  std::array<RotaryTable, static_cast<size_t>(kMostRopes)> tables_ = {};  // of the step
  std::vector<Operation> operations_;
  Graphs graphs_{gpu_.get()};

  // A batch of jobs.
  std::vector<Upload> uploads_;
  std::vector<Download> downloads_;
  std::vector<double> totals_;                        // key_moments()' entropies and variances, (2, group)
  std::vector<CompensationPart> compensation_parts_;  // room for most_compensation_parts()
  std::vector<CodesPart> codes_parts_;                // room for most_codes_parts()
  TopKeysPlan batch_plan_;                            // of the batches that run now
  std::vector<TopKeysPart> key_parts_;
  std::vector<const void*> key_owners_;  // of each part: its job
  std::vector<FetchPart> fetch_parts_;
  std::vector<FetchPart> ahead_parts_;   // of fetch_changed() and fetch_followers(): until the layer's attention has been sent
  std::vector<FetchJob> follower_jobs_;  // of a batch of fetch_followers()
  FetchShape ahead_shape_;

  // Results on their way to the host (collect()): in results_, one behind the other.
  struct Collected {
    void* to;
    uint64_t at, bytes;
  };
  Pinned results_;
  std::vector<Collected> collected_;
  uint64_t collected_bytes_ = 0;

  // What the step's fetches tell the host. It goes to pinned memory ahead of the next download, behind which the host waits. More than
  // kToldBytes is downloaded when it is asked for.
  Pinned told_results_;
  Download told_ = {};
  bool told_sent_ = false;
};

}  // namespace orrery::cuda

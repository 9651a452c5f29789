// What the CUDA backend reaches on this machine's GPU, beside what the GPU gives: bench_gpu [tiny] [late] [seconds=N] [predictions=FILE]
// [SECTION...]. late: no kernel starts before the kernel ahead of it ends.
// Sections: limits (always), gather, matvec, decode, sampling, products, prefill, attention, policy; all of them if none is named. tiny:
// everything on the smallest shapes there are, to see that the program works; so it runs in emulation. seconds: no row begins that would
// end later than this after the program's start, if it took as long as the section's longest so far; what is left out is said.
//
// predictions: what was predicted stands beside what is measured. A line of the file is a part of a card's name, a key and milliseconds,
// with tabs between them: "H100<tab>8b decode 32768<tab>3.4". Of several lines for this card and a key, the last one holds. Empty lines and
// those that begin with # say nothing. Keys:
//   MODEL decode N                  a token behind N others, on a Llama of 8B; MODEL: 8b (Q4_K_M), 8b-q8_0, 8b-f16
//   MODEL prefill N                 a prompt of N tokens; also MODEL prefill N behind 0
//   attention TYPE decode N         a layer's attention of a token behind N others; TYPE: F16, F32, Q8_0, Q4_0, K8V4
//   attention TYPE prefill R behind N    of R rows that end the N-th token
//
// Each figure is the median of at least five samples of 20 ms and more, by the host's clock around work that ends in a wait. What is read
// is larger than the second-level cache, or another stretch each time. Beside it stands, of the same run: for reading, the bytes over the
// rate at which a kernel merely reads; where little is read, that and the graph's nodes times the time of a node that does nothing; for
// products, cuBLAS in F16 with sums in F32. Models have random weights: each matrix a few rows, repeated. Tables are Markdown, a row as
// soon as it is there. What does not fit into the device's memory is left out, and said.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device/cublas.h"
#include "cuda/cuda_backend.h"
#include "cuda/device/formats.h"
#include "cuda/kernels/kernels.h"
#include "cuda/device/archive.h"
#include "cuda/device/gpu.h"
#include "cuda/device/owners.h"
#include "cuda/device/queue.h"
#include "runtime/base/checked.h"
#include "runtime/model/forward/forward.h"
#include "runtime/os/os.h"
#include "tests/bench/gpu_limits.h"
#include "tests/bench/gpu_sizes.h"
#include "tests/bench/gpu_tables.h"
#include "tests/bench/shapes.h"
#include "tests/support/random_blocks.h"

namespace orrery::bench {
namespace {

using Products = cuda::Options::Products;

class Bench {
 public:
  // predictions: a file, or ""
  Bench(const Sizes& sizes, const std::string& predictions, double seconds);

  Budget& budget() { return budget_; }
  void limits();
  void gather();
  void matvec();
  void decode();
  void sampling();
  void products();
  void prefill();
  void attention();
  void policy();

 private:
  struct Matmul {
    int64_t n_out, n_in;
    bool operator<(const Matmul& b) const { return std::make_pair(n_out, n_in) < std::make_pair(b.n_out, b.n_in); }
  };
  // Memory is taken one behind the other, and given back by where() and back().
  uint64_t take(uint64_t bytes) {
    const uint64_t at = (next_ + 255) / 256 * 256;
    if (at + bytes > end_) fail("the arena is used up");
    next_ = at + bytes;
    return at;
  }
  bool fits(uint64_t bytes) const { return next_ + bytes + (uint64_t{1} << 20) <= end_; }

  void wait() {
    queue_.wait("waiting");
    check(gpu_->status());
  }
  void link();
  Weight random_weight(TensorType type, int64_t n_rows, int64_t n_cols);
  uint64_t random_floats(size_t n, float scale = 1.0f);
  void spread(uint64_t at, uint64_t pattern, uint64_t bytes);  // the first bytes again and again
  uint64_t random_kv(KvType type, uint64_t bytes);
  double cublas_seconds(Matmul shape, int32_t n_rows);
  double matmul_seconds(Backend* backend, const std::vector<Weight>& weights, Phase phase, int32_t n_rows);
  struct Llama;
  std::unique_ptr<Llama> llama(const Kind& kind, int32_t context, int32_t max_rows);
  uint64_t llama_bytes(const Kind& kind, int32_t context, int32_t max_rows) const;
  Backend& b() const { return *tuned_; }
  // The heads and the cells of a table's last columns: nothing without a file of predictions; empty cells where none of the keys is
  // predicted.
  std::vector<std::string> with_predictions(std::vector<std::string> heads, const char* of) const {
    if (has_predictions_) heads.insert(heads.end(), {std::string(of) + "predicted, ms", "of predicted"});
    return heads;
  }
  void add_prediction(std::vector<std::string>* cells, double seconds, const std::vector<std::string>& keys) const {
    if (!has_predictions_) return;
    for (const std::string& key : keys)
      if (const auto found = predictions_.find(key); found != predictions_.end()) {
        cells->insert(cells->end(), {number(found->second, found->second < 1 ? 4 : 2), percent(1e3 * seconds / found->second)});
        return;
      }
    cells->insert(cells->end(), {"", ""});
  }

  Sizes s_;
  Budget budget_;
  bool has_predictions_ = false;
  Predictions predictions_;
  std::unique_ptr<Backend> tuned_, own_, through_;  // as the table says, our kernels, cuBLAS: one arena, the first's
  std::unique_ptr<cuda::Gpu> gpu_;
  std::unique_ptr<cuda::OnDevice> here_;
  cuda::StreamOwner stream_;
  cuda::Queue queue_{nullptr, nullptr};
  std::unique_ptr<cuda::Cublas> cublas_;  // null: not here
  uint64_t next_ = 0, end_ = 0;
  double read_rate_ = 0, node_seconds_ = 0;                    // bytes per second
  std::map<std::pair<int32_t, Matmul>, double> cublas_rates_;  // seconds of a product, by its rows
};

std::string driver() {
  char line[256] = "";
  if (std::FILE* file = std::fopen("/proc/driver/nvidia/version", "r")) {
    if (!std::fgets(line, sizeof line, file)) line[0] = 0;
    std::fclose(file);
  }
  const std::string text = line;
  for (size_t at = 0; at < text.size(); ++at)  // the first number with a point
    if (std::isdigit(static_cast<unsigned char>(text[at])) && text.find_first_not_of("0123456789.", at) > text.find('.', at))
      return text.substr(at, text.find_first_not_of("0123456789.", at) - at);
  return "unknown";
}

Bench::Bench(const Sizes& sizes, const std::string& predictions, double seconds) : s_(sizes), budget_(seconds) {
  const auto make = [&](Products products) { return unwrap(cuda::make_backend({0, products, !s_.late})); };
  tuned_ = make(Products::tuned), own_ = make(Products::own), through_ = make(Products::cublas);
  gpu_ = unwrap(cuda::Gpu::open(unwrap(cuda::Driver::open(cuda::archive_version())), 0));
#ifndef ORRERY_EMULATED_KERNELS  // whose archive has every kernel of the program
  check(gpu_->add_kernels(cuda::gpu_limits()));
#endif
  here_ = std::make_unique<cuda::OnDevice>(*gpu_);
  check(stream_.create(*gpu_));
  queue_ = cuda::Queue(gpu_.get(), stream_.get());
  cublas_ = cuda::Cublas::open();
  if (cublas_ && !cublas_->start(queue_)) cublas_ = nullptr;
  const uint64_t free_bytes = b().free_bytes(), left = uint64_t{1} << 30;
  const uint64_t bytes = std::min(s_.arena, free_bytes > 2 * left ? free_bytes - left : free_bytes / 2);
  check(b().reserve_arena(bytes));
  next_ = b().arena().address, end_ = next_ + bytes;
  if (cublas_) {
    const uint64_t n = s_.tiny ? 4096 : cuda::Cublas::workspace_bytes(gpu_->properties().architecture);
    cublas_->set_workspace(queue_, pointer<std::byte>(take(n)), n);
  }
  int cuda_version = 0;
  gpu_->driver().get_version(&cuda_version);
  const cuda::GpuProperties& device = gpu_->properties();
  const std::time_t now = std::time(nullptr);
  char date[32] = "";
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  std::printf("%s, sm_%d, %d processors, %.1f GB; driver %s for CUDA %d.%d; %s; %s\n", device.name.c_str(), device.architecture,
              device.n_sms, static_cast<double>(device.memory_bytes) * 1e-9, driver().c_str(), cuda_version / 1000,
              cuda_version % 1000 / 10, cublas_ ? "cuBLAS" : "no cuBLAS: its columns stay empty", date);
  if (!predictions.empty()) {
    has_predictions_ = true;
    predictions_ = read_predictions(predictions, device.name);
    if (predictions_.empty()) std::printf("%s predicts nothing for this card\n", predictions.c_str());
  }
  std::fflush(stdout);
}

// ---- memory

void Bench::spread(uint64_t at, uint64_t pattern, uint64_t bytes) {
  for (uint64_t done = std::min(pattern, bytes); done < bytes; done += std::min(done, bytes - done))
    b().copy({at + done}, Ptr<const std::byte>{at}, std::min(done, bytes - done));
  check(b().synchronize());
}

// Rows lie one behind the other, all as long.
Weight Bench::random_weight(TensorType type, int64_t n_rows, int64_t n_cols) {
  const int64_t n = std::min(n_rows, std::max<int64_t>(1, (1 << 16) / n_cols));
  const uint64_t at = take(b().weight_bytes(type, n_rows, n_cols));
  const float scale = 1.0f / std::sqrt(static_cast<float>(n_cols));
  const std::vector<std::byte> file =
      testing::random_blocks(type, static_cast<uint64_t>(n * n_cols), static_cast<uint64_t>(n_rows + n_cols), scale);
  Weight weight;
  check(b().place_weight(type, n, n_cols, file.data(), {at}, &weight));
  check(through_->place_weight(type, n, n_cols, file.data(), {at}, &weight));  // so that it starts cuBLAS
  spread(at, b().weight_bytes(type, n, n_cols), b().weight_bytes(type, n_rows, n_cols));
  weight.n_rows = n_rows;
  return weight;
}

uint64_t Bench::random_floats(size_t n, float scale) {
  testing::Random random(n);
  std::vector<float> values(std::min<size_t>(n, 1 << 16));
  for (float& v : values) v = scale * random.normal();
  const uint64_t at = take(n * sizeof(float));
  b().upload({at}, values.data(), values.size() * sizeof(float));
  spread(at, values.size() * sizeof(float), n * sizeof(float));
  return at;
}

uint64_t Bench::random_kv(KvType type, uint64_t bytes) {
  const auto dim = static_cast<uint64_t>(s_.head_dim), key = key_bytes(type, dim), token = key + value_bytes(type, dim);
  const uint64_t n_tokens = (1 << 17) / dim, pattern = std::min(bytes, n_tokens * token), at = take(bytes);
  std::vector<std::byte> values(n_tokens * token);
  for (uint64_t i = 0; i < n_tokens; ++i) {
    testing::fill_random_blocks(key_tensor_type(type), &values[i * token], dim, 2 * i, 1.0f);
    testing::fill_random_blocks(value_tensor_type(type), &values[i * token + key], dim, 2 * i + 1, 1.0f);
  }
  b().upload({at}, values.data(), pattern);
  spread(at, pattern, bytes);
  return at;
}

// ---- what the device gives

void Bench::limits() {
  const uint64_t mark = next_, n = s_.copied_bytes;
  const uint64_t from = random_floats(n / sizeof(float)), to = take(n),
                 sums = take(static_cast<uint64_t>(gpu_->properties().n_sms) * 2048 * 4);
  const double copy = seconds(s_, [&](int times) {
    for (int i = 0; i < times; ++i) b().copy({to}, Ptr<const std::byte>{from}, n);
    check(b().synchronize());
  });
  const double read = seconds(s_, [&](int times) {
    for (int i = 0; i < times; ++i) read_memory(queue_, gpu_->properties().n_sms, pointer<std::byte>(from), n, pointer<uint32_t>(sums));
    wait();
  });
  const cuda::Driver& driver = gpu_->driver();
  cuda::Graph graph = nullptr;
  cuda::GraphExec exec = nullptr;
  queue_.check(driver.begin_capture(queue_.stream(), cuda::kCaptureThreadLocal), "beginning a graph");
  for (int i = 0; i < s_.nodes; ++i) nothing(queue_);
  queue_.check(driver.end_capture(queue_.stream(), &graph), "ending a graph");
  queue_.check(driver.instantiate(&exec, graph, 0), "making a graph");
  check(gpu_->status());
  node_seconds_ = seconds(s_,
                          [&](int times) {
                            for (int i = 0; i < times; ++i) queue_.check(driver.launch_graph(exec, queue_.stream()), "launching a graph");
                            wait();
                          }) /
                  s_.nodes;
  driver.destroy_exec(exec);
  driver.destroy_graph(graph);
  read_rate_ = static_cast<double>(n) / read;
  const auto multiplied = [&](bool whole) {  // tera-operations a second
    uint64_t products = 0;
    const double t = seconds(s_, [&](int times) {
      for (int i = 0; i < times; ++i) products = multiply(queue_, gpu_->properties().n_sms, whole, s_.turns, pointer<uint32_t>(sums));
      wait();
    });
    return number(2e-12 * static_cast<double>(products) / t, 1);
  };
  head("Limits",
       {"copying, GB/s (read and written)", "reading, GB/s", "an empty graph node, us", "mma.sync of bytes, TOP/s", "of halves, TFLOP/s"});
  row({number(2e-9 * static_cast<double>(n) / copy, 1), number(read_rate_ * 1e-9, 1), number(node_seconds_ * 1e6, 2), multiplied(true),
       multiplied(false)});
  next_ = mark;
  link();
}

// Copies between pinned memory and the device, and what the host waits for at least.
void Bench::link() {
  const uint64_t mark = next_, n = s_.link_bytes, on_device = take(n);
  const cuda::Driver& driver = gpu_->driver();
  cuda::Pinned pinned;
  check(pinned.allocate(*gpu_, n));
  std::memset(pinned.data(), 1, n);
  const auto copies = [&](std::byte* to, const std::byte* from) {
    return seconds(s_, [&](int times) {
      for (int i = 0; i < times; ++i) queue_.copy(to, from, n, "copying");
      wait();
    });
  };
  const double down = copies(pointer<std::byte>(on_device), pinned.data()), up = copies(pinned.data(), pointer<std::byte>(on_device));
  cuda::Graph graph = nullptr;
  cuda::GraphExec exec = nullptr;
  queue_.check(driver.begin_capture(queue_.stream(), cuda::kCaptureThreadLocal), "beginning a graph");
  nothing(queue_);
  queue_.check(driver.end_capture(queue_.stream(), &graph), "ending a graph");
  queue_.check(driver.instantiate(&exec, graph, 0), "making a graph");
  check(gpu_->status());
  const double launched = seconds(s_, [&](int times) {
    for (int i = 0; i < times; ++i) {
      queue_.check(driver.launch_graph(exec, queue_.stream()), "launching a graph");
      wait();
    }
  });
  driver.destroy_exec(exec);
  driver.destroy_graph(graph);
  uint32_t word = 0;
  const double downloaded = seconds(s_, [&](int times) {
    for (int i = 0; i < times; ++i) b().download(&word, {on_device}, sizeof word);
    check(b().synchronize());
  });
  cuda::EventOwner event;
  check(event.create(*gpu_));
  const double marked = seconds(s_, [&](int times) {
    for (int i = 0; i < times; ++i) {
      nothing(queue_);
      event.mark(queue_);
      event.wait(queue_);
    }
    check(gpu_->status());
  });
  head("The link: copies of pinned memory; what the host waits for at least",
       {"to the device, GB/s", "from the device, GB/s", "a graph of one node, us", "a download of 4 bytes, us",
        "a kernel and an event behind it, us"});
  row({number(1e-9 * static_cast<double>(n) / down, 1), number(1e-9 * static_cast<double>(n) / up, 1), number(launched * 1e6, 2),
       number(downloaded * 1e6, 2), number(marked * 1e6, 2)});
  next_ = mark;
}

// Kernels read and write host memory by themselves: memory that the driver has been told of, as a reservoir is, and memory of the driver;
// and places within a part of it that is larger than the second-level cache, because a device keeps the translations of few addresses.
void Bench::gather() {
  const uint64_t mark = next_, n = s_.gathered_from;
  const int32_t n_processors = gpu_->properties().n_sms;
  const uint64_t sums = take(static_cast<uint64_t>(n_processors) * 2048 * 4);
  head("Gathers over the link: a kernel reads or writes pieces at random places of " + std::to_string(n >> 20) + " MiB of host memory",
       {"piece, bytes", "", "registered, GB/s", "the driver's own, GB/s",
        "registered, of " + std::to_string(s_.gathered_near >> 20) + " MiB of it, GB/s", "pieces/us of all", "of the part"});
  if (!budget_.has_time_for("all")) return;
  // Neither kind of memory is had at every size on every machine: a column stays empty, with the reason below.
  std::string refused;
  os::Region region = unwrap(os::Region::allocate(n));
  std::memset(region.data(), 1, n);
  const cuda::DriverError e = gpu_->driver().register_host(region.data(), n, 0);
  if (e != cuda::DriverError::none) refused += "registered: " + gpu_->driver().text(e) + "\n";
  cuda::Pinned own;
  const Status allocated = own.allocate(*gpu_, n);
  if (allocated.ok()) std::memset(own.data(), 1, n);
  else refused += std::string("the driver's own: ") + allocated.message() + "\n";
  std::byte* const registered = e == cuda::DriverError::none ? region.data() : nullptr;
  const struct {
    std::byte* at;
    uint64_t bytes;
  } places[] = {{registered, n}, {allocated.ok() ? own.data() : nullptr, n}, {registered, s_.gathered_near}};
  const auto measured = [&](uint32_t piece, bool writes) {
    if (!budget_.has_time_for(std::to_string(piece) + (writes ? " written" : " read"))) return;
    const auto n_pieces = static_cast<uint32_t>(s_.gathered_bytes / piece);
    std::vector<std::string> cells = {std::to_string(piece), writes ? "written" : "read"};
    double rates[std::size(places)] = {};  // bytes per second
    for (size_t i = 0; i < std::size(places); ++i) {
      const auto at = places[i].at;
      const auto bytes = places[i].bytes;
      if (!at) {
        cells.push_back("");
        continue;
      }
      const auto run = [&](int times) {
        for (int t = 0; t < times; ++t) {
          if (writes) scatter(queue_, n_processors, at, bytes, piece, n_pieces);
          else bench::gather(queue_, n_processors, at, bytes, piece, n_pieces, pointer<uint32_t>(sums));
        }
        wait();
      };
      rates[i] = 1.0 * piece * n_pieces / seconds(s_, run);
      cells.push_back(number(1e-9 * rates[i], 2));
    }
    for (const size_t i : {size_t{0}, size_t{2}}) cells.push_back(rates[i] > 0 ? number(1e-6 * rates[i] / piece, 1) : "");
    row(cells);
  };
  for (const uint32_t piece : {64u, 136u, 256u, 512u, 4096u}) measured(piece, false);
  for (const uint32_t piece : {64u, 256u}) measured(piece, true);
  if (!refused.empty()) std::printf("\n%s", refused.c_str());
  if (registered) gpu_->driver().unregister_host(region.data());
  next_ = mark;
}

// ---- products

// Seconds of one of the products, of all weights in turn in one step.
double Bench::matmul_seconds(Backend* backend, const std::vector<Weight>& weights, Phase phase, int32_t n_rows) {
  const uint64_t mark = next_;
  StepLimits l;
  l.max_rows = n_rows, l.max_context = kPageTokens;
  l.n_heads = l.n_kv_heads = 1, l.head_dim = 32;
  l.max_in = weights[0].n_cols;
  check(backend->set_scratch({take(backend->scratch_bytes(l))}, l));
  const uint64_t x = random_floats(static_cast<size_t>(n_rows * weights[0].n_cols)),
                 out = take(static_cast<uint64_t>(n_rows * weights[0].n_rows) * sizeof(float));
  const std::vector<Row> rows(static_cast<size_t>(n_rows));
  Step step;
  step.phase = phase, step.rows = rows;
  const double s = seconds(s_, [&](int times) {
    for (int i = 0; i < times; ++i) {
      backend->begin_step(step);
      for (const Weight& w : weights) {
        const Product product{&w, {}, {out}, w.n_rows, false};
        backend->matmul({&product, 1}, {x}, w.n_cols, n_rows);
      }
      backend->end_step();
    }
    check(backend->synchronize());
  });
  next_ = mark;
  return s / static_cast<double>(weights.size());
}

void Bench::matvec() {
  head("Decode: one product, the activations' quantization included",
       {"weights", "shape", "MB", "us", "GB/s", "of reading", "of reading and two nodes"});
  for (const TypeTraits& type : kTypeTraits)
    for (const Matmul shape : {Matmul{s_.n_ff, s_.n_embd}, Matmul{s_.n_embd, s_.n_ff}}) {
      if (!budget_.has_time_for(std::string(type.name) + ", " + std::to_string(shape.n_out) + " rows")) continue;
      const uint64_t mark = next_, bytes = b().weight_bytes(type.type, shape.n_out, shape.n_in);
      const uint64_t wanted = std::max(s_.least_weights, 4 * (s_.tiny ? 0 : gpu_->properties().cache_bytes));
      std::vector<Weight> weights(1, random_weight(type.type, shape.n_out, shape.n_in));
      while (bytes * weights.size() < wanted || weights.size() < 2) {
        weights.push_back(weights[0]);
        weights.back().data = {take(bytes)};
        b().copy({weights.back().data.address}, weights[0].data, bytes);
      }
      const double t = matmul_seconds(&b(), weights, Phase::decode, 1), floor = static_cast<double>(bytes) / read_rate_;
      row({type.name, std::to_string(shape.n_out) + " x " + std::to_string(shape.n_in), number(static_cast<double>(bytes) * 1e-6, 1),
           number(t * 1e6, 1), number(static_cast<double>(bytes) * 1e-9 / t, 1), percent(floor / t),
           percent((floor + 2 * node_seconds_) / t)});
      next_ = mark;
    }
}

// cuBLAS alone: F16, sums in F32.
double Bench::cublas_seconds(Matmul shape, int32_t n_rows) {
  const uint64_t mark = next_;
  const auto halves = [&](int64_t n) { return random_kv(KvType::f16, static_cast<uint64_t>(n) * 2); };
  const uint64_t x = halves(n_rows * shape.n_in), w = halves(shape.n_out * shape.n_in),
                 out = take(static_cast<uint64_t>(n_rows * shape.n_out) * sizeof(float));
  const cuda::HalfProduct product{TensorType::f16,
                                  pointer<std::byte>(x),
                                  pointer<std::byte>(w),
                                  pointer<float>(out),
                                  shape.n_in,
                                  shape.n_in,
                                  shape.n_out,
                                  n_rows,
                                  static_cast<int32_t>(shape.n_out),
                                  static_cast<int32_t>(shape.n_in),
                                  false};
  const double s = seconds(s_, [&](int times) {
    for (int i = 0; i < times; ++i) cublas_->multiply(queue_, product);
    queue_.wait("waiting");
    check(gpu_->status());
  });
  next_ = mark;
  return s;
}

void Bench::products() {
  head("Prefill: one product; beside cuBLAS in F16 with sums in F32",
       {"weights", "shape", "rows", "cuBLAS, TFLOP/s", "our kernels", "of cuBLAS", "through cuBLAS", "of cuBLAS"});
  for (const int32_t n_rows : {s_.rows, s_.rows / 4})
    for (const Matmul shape : {Matmul{s_.n_ff, s_.n_embd}, Matmul{s_.n_embd, s_.n_ff}, Matmul{s_.n_embd, s_.n_embd}}) {
      const double flop = 2e-12 * static_cast<double>(shape.n_out * shape.n_in) * n_rows;
      const double limit = cublas_ ? cublas_seconds(shape, n_rows) : 0;
      for (const TypeTraits& type : kTypeTraits) {
        if (shape.n_out == shape.n_in && type.type != TensorType::f16 && type.type != TensorType::q8_0 && type.type != TensorType::q4_k)
          continue;
        if (!budget_.has_time_for(std::string(type.name) + ", " + std::to_string(shape.n_out) + " by " + std::to_string(n_rows) + " rows"))
          continue;
        const uint64_t mark = next_;
        const std::vector<Weight> weight(1, random_weight(type.type, shape.n_out, shape.n_in));
        const double own = matmul_seconds(own_.get(), weight, Phase::prefill, n_rows);
        std::vector<std::string> cells = {type.name,
                                          std::to_string(shape.n_out) + " x " + std::to_string(shape.n_in),
                                          std::to_string(n_rows),
                                          cublas_ ? number(flop / limit, 1) : "",
                                          number(flop / own, 1),
                                          cublas_ ? percent(limit / own) : "",
                                          "",
                                          ""};
        if (cublas_ && type.type != TensorType::f32) {
          const double t = matmul_seconds(through_.get(), weight, Phase::prefill, n_rows);
          cells[6] = number(flop / t, 1), cells[7] = percent(limit / t);
        }
        row(cells);
        next_ = mark;
      }
    }
}

// ---- a whole model

struct Bench::Llama {
  explicit Llama(gguf::File file) : model(std::make_shared<const gguf::File>(std::move(file))) {}
  model::Model model;
  model::RopeTable rope;
  RopeSpec spec;  // points into rope
  model::Workspace work;
  StepLimits limits;
  KvFormat kv;
  std::vector<uint64_t> pages;
  std::vector<Matmul> products;  // of a layer
  uint64_t bytes = 0;            // of weights that a token reads
  uint64_t mark = 0;             // where its memory begins
};

uint64_t Bench::llama_bytes(const Kind& kind, int32_t context, int32_t max_rows) const {
  const int64_t q = s_.n_heads * s_.head_dim, kv = s_.n_kv_heads * s_.head_dim;
  const auto matrix = [&](TensorType type, int64_t n, int64_t k) { return b().weight_bytes(type, n, k); };
  uint64_t layers = 0;
  for (int32_t i = 0; i < s_.n_layers; ++i) {
    const TensorType more = kind.value_and_down(i, s_.n_layers);
    layers += matrix(kind.type, q, s_.n_embd) + matrix(kind.type, kv, s_.n_embd) + matrix(more, kv, s_.n_embd) +
              matrix(kind.type, s_.n_embd, q) + 2 * matrix(kind.type, s_.n_ff, s_.n_embd) + matrix(more, s_.n_embd, s_.n_ff);
  }
  const uint64_t ends = matrix(kind.type, s_.n_vocab, s_.n_embd) + matrix(kind.output(), s_.n_vocab, s_.n_embd);
  const uint64_t rest = static_cast<uint64_t>(max_rows) * static_cast<uint64_t>(4 * s_.n_embd + 5 * s_.n_ff + 4 * q) * 4;
  return layers + ends + rest + static_cast<uint64_t>(context) * static_cast<uint64_t>(s_.n_layers * 4 * kv) +
         (s_.tiny ? uint64_t{1} << 20 : uint64_t{512} << 20);
}

std::unique_ptr<Bench::Llama> Bench::llama(const Kind& kind, int32_t context, int32_t max_rows) {
  alignas(8) static const std::byte empty[24] = {std::byte{'G'}, std::byte{'G'}, std::byte{'U'}, std::byte{'F'}, std::byte{3}};
  auto made = std::make_unique<Llama>(unwrap(gguf::File::parse({empty, sizeof empty}, "random")));
  made->mark = next_;
  model::Description& h = made->model.description;
  h.family = "llama";
  h.n_layers = s_.n_layers, h.n_embd = s_.n_embd, h.n_vocab = s_.n_vocab;
  model::LayerShape shape;
  shape.attention.n_heads = s_.n_heads, shape.attention.n_kv_heads = s_.n_kv_heads, shape.attention.head_dim = s_.head_dim;
  shape.attention.scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim));
  shape.feed_forward.width = s_.n_ff;
  h.layers.assign(static_cast<size_t>(s_.n_layers), shape);
  model::group_layers(&h);
  h.trained_context = context;
  h.ropes[0].interleaved = true;
  h.ropes[0].n_rot = s_.head_dim;
  h.ropes[0].base = 500000.0f;
  made->rope = model::make_rope_table(h.rope(), {}, static_cast<uint32_t>(context));
  made->spec = made->rope.spec();

  model::Weights& w = made->model.weights;
  const std::vector<float> ones(static_cast<size_t>(s_.n_embd), 1.0f);
  const uint64_t norm = take(ones.size() * sizeof(float));
  b().upload({norm}, ones.data(), ones.size() * sizeof(float));
  const auto matrix = [&](TensorType type, int64_t n, int64_t k) {
    made->bytes += b().weight_bytes(type, n, k);
    return random_weight(type, n, k);
  };
  made->products = {{h.kv().q_dim(), s_.n_embd}, {h.kv().kv_dim(), s_.n_embd}, {h.kv().kv_dim(), s_.n_embd}, {s_.n_embd, h.kv().q_dim()},
                    {s_.n_ff, s_.n_embd},        {s_.n_ff, s_.n_embd},         {s_.n_embd, s_.n_ff}};
  for (int32_t i = 0; i < s_.n_layers; ++i) {
    model::Layer layer;
    layer.attn_norm = layer.ffn_norm = {norm};
    model::attention::Weights& a = layer.attention;
    model::feed_forward::Weights& ff = layer.feed_forward;
    Weight* const to[] = {&a.q, &a.k, &a.v, &a.out, &ff.gate, &ff.up, &ff.down};
    const TensorType more = kind.value_and_down(i, s_.n_layers);
    for (size_t p = 0; p < made->products.size(); ++p)
      *to[p] = matrix(to[p] == &a.v || to[p] == &ff.down ? more : kind.type, made->products[p].n_out, made->products[p].n_in);
    w.layers.push_back(layer);
  }
  w.output_norm = {norm};
  w.output = matrix(kind.output(), s_.n_vocab, s_.n_embd);
  w.embedding = random_weight(kind.type, s_.n_vocab, s_.n_embd);

  made->kv = {KvType::f16, s_.n_layers, s_.n_kv_heads, s_.head_dim};
  const uint64_t n_pages = static_cast<uint64_t>((context + kPageTokens - 1) / kPageTokens);
  const uint64_t kv = random_kv(KvType::f16, align_up(n_pages, kPagesTogether) * made->kv.page_bytes());
  for (uint64_t i = 0; i < n_pages; ++i) made->pages.push_back(kv + made->kv.page_offset(i));
  made->limits = model::step_limits(h, max_rows, context);
  made->limits.n_layers = 0;  // of heads under a policy
  made->work = model::carve_workspace(h, b(), made->limits, {});
  made->work = model::carve_workspace(h, b(), made->limits, {take(made->work.bytes)});
  check(b().set_scratch(made->work.scratch, made->limits));
  return made;
}

void Bench::decode() {
  head(
      "Decode: a Llama of 8B, tokens with what a greedy sampler asks of their logits on the host; floor: bytes of weights and KV over "
      "reading",
      with_predictions({"weights", "context", "ms", "tokens/s", "GB", "of floor", "nodes", "of floor and nodes"}, ""));
  for (const Kind& kind : kKinds) {
    for (const int32_t context : {s_.short_context, s_.long_context, s_.longest_context}) {
      const std::vector<std::string> names = {kind.name, std::to_string(context)};
      if (!budget_.has_time_for(names[0] + " behind " + names[1])) continue;
      if (!fits(llama_bytes(kind, context, 1))) {
        row({names[0], names[1], "does not fit", "", "", "", "", ""});
        continue;
      }
      const auto m = llama(kind, context, 1);
      ShortlistRequest request;
      request.n_best = 1;
      std::vector<std::byte> shortlist(shortlist_result_bytes(request));
      const Row rows[] = {{1, context - 1, 0}};
      const KvView view{m->pages.data(), static_cast<int32_t>(m->pages.size())};
      Step step;
      step.phase = Phase::decode, step.rows = {rows, 1}, step.sequences = {&view, 1}, step.kv = m->kv;
      model::ForwardOutput out;
      out.n_logits = 1, out.request = &request, out.shortlist = shortlist.data();
      const double t = seconds(s_, [&](int times) {
        for (int i = 0; i < times; ++i) check(model::forward(&b(), m->model, {&m->spec, 1}, m->work, step, nullptr, out));
      });
      const uint64_t bytes =
          m->bytes + static_cast<uint64_t>(context) * static_cast<uint64_t>(s_.n_layers * s_.n_kv_heads) * m->kv.token_bytes();
      const size_t nodes = cuda::graph_nodes(b());
      const double floor = static_cast<double>(bytes) / read_rate_;
      std::vector<std::string> cells = {names[0],
                                        names[1],
                                        number(t * 1e3, 2),
                                        number(1 / t, 1),
                                        number(static_cast<double>(bytes) * 1e-9, 2),
                                        percent(floor / t),
                                        std::to_string(nodes),
                                        percent((floor + static_cast<double>(nodes) * node_seconds_) / t)};
      add_prediction(&cells, t, {std::string(kind.key) + " decode " + (context == s_.short_context ? "0" : names[1])});
      row(cells);
      next_ = m->mark;
    }
  }
}

// A step that is nothing else, its wait included.
void Bench::sampling() {
  head("Sampling: what a sampler is brought of 128,256 logits, from the graph's launch to the bytes on the host",
       {"asked for", "bytes", "us", "nodes"});
  const uint64_t mark = next_;
  StepLimits l;
  l.max_rows = 1, l.max_context = kPageTokens;
  l.n_heads = l.n_kv_heads = 1, l.head_dim = 32, l.max_in = 32;
  check(b().set_scratch({take(b().scratch_bytes(l))}, l));
  const size_t n = static_cast<size_t>(s_.n_vocab);
  const Ptr<const float> logits{random_floats(n, 4.0f)};
  const Ptr<std::byte> out{take(b().shortlist_bytes(s_.n_vocab))};
  std::vector<std::byte> host(n * sizeof(float) + (uint64_t{1} << 14));
  const std::vector<Row> rows(1);
  const std::vector<int32_t> tokens(static_cast<size_t>(std::min(s_.n_vocab, ShortlistRequest::kMostTokens)));
  Step step;
  step.phase = Phase::decode, step.rows = rows;
  const auto measured = [&](const char* what, const ShortlistRequest* request) {
    if (!budget_.has_time_for(what)) return;
    const uint64_t bytes = request ? shortlist_result_bytes(*request) : n * sizeof(float);
    const double t = seconds(s_, [&](int times) {
      for (int i = 0; i < times; ++i) {
        b().begin_step(step);
        if (request) b().shortlists()->shortlist(logits, s_.n_vocab, *request, out);
        b().download(host.data(), request ? Ptr<const std::byte>(out) : Ptr<const std::byte>{logits.address}, bytes);
        b().end_step();
      }
      check(b().synchronize());
    });
    row({what, std::to_string(bytes), number(t * 1e6, 1), request ? std::to_string(cuda::graph_nodes(b())) : "0"});
  };
  const ShortlistRequest best{1, {}, 0.0f}, top_k{40, {}, 0.0f},
      penalties{104, Span<const int32_t>(tokens).first(std::min<size_t>(tokens.size(), 64)), 0.0f};
  const ShortlistRequest top_p{ShortlistRequest::kMostBest, {}, 1.25f}, most{ShortlistRequest::kMostBest, tokens, 1.25f};
  const ShortlistRequest temperature{0, {}, 1.25, (s_.n_vocab + ShortlistRequest::kSumLogits - 1) / ShortlistRequest::kSumLogits};
  measured("all", nullptr);
  measured("greedy: the best", &best);
  measured("top-k of 40", &top_k);
  measured("the same with penalties of 64 tokens", &penalties);
  measured("temperature alone: sums of blocks", &temperature);
  measured("top-p: 1,024 and the tempered sum", &top_p);
  measured("the same with 512 tokens", &most);
  next_ = mark;
}

void Bench::prefill() {
  head("Prefill: a Llama of 8B, chunks of at most 2,048 rows; beside its products alone in cuBLAS, F16 with sums in F32",
       with_predictions({"weights", "tokens", "ms", "tokens/s", "products in cuBLAS, ms", "of that"}, ""));
  for (const Kind& kind : kKinds)
    for (const int32_t tokens : {s_.rows / 2, s_.rows, s_.prefill_long}) {
      const std::vector<std::string> names = {kind.name, std::to_string(tokens)};
      if (!budget_.has_time_for(names[0] + ", " + names[1] + " tokens")) continue;
      const int32_t chunk = std::min(tokens, s_.rows);
      if (!fits(llama_bytes(kind, tokens, chunk))) {
        row({names[0], names[1], "does not fit", "", "", ""});
        continue;
      }
      const auto m = llama(kind, tokens, chunk);
      std::vector<float> logits(static_cast<size_t>(s_.n_vocab));
      const KvView view{m->pages.data(), static_cast<int32_t>(m->pages.size())};
      std::vector<Row> rows(static_cast<size_t>(chunk));
      const double t = seconds(s_, [&](int times) {
        for (int i = 0; i < times; ++i)
          for (int32_t from = 0; from < tokens; from += chunk) {
            for (int32_t r = 0; r < chunk; ++r) rows[static_cast<size_t>(r)] = {(from + r) % s_.n_vocab, from + r, 0};
            Step step;
            step.phase = Phase::prefill, step.rows = rows, step.sequences = {&view, 1}, step.kv = m->kv;
            model::ForwardOutput out;
            out.n_logits = from + chunk < tokens ? 0 : 1, out.logits = logits.data();
            check(model::forward(&b(), m->model, {&m->spec, 1}, m->work, step, nullptr, out));
          }
      });
      next_ = m->mark;
      double limit = 0;
      for (const Matmul shape : m->products) {
        if (!cublas_) break;
        const auto rate = std::make_pair(chunk, shape);
        if (!cublas_rates_.count(rate)) cublas_rates_[rate] = cublas_seconds(shape, chunk);
        limit += cublas_rates_[rate] * s_.n_layers * (tokens / chunk);
      }
      std::vector<std::string> cells = {names[0],
                                        names[1],
                                        number(t * 1e3, 1),
                                        number(tokens / t, 0),
                                        cublas_ ? number(limit * 1e3, 1) : "",
                                        cublas_ ? percent(limit / t) : ""};
      const std::string key = std::string(kind.key) + " prefill " + names[1];
      add_prediction(&cells, t, {key, key + " behind 0"});
      row(cells);
    }
}

// ---- attention

void Bench::attention() {
  const int32_t context = s_.long_context, behind = s_.prefill_long, n_layers = s_.attend_layers;
  head("Attention of 32 heads over 8, of 128: decode behind 32,768 tokens, prefill of 2,048 rows behind 8,192",
       with_predictions(with_predictions({"KV", "decode, us", "GB/s", "of reading", "prefill, ms", "TFLOP/s"}, "decode "), "prefill "));
  for (const KvType type : {KvType::f16, KvType::f32, KvType::q8_0, KvType::q4_0, KvType::k8v4}) {
    if (!budget_.has_time_for(kv_type_name(type))) continue;
    const uint64_t mark = next_;
    const KvFormat format{type, n_layers, s_.n_kv_heads, s_.head_dim};
    const uint64_t n_pages = static_cast<uint64_t>(context / kPageTokens);
    const uint64_t kv = random_kv(type, align_up(n_pages, kPagesTogether) * format.page_bytes());
    std::vector<uint64_t> pages;
    for (uint64_t i = 0; i < n_pages; ++i) pages.push_back(kv + format.page_offset(i));
    StepLimits l;
    l.max_rows = s_.rows, l.max_context = context;
    l.n_heads = s_.n_heads, l.n_kv_heads = s_.n_kv_heads, l.head_dim = s_.head_dim, l.max_in = s_.n_embd;
    check(b().set_scratch({take(b().scratch_bytes(l))}, l));
    const int64_t width = int64_t{s_.n_heads} * s_.head_dim;
    const uint64_t q = random_floats(static_cast<size_t>(s_.rows * width)),
                   out = take(static_cast<uint64_t>(s_.rows * width) * sizeof(float));
    const AttendShape shape{s_.n_heads, width, width, 1.0f / std::sqrt(static_cast<float>(s_.head_dim)), 0};
    const auto time = [&](Phase phase, int32_t n_rows, int32_t end) {
      std::vector<Row> rows;
      for (int32_t i = 0; i < n_rows; ++i) rows.push_back({0, end - n_rows + i, 0});
      const KvView view{pages.data(), static_cast<int32_t>(pages.size())};
      Step step;
      step.phase = phase, step.rows = rows, step.sequences = {&view, 1}, step.kv = format;
      return seconds(s_,
                     [&](int times) {
                       for (int i = 0; i < times; ++i) {
                         b().begin_step(step);
                         for (int32_t layer = 0; layer < n_layers; ++layer) b().attend(layer, {q}, {out}, shape);
                         b().end_step();
                       }
                       check(b().synchronize());
                     }) /
             n_layers;
    };
    const double decode = time(Phase::decode, 1, context), prefill = time(Phase::prefill, s_.rows, behind);
    const double bytes = static_cast<double>(context) * s_.n_kv_heads * static_cast<double>(format.token_bytes());
    const double flop = 4e-12 * static_cast<double>(width) * s_.rows * (behind - s_.rows / 2);
    std::vector<std::string> cells = {
        kv_type_name(type),       number(decode * 1e6, 1),  number(bytes * 1e-9 / decode, 1), percent(bytes / read_rate_ / decode),
        number(prefill * 1e3, 2), number(flop / prefill, 1)};
    const std::string key = std::string("attention ") + kv_type_name(type);
    add_prediction(&cells, decode, {key + " decode " + std::to_string(context)});
    add_prediction(&cells, prefill, {key + " prefill " + std::to_string(s_.rows) + " behind " + std::to_string(behind)});
    row(cells);
    next_ = mark;
  }
}

// ---- what policies ask between steps

void Bench::policy() {
  const int32_t n_keys = s_.long_context, n_queries = 5, page_tokens = 16;
  head("Policies: a layer of 8 heads behind 32,768 tokens, results on the host; five queries of four heads each; pages of 16 tokens",
       {"KV", "top_keys of a quarter, ms", "key_weights, mean, ms", "digests, ms", "digests' share of reading"});
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::q4_0, KvType::k8v4}) {
    if (!budget_.has_time_for(kv_type_name(type))) continue;
    const uint64_t mark = next_;
    const KvFormat format{type, 1, s_.n_kv_heads, s_.head_dim}, digest{KvType::f16, 1, s_.n_kv_heads, s_.head_dim};
    const uint64_t n_tiles = static_cast<uint64_t>(n_keys / kPageTokens), kv = random_kv(type, n_tiles * format.page_bytes());
    const uint64_t n_pages = static_cast<uint64_t>(n_keys / page_tokens), digest_tiles = (n_pages + kPageTokens - 1) / kPageTokens;
    const uint64_t digests = take(digest_tiles * digest.page_bytes());
    std::vector<uint64_t> tiles, to;
    for (uint64_t i = 0; i < n_tiles; ++i) tiles.push_back(kv + i * format.page_bytes());
    for (uint64_t i = 0; i < digest_tiles * static_cast<uint64_t>(s_.n_kv_heads); ++i) to.push_back(digests + i * digest.head_bytes());
    StepLimits l;
    l.max_rows = 1, l.max_context = n_keys;
    l.n_heads = s_.n_heads, l.n_kv_heads = s_.n_kv_heads, l.head_dim = s_.head_dim, l.max_in = s_.n_embd, l.max_top_keys = n_keys;
    check(b().set_scratch({take(b().scratch_bytes(l))}, l));
    const int64_t width = int64_t{s_.n_heads} * s_.head_dim;
    const QueryRing ring{{random_floats(static_cast<size_t>(n_queries * width))}, n_queries, 0, 0};
    const float scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim));
    const KeysShape shape{format, s_.n_heads, scale, ring};
    TopKeysShape best;
    static_cast<KeysShape&>(best) = shape;
    best.scoring = {false, KeyScoring::Pooling::avg, 5};
    const int32_t k = n_keys / 4;
    std::vector<uint32_t> found(static_cast<size_t>(s_.n_kv_heads * n_queries * k));
    std::vector<float> weights(static_cast<size_t>(s_.n_kv_heads) * static_cast<size_t>(n_keys));
    std::vector<TopKeysJob> top;
    std::vector<KeyWeightsJob> means;
    std::vector<DigestJob> pages;
    for (int32_t h = 0; h < s_.n_kv_heads; ++h) {
      KeysJob job;
      job.kv_head = h, job.tiles = tiles.data(), job.offset = static_cast<uint64_t>(h) * format.head_bytes(), job.n_keys = n_keys,
      job.n_positions = n_queries;
      TopKeysJob asked;
      static_cast<KeysJob&>(asked) = job;
      asked.k = k, asked.out = &found[static_cast<size_t>(h * n_queries * k)];
      top.push_back(asked);
      KeyWeightsJob mean;
      static_cast<KeysJob&>(mean) = job;
      mean.first_position = n_keys - n_queries, mean.mean = true, mean.out = &weights[static_cast<size_t>(h) * static_cast<size_t>(n_keys)];
      means.push_back(mean);
      DigestJob d;
      d.tiles = tiles.data(), d.offset = job.offset, d.n_pages = static_cast<int32_t>(n_pages),
      d.digests = &to[static_cast<size_t>(h) * digest_tiles];
      pages.push_back(d);
    }
    const auto time = [&](const auto& call) {
      return seconds(s_, [&](int times) {
        for (int i = 0; i < times; ++i) call();
        check(b().synchronize());
      });
    };
    const double top_s = time([&] { b().keys()->top_keys(top, best); }), mean_s = time([&] { b().keys()->key_weights(means, shape); });
    const double digest_s = time([&] { b().summaries()->digest(pages, {format, page_tokens, DigestKind::range}); });
    const double bytes = static_cast<double>(n_keys) * s_.n_kv_heads * static_cast<double>(format.key_bytes());
    row({kv_type_name(type), number(top_s * 1e3, 3), number(mean_s * 1e3, 3), number(digest_s * 1e3, 3),
         percent(bytes / read_rate_ / digest_s)});
    next_ = mark;
  }
}

constexpr struct {
  const char* name;
  void (Bench::*run)();
} kSections[] = {{"limits", &Bench::limits},   {"gather", &Bench::gather},       {"matvec", &Bench::matvec},
                 {"decode", &Bench::decode},   {"sampling", &Bench::sampling},   {"products", &Bench::products},
                 {"prefill", &Bench::prefill}, {"attention", &Bench::attention}, {"policy", &Bench::policy}};

int run(int argc, char** argv) {
  const auto has = [&](const char* word) {
    return std::any_of(argv + 1, argv + argc, [&](const char* arg) { return std::strcmp(arg, word) == 0; });
  };
  const bool tiny = has("tiny");
  double limit = 0;
  std::string predictions;
  bool all = true;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    char* end = nullptr;
    if (arg.rfind("seconds=", 0) == 0 && (limit = std::strtod(argv[i] + 8, &end)) > 0 && *end == 0) continue;
    if (arg.rfind("predictions=", 0) == 0 && arg.size() > 12) {
      predictions = arg.substr(12);
      continue;
    }
    if (arg == "tiny" || arg == "late") continue;
    all = false;
    if (std::none_of(std::begin(kSections), std::end(kSections), [&](const auto& s) { return arg == s.name; })) {
      std::fprintf(stderr, "usage: bench_gpu [tiny] [late] [seconds=N] [predictions=FILE]");
      for (const auto& section : kSections) std::fprintf(stderr, " [%s]", section.name);
      std::fprintf(stderr, "\n");
      return 2;
    }
  }
  for (int i = 0; i < argc; ++i) std::printf("%s%s", i ? " " : "", i ? argv[i] : "bench_gpu");
  std::printf("%s\n", tiny ? ": the figures say nothing, and shapes are not those of the titles" : "");
  Sizes sizes = tiny ? tiny_sizes() : Sizes();
  sizes.late = has("late");
  Bench bench(sizes, predictions, limit);
  for (const auto& section : kSections)
    if (all || has(section.name) || std::strcmp(section.name, "limits") == 0) {
      bench.budget().begin_section();
      (bench.*section.run)();
      bench.budget().end_section();
    }
  return 0;
}

}  // namespace
}  // namespace orrery::bench

int main(int argc, char** argv) { return orrery::bench::run(argc, argv); }

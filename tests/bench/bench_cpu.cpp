// What the CPU backend's operations reach, against what the machine gives: bench_cpu [path] [threads] [cpu-time]
// [SECTION...] [TYPE...]. cpu-time: processor time shared by the threads instead of the wall clock's, for machines
// where others work too. Sections: pool, decode, prefill, shapes, attend, latent, top_keys, rebuild; types as files name them (Q4_0), or
// K8V4; all of them if none is named.
//
// Decode is reported in GB/s of weights (as they lie: bands of IQ3 are longer than its file) or KV read, beside the rate at which the same
// threads can merely read memory (for weights the very same bytes, before and after) and beside what the same kernel does to a matrix of 4
// MB; prefill in GFLOP/s (two per weight and row), beside the rate of the instructions that it is made of (peak.h); both measured by the
// same threads in the same run. A prompt's attention has chunks of 256 rows at the end of 8K and of 32K, in the same units. Section latent
// has 20 query heads that read one row of 576 values, of which 512 are the value (GLM-4.7-Flash). It reports the KV that is read, and the
// products as a share of the floats' rate, next to heads of 128 and 512 in groups of eight. top_keys in keys of 32K of eight heads that
// five queries of four heads are done with, and these keys' bytes. rebuild in F16 keys of every tenth chunk of 8 tokens of 32K, head by
// head, that come of low-rank ones with V beside them: their products against the floats' rate, and the bytes that are read and written.
// Each figure is the median of the passes that fit into a fifth of a second or so; matrices are larger than the caches, but for the one of
// 4 MB.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/checked.h"
#include "runtime/os/thread_pool.h"
#include "runtime/cpu/cpu_backend.h"
#include "runtime/os/os.h"
#include "samples/orrery/measure/peak.h"
#include "tests/bench/shapes.h"
#include "tests/support/kv_tokens.h"
#include "tests/support/random_blocks.h"

namespace orrery {
namespace {

using namespace orrery::testing;

struct Clock {
  bool cpu_time = false;
  int32_t n_threads = 1;
  double now() const {
    timespec t;
    clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9) / (cpu_time ? n_threads : 1);
  }
};

template <class F>
double seconds(const Clock& clock, const F& f) {
  std::vector<double> times;
  double total = 0;
  f();
  while (total < 0.25 || times.size() < 3) {
    const double start = clock.now();
    f();
    times.push_back(clock.now() - start);
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <class T>
Ptr<T> pointer(T* p) {
  return {reinterpret_cast<uintptr_t>(p)};
}

os::Region region(uint64_t bytes) {
  auto made = os::Region::allocate(bytes);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().message());
    std::exit(1);
  }
  return std::move(made).value();
}

// Every cache line, by all threads, in stretches as the backend's.
double read_bandwidth(const Clock& clock, const os::Region& memory) {
  constexpr uint64_t kStretch = uint64_t{256} << 10;
  auto pool = ThreadPool::make(clock.n_threads, os::available_processors());
  if (!pool.ok()) return 0;
  std::vector<uint64_t> sums(memory.size() / kStretch);
  pool.value()->begin_burst();
  const double s = seconds(clock, [&] {
    pool.value()->run(static_cast<int64_t>(sums.size()), [&](int64_t i, int32_t) {
      const uint64_t* p = reinterpret_cast<const uint64_t*>(memory.data() + static_cast<uint64_t>(i) * kStretch);
      uint64_t lanes[16] = {};
      for (uint64_t j = 0; j < kStretch / 8; j += 16)
        for (uint64_t k = 0; k < 16; ++k) lanes[k] += p[j + k];
      for (uint64_t lane : lanes) sums[static_cast<size_t>(i)] += lane;
    });
  });
  pool.value()->end_burst();
  return static_cast<double>(sums.size() * kStretch) / s * 1e-9;
}
double read_bandwidth(const Clock& clock) {
  const os::Region memory = region(uint64_t{256} << 20);
  std::memset(memory.data(), 1, memory.size());
  return read_bandwidth(clock, memory);
}

// Operations per second of instructions over registers, by all threads; 0 where the path has none to measure.
double peak_rate(const Clock& clock, const std::string& path, peak::Kind kind) {
  if (!peak::known(path, kind)) return 0;
  auto pool = ThreadPool::make(clock.n_threads, os::available_processors());
  if (!pool.ok()) return 0;
  constexpr int64_t kItems = 64, kTimes = 2000;
  std::vector<double> done(kItems);
  pool.value()->begin_burst();
  const double s = seconds(
      clock, [&] { pool.value()->run(kItems, [&](int64_t i, int32_t) { done[static_cast<size_t>(i)] = peak::run(path, kind, kTimes); }); });
  pool.value()->end_burst();
  return kItems * done[0] / s;
}

struct Bench {
  Backend& backend;
  Clock clock;
  std::vector<std::string> types;  // that are measured; empty: all
  StepLimits limits{512, 40000, 32, 8, 576, 18944, 32768};
  os::Region scratch;

  Bench(Backend& b, const Clock& c, std::vector<std::string> t)
      : backend(b), clock(c), types(std::move(t)), scratch(region(b.scratch_bytes(limits))) {
    if (!backend.set_scratch(pointer(scratch.data()), limits).ok()) std::exit(1);
  }
  bool wants(const char* type) const { return types.empty() || std::find(types.begin(), types.end(), type) != types.end(); }

  // `bandwidth`, where given: at which the same weights can be read.
  double matmul(TensorType type, Phase phase, int64_t n_out, int64_t n_in, int32_t n_rows, double* bandwidth = nullptr) {
    const os::Region weights = region(row_bytes(type, static_cast<uint64_t>(n_out * n_in)));
    // A few rows of random blocks, repeated.
    const uint64_t pattern = row_bytes(type, static_cast<uint64_t>(16 * n_in));
    fill_random_blocks(type, weights.data(), static_cast<uint64_t>(16 * n_in), 1, 0.02f);
    for (uint64_t at = pattern; at < weights.size(); at += pattern)
      std::memcpy(weights.data() + at, weights.data(), std::min(pattern, weights.size() - at));
    const uint64_t rows_in = static_cast<uint64_t>(n_rows * n_in), rows_out = static_cast<uint64_t>(n_rows * n_out);
    const os::Region x = region(rows_in * sizeof(float)), out = region(rows_out * sizeof(float));  // aligned, as the arena's
    Random random(1);
    for (uint64_t i = 0; i < rows_in; ++i) reinterpret_cast<float*>(x.data())[i] = random.normal();
    const uint64_t placed = backend.weight_bytes(type, n_out, n_in);
    Weight weight;
    if (!backend.reserve_arena(placed).ok() ||
        !backend.place_weight(type, n_out, n_in, weights.data(), placed ? backend.arena() : Ptr<std::byte>{}, &weight).ok())
      std::exit(1);
    const Product product{&weight, {}, pointer(reinterpret_cast<float*>(out.data())), n_out, false};
    const std::vector<Row> rows(static_cast<size_t>(n_rows));
    const double before = bandwidth ? read_bandwidth(clock, weights) : 0;
    backend.begin_step({phase, rows, {}, {}});
    const double s = seconds(clock, [&] { backend.matmul({&product, 1}, {reinterpret_cast<uintptr_t>(x.data())}, n_in, n_rows); });
    backend.end_step();
    if (bandwidth) *bandwidth = (before + read_bandwidth(clock, weights)) / 2;
    return s;
  }

  // A published model's layers, one after the other, as many as exceed the caches: seconds of one layer's products with n rows.
  // Products of one input are one call, as in a step. bytes: of a layer's weights.
  double layer(const bench::ModelShape& shape, TensorType type, Phase phase, int32_t n_rows, uint64_t* bytes, double* bandwidth) {
    constexpr uint64_t kBeyondCaches = uint64_t{192} << 20;
    const int64_t q = int64_t{shape.n_heads} * shape.head_dim, kv = int64_t{shape.n_kv_heads} * shape.head_dim, n = shape.n_embd,
                  ff = shape.n_ff;
    const std::pair<int64_t, int64_t> matrices[] = {{q, n}, {kv, n}, {kv, n}, {n, q}, {ff, n}, {ff, n}, {n, ff}};  // outputs, inputs
    constexpr size_t kMatrices = std::size(matrices);
    *bytes = 0;
    uint64_t placed_bytes = 0;  // of a layer
    for (const auto& [n_out, n_in] : matrices) {
      *bytes += align_up(row_bytes(type, static_cast<uint64_t>(n_out * n_in)), 64);
      placed_bytes += align_up(backend.weight_bytes(type, n_out, n_in), 64);
    }
    const int64_t n_layers = static_cast<int64_t>(kBeyondCaches / *bytes) + 1;
    const os::Region weights = region(*bytes * static_cast<uint64_t>(n_layers));
    const uint64_t pattern =
        std::min<uint64_t>(static_cast<uint64_t>(16 * ff), *bytes / type_traits(type)->block_bytes * type_traits(type)->block_elements);
    const uint64_t pattern_bytes = row_bytes(type, pattern / 256 * 256);
    fill_random_blocks(type, weights.data(), pattern / 256 * 256, 1, 0.02f);
    for (uint64_t at = pattern_bytes; at < weights.size(); at += pattern_bytes)
      std::memcpy(weights.data() + at, weights.data(), std::min(pattern_bytes, weights.size() - at));
    if (!backend.reserve_arena(std::max<uint64_t>(placed_bytes * static_cast<uint64_t>(n_layers), 64)).ok()) std::exit(1);
    std::vector<Weight> placed;
    for (int64_t i = 0; i < n_layers; ++i) {
      uint64_t at = *bytes * static_cast<uint64_t>(i), to_at = placed_bytes * static_cast<uint64_t>(i);
      for (const auto& [n_out, n_in] : matrices) {
        Weight weight;
        const uint64_t to_bytes = backend.weight_bytes(type, n_out, n_in);
        const Ptr<std::byte> to = to_bytes ? backend.arena() + to_at : Ptr<std::byte>{};
        if (!backend.place_weight(type, n_out, n_in, weights.data() + at, to, &weight).ok()) std::exit(1);
        placed.push_back(weight);
        at += align_up(row_bytes(type, static_cast<uint64_t>(n_out * n_in)), 64);
        to_at += align_up(to_bytes, 64);
      }
    }
    const int64_t widest = std::max({q + 2 * kv, 2 * ff, n});
    const os::Region x = region(static_cast<uint64_t>(n_rows * widest) * sizeof(float)), out = region(x.size());
    Random random(1);
    for (int64_t i = 0; i < n_rows * widest; ++i) reinterpret_cast<float*>(x.data())[i] = random.normal();
    const auto multiply = [&](const Weight* first, size_t count) {
      Product products[3];
      int64_t stride = 0, offset = 0;
      for (size_t i = 0; i < count; ++i) stride += first[i].n_rows;
      for (size_t i = 0; i < count; offset += first[i++].n_rows)
        products[i] = {&first[i], {}, pointer(reinterpret_cast<float*>(out.data()) + offset), stride, false};
      backend.matmul({products, count}, {reinterpret_cast<uintptr_t>(x.data())}, first->n_cols, n_rows);
    };
    const double before = bandwidth ? read_bandwidth(clock, weights) : 0;
    const std::vector<Row> rows(static_cast<size_t>(n_rows));
    backend.begin_step({phase, rows, {}, {}});
    const double s = seconds(clock, [&] {
      for (int64_t i = 0; i < n_layers; ++i) {
        const Weight* layer = &placed[static_cast<size_t>(i) * kMatrices];
        multiply(layer, 3), multiply(layer + 3, 1), multiply(layer + 4, 2), multiply(layer + 6, 1);
      }
    });
    backend.end_step();
    if (bandwidth) *bandwidth = (before + read_bandwidth(clock, weights)) / 2;
    return s / static_cast<double>(n_layers);
  }

  // Attention of n rows at the end of `context` tokens, of 32 heads over 8; resident: each KV head's tiles together, as
  // in a session under a policy.
  double attend(KvType type, int32_t head_dim, Phase phase, int32_t context, int32_t n_rows, bool resident) {
    return attend(KvFormat{type, 1, limits.n_kv_heads, head_dim}, limits.n_heads, phase, context, n_rows, resident);
  }
  double attend(const KvFormat& format, int32_t n_heads, Phase phase, int32_t context, int32_t n_rows, bool resident) {
    const KvType type = format.type;
    const auto head_dim = static_cast<uint64_t>(format.head_dim);
    const int32_t n_pages = context / kPageTokens;
    const os::Region pages = region(static_cast<uint64_t>(n_pages) * format.page_bytes());
    std::vector<uint64_t> addresses, tiles;
    if (format.shared_values > 0)
      fill_random_blocks(key_tensor_type(type), pages.data(), format.page_bytes() / format.token_bytes() * head_dim, 1, 1.0f);
    else fill_random_tokens(type, pages.data(), head_dim, format.page_bytes() / format.token_bytes(), 1);
    for (int32_t i = 0; i < n_pages; ++i) {
      std::byte* page = pages.data() + static_cast<uint64_t>(i) * format.page_bytes();
      if (i) std::memcpy(page, pages.data(), format.page_bytes());
      addresses.push_back(reinterpret_cast<uintptr_t>(page));
    }
    for (uint64_t at = 0; at < pages.size(); at += format.head_bytes()) tiles.push_back(reinterpret_cast<uintptr_t>(pages.data() + at));
    std::vector<HeadView> heads;
    for (int32_t h = 0; resident && h < format.n_kv_heads; ++h) heads.push_back({&tiles[static_cast<size_t>(h * n_pages)], context, 0});
    std::vector<Row> rows;
    for (int32_t i = 0; i < n_rows; ++i) rows.push_back({0, context - n_rows + i, 0});
    const int64_t width = int64_t{n_heads} * format.head_dim;
    std::vector<float> q(static_cast<size_t>(n_rows * width)), out(q.size());
    Random random(2);
    for (float& v : q) v = random.normal();
    const KvView view{addresses.data(), n_pages};
    backend.begin_step({phase, rows, {&view, 1}, format, heads, format});
    const double s = seconds(clock, [&] {
      backend.attend(0, {reinterpret_cast<uintptr_t>(q.data())}, pointer(out.data()),
                     {n_heads, width, int64_t{n_heads} * format.value_dim(), 0.09f, 0});
    });
    backend.end_step();
    return s;
  }

  // The best quarter of `n_keys` keys of each head, by five queries of four query heads, in HeteroCache's scoring.
  double top_keys(const KvFormat& format, int32_t n_keys) {
    const int32_t n_queries = 5, k = n_keys / 4, n_heads = 4 * format.n_kv_heads;
    const os::Region pages = region(static_cast<uint64_t>(n_keys / kPageTokens) * format.page_bytes());
    std::vector<uint64_t> addresses;
    for (uint64_t at = 0; at < pages.size(); at += format.page_bytes()) {
      fill_random_tokens(format.type, pages.data() + at, static_cast<uint64_t>(format.head_dim), format.page_bytes() / format.token_bytes(),
                         at + 1);
      addresses.push_back(reinterpret_cast<uintptr_t>(pages.data() + at));
    }
    std::vector<float> ring(static_cast<size_t>(n_queries * n_heads * format.head_dim));
    Random random(3);
    for (float& v : ring) v = random.normal();
    std::vector<uint32_t> out(static_cast<size_t>(format.n_kv_heads * n_queries * k));
    std::vector<TopKeysJob> jobs;
    for (int32_t h = 0; h < format.n_kv_heads; ++h) {
      TopKeysJob& job = jobs.emplace_back();
      job.kv_head = h;
      job.tiles = addresses.data(), job.offset = static_cast<uint64_t>(h) * format.head_bytes();
      job.n_keys = n_keys;
      job.n_positions = n_queries;
      job.k = k, job.out = &out[static_cast<size_t>(h * n_queries * k)];
    }
    const TopKeysShape shape{{format, n_heads, 0.125f, {pointer(ring.data()), n_queries}}, {false, KeyScoring::Pooling::avg, 5}};
    return seconds(clock, [&] { backend.keys()->top_keys(jobs, shape); });
  }

  // Keys and values of some chunks, as a step of ShadowKV's fetches them.
  double rebuild(const KvFormat& format, int32_t rank, int32_t n_tokens, Span<const int32_t> chunks, int32_t chunk) {
    LowRankKeys keys;
    keys.kv = format, keys.rank = rank;
    const auto halves = [](uint64_t n, uint64_t seed) {
      os::Region memory = region(2 * n);
      fill_random_blocks(TensorType::f16, memory.data(), n, seed, 1.0f);
      return memory;
    };
    const auto n_rank = static_cast<uint64_t>(rank), n_pages_bytes = static_cast<uint64_t>(n_tokens / kPageTokens) * format.page_bytes();
    const os::Region rows = halves(static_cast<uint64_t>(n_tokens) * n_rank, 1),
                     basis = halves(static_cast<uint64_t>(keys.width()) * n_rank, 2);
    const os::Region pages = halves(n_pages_bytes / 2, 3), slots = region(n_pages_bytes);
    const std::vector<float> frequencies(static_cast<size_t>(format.head_dim / 2), 0.01f);
    keys.rope = {true, format.head_dim, frequencies.data(), 1.0f};  // neighbours, as Llama's files have them
    keys.rows = pointer(rows.data()), keys.basis = pointer(basis.data());
    const int32_t n_pages = n_tokens / kPageTokens;
    const std::vector<float> turns(static_cast<size_t>((n_pages + kPageTokens) * format.head_dim), 0.7f);
    keys.page_rotations = pointer(turns.data()), keys.rotations = keys.page_rotations + static_cast<uint64_t>(n_pages * format.head_dim);
    std::vector<RebuiltRun> runs;
    const auto n_heads = static_cast<size_t>(format.n_kv_heads);
    for (size_t head = 0; head < n_heads; ++head) {
      std::byte* slot = slots.data() + head * (slots.size() / n_heads);
      for (const int32_t first : chunks)
        for (int32_t p = first * chunk; p < (first + 1) * chunk; ++p, slot += format.token_bytes()) {
          const std::byte* token = pages.data() + static_cast<uint64_t>(p / kPageTokens) * format.page_bytes() +
                                   head * format.head_bytes() + static_cast<uint64_t>(p % kPageTokens) * format.token_bytes();
          runs.push_back({p, 1, pointer(slot), pointer(token + format.key_bytes()), static_cast<int32_t>(head)});
        }
    }
    return seconds(clock, [&] { backend.low_rank()->rebuild_keys(keys, format.type, runs); });
  }
};

void bench_decode(Bench& bench) {
  std::printf("\n%-8s %12s %12s %9s %16s\n", "weights", "decode GB/s", "read GB/s", "of read", "from caches GB/s");
  for (const TypeTraits& type : kTypeTraits) {
    if (!bench.wants(type.name)) continue;
    const int64_t n_in = 4096;
    const uint64_t in_file = row_bytes(type.type, static_cast<uint64_t>(n_in)), of_eight = bench.backend.weight_bytes(type.type, 8, n_in);
    const uint64_t bytes = of_eight ? of_eight / 8 : in_file;
    const int64_t n_out = static_cast<int64_t>((uint64_t{128} << 20) / bytes) / 8 * 8;
    double bandwidth = 0;
    const auto rate = [&](int64_t rows, double* read) {
      return static_cast<double>(bytes) * static_cast<double>(rows) * 1e-9 / bench.matmul(type.type, Phase::decode, rows, n_in, 1, read);
    };
    const double decode = rate(n_out, &bandwidth), cached = rate(n_out / 256 * 8, nullptr);
    std::printf("%-8s %12.1f %12.1f %8.0f%% %16.1f\n", type.name, decode, bandwidth, 100 * decode / bandwidth, cached);
  }
}

void bench_prefill(Bench& bench) {
  const std::string path = bench.backend.info().instruction_set;
  const auto rate = [&](peak::Kind kind) { return peak_rate(bench.clock, path, kind) * 1e-9; };
  const double floats = rate(peak::Kind::floats), bytes = rate(peak::Kind::bytes), bytes_16_bit = rate(peak::Kind::bytes_16_bit),
               bf16 = rate(peak::Kind::bf16);
  if (floats > 0) std::printf("\npeak: %.0f GFLOP/s of floats", floats);
  if (bf16 > 0) std::printf(", %.0f of bf16", bf16);
  if (bytes > 0) std::printf(", %.0f of bytes, %.0f of bytes summed in 16 bits", bytes, bytes_16_bit);
  std::printf("\n");
  std::printf("%-8s", "prefill");
  const int32_t counts[] = {512, 256, 8};
  for (int32_t n : counts) std::printf(" %6d rows GFLOP/s", n);
  std::printf(" %10s %12s\n", "of peak", bytes_16_bit > 0 ? "(in 16 bits)" : "");
  for (const TypeTraits& type : kTypeTraits) {
    if (!bench.wants(type.name)) continue;
    std::printf("%-8s", type.name);
    double first = 0;
    for (int32_t n : counts) {
      const double s = bench.matmul(type.type, Phase::prefill, 4096, 4096, n);
      const double reached = 2.0 * 4096 * 4096 * n * 1e-9 / s;
      if (n == counts[0]) first = reached;
      std::printf(" %19.0f", reached);
    }
    const bool is_float = type.block_elements == 1;
    const double own = !is_float && bytes > 0 ? bytes : bf16 > 0 && type.type != TensorType::f32 ? bf16 : floats;
    if (floats > 0) std::printf(" %9.0f%%", 100 * first / own);
    if (bytes_16_bit > 0 && !is_float) std::printf(" %11.0f%%", 100 * first / bytes_16_bit);
    std::printf("\n");
    std::fflush(stdout);
  }
}

// The layers of published models, most of whose rows are no multiples of 256: a generated token's products beside the reading rate, what
// several rows take beside one, and a prompt's.
void bench_shapes(Bench& bench) {
  std::printf("\n%-14s %-8s %9s %12s %10s %8s %9s %9s %9s %16s\n", "layers of", "weights", "MB", "decode GB/s", "read GB/s", "of read",
              "4 rows", "8 rows", "32 rows", "512 rows GFLOP/s");
  for (const bench::ModelShape& shape : bench::kModelShapes)
    for (const TypeTraits& type : kTypeTraits) {
      const bool usual = type.type == TensorType::q8_0 || type.type == TensorType::q5_0 || type.type == TensorType::q4_1 ||
                         type.type == TensorType::q4_0 || type.type == TensorType::q4_k;
      if (bench.types.empty() ? !usual : !bench.wants(type.name)) continue;
      if (shape.n_embd % static_cast<int32_t>(type.block_elements) != 0 || shape.n_ff % static_cast<int32_t>(type.block_elements) != 0)
        continue;
      uint64_t bytes = 0;
      double bandwidth = 0;
      const double one = bench.layer(shape, type.type, Phase::decode, 1, &bytes, &bandwidth),
                   rate = static_cast<double>(bytes) * 1e-9 / one;
      std::printf("%-14s %-8s %9.1f %12.1f %10.1f %7.0f%%", shape.name, type.name, static_cast<double>(bytes) * 1e-6, rate, bandwidth,
                  100 * rate / bandwidth);
      for (const int32_t n : {4, 8, 32}) std::printf(" %8.2fx", bench.layer(shape, type.type, Phase::decode, n, &bytes, nullptr) / one);
      const double weights = static_cast<double>(bytes) / type.block_bytes * type.block_elements;
      std::printf(" %16.0f\n", 2 * weights * 512 * 1e-9 / bench.layer(shape, type.type, Phase::prefill, 512, &bytes, nullptr));
      std::fflush(stdout);
    }
}

void bench_attend(Bench& bench) {
  const std::string path = bench.backend.info().instruction_set;
  const double floats = peak_rate(bench.clock, path, peak::Kind::floats) * 1e-9;
  const double bf16 = peak_rate(bench.clock, path, peak::Kind::bf16) * 1e-9;
  if (floats > 0) std::printf("\npeak: %.0f GFLOP/s of floats", floats);
  if (bf16 > 0) std::printf(", %.0f of bf16: what prompts are held against, but behind F32", bf16);
  std::printf("\n%-8s %8s %12s %9s %14s %9s %16s %10s %12s %10s\n", "KV", "head_dim", "decode GB/s", "of read", "resident GB/s", "of read",
              "prefill GFLOP/s", "of peak", "behind 32K", "of peak");
  for (KvType type : {KvType::f32, KvType::f16, KvType::q8_0, KvType::k8v4, KvType::q4_0})
    for (int32_t head_dim : {64, 128}) {
      if (!bench.wants(kv_type_name(type))) continue;
      const double peak = bf16 > 0 && type != KvType::f32 ? bf16 : floats;
      const int32_t context = 32768, rows = 256;
      const double bytes =
          static_cast<double>(context / kPageTokens) * static_cast<double>(KvFormat{type, 1, 8, head_dim}.page_bytes()) * 1e-9;
      const double bandwidth = read_bandwidth(bench.clock);  // for each line: the machine is not ours alone
      const double pages = bytes / bench.attend(type, head_dim, Phase::decode, context, 1, false);
      const double resident = bytes / bench.attend(type, head_dim, Phase::decode, context, 1, true);
      std::printf("%-8s %8d %12.1f %8.0f%% %14.1f %8.0f%%", kv_type_name(type), head_dim, pages, 100 * pages / bandwidth, resident,
                  100 * resident / bandwidth);
      for (const int32_t behind : {8192, context}) {  // two products of head_dim per visible key and query head
        const double flops = 4.0 * head_dim * 32 * rows * (behind - rows / 2) * 1e-9;
        const double prefill = flops / bench.attend(type, head_dim, Phase::prefill, behind, rows, false);
        std::printf(" %*.0f", behind == context ? 12 : 16, prefill);
        if (peak > 0) std::printf(" %9.0f%%", 100 * prefill / peak);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
}

void bench_latent(Bench& bench) {
  const double floats = peak_rate(bench.clock, bench.backend.info().instruction_set, peak::Kind::floats) * 1e-9;
  struct Heads {
    int32_t dim, shared_values, n_kv_heads, group;
  };
  std::printf("\n%-8s %10s %8s %12s %9s %12s %10s\n", "KV", "head_dim", "group", "decode GB/s", "of read", "GFLOP/s", "of floats");
  for (const KvType type : {KvType::f32, KvType::f16, KvType::q8_0})
    for (const Heads& h : {Heads{128, 0, 4, 8}, Heads{512, 0, 1, 8}, Heads{576, 512, 1, 20}}) {
      if (!bench.wants(kv_type_name(type))) continue;
      constexpr int32_t kContext = 32768;
      const KvFormat format{type, 1, h.n_kv_heads, h.dim, h.shared_values};
      const double bytes = static_cast<double>(kContext / kPageTokens) * static_cast<double>(format.page_bytes()) * 1e-9;
      const double flops = 2.0 * kContext * h.n_kv_heads * h.group * (format.head_dim + format.value_dim()) * 1e-9;
      const double bandwidth = read_bandwidth(bench.clock),
                   s = bench.attend(format, h.n_kv_heads * h.group, Phase::decode, kContext, 1, false);
      std::printf("%-8s %10d %8d %12.1f %8.0f%% %12.0f", kv_type_name(type), h.dim, h.group, bytes / s, 100 * bytes / s / bandwidth,
                  flops / s);
      if (floats > 0) std::printf(" %9.0f%%", 100 * flops / s / floats);
      std::printf("\n");
      std::fflush(stdout);
    }
}

void bench_top_keys(Bench& bench) {
  const double bandwidth = read_bandwidth(bench.clock);
  std::printf("\nstreaming read            %7.1f GB/s\n", bandwidth);
  std::printf("%-8s %12s %12s %9s\n", "top_keys", "Mkeys/s", "keys GB/s", "of read");
  for (KvType type : {KvType::f32, KvType::f16, KvType::q8_0, KvType::k8v4, KvType::q4_0}) {
    if (!bench.wants(kv_type_name(type))) continue;
    const KvFormat format{type, 1, 8, 64};
    const int32_t n_keys = 32768;
    const double keys = 8.0 * n_keys, s = bench.top_keys(format, n_keys);
    const double rate = keys * static_cast<double>(format.key_bytes()) * 1e-9 / s;
    std::printf("%-8s %12.1f %12.2f %8.0f%%\n", kv_type_name(type), keys * 1e-6 / s, rate, 100 * rate / bandwidth);
  }
}

void bench_rebuild(Bench& bench) {
  if (!bench.wants("F16")) return;
  const double peak = peak_rate(bench.clock, bench.backend.info().instruction_set, peak::Kind::floats) * 1e-9,
               bandwidth = read_bandwidth(bench.clock);
  std::printf("\nstreaming read            %7.1f GB/s\n", bandwidth);
  std::printf("%-8s %8s %6s %12s %10s %10s %12s %9s\n", "rebuild", "head_dim", "rank", "Mkeys/s", "GFLOP/s", "of peak", "moved GB/s",
              "of read");
  constexpr int32_t kTokens = 32768, kChunk = 8, kHeads = 8;
  std::vector<int32_t> chunks;
  Random random(4);
  for (int32_t c = 0; c < kTokens / kChunk; ++c)
    if (random.below(10) == 0) chunks.push_back(c);
  for (const int32_t head_dim : {64, 128})
    for (const int32_t rank : {80, 160}) {
      const KvFormat format{KvType::f16, 1, kHeads, head_dim};
      const double s = bench.rebuild(format, rank, kTokens, chunks, kChunk), n = static_cast<double>(chunks.size()) * kChunk * kHeads;
      // Rows and V are read, tokens written, which reads them too.
      const double moved = n * static_cast<double>(2 * rank + 2 * head_dim + 8 * head_dim) * 1e-9 / s,
                   flops = n * 2 * rank * head_dim * 1e-9 / s;
      std::printf("%-8s %8d %6d %12.1f %10.0f", "F16", head_dim, rank, n * 1e-6 / s, flops);
      if (peak > 0) std::printf(" %9.0f%%", 100 * flops / peak);
      std::printf(" %12.1f %8.0f%%\n", moved, 100 * moved / bandwidth);
    }
}

// What a parallel operation costs beside its work: every thread takes one item and waits there for the others, so that
// it lasts until the last one has come; inside a burst, where threads wait awake, and behind a pause in which they went
// to sleep. The wall clock's time.
void bench_pool(Bench& bench) {
  auto made = ThreadPool::make(bench.clock.n_threads, os::available_processors());
  if (!made.ok()) return;
  ThreadPool& pool = *made.value();
  const Clock wall;
  const auto meet = [&] {
    std::atomic<int> missing{pool.n_threads()};
    pool.run(pool.n_threads(), [&](int64_t, int32_t) {
      --missing;
      for (int i = 1; missing > 0; ++i)
        if (i % 1024 == 0) std::this_thread::yield();
    });
  };
  constexpr int kRegions = 1000, kPauses = 200;
  pool.begin_burst();
  const double awake = seconds(wall, [&] {
    for (int i = 0; i < kRegions; ++i) meet();
  });
  pool.end_burst();
  std::vector<double> woken;
  for (int i = 0; i < kPauses; ++i) {
    const timespec pause = {0, 1000000};
    nanosleep(&pause, nullptr);
    const double start = wall.now();
    pool.begin_burst();
    meet();
    woken.push_back(wall.now() - start);
    pool.end_burst();
  }
  std::sort(woken.begin(), woken.end());
  std::printf("\npool: all threads at work and done in %.2f us, after a pause in %.1f us\n", awake / kRegions * 1e6,
              woken[woken.size() / 2] * 1e6);
}

constexpr struct {
  const char* name;
  void (*run)(Bench&);
} kSections[] = {{"pool", bench_pool},     {"decode", bench_decode}, {"prefill", bench_prefill},   {"shapes", bench_shapes},
                 {"attend", bench_attend}, {"latent", bench_latent}, {"top_keys", bench_top_keys}, {"rebuild", bench_rebuild}};

int run(const std::string& path, int32_t n_threads, bool cpu_time, const std::vector<std::string>& words) {
  std::vector<std::string> only, types;
  for (const std::string& word : words) {
    const bool is_type = type_traits_by_name(word) != nullptr || word == kv_type_name(KvType::k8v4);
    if (!is_type && std::none_of(std::begin(kSections), std::end(kSections), [&](const auto& s) { return word == s.name; })) {
      std::fprintf(stderr, "no section or type \"%s\": pool, decode, prefill, shapes, attend, latent, top_keys, rebuild\n", word.c_str());
      return 1;
    }
    (is_type ? types : only).push_back(word);
  }
  auto made = cpu::make_backend({n_threads, path});
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().message());
    return 1;
  }
  Backend& backend = *made.value();
  const int32_t threads = backend.info().n_threads;
  std::printf("instruction set %s, %d threads of %d processors\n", backend.info().instruction_set, threads, os::available_processors());
  Bench bench(backend, {cpu_time, threads}, std::move(types));
  for (const auto& section : kSections)
    if (only.empty() || std::find(only.begin(), only.end(), section.name) != only.end()) section.run(bench);
  return 0;
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const bool cpu_time = args.size() > 2 && args[2] == "cpu-time";
  const size_t sections = std::min<size_t>(args.size(), cpu_time ? 3 : 2);
  return orrery::run(args.empty() ? "auto" : args[0], args.size() > 1 ? std::atoi(args[1].c_str()) : 0, cpu_time,
                     {args.begin() + static_cast<std::ptrdiff_t>(sections), args.end()});
}

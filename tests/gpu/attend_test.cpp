// Tests attention of generated tokens and of prompts (cuda/kernels/attend_decode.cu, attend_prefill.cu) against the CPU backend's plain
// kernels, on the same bytes of K and V.
#include "tests/gpu/kv_pages.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/memory.h"
#include "tests/emulation/cuda/threads.h"
#endif

namespace orrery::attend_test {
namespace {

using namespace testing;

// Bounds, as shares of the largest output. Decode: queries and weights have 22 bits, K and V are exact, tensor cores truncate their sums.
// Prefill: queries, weights, and K and V of all types but F16 are rounded to halves, 2^-12 of each value.
constexpr double kDecodeError = 3e-5, kPrefillError = 2e-3;

struct Case {
  KvType type;
  int32_t dim, n_kv_heads, group;
  std::vector<int32_t> lengths;  // of the sequences, the step's rows included
  std::vector<int32_t> rows;     // the number of each sequence's last tokens that are rows of the step
  int32_t window = 0;
  bool sinks = false;         // of other size for each query head
  int32_t shared_values = 0;  // KvFormat's
};

StepLimits limits(const Case& c, int32_t max_context = 2048) {
  StepLimits l;
  l.max_rows = 256;
  l.max_context = max_context;
  l.n_heads = c.n_kv_heads * c.group, l.n_kv_heads = c.n_kv_heads, l.head_dim = c.dim;
  l.max_in = 256;
  l.n_layers = 2;
  return l;
}

// Outputs with the gaps between strided rows, which stay NaN. first_query: the first of the random values that are queries.
template <class Made = Pages>
std::vector<float> attend(Machine* m, Phase phase, const Case& c, size_t first_query = 0) {
  const KvFormat kv = kv_format(c.type, 2, c.n_kv_heads, c.dim, c.shared_values);
  std::vector<Row> rows;
  for (size_t s = 0; s < c.lengths.size(); ++s)
    for (int32_t p = c.lengths[s] - c.rows[s]; p < c.lengths[s]; ++p) rows.push_back({0, p, static_cast<int32_t>(s)});
  const size_t width = static_cast<size_t>(c.n_kv_heads * c.group * c.dim), q_stride = width + 16;
  const size_t out_width = static_cast<size_t>(c.n_kv_heads * c.group * kv.value_dim()), out_stride = out_width + 3;
  std::vector<float> queries = normal_values(first_query + (rows.size() - 1) * q_stride + width, 3, 2.0f);
  queries.erase(queries.begin(), queries.begin() + static_cast<ptrdiff_t>(first_query));
  Buffer<float> sinks(m, normal_values(static_cast<size_t>(c.n_kv_heads * c.group), 9, 4.0f));
  Buffer<float> q(m, queries), out(m, (rows.size() - 1) * out_stride + out_width);
  std::vector<std::unique_ptr<Made>> pages;  // last: nothing waits for the device from here on
  std::vector<KvView> views;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    pages.push_back(std::make_unique<Made>(m, kv, c.lengths[s], 20 + s));
    views.push_back(pages.back()->view());
  }
  Step step;
  step.phase = phase;
  step.kv = kv;
  step.rows = rows;
  step.sequences = views;
  AttendShape shape;
  shape.n_heads = c.n_kv_heads * c.group;
  shape.q_stride = static_cast<int64_t>(q_stride), shape.out_stride = static_cast<int64_t>(out_stride);
  shape.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  shape.window = c.window;
  if (c.sinks) shape.sinks = sinks.cptr();
  (*m)->begin_step(step);
  (*m)->attend(1, q.cptr(), out.ptr(), shape);
  m->end();
  return out.get();
}

void expect_as_plain(Phase phase, const Case& c) {
  SCOPED_TRACE(std::string(kv_type_name(c.type)) + " of " + std::to_string(c.dim) + ", group " + std::to_string(c.group) + ", length " +
               std::to_string(c.lengths[0]) + ", window " + std::to_string(c.window));
  const auto [expected, got] = on_both(limits(c), [&](Machine* m) { return attend(m, phase, c); });
  expect_near(got, expected, phase == Phase::decode ? kDecodeError : kPrefillError);
}

constexpr int32_t kDims[] = {16, 32, 64, 80, 96, 128, 256, 512};
bool attends(KvType type, int32_t dim) { return stores(type, dim) && (dim < 512 || type != KvType::f32); }  // CudaBackend::check_heads()

TEST(GpuAttendDecode, EveryTypeAndHeadSize) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : kDims)
      if (attends(type, dim)) expect_as_plain(Phase::decode, {type, dim, 2, 3, {77}, {1}});
}

// Latent attention: rows that are keys and values at once, for the query heads of all.
Case latent(KvType type, int32_t dim, int32_t values, int32_t group, std::vector<int32_t> lengths, std::vector<int32_t> rows) {
  return {type, dim, 1, group, std::move(lengths), std::move(rows), 0, false, values};
}
TEST(GpuAttendDecode, ValuesThatAreAPartOfKeys) {
  for (const KvType type : {KvType::f32, KvType::f16})
    for (const int32_t group : {1, 5, 12, 20}) {
      expect_as_plain(Phase::decode, latent(type, 48, 32, group, {77}, {1}));
      expect_as_plain(Phase::decode, latent(type, 96, 64, group, {130, 3}, {2, 1}));
    }
  for (const int32_t length : {1, 17, 64, 200}) expect_as_plain(Phase::decode, latent(KvType::f16, 576, 512, 20, {length}, {1}));
}
TEST(GpuAttendPrefill, ValuesThatAreAPartOfKeys) {
  for (const KvType type : {KvType::f32, KvType::f16})
    for (const int32_t group : {1, 5, 12, 20}) {
      expect_as_plain(Phase::prefill, latent(type, 48, 32, group, {83}, {11}));
      expect_as_plain(Phase::prefill, latent(type, 96, 64, group, {130, 20}, {30, 20}));
    }
  for (const int32_t length : {1, 17, 90})
    expect_as_plain(Phase::prefill, latent(KvType::f16, 576, 512, 20, {length}, {std::min(length, 21)}));
}

TEST(GpuAttendDecode, EveryGroup) {
  for (const int32_t group : {1, 2, 7, 8, 9, 17}) expect_as_plain(Phase::decode, {KvType::f16, 64, 2, group, {130}, {1}});
  for (const int32_t group : {1, 2, 4, 8, 9}) expect_as_plain(Phase::decode, {KvType::f16, 512, 2, group, {130}, {1}});
}

TEST(GpuAttendDecode, EveryLength) {
  for (const KvType type : {KvType::f16, KvType::q4_0, KvType::k8v4})
    for (const int32_t length : {1, 15, 16, 17, 63, 64, 65, 128, 129, 300}) expect_as_plain(Phase::decode, {type, 32, 1, 2, {length}, {1}});
}

TEST(GpuAttendDecode, LongerSplits) {
  expect_as_plain(Phase::decode, {KvType::f16, 32, 1, 2, {2047}, {1}});
  for (const Case& c : {Case{KvType::f16, 32, 1, 2, {2049}, {1}}, Case{KvType::f16, 32, 1, 2, {2300}, {1}},
                        Case{KvType::f32, 256, 1, 1, {2300}, {1}}}) {  // the last: K and V of a strip take turns in shared memory
    const auto [expected, got] = on_both(limits(c, 2300), [&](Machine* m) { return attend(m, Phase::decode, c); });
    expect_near(got, expected, kDecodeError);
  }
}

TEST(GpuAttendDecode, Windows) {
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::k8v4})
    for (const int32_t window : {1, 16, 50, 64, 200}) expect_as_plain(Phase::decode, {type, 64, 2, 2, {170}, {1}, window});
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::q4_0, KvType::k8v4})
    for (const int32_t window : {1, 50}) expect_as_plain(Phase::decode, {type, 512, 1, 2, {170}, {1}, window});
}

TEST(GpuAttendDecode, Sinks) {
  for (const KvType type : {KvType::f16, KvType::q8_0})
    for (const int32_t dim : {64, 512})
      for (const int32_t window : {0, 50}) expect_as_plain(Phase::decode, {type, dim, 2, 4, {170}, {2}, window, true});
}

TEST(GpuAttendDecode, RowsOfSeveralSequences) { expect_as_plain(Phase::decode, {KvType::f16, 64, 2, 4, {70, 3, 129}, {3, 1, 2}}); }

// A model's scratch memory is planned for its largest heads, and serves layers whose heads are smaller: more of their rows run in a wave.
TEST(GpuAttendDecode, ScratchOfLargeHeadsHoldsWavesOfSmallOnes) {
  for (const int32_t n_heads : {1, 8, 20, 32, 64})
    for (const int32_t context : {2048, 40000}) {
      Case large{KvType::f16, 512, 1, n_heads, {}, {}}, small{KvType::f16, 64, 1, n_heads, {}, {}};
      Machine m(true, limits(large));
      EXPECT_GE(m->scratch_bytes(limits(large, context)), m->scratch_bytes(limits(small, context)))
          << n_heads << " heads, context " << context;
    }
}

// A row's bits do not depend on other rows.
TEST(GpuAttendDecode, ARowDoesNotKnowItsNeighbours) {
  const Case all{KvType::f16, 64, 2, 4, {150}, {5}};
  Machine m(true, limits(all));
  const std::vector<float> together = attend(&m, Phase::decode, all);
  Case first = all;
  first.lengths = {146}, first.rows = {1};
  const std::vector<float> alone = attend(&m, Phase::decode, first);
  EXPECT_TRUE(same_bits(together.data(), alone.data(), alone.size()));
}

// Rows whose splits differ in number and length, with windows, and more rows than a wave has: each has the bits of its own step.
TEST(GpuAttendDecode, EachRowHasTheBitsOfAStepOfItsOwn) {
  for (const Case& all :
       {Case{KvType::f16, 32, 3, 2, {2051}, {6}}, Case{KvType::f16, 32, 2, 9, {130}, {3}}, Case{KvType::f16, 32, 1, 2, {67}, {35}},
        Case{KvType::q8_0, 64, 2, 2, {300}, {5}, 70}, Case{KvType::k8v4, 32, 2, 3, {140}, {4}, 50}}) {
    Machine m(true, limits(all, 2051));
    const size_t width = static_cast<size_t>(all.n_kv_heads * all.group * all.dim), q_stride = width + 16, out_stride = width + 3;
    const std::vector<float> together = attend(&m, Phase::decode, all);
    for (int32_t r = 0; r < all.rows[0]; ++r) {
      Case one = all;
      one.lengths[0] = all.lengths[0] - all.rows[0] + 1 + r, one.rows[0] = 1;
      const std::vector<float> alone = attend(&m, Phase::decode, one, static_cast<size_t>(r) * q_stride);
      ASSERT_TRUE(same_bits(together.data() + static_cast<size_t>(r) * out_stride, alone.data(), width))
          << "row " << r << " of " << all.rows[0];
    }
  }
}

#ifdef ORRERY_EMULATED
// The order of threads does not change results: no barrier is missing.
TEST(GpuAttendDecode, ThreadsRunInAnyOrder) {
  for (const Case& c : {latent(KvType::f16, 576, 512, 20, {90}, {1}), latent(KvType::f32, 48, 32, 20, {90}, {1}),
                        Case{KvType::f32, 64, 2, 9, {200, 90}, {1, 2}}, Case{KvType::f16, 64, 2, 9, {200, 90}, {1, 2}},
                        Case{KvType::q8_0, 64, 2, 9, {200, 90}, {1, 2}}, Case{KvType::q4_0, 64, 2, 9, {200, 90}, {1, 2}},
                        Case{KvType::k8v4, 64, 2, 9, {200, 90}, {1, 2}}, Case{KvType::f16, 512, 1, 4, {90}, {1}},
                        Case{KvType::k8v4, 512, 1, 4, {90}, {1}}}) {
    Machine m(true, limits(c));
    const std::vector<float> forwards = attend(&m, Phase::decode, c);
    emulated::set_reversed(true);
    const std::vector<float> backwards = attend(&m, Phase::decode, c);
    emulated::set_reversed(false);
    EXPECT_EQ(std::memcmp(forwards.data(), backwards.data(), forwards.size() * sizeof(float)), 0)
        << kv_type_name(c.type) << " of " << c.dim;
  }
}
#endif

// A key with a score of -infinity has weight 0. A NaN remains visible in the output.
TEST(GpuAttendDecode, WhatIsNotFinite) {
  const KvFormat kv = kv_format(KvType::f16, 1, 1, 32);
  const auto [expected, got] = on_both(limits({KvType::f16, 32, 1, 2, {}, {}}), [&](Machine* m) {
    const Pages pages(m, kv, 20, 4);
    const KvView view = pages.view();
    std::vector<float> queries = normal_values(4 * 32, 5);
    for (size_t i = 0; i < 32; ++i) queries[32 + i] = 0.0f;
    queries[64] = NAN;
    Buffer<float> q(m, queries), out(m, 4 * 32);
    Step step;
    step.kv = kv;
    step.sequences = {&view, 1};
    AttendShape shape;
    shape.n_heads = 2;
    shape.q_stride = shape.out_stride = 64;
    shape.scale = 1.0f;
    m->begin(Phase::decode, 2, 18, step);
    (*m)->attend(0, q.cptr(), out.ptr(), shape);
    m->end();
    return out.get();
  });
  expect_near(got, expected, kDecodeError);
  EXPECT_TRUE(std::isnan(got[64])) << "the test asks nothing";
}

// Resident heads with any number of slots, one head after another, in any type, with and without compensation tokens, whose weights are
// numbers or logarithms, and whose V is one or one for each query head. The graph runs again with other lengths and other tokens.
TEST(GpuAttendDecode, ResidentHeads) {
  constexpr int32_t kLayers = 2, kKvHeads = 3;
  struct Slots {
    KvType type;
    int32_t dim, group = 2;
  };
  for (const Slots slots :
       {Slots{KvType::f16, 64}, Slots{KvType::f32, 80}, Slots{KvType::q8_0, 96}, Slots{KvType::q4_0, 32}, Slots{KvType::k8v4, 32},
        Slots{KvType::k8v4, 96}, Slots{KvType::f16, 32, 11}, Slots{KvType::f16, 512, 4}, Slots{KvType::q8_0, 512}}) {
    SCOPED_TRACE(kv_type_name(slots.type));
    const KvFormat kv = kv_format(KvType::f32, kLayers, kKvHeads, slots.dim),
                   heads_kv = kv_format(slots.type, kLayers, kKvHeads, slots.dim);
    const auto [expected, got] = on_both(limits({KvType::f32, slots.dim, kKvHeads, slots.group, {}, {}}), [&](Machine* m) {
      const std::vector<int32_t> capacities = {1, 65, 130, 3, 64, 19};
      int32_t n_slots = 0;
      for (const int32_t c : capacities) n_slots += c;
      const KvFormat one = kv_format(slots.type, 1, 1, slots.dim);
      std::vector<std::byte> bytes((static_cast<uint64_t>(n_slots) * one.token_bytes() + 63) / 64 * 64);  // as HeadStore's
      Random random(5);
      for (int32_t s = 0; s < n_slots; ++s) store_token(one, s, &random, bytes.data());
      Buffer<std::byte> store(m, bytes);
      const Pages pages(m, kv, 100, 4);
      const KvView view = pages.view();
      const size_t width = static_cast<size_t>(kKvHeads * slots.group * slots.dim);
      Buffer<float> q(m, normal_values(width, 6)), out(m, width);
      const auto mean_values = 2 * static_cast<uint64_t>(slots.dim);
      Buffer<float> means(m, normal_values(capacities.size() * mean_values, 7));
      std::vector<float> weights_as_logs = normal_values(capacities.size() * static_cast<size_t>(slots.group), 8, 3);
      weights_as_logs[1] = -INFINITY, weights_as_logs[2] = 200, weights_as_logs[5] = -200;
      Buffer<float> logs(m, weights_as_logs);
      const auto of_group = static_cast<uint64_t>(slots.group * slots.dim);
      Buffer<float> values(m, normal_values(capacities.size() * of_group, 9));
      std::vector<float> all;
      for (const int32_t missing : {0, 1, 2, 3}) {
        std::vector<std::vector<uint64_t>> tiles(capacities.size());
        std::vector<HeadView> heads;
        uint64_t first = store.address();
        for (size_t h = 0; h < tiles.size(); ++h) {
          for (int32_t t = 0; t * kPageTokens < capacities[h]; ++t) tiles[h].push_back(first + static_cast<uint64_t>(t) * one.head_bytes());
          heads.push_back({tiles[h].data(),
                           std::max(1, capacities[h] - missing),
                           first,
                           {},
                           means.cptr() + h * mean_values,
                           static_cast<float>(missing) * static_cast<float>(h % 3) * (h == 1 ? .37f : 40)});
          if (missing > 1 && h % 4 != 3) heads.back().compensation_logs = logs.cptr() + h * static_cast<uint64_t>(slots.group);
          if (missing > 2 && h % 2 == 0) heads.back().compensation_values = values.cptr() + h * of_group;
          first += static_cast<uint64_t>(capacities[h]) * one.token_bytes();
        }
        Step step;
        step.kv = kv, step.heads_kv = heads_kv;
        step.sequences = {&view, 1};
        step.heads = heads;
        AttendShape shape;
        shape.n_heads = kKvHeads * slots.group;
        shape.q_stride = shape.out_stride = static_cast<int64_t>(width);
        shape.scale = 0.125f;
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          m->begin(Phase::decode, 1, 90 + missing, step);
          (*m)->attend(layer, q.cptr(), out.ptr(), shape);
          m->end();
          const std::vector<float> result = out.get();
          all.insert(all.end(), result.begin(), result.end());
        }
      }
      return all;
    });
    expect_near(got, expected, kDecodeError);
  }
}

TEST(GpuAttendPrefill, EveryTypeAndHeadSize) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : kDims)
      if (attends(type, dim)) expect_as_plain(Phase::prefill, {type, dim, 1, 3, {83}, {11}});
}

TEST(GpuAttendPrefill, EveryGroup) {
  for (const int32_t group : {1, 2, 7, 130}) expect_as_plain(Phase::prefill, {KvType::f16, 32, 1, group, {90}, {group > 100 ? 3 : 90}});
  for (const int32_t group : {1, 2, 4, 8, 40}) expect_as_plain(Phase::prefill, {KvType::f16, 512, 1, group, {90}, {group > 8 ? 3 : 20}});
}

TEST(GpuAttendPrefill, EveryLength) {
  for (const int32_t length : {1, 2, 63, 64, 65, 129}) expect_as_plain(Phase::prefill, {KvType::f16, 32, 1, 2, {length}, {length}});
  for (const KvType type : {KvType::q8_0, KvType::k8v4}) expect_as_plain(Phase::prefill, {type, 32, 2, 4, {300}, {1}});
}

TEST(GpuAttendPrefill, Windows) {
  for (const KvType type : {KvType::f16, KvType::f32, KvType::k8v4})
    for (const int32_t window : {1, 20, 64, 100}) expect_as_plain(Phase::prefill, {type, 32, 1, 2, {200}, {90}, window});
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::q4_0, KvType::k8v4})
    for (const int32_t window : {1, 50}) expect_as_plain(Phase::prefill, {type, 512, 1, 2, {130}, {40}, window});
}

TEST(GpuAttendPrefill, Sinks) {
  for (const KvType type : {KvType::f16, KvType::q8_0})
    for (const int32_t window : {0, 50}) expect_as_plain(Phase::prefill, {type, 64, 2, 4, {170}, {90}, window, true});
  expect_as_plain(Phase::prefill, {KvType::f16, 512, 1, 4, {90}, {30}, 0, true});
}

TEST(GpuAttendPrefill, RowsOfSeveralSequences) {
  for (const KvType type : {KvType::f16, KvType::q4_0, KvType::k8v4})
    expect_as_plain(Phase::prefill, {type, 32, 2, 2, {70, 3, 200}, {10, 3, 100}});
}

// A row's bits depend neither on the chunks of the prompt nor on other rows.
TEST(GpuAttendPrefill, ChunksChangeNothing) {
  for (const int32_t window : {0, 40, -1}) {  // -1: heads of 512
    Case whole{KvType::f16, window < 0 ? 512 : 64, 1, 4, {100}, {50}, std::max(window, 0)};
    Machine m(true, limits(whole));
    const std::vector<float> together = attend(&m, Phase::prefill, whole);
    Case part = whole;
    for (const int32_t n : {1, 7, 33, 49}) {  // the step's first n queries
      part.lengths = {50 + n}, part.rows = {n};
      const std::vector<float> alone = attend(&m, Phase::prefill, part);
      EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0) << n;
    }
  }
}

// Keys in host memory come in segments of a few pages, or of all. Results have the bits of keys that are read in place.
const Case kStaged[] = {
    {KvType::f16, 64, 2, 3, {700}, {90}},      {KvType::f16, 64, 2, 3, {640}, {64}, 150},     {KvType::f16, 32, 1, 2, {40}, {40}},
    {KvType::q8_0, 32, 2, 17, {600}, {30}},    {KvType::q4_0, 64, 1, 4, {500}, {21}, 70},     {KvType::f32, 80, 2, 1, {330}, {10}},
    {KvType::k8v4, 32, 2, 3, {500}, {21}, 70}, {KvType::f16, 64, 2, 3, {300}, {20}, 0, true}, {KvType::f16, 256, 1, 2, {300}, {70}, 1},
    {KvType::f16, 512, 1, 8, {140}, {9}},      latent(KvType::f16, 576, 512, 20, {140}, {9}), latent(KvType::f32, 48, 32, 5, {200}, {9}),
    {KvType::f16, 128, 2, 4, {400}, {1}},      {KvType::f16, 32, 2, 2, {70, 200}, {10, 100}}};
StepLimits staged_limits(const Case& c, uint64_t bytes) {
  StepLimits l = limits(c);
  l.staging_bytes = bytes;
  return l;
}
TEST(GpuAttendPrefill, KeysFromHostMemory) {
  for (const Case& c : kStaged) {
    SCOPED_TRACE(std::string(kv_type_name(c.type)) + " of " + std::to_string(c.dim) + ", length " + std::to_string(c.lengths[0]) +
                 ", window " + std::to_string(c.window));
    Machine in_place(true, limits(c));
    const std::vector<float> expected = attend<HostPages>(&in_place, Phase::prefill, c);
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{4} << 20}) {
      Machine staged(true, staged_limits(c, bytes));
      const std::vector<float> got = attend<HostPages>(&staged, Phase::prefill, c);
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << bytes << " bytes";
    }
  }
}

#ifdef ORRERY_EMULATED
// Pages whose content is copied on the device's own queue, before the step.
class CopiedPages {
 public:
  CopiedPages(Machine* m, const KvFormat& kv, int32_t n_tokens, uint64_t seed)
      : from_(m, kv, n_tokens, seed), to_(m, kv, n_tokens, seed + 100) {
    for (int32_t p = 0; p < to_.view().n_pages; ++p)
      for (int32_t layer = 0; layer < kv.n_layers; ++layer) {
        const uint64_t at = kv.head_offset(layer, 0);
        (*m)->copy({to_.view().pages[p] + at}, {from_.view().pages[p] + at}, kv.layer_bytes());
      }
  }
  KvView view() const { return to_.view(); }

 private:
  HostPages from_, to_;
};

// A segment's copies wait until the readers of its half are done, and its rows wait for the copies.
TEST(GpuAttendPrefill, SegmentsKeepTheirOrder) {
  for (const Case& c : kStaged) {
    Machine m(true, staged_limits(c, 1));
    const std::vector<float> expected = attend<HostPages>(&m, Phase::prefill, c);
    for (const uint64_t seed : emulated::schedules()) {
      emulated::set_schedule(seed);
      const std::vector<float> got = attend<CopiedPages>(&m, Phase::prefill, c);
      emulated::set_schedule(0);
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
          << "length " << c.lengths[0] << ", schedule " << seed;
    }
  }
}

// Each byte is copied once, for any number of blocks of queries.
TEST(GpuAttendPrefill, KeysCrossTheLinkOnce) {
  const Case c = {KvType::f16, 32, 2, 17, {600}, {200}};
  const auto crossed = [&](uint64_t bytes) {
    Machine m(true, staged_limits(c, bytes));
    const uint64_t before = emulated::bytes_to_device();
    attend<HostPages>(&m, Phase::prefill, c);
    return emulated::bytes_to_device() - before;
  };
  EXPECT_EQ(crossed(1) - crossed(0), 10 * kv_format(c.type, 2, c.n_kv_heads, c.dim).layer_bytes());
}

TEST(GpuAttendPrefill, ThreadsRunInAnyOrder) {
  for (const KvType type : {KvType::f16, KvType::q4_0, KvType::k8v4}) {
    const Case c{type, 32, 1, 2, {200, 30}, {70, 20}};
    Machine m(true, limits(c));
    const std::vector<float> forwards = attend(&m, Phase::prefill, c);
    emulated::set_reversed(true);
    const std::vector<float> backwards = attend(&m, Phase::prefill, c);
    emulated::set_reversed(false);
    EXPECT_EQ(std::memcmp(forwards.data(), backwards.data(), forwards.size() * sizeof(float)), 0) << kv_type_name(type);
  }
}
#endif

}  // namespace
}  // namespace orrery::attend_test

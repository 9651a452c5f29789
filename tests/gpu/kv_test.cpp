// Tests the KV append to pages and slots, and moves of KV between types (cuda/kernels/kv.cu), and compensation tokens: all to the bit.
#include "tests/gpu/kv_pages.h"
#ifdef ORRERY_EMULATED
#include "tests/emulation/cuda/device.h"
#include "tests/emulation/cuda/memory.h"
#endif

namespace orrery::kv_test {
namespace {

using namespace testing;

constexpr int32_t kHeads = 3, kLayers = 2;

StepLimits limits(int32_t head_dim) {
  StepLimits l;
  l.max_rows = 8;
  l.max_context = 256;
  l.n_heads = l.n_kv_heads = kHeads, l.head_dim = head_dim;
  l.max_in = 256;
  l.n_layers = kLayers;
  return l;
}

// Values that are hard to store: zeros of both signs, ties, blocks of equal values, tiny and huge values; and infinities and NaNs, for the
// types that replace them.
std::vector<float> awkward_values(size_t n, bool not_finite) {
  std::vector<float> x = normal_values(n, 7, 3.0f);
  for (size_t i = 0; i + 32 <= n; i += 32) {
    const size_t kind = i / 32 % 8;
    for (size_t j = i; j < i + 32; ++j) {
      if (kind == 1) x[j] = 0.0f;
      if (kind == 2) x[j] = j % 2 ? 0.0f : -0.0f;
      if (kind == 3) x[j] = j % 3 ? 5.0f : -5.0f;
      if (kind == 4) x[j] *= 1e-7f;
      if (kind == 5) x[j] = static_cast<float>(static_cast<int>(j % 32) - 16) * 0.5f;
      if (kind == 6 && not_finite && j % 7 == 0) x[j] = j % 2 ? NAN : INFINITY;
      if (kind == 7) x[j] *= 1e4f;
    }
  }
  return x;
}

TEST(GpuKv, AppendsAsTheCpuDoes) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : {32, 80, 128, 512}) {
      if (!stores(type, dim)) continue;
      SCOPED_TRACE(std::string(kv_type_name(type)) + " of " + std::to_string(dim));
      const KvFormat kv = kv_format(type, kLayers, kHeads, dim);
      const auto [expected, got] = on_both(limits(dim), [&](Machine* m) {
        constexpr int32_t kRows = 5;
        const size_t width = static_cast<size_t>(kHeads * dim), stride = width + 4, n = 4 * stride + width;
        Buffer<float> k(m, awkward_values(n, in_blocks(type))), v(m, normal_values(n, 8));
        const Pages pages(m, kv, 70, 9);
        const KvView view = pages.view();
        Step step;
        step.kv = kv;
        step.sequences = {&view, 1};
        m->begin(Phase::prefill, kRows, 62, step);  // the rows cross the end of a page
        (*m)->append_kv(1, k.cptr(), v.cptr(), static_cast<int64_t>(stride));
        m->end();
        return pages.bytes();
      });
      EXPECT_TRUE(got == expected);
    }
}

TEST(GpuKv, AppendsToResidentSlots) {
  const int32_t dim = 64;
  for (const KvType type : kKvTypes)
    for (const KvType slots : kKvTypes) {
      if (finer(slots, type)) continue;
      SCOPED_TRACE(std::string(kv_type_name(type)) + " to " + kv_type_name(slots));
      const KvFormat kv = kv_format(type, kLayers, kHeads, dim), heads_kv = kv_format(slots, kLayers, kHeads, dim);
      const auto [expected, got] = on_both(limits(dim), [&](Machine* m) {
        Buffer<float> x(m, awkward_values(2 * kHeads * dim, false));
        const Pages pages(m, kv, 10, 9);
        const KvView view = pages.view();
        Buffer<std::byte> tile(m, heads_kv.page_bytes());
        std::vector<uint64_t> tiles;
        std::vector<HeadView> heads;
        tiles.reserve(kLayers * kHeads);
        for (uint64_t h = 0; h < kLayers * kHeads; ++h) {
          tiles.push_back(tile.address() + h * heads_kv.head_bytes());
          heads.push_back({&tiles.back(), static_cast<int32_t>(h + 1), tiles.back() + h * heads_kv.token_bytes()});
        }
        Step step;
        step.kv = kv, step.heads_kv = heads_kv;
        step.sequences = {&view, 1};
        step.heads = heads;
        m->begin(Phase::decode, 1, 9, step);
        for (int32_t layer = 0; layer < kLayers; ++layer) (*m)->append_kv(layer, x.cptr(), x.cptr() + kHeads * dim, kHeads * dim);
        m->end();
        return tile.get();
      });
      EXPECT_TRUE(got == expected);
    }
}

TEST(GpuKv, ConvertsAsTheCpuDoes) {
  for (const KvType from : kKvTypes)
    for (const KvType to : kKvTypes) {
      const uint64_t n = in_blocks(from) || in_blocks(to) ? 64 * 19 : 64 * 19 + 16;
      const KvFormat from_kv = kv_format(from, 1, 1, static_cast<int32_t>(n / 2)), to_kv = kv_format(to, 1, 1, from_kv.head_dim);
      SCOPED_TRACE(std::string(kv_type_name(from)) + " to " + kv_type_name(to));
      const std::vector<std::byte> source = stored_tokens(from_kv, awkward_values(n, false));
      const auto [expected, got] = on_both(limits(32), [&](Machine* m) {
        Buffer<std::byte> in(m, source), out(m, to_kv.token_bytes());
        const KvMove all{out.address(), in.address(), 1};
        (*m)->kv_moves()->move_kv({&all, 1}, to, from, n);
        EXPECT_TRUE((*m)->synchronize().ok());
        return out.get();
      });
      EXPECT_TRUE(got == expected);
    }
}

// More moves than one list holds: runs of 1 to 3 tokens, in an order that differs from memory's.
TEST(GpuKv, TokensGoWhereTheyBelong) {
  constexpr uint64_t kValues = 64, kRuns = 2500, kMost = 3;
  for (const KvType to : {KvType::f16, KvType::q8_0, KvType::k8v4}) {
    const KvFormat kv = kv_format(KvType::f16, 1, 1, kValues / 2);
    const std::vector<std::byte> source = stored_tokens(kv, normal_values(kRuns * kMost * kValues, 3));
    const auto [expected, got] = on_both(limits(32), [&](Machine* m) {
      const uint64_t from_bytes = kv.token_bytes(), to_bytes = kv_format(to, 1, 1, kv.head_dim).token_bytes();
      Buffer<std::byte> in(m, source), out(m, std::vector<std::byte>(kRuns * kMost * to_bytes, std::byte{0x5A}));
      std::vector<KvMove> moves;
      for (uint64_t i = 0; i < kRuns; ++i)
        moves.push_back({out.address() + i * 407 % kRuns * kMost * to_bytes, in.address() + i * kMost * from_bytes,
                         static_cast<uint32_t>(1 + i % kMost)});
      (*m)->kv_moves()->move_kv(moves, to, KvType::f16, kValues);
      EXPECT_TRUE((*m)->synchronize().ok());
      return out.get();
    });
    EXPECT_TRUE(got == expected);
  }
}

// Moves ahead run behind the operations before them, and the operations behind join_moves() find their tokens, in any order of the streams
// that events allow.
TEST(GpuKv, MovesAheadAreInOrder) {
  constexpr uint64_t kValues = 64, kTokens = 3000;  // more moves than one list holds
  const uint64_t bytes = kTokens * row_bytes(TensorType::f16, kValues);
  const std::vector<std::byte> before(bytes, std::byte{0x11}), source(bytes, std::byte{0x22});
  std::vector<uint64_t> schedules = {0};  // a GPU has its own
#ifdef ORRERY_EMULATED
  for (const uint64_t seed : emulated::schedules()) schedules.push_back(seed);
#endif
  for (const uint64_t schedule : schedules) {
    SCOPED_TRACE(schedule);
    Machine m(true, limits(32));
    Buffer<std::byte> in(&m, before), to(&m, before), out(&m, before), late(&m, before);
#ifdef ORRERY_EMULATED
    emulated::set_schedule(schedule);
#endif
    std::vector<KvMove> moves;
    for (uint64_t i = 0; i < kTokens; ++i) moves.push_back({to.address() + i * bytes / kTokens, in.address() + i * bytes / kTokens, 1});
    m->copy(late.ptr(), Ptr<const std::byte>{to.address()}, bytes);  // reads the target before it is moved
    m->upload(in.ptr(), source.data(), bytes);
    m->kv_moves()->join_moves(m->kv_moves()->move_kv_ahead(moves, KvType::f16, KvType::f16, kValues));
    m->copy(out.ptr(), Ptr<const std::byte>{to.address()}, bytes);
    EXPECT_TRUE(m->synchronize().ok());
#ifdef ORRERY_EMULATED
    emulated::set_schedule(0);
#endif
    EXPECT_TRUE(out.get() == source);
    EXPECT_TRUE(late.get() == before);
  }
}

// Runs of up to a page among single tokens, at places that 16, 8 and 4 bytes divide, between equal types and different ones. Bytes
// beside the targets stay as they were.
TEST(GpuKv, LongRunsMoveInPieces) {
  for (const KvType type : kKvTypes)
    for (const KvType to : kKvTypes)
      for (const uint64_t n_values : {uint64_t{64}, uint64_t{128}, uint64_t{256}}) {  // of a token
        if (type != to && (n_values == 256 || to == KvType::f32)) continue;
        SCOPED_TRACE(std::string(kv_type_name(type)) + " to " + kv_type_name(to) + ", tokens of " + std::to_string(n_values));
        constexpr uint64_t kTokens = 200;
        const KvFormat from_kv = kv_format(type, 1, 1, static_cast<int32_t>(n_values / 2)), to_kv = kv_format(to, 1, 1, from_kv.head_dim);
        const std::vector<std::byte> source = stored_tokens(from_kv, normal_values(kTokens * n_values, 3));
        const auto [expected, got] = on_both(limits(32), [&](Machine* m) {
          const uint64_t from_bytes = from_kv.token_bytes(), to_bytes = to_kv.token_bytes();
          Buffer<std::byte> in(m, source), out(m, std::vector<std::byte>(kTokens * to_bytes, std::byte{0x5A}));
          std::vector<KvMove> moves;
          uint64_t at = 1;  // a token is left out before each move
          for (const uint32_t n : {1u, 64u, 3u, 17u, 1u, 33u, 64u}) {
            moves.push_back({out.address() + at * to_bytes, in.address() + (kTokens - at - n) * from_bytes, n});
            at += n + 1;
          }
          (*m)->kv_moves()->move_kv(moves, to, type, n_values);
          EXPECT_TRUE((*m)->synchronize().ok());
          return out.get();
        });
        EXPECT_TRUE(got == expected);
      }
}

TEST(GpuKv, KeepsTheLastQueries) {
  const KvFormat kv = kv_format(KvType::f16, kLayers, kHeads, 32);
  const auto [expected, got] = on_both(limits(32), [&](Machine* m) {
    const size_t width = kHeads * 32;
    const Pages pages(m, kv, 64, 1);
    const KvView view = pages.view();
    Buffer<float> q(m, normal_values(7 * width, 2)), out(m, 7 * width), ring(m, kLayers * 4 * width);
    Step step;
    step.kv = kv;
    step.sequences = {&view, 1};
    step.queries = {ring.ptr(), 4};
    AttendShape shape;
    shape.n_heads = kHeads;
    shape.q_stride = shape.out_stride = static_cast<int64_t>(width);
    for (const int32_t n : {2, 7, 1}) {
      m->begin(Phase::prefill, n, 11 + n, step);
      (*m)->attend(1, q.cptr(), out.ptr(), shape);
      m->end();
    }
    return ring.get();
  });
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
}

// Tokens join compensation tokens: many tokens of several tiles, a single token after others, some by shares. Bits are the CPU backend's,
// which sums in order, in double.
TEST(GpuKv, MeansTakeTokensIn) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : {32, 80, 128, 256, 512}) {
      if (!stores(type, dim)) continue;
      SCOPED_TRACE(std::string(kv_type_name(type)) + " of " + std::to_string(dim));
      const KvFormat kv = kv_format(type, kLayers, kHeads, dim);
      StepLimits l = limits(dim);
      l.max_top_keys = 256;
      const auto [expected, got] = on_both(l, [&](Machine* m) {
        const Pages pages(m, kv, 200, 9);
        const auto mean_values = 2 * static_cast<uint64_t>(dim);
        constexpr uint64_t kMeans = 12;  // more than a batch
        Buffer<float> means(m, normal_values(kMeans * mean_values, 3));
        std::vector<CompensationJob> jobs;
        std::vector<std::vector<float>> shares;  // of every fourth job
        for (uint64_t i = 0; i < kMeans; ++i) {
          const auto first = static_cast<int32_t>(i * 13);
          const uint64_t offset = kv.head_offset(static_cast<int32_t>(i % kLayers), static_cast<int32_t>(i % kHeads));
          if (i % 4 == 0) {
            shares.emplace_back(i % 3 == 0 ? 1 : static_cast<size_t>(195 - first), 0.0f);
            Random random(i);
            for (float& share : shares.back()) share = random.below(3) == 0 ? 0.0f : std::fabs(random.normal()) / 64;
          }
          jobs.push_back({pages.addresses(), offset, first, i % 3 == 0 ? first + 1 : 195, static_cast<int32_t>(i % 4) * 50,
                          means.ptr() + i * mean_values, i % 4 == 0 ? shares.back().data() : nullptr});
        }
        (*m)->summaries()->add_to_compensation_tokens(jobs, kv);
        return means.get();
      });
      EXPECT_TRUE(same_bits(expected.data(), got.data(), got.size()));
    }
}

#ifdef ORRERY_EMULATED
// One evicted token of every head, as in a step, is one launch. A launch has at most kBatch jobs with a table or with shares.
TEST(GpuKv, MeansOfAllHeadsAreOneLaunch) {
  const KvFormat kv = kv_format(KvType::f16, kLayers, kHeads, 64);
  StepLimits l = limits(64);
  l.max_top_keys = 256;
  constexpr uint64_t kMeans = 70, kValues = 128;
  const std::vector<float> shares = normal_values(kMeans, 4);
  for (const auto& [count, by_shares, expected_launches] :
       {std::make_tuple(1, false, 1u), std::make_tuple(80, false, 7u), std::make_tuple(1, true, 7u)}) {
    const int32_t n = count;
    const bool shared = by_shares;
    uint64_t launches = 0;
    const auto [expected, got] = on_both(l, [&](Machine* m) {
      const Pages pages(m, kv, 200, 9);
      Buffer<float> means(m, normal_values(kMeans * kValues, 3));
      std::vector<CompensationJob> jobs;
      for (uint64_t i = 0; i < kMeans; ++i) {
        const auto first = static_cast<int32_t>(i + 30);
        jobs.push_back({pages.addresses(), kv.head_offset(1, static_cast<int32_t>(i % kHeads)), first, first + n, 3,
                        means.ptr() + i * kValues, shared ? &shares[i] : nullptr});
      }
      const uint64_t before = emulated::n_launches;
      (*m)->summaries()->add_to_compensation_tokens(jobs, kv);
      if (m->cuda()) launches = emulated::n_launches - before;
      return means.get();
    });
    EXPECT_TRUE(same_bits(expected.data(), got.data(), got.size()));
    EXPECT_EQ(launches, expected_launches);
  }
}
#endif

}  // namespace
}  // namespace orrery::kv_test

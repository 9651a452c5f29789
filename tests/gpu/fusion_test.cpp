// Tests fusion (cuda/operations.cpp): a fused kernel gives the bits of the separate operations. A download() between two operations sends
// the list, so nothing is fused across it. A decode step's graph tells the number of kernels. (Norms, products and the gate:
// matmul_test.cpp.)
#include "tests/gpu/kv_pages.h"

namespace orrery::fusion_test {
namespace {

using namespace testing;

struct Heads {
  KvType type, slots;
  int32_t dim, n_rot;
  bool interleaved, q_norm, k_norm;
  Phase phase;
};

struct Cached {
  std::vector<float> rows;
  std::vector<std::byte> pages, slots;
  size_t nodes = 0;
};

constexpr int32_t kHeads = 4, kKvHeads = 2, kLayers = 2, kPosition = 62;

StepLimits limits(int32_t head_dim, int64_t max_in = 256) {
  StepLimits l;
  l.max_rows = 8;
  l.max_context = 256;
  l.n_heads = kHeads, l.n_kv_heads = kKvHeads, l.head_dim = head_dim;
  l.max_in = max_in;
  l.n_layers = kLayers;
  return l;
}

// Queries, keys and values side by side: normed, rotated, and appended to layer 1.
Cached to_cache(const Heads& c, bool fused) {
  Machine m(true, limits(c.dim));
  const bool resident = c.phase == Phase::decode;
  const int32_t n_rows = resident ? 1 : 5;
  const KvFormat kv = kv_format(c.type, kLayers, kKvHeads, c.dim), heads_kv = kv_format(c.slots, kLayers, kKvHeads, c.dim);
  const int64_t stride = (kHeads + 2 * kKvHeads) * c.dim + 4;
  const Buffer<float> x(&m, normal_values(static_cast<size_t>(n_rows * stride), 3)),
      q_norm(&m, normal_values(static_cast<size_t>(c.dim), 4)), k_norm(&m, normal_values(static_cast<size_t>(c.dim), 5));
  const Ptr<float> q = x.ptr(), k = q + static_cast<uint64_t>(kHeads * c.dim), v = k + static_cast<uint64_t>(kKvHeads * c.dim);
  std::vector<float> frequencies;
  for (int32_t i = 0; i < c.n_rot / 2; ++i)
    frequencies.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(c.n_rot)));
  const Pages pages(&m, kv, kPosition + n_rows, 9);
  const KvView view = pages.view();
  const Buffer<std::byte> tile(&m, std::vector<std::byte>(heads_kv.page_bytes()));
  std::vector<uint64_t> tiles;
  std::vector<HeadView> heads;
  tiles.reserve(kLayers * kKvHeads);
  for (uint64_t h = 0; h < kLayers * kKvHeads; ++h) {
    tiles.push_back(tile.address() + h * heads_kv.head_bytes());
    heads.push_back({&tiles.back(), static_cast<int32_t>(h + 1), tiles.back() + h * heads_kv.token_bytes()});
  }
  Step step;
  step.kv = kv, step.sequences = {&view, 1};
  if (resident) step.heads = heads, step.heads_kv = heads_kv;
  const auto between = [&] {
    float one;
    if (!fused) m->download(&one, {x.address()}, sizeof one);
  };
  m.begin(c.phase, n_rows, kPosition, step);  // the rows cross the end of a page
  m->prepare_rope({c.interleaved, c.n_rot, frequencies.data(), 1.0f});
  float first;
  m->download(&first, {x.address()}, sizeof first);  // the counted operations begin here
  if (c.q_norm) m->rms_norm(q, stride, q_norm.cptr(), q, stride, kHeads, c.dim, 1e-6f), between();
  m->rope(q, stride, kHeads, c.dim), between();
  if (c.k_norm) m->rms_norm(k, stride, k_norm.cptr(), k, stride, kKvHeads, c.dim, 1e-6f), between();
  m->rope(k, stride, kKvHeads, c.dim), between();
  m->append_kv(1, k, v, stride);
  m.end();
  Cached out;
  if (resident) out.nodes = orrery::cuda::graph_nodes(m.backend());
  out.rows = x.get(), out.pages = pages.bytes(), out.slots = tile.get();
  return out;
}

TEST(GpuFusions, HeadsOnTheirWayToTheCache) {
  for (const KvType type : kKvTypes)
    for (const int32_t dim : {16, 80, 96, 128, 256})
      for (const int32_t n_rot : {dim, dim / 2})
        for (const bool interleaved : {false, true})
          for (const int norms : {0, 1, 2, 3})
            for (const Phase phase : {Phase::decode, Phase::prefill}) {
              if (!stores(type, dim) || (norms != 0 && norms != 3 && dim != 128)) continue;
              // All combinations for one size of heads in F16 and Q8_0; of the others, those in which each two values meet.
              const bool all = dim == 128 && (type == KvType::f16 || type == KvType::q8_0);
              if (!all && ((interleaved != (n_rot == dim)) != (norms >= 2))) continue;
              const Heads c{type,
                            type == KvType::f16         ? KvType::f16
                            : stores(KvType::q4_0, dim) ? KvType::q4_0
                                                        : type,
                            dim,
                            n_rot,
                            interleaved,
                            (norms & 1) != 0,
                            (norms & 2) != 0,
                            phase};
              const Cached apart = to_cache(c, false), one = to_cache(c, true);
              SCOPED_TRACE(std::string(kv_type_name(type)) + " of " + std::to_string(dim) + ", " + std::to_string(n_rot) +
                           " turned, norms " + std::to_string(norms));
              ASSERT_TRUE(same_bits(apart.rows.data(), one.rows.data(), one.rows.size()));
              ASSERT_TRUE(apart.pages == one.pages);
              ASSERT_TRUE(apart.slots == one.slots);
              if (phase == Phase::decode) {
                ASSERT_EQ(one.nodes, 1u);
              }
            }
}

// Lists that must not be fused: the rotated keys are not the appended ones, or keys rotate differently from queries.
TEST(GpuFusions, OtherRowsGoOneAfterAnother) {
  const int32_t dim = 64;
  for (const bool other_keys : {true, false}) {
    std::vector<float> rows[2];
    std::vector<std::byte> bytes[2];
    for (const bool fused : {false, true}) {
      Machine m(true, limits(dim));
      const int64_t stride = (kHeads + 2 * kKvHeads) * dim;
      const KvFormat kv = kv_format(KvType::f16, kLayers, kKvHeads, dim);
      const Buffer<float> x(&m, normal_values(static_cast<size_t>(stride), 3));
      const Ptr<float> q = x.ptr(), k = q + static_cast<uint64_t>(kHeads * dim), v = k + static_cast<uint64_t>(kKvHeads * dim);
      const Pages pages(&m, kv, 10, 9);
      const KvView view = pages.view();
      Step step;
      step.kv = kv, step.sequences = {&view, 1};
      const std::vector<float> frequencies(static_cast<size_t>(dim / 2), 0.5f);
      const auto between = [&] {
        float one;
        if (!fused) m->download(&one, {x.address()}, sizeof one);
      };
      m.begin(Phase::decode, 1, 9, step);
      m->prepare_rope({false, dim, frequencies.data(), 1.0f});
      m->rope(q, stride, kHeads, dim), between();
      m->rope(k, stride, other_keys ? kKvHeads : 1, dim), between();
      m->append_kv(0, other_keys ? v : k, other_keys ? k : v, stride);
      m.end();
      rows[fused] = x.get(), bytes[fused] = pages.bytes();
    }
    EXPECT_TRUE(same_bits(rows[0].data(), rows[1].data(), rows[0].size()));
    EXPECT_TRUE(bytes[0] == bytes[1]);
  }
}

// The results of attention and of the gate are inputs of the next product.
TEST(GpuFusions, AttentionAndTheGateQuantizeTheirRows) {
  for (const int32_t dim : {64, 80, 128})  // 80: a group of 32 would cross two heads
    for (const TensorType type : {TensorType::q8_0, TensorType::f16})
      for (const Phase phase : {Phase::decode, Phase::prefill}) {
        std::vector<float> outs[2], floats[2];
        size_t nodes[2] = {};
        for (const bool fused : {false, true}) {
          const int32_t n_rows = phase == Phase::decode ? 3 : 5;
          const int64_t width = int64_t{kHeads} * dim, n_out = 40;
          Machine m(true, limits(dim, width));
          const KvFormat kv = kv_format(KvType::f16, kLayers, kKvHeads, dim);
          const Pages pages(&m, kv, 100, 9);
          const KvView view = pages.view();
          Step step;
          step.kv = kv, step.sequences = {&view, 1};
          const Buffer<float> q(&m, normal_values(static_cast<size_t>(n_rows * width), 3)),
              up(&m, normal_values(static_cast<size_t>(n_rows * width), 4));
          const Buffer<float> attended(&m, static_cast<size_t>(n_rows * width)), gated(&m, static_cast<size_t>(n_rows * width)),
              out(&m, static_cast<size_t>(2 * n_rows * n_out));
          const std::vector<std::byte> file = random_blocks(type, static_cast<uint64_t>(n_out * width), 6, 0.1f);
          const Buffer<std::byte> at(&m, m->weight_bytes(type, n_out, width));
          Weight weight;
          ASSERT_TRUE(m->place_weight(type, n_out, width, file.data(), at.ptr(), &weight).ok());
          const Product first{&weight, {}, out.ptr(), n_out, false},
              second{&weight, {}, out.ptr() + static_cast<uint64_t>(n_rows * n_out), n_out, false};
          const auto between = [&] {
            float one;
            if (!fused) m->download(&one, {q.address()}, sizeof one);
          };
          m.begin(phase, n_rows, 100 - n_rows, step);
          m->attend(1, q.cptr(), attended.ptr(), {kHeads, width, width, 0.1f, 0}), between();
          m->matmul({&first, 1}, attended.cptr(), width, n_rows), between();
          m->activate(dim == 80 ? Activation::gelu : Activation::silu, q.cptr(), up.cptr(), width, gated.ptr(), width, width), between();
          m->matmul({&second, 1}, gated.cptr(), width, n_rows);
          m.end();
          if (phase == Phase::decode) nodes[fused] = orrery::cuda::graph_nodes(m.backend());
          outs[fused] = out.get(), floats[fused] = attended.get();
          const std::vector<float> more = gated.get();
          floats[fused].insert(floats[fused].end(), more.begin(), more.end());
        }
        SCOPED_TRACE(std::to_string(dim) + " " + type_traits(type)->name);
        EXPECT_TRUE(same_bits(outs[0].data(), outs[1].data(), outs[0].size()));
        EXPECT_TRUE(same_bits(floats[0].data(), floats[1].data(), floats[0].size()));
        // Attention and its merge, the gate, two products; one kernel more for quantization if a head is not a multiple of 32.
        if (phase == Phase::decode) {
          EXPECT_EQ(nodes[1], type == TensorType::q8_0 && dim == 80 ? 6u : 5u);
        }
      }
}

// Kernels of a graph may start before the kernels ahead of them end (from sm_90 on), and wait for them. A list for each operation has no
// such kernels: the first kernel of a graph starts when all work before it has ended.
TEST(GpuFusions, KernelsThatStartEarlyChangeNothing) {
  for (const TensorType type : {TensorType::q4_k, TensorType::f16}) {
    std::vector<float> outs[2];
#ifdef ORRERY_EMULATED
    const int architecture = std::exchange(emulated::architecture, 90);
    const int64_t width = 256;
    const int n_times = 1;
#else
    const int64_t width = 4096;
    const int n_times = 50;
#endif
    for (const bool together : {false, true}) {
      Machine m(true, product_limits(1, width));
      const Buffer<std::byte> at(&m, m->weight_bytes(type, 2 * width, width));
      const std::vector<std::byte> file =
          random_blocks(type, static_cast<uint64_t>(2 * width * width), 6, 0.3f / std::sqrt(static_cast<float>(width)));
      Weight whole;
      ASSERT_TRUE(m->place_weight(type, 2 * width, width, file.data(), at.ptr(), &whole).ok());
      Weight half = whole;
      half.n_rows = width;
      Buffer<float> x(&m, static_cast<size_t>(width));
      const Buffer<float> norm(&m, normal_values(static_cast<size_t>(width), 5)), y(&m, static_cast<size_t>(width)),
          both(&m, static_cast<size_t>(2 * width)), gated(&m, static_cast<size_t>(width));
      const auto between = [&] {
        float one;
        if (!together) m->download(&one, {norm.address()}, sizeof one);
      };
#ifdef ORRERY_EMULATED
      const uint64_t early = emulated::n_early_launches;
#endif
      for (int i = 0; i < (together ? n_times : 1); ++i) {
        x.set(normal_values(static_cast<size_t>(width), 3));
        m.begin(Phase::decode, 1);
        for (int layer = 0; layer < 4; ++layer) {
          const Product up{&whole, {}, both.ptr(), 2 * width, false}, down{&half, {}, x.ptr(), width, true};
          m->rms_norm(x.cptr(), width, norm.cptr(), y.ptr(), width, 1, width, 1e-6f), between();
          m->matmul({&up, 1}, y.cptr(), width, 1), between();
          m->swiglu(both.cptr(), {both.address() + static_cast<uint64_t>(width) * sizeof(float)}, 2 * width, gated.ptr(), width, width),
              between();
          m->matmul({&down, 1}, gated.cptr(), width, 1), between();
        }
        m.end();
        const std::vector<float> got = x.get();
        if (i > 0) {
          ASSERT_TRUE(same_bits(got.data(), outs[1].data(), got.size())) << "time " << i;
        }
        outs[together] = got;
      }
#ifdef ORRERY_EMULATED
      EXPECT_GT(emulated::n_early_launches, early);
#endif
    }
#ifdef ORRERY_EMULATED
    emulated::architecture = architecture;
#endif
    ASSERT_TRUE(std::isfinite(outs[0][0]));
    EXPECT_TRUE(same_bits(outs[0].data(), outs[1].data(), outs[0].size())) << type_traits(type)->name;
  }
}

}  // namespace
}  // namespace orrery::fusion_test

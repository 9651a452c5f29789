// Recurrent layers on the device against the CPU backend's plain kernels: gated delta nets, Mamba2 and short convolutions, their states,
// and gates of attention.
#include "tests/gpu/device_fixture.h"
#include "tests/support/engine_fixture.h"

namespace orrery::recurrent_test {
namespace {

using namespace testing;

DeltaNetShape shape_of(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim, int32_t n_taps, bool grouped = false) {
  DeltaNetShape shape;
  shape.grouped = grouped;
  shape.n_key_heads = key_heads, shape.n_value_heads = value_heads, shape.key_dim = key_dim, shape.value_dim = value_dim;
  shape.n_taps = n_taps;
  shape.eps = 1e-6f;
  return shape;
}

constexpr uint64_t kStateAt = 32;  // floats of another layer, in front of this one's

// Weights, rows and scratch memory of a layer on a machine. run() computes the rows from `first` on.
struct DeltaNetLayer {
  DeltaNetLayer(Machine* m, const DeltaNetShape& s, int32_t n_rows)
      : shape(s), conv(m, normal_values(static_cast<size_t>(s.channels() * s.n_taps), 1, 0.5f)),
        dt(m, normal_values(static_cast<size_t>(s.n_value_heads), 2)), decay(m, decays(s)),
        norm(m, normal_values(static_cast<size_t>(s.value_dim), 4)), u(m, normal_values(static_cast<size_t>(n_rows * s.channels()), 5)),
        c(m, static_cast<size_t>(n_rows * s.channels())), z(m, normal_values(static_cast<size_t>(n_rows * s.values()), 6)),
        a(m, normal_values(static_cast<size_t>(n_rows * s.gate_stride()), 7)),
        b(m, normal_values(static_cast<size_t>(n_rows * s.gate_stride()), 8)), out(m, static_cast<size_t>(n_rows * s.values())) {}
  static std::vector<float> decays(const DeltaNetShape& s) {
    std::vector<float> x = normal_values(static_cast<size_t>(s.n_value_heads), 3);
    for (float& v : x) v = -std::fabs(v);
    return x;
  }
  void run(Machine* m, int32_t first) const {
    const auto of = [first](const Buffer<float>& x, int32_t width) {
      return x.ptr() + static_cast<uint64_t>(first) * static_cast<uint64_t>(width);
    };
    const int32_t heads = shape.gate_stride();
    (*m)->recurrent()->delta_net(shape, {conv.cptr(), dt.cptr(), decay.cptr(), norm.cptr()},
                                 {of(u, shape.channels()), of(c, shape.channels()), of(z, shape.values()), of(a, heads),
                                  of(shape.grouped ? a : b, heads), of(out, shape.values())},
                                 {kStateAt, 16});
  }
  DeltaNetShape shape;
  Buffer<float> conv, dt, decay, norm, u, c, z, a, b, out;
};

std::vector<float> joined(const std::vector<float>& x, const std::vector<float>& y) {
  std::vector<float> all = x;
  all.insert(all.end(), y.begin(), y.end());
  return all;
}

Mamba2Shape mamba2_of(int32_t n_heads, int32_t head_dim, int32_t n_groups, int32_t state_dim, int32_t n_taps) {
  Mamba2Shape s;
  s.n_heads = n_heads, s.head_dim = head_dim, s.n_groups = n_groups, s.state_dim = state_dim, s.n_taps = n_taps;
  s.eps = 1e-5f;
  return s;
}

struct Mamba2Layer {
  Mamba2Layer(Machine* m, const Mamba2Shape& s, int32_t n_rows)
      : shape(s), conv(m, normal_values(static_cast<size_t>(s.channels() * s.n_taps), 1, 0.5f)),
        conv_bias(m, normal_values(static_cast<size_t>(s.channels()), 2, 0.5f)), dt(m, normal_values(static_cast<size_t>(s.n_heads), 3)),
        decay(m, decays(s)), skip(m, normal_values(static_cast<size_t>(s.n_heads), 5)),
        norm(m, normal_values(static_cast<size_t>(s.inner()), 6)),
        projected(m, normal_values(static_cast<size_t>(n_rows * s.projected()), 7)), c(m, static_cast<size_t>(n_rows * s.channels())),
        out(m, static_cast<size_t>(n_rows * s.inner())) {}
  static std::vector<float> decays(const Mamba2Shape& s) {
    std::vector<float> x = normal_values(static_cast<size_t>(s.n_heads), 4);
    for (float& v : x) v = -std::fabs(v);
    return x;
  }
  void run(Machine* m, int32_t first) const {
    const auto at = [&](int32_t width) { return static_cast<uint64_t>(first) * static_cast<uint64_t>(width); };
    (*m)->recurrent()->mamba2(shape, {conv.cptr(), conv_bias.cptr(), dt.cptr(), decay.cptr(), skip.cptr(), norm.cptr()},
                              {projected.ptr() + at(shape.projected()), c.ptr() + at(shape.channels()), out.ptr() + at(shape.inner())},
                              {kStateAt, 16});
  }
  Mamba2Shape shape;
  Buffer<float> conv, conv_bias, dt, decay, skip, norm, projected, c, out;
};

struct ShortConvLayer {
  ShortConvLayer(Machine* m, const ShortConvShape& s, int32_t n_rows)
      : shape(s), conv(m, normal_values(static_cast<size_t>(s.n_channels * s.n_taps), 1)),
        projected(m, normal_values(static_cast<size_t>(n_rows * 3 * s.n_channels), 2)), u(m, static_cast<size_t>(n_rows * s.n_channels)),
        out(m, static_cast<size_t>(n_rows * s.n_channels)) {}
  void run(Machine* m, int32_t first) const {
    const auto at = [&](int32_t width) { return static_cast<uint64_t>(first) * static_cast<uint64_t>(width); };
    (*m)->recurrent()->short_conv(
        shape, conv.cptr(), {projected.ptr() + at(3 * shape.n_channels), u.ptr() + at(shape.n_channels), out.ptr() + at(shape.n_channels)},
        {kStateAt, 16});
  }
  ShortConvShape shape;
  Buffer<float> conv, projected, u, out;
};

// A prompt in chunks, then generated tokens: rows and state.
template <class Block, class Shape>
void expect_chunks_as_on_the_cpu(const Shape& shape) {
  constexpr int32_t kRows = 51;
  const auto [expected, got] = on_both(product_limits(kRows, 512), [&](Machine* m) {
    const Block layer(m, shape, kRows);
    Buffer<float> state(m, normal_values(kStateAt + shape.state_floats(), 9, 0.3f));
    const SequenceState at{state.ptr()};
    int32_t first = 0;
    for (const int32_t n : {1, 2, 12, 9, 16, 8, 1, 1, 1}) {
      m->begin(first < 48 ? Phase::prefill : Phase::decode, n, first);
      (*m)->recurrent()->set_states({&at, 1});
      layer.run(m, first);
      m->end();
      first += n;
    }
    EXPECT_EQ(first, kRows);
    return joined(layer.out.get(), state.get());
  });
  expect_near(got, expected, 2e-5);
}

// Steps with guessed rows, of which some are right, then one without: rows and state have the bits of a prompt's chunk.
template <class Block, class Shape>
void expect_guesses_leave_no_trace(const Shape& shape) {
  constexpr int32_t kRows = 24;
  constexpr uint64_t kGuessedAt = 16;
  struct GuessedStep {
    int32_t n_guessed, n_right;
  };
  const auto [expected, got] = on_both(product_limits(kRows, 512), [&](Machine* m) {
    const Block layer(m, shape, kRows + kMostGuessedRows);
    const auto state_of = [&] { return Buffer<float>(m, normal_values(kStateAt + shape.state_floats(), 9, 0.3f)); };
    Buffer<float> guessed(m, std::vector<float>(kGuessedAt + static_cast<size_t>(kMostGuessedRows * shape.guessed_floats()), NAN)),
        state = state_of();
    SequenceState at{state.ptr(), guessed.ptr()};
    int32_t first = 0;
    const auto step = [&](int32_t n, int32_t n_final) {
      at.n_final = n_final;
      m->begin(Phase::decode, n, first);
      (*m)->recurrent()->set_states({&at, 1});
      layer.run(m, first);
      m->end();
    };
    std::vector<float> rows;
    const size_t width = layer.out.get().size() / static_cast<size_t>(kRows + kMostGuessedRows);
    const auto keep = [&](int32_t n) {
      const std::vector<float> out = layer.out.get();
      rows.insert(rows.end(), out.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(first) * width),
                  out.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(first + n) * width));
      first += n;
    };
    for (const GuessedStep& s :
         {GuessedStep{3, 2}, {7, 5}, {7, 0}, {1, 1}, {7, 7}}) {  // each number of rows has a graph, which comes again
      step(1 + s.n_guessed, 1);
      keep(1 + s.n_right);
      at.n_replayed = s.n_right;
    }
    step(kRows - first, 0);
    keep(kRows - first);
    const std::vector<float> with = joined(rows, state.get());
    Buffer<float> plain = state_of();
    at = {plain.ptr()}, first = 0;
    step(kRows, 0);
    rows.clear(), keep(kRows);
    EXPECT_TRUE(same_bits(with, joined(rows, plain.get())));
    return with;
  });
  expect_near(got, expected, 2e-5);
}

// Each step of several has a state of its own.
template <class Block, class Shape>
void expect_steps_of_several_sessions(const Shape& shape) {
  constexpr int32_t kSteps = 5;
  const auto [expected, got] = on_both(product_limits(kSteps, 512), [&](Machine* m) {
    const Block layer(m, shape, kSteps);
    std::vector<std::unique_ptr<Buffer<float>>> states;
    std::vector<SequenceState> at;
    std::vector<Row> rows;
    for (int32_t i = 0; i < kSteps; ++i) {
      states.push_back(
          std::make_unique<Buffer<float>>(m, normal_values(kStateAt + shape.state_floats(), 20 + static_cast<uint64_t>(i), 0.3f)));
      at.push_back({states.back()->ptr()});
      rows.push_back({i, 7 * i, 0});
    }
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second one by the first one's graph
      std::vector<Step> steps(static_cast<size_t>(kSteps));
      for (size_t i = 0; i < steps.size(); ++i) steps[i].phase = Phase::decode, steps[i].rows = {&rows[i], 1};
      (*m)->begin_steps(steps);
      (*m)->recurrent()->set_states(at);
      layer.run(m, 0);
      m->end();
      std::reverse(at.begin(), at.end());
    }
    std::vector<float> all = layer.out.get();
    for (const auto& state : states) all = joined(all, state->get());
    return all;
  });
  expect_near(got, expected, 2e-5);
}

TEST(GpuRecurrent, DeltaNets) {
  for (const DeltaNetShape& shape : {shape_of(2, 4, 16, 16, 4), shape_of(3, 3, 24, 20, 2), shape_of(1, 2, 128, 128, 4),
                                     shape_of(2, 2, 33, 100, 8), shape_of(2, 6, 16, 20, 4, true)}) {
    SCOPED_TRACE(shape.key_dim);
    expect_chunks_as_on_the_cpu<DeltaNetLayer>(shape);
    expect_guesses_leave_no_trace<DeltaNetLayer>(shape);
  }
  expect_steps_of_several_sessions<DeltaNetLayer>(shape_of(2, 6, 32, 48, 4));
}

TEST(GpuRecurrent, Mamba2) {
  for (const Mamba2Shape& shape : {mamba2_of(8, 16, 2, 16, 4), mamba2_of(3, 20, 1, 24, 3), mamba2_of(2, 64, 2, 128, 4),
                                   mamba2_of(6, 33, 3, 65, 8), mamba2_of(2, 128, 1, 40, 2)}) {
    SCOPED_TRACE(shape.head_dim);
    expect_chunks_as_on_the_cpu<Mamba2Layer>(shape);
    expect_guesses_leave_no_trace<Mamba2Layer>(shape);
  }
  expect_steps_of_several_sessions<Mamba2Layer>(mamba2_of(4, 48, 2, 32, 4));
}

TEST(GpuRecurrent, ShortConvolutions) {
  for (const auto& [n, taps] : {std::pair{64, 3}, {300, 3}, {33, 2}, {40, 8}}) {
    SCOPED_TRACE(n);
    ShortConvShape shape;
    shape.n_channels = n, shape.n_taps = taps;
    expect_chunks_as_on_the_cpu<ShortConvLayer>(shape);
    expect_guesses_leave_no_trace<ShortConvLayer>(shape);
    expect_steps_of_several_sessions<ShortConvLayer>(shape);
  }
}

TEST(GpuRecurrent, Gates) {
  constexpr int32_t kRows = 3, kHeads = 5, kDim = 72;
  constexpr int64_t kWidth = kHeads * kDim, kStride = kWidth + 12;
  const auto [expected, got] = on_both(product_limits(kRows, 2 * kWidth), [&](Machine* m) {
    Buffer<float> x(m, normal_values(2 * kRows * kWidth, 1)), q(m, std::vector<float>(static_cast<size_t>(kRows * kStride), 0.25f));
    Buffer<float> gates(m, static_cast<size_t>(kRows * kWidth)), y(m, normal_values(kRows * kWidth, 2));
    m->begin(Phase::prefill, kRows);
    (*m)->recurrent()->split_gates(x.cptr(), kHeads, kDim, q.ptr(), kStride, gates.ptr());
    (*m)->recurrent()->apply_gates(y.ptr(), gates.cptr(), kWidth);
    m->end();
    return joined(joined(q.get(), gates.get()), y.get());
  });
  expect_near(got, expected, 1e-6);
}

TEST(GpuRecurrent, ShapesWithoutAKernelAreRefused) {
  Machine cuda(true, product_limits(1, 64));
  DeltaNetShape shape = shape_of(1, 1, 128, 128, 4);
  EXPECT_TRUE(cuda->check_recurrent(&shape).ok());
  EXPECT_TRUE(cuda->check_recurrent(nullptr).ok());
  shape.key_dim = 129;
  EXPECT_EQ(cuda->check_recurrent(&shape).code(), Code::unsupported);
  shape.key_dim = 128, shape.value_dim = 136;
  const Status refused = cuda->check_recurrent(&shape);
  EXPECT_NE(std::string(refused.message()).find("128 by 136"), std::string::npos) << refused.message();
  EXPECT_TRUE(cuda->check_mamba2(mamba2_of(1, 128, 1, 128, 4)).ok());
  EXPECT_EQ(cuda->check_mamba2(mamba2_of(1, 136, 1, 128, 4)).code(), Code::unsupported);
  const Status states = cuda->check_mamba2(mamba2_of(1, 64, 1, 256, 4));
  EXPECT_NE(std::string(states.message()).find("256 by 64"), std::string::npos) << states.message();
}

}  // namespace
}  // namespace orrery::recurrent_test

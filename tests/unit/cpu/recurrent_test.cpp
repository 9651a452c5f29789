// Recurrent layers on every instruction set of this machine, against their definitions in double precision. The bits depend neither on the
// chunks of a prompt, nor on the threads, nor on the sessions that decode at once, nor on guessed rows, right or wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/unit/cpu/fixture.h"

namespace orrery::recurrent_test {
namespace {

using namespace orrery::testing;

constexpr int32_t kRows = 21;
constexpr uint64_t kStateAt = 32;  // floats of another layer, in front of this one's

StepLimits limits() {
  StepLimits l;
  l.max_head_state = 128 * 128;
  l.max_rows = kRows, l.max_context = 64, l.n_heads = l.n_kv_heads = 1, l.head_dim = 32, l.max_in = 512;
  return l;
}

struct Values {
  Values(size_t n, uint64_t seed, float scale = 1.0f) : at(n) { fill_normal(at, seed, scale); }
  const float& operator[](int64_t i) const { return at[static_cast<size_t>(i)]; }
  Guarded<float> at;
};
size_t floats(int64_t n) { return static_cast<size_t>(n); }

// Computes kRows rows in steps of these sizes. compute(backend, first row): a step's operation. Returns the outputs, then the state.
template <class F>
std::vector<float> in_chunks(Rig& rig, std::vector<int32_t> sizes, uint64_t state_floats, const Guarded<float>& out, const F& compute) {
  const Values state(kStateAt + state_floats, 99, 0.4f);
  const SequenceState at{state.at.ptr()};
  int32_t first = 0;
  for (const int32_t n : sizes) {
    rig.begin(Phase::prefill, n, first);
    rig->recurrent()->set_states({&at, 1});
    compute(first);
    rig.end();
    first += n;
  }
  EXPECT_EQ(first, kRows);
  std::vector<float> all(out.data(), out.data() + out.size());
  all.insert(all.end(), state.at.data(), state.at.data() + state.at.size());
  return all;
}

const std::vector<std::vector<int32_t>>& chunkings() {
  static const std::vector<std::vector<int32_t>> all = {{21}, {1, 20}, {2, 3, 16}, {20, 1}, {5, 8, 8}, std::vector<int32_t>(21, 1)};
  return all;
}

// Computes kRows rows in steps of a final row and some guessed ones, of which the first few are right. What comes behind the last step is
// computed as one chunk. Returns as in_chunks(), with outputs of final rows and of guessed ones that were right. The first floats of the
// kept inputs are another layer's.
struct GuessedStep {
  int32_t n_guessed, n_right;
};
constexpr uint64_t kGuessedAt = 16;
template <class F>
std::vector<float> with_guesses(Rig& rig, const std::vector<GuessedStep>& steps, uint64_t state_floats, int64_t guessed_floats,
                                const Guarded<float>& out, const F& compute) {
  const Values state(kStateAt + state_floats, 99, 0.4f);
  Guarded<float> guessed(kGuessedAt + static_cast<size_t>(kMostGuessedRows * guessed_floats));
  std::fill_n(guessed.data(), guessed.size(), std::numeric_limits<float>::quiet_NaN());
  std::vector<float> all(out.size());
  const size_t width = out.size() / kRows;
  SequenceState at{state.at.ptr(), guessed.ptr()};
  int32_t first = 0;
  const auto step = [&](int32_t n, int32_t n_final) {
    at.n_final = n_final;
    rig.begin(Phase::decode, n, first);
    rig->recurrent()->set_states({&at, 1});
    compute(first);
    rig.end();
    std::copy_n(out.data() + floats(first) * width, floats(n) * width, all.data() + floats(first) * width);
  };
  for (const GuessedStep& s : steps) {
    step(1 + s.n_guessed, 1);
    at.n_replayed = s.n_right;
    first += 1 + s.n_right;
  }
  step(kRows - first, 0);
  for (size_t i = 0; i < kGuessedAt; ++i) EXPECT_TRUE(std::isnan(guessed.data()[i]));
  all.insert(all.end(), state.at.data(), state.at.data() + state.at.size());
  return all;
}

// The first kStateAt floats of a state are another layer's.
void expect_near(const std::vector<float>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  double most = 0;
  for (const double x : expected) most = std::max(most, std::fabs(x));
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 4e-6 * most) << i;
}

struct ShortConvCase {
  ShortConvCase(int32_t n, int32_t n_taps)
      : projected(floats(kRows * 3 * n), 1), conv(floats(n * n_taps), 2), u(floats(kRows * n)), out(floats(kRows * n)) {
    shape.n_channels = n, shape.n_taps = n_taps;
  }
  void run(Rig& rig, int32_t first) const {
    const auto at = [&](int32_t width) { return static_cast<uint64_t>(first) * static_cast<uint64_t>(width); };
    rig->recurrent()->short_conv(
        shape, conv.at.cptr(),
        {projected.at.cptr() + at(3 * shape.n_channels), u.ptr() + at(shape.n_channels), out.ptr() + at(shape.n_channels)},
        {kStateAt, kGuessedAt});
  }
  std::vector<double> expected() const {
    const int64_t n = shape.n_channels, kept = shape.n_taps - 1;
    const Values before(kStateAt + shape.state_floats(), 99, 0.4f);
    std::vector<double> inputs, all;
    for (int64_t i = 0; i < kept * n; ++i) inputs.push_back(before[static_cast<int64_t>(kStateAt) + i]);
    for (int64_t row = 0; row < kRows; ++row) {
      const float* b = &projected[row * 3 * n];
      for (int64_t i = 0; i < n; ++i) inputs.push_back(static_cast<double>(b[i]) * static_cast<double>(b[2 * n + i]));
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t tap = 0; tap <= kept; ++tap)
          sum += inputs[floats((row + tap) * n + i)] * static_cast<double>(conv[i * shape.n_taps + tap]);
        all.push_back(static_cast<double>(b[n + i]) * sum);
      }
    }
    for (int64_t i = 0; i < static_cast<int64_t>(kStateAt); ++i) all.push_back(before[i]);
    all.insert(all.end(), inputs.end() - kept * n, inputs.end());
    return all;
  }
  ShortConvShape shape;
  Values projected, conv;
  Guarded<float> u, out;
};

struct DeltaNetCase {
  explicit DeltaNetCase(const DeltaNetShape& s)
      : shape(s), u(floats(kRows * s.channels()), 1), z(floats(kRows * s.values()), 2), a(floats(kRows * s.gate_stride()), 3),
        b(floats(kRows * s.gate_stride()), 4), conv(floats(s.channels() * s.n_taps), 5, 0.5f), dt(floats(s.n_value_heads), 6),
        decay(floats(s.n_value_heads), 7), norm(floats(s.value_dim), 8), c(floats((kRows + kMostGuessedRows) * s.channels())),
        out(floats(kRows * s.values())) {
    for (int32_t i = 0; i < s.n_value_heads; ++i) decay.at[floats(i)] = -std::fabs(decay.at[floats(i)]);
  }
  void run(Rig& rig, int32_t first) const {
    const auto at = [&](int32_t width) { return static_cast<uint64_t>(first) * static_cast<uint64_t>(width); };
    const uint64_t gates = at(shape.gate_stride());
    rig->recurrent()->delta_net(shape, {conv.at.cptr(), dt.at.cptr(), decay.at.cptr(), norm.at.cptr()},
                                {u.at.ptr() + at(shape.channels()), c.ptr() + at(shape.channels()), z.at.cptr() + at(shape.values()),
                                 a.at.cptr() + gates, (shape.grouped ? a : b).at.cptr() + gates, out.ptr() + at(shape.values())},
                                {kStateAt, kGuessedAt});
  }
  std::vector<double> expected() const {
    const int64_t channels = shape.channels(), kept = shape.n_taps - 1, keys = shape.keys(), dk = shape.key_dim, dv = shape.value_dim;
    const Values before(kStateAt + shape.state_floats(), 99, 0.4f);
    const auto old = [&](int64_t i) { return static_cast<double>(before[static_cast<int64_t>(kStateAt) + i]); };
    const double eps = shape.eps;
    std::vector<double> state, inputs, all;  // state: (value heads, key_dim, value_dim)
    for (int64_t i = 0; i < shape.values() * dk; ++i) state.push_back(old(i));
    for (int64_t i = 0; i < kept * channels; ++i) inputs.push_back(old(shape.values() * dk + i));
    for (int64_t row = 0; row < kRows; ++row) {
      inputs.insert(inputs.end(), &u[row * channels], &u[row * channels] + channels);
      std::vector<double> x;
      for (int64_t i = 0; i < channels; ++i) {
        double sum = 0;
        for (int64_t tap = 0; tap <= kept; ++tap)
          sum += inputs[floats((row + tap) * channels + i)] * static_cast<double>(conv[i * shape.n_taps + tap]);
        x.push_back(sum / (1 + std::exp(-sum)));
      }
      for (int64_t head = 0; head < 2 * shape.n_key_heads; ++head) {
        double squares = eps;
        for (int64_t i = 0; i < dk; ++i) squares += x[floats(head * dk + i)] * x[floats(head * dk + i)];
        const double scale = 1 / std::sqrt(squares) / (head < shape.n_key_heads ? std::sqrt(static_cast<double>(dk)) : 1);
        for (int64_t i = 0; i < dk; ++i) x[floats(head * dk + i)] *= scale;
      }
      for (int64_t head = 0; head < shape.n_value_heads; ++head) {
        // Of a grouped table, the values of a key head: first b of its value heads, then a.
        const int64_t group = shape.n_value_heads / shape.n_key_heads, key = shape.grouped ? head / group : head % shape.n_key_heads;
        const int64_t in_group = head % group, stride = shape.gate_stride();
        const double own_a = shape.grouped ? a[row * stride + key * 2 * group + group + in_group] : a[row * stride + head];
        const double own_b = shape.grouped ? a[row * stride + key * 2 * group + in_group] : b[row * stride + head];
        const double stays = std::exp(static_cast<double>(decay[head]) * std::log1p(std::exp(own_a + static_cast<double>(dt[head]))));
        const double beta = 1 / (1 + std::exp(-own_b));
        std::vector<double> o;
        double squares = 0;
        for (int64_t j = 0; j < dv; ++j) {
          double read = 0, sum = 0;
          const auto s = [&](int64_t i) -> double& { return state[floats((head * dk + i) * dv + j)]; };
          for (int64_t i = 0; i < dk; ++i) read += (s(i) *= stays) * x[floats(keys + key * dk + i)];
          const double lack = beta * (x[floats(2 * keys + head * dv + j)] - read);
          for (int64_t i = 0; i < dk; ++i) sum += (s(i) += x[floats(keys + key * dk + i)] * lack) * x[floats(key * dk + i)];
          o.push_back(sum);
          squares += sum * sum;
        }
        for (int64_t j = 0; j < dv; ++j) {
          const double gate = z[row * shape.values() + head * dv + j];
          all.push_back(o[floats(j)] / std::sqrt(squares / static_cast<double>(dv) + eps) * static_cast<double>(norm[j]) * gate /
                        (1 + std::exp(-gate)));
        }
      }
    }
    for (int64_t i = 0; i < static_cast<int64_t>(kStateAt); ++i) all.push_back(before[i]);
    all.insert(all.end(), state.begin(), state.end());
    all.insert(all.end(), inputs.end() - kept * channels, inputs.end());
    return all;
  }
  DeltaNetShape shape;
  Values u, z, a, b, conv, dt, decay, norm;
  Guarded<float> c, out;
};

struct Mamba2Case {
  explicit Mamba2Case(const Mamba2Shape& s)
      : shape(s), projected(floats(kRows * s.projected()), 1), conv(floats(s.channels() * s.n_taps), 2, 0.5f),
        conv_bias(floats(s.channels()), 3, 0.5f), dt(floats(s.n_heads), 4), decay(floats(s.n_heads), 5), skip(floats(s.n_heads), 6),
        norm(floats(s.inner()), 7), c(floats((kRows + kMostGuessedRows) * s.channels())), out(floats(kRows * s.inner())) {
    for (int32_t i = 0; i < s.n_heads; ++i) decay.at[floats(i)] = -std::fabs(decay.at[floats(i)]);
  }
  Mamba2Weights weights() const {
    return {conv.at.cptr(), conv_bias.at.cptr(), dt.at.cptr(), decay.at.cptr(), skip.at.cptr(), norm.at.cptr()};
  }
  void run(Rig& rig, int32_t first) const {
    const auto at = [&](int32_t width) { return static_cast<uint64_t>(first) * static_cast<uint64_t>(width); };
    rig->recurrent()->mamba2(shape, weights(),
                             {projected.at.cptr() + at(shape.projected()), c.ptr() + at(shape.channels()), out.ptr() + at(shape.inner())},
                             {kStateAt, kGuessedAt});
  }
  std::vector<double> expected() const {
    const int64_t inner = shape.inner(), channels = shape.channels(), kept = shape.n_taps - 1, dim = shape.head_dim, size = shape.state_dim;
    const Values before(kStateAt + shape.state_floats(), 99, 0.4f);
    const auto old = [&](int64_t i) { return static_cast<double>(before[static_cast<int64_t>(kStateAt) + i]); };
    std::vector<double> state, inputs, all;  // state: (heads, state_dim, head_dim)
    for (int64_t i = 0; i < inner * size; ++i) state.push_back(old(i));
    for (int64_t i = 0; i < kept * channels; ++i) inputs.push_back(old(inner * size + i));
    for (int64_t row = 0; row < kRows; ++row) {
      const float* z = &projected[row * shape.projected()];
      const float *u = z + inner, *t = u + channels;
      inputs.insert(inputs.end(), u, u + channels);
      std::vector<double> x, y;
      for (int64_t i = 0; i < channels; ++i) {
        double sum = conv_bias[i];
        for (int64_t tap = 0; tap <= kept; ++tap)
          sum += inputs[floats((row + tap) * channels + i)] * static_cast<double>(conv[i * shape.n_taps + tap]);
        x.push_back(sum / (1 + std::exp(-sum)));
      }
      for (int64_t head = 0; head < shape.n_heads; ++head) {
        const double step = std::log1p(std::exp(static_cast<double>(t[head]) + static_cast<double>(dt[head])));
        const double stays = std::exp(step * static_cast<double>(decay[head]));
        const int64_t b = inner + head / (shape.n_heads / shape.n_groups) * size, c_at = b + shape.n_groups * size;
        for (int64_t j = 0; j < dim; ++j) {
          const double own = x[floats(head * dim + j)];
          double sum = static_cast<double>(skip[head]) * own;
          for (int64_t i = 0; i < size; ++i) {
            double& s = state[floats((head * size + i) * dim + j)];
            s = s * stays + step * own * x[floats(b + i)];
            sum += s * x[floats(c_at + i)];
          }
          const double gate = z[head * dim + j];
          y.push_back(sum * gate / (1 + std::exp(-gate)));
        }
      }
      const int64_t width = inner / shape.n_groups;
      for (int64_t i = 0; i < inner; ++i) {
        double squares = 0;
        for (int64_t k = i / width * width; k < (i / width + 1) * width; ++k) squares += y[floats(k)] * y[floats(k)];
        all.push_back(y[floats(i)] / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(shape.eps)) *
                      static_cast<double>(norm[i]));
      }
    }
    for (int64_t i = 0; i < static_cast<int64_t>(kStateAt); ++i) all.push_back(before[i]);
    all.insert(all.end(), state.begin(), state.end());
    all.insert(all.end(), inputs.end() - kept * channels, inputs.end());
    return all;
  }
  Mamba2Shape shape;
  Values projected, conv, conv_bias, dt, decay, skip, norm;
  Guarded<float> c, out;
};

Mamba2Shape mamba2_of(int32_t n_heads, int32_t head_dim, int32_t n_groups, int32_t state_dim, int32_t n_taps) {
  Mamba2Shape s;
  s.n_heads = n_heads, s.head_dim = head_dim, s.n_groups = n_groups, s.state_dim = state_dim, s.n_taps = n_taps;
  s.eps = 1e-5f;
  return s;
}

class CpuRecurrent : public ::testing::TestWithParam<std::string> {
 protected:
  // In one chunk as defined; then every other way to the same bits.
  template <class Case>
  void expect_definition(const Case& c) {
    Rig rig(GetParam(), 1, limits());
    const std::vector<float> whole = in_chunks(rig, {kRows}, c.shape.state_floats(), c.out, [&](int32_t first) { c.run(rig, first); });
    expect_near(whole, c.expected());
    Rig other(GetParam(), 3, limits());
    for (const std::vector<int32_t>& sizes : chunkings()) {
      const std::vector<float> cut = in_chunks(other, sizes, c.shape.state_floats(), c.out, [&](int32_t first) { c.run(other, first); });
      EXPECT_TRUE(same_bits(cut.data(), whole.data(), whole.size())) << "chunks of " << sizes[0];
    }
    for (const std::vector<GuessedStep>& steps : std::vector<std::vector<GuessedStep>>{
             {{7, 7}}, {{7, 0}}, {{1, 1}, {1, 0}, {1, 1}}, {{3, 2}, {7, 5}, {2, 0}, {4, 4}}, {{5, 1}, {0, 0}, {6, 3}, {7, 7}, {1, 1}}})
      for (Rig* any : {&rig, &other}) {
        const std::vector<float> guessed =
            with_guesses(*any, steps, c.shape.state_floats(), c.shape.guessed_floats(), c.out, [&](int32_t first) { c.run(*any, first); });
        EXPECT_TRUE(same_bits(guessed.data(), whole.data(), whole.size())) << steps[0].n_guessed << ", " << steps[0].n_right;
      }
    // A step of several sessions: each row is the first of its own session.
    std::vector<std::unique_ptr<Values>> states;
    std::vector<SequenceState> at;
    std::vector<Row> rows;
    for (int32_t i = 0; i < 3; ++i) {
      states.push_back(std::make_unique<Values>(kStateAt + c.shape.state_floats(), 99, 0.4f));
      at.push_back({states.back()->at.ptr()});
      rows.push_back({i, 0, 0});
    }
    std::vector<Step> steps(3);
    for (size_t i = 0; i < 3; ++i) steps[i].phase = Phase::decode, steps[i].rows = {&rows[i], 1};
    other->begin_steps(steps);
    other->recurrent()->set_states(at);
    c.run(other, 0);
    other->end_step();
    const std::vector<float> together(c.out.data(), c.out.data() + c.out.size());
    const size_t width = c.out.size() / kRows;
    for (int32_t i = 0; i < 3; ++i) {
      const Values state(kStateAt + c.shape.state_floats(), 99, 0.4f);
      const SequenceState own{state.at.ptr()};
      rig.begin(Phase::decode, 1);
      rig->recurrent()->set_states({&own, 1});
      c.run(rig, i);
      rig.end();
      EXPECT_TRUE(same_bits(together.data() + floats(i) * width, c.out.data() + floats(i) * width, width)) << i;
      EXPECT_TRUE(same_bits(states[floats(i)]->at.data(), state.at.data(), state.at.size())) << i;
    }
  }
};

TEST_P(CpuRecurrent, DeltaNets) {
  const auto shape_of = [](int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim, int32_t n_taps,
                           bool grouped = false) {
    DeltaNetShape s;
    s.n_key_heads = key_heads, s.n_value_heads = value_heads, s.key_dim = key_dim, s.value_dim = value_dim, s.n_taps = n_taps;
    s.eps = 1e-6f, s.grouped = grouped;
    return s;
  };
  for (const DeltaNetShape& shape : {shape_of(2, 4, 16, 16, 4), shape_of(3, 3, 24, 20, 2), shape_of(1, 2, 128, 128, 4),
                                     shape_of(2, 2, 33, 100, 8), shape_of(2, 6, 16, 20, 4, true)}) {
    SCOPED_TRACE(shape.key_dim);
    expect_definition(DeltaNetCase(shape));
  }
}

TEST_P(CpuRecurrent, ShortConvolutions) {
  for (const auto& [n, taps] : {std::pair{64, 3}, {300, 3}, {33, 2}, {40, 4}, {257, 8}}) {
    SCOPED_TRACE(n);
    expect_definition(ShortConvCase(n, taps));
  }
}

TEST_P(CpuRecurrent, Mamba2) {
  for (const Mamba2Shape& shape : {mamba2_of(8, 16, 2, 16, 4), mamba2_of(3, 20, 1, 24, 3), mamba2_of(4, 64, 4, 128, 4),
                                   mamba2_of(6, 33, 3, 7, 8), mamba2_of(2, 128, 2, 40, 2)}) {
    SCOPED_TRACE(shape.head_dim);
    expect_definition(Mamba2Case(shape));
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuRecurrent, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::recurrent_test

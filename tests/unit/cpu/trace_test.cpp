// Where the time of steps goes (runtime/cpu/trace.h): decode steps alone, each product under its own shape with its bytes, and threads
// that work and wait no longer than the operations last.
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/cpu/fixture.h"

namespace orrery::trace_test {
namespace {

using namespace orrery::testing;

// The number, or the numbers of a list, behind "key": in a line.
std::vector<uint64_t> numbers(const std::string& line, const std::string& key) {
  std::vector<uint64_t> values;
  size_t at = line.find("\"" + key + "\":");
  if (at == std::string::npos) return values;
  at += key.size() + 3;
  const bool list = line[at] == '[';
  for (at += list; at < line.size(); ++at) {
    values.push_back(std::strtoull(&line[at], nullptr, 10));
    at = line.find_first_not_of("0123456789", at);
    if (!list || line[at] != ',') break;
  }
  return values;
}
uint64_t number(const std::string& line, const std::string& key) {
  const std::vector<uint64_t> values = numbers(line, key);
  return values.size() == 1 ? values[0] : UINT64_MAX;
}

struct Traced {
  explicit Traced(bool trace, int32_t n_threads = 2) {
    auto made = cpu::make_backend({n_threads, "plain", Priority::normal, trace});
    backend = std::move(made).value();
    scratch = std::make_unique<Guarded<std::byte>>(backend->scratch_bytes(limits));
    EXPECT_TRUE(backend->set_scratch(scratch->ptr(), limits).ok());
    fill_random_blocks(TensorType::q8_0, bytes.data(), 96 * 64, 1, 1.0f);
    fill_normal(x, 2);
    fill_normal(weight, 3);
    a = {TensorType::q8_0, 96, 64, bytes.cptr()}, b = {TensorType::q8_0, 32, 64, bytes.cptr()};
  }
  void step(Phase phase) {
    const Row row;
    backend->begin_step({phase, {&row, 1}, {}, {}});
    backend->rms_norm(x.cptr(), 64, weight.cptr(), normed.ptr(), 64, 1, 64, 1e-5f);
    const Product products[] = {{&a, {}, out.ptr(), 128, false}, {&b, {}, out.ptr() + 96, 128, false}};
    backend->matmul({products, 2}, normed.cptr(), 64, 1);
    backend->add(out.ptr(), out.cptr(), 128);
    backend->end_step();
  }

  const StepLimits limits{1, 64, 1, 1, 32, 64};
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Guarded<std::byte>> scratch;
  Guarded<std::byte> bytes{96 * 68};
  Guarded<float> x{64}, weight{64}, normed{64}, out{128};
  Weight a, b;
};

TEST(CpuTrace, OperationsOfDecodeSteps) {
  Traced t(true);
  t.step(Phase::prefill);
  EXPECT_TRUE(t.backend->take_trace().empty()) << "a prompt is not measured";
  for (int i = 0; i < 3; ++i) t.step(Phase::decode);
  const std::vector<std::string> lines = t.backend->take_trace();
  ASSERT_FALSE(lines.empty());
  const std::string& steps = lines[0];
  EXPECT_EQ(number(steps, "steps"), 3u);
  EXPECT_EQ(number(steps, "threads"), 2u);
  EXPECT_GE(number(steps, "ns"), number(steps, "operations_ns"));
  struct Expected {
    const char* operation;
    uint64_t n_in, n_out, bytes;
  };
  const Expected expected[] = {{"norm", 0, 0, 3 * 64 * 4},
                               {"product", 64, 96, 96 * 68},
                               {"product", 64, 32, 32 * 68},
                               {"quantize", 0, 0, 64 * 4},
                               {"add", 0, 0, 3 * 128 * 4}};
  ASSERT_EQ(lines.size(), 1 + std::size(expected));
  uint64_t accounted[2] = {};
  for (size_t i = 0; i < std::size(expected); ++i) {
    const std::string& row = lines[i + 1];
    EXPECT_NE(row.find("\"operation\":\"" + std::string(expected[i].operation) + "\""), std::string::npos) << row;
    EXPECT_NE(row.find(expected[i].n_in ? "\"type\":\"Q8_0\"" : "\"type\":\"\""), std::string::npos) << row;
    EXPECT_EQ(numbers(row, "shape"), (std::vector<uint64_t>{expected[i].n_in, expected[i].n_out}));
    EXPECT_EQ(number(row, "calls"), 3u);
    EXPECT_EQ(number(row, "bytes"), 3 * expected[i].bytes);
    const std::vector<uint64_t> busy = numbers(row, "busy_ns"), waiting = numbers(row, "waiting_ns");
    ASSERT_EQ(busy.size(), 2u) << row;
    ASSERT_EQ(waiting.size(), 2u) << row;
    for (size_t thread = 0; thread < 2; ++thread) accounted[thread] += busy[thread] + waiting[thread];
    EXPECT_GT(busy[0] + busy[1], 0u) << row;
    EXPECT_LT(row.size(), 500u);
  }
  for (const uint64_t ns : accounted) EXPECT_EQ(ns, number(steps, "operations_ns")) << "a thread works or waits";
  EXPECT_TRUE(t.backend->take_trace().empty()) << "what was taken is gone";
}

TEST(CpuTrace, NothingIsMeasuredUnlessAskedFor) {
  Traced t(false);
  t.step(Phase::decode);
  EXPECT_TRUE(t.backend->take_trace().empty());
}

TEST(CpuTrace, ManyThreadsFitALine) {
  Traced t(true, 40);
  t.step(Phase::decode);
  for (const std::string& line : t.backend->take_trace()) EXPECT_LT(line.size(), 500u) << line;
}

}  // namespace
}  // namespace orrery::trace_test

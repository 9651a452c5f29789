// The recipe of a block (runtime/model/blocks/add_a_block.md), followed: a toy block in this file alone. A test runs a block by itself, on
// a workspace of its own, against a reference of twenty lines. (A layer's members are plain structs, so only the library's own files put a
// block into a layer.)
#include "tests/unit/model/fixture.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/model/blocks/pass.h"
#include "runtime/model/blocks/reading.h"
#include "runtime/model/blocks/tensors.h"

namespace orrery::model::toy_block_test {
namespace {

// ---- The block, as a file of runtime/model/blocks: a bottleneck, x += down max(up n, 0)^2 + bias, with n the normed residual stream. ----

namespace bottleneck {

struct Shape {
  int32_t width = 0;
};

struct Weights {
  Weight up;              // (width, n_embd)
  Weight down;            // (n_embd, width)
  Ptr<const float> bias;  // (n_embd) or null
};

// Key: bottleneck_length.
Status read(Reading& in, Shape* out) { return in.keys.integer("bottleneck_length", 1, kMaxWidth, &out->width); }

Status find(Tensors* tensors, const Description& d, const Shape& shape, const std::string& prefix, Weights* out) {
  ORRERY_TRY(tensors->matrix(prefix + "bottleneck_up.weight", shape.width, d.n_embd, true, &out->up));
  ORRERY_TRY(tensors->matrix(prefix + "bottleneck_down.weight", d.n_embd, shape.width, true, &out->down));
  return tensors->vector(prefix + "bottleneck_down.bias", d.n_embd, false, &out->bias);
}

void run(Pass& pass, const Shape& shape, const Weights& w) {
  const Product p{&w.up, {}, pass.work.ffn, shape.width, false};
  pass.project({&p, 1});
  pass.backend.experts()->squared_relu(pass.work.ffn, shape.width);
  pass.add_branch(w.down, w.bias, {}, pass.work.ffn, shape.width);
}

}  // namespace bottleneck

// ---- The reference. ----

struct Values {
  std::vector<float> up, down, bias;
};

std::vector<double> reference(const std::vector<float>& x, const std::vector<float>& normed, const Values& w, size_t n, size_t width) {
  std::vector<double> out(x.begin(), x.end());
  for (size_t row = 0; row < x.size() / n; ++row) {
    std::vector<double> inner(width);
    for (size_t i = 0; i < width; ++i) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += static_cast<double>(w.up[i * n + j]) * static_cast<double>(normed[row * n + j]);
      inner[i] = sum > 0 ? sum * sum : 0;
    }
    for (size_t j = 0; j < n; ++j) {
      double sum = w.bias.empty() ? 0 : static_cast<double>(w.bias[j]);
      for (size_t i = 0; i < width; ++i) sum += static_cast<double>(w.down[j * width + i]) * inner[i];
      out[row * n + j] += sum;
    }
  }
  return out;
}

// ---- The test. ----

constexpr size_t kWidth = 48;

json toy_spec(bool biased) {
  json spec = with(spec_of("llama-plain"), "llama.bottleneck_length", "u32", kWidth);
  const auto n = static_cast<size_t>(described(spec_of("llama-plain")).n_embd);
  const auto add = [&](const char* name, std::vector<uint64_t> shape) {
    spec["tensors"].push_back({{"name", name}, {"shape", shape}, {"scale", 0.2}, {"offset", 0.0}});
  };
  add("blk.0.bottleneck_up.weight", {n, kWidth});
  add("blk.0.bottleneck_down.weight", {kWidth, n});
  if (biased) add("blk.0.bottleneck_down.bias", {n});
  return spec;
}

std::vector<float> values_of(json spec, const std::string& name) { return spec_tensor_values(spec, tensor(spec, name)); }

// Weights where the file lies, which the CPU backend reads.
class InFile final : public TensorVisitor {
 public:
  Status matrix(const gguf::Tensor& t, Weight* out) override {
    *out = {t.type, static_cast<int64_t>(t.dims[1]), static_cast<int64_t>(t.dims[0]), {reinterpret_cast<uintptr_t>(t.data)}};
    return ok_status();
  }
  Status matrices(const gguf::Tensor&, int64_t, ExpertWeights*) override { return ok_status(); }
  Status vector(const gguf::Tensor& t, Ptr<const float>* out) override {
    *out = {reinterpret_cast<uintptr_t>(t.data)};
    return ok_status();
  }
};

class NoHooks final : public HookCalls {
 public:
  bool before_attend(KvLayer, Ptr<const float>, int64_t) override { return true; }
  bool before_layer(int32_t, Ptr<const float>, int64_t) override { return true; }
};

template <class T>
Ptr<T> ptr(std::vector<T>& v) {
  return {reinterpret_cast<uintptr_t>(v.data())};
}

// What the block makes of a spec's file: its shape and weights, as far as it gets.
struct Found {
  std::vector<std::byte> bytes;
  std::unique_ptr<gguf::File> file;
  Description d;
  bottleneck::Shape shape;
  bottleneck::Weights weights;
  Status status;

  explicit Found(const json& spec)
      : bytes(build_model_gguf(spec)), file(std::make_unique<gguf::File>(gguf::File::parse(bytes, "m.gguf").value())) {
    status = read();
  }
  Status read() {
    Keys keys(*file, "llama");
    const RopeOverride rope;
    Reading in{keys, rope, d};
    ORRERY_TRY(read_sizes(in, nullptr));
    ORRERY_TRY(bottleneck::read(in, &shape));
    InFile visitor;
    Tensors tensors(*file, &visitor);
    return bottleneck::find(&tensors, d, shape, "blk.0.", &weights);
  }
};

void expect_reference(const std::string& path, Phase phase, size_t n_rows, bool biased) {
  const json spec = toy_spec(biased);
  Found found(spec);
  ASSERT_TRUE(found.status.ok()) << found.status.message();
  const auto n = static_cast<size_t>(found.d.n_embd);

  auto backend = cpu::make_backend({2, path}).value();
  StepLimits limits;
  limits.max_rows = static_cast<int32_t>(n_rows), limits.max_context = 64, limits.n_heads = limits.n_kv_heads = 1, limits.head_dim = 64;
  limits.max_in = static_cast<int64_t>(std::max(n, kWidth));
  ASSERT_TRUE(backend->reserve_arena(backend->scratch_bytes(limits)).ok());
  ASSERT_TRUE(backend->set_scratch(backend->arena(), limits).ok());

  std::vector<float> x(n_rows * n), normed(n_rows * n), inner(n_rows * kWidth);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)), normed[i] = std::cos(1.7f * static_cast<float>(i));
  const Values values{values_of(spec, "blk.0.bottleneck_up.weight"), values_of(spec, "blk.0.bottleneck_down.weight"),
                      biased ? values_of(spec, "blk.0.bottleneck_down.bias") : std::vector<float>()};
  const std::vector<double> expected = reference(x, normed, values, n, kWidth);

  std::vector<Row> rows;
  for (int32_t i = 0; i < static_cast<int32_t>(n_rows); ++i) rows.push_back({i, i, 0});
  const Step step = {phase, rows, {}, {}};
  Workspace work;
  work.x = ptr(x), work.normed = ptr(normed), work.ffn = ptr(inner);
  NoHooks hooks;
  Pass pass{*backend, found.d, work, {&step, 1}, hooks};
  pass.n_rows = static_cast<int32_t>(n_rows);
  backend->begin_step(step);
  bottleneck::run(pass, found.shape, found.weights);
  backend->end_step();
  ASSERT_TRUE(backend->synchronize().ok());

  double most = 0, deviation = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    most = std::max(most, std::fabs(expected[i]));
    deviation = std::max(deviation, std::fabs(static_cast<double>(x[i]) - expected[i]));
  }
  EXPECT_LE(deviation, 1e-6 * most);
}

TEST(ToyBlock, IsItsReference) {
  for (const char* path : cpu::available_paths())
    for (const Phase phase : {Phase::prefill, Phase::decode})
      for (const size_t n_rows : {size_t{1}, size_t{5}})
        for (const bool biased : {false, true}) {
          SCOPED_TRACE(std::string(path) + (phase == Phase::prefill ? " prefill" : " decode") + (biased ? " biased" : ""));
          expect_reference(path, phase, n_rows, biased);
        }
}

TEST(ToyBlock, FilesThatLieAreRefused) {
  const auto refusal = [](const json& spec) { return std::string(Found(spec).status.message()); };
  const auto expect = [](const std::string& text, const std::string& words) { EXPECT_NE(text.find(words), std::string::npos) << text; };
  const json spec = toy_spec(true);
  expect(refusal(without(spec, "llama.bottleneck_length")), "'llama.bottleneck_length' is missing");
  expect(refusal(with(spec, "llama.bottleneck_length", "u32", 0)), "'llama.bottleneck_length' is 0");
  expect(refusal(with(spec, "llama.bottleneck_length", "u32", 47)),
         "tensor 'blk.0.bottleneck_up.weight' has shape (48, 64), expected (47, 64)");
  expect(refusal(without_tensor(spec, "blk.0.bottleneck_down.weight")), "tensor 'blk.0.bottleneck_down.weight'");
  // A model of a family without the block is refused by the block's key.
  expect_refused(spec, Code::unsupported_architecture, "llama.bottleneck_length");
}

}  // namespace
}  // namespace orrery::model::toy_block_test

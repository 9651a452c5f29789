// LoRA adapters on a GPU: the second product of a pair against double; models with an adapter against those whose matrices have it added; and
// sessions with different adapters, which share a step.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/gpu/device_fixture.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/adapters.h"
#include "tests/support/weights_away.h"

namespace orrery::gpu_adapters_test {
namespace {

using namespace testing;
using engine::Adapters;
using engine::Session;
using Model = std::shared_ptr<engine::LanguageModel>;

// Products of three widths and ranks, of rows with gaps; a NaN stays in its row.
TEST(GpuAdapters, TheSecondProduct) {
  constexpr int64_t kRanks[] = {4, 1, 19, 8}, kOuts[] = {300, 16, 37, 5}, kLowStride = 40;
  constexpr float kScale = 0.37f;
  for (const int32_t n_rows : {1, 3, 70}) {
    Machine m(true, product_limits(n_rows, 512));
    const auto rows = static_cast<uint64_t>(n_rows);
    std::vector<float> low_values = normal_values(rows * static_cast<uint64_t>(kLowStride), 3);
    if (n_rows == 3)
      low_values[static_cast<size_t>(kLowStride) + 1] = std::numeric_limits<float>::quiet_NaN();  // of row 1, for all but the second
    const Buffer<float> low(&m, low_values);
    std::vector<std::vector<float>> b_values, before;
    std::vector<std::unique_ptr<Buffer<float>>> b, out;
    std::vector<AdapterProduct> products;
    int64_t at = 0;
    for (size_t i = 0; i < std::size(kRanks); ++i) {
      const int64_t rank = kRanks[i], n_out = kOuts[i], stride = n_out + 3, tiles = (n_out + kAdapterTile - 1) / kAdapterTile;
      b_values.push_back(normal_values(static_cast<uint64_t>(tiles * rank * kAdapterTile), 10 + i));
      before.push_back(normal_values(rows * static_cast<uint64_t>(stride), 20 + i));
      b.push_back(std::make_unique<Buffer<float>>(&m, b_values.back()));
      out.push_back(std::make_unique<Buffer<float>>(&m, before.back()));
      products.push_back({b.back()->cptr(), n_out, rank, low.cptr() + static_cast<uint64_t>(i == 0 ? 0 : at), out.back()->ptr(), stride});
      at += i == 1 ? 2 : rank;  // the second one reads other values than the NaN's
    }
    m.begin(Phase::decode, n_rows);
    m->adapters()->add_low_rank({products.data(), products.size()}, kLowStride, kScale, n_rows);
    m.end();
    for (size_t i = 0; i < products.size(); ++i) {
      const std::vector<float> found = out[i]->get();
      const AdapterProduct& p = products[i];
      const uint64_t first = (p.low.address - low.cptr().address) / sizeof(float);
      for (int64_t row = 0; row < n_rows; ++row)
        for (int64_t o = 0; o < p.out_stride; ++o) {
          const auto place = static_cast<size_t>(row * p.out_stride + o);
          double expected = static_cast<double>(before[i][place]), sum = 0;
          for (int64_t k = 0; o < p.n_out && k < p.rank; ++k)
            sum += static_cast<double>(low_values[static_cast<size_t>(row * kLowStride + k) + first]) *
                   static_cast<double>(b_values[i][static_cast<size_t>((o / kAdapterTile * p.rank + k) * kAdapterTile + o % kAdapterTile)]);
          expected += static_cast<double>(kScale) * sum;
          if (o >= p.n_out) ASSERT_EQ(found[place], before[i][place]) << "a gap";
          else if (std::isnan(expected)) ASSERT_TRUE(std::isnan(found[place]));
          else ASSERT_NEAR(static_cast<double>(found[place]), expected, 1e-5) << "product " << i << ", row " << row << ", output " << o;
        }
    }
  }
}

std::unique_ptr<Session> open(const Model& model, const Adapters& adapters, uint32_t chunk = 0) {
  engine::SessionOptions options;
  options.n_context = 128;
  options.chunk_tokens = chunk;
  options.adapters = adapters;
  return unwrap(Session::open(model, options));
}

std::vector<float> logits_of(Session* session, const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  std::vector<float> out(prompt.size() * session->logits().size());
  unwrap(session->prefill(prompt, nullptr, out.data()));
  for (const int32_t token : answer) {
    feed(session, token);
    out.insert(out.end(), session->logits().begin(), session->logits().end());
  }
  return out;
}

TEST(GpuAdapters, AsTheMergedModel) {
  const std::vector<int32_t> prompt = random_prompt(21, 5), answer = random_prompt(4, 9);
  for (const char* name : {"llama-plain", "qwen3moe", "qwen35", "phi3", "gemma3"}) {
    SCOPED_TRACE(name);
    const std::vector<std::byte> bytes = named_model_gguf(name);
    std::vector<std::byte> merged = bytes;
    const AdapterSpec spec;
    merge_adapter(&merged, spec, 0.5f);
    const Model model = open_with(bytes, on_cuda(), {});
    const Adapters adapters = adapters_of({{open_adapter(model, adapter_gguf(bytes, spec)), 0.5f}});
    const auto expected = logits_of(open(open_with(merged, on_cuda(), {}), nullptr).get(), prompt, answer);
    Deviation exact, without;
    for (const uint32_t chunk : {0u, 16u}) {
      const auto found = logits_of(open(model, adapters, chunk).get(), prompt, answer);
      exact.add(found.data(), expected.data(), expected.size());
    }
    const auto base = logits_of(open(model, nullptr).get(), prompt, answer);
    without.add(base.data(), expected.data(), expected.size());
    EXPECT_LT(exact.rms(), 0.02 * without.rms()) << exact.rms();
    EXPECT_GT(without.rms(), 0.02);
  }
}

TEST(GpuAdapters, SessionsWithDifferentOnesShareAStep) {
  const std::vector<std::byte> bytes = named_model_gguf("llama-plain");
  const Model model = open_with(bytes, on_cuda(), {});
  AdapterSpec one, other;
  other.seed = 2, other.rank = 7;
  const auto first = open_adapter(model, adapter_gguf(bytes, one)), second = open_adapter(model, adapter_gguf(bytes, other));
  const Adapters sets[] = {adapters_of({{first, 1.0f}}), nullptr, adapters_of({{second, 0.5f}}),
                           adapters_of({{first, 0.5f}, {second, -0.4f}})};
  std::vector<std::unique_ptr<Session>> together, alone;
  for (size_t i = 0; i < std::size(sets); ++i)
    for (auto* sessions : {&together, &alone}) {
      sessions->push_back(open(model, sets[i]));
      unwrap(sessions->back()->prefill(random_prompt(17 + i, i), nullptr, nullptr));
    }
  for (int step = 0; step < 4; ++step) {
    std::vector<engine::Decoder::Call> calls(std::size(sets));
    for (size_t i = 0; i < calls.size(); ++i) {
      const int32_t token = argmax(alone[i]->logits());
      together[i]->push_generated(token);
      calls[i].decoder = &together[i]->decoder();
      feed(alone[i].get(), token);
    }
    engine::Decoder::decode_together(calls);
    for (size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(calls[i].status.ok()) << calls[i].status.message();
      EXPECT_TRUE(same_bits(as_vector(together[i]->logits()), as_vector(alone[i]->logits()))) << step << ", " << i;
    }
  }
}

// Opening takes the bytes that the plan says.
TEST(GpuAdapters, PlannedBytesAreTakenBytes) {
  const std::vector<std::byte> bytes = named_model_gguf("llama-plain");
  const TempDir dir;
  const std::string path = dir.write("model.gguf", bytes);
  const auto source = engine::ModelSource::of_path(dir.write("adapter.gguf", adapter_gguf(bytes)));
  engine::SessionOptions options;
  options.n_context = 64;
  options.adapters = unwrap(engine::AdapterSet::make(std::vector<engine::AdapterChoice>{{nullptr, source, 1.0f}}));
  const kv::Plan plan = unwrap(engine::plan_file(path, on_cuda(), {}, options));
  const Model model = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(on_cuda())), path, {}));
  const auto adapter = unwrap(engine::LoadedAdapter::open(model, *source));
  options.adapters = adapters_of({{adapter, 1.0f}});
  const auto session = unwrap(Session::open(model, options));
  EXPECT_EQ(model->runtime().arena().used(), plan.device_bytes);
}

}  // namespace
}  // namespace orrery::gpu_adapters_test

// LoRA adapters for tests: random pairs for a model's matrices, as a GGUF file, and the model whose matrices have them added. An F32 model
// with an adapter must equal the merged model up to rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/model/families/family.h"
#include "runtime/model/load/load_adapter.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_blocks.h"

namespace orrery::testing {

struct AdapterSpec {
  uint64_t seed = 1;
  int64_t rank = 4;
  float alpha = 8.0f;
  float deviation = 0.12f;                                                                  // of the values of A and B
  std::function<bool(const std::string&)> takes = [](const std::string&) { return true; };  // the matrices that have a pair
};

// The values of A (rank, n_in) or B (n_out, rank).
inline std::vector<float> adapter_values(const AdapterSpec& spec, const std::string& name, bool of_b, uint64_t n) {
  Random random(spec.seed * 7919 + std::hash<std::string>()(name) * 2 + (of_b ? 1 : 0));
  std::vector<float> values(n);
  for (float& v : values) v = spec.deviation * random.normal();
  return values;
}

struct AdaptedMatrix {
  std::string name;
  uint64_t n_in, n_out, offset;  // offset: in the model's file
};
inline std::vector<AdaptedMatrix> adapted_matrices(const std::vector<std::byte>& model, const AdapterSpec& spec) {
  const gguf::File file = unwrap(gguf::File::parse(model, "model.gguf"));
  std::vector<model::NamedMatrix> matrices;
  unwrap(model::name_matrices(file, unwrap(model::read_description(file, {})), &matrices));
  std::vector<AdaptedMatrix> out;
  for (const model::NamedMatrix& m : matrices)
    if (spec.takes(std::string(m.tensor->name)))
      out.push_back({std::string(m.tensor->name), m.tensor->dims[0], m.tensor->dims[1], m.tensor->offset});
  return out;
}

// The keys of an adapter for this model.
inline GgufBuilder adapter_keys(const std::vector<std::byte>& model, float alpha) {
  const gguf::File file = unwrap(gguf::File::parse(model, "model.gguf"));
  GgufBuilder out;
  out.key("general.type", "adapter").key("adapter.type", "lora").key("adapter.lora.alpha", alpha);
  return std::move(out.key("general.architecture", unwrap(file.get_string("general.architecture", ""))));
}

inline std::vector<std::byte> adapter_gguf(const std::vector<std::byte>& model, const AdapterSpec& spec = {}) {
  GgufBuilder out = adapter_keys(model, spec.alpha);
  const auto rank = static_cast<uint64_t>(spec.rank);
  for (const AdaptedMatrix& m : adapted_matrices(model, spec)) {
    out.tensor(m.name + ".lora_a", TensorType::f32, {m.n_in, rank}, as_bytes(adapter_values(spec, m.name, false, m.n_in * rank)));
    out.tensor(m.name + ".lora_b", TensorType::f32, {rank, m.n_out}, as_bytes(adapter_values(spec, m.name, true, m.n_out * rank)));
  }
  return out.build();
}

// Adds scale * alpha / rank * B A to the F32 model's matrices.
inline void merge_adapter(std::vector<std::byte>* model, const AdapterSpec& spec, float scale) {
  const double factor = static_cast<double>(scale) * static_cast<double>(spec.alpha) / static_cast<double>(spec.rank);
  const auto rank = static_cast<uint64_t>(spec.rank);
  for (const AdaptedMatrix& m : adapted_matrices(*model, spec)) {
    const std::vector<float> a = adapter_values(spec, m.name, false, m.n_in * rank), b = adapter_values(spec, m.name, true, m.n_out * rank);
    for (uint64_t o = 0; o < m.n_out; ++o)
      for (uint64_t i = 0; i < m.n_in; ++i) {
        double sum = 0;
        for (uint64_t r = 0; r < rank; ++r) sum += static_cast<double>(b[o * rank + r]) * static_cast<double>(a[r * m.n_in + i]);
        float w;
        const size_t at = m.offset + (o * m.n_in + i) * sizeof w;
        std::memcpy(&w, model->data() + at, sizeof w);
        poke(model, at, static_cast<float>(static_cast<double>(w) + factor * sum));
      }
  }
}

inline std::shared_ptr<const engine::LoadedAdapter> open_adapter(const std::shared_ptr<engine::LanguageModel>& model,
                                                                 const std::vector<std::byte>& file) {
  engine::ModelSource source;
  source.memory = file, source.from_memory = true;
  return unwrap(engine::LoadedAdapter::open(model, source));
}

inline engine::Adapters adapters_of(const std::vector<std::pair<std::shared_ptr<const engine::LoadedAdapter>, float>>& list) {
  std::vector<engine::AdapterChoice> choices;
  for (const auto& [adapter, scale] : list) choices.push_back({adapter, nullptr, scale});
  return unwrap(engine::AdapterSet::make(choices));
}

}  // namespace orrery::testing

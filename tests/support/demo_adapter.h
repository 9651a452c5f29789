// A LoRA adapter of the bundled model, for tests of the tool.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/gguf_builder.h"

namespace orrery::testing {

// An adapter of the bundled model's first layer.
inline std::vector<std::byte> demo_adapter() {
  GgufBuilder file;
  file.key("general.type", "adapter").key("adapter.type", "lora").key("general.architecture", "llama").key("adapter.lora.alpha", 2.0f);
  for (const bool b : {false, true}) {
    std::vector<float> values(2 * (b ? 256 : 704));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 19) / 9.0f - 1.0f;
    const std::vector<uint64_t> dims = b ? std::vector<uint64_t>{2, 256} : std::vector<uint64_t>{704, 2};
    file.tensor(b ? "blk.0.ffn_down.weight.lora_b" : "blk.0.ffn_down.weight.lora_a", TensorType::f32, dims, as_bytes(values));
  }
  return file.build();
}

}  // namespace orrery::testing

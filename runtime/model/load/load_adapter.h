// Reads and places a LoRA adapter's GGUF file. An adapter belongs to one model: each pair NAME.lora_a (rank, n_in), NAME.lora_b (n_out, rank)
// has the shape of the model's matrix NAME. A file with another tensor is refused, because ignoring it would give wrong answers. So are
// pairs of tensors that no block multiplies by Pass::matmul(): the token embedding, norms and biases, and matrices that lie in one tensor,
// of experts or of heads.
#pragma once

#include <memory>

#include "runtime/model/load/model.h"

namespace orrery::model {

// The arena's bytes of an adapter, from the headers of both files. The check is that of load_adapter().
Result<uint64_t> adapter_bytes(const gguf::File& adapter, const gguf::File& model, const Description& description);

// Copies an adapter to the arena. The model and the arena outlive it; the file does not have to. Takes one turn for each tensor. Errors:
// bad_model (key or tensor, value found, value expected), unsupported, unsupported_quantization, out_of_device_memory.
Result<std::unique_ptr<Adapter>> load_adapter(const gguf::File& file, const Model& model, Turns* turns, kv::Arena* arena);

}  // namespace orrery::model

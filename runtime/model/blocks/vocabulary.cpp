#include "runtime/model/blocks/vocabulary.h"

#include "runtime/gguf/dequantize.h"

namespace orrery::model::vocabulary {

// The number of tokens comes from the embedding table, because the key may be absent or outdated.
Status read(Reading& in) {
  const gguf::File& file = in.keys.file();
  const gguf::Tensor* table = file.find_tensor("token_embd.weight");
  if (table == nullptr || table->n_dims != 2) return error(Code::bad_model, "%s: no matrix 'token_embd.weight'", file.path().c_str());
  if (table->dims[1] > kMaxVocab)
    return error(Code::bad_model, "%s: tensor 'token_embd.weight' has %llu rows, expected at most %llu", file.path().c_str(),
                 static_cast<unsigned long long>(table->dims[1]), static_cast<unsigned long long>(kMaxVocab));
  in.d.n_vocab = static_cast<int32_t>(table->dims[1]);
  return ok_status();
}

Status find_embedding(Tensors* tensors, const Description& d, Weights* out) {
  return tensors->matrix("token_embd.weight", d.n_vocab, d.n_embd, true, &out->embedding);
}

Status find_output(Tensors* tensors, const Description& d, Weights* out) {
  if (!d.norms_after) ORRERY_TRY(tensors->vector(std::string(d.output_norm) + ".weight", d.n_embd, true, &out->output_norm));
  if (d.encoder) return ok_status();
  return tensors->matrix("output.weight", d.n_vocab, d.n_embd, false, &out->output);
}

void read_rows(Pass& pass, const Weight& table, float scale, Ptr<float> out) {
  struct Rows {
    const Weight& table;
    float scale;
  };
  const Rows rows{table, scale};
  const RowReader read = [](const void* context, int32_t token, float* row) {
    const auto& [from, factor] = *static_cast<const Rows*>(context);
    const auto n = static_cast<uint64_t>(from.n_cols);
    const auto* at = reinterpret_cast<const std::byte*>(from.data.address) + static_cast<uint64_t>(token) * row_bytes(from.type, n);
    gguf::dequantize_row(from.type, at, row, n);
    for (uint64_t i = 0; i < n; ++i) row[i] *= factor;
  };
  pass.backend.read_rows(read, &rows, table.n_cols, out);
}

void embed(Pass& pass, const Weights& weights, float scale, Ptr<float> x) {
  if (weights.embedding_on_host) read_rows(pass, weights.embedding, scale, x);
  else pass.backend.embed(weights.embedding, scale, x);
}

}  // namespace orrery::model::vocabulary

// Writes the model that benchmarks run on: Llama-shaped, random weights of one type, a vocabulary of 32,000 tokens
// that llama.cpp accepts too.  make_model TYPE FILE [small|LAYERS|MODEL]: 1.1 thousand million parameters, a tenth of
// them, as many layers as that instead of 16, or the matrices of a published model (shapes.h), vocabulary included.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/bench/shapes.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_blocks.h"

namespace {

using namespace orrery;
using orrery::testing::GgufBuilder;
using orrery::testing::random_blocks;

struct Shape {
  uint32_t n_embd = 2048, n_layers = 16, n_heads = 32, n_kv_heads = 8, n_ff = 8192, n_vocab = 32000;
  uint32_t head_dim() const { return n_embd / n_heads; }
};

void add_vocabulary(GgufBuilder* b, uint32_t n) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<float> scores = {0.0f, 0.0f, 0.0f};
  std::vector<int32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    tokens.emplace_back(name);
    scores.push_back(0.0f);
    types.push_back(6);
  }
  while (tokens.size() < n) {
    tokens.push_back("\xe2\x96\x81t" + std::to_string(tokens.size()));
    scores.push_back(-static_cast<float>(tokens.size()));
    types.push_back(1);
  }
  b->key("tokenizer.ggml.model", "llama").array("tokenizer.ggml.tokens", tokens);
  b->array("tokenizer.ggml.scores", scores).array("tokenizer.ggml.token_type", types);
  b->key("tokenizer.ggml.bos_token_id", uint32_t{1}).key("tokenizer.ggml.eos_token_id", uint32_t{2});
  b->key("tokenizer.ggml.unknown_token_id", uint32_t{0});
}

}  // namespace

int main(int argc, char** argv) {
  const TypeTraits* traits = argc >= 3 ? type_traits_by_name(argv[1]) : nullptr;
  if (traits == nullptr) {
    std::fprintf(stderr, "usage: make_model TYPE FILE [small|LAYERS|MODEL]\n");
    return 2;
  }
  Shape s;
  const bench::ModelShape* published = argc > 3 ? bench::model_shape(argv[3]) : nullptr;
  if (published && published->n_embd % static_cast<int32_t>(traits->block_elements) != 0) {
    std::fprintf(stderr, "make_model: rows of %d columns are no whole blocks of %s\n", published->n_embd, traits->name);
    return 2;
  }
  if (published) {
    const auto number = [](int32_t n) { return static_cast<uint32_t>(n); };
    s = {number(published->n_embd), number(published->n_layers), number(published->n_heads), number(published->n_kv_heads), number(published->n_ff),
         number(published->n_vocab)};
  } else if (argc > 3) {
    s.n_layers = static_cast<uint32_t>(std::max(std::atoi(argv[3]), 2));   // small: no number
  }
  GgufBuilder b;
  b.key("general.architecture", "llama").key("general.name", "random " + std::string(traits->name));
  b.key("llama.block_count", s.n_layers).key("llama.embedding_length", s.n_embd);
  b.key("llama.context_length", uint32_t{131072}).key("llama.feed_forward_length", s.n_ff);
  b.key("llama.attention.head_count", s.n_heads).key("llama.attention.head_count_kv", s.n_kv_heads);
  b.key("llama.attention.layer_norm_rms_epsilon", 1e-5f).key("llama.rope.freq_base", 500000.0f);
  b.key("llama.rope.dimension_count", s.head_dim()).key("llama.vocab_size", s.n_vocab);
  add_vocabulary(&b, s.n_vocab);

  uint64_t seed = 0;
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(cols));
    // Some rows, repeated: what weights are makes no difference to speed, and a thousand million would take minutes.
    const uint64_t pattern = std::min(rows, (uint64_t{1} << 19) / cols) * cols;
    orrery::testing::Bytes bytes = random_blocks(traits->type, pattern, ++seed, scale);
    const size_t period = bytes.size();
    bytes.resize(row_bytes(traits->type, rows * cols));
    for (size_t at = period; at < bytes.size(); ++at) bytes[at] = bytes[at - period];
    b.tensor(name, traits->type, {cols, rows}, std::move(bytes));
  };
  const auto norm = [&](const std::string& name) {
    b.tensor(name, TensorType::f32, {s.n_embd},
             orrery::testing::as_bytes(std::vector<float>(s.n_embd, 1.0f)));
  };
  const uint64_t kv = uint64_t{s.n_kv_heads} * s.head_dim();
  matrix("token_embd.weight", s.n_vocab, s.n_embd);
  norm("output_norm.weight");
  matrix("output.weight", s.n_vocab, s.n_embd);
  for (uint32_t i = 0; i < s.n_layers; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    norm(p + "attn_norm.weight");
    matrix(p + "attn_q.weight", s.n_embd, s.n_embd);
    matrix(p + "attn_k.weight", kv, s.n_embd);
    matrix(p + "attn_v.weight", kv, s.n_embd);
    matrix(p + "attn_output.weight", s.n_embd, s.n_embd);
    norm(p + "ffn_norm.weight");
    matrix(p + "ffn_gate.weight", s.n_ff, s.n_embd);
    matrix(p + "ffn_up.weight", s.n_ff, s.n_embd);
    matrix(p + "ffn_down.weight", s.n_embd, s.n_ff);
  }
  const orrery::testing::Bytes file = b.build();
  std::ofstream out(argv[2], std::ios::binary);
  out.write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
  out.close();
  if (!out) {
    std::fprintf(stderr, "make_model: cannot write %s\n", argv[2]);
    return 1;
  }
  return 0;
}

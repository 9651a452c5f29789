// Writes the model that benchmarks run on: Llama-shaped, random weights of one type, a vocabulary of 32,000 tokens
// that llama.cpp accepts too.  make_model TYPE FILE [tiny|small|mixture|LAYERS|MODEL]: 1.1 thousand million parameters, a
// million, a tenth of the first, as many layers as that instead of 16, or the matrices of a published model (shapes.h; or, of any family,
// the tool's shapes/shapes.h, with tensors of several types as their files have), vocabulary included. tiny has 640 tokens, for programs in
// emulation. mixture: 1.6 thousand million parameters, of which a token meets 300 million: 64 experts of 768 in each layer, 8 of them
// chosen. TYPE is a type of weights, or Q4_K_M: Q4_K, and Q6_K for the output and for some layers' V and down (shapes.h).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "shapes/shapes.h"
#include "tests/bench/shapes.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/random_blocks.h"

namespace {

using namespace orrery;
using orrery::testing::Bytes;
using orrery::testing::GgufBuilder;
using orrery::testing::random_blocks;

struct Shape {
  uint32_t n_embd = 2048, n_layers = 16, n_heads = 32, n_kv_heads = 8, n_ff = 8192, n_vocab = 32000;
  uint32_t n_experts = 0, n_used = 0;  // each of n_ff
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

// A tensor's bytes: rows that are random, again and again. What weights are makes no difference to speed, and eight thousand million random
// ones would take minutes.
struct Tensor {
  uint64_t at, bytes;  // in the file
  const Bytes* pattern;
  uint64_t first;  // its first byte's place in the pattern: a whole row
};

// Writes a stretch of a tensor.
bool write_stretch(int file, const Tensor& t, uint64_t from, uint64_t end) {
  while (from < end) {
    const uint64_t in_pattern = (t.first + from) % t.pattern->size();
    const uint64_t n = std::min(end - from, t.pattern->size() - in_pattern);
    const ssize_t written = pwrite(file, t.pattern->data() + in_pattern, n, static_cast<off_t>(t.at + from));
    if (written <= 0) return false;
    from += static_cast<uint64_t>(written);
  }
  return true;
}

bool write_file(const char* path, const Bytes& header, const std::vector<Tensor>& tensors) {
  const int file = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return false;
  const Tensor first{0, header.size(), &header, 0};
  std::atomic<bool> good{write_stretch(file, first, 0, header.size())};
  // Copies to the page cache are what takes time: stretches of 16 MiB, by some threads.
  constexpr uint64_t kStretch = uint64_t{16} << 20;
  std::vector<std::pair<const Tensor*, uint64_t>> stretches;
  for (const Tensor& t : tensors)
    for (uint64_t from = 0; from < t.bytes; from += kStretch) stretches.emplace_back(&t, from);
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1u, 8u); ++i)
    threads.emplace_back([&] {
      for (size_t at; good && (at = next++) < stretches.size();) {
        const auto& [t, from] = stretches[at];
        if (!write_stretch(file, *t, from, std::min(t->bytes, from + kStretch))) good = false;
      }
    });
  for (std::thread& thread : threads) thread.join();
  return close(file) == 0 && good;
}

// A published model of any family. Vectors in F32 are such that values stay finite: norms and factors are 1, the decay of recurrent layers
// is
// -1, biases are 0; routers and convolutions are random.
int write_shape(const tool::GgufHeader& shape, const char* path) {
  const std::string text = shape.bytes();
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  const Bytes header(begin, begin + text.size());
  std::map<std::pair<TensorType, uint64_t>, Bytes> patterns;  // by type and columns
  const auto same = [](float value) { return orrery::testing::as_bytes(std::vector<float>(1 << 16, value)); };
  const Bytes ones = same(1), zeros = same(0), minus_ones = same(-1);
  std::vector<Tensor> tensors;
  for (const tool::GgufHeader::Tensor& t : shape.tensors()) {
    const auto has = [&](std::string_view part) { return t.name.find(part) != std::string::npos; };
    const auto type = static_cast<TensorType>(t.type.id);
    const uint64_t at = header.size() + t.offset, columns = t.dims[0];
    const bool random = type != TensorType::f32 || has("ffn_gate_inp.weight") || has("conv1d.weight");
    if (!random) {
      tensors.push_back({at, t.bytes, has("ssm_a") ? &minus_ones : has(".bias") || has("sinks") ? &zeros : &ones, 0});
      continue;
    }
    Bytes& pattern = patterns[{type, columns}];
    const uint64_t n_rows = std::max<uint64_t>((uint64_t{1} << 21) / columns, 64);
    if (pattern.empty()) pattern = random_blocks(type, n_rows * columns, patterns.size(), 1.0f / std::sqrt(static_cast<float>(columns)));
    tensors.push_back({at, t.bytes, &pattern, tensors.size() * 37 % n_rows * row_bytes(type, columns)});
  }
  if (write_file(path, header, tensors)) return 0;
  std::fprintf(stderr, "make_model: cannot write %s\n", path);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 3)
    if (const auto shape = tool::shape_header(std::string(argv[3]) + ':' + argv[1], true)) return write_shape(*shape, argv[2]);
  const bool mixed = argc >= 3 && std::string_view(argv[1]) == "Q4_K_M";
  const TypeTraits* traits = argc >= 3 ? type_traits_by_name(mixed ? "Q4_K" : argv[1]) : nullptr;
  if (traits == nullptr) {
    std::fprintf(stderr, "usage: make_model TYPE FILE [tiny|small|mixture|LAYERS|MODEL]\n");
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
    s = {number(published->n_embd),     number(published->n_layers), number(published->n_heads),
         number(published->n_kv_heads), number(published->n_ff),     number(published->n_vocab)};
  } else if (argc > 3 && std::string_view(argv[3]) == "tiny") {
    s = {256, 2, 8, 2, 512, 640};
  } else if (argc > 3 && std::string_view(argv[3]) == "mixture") {
    s = {1024, 10, 16, 4, 768, 32000, 64, 8};
  } else if (argc > 3) {
    s.n_layers = static_cast<uint32_t>(std::max(std::atoi(argv[3]), 2));  // small: no number
  }
  const std::string family = s.n_experts ? "qwen3moe" : "llama";
  GgufBuilder b;
  b.key("general.architecture", family).key("general.name", "random " + std::string(argv[1]));
  b.key(family + ".block_count", s.n_layers).key(family + ".embedding_length", s.n_embd);
  b.key(family + ".context_length", uint32_t{131072}).key(family + ".feed_forward_length", s.n_ff);
  b.key(family + ".attention.head_count", s.n_heads).key(family + ".attention.head_count_kv", s.n_kv_heads);
  b.key(family + ".attention.layer_norm_rms_epsilon", 1e-5f).key(family + ".rope.freq_base", 500000.0f);
  b.key(family + ".rope.dimension_count", s.head_dim()).key(family + ".vocab_size", s.n_vocab);
  if (s.n_experts) {
    b.key(family + ".expert_count", s.n_experts)
        .key(family + ".expert_used_count", s.n_used)
        .key(family + ".expert_feed_forward_length", s.n_ff);
    b.key(family + ".attention.key_length", s.head_dim()).key(family + ".attention.value_length", s.head_dim());
  }
  add_vocabulary(&b, s.n_vocab);

  std::map<std::pair<TensorType, uint64_t>, Bytes> patterns;  // by type and columns
  const Bytes ones = orrery::testing::as_bytes(std::vector<float>(s.n_embd, 1.0f));
  std::vector<Tensor> tensors;
  uint64_t data_bytes = 0;
  const auto add = [&](const std::string& name, TensorType type, const std::vector<uint64_t>& dims, uint64_t bytes, const Bytes& pattern,
                       uint64_t first) {
    b.raw_tensor(name, static_cast<uint32_t>(dims.size()), dims, static_cast<uint32_t>(type), data_bytes);
    tensors.push_back({data_bytes, bytes, &pattern, first});
    data_bytes += (bytes + 31) / 32 * 32;
  };
  const TensorType more = mixed ? TensorType::q6_k : traits->type;
  const auto matrix = [&](const std::string& name, TensorType type, uint64_t rows, uint64_t cols, std::vector<uint64_t> dims = {}) {
    Bytes& pattern = patterns[{type, cols}];
    const uint64_t n_rows = (uint64_t{1} << 21) / cols;
    if (pattern.empty()) pattern = random_blocks(type, n_rows * cols, patterns.size(), 1.0f / std::sqrt(static_cast<float>(cols)));
    if (dims.empty()) dims = {cols, rows};
    add(name, type, dims, row_bytes(type, rows * cols), pattern,
        tensors.size() * 37 % n_rows * row_bytes(type, cols));  // another row first
  };
  // The same for each expert.
  const auto experts = [&](const std::string& name, TensorType type, uint64_t rows, uint64_t cols) {
    matrix(name, type, s.n_experts * rows, cols, {cols, rows, s.n_experts});
  };
  const auto norm = [&](const std::string& name, uint64_t n) { add(name, TensorType::f32, {n}, n * sizeof(float), ones, 0); };
  const uint64_t kv = uint64_t{s.n_kv_heads} * s.head_dim();
  matrix("token_embd.weight", traits->type, s.n_vocab, s.n_embd);
  norm("output_norm.weight", s.n_embd);
  matrix("output.weight", more, s.n_vocab, s.n_embd);
  for (uint32_t i = 0; i < s.n_layers; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    const TensorType of_layer =
        bench::q4_k_m_has_more_bits(static_cast<int32_t>(i), static_cast<int32_t>(s.n_layers)) ? more : traits->type;
    norm(p + "attn_norm.weight", s.n_embd);
    matrix(p + "attn_q.weight", traits->type, s.n_embd, s.n_embd);
    matrix(p + "attn_k.weight", traits->type, kv, s.n_embd);
    matrix(p + "attn_v.weight", of_layer, kv, s.n_embd);
    matrix(p + "attn_output.weight", traits->type, s.n_embd, s.n_embd);
    norm(p + "ffn_norm.weight", s.n_embd);
    if (s.n_experts) {
      for (const char* head : {"attn_q_norm", "attn_k_norm"}) norm(p + head + ".weight", s.head_dim());
      matrix(p + "ffn_gate_inp.weight", TensorType::f32, s.n_experts, s.n_embd);
      experts(p + "ffn_gate_exps.weight", traits->type, s.n_ff, s.n_embd);
      experts(p + "ffn_up_exps.weight", traits->type, s.n_ff, s.n_embd);
      experts(p + "ffn_down_exps.weight", of_layer, s.n_embd, s.n_ff);
      continue;
    }
    matrix(p + "ffn_gate.weight", traits->type, s.n_ff, s.n_embd);
    matrix(p + "ffn_up.weight", traits->type, s.n_ff, s.n_embd);
    matrix(p + "ffn_down.weight", of_layer, s.n_embd, s.n_ff);
  }
  Bytes header = b.build();
  header.resize((header.size() + 31) / 32 * 32);
  for (Tensor& t : tensors) t.at += header.size();
  if (!write_file(argv[2], header, tensors)) {
    std::fprintf(stderr, "make_model: cannot write %s\n", argv[2]);
    return 1;
  }
  return 0;
}

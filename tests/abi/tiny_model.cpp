#include "tests/abi/tiny_model.h"

#include "tests/support/gguf_builder.h"
#include "tests/support/random_blocks.h"

namespace orrery::testing {

namespace {

constexpr uint32_t kHeadDim = 32, kFeedForward = 96;

void add_vocabulary(GgufBuilder& file, size_t* n_vocab) {
  std::vector<std::string> pieces = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};  // unknown, control, control
  for (int byte = 0; byte < 256; ++byte) {
    static constexpr char kHex[] = "0123456789ABCDEF";
    pieces.push_back(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">");
    types.push_back(6);
  }
  pieces.push_back("\xE2\x96\x81");
  for (char c = '!'; c <= '~'; ++c) pieces.emplace_back(1, c);
  for (const char* word : {"th", "the", "er", "user", "us", "an", "\xC3\xA9", "\xE6\xBC\xA2"}) pieces.emplace_back(word);
  types.resize(pieces.size(), 1);
  std::vector<float> scores(pieces.size());
  for (size_t i = 259; i < pieces.size(); ++i) scores[i] = -static_cast<float>(i);
  file.key("tokenizer.ggml.model", "llama");
  file.array("tokenizer.ggml.tokens", pieces).array("tokenizer.ggml.scores", scores);
  file.array("tokenizer.ggml.token_type", types);
  file.key("tokenizer.ggml.bos_token_id", uint32_t{1}).key("tokenizer.ggml.eos_token_id", uint32_t{2});
  file.key("tokenizer.ggml.unknown_token_id", uint32_t{0});
  *n_vocab = pieces.size();
}

// Numbers from offset - scale to offset + scale.
void add_random(GgufBuilder& file, Random& random, const std::string& name, std::vector<uint64_t> dims, float offset, float scale) {
  uint64_t n = 1;
  for (const uint64_t d : dims) n *= d;
  std::vector<float> values(n);
  for (float& v : values) v = offset + scale * (2.0f * random.uniform() - 1.0f);
  file.tensor(name, TensorType::f32, std::move(dims), as_bytes(values));
}

// One layer, of one head.
std::vector<std::byte> build_encoder(const TinyModel& tiny) {
  GgufBuilder file;
  const uint32_t n_embd = tiny.n_embd;
  file.key("general.architecture", "bert").key("general.name", "tiny encoder");
  file.key("bert.context_length", tiny.context).key("bert.embedding_length", n_embd).key("bert.block_count", uint32_t{1});
  file.key("bert.feed_forward_length", kFeedForward).key("bert.attention.head_count", uint32_t{1}).key("bert.attention.causal", false);
  file.key("bert.attention.layer_norm_epsilon", 1e-5f);
  if (tiny.pooling >= 0) file.key("bert.pooling_type", static_cast<uint32_t>(tiny.pooling));
  size_t n_vocab = 0;
  add_vocabulary(file, &n_vocab);
  Random random(tiny.seed);
  const auto add = [&](const std::string& name, std::vector<uint64_t> dims, float offset, float scale) {
    add_random(file, random, name, std::move(dims), offset, scale);
  };
  add("token_embd.weight", {n_embd, n_vocab}, 0.0f, 1.0f);
  add("position_embd.weight", {n_embd, tiny.context}, 0.0f, 1.0f);
  for (const char* matrix : {"attn_q", "attn_k", "attn_v", "attn_output"})
    add(std::string("blk.0.") + matrix + ".weight", {n_embd, n_embd}, 0.0f, 0.3f);
  add("blk.0.ffn_up.weight", {n_embd, kFeedForward}, 0.0f, 0.3f);
  add("blk.0.ffn_down.weight", {kFeedForward, n_embd}, 0.0f, 0.3f);
  for (const char* norm : {"token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"})
    add(std::string(norm) + ".weight", {n_embd}, 1.0f, 0.25f);
  return file.build();
}

}  // namespace

std::vector<std::byte> TinyModel::build() const {
  if (encoder) return build_encoder(*this);
  GgufBuilder file;
  file.key("general.architecture", "llama").key("general.name", "tiny \xC3\xA9");
  file.key("llama.context_length", context).key("llama.embedding_length", n_embd);
  file.key("llama.block_count", n_layers).key("llama.feed_forward_length", kFeedForward);
  file.key("llama.attention.head_count", n_embd / kHeadDim).key("llama.attention.head_count_kv", uint32_t{1});
  file.key("llama.attention.layer_norm_rms_epsilon", 1e-5f).key("llama.rope.dimension_count", kHeadDim);
  size_t n_vocab = 0;
  add_vocabulary(file, &n_vocab);
  if (chat_template)
    file.key("tokenizer.chat_template",
             "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
             "{% if add_generation_prompt %}[a]{% endif %}");
  if (!rank_template.empty()) file.key("tokenizer.chat_template.rerank", rank_template);
  if (!more_template.empty()) file.key("tokenizer.chat_template.more", more_template);
  if (pooling >= 0) file.key("llama.pooling_type", static_cast<uint32_t>(pooling));
  if (n_labels == 2) file.array("llama.classifier.output_labels", std::vector<std::string>{"no", "yes"});
  if (add_eos) file.key("tokenizer.ggml.add_eos_token", true);
  if (!extra_key.empty()) file.key(extra_key, uint32_t{5});
  if (!tensors) return file.build();

  Random random(seed);
  const auto add = [&](const std::string& name, std::vector<uint64_t> dims, float offset, float scale) {
    add_random(file, random, name, std::move(dims), offset, scale);
  };
  add("token_embd.weight", {n_embd, n_vocab}, 0.0f, 1.0f);
  for (uint32_t i = 0; i < n_layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    add(block + "attn_norm.weight", {n_embd}, 1.0f, 0.25f);
    add(block + "attn_q.weight", {n_embd, n_embd}, 0.0f, 0.3f);
    add(block + "attn_k.weight", {n_embd, kHeadDim}, 0.0f, 0.3f);
    add(block + "attn_v.weight", {n_embd, kHeadDim}, 0.0f, 0.3f);
    add(block + "attn_output.weight", {n_embd, n_embd}, 0.0f, 0.3f);
    add(block + "ffn_norm.weight", {n_embd}, 1.0f, 0.25f);
    add(block + "ffn_gate.weight", {n_embd, kFeedForward}, 0.0f, 0.2f);
    add(block + "ffn_up.weight", {n_embd, kFeedForward}, 0.0f, 0.2f);
    add(block + "ffn_down.weight", {kFeedForward, n_embd}, 0.0f, 0.2f);
  }
  add("output_norm.weight", {n_embd}, 1.0f, 0.25f);
  add("output.weight", {n_embd, n_vocab}, 0.0f, 0.5f);
  if (n_labels > 0) {
    std::vector<float> values;
    for (uint32_t i = 0; i < static_cast<uint32_t>(n_labels); ++i)
      for (uint32_t j = 0; j < n_embd; ++j) values.push_back(tiny_label_value(i, j));
    file.tensor("cls.output.weight", TensorType::f32, {n_embd, static_cast<uint64_t>(n_labels)}, as_bytes(values));
  }
  if (!extra_tensor.empty()) add(extra_tensor, {n_embd}, 0.0f, 1.0f);
  return file.build();
}

}  // namespace orrery::testing

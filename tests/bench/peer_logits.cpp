// The peer's logits of given tokens: peer_logits MODEL.gguf FIRST < tokens. Reads token ids from standard input, and writes the logits (F32)
// behind each of them from number FIRST on, to standard output. Linked with llama.cpp's libraries by peer.sh; beside_peer.py reads it.
#include <llama.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "peer_logits: %s\n", what);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) fail("usage: peer_logits MODEL.gguf FIRST < tokens");
  const int first = std::atoi(argv[2]);
  std::vector<llama_token> tokens;
  for (int32_t token; std::scanf("%d", &token) == 1;) tokens.push_back(token);
  if (first < 0 || first >= static_cast<int>(tokens.size())) fail("no token at FIRST");

  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* const model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) fail("cannot load the model");
  llama_context_params settings = llama_context_default_params();
  settings.n_ctx = static_cast<uint32_t>(tokens.size()) + 8;
  settings.n_batch = settings.n_ubatch = 512;
  llama_context* const context = llama_init_from_model(model, settings);
  if (context == nullptr) fail("cannot make a context");
  const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  llama_batch batch = llama_batch_init(512, 0, 1);
  for (size_t at = 0; at < tokens.size(); at += 512) {
    batch.n_tokens = 0;
    for (size_t i = at; i < tokens.size() && i < at + 512; ++i) {
      const int n = batch.n_tokens++;
      batch.token[n] = tokens[i], batch.pos[n] = static_cast<llama_pos>(i);
      batch.n_seq_id[n] = 1, batch.seq_id[n][0] = 0;
      batch.logits[n] = static_cast<int>(i) >= first ? 1 : 0;
    }
    if (llama_decode(context, batch) != 0) fail("cannot compute");
    for (int n = 0; n < batch.n_tokens; ++n)
      if (batch.logits[n] && std::fwrite(llama_get_logits_ith(context, n), sizeof(float), n_vocab, stdout) != n_vocab) fail("cannot write");
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

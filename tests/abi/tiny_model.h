// A chat model of a few kilobytes, made in memory: everything that the library does can be done with it,
// thousands of times a second.  Its weights are noise, its answers gibberish, always the same.
//
// Vocabulary: 0 <unk>, 1 <s>, 2 </s>, then the 256 byte tokens (kByte0 + byte), the space, printable ASCII,
// and a few words. Its template prints "[role]content" for each message, so that every text costs about a
// token per character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace orrery::testing {

inline constexpr int32_t kByte0 = 3;  // token of byte 0x00

struct TinyModel {
  uint64_t seed = 1;  // other weights, another model
  uint32_t n_layers = 2;
  uint32_t n_embd = 64;  // two heads of 32 on one KV head
  uint32_t context = 1024;
  bool tensors = true;  // false: a file with a tokenizer only
  bool chat_template = true;
  std::string rank_template;  // tokenizer.chat_template.rerank, if not empty
  std::string more_template;  // tokenizer.chat_template.more, if not empty
  bool encoder = false;       // a BERT: no answers
  int pooling = -1;           // pooling_type, if not -1
  int n_labels = 0;           // of a reranker's head: 1, or "no" and "yes"; with pooling 4. Its values: tiny_label_value()
  bool add_eos = false;       // the tokenizer ends a text with </s>
  std::string extra_tensor;   // the name of one that no llama has, if not empty
  std::string extra_key;      // the name of a key with the number 5, if not empty

  std::vector<std::byte> build() const;
};

// Value j of row i of a head.
inline float tiny_label_value(uint32_t i, uint32_t j) { return static_cast<float>((j * 7 + i * 5) % 13) / 8.0f - 0.75f; }

}  // namespace orrery::testing

// Pre-tokenizers cut text into pieces; BPE merges only inside a piece. Each model family publishes its rule as one or
// more regular expressions. Here each rule is a hand-written scanner that gives the same pieces in linear time and
// constant stack, on any bytes (a byte that is not UTF-8 is a character of no class). The tests have the
// expressions as the specification (tests/unit/text/pre_tokenizer_specs.cpp), and run them.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"

namespace orrery::text {

enum class PreTokenizer : uint8_t {
  classic,  // for files that name no pre-tokenizer
  gpt2,
  digits_gpt2,
  falcon,
  llama3,
  qwen2,
  qwen35,
  tekken,
  gpt4o,
  deepseek_llm,
  deepseek_coder,
  deepseek_v3,
};

// The meaning of a `tokenizer.ggml.pre` value.
struct PreTokenizerAlias {
  const char* name;
  PreTokenizer kind;
  bool ignore_merges;  // a piece that is itself a token is not merged
  bool add_bos;        // default, if the file does not say
};
Span<const PreTokenizerAlias> pre_tokenizer_aliases();
// Null for an unknown name.
const PreTokenizerAlias* find_pre_tokenizer(std::string_view name);

// Appends the end of every piece, in order (exclusive, in bytes from the start of `text`, below 4 GiB). The pieces
// cover the text. Returns false if `cancel` (may be null) ended the walk.
bool pre_tokenize(PreTokenizer kind, std::string_view text, std::vector<uint32_t>* ends, const std::atomic<bool>* cancel = nullptr);

}  // namespace orrery::text

// Pre-tokenizers: cut text into the pieces within which BPE may merge.  Each model family publishes its cut
// as one or more regular expressions; here each is a hand-written scanner that gives the same pieces in
// linear time and constant stack, on any bytes (a byte that is not UTF-8 is a character of no class).  The
// expressions themselves stand in kPreTokenizers, as specification, and the tests run them.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/span.h"

namespace orrery::text {

enum class PreTokenizer : uint8_t {
  classic,  // what files without a name for it mean
  gpt2,
  digits_gpt2,
  falcon,
  llama3,
  qwen2,
  tekken,
  gpt4o,
  deepseek_llm,
  deepseek_coder,
  deepseek_v3,
};

struct PreTokenizerSpec {
  PreTokenizer kind;
  const char* name;  // ours
  // Applied one after the other, each to every piece that the one before has left; a match is a piece, and so
  // is what lies between two matches. Null after the last.
  const char* expressions[6];
};
Span<const PreTokenizerSpec> pre_tokenizer_specs();

// What a `tokenizer.ggml.pre` stands for.
struct PreTokenizerAlias {
  const char* name;
  PreTokenizer kind;
  bool ignore_merges;  // a piece that is a token is taken as it is
  bool add_bos;        // unless the file says otherwise
};
Span<const PreTokenizerAlias> pre_tokenizer_aliases();
// Null for a name that is not known.
const PreTokenizerAlias* find_pre_tokenizer(std::string_view name);

// Appends the end (exclusive, in bytes from the start of `text`, below 4 GiB) of every piece, in order; the
// pieces cover the text.  False if `cancel` (may be null) ended it.
bool pre_tokenize(PreTokenizer kind, std::string_view text, std::vector<uint32_t>* ends,
                  const std::atomic<bool>* cancel = nullptr);

}  // namespace orrery::text

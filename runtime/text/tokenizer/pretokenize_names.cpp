// The names that files use for each pre-tokenizer.
#include "runtime/text/tokenizer/pretokenize.h"

namespace orrery::text {
namespace {

constexpr PreTokenizerAlias kAliases[] = {
    {"default", PreTokenizer::classic, false, false},
    {"gpt-2", PreTokenizer::gpt2, false, false},
    {"phi-2", PreTokenizer::gpt2, false, false},
    {"mpt", PreTokenizer::gpt2, false, false},
    {"olmo", PreTokenizer::gpt2, false, false},
    {"exaone4", PreTokenizer::gpt2, false, false},
    {"smollm", PreTokenizer::digits_gpt2, false, false},
    {"starcoder", PreTokenizer::digits_gpt2, false, false},
    {"refact", PreTokenizer::digits_gpt2, false, false},
    {"command-r", PreTokenizer::digits_gpt2, false, false},
    {"falcon", PreTokenizer::falcon, false, false},
    {"llama-bpe", PreTokenizer::llama3, true, true},
    {"llama3", PreTokenizer::llama3, true, true},
    {"llama-v3", PreTokenizer::llama3, true, true},
    {"falcon3", PreTokenizer::llama3, true, true},
    {"lfm2", PreTokenizer::llama3, true, true},
    {"pixtral", PreTokenizer::llama3, true, true},
    {"dbrx", PreTokenizer::llama3, false, false},
    {"smaug-bpe", PreTokenizer::llama3, false, false},
    {"glm4", PreTokenizer::llama3, false, false},
    {"chatglm-bpe", PreTokenizer::llama3, false, false},
    {"qwen2", PreTokenizer::qwen2, false, false},
    {"deepseek-r1-qwen", PreTokenizer::qwen2, false, false},
    {"stablelm2", PreTokenizer::qwen2, false, false},
    {"qwen35", PreTokenizer::qwen35, false, false},
    {"tekken", PreTokenizer::tekken, true, true},
    {"gpt-4o", PreTokenizer::gpt4o, false, false},
    {"llama4", PreTokenizer::gpt4o, false, false},
    {"deepseek-llm", PreTokenizer::deepseek_llm, false, false},
    {"deepseek-coder", PreTokenizer::deepseek_coder, false, false},
    {"deepseek-v3", PreTokenizer::deepseek_v3, false, false},
};

}  // namespace

Span<const PreTokenizerAlias> pre_tokenizer_aliases() { return {kAliases, sizeof kAliases / sizeof *kAliases}; }

const PreTokenizerAlias* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizerAlias& alias : pre_tokenizer_aliases())
    if (name == alias.name) return &alias;
  return nullptr;
}

}  // namespace orrery::text

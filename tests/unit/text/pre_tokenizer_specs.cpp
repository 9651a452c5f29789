#include "tests/unit/text/pre_tokenizer_specs.h"

namespace orrery::text {
namespace {

#define GPT2 R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"
#define CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define WHITE_SPACE R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define CASED_WORD_1 R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
#define CASED_WORD_2 R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
// The letters with a case, as DeepSeek LLM lists them (kDeepseekLetters in pretokenize.cpp).
#define DEEPSEEK_LETTERS                                                                                 \
  R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF})" \
  R"(\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1})"   \
  R"(\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5})"    \
  R"(\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77})"             \
  R"(\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D})"             \
  R"(\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC})"      \
  R"(\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC})"     \
  R"(\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D})"      \
  R"(\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"               \
  R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE})"      \
  R"(\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})"              \
  R"(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A})"             \
  R"(\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2})"     \
  R"(\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"

constexpr PreTokenizerSpec kPreTokenizers[] = {
    {PreTokenizer::classic, "classic", {R"([\p{P}\$\+<=>\^~\|]+)", GPT2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {PreTokenizer::gpt2, "gpt2", {GPT2}},
    {PreTokenizer::digits_gpt2, "digits_gpt2", {R"(\p{N})", GPT2}},
    {PreTokenizer::falcon, "falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", GPT2, "[0-9][0-9][0-9]"}},
    {PreTokenizer::llama3, "llama3", {CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" WHITE_SPACE}},
    {PreTokenizer::qwen2, "qwen2", {CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" WHITE_SPACE}},
    {PreTokenizer::qwen35, "qwen35", {CONTRACTION R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" WHITE_SPACE}},
    {PreTokenizer::tekken, "tekken", {CASED_WORD_1 "|" CASED_WORD_2 R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" WHITE_SPACE}},
    {PreTokenizer::gpt4o,
     "gpt4o",
     {CASED_WORD_1 CONTRACTION "?|" CASED_WORD_2 CONTRACTION R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" WHITE_SPACE}},
    {PreTokenizer::deepseek_llm,
     "deepseek_llm",
     {R"([\r\n])", R"(\s?[)" DEEPSEEK_LETTERS "]+", R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
      R"(\s+$)", R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)", R"(\p{N})"}},
    {PreTokenizer::deepseek_coder,
     "deepseek_coder",
     {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)", R"(\p{N})"}},
    {PreTokenizer::deepseek_v3,
     "deepseek_v3",
     {R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
      R"([!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)" WHITE_SPACE}},
};

#undef GPT2
#undef CONTRACTION
#undef WHITE_SPACE
#undef CASED_WORD_1
#undef CASED_WORD_2
#undef DEEPSEEK_LETTERS

}  // namespace

Span<const PreTokenizerSpec> pre_tokenizer_specs() { return {kPreTokenizers, sizeof kPreTokenizers / sizeof *kPreTokenizers}; }

}  // namespace orrery::text

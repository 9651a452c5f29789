// The GGUF keys of a vocabulary -> VocabData. This file checks types and ranges of single values; tokenizer_load.cpp
// checks the values against each other.
#include <algorithm>
#include <cctype>
#include <iterator>

#include "runtime/gguf/gguf.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace orrery::text {
namespace {

// Null if the key is absent and optional. An error if the value is no array of `element`.
Result<const gguf::Value*> array(const gguf::File& file, const char* key, gguf::ValueType element, bool required) {
  const gguf::Value* value = file.find(key);
  if (!value && !required) return static_cast<const gguf::Value*>(nullptr);
  if (!value) return error(Code::bad_model, "%s: %s is missing", file.path().c_str(), key);
  if (!value->is_array_of(element))
    return error(Code::bad_model, "%s: %s: found %s, expected an array of %s", file.path().c_str(), key,
                 gguf::value_type_name(value->type() == gguf::ValueType::array ? value->element_type() : value->type()),
                 gguf::value_type_name(element));
  return value;
}

Status read_strings(const gguf::File& file, const char* key, bool required, std::vector<std::string_view>* out) {
  ORRERY_ASSIGN(const gguf::Value* value, array(file, key, gguf::ValueType::string, required));
  if (!value) return ok_status();
  if (value->size() > kMostVocabTokens)
    return error(Code::bad_model, "%s: %s: %llu strings are too many, at most %zu are taken", file.path().c_str(), key,
                 static_cast<unsigned long long>(value->size()), kMostVocabTokens);
  out->resize(value->size());
  for (uint64_t i = 0; i < value->size(); i++) (void)value->at(i).as_string(&(*out)[i]);  // cannot fail: the array holds strings
  return ok_status();
}

Status read_id(const gguf::File& file, const char* key, int32_t* id) {
  if (!file.find(key)) return ok_status();
  ORRERY_ASSIGN(const uint64_t value, file.required_u64(key));
  // A value that does not fit is no token; from_vocab() reports it.
  *id = value > INT32_MAX ? INT32_MAX : static_cast<int32_t>(value);
  return ok_status();
}

Status read_flag(const gguf::File& file, const char* key, int* flag) {
  if (!file.find(key)) return ok_status();
  ORRERY_ASSIGN(const bool value, file.get_bool(key, false));
  *flag = value ? 1 : 0;
  return ok_status();
}

// Keys that change the tokens of a text in ways that the tokenizers here do not support. Each key is harmless if it
// is empty, false or 0.
constexpr const char* kNotRun[] = {
    "tokenizer.ggml.precompiled_charsmap",  // a normalisation of SentencePiece
    "tokenizer.ggml.suppress_tokens",       // tokens that must never be generated
};
// The same of tokenizers other than WordPiece.
constexpr const char* kOfWordPiece[] = {"tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.normalizer.strip_accents",
                                        "tokenizer.ggml.add_sep_token"};

Status refuse_what_is_not_run(const gguf::File& file, Span<const char* const> keys) {
  for (const char* key : keys) {
    const gguf::Value* value = file.find(key);
    if (value == nullptr) continue;
    bool set = true;
    const bool neutral = value->type() == gguf::ValueType::array ? value->size() == 0 : value->as_bool(&set) && !set;
    if (!neutral)
      return error(Code::unsupported, "%s: key '%s' is %s: no tokenizer here is run with it", file.path().c_str(), key,
                   gguf::describe(*value).c_str());
  }
  return ok_status();
}

}  // namespace

Result<Tokenizer> Tokenizer::from_gguf(const gguf::File& file) {
  ORRERY_TRY(refuse_what_is_not_run(file, {kNotRun, std::size(kNotRun)}));
  VocabData vocab;
  ORRERY_ASSIGN(vocab.model, file.required_string("tokenizer.ggml.model"));
  const bool merges = vocab.model != "llama" && vocab.model != "bert";
  if (vocab.model != "bert") ORRERY_TRY(refuse_what_is_not_run(file, {kOfWordPiece, std::size(kOfWordPiece)}));
  ORRERY_ASSIGN(vocab.pre, file.get_string("tokenizer.ggml.pre", ""));
  ORRERY_TRY(read_strings(file, "tokenizer.ggml.tokens", true, &vocab.tokens));
  ORRERY_TRY(read_strings(file, "tokenizer.ggml.merges", merges, &vocab.merges));

  ORRERY_ASSIGN(const gguf::Value* scores, array(file, "tokenizer.ggml.scores", gguf::ValueType::f32, vocab.model == "llama"));
  if (scores) {
    vocab.scores.resize(scores->size());
    for (uint64_t i = 0; i < scores->size(); i++) {
      double score = 0;
      (void)scores->at(i).as_f64(&score);
      vocab.scores[i] = static_cast<float>(score);
    }
  }
  if (const gguf::Value* types = file.find("tokenizer.ggml.token_type")) {
    if (!types->is_array_of(gguf::ValueType::u32)) {
      ORRERY_ASSIGN(types, array(file, "tokenizer.ggml.token_type", gguf::ValueType::i32, true));
    }
    vocab.types.resize(types->size());
    for (uint64_t i = 0; i < types->size(); i++) {
      int64_t type = 0;
      (void)types->at(i).as_i64(&type);
      vocab.types[i] = static_cast<int32_t>(std::clamp<int64_t>(type, INT32_MIN, INT32_MAX));
    }
    if (types->size() == 0 && !vocab.tokens.empty())
      return error(Code::bad_model, "%s: tokenizer.ggml.token_type is empty", file.path().c_str());
  }

  ORRERY_TRY(read_id(file, "tokenizer.ggml.bos_token_id", &vocab.special.bos));
  ORRERY_TRY(read_id(file, "tokenizer.ggml.eos_token_id", &vocab.special.eos));
  ORRERY_TRY(read_id(file, "tokenizer.ggml.eot_token_id", &vocab.special.eot));
  ORRERY_TRY(read_id(file, "tokenizer.ggml.eom_token_id", &vocab.special.eom));
  ORRERY_TRY(read_id(file, "tokenizer.ggml.unknown_token_id", &vocab.special.unk));
  ORRERY_TRY(read_id(file, "tokenizer.ggml.padding_token_id", &vocab.special.pad));
  ORRERY_TRY(read_id(file, "tokenizer.ggml.seperator_token_id", &vocab.special.sep));
  ORRERY_TRY(read_flag(file, "tokenizer.ggml.add_bos_token", &vocab.add_bos));
  ORRERY_TRY(read_flag(file, "tokenizer.ggml.add_eos_token", &vocab.add_eos));
  ORRERY_TRY(read_flag(file, "tokenizer.ggml.add_space_prefix", &vocab.add_space_prefix));
  if (vocab.model == "bert") {
    if (vocab.special.bos < 0) ORRERY_TRY(read_id(file, "tokenizer.ggml.cls_token_id", &vocab.special.bos));
    ORRERY_TRY(read_flag(file, "tokenizer.ggml.normalizer.lowercase", &vocab.lowercase));
    ORRERY_TRY(read_flag(file, "tokenizer.ggml.normalizer.strip_accents", &vocab.strip_accents));
  }
  ORRERY_ASSIGN(vocab.remove_extra_whitespaces, file.get_bool("tokenizer.ggml.remove_extra_whitespaces", false));

  // No key says that Phi-3's special tokens absorb white space. The model's name or architecture says it.
  std::string_view name, architecture;
  if (const gguf::Value* value = file.find("general.name")) (void)value->as_string(&name);
  if (const gguf::Value* value = file.find("general.architecture")) (void)value->as_string(&architecture);
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  vocab.strip_after_special =
      vocab.model == "llama" && (architecture == "phi3" || lower.find("phi-3") != lower.npos || lower.find("phi3") != lower.npos);

  Result<Tokenizer> made = from_vocab(vocab);
  if (!made.ok()) {
    Status status = made.take_status();
    status.detail().message = file.path() + ": " + status.detail().message;
    return status;
  }
  return made;
}

}  // namespace orrery::text

// From a file's metadata to a Tokenizer. This file finds every error that a file may have (lengths, ids, types,
// UTF-8, scores, merge rules), so encoding needs no checks.
#include <algorithm>
#include <cmath>

#include "runtime/text/tokenizer/tokenizer_impl.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::text {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";

// GPT-2's alphabet: a byte that is printable in Latin-1 stands for itself. The other bytes, in order, are U+0100 and
// following.
struct ByteAlphabet {
  int16_t byte_of[0x144] = {};  // by code point; -1: not in the alphabet
  constexpr ByteAlphabet() {
    for (int c = 0; c < 0x144; c++) byte_of[c] = -1;
    int next = 0x100;
    for (int b = 0; b < 256; b++) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      byte_of[printable ? b : next++] = static_cast<int16_t>(b);
    }
  }
};
constexpr ByteAlphabet kAlphabet;

// Appends the bytes that a BPE token's text stands for. A text with characters outside the alphabet stands for itself
// (added tokens are written this way). `text` is valid UTF-8.
void append_byte_decoded(std::string_view text, std::string* out) {
  const size_t before = out->size();
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    uint32_t c = static_cast<uint8_t>(*p++);
    if (c >= 0x80 && p < end) c = c < 0xE0 ? (c & 0x1F) << 6 | (static_cast<uint8_t>(*p++) & 0x3F) : 0xFFFF;
    if (c >= 0x144 || kAlphabet.byte_of[c] < 0) {
      out->resize(before);
      out->append(text);
      return;
    }
    out->push_back(static_cast<char>(kAlphabet.byte_of[c]));
  }
}

// "<0x0A>" -> 10, else -1.
int byte_token_value(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = digit(text[3]), low = digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

void append_spaces_for_blocks(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); i++) {
    if (text.compare(i, 3, "\xE2\x96\x81") == 0) {
      out->push_back(' ');
      i += 2;
    } else {
      out->push_back(text[i]);
    }
  }
}

// A file's text for messages: bounded, and always UTF-8.
std::string shown(std::string_view text) {
  std::string out;
  utf8_append_valid(text.substr(0, 60), &out);
  return out;
}

// Gemma 4's files call marks of channels and tools (<|channel>, <tool_call|>, <|"|>) user-defined. As control tokens they
// are the template's alone, and a user's text cannot make them.
bool is_gemma4_mark(std::string_view text) {
  return text.size() > 3 && ((text.substr(0, 2) == "<|" && text.back() == '>') || (text[0] == '<' && text.substr(text.size() - 2) == "|>"));
}

bool is_text(TokenType type) { return type == TokenType::normal || type == TokenType::user_defined; }

}  // namespace

// Builds a Tokenizer.
struct TokenizerLoader {
  using Impl = Tokenizer::Impl;
  const VocabData& data;
  Impl& t;
  uint64_t seed;

  Status load() {
    ORRERY_TRY(choose_family());
    ORRERY_TRY(check_lengths());
    ORRERY_TRY(read_types());
    ORRERY_TRY(read_special());
    ORRERY_TRY(read_tokens());
    find_end_of_generation();
    build_indexes();
    measure_tokens();
    if (t.family == Impl::Family::wordpiece) return ok_status();
    return t.family == Impl::Family::spm ? build_spm() : build_bpe();
  }

  void measure_tokens() {
    for (int32_t id = 0; id < t.table.size(); id++) t.longest_token_bytes = std::max(t.longest_token_bytes, t.table[id].size());
    const bool all_bytes = std::all_of(t.byte_ids, t.byte_ids + 256, [](int32_t id) { return id >= 0; });
    const bool bpe = t.family == Impl::Family::bpe;
    // BPE gives one unknown token per missing byte; SentencePiece gives one per run of missing bytes.
    const bool keeps_all = all_bytes || (t.family != Impl::Family::spm && t.special.unk >= 0);
    t.word_pieces.table = &t.table, t.word_pieces.index = &t.text_index, t.word_pieces.longest_bytes = t.longest_token_bytes;
    if (t.family == Impl::Family::wordpiece) return;  // a word of any length may be one unknown token
    if (!keeps_all || t.strip_after_special || (!bpe && t.remove_extra_whitespaces)) return;
    t.text_bytes_per_token = t.longest_token_bytes * (bpe ? 1 : 3);  // U+2581 has three bytes and may stand for a space
  }

  Status choose_family() {
    if (data.model == "gpt2") {
      t.family = Impl::Family::bpe;
      const std::string_view name = data.pre.empty() ? "default" : data.pre;
      const PreTokenizerAlias* alias = find_pre_tokenizer(name);
      if (!alias) return error(Code::unsupported, "tokenizer.ggml.pre: no pre-tokenizer '%s' here", shown(name).c_str());
      t.pre = alias->kind;
      t.ignore_merges = alias->ignore_merges;
      t.add_bos = alias->add_bos;
    } else if (data.model == "llama") {
      t.family = Impl::Family::spm;
      t.add_bos = true;
      t.add_space_prefix = true;
    } else if (data.model == "gemma4") {
      t.family = Impl::Family::gemma4;
      if (!data.pre.empty() && data.pre != "default" && data.pre != "gemma4")
        return error(Code::unsupported, "tokenizer.ggml.pre: a gemma4 tokenizer has no pre-tokenizer '%s' here", shown(data.pre).c_str());
      if (data.remove_extra_whitespaces)
        return error(Code::unsupported, "tokenizer.ggml.remove_extra_whitespaces: no gemma4 tokenizer here is run with it");
    } else if (data.model == "bert") {
      t.family = Impl::Family::wordpiece;
      t.add_bos = t.add_eos = true;  // CLS and SEP
      t.word_pieces.lowercase = data.lowercase != 0;
      t.word_pieces.strip_accents = data.strip_accents < 0 ? t.word_pieces.lowercase : data.strip_accents != 0;
    } else {
      return error(Code::unsupported, "tokenizer.ggml.model: found '%s', expected gpt2, llama, gemma4 or bert", shown(data.model).c_str());
    }
    if (data.add_bos >= 0) t.add_bos = data.add_bos != 0;
    if (t.family == Impl::Family::gemma4) t.add_bos = true;  // files say otherwise, and the model needs it
    if (data.add_eos >= 0) t.add_eos = data.add_eos != 0;
    if (t.family == Impl::Family::wordpiece) t.add_space_prefix = true;  // decode() drops the first word's space
    if (t.family == Impl::Family::spm && data.add_space_prefix >= 0) t.add_space_prefix = data.add_space_prefix != 0;
    t.remove_extra_whitespaces = data.remove_extra_whitespaces;
    t.strip_after_special = data.strip_after_special;
    return ok_status();
  }

  Status check_lengths() {
    const size_t n = data.tokens.size();
    if (n == 0) return error(Code::bad_model, "%s is empty", kTokens);
    if (n > kMostVocabTokens) return error(Code::bad_model, "%s: %zu tokens are too many", kTokens, n);
    if (!data.types.empty() && data.types.size() != n)
      return error(Code::bad_model, "tokenizer.ggml.token_type: found %zu values, expected %zu (one per token)", data.types.size(), n);
    if (!data.scores.empty() && data.scores.size() != n)
      return error(Code::bad_model, "tokenizer.ggml.scores: found %zu values, expected %zu (one per token)", data.scores.size(), n);
    uint64_t bytes = 0;
    for (const std::string_view token : data.tokens) bytes += token.size();
    if (bytes > UINT32_MAX) return error(Code::bad_model, "%s: %llu bytes are too many", kTokens, static_cast<unsigned long long>(bytes));
    t.table.reserve(n, bytes);
    return ok_status();
  }

  Status read_types() {
    const size_t n = data.tokens.size();
    t.types.assign(n, TokenType::normal);
    for (size_t i = 0; i < data.types.size(); i++) {
      const int32_t type = data.types[i];
      if (type < 0 || type > 6) return error(Code::bad_model, "tokenizer.ggml.token_type[%zu]: found %d, expected 0 to 6", i, type);
      if (type != 0) t.types[i] = static_cast<TokenType>(type);  // 0: undefined, treated as normal
    }
    for (size_t i = 0; t.family == Impl::Family::gemma4 && i < n; i++) {
      TokenType& type = t.types[i];
      if (type == TokenType::user_defined && is_gemma4_mark(data.tokens[i])) type = TokenType::control;
      // Text has U+2581 where it has spaces, so no text is a token with a space.
      if (type == TokenType::normal && data.tokens[i].find(' ') != std::string_view::npos) type = TokenType::unused;
    }
    return ok_status();
  }

  Status read_special() {
    t.special = data.special;
    const struct {
      const char* key;
      int32_t id;
    } named[] = {{"bos", t.special.bos},     {"eos", t.special.eos},     {"eot", t.special.eot},      {"eom", t.special.eom},
                 {"unknown", t.special.unk}, {"padding", t.special.pad}, {"seperator", t.special.sep}};
    const auto n = static_cast<int32_t>(data.tokens.size());
    for (const auto& s : named)
      if (s.id < -1 || s.id >= n)
        return error(Code::bad_model, "tokenizer.ggml.%s_token_id: found %d, expected less than %d (the vocabulary)", s.key, s.id, n);
    if (t.family == Impl::Family::wordpiece) {  // by the names that BERT's vocabularies have
      const auto named_id = [&](int32_t* id, std::string_view name) {
        const auto it = std::find(data.tokens.begin(), data.tokens.end(), name);
        if (*id < 0 && it != data.tokens.end()) *id = static_cast<int32_t>(it - data.tokens.begin());
      };
      named_id(&t.special.unk, "[UNK]"), named_id(&t.special.bos, "[CLS]"), named_id(&t.special.sep, "[SEP]");
      if (t.special.eos < 0) t.special.eos = t.special.sep;
      for (const int32_t id : {t.special.unk, t.special.bos, t.special.sep, t.special.eos, t.special.pad})
        if (id >= 0) t.types[static_cast<size_t>(id)] = id == t.special.unk ? TokenType::unknown : TokenType::control;
    }
    if (t.family == Impl::Family::spm) {  // defaults that SentencePiece models rely on
      const auto default_id = [&](int32_t* id, int32_t usual, TokenType type) {
        if (*id < 0 && usual < n && t.types[static_cast<size_t>(usual)] == type) *id = usual;
      };
      default_id(&t.special.unk, 0, TokenType::unknown);
      default_id(&t.special.bos, 1, TokenType::control);
      default_id(&t.special.eos, 2, TokenType::control);
    }
    return ok_status();
  }

  Status read_tokens() {
    std::fill(t.byte_ids, t.byte_ids + 256, -1);
    std::string& blob = t.table.blob();
    for (size_t i = 0; i < data.tokens.size(); i++) {
      const std::string_view text = data.tokens[i];
      if (!utf8_valid(text)) return error(Code::bad_model, "%s[%zu]: '%s' is not valid UTF-8", kTokens, i, shown(text).c_str());
      const size_t before = blob.size();
      const TokenType type = t.types[i];
      int byte = -1;
      if (t.family != Impl::Family::bpe && type == TokenType::byte) {
        byte = byte_token_value(text);
        if (byte < 0)
          return error(Code::bad_model, "%s[%zu]: found '%s' of type byte, expected <0x00> to <0xFF>", kTokens, i, shown(text).c_str());
        blob.push_back(static_cast<char>(byte));
      } else if (t.family != Impl::Family::bpe && type == TokenType::normal) {
        append_spaces_for_blocks(text, &blob);
      } else if (t.family == Impl::Family::bpe && (type == TokenType::normal || type == TokenType::byte)) {
        if (type == TokenType::byte) t.types[i] = TokenType::normal;
        append_byte_decoded(text, &blob);
        if (blob.size() == before + 1) byte = static_cast<uint8_t>(blob.back());
      } else {
        blob.append(text);
      }
      if (byte >= 0 && t.byte_ids[byte] < 0) t.byte_ids[byte] = static_cast<int32_t>(i);
      t.table.close();
    }
    return ok_status();
  }

  // Also found by text, since many files have no key for these tokens. Such a token is control, whatever type the
  // file gives.
  void find_end_of_generation() {
    static constexpr std::string_view kEndOfTurn[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>"};
    static constexpr std::string_view kOther[] = {"<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>"};
    const auto among = [](std::string_view text, const auto& names) {
      return std::find(std::begin(names), std::end(names), text) != std::end(names);
    };
    std::vector<int32_t> turns, found;
    bool has_return = false, has_call = false;
    for (int32_t id = 0; id < t.table.size(); id++) {
      const std::string_view text = data.tokens[static_cast<size_t>(id)];
      if (text.size() < 7 || text[0] != '<') continue;
      has_return |= text == "<|return|>";
      has_call |= text == "<|call|>";
      if (text == "<|eom_id|>" && t.special.eom < 0) t.special.eom = id;
      if (among(text, kEndOfTurn)) turns.push_back(id);
      if (among(text, kOther)) found.push_back(id);
      if (t.family == Impl::Family::gemma4 && text == "<|tool_response>") found.push_back(id);  // the tool writes it
    }
    for (const int32_t id : turns) {
      // In the harmony format, <|end|> ends one of several messages of a turn. The other two tokens end the turn.
      if (has_return && has_call && t.table[id] == "<|end|>") continue;
      found.push_back(id);
      if (t.special.eot < 0) t.special.eot = id;
    }
    for (const int32_t id : found)
      if (t.types[static_cast<size_t>(id)] != TokenType::unused) t.types[static_cast<size_t>(id)] = TokenType::control;
    for (const int32_t id : {t.special.eos, t.special.eot, t.special.eom})
      if (id >= 0) found.push_back(id);
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    t.end_of_generation = std::move(found);
  }

  // Of equal texts, the first normal token wins, then the first user-defined token.
  void build_indexes() {
    size_t n_text = 0, n_names = 0;
    for (int32_t id = 0; id < t.table.size(); id++) (is_text(type_of(id)) ? n_text : n_names) += 1;
    t.text_index.reset(n_text, seed);
    t.name_index.reset(n_names, seed);
    std::vector<SpecialMatcher::Entry> user_defined, all;
    for (int32_t id = 0; id < t.table.size(); id++) {
      const TokenType type = type_of(id);
      if (type == TokenType::normal && !t.table[id].empty()) t.text_index.insert(t.table, id);
      if (type == TokenType::user_defined) user_defined.push_back({t.table[id], id, false});
      if (type == TokenType::control || type == TokenType::unknown) {
        all.push_back({t.table[id], id, true});
        if (!t.table[id].empty()) t.name_index.insert(t.table, id);
      }
    }
    for (const SpecialMatcher::Entry& e : user_defined)
      if (!e.name.empty()) t.text_index.insert(t.table, e.id);
    all.insert(all.end(), user_defined.begin(), user_defined.end());
    t.user_defined.reset(std::move(user_defined));
    t.all_special.reset(std::move(all));
  }

  TokenType type_of(int32_t id) const { return t.types[static_cast<size_t>(id)]; }

  // One line of the merges: "left right" in the file's alphabet, decoded to bytes.
  struct Merge {
    std::string both;
    size_t exported_bytes = 0;
    uint64_t left_hash = 0, right_hash = 0;
    std::string_view left() const { return std::string_view(both).substr(0, exported_bytes); }
    std::string_view right() const { return std::string_view(both).substr(exported_bytes); }
  };

  Status build_bpe() {
    const size_t n = data.merges.size();
    if (n > INT32_MAX) return error(Code::bad_model, "tokenizer.ggml.merges: %zu are too many", n);
    std::vector<BpeModel::MergeRule> rules;
    rules.reserve(n);
    constexpr size_t kBatch = 32;
    Merge batch[kBatch];
    int32_t guess = -1;
    for (size_t from = 0; from < n; from += kBatch) {
      const size_t count = std::min(kBatch, n - from);
      for (size_t i = 0; i < count; i++) ORRERY_TRY(read_merge(from + i, &batch[i]));
      for (size_t i = 0; i < count; i++) {
        t.text_index.prefetch_token(t.table, batch[i].left_hash);
        t.text_index.prefetch_token(t.table, batch[i].right_hash);
      }
      for (size_t i = 0; i < count; i++) {
        const Merge& m = batch[i];
        // Most vocabularies are in the order of their merges, so the next token is tried first, then the last one
        // again.
        int32_t merged = -1;
        for (const int32_t id : {guess + 1, guess})
          if (merged < 0 && id >= 0 && id < t.table.size() && type_of(id) == TokenType::normal && t.table[id] == m.both) merged = id;
        if (merged < 0) merged = t.text_index.find(t.table, m.both);
        const int32_t left = t.text_index.find(t.table, m.left(), m.left_hash);
        const int32_t right = t.text_index.find(t.table, m.right(), m.right_hash);
        if (left < 0 || right < 0 || merged < 0) {
          // Files of Gemma 4 may have rules whose result is no token. Such a rule is left out.
          if (merged < 0 && t.family == Impl::Family::gemma4) continue;
          // Text never becomes a control token. A text that is no token at all is an error.
          for (const std::string_view text : {m.left(), m.right(), std::string_view(m.both)})
            if (t.text_index.find(t.table, text) < 0 && t.name_index.find(t.table, text) < 0)
              return error(Code::bad_model, "tokenizer.ggml.merges[%zu]: '%s': there is no token '%s'", from + i,
                           shown(data.merges[from + i]).c_str(), shown(text).c_str());
          continue;
        }
        guess = merged;
        rules.push_back({left, right, merged});
      }
    }
    if (t.family == Impl::Family::gemma4) t.character_bpe.reset(&t.table, &t.text_index, t.byte_ids, rules, seed);
    else t.bpe.reset(t.byte_ids, rules, seed);
    return ok_status();
  }

  Status read_merge(size_t i, Merge* out) {
    const std::string_view text = data.merges[i];
    const size_t space = text.find(' ', 1);
    if (space == text.npos || space + 1 == text.size() || !utf8_valid(text))
      return error(Code::bad_model, "tokenizer.ggml.merges[%zu]: found '%s', expected two tokens", i, shown(text).c_str());
    out->both.clear();
    const auto append = t.family == Impl::Family::gemma4 ? append_spaces_for_blocks : append_byte_decoded;
    append(text.substr(0, space), &out->both);
    out->exported_bytes = out->both.size();
    append(text.substr(space + 1), &out->both);
    out->left_hash = t.text_index.hash(out->left());
    out->right_hash = t.text_index.hash(out->right());
    t.text_index.prefetch(out->left_hash);
    t.text_index.prefetch(out->right_hash);
    return ok_status();
  }

  Status build_spm() {
    std::vector<float> scores = data.scores;
    scores.resize(data.tokens.size(), 0.0f);
    for (size_t i = 0; i < scores.size(); i++)
      if (std::isnan(scores[i])) return error(Code::bad_model, "tokenizer.ggml.scores[%zu] is not a number", i);
    t.spm.reset(&t.table, &t.text_index, std::move(scores), t.byte_ids);
    return ok_status();
  }
};

Result<Tokenizer> Tokenizer::from_vocab(const VocabData& vocab) {
  auto impl = std::make_unique<Impl>();
  // Addresses differ from run to run. The hash tables need no other randomness.
  const uint64_t seed = hash_mix(reinterpret_cast<uintptr_t>(impl.get()), 0x9E3779B97F4A7C15);
  ORRERY_TRY((TokenizerLoader{vocab, *impl, seed}.load()));
  return Tokenizer(std::unique_ptr<const Impl>(std::move(impl)));
}

}  // namespace orrery::text

// Reads the vocabularies of tests/golden/tokenizer as VocabData.
#pragma once

#include <algorithm>
#include <deque>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/random_strings.h"

namespace orrery::testing {

struct GoldenVocab {
  text::VocabData data;
  std::deque<std::string> strings;  // the views in `data` point here

  GoldenVocab() = default;
  GoldenVocab(GoldenVocab&&) = default;  // no copies: a copy's views would point to the strings of the original
  GoldenVocab& operator=(GoldenVocab&&) = default;

  void add(std::string token, text::TokenType type) {
    strings.push_back(std::move(token));
    data.tokens.push_back(strings.back());
    data.types.push_back(static_cast<int32_t>(type));
  }
};

// GPT-2's alphabet in the order of its code points, as UTF-8.
inline std::vector<std::string> byte_alphabet() {
  std::vector<uint32_t> code_points;
  for (uint32_t b = 0, next = 0x100; b < 256; b++) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    code_points.push_back(printable ? b : next++);
  }
  std::sort(code_points.begin(), code_points.end());
  std::vector<std::string> out;
  for (const uint32_t c : code_points) {
    out.emplace_back();
    text::utf8_append(c, &out.back());
  }
  return out;
}

// The shared BPE vocabulary: 256 bytes, the tokens that merges make, tokens that no merge makes, and if `with_special` the special tokens.
inline GoldenVocab golden_bpe_vocab(std::string_view pre, bool with_special) {
  using text::TokenType;
  GoldenVocab v;
  v.data.model = "gpt2";
  v.data.pre = pre;
  for (std::string& token : byte_alphabet()) v.add(std::move(token), TokenType::normal);
  std::ifstream in(source_path("tests/golden/tokenizer/bpe_vocab.txt"));
  std::string line;
  std::vector<std::string> known;  // sorted
  while (std::getline(in, line)) {
    const size_t space = line.find(' ');
    const std::string kind = line.substr(0, space), text = line.substr(space + 1);
    if (kind == "merge") {
      v.strings.push_back(text);
      v.data.merges.push_back(v.strings.back());
      std::string token = text;
      token.erase(token.find(' '), 1);
      const auto at = std::lower_bound(known.begin(), known.end(), token);
      if (at != known.end() && *at == token) continue;  // two merges make the same token
      known.insert(at, token);
      v.add(std::move(token), TokenType::normal);
    } else if (kind == "token") {
      v.add(text, TokenType::normal);
    } else if (with_special) {
      v.add(text, kind == "control" ? TokenType::control : TokenType::user_defined);
    }
  }
  return v;
}

// One of the SentencePiece vocabularies.
inline GoldenVocab golden_spm_vocab(const std::string& name) {
  GoldenVocab v;
  v.data.model = "llama";
  std::ifstream in(source_path("tests/golden/tokenizer/" + name + "_vocab.txt"));
  std::string word, token;
  int trim = 0, type = 0;
  float score = 0;
  in >> word >> v.data.add_space_prefix >> word >> trim;
  v.data.remove_extra_whitespaces = trim != 0;
  while (in >> score >> type >> token) {
    v.add(unescape(token), static_cast<text::TokenType>(type));
    v.data.scores.push_back(score);
  }
  return v;
}

}  // namespace orrery::testing

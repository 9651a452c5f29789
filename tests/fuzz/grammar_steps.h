// What every grammar must do, whoever wrote it: it is refused with a message, or answers can be walked through it. A walk takes tokens out
// of the masks, in turns that its input says; what it checks holds for every grammar.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/grammar/grammar.h"

namespace orrery::fuzz {

namespace grammar = text::grammar;

// All bytes, some of them twice, words of the languages' answers, and an end.
inline std::shared_ptr<grammar::TokenTrie> fuzz_trie() {
  static const std::shared_ptr<grammar::TokenTrie> trie = [] {
    std::vector<std::string> tokens;
    for (int c = 0; c < 256; ++c) tokens.push_back(std::string(1, static_cast<char>(c)));
    for (const char* word : {"a",        "ab",     "abc", "aa", "\":", "{\"", "\"}", "true", "nul", "\xc3\xa9",
                             "\xe2\x82", "\xac\"", "12",  "3.", "e+",  " ",   "  ",  "],",   "[[",  "\\\""})
      tokens.emplace_back(word);
    tokens.emplace_back();
    return std::move(grammar::TokenTrie::make(std::vector<std::string_view>(tokens.begin(), tokens.end()),
                                              {static_cast<int32_t>(tokens.size()) - 1}))
        .value();
  }();
  return trie;
}

// size: of its limits, in powers of two; 0: small grammars, for which a run takes milliseconds.
inline std::shared_ptr<grammar::Grammar> compile_or_refuse(std::string_view source, grammar::Language language, int size = 0,
                                                           bool any_order = false) {
  grammar::GrammarOptions options;
  options.language = language;
  options.schema.any_order = any_order;
  options.limits.states = 1u << (12 + size);
  options.limits.edges = 1u << (14 + size);
  options.limits.memory_bytes = 1u << 20;
  options.limits.repeat = 1u << (10 + size);
  options.cache_bytes = 1u << 18;
  auto compiled = grammar::Grammar::compile(source, options, fuzz_trie());
  if (compiled.ok()) return *compiled;
  const Code code = compiled.status().code();
  if (code != Code::invalid_argument && code != Code::unsupported) std::abort();
  if (compiled.status().message()[0] == '\0') std::abort();
  return nullptr;
}

inline void walk(const grammar::Grammar& form, const uint8_t* turns, size_t n_turns, size_t most_steps) {
  grammar::Matcher matcher = form.matcher();
  std::string text;
  std::vector<size_t> ends = {0};
  const auto bytes_of = [&](int32_t token) { return form.trie().bytes(token); };
  const bool by_bytes = form.network().token_edges.empty();
  for (size_t step = 0; step < most_steps && !matcher.ended(); ++step) {
    const uint8_t turn = n_turns > 0 ? turns[step % n_turns] : static_cast<uint8_t>(step * 37);
    auto made = matcher.mask();
    if (!made.ok()) {
      if (made.status().code() != Code::unsupported) std::abort();
      return;
    }
    const std::vector<uint32_t> words(*made, *made + matcher.n_words());
    std::vector<int32_t> allowed;
    int32_t refused = -1;
    for (int32_t id = 0; id < static_cast<int32_t>(form.trie().n_vocab()); ++id)
      if (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) allowed.push_back(id);
      else if (refused < 0 || id % 256 == turn) refused = id;
    if (allowed.empty()) std::abort();  // a mask is never empty, but where it says so
    if (refused >= 0) {
      auto taken = matcher.accept(refused);
      if (taken.ok() && *taken) std::abort();
    }
    const int32_t token = allowed[turn * 7919u % allowed.size()];
    const bool closes = matcher.can_close_after(token, 3);
    auto taken = matcher.accept(token);
    if (!taken.ok()) return;  // too ambiguous
    if (!*taken) std::abort();
    if (!matcher.ended()) {
      if (closes && matcher.tokens_to_end() > 3) std::abort();
      text += bytes_of(token);
      ends.push_back(text.size());
    }
    if (by_bytes) {
      bool complete = false;
      const size_t read = form.match(text, &complete);
      if (read != text.size() || (matcher.ended() && !complete) || complete != matcher.may_end()) {
        if (!matcher.ended()) std::abort();
      }
    }
    if (turn % 11 == 0 && matcher.n_tokens() > 1) {  // back, and the same mask as before
      const size_t keep = matcher.n_tokens() / 2;
      matcher.rewind(keep);
      if (matcher.n_tokens() != keep) std::abort();
      ends.resize(keep + 1);
      text.resize(ends.back());
    }
  }
}

}  // namespace orrery::fuzz

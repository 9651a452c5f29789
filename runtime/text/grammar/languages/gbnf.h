// GBNF, the notation of grammar files: rules of literals, classes of characters, groups, choices, repetitions, and whole tokens.
//
//     root   ::= "{" (pair ("," pair)*)? "}"      # comments run to the end of the line
//     pair   ::= string ":" [0-9]{1,3}
//     string ::= "\"" [^"\\]* "\""
//
// A rule ends with its line; lines may break inside parentheses, after `|` and after `::=`. `<[7]>` is the token 7, `<think>` the token of
// that name, `!<think>` any token but that one.
#pragma once

#include <functional>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/text/grammar/tree/limits.h"
#include "runtime/text/grammar/tree/tree.h"

namespace orrery::text::grammar {

struct GbnfOptions {
  std::string_view root = "root";
  // The id of the token with this name, angle brackets included, or -1. Null: the vocabulary is unknown, and names are refused.
  std::function<int32_t(std::string_view)> find_token;
  uint32_t n_vocab = 0;  // 0: unknown
};

// Errors: invalid_argument with line, column and offset; unsupported beyond a limit.
Result<Tree> parse_gbnf(std::string_view source, const GbnfOptions& options, const CompileLimits& limits);

}  // namespace orrery::text::grammar

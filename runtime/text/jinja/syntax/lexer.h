// Template source -> tokens, after the white space rules: trim_blocks (removes a newline right after a block tag),
// lstrip_blocks (removes blanks before a block tag at the start of a line), "-" and "+" signs, raw blocks, comments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace orrery::text::jinja {

struct Position {
  uint32_t line = 1, column = 1;  // column in code points
};

// An unsupported_template error with a place in the template.
Status template_error(Position at, const std::string& message);

enum class TokenType : uint8_t {
  end,
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  floating,
  add,
  sub,
  mul,
  div,
  floordiv,
  mod,
  pow,
  tilde,
  assign,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  dot,
  comma,
  colon,
  semicolon,
  pipe,
  lparen,
  rparen,
  lbracket,
  rbracket,
  lbrace,
  rbrace,
};

struct Token {
  TokenType type = TokenType::end;
  Position at;
  std::string text;  // data and string: the unescaped text; numbers: without "_"; other types: as written
};

// Names of token types for messages: "end of print statement", "','", ...
const char* describe(TokenType type);

Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace orrery::text::jinja

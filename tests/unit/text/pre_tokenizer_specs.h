// The published expressions of each pre-tokenizer: the specification of the library's scanners.
#pragma once

#include "runtime/base/span.h"
#include "runtime/text/tokenizer/pretokenize.h"

namespace orrery::text {

struct PreTokenizerSpec {
  PreTokenizer kind;
  const char* name;  // our own name
  // Applied in order, each to every piece of the previous one. A match is a piece, and the text between two matches
  // is a piece. Null after the last expression.
  const char* expressions[6];
};
Span<const PreTokenizerSpec> pre_tokenizer_specs();

}  // namespace orrery::text

// JSON in and out.  Reading is strict RFC 8259 on hostile input: depth and size are bounded, UTF-8 is
// validated, and an error names line, column and byte offset.  Writing gives the text that Python's
// json.dumps gives, because chat templates print tools with it and models were trained on exactly that text.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/text/json/value.h"

namespace orrery::text {

struct JsonLimits {
  uint32_t max_depth = 200;         // nesting of lists and objects
  uint64_t max_bytes = 1ull << 30;  // of the text
  const std::atomic<bool>* cancel = nullptr;  // set by another thread to end the reading: cancelled
};

// Integers beyond int64 are kept exactly (Kind::big_integer); a number with fraction or exponent is a double,
// and one that is too large for a double is refused.  A repeated key: the last value wins, in the first one's
// place.  Escaped surrogates must come in pairs.  Errors: invalid_argument with line, column (in bytes, from
// 1) and offset.
Result<Value> parse_json(std::string_view text, const JsonLimits& limits = {});

struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool pretty = false;  // one item a line, each level indented by `indent`
  std::string indent;
  std::string item_separator;  // empty: ", ", or "," when pretty
  std::string key_separator = ": ";
  bool custom_separators = false;   // item_separator is meant even when empty
  uint64_t max_bytes = 1ull << 30;  // of the result
  const std::atomic<bool>* cancel = nullptr;  // set by another thread to end the writing: cancelled
  uint64_t* bytes_written = nullptr;          // filled in, also where the writing fails
};

// Fails (invalid_argument) on what json.dumps refuses: undefined values, objects, keys that are tuples; and
// beyond max_bytes or a nesting of 1,000.  Non-finite floats print as NaN, Infinity, -Infinity, as Python's
// do.
Result<std::string> dump_json(const Value& value, const JsonFormat& format = {});

// The shortest text that reads back as `v`, in Python's notation: 1.0, 1e-05, 1e+16, inf, nan.
std::string format_float(double v);

}  // namespace orrery::text

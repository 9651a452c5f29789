// JSON in and out. Reading is strict RFC 8259 on hostile input: depth and size are bounded, UTF-8 is validated, and
// an error names line, column and byte offset. Writing gives the exact text of Python's json.dumps, because chat
// templates print tools with json.dumps and models were trained on its text.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/text/json/value.h"

namespace orrery::text {

struct JsonLimits {
  uint32_t max_depth = 200;                   // nesting of lists and objects
  uint64_t max_bytes = 1ull << 30;            // of the text
  const std::atomic<bool>* cancel = nullptr;  // set by another thread to end the reading: cancelled
};

// Integers beyond int64 are kept exactly (Kind::big_integer). A number with a fraction or an exponent is a double; a
// number too large for a double is refused. If a key repeats, the last value wins, at the place of the first. Escaped
// surrogates must come in pairs. Errors: invalid_argument with line, column (in bytes, from 1) and offset.
Result<Value> parse_json(std::string_view text, const JsonLimits& limits = {});

struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool pretty = false;  // one item per line, each level indented by `indent`
  std::string indent;
  std::string item_separator;  // empty: ", ", or "," if pretty
  std::string key_separator = ": ";
  bool custom_separators = false;             // an empty item_separator is used as it is
  uint64_t max_bytes = 1ull << 30;            // of the result
  const std::atomic<bool>* cancel = nullptr;  // set by another thread to end the writing: cancelled
  uint64_t* bytes_written = nullptr;          // filled in, also where the writing fails
  Origins* origins = nullptr;                 // filled in: of the strings' bytes; all others are data
};

// Fails with invalid_argument on values that json.dumps refuses (undefined values, objects, tuples as keys), beyond
// max_bytes, and beyond a nesting of 1,000. Non-finite floats print as NaN, Infinity, -Infinity, as in Python.
Result<std::string> dump_json(const Value& value, const JsonFormat& format = {});

// The shortest text that reads back as `v`, in Python's notation: 1.0, 1e-05, 1e+16, inf, nan.
std::string format_float(double v);

}  // namespace orrery::text

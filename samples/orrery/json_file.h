// Reads JSON from untrusted files: nesting is bounded before any recursive code runs, and an error names the file and
// the byte. Keys keep their order, because templates print objects in order.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace orrery::tool {

using Json = nlohmann::ordered_json;

// `name` is the file's name in errors.
Json parse_json(const std::string& text, const std::string& name);

// JSON as text. Bytes that are not UTF-8 (a token may hold half a character) become U+FFFD.
std::string dump_json(const Json& json, int indent);

}  // namespace orrery::tool

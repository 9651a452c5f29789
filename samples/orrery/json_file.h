// JSON from files that anybody may have written: nesting is bounded before anything recursive sees it, and
// what is wrong names the file and the byte. Keys keep their order, as templates print objects.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace orrery::tool {

using Json = nlohmann::ordered_json;

// `name` is for the error.
Json parse_json(const std::string& text, const std::string& name);

// As text; bytes that are not UTF-8 (a token may be half a character) become U+FFFD.
std::string dump_json(const Json& json, int indent);

}  // namespace orrery::tool

// Reads JSON from untrusted files: nesting is bounded before any recursive code runs, and an error names the file and
// the byte. Keys keep their order, because templates print objects in order.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace orrery::tool {

using Json = nlohmann::ordered_json;

// `name` is the file's name in errors.
Json parse_json(const std::string& text, const std::string& name);

// Reads the library's description of a file (an object of scalars, objects and arrays) member by member, in time linear in its
// bytes: a file may have a million keys. visit("", key, scalar) for each scalar, visit(key, member_key, value) for each member
// of an object, visit(key, "", value) for each element of an array. `text` must be JSON, as the library writes it.
void walk_json(const std::string& text, const std::function<void(std::string_view part, const std::string& key, const Json& value)>& visit);

// JSON as text. Bytes that are not UTF-8 (a token may hold half a character) become U+FFFD.
std::string dump_json(const Json& json, int indent);

}  // namespace orrery::tool

// See json_file.h.
#include "json_file.h"

#include "terminal/failure.h"
#include "terminal/output.h"

namespace orrery::tool {

constexpr int kDeepest = 256;

Json parse_json(const std::string& text, const std::string& name) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) {
        throw Failure(kExitFailure,
                      format("%s: byte %zu: nested deeper than %d", name.c_str(), i, kDeepest));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw Failure(kExitFailure, format("%s: is not JSON: error at byte %zu", name.c_str(), error.byte));
  }
}

std::string dump_json(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace orrery::tool

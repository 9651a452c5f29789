// A request that gets an error: the HTTP status and the members of OpenAI's error object. It is thrown while a request is read, and becomes
// the answer's body.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace orrery::server {

// Members stay in the order of the text: a prompt and a schema depend on it.
using Json = nlohmann::ordered_json;

struct Refusal {
  int status = 400;
  std::string message;
  std::string param;  // the field, "messages[2].content"; empty: none
  std::string code;   // empty: none

  Json json() const {
    const char* type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 404 ? "not_found_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error";
    return {{"error",
             {{"message", message},
              {"type", type},
              {"param", param.empty() ? Json(nullptr) : Json(param)},
              {"code", code.empty() ? Json(nullptr) : Json(code)}}}};
  }
};

// JSON as text. Bytes that are not UTF-8 (parts of characters, in tokens) become U+FFFD.
inline std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

[[noreturn]] inline void refuse_field(std::string param, std::string why) {
  Refusal refusal;
  refusal.message = param + ": " + why;
  refusal.param = std::move(param);
  throw refusal;
}

}  // namespace orrery::server

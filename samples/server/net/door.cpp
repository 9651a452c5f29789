// See door.h.
#include "net/door.h"

namespace orrery::server {
namespace {

// "[::1]:8080" -> "::1", "localhost:8080" -> "localhost".
std::string name_of(const std::string& host) {
  if (!host.empty() && host[0] == '[') return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// Takes as long for every wrong key, so that its time says nothing about the right one.
bool equal_keys(const std::string& given, const std::string& right) {
  unsigned difference = given.size() == right.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) difference |= static_cast<unsigned char>(given[i] ^ right[i % right.size()]);
  return difference == 0;
}

}  // namespace

std::string Door::allowed_origin(const std::string& origin) const {
  if (origin.empty() || options_.allow_origin.empty()) return "";
  if (options_.allow_origin == "*") return "*";
  return origin == options_.allow_origin ? origin : "";
}

std::optional<Refusal> Door::check(const Visitor& visitor, bool public_page) const {
  if (loopback_ && !visitor.host.empty() && !is_loopback(name_of(visitor.host)))
    return Refusal{403, "Host: '" + visitor.host.substr(0, 100) + "' is not a name of this machine's loopback", "", "forbidden_host"};
  if (!visitor.origin.empty() && allowed_origin(visitor.origin).empty())
    return Refusal{403, "Origin: web pages of '" + visitor.origin.substr(0, 100) + "' may not ask; see --allow-origin", "",
                   "forbidden_origin"};
  if (options_.api_key.empty() || public_page) return std::nullopt;
  const std::string scheme = "Bearer ";
  if (visitor.authorization.compare(0, scheme.size(), scheme) == 0 &&
      equal_keys(visitor.authorization.substr(scheme.size()), options_.api_key))
    return std::nullopt;
  return Refusal{401, "the API key is missing or wrong: Authorization: Bearer KEY", "", "invalid_api_key"};
}

}  // namespace orrery::server

// Who may come in: the Host and Origin headers, and the API key. A web page that a user visits can send requests to a server on loopback,
// by a name of its own that resolves to 127.0.0.1, or across origins; these checks stop both.
#pragma once

#include <optional>
#include <string>

#include "base/options.h"
#include "base/refusal.h"

namespace orrery::server {

// Empty strings: the header is absent.
struct Visitor {
  std::string host, origin, authorization;
};

class Door {
 public:
  explicit Door(const Options& options) : options_(options), loopback_(is_loopback(options.host)) {}
  // nullopt: come in. `public_page`: without the key.
  std::optional<Refusal> check(const Visitor& visitor, bool public_page) const;
  // The value of Access-Control-Allow-Origin for this origin; empty: none.
  std::string allowed_origin(const std::string& origin) const;

 private:
  const Options& options_;
  bool loopback_;
};

}  // namespace orrery::server

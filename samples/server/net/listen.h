// A socket that listens.
#pragma once

#include <string>

namespace orrery::server {

// Throws std::runtime_error. *port: in: 0 is a free one; out: the one.
int listen_on(const std::string& host, int* port);

}  // namespace orrery::server

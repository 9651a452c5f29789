// See listen.h.
#include "net/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace orrery::server {

int listen_on(const std::string& host, int* port) {
  addrinfo wanted = {}, *found = nullptr;
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  const std::string name = host == "localhost" ? "127.0.0.1" : host;  // whatever else a hosts file says
  if (const int error = getaddrinfo(name.c_str(), std::to_string(*port).c_str(), &wanted, &found))
    throw std::runtime_error("--host " + host + ": " + gai_strerror(error));
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // the last owner's connections may still be closing
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  const bool good = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 256) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (!good) {
    if (fd >= 0) close(fd);
    throw std::runtime_error("cannot listen on " + host + ", port " + std::to_string(*port) + ": " + std::strerror(error));
  }
  *port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                              : reinterpret_cast<sockaddr_in&>(address).sin_port);
  return fd;
}

}  // namespace orrery::server

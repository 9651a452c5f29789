// The connections: listens, takes requests apart, finds the page, sends responses. One thread (libmicrohttpd's) serves all connections and
// never waits for an answer, so a connection costs its buffers and no thread.
#pragma once

#include <microhttpd.h>

#include <atomic>
#include <memory>
#include <string>

#include "net/door.h"
#include "answers/engine.h"
#include "base/metrics.h"
#include "net/watch.h"

namespace orrery::server {

struct Exchange;  // one request and its response, in http.cpp

class Http {
 public:
  // Listens. Throws std::runtime_error.
  Http(const Options& options, Engine* engine, Metrics* metrics);
  ~Http();
  int port() const { return port_; }
  // Takes no more connections.
  void close_door();
  // Waits until what has been answered is sent, for a second at most.
  void drain() const;

 private:
  friend struct Callbacks;
  MHD_Result request(MHD_Connection* connection, Exchange* exchange, const char* data, size_t* n);
  MHD_Result respond(MHD_Connection* connection, Exchange* exchange, int status, const std::string& text, const char* type);
  MHD_Result respond(MHD_Connection* connection, Exchange* exchange, const Refusal& refusal);
  MHD_Result respond_page(MHD_Connection* connection, Exchange* exchange);
  MHD_Result respond_answer(MHD_Connection* connection, Exchange* exchange);
  MHD_Result queue(MHD_Connection* connection, Exchange* exchange, int status, MHD_Response* response);
  void enter(MHD_Connection* connection, Exchange* exchange);
  void leave(MHD_Connection* connection, Exchange* exchange);

  const Options& options_;
  Engine* engine_;
  Metrics* metrics_;
  Door door_;
  Watch watch_;
  MHD_Daemon* daemon_ = nullptr;
  int port_ = 0;
  std::atomic<int> exchanges_{0};
  uint64_t body_bytes_ = 0;  // of all requests that arrive now; of libmicrohttpd's thread
};

}  // namespace orrery::server

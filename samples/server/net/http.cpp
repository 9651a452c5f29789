// See http.h. libmicrohttpd calls request() when the headers are there, again with each part of the body, once more when the body is
// complete, and again when a connection that was laid aside goes on.
#include "net/http.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "net/listen.h"

namespace orrery::server {

struct Exchange {
  std::string url, method, route;  // route: the page's name in metrics
  Visitor visitor;
  bool entered = false, complete = false;
  std::optional<Refusal> refusal;  // found before the body was complete
  std::string body;
  std::shared_ptr<Job> job;
};

namespace {

constexpr uint64_t kMostBodyBytes = 256 << 20;           // of all requests that arrive at the same time
constexpr auto kReadingTime = std::chrono::seconds(60);  // for a client to read the rest of an answer that is complete

std::string header(MHD_Connection* connection, const char* name) {
  const char* value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value ? value : "";
}

bool takes_post(const std::string& route) {
  return route == "/v1/chat/completions" || route == "/v1/completions" || route == "/v1/embeddings" || route == "/v1/rerank";
}

std::string route_of(const std::string& url) {
  for (const char* known : {"/health", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank"})
    if (url == known) return known;
  return url.compare(0, 11, "/v1/models/") == 0 ? "/v1/models" : "other";
}

}  // namespace

// C functions for libmicrohttpd.
struct Callbacks {
  static void* begin(void*, const char* uri, MHD_Connection*) {
    try {
      auto exchange = std::make_unique<Exchange>();
      exchange->url = uri;
      exchange->url.resize(std::min(exchange->url.find('?'), exchange->url.size()));
      return exchange.release();
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  static MHD_Result request(void* http, MHD_Connection* connection, const char*, const char* method, const char*, const char* data,
                            size_t* n, void** state) {
    auto* exchange = static_cast<Exchange*>(*state);
    if (!exchange) return MHD_NO;
    try {
      if (exchange->method.empty()) exchange->method = method;
      return static_cast<Http*>(http)->request(connection, exchange, data, n);
    } catch (const std::exception&) {  // no memory: the connection closes
      return MHD_NO;
    }
  }
  static void completed(void* http, MHD_Connection* connection, void** state, MHD_RequestTerminationCode) {
    auto* exchange = static_cast<Exchange*>(*state);
    if (!exchange) return;
    static_cast<Http*>(http)->leave(connection, exchange);
    delete exchange;
    *state = nullptr;
  }
  static void connection(void* http, MHD_Connection* connection, void**, MHD_ConnectionNotificationCode code) {
    auto* self = static_cast<Http*>(http);
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
      self->watch_.opened(connection, Clock::now() + std::chrono::seconds(self->options_.read_seconds));
    else self->watch_.closed(connection);
  }
  static ssize_t take(void* job, uint64_t, char* to, size_t capacity) {
    const ssize_t n = (*static_cast<std::shared_ptr<Job>*>(job))->outbox.take(to, capacity);
    return n < 0 ? MHD_CONTENT_READER_END_OF_STREAM : n;
  }
  static void free_job(void* job) { delete static_cast<std::shared_ptr<Job>*>(job); }
  static void log(void*, const char*, va_list) {}  // broken requests of strangers
};

Http::Http(const Options& options, Engine* engine, Metrics* metrics)
    : options_(options), engine_(engine), metrics_(metrics), door_(options), watch_(metrics, [engine] { engine->poke(); }),
      port_(options.port) {
  const int fd = listen_on(options.host, &port_);
  // poll() and not epoll: a connection whose last bytes came together with its end was seen to be forgotten there, until its time limit.
  daemon_ = MHD_start_daemon(MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, nullptr, nullptr,
                             &Callbacks::request, this, MHD_OPTION_EXTERNAL_LOGGER, &Callbacks::log, nullptr, MHD_OPTION_LISTEN_SOCKET, fd,
                             MHD_OPTION_URI_LOG_CALLBACK, &Callbacks::begin, this, MHD_OPTION_NOTIFY_COMPLETED, &Callbacks::completed, this,
                             MHD_OPTION_NOTIFY_CONNECTION, &Callbacks::connection, this, MHD_OPTION_CONNECTION_LIMIT, options.connections,
                             MHD_OPTION_CONNECTION_TIMEOUT, options.read_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, size_t{64} << 10,
                             MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
  if (!daemon_) {
    ::close(fd);
    throw std::runtime_error("libmicrohttpd does not start");
  }
}

Http::~Http() { MHD_stop_daemon(daemon_); }

void Http::close_door() {
  const MHD_socket fd = MHD_quiesce_daemon(daemon_);
  if (fd >= 0) ::close(fd);
}

void Http::drain() const {
  for (int i = 0; i < 50 && exchanges_ > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// The headers are there.
void Http::enter(MHD_Connection* connection, Exchange* exchange) {
  exchange->entered = true;
  ++exchanges_;
  exchange->route = route_of(exchange->url);
  exchange->visitor = {header(connection, MHD_HTTP_HEADER_HOST), header(connection, MHD_HTTP_HEADER_ORIGIN),
                       header(connection, MHD_HTTP_HEADER_AUTHORIZATION)};
  exchange->refusal = door_.check(exchange->visitor, exchange->route == "/health" || exchange->method == "OPTIONS");
  const uint64_t length = std::strtoull(header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH).c_str(), nullptr, 10);
  if (!exchange->refusal && length > options_.body_bytes)
    exchange->refusal = Refusal{413, "the body is longer than " + std::to_string(options_.body_bytes) + " bytes", "", "body_too_long"};
}

// The request is over, whichever way.
void Http::leave(MHD_Connection* connection, Exchange* exchange) {
  body_bytes_ -= exchange->body.size();
  if (exchange->entered) --exchanges_;
  if (exchange->job) {
    exchange->job->outbox.leave();
    engine_->poke();
  }
  watch_.idle(connection, Clock::now() + std::chrono::seconds(options_.read_seconds));
}

MHD_Result Http::request(MHD_Connection* connection, Exchange* exchange, const char* data, size_t* n) {
  if (!exchange->entered) {
    enter(connection, exchange);
    if (exchange->refusal && exchange->refusal->status == 413) return respond(connection, exchange, *exchange->refusal);
    return MHD_YES;
  }
  if (*n > 0) {  // a part of the body; after a refusal it is read and dropped, so that the client reads the refusal
    if (exchange->body.size() + *n > options_.body_bytes || body_bytes_ + *n > kMostBodyBytes) return MHD_NO;
    if (!exchange->refusal) {
      exchange->body.append(data, *n);
      body_bytes_ += *n;
    }
    *n = 0;
    return MHD_YES;
  }
  if (exchange->job) return respond_answer(connection, exchange);
  if (exchange->refusal) return respond(connection, exchange, *exchange->refusal);
  return respond_page(connection, exchange);
}

MHD_Result Http::respond_page(MHD_Connection* connection, Exchange* exchange) {
  const std::string& route = exchange->route;
  const bool get = exchange->method == "GET" || exchange->method == "HEAD";
  const bool embeds = route == "/v1/embeddings", ranks = route == "/v1/rerank";
  const bool answers = takes_post(route);
  if (exchange->method == "OPTIONS") return respond(connection, exchange, 204, "", "text/plain");
  if (route == "other")
    return respond(connection, exchange, Refusal{404, "there is no page '" + exchange->url.substr(0, 100) + "'", "", "not_found"});
  if (answers ? exchange->method != "POST" : !get)
    return respond(connection, exchange, Refusal{405, exchange->url + " takes " + (answers ? "POST" : "GET"), "", "method_not_allowed"});
  if (answers) {
    auto job = std::make_shared<Job>(connection);
    job->chat = route == "/v1/chat/completions";
    job->kind = embeds ? Job::Kind::embeddings : ranks ? Job::Kind::rerank : Job::Kind::answer;
    body_bytes_ -= exchange->body.size();
    job->body = std::move(exchange->body);
    exchange->body.clear();
    job->arrived = Clock::now();
    job->deadline = job->arrived + std::chrono::seconds(options_.answer_seconds);
    exchange->job = job;
    watch_.answering(connection, job, job->deadline + kReadingTime);
    engine_->submit(job);
    return respond_answer(connection, exchange);
  }
  if (route == "/health") {
    const bool good = engine_->healthy();
    return respond(connection, exchange, good ? 200 : 503, good ? "{\"status\":\"ok\"}" : "{\"status\":\"device lost\"}",
                   "application/json");
  }
  if (route == "/metrics") return respond(connection, exchange, 200, metrics_->page(), "text/plain; version=0.0.4");
  const Json model = {
      {"id", options_.name}, {"object", "model"}, {"created", 0}, {"owned_by", "orrery"}, {"context_length", engine_->context_tokens()}};
  if (exchange->url == route)
    return respond(connection, exchange, 200, text_of({{"object", "list"}, {"data", Json::array({model})}}), "application/json");
  if (exchange->url.substr(route.size() + 1) == options_.name)
    return respond(connection, exchange, 200, text_of(model), "application/json");
  return respond(connection, exchange, Refusal{404, "this server has '" + options_.name + "'", "model", "model_not_found"});
}

// The answer can begin, or the connection is laid aside until it can.
MHD_Result Http::respond_answer(MHD_Connection* connection, Exchange* exchange) {
  Outbox& outbox = exchange->job->outbox;
  if (outbox.park()) return MHD_YES;
  if (outbox.gone() && !outbox.streams()) return MHD_NO;  // nobody is there: the connection closes
  if (!outbox.streams())
    return respond(connection, exchange, outbox.status() ? outbox.status() : 500, outbox.whole_text(), "application/json");
  auto* job = new std::shared_ptr<Job>(exchange->job);
  MHD_Response* response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, &Callbacks::take, job, &Callbacks::free_job);
  if (!response) return Callbacks::free_job(job), MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  return queue(connection, exchange, 200, response);
}

MHD_Result Http::respond(MHD_Connection* connection, Exchange* exchange, const Refusal& refusal) {
  return respond(connection, exchange, refusal.status, text_of(refusal.json()), "application/json");
}

MHD_Result Http::respond(MHD_Connection* connection, Exchange* exchange, int status, const std::string& text, const char* type) {
  MHD_Response* response = MHD_create_response_from_buffer(text.size(), const_cast<char*>(text.data()), MHD_RESPMEM_MUST_COPY);
  if (!response) return MHD_NO;
  if (status != 204) MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  if (status == 503) MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
  if (status == 405) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, takes_post(exchange->route) ? "POST" : "GET");
  return queue(connection, exchange, status, response);
}

MHD_Result Http::queue(MHD_Connection* connection, Exchange* exchange, int status, MHD_Response* response) {
  if (const std::string origin = door_.allowed_origin(exchange->visitor.origin); !origin.empty()) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, origin.c_str());
    MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, "Origin");
    if (exchange->method == "OPTIONS") {
      MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST");
      const std::string wanted = header(connection, "Access-Control-Request-Headers").substr(0, 1000);
      MHD_add_response_header(response, "Access-Control-Allow-Headers", wanted.empty() ? "authorization, content-type" : wanted.c_str());
    }
  }
  const MHD_Result result = MHD_queue_response(connection, static_cast<unsigned>(status), response);
  MHD_destroy_response(response);
  metrics_->responded(exchange->route, status);
  return result;
}

}  // namespace orrery::server

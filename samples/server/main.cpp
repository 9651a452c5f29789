// orrery-server: an OpenAI-compatible server for one local model. The order of its life: options, model and sessions, listening, a signal;
// then no new connections, every answer cancelled, the last bytes sent, the end.
#include <signal.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "answers/engine.h"
#include "net/http.h"

namespace {

using namespace orrery::server;

int serve(const Options& options, const sigset_t& signals) {
  Metrics metrics;
  Engine engine(options, &metrics);
  Http http(options, &engine, &metrics);
  const std::string host = options.host.find(':') == std::string::npos ? options.host : "[" + options.host + "]";
  const std::string served =
      (engine.generates() ? std::to_string(options.sessions) + " sessions of " : std::string("embeddings of texts of at most ")) +
      std::to_string(engine.context_tokens()) + " tokens";
  std::printf("orrery-server: %s on http://%s:%d/v1, %s\n", options.name.c_str(), host.c_str(), http.port(), served.c_str());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  http.close_door();
  engine.stop();
  http.drain();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Every thread blocks the signals, and this one waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  try {
    const Options options = parse_options(std::vector<std::string>(argv + 1, argv + argc));
    if (options.help) return std::fputs(help_page().c_str(), stdout), 0;
    return serve(options, signals);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "orrery-server: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "orrery-server: %s\n", error.what());
    return 1;
  }
}

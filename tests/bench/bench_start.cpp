// What it takes to get going: bench_start MODEL.gguf TOOL DEMO_MODEL.gguf [threads].
//   load        from orrery_runtime_create() to a session that can be asked, the file in the page cache; five times as long may
//               take what is repacked
//   first token from there to the first token after a prompt of one
//   memory      resident beside the mapped weights and the arena's planned bytes, with a context of 1,024 tokens that is full
//   idle        processor time in two seconds in which nobody calls, after a token and after the answer
//   demo        from the start of the process `orrery run` on the demo model to its first byte
// Times are medians of seven, with the least and the most. Through orrery.h alone, as an application has it.
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/abi/handles.h"

extern char** environ;

namespace orrery::testing {
namespace {

constexpr int kRuns = 7;
constexpr uint32_t kContext = 1024;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void print_times(const char* what, std::vector<double> seconds, double most) {
  std::sort(seconds.begin(), seconds.end());
  std::printf("%-44s %8.1f ms  (%.1f - %.1f)   to be below %.0f ms\n", what, 1e3 * seconds[seconds.size() / 2], 1e3 * seconds.front(),
              1e3 * seconds.back(), 1e3 * most);
}

void warm_up(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes(1 << 20);
  while (file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
  }
}

Generation ask(const Session& session, const std::vector<int32_t>& tokens, uint32_t n) {
  orrery_generate_options wishes = generate_options(n);
  wishes.ignore_end = 1;
  return generate_tokens(session, tokens, wishes);
}
void until(const Generation& answer, uint32_t type) {
  orrery_event event = options(&orrery_event_init);
  Error error;
  do {
    check(orrery_next(answer.get(), &event, &error), error, "orrery_next");
  } while (event.type != type && event.type != ORRERY_EVENT_DONE);
}

struct Opened {
  Runtime runtime;
  Model model;
  Session session;
};
Opened open_all(const std::string& path, int32_t n_threads) {
  orrery_runtime_options wishes = runtime_options();
  wishes.n_threads = n_threads;
  orrery_runtime* made = nullptr;
  Error error;
  check(orrery_runtime_create(&wishes, &made, &error), error, "orrery_runtime_create");
  Opened all;
  all.runtime.reset(made);
  all.model = open_model(all.runtime, path);
  orrery_session_options shape = session_options();
  shape.n_context = kContext;
  all.session = open_session(all.model, shape);
  return all;
}

// Resident bytes of this process: of the mapped model, of anonymous mappings of a gigabyte and more (the arena and the
// reservoir, of which most is never touched), of all the rest.
struct Resident {
  uint64_t model = 0, arenas = 0, rest = 0;
};
Resident resident(const std::string& model) {
  char real[4096];
  const std::string path = realpath(model.c_str(), real) ? real : model;
  std::ifstream maps("/proc/self/smaps");
  Resident sum;
  std::string line, name;
  unsigned long long begin = 0, end = 0, kib = 0;
  while (std::getline(maps, line)) {
    if (std::sscanf(line.c_str(), "Rss: %llu kB", &kib) == 1) {
      const bool anonymous = name.empty() || name[0] == '[';
      uint64_t& which = name == path ? sum.model : anonymous && end - begin >= (1u << 30) ? sum.arenas : sum.rest;
      which += kib * 1024;
    } else if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      const size_t slash = line.find_first_of("/[");
      name = slash == std::string::npos ? "" : line.substr(slash);
    }
  }
  return sum;
}

double processor_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}
double idle_ms() {
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  return 1e3 * (processor_seconds() - before);
}

// Seconds from the start of a process to the first byte that it writes.
double first_byte(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return 0;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  const double start = now();
  pid_t child = 0;
  if (posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ) != 0) throw std::runtime_error(words[0] + " does not start");
  close(ends[1]);
  char byte;
  const bool came = read(ends[0], &byte, 1) == 1;
  const double seconds = now() - start;
  while (came && read(ends[0], &byte, 1) == 1) {
  }
  int status = 0;
  waitpid(child, &status, 0);
  close(ends[0]);
  posix_spawn_file_actions_destroy(&actions);
  if (!came || status != 0) throw std::runtime_error(words[0] + " said nothing, or failed");
  return seconds;
}

void run(const std::string& path, const std::string& tool, const std::string& demo, int32_t n_threads) {
  constexpr double kMib = 1024.0 * 1024.0;
  warm_up(path);
  double most_load = 0.3;
  {  // Memory first: later this process would hold what it has used before.
    const Opened all = open_all(path, n_threads);
    const std::vector<int32_t> prompt(kContext - 16, 300);
    until(ask(all.session, prompt, 16), ORRERY_EVENT_DONE);
    const Resident now_resident = resident(path);
    // The mapped pages of repacked weights are released.
    if (now_resident.model < std::filesystem::file_size(path) / 2) most_load = 1.5;
    orrery_plan_result plan = options(&orrery_plan_result_init);
    orrery_session_options shape = session_options();
    shape.n_context = kContext;
    Error error;
    check(orrery_plan(path_source(path), nullptr, nullptr, &shape, &plan, &error), error, "orrery_plan");
    const uint64_t planned = std::min(now_resident.arenas, plan.device_bytes);
    std::printf("%-44s %8.1f MiB                    to be below 32 MiB\n", "resident beyond mapped weights and plan",
                static_cast<double>(now_resident.rest + now_resident.arenas - planned) / kMib);
    std::printf("  of the mapped file %.1f MiB; in the arena %.1f MiB, planned %.1f MiB\n", static_cast<double>(now_resident.model) / kMib,
                static_cast<double>(now_resident.arenas) / kMib, static_cast<double>(plan.device_bytes) / kMib);
  }
  std::vector<double> load, first, demo_first;
  for (int i = 0; i < kRuns; ++i) {
    const double start = now();
    const Opened all = open_all(path, n_threads);
    load.push_back(now() - start);
    const double asked = now();
    until(ask(all.session, {300}, 2), ORRERY_EVENT_TOKEN);
    first.push_back(now() - asked);
  }
  print_times("load, to a session that can be asked", load, most_load);
  print_times("  its first token, after a prompt of one", first, 0.3);
  {
    const Opened all = open_all(path, n_threads);
    const Generation answer = ask(all.session, {300}, 8);
    until(answer, ORRERY_EVENT_TOKEN);
    const double between = idle_ms();
    until(answer, ORRERY_EVENT_DONE);
    std::printf("%-44s %8.1f ms between tokens, %.1f ms after the answer\n", "processor time in 2 s without a call", between, idle_ms());
  }
  for (int i = 0; i < kRuns; ++i) demo_first.push_back(first_byte({tool, "run", demo, "Who are you?", "--context", "1024"}));
  print_times("demo model, process start to first byte", demo_first, 0.1);
}

}  // namespace
}  // namespace orrery::testing

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: bench_start MODEL.gguf TOOL DEMO_MODEL.gguf [threads]; see its first lines\n");
    return 2;
  }
  try {
    orrery::testing::run(argv[1], argv[2], argv[3], argc > 4 ? std::atoi(argv[4]) : 0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_start: %s\n", e.what());
    return 1;
  }
  return 0;
}

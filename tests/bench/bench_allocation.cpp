// What the library's allocator costs and keeps: processor time, peak of resident memory, and resident memory after everything is freed.
//
//   bench_allocation_mimalloc | bench_allocation_malloc | bench_allocation_before   MODEL [TURNS]
//
// The same program over the same objects, linked three times: with accounts over mimalloc (what liborrery does), with accounts over the
// C library's malloc, and with the program's operator new as it was before (CMakeLists.txt). Each part runs in a process of its own.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

#ifdef ORRERY_BENCH_OWN_NEW  // "before": the C++ library's operators, which call malloc
#include <new>
void* operator new(std::size_t n) {
  if (void* const p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t n) { return operator new(n); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return std::malloc(n ? n : 1); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return std::malloc(n ? n : 1); }
void* operator new(std::size_t n, std::align_val_t a) {
  const auto align = static_cast<std::size_t>(a);
  if (void* const p = std::aligned_alloc(align, (n + align - 1) / align * align)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t n, std::align_val_t a) { return operator new(n, a); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  const auto align = static_cast<std::size_t>(a);
  return std::aligned_alloc(align, (n + align - 1) / align * align);
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t& t) noexcept { return operator new(n, a, t); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
#endif

namespace orrery::testing {
namespace {

// Of the processor: other programs' work does not count.
double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double resident_mib() {
  std::ifstream in("/proc/self/statm");
  double pages = 0;
  in >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// Runs part() -> seconds for one unit in a child, and prints its row.
template <class F>
void row(const char* what, const char* unit, double scale, F part) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child != 0) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) std::printf("%-28s failed\n", what);
    return;
  }
  const double before = resident_mib();
  const double seconds = part();
  const double after = resident_mib();
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  std::printf("%-28s %9.3f %-12s peak %8.1f MiB   begins at %5.1f, ends at %5.1f MiB\n", what, seconds * scale, unit,
              static_cast<double>(used.ru_maxrss) / 1024, before, after);
  std::fflush(stdout);
  ::_exit(0);
}

std::string text_of(size_t bytes) {
  static const char* const words[] = {"the",     "planet", "of",  "a",     "clock", "turns",   "42",
                                      "slowly,", "around", "it;", "Bruno", "keeps", "count.\n"};
  std::string text;
  for (uint32_t x = 1; text.size() < bytes; x = x * 1664525 + 1013904223) text.append(words[(x >> 16) % 13]).append(" ");
  text.resize(bytes);
  return text;
}

// The fastest of n runs: the machine's other work only adds.
template <class F>
double fastest(int n, F f) {
  double best = 1e9;
  for (int i = 0; i < n; ++i) {
    const double began = processor_seconds();
    f();
    best = std::min(best, processor_seconds() - began);
  }
  return best;
}

int run(const std::string& path, int turns) {
  row("open a model", "ms", 1e3, [&] {
    const Runtime runtime = make_runtime();
    return fastest(20, [&] { open_model(runtime, path); });
  });
  row("tokenize a megabyte", "ms", 1e3, [&] {
    orrery_vocab* h = nullptr;
    if (orrery_vocab_open(path_source(path), &h, nullptr) != ORRERY_OK) ::_exit(1);
    const Vocab vocab(h);
    const std::string text = text_of(1 << 20);
    return fastest(10, [&] {
      size_t n = 0;
      if (orrery_tokenize(h, text.data(), text.size(), 0, nullptr, 0, &n, nullptr) != ORRERY_OK) ::_exit(1);
    });
  });
  row("render 2,000 messages", "ms", 1e3, [&] {
    orrery_vocab* h = nullptr;
    if (orrery_vocab_open(path_source(path), &h, nullptr) != ORRERY_OK) ::_exit(1);
    const Vocab vocab(h);
    std::string json = "[";
    for (int i = 0; i < 2000; ++i)
      json += std::string(i ? "," : "") + R"({"role": ")" + (i % 2 ? "assistant" : "user") +
              R"(", "content": "some words of one turn, number )" + std::to_string(i) + "\"}";
    json += "]";
    std::vector<char> out(json.size() * 2);
    return fastest(10, [&] {
      size_t n = 0;
      if (orrery_render_chat(h, json.c_str(), nullptr, out.data(), out.size(), &n, nullptr) != ORRERY_OK) ::_exit(1);
    });
  });
  // On a model of a few kilobytes, which computes next to nothing: the rest of a turn is what is measured.
  const TempDir dir;
  const std::string tiny = dir.write("tiny.gguf", TinyModel().build());
  row((std::to_string(turns) + " turns, tiny model").c_str(), "us a turn", 1e6 / turns, [&] {
    const Runtime runtime = make_runtime();
    const Model model = open_model(runtime, tiny);
    orrery_session_options o = session_options();
    o.n_context = 512;
    o.overflow = ORRERY_OVERFLOW_DROP_OLDEST;
    const Session session = open_session(model, o);
    const double began = processor_seconds();
    for (int i = 0; i < turns; ++i) {
      say(session, ("turn " + std::to_string(i)).c_str());
      pull(generate(session, generate_options(2)));
    }
    return processor_seconds() - began;
  });
  row("20 sessions, one by one", "ms each", 1e3, [&] {
    const Runtime runtime = make_runtime();
    const Model model = open_model(runtime, path);
    return fastest(20, [&] {
      const Session session = open_session(model, 512);
      for (int i = 0; i < 1000; ++i) say(session, "a message that is longer than fits a string itself");
    });
  });
  return 0;
}

}  // namespace
}  // namespace orrery::testing

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL [TURNS]\n", argv[0]);
    return 2;
  }
  return orrery::testing::run(argv[1], argc > 2 ? std::max(std::atoi(argv[2]), 1) : 10000);
}

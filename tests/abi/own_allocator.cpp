// A program with allocators of its own: operator new and delete that mark their blocks, and a malloc that counts. It runs a model from
// opening to closing. The library must never reach the program's operators, and never hand them a block of its own. Linked with
// either library.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "orrery.h"

namespace {

constexpr uint64_t kMark = 0x6f776e20626c6f63;
std::atomic<int64_t> n_new{0}, n_foreign{0}, n_malloc{0}, malloc_bytes{0};
std::atomic<bool> inside{false};  // between the program's own statements

void* marked(std::size_t n) {
  if (inside) ++n_new;
  auto* const block = static_cast<uint64_t*>(std::malloc(n + 16));
  if (block == nullptr) std::abort();
  block[0] = kMark;
  return block + 2;
}
void unmarked(void* p) {
  if (p == nullptr) return;
  auto* const block = static_cast<uint64_t*>(p) - 2;
  if (block[0] != kMark) {
    ++n_foreign;
    return;
  }
  block[0] = 0;
  std::free(block);
}

}  // namespace

void* operator new(std::size_t n) { return marked(n); }
void* operator new[](std::size_t n) { return marked(n); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return marked(n); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return marked(n); }
void operator delete(void* p) noexcept { unmarked(p); }
void operator delete[](void* p) noexcept { unmarked(p); }
void operator delete(void* p, std::size_t) noexcept { unmarked(p); }
void operator delete[](void* p, std::size_t) noexcept { unmarked(p); }

// In front of the C library's, for the whole process.
extern "C" __attribute__((visibility("default"))) void* malloc(std::size_t n) {
  using Malloc = void* (*)(std::size_t);
  static const Malloc real = reinterpret_cast<Malloc>(dlsym(RTLD_NEXT, "malloc"));
  if (inside) {
    ++n_malloc;
    malloc_bytes += static_cast<int64_t>(n);
  }
  return real(n);
}

namespace {

int failures = 0;
void expect(bool good, const char* what) {
  if (good) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

// Calls the library; what is allocated meanwhile is the library's.
template <class F>
void call(const char* what, F f) {
  orrery_error error;
  orrery_error_init(&error, sizeof error);
  inside = true;
  const orrery_status status = f(&error);
  inside = false;
  if (status != ORRERY_OK) std::printf("%s: %s\n", what, error.message);
  expect(status == ORRERY_OK, what);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const char* const path = argv[1];
  orrery_runtime_options options;
  orrery_runtime_options_init(&options, sizeof options);
  options.n_threads = 2;
  options.device_budget_bytes = uint64_t{256} << 20;
  options.backend = "cpu";
  orrery_runtime* runtime = nullptr;
  orrery_model* model = nullptr;
  orrery_session* session = nullptr;
  orrery_generation* answer = nullptr;
  call("runtime", [&](orrery_error* e) { return orrery_runtime_create(&options, &runtime, e); });
  orrery_source file;
  orrery_source_init(&file, sizeof file);
  file.path = path;
  call("model", [&](orrery_error* e) { return orrery_model_open(runtime, &file, nullptr, &model, e); });
  call("session", [&](orrery_error* e) { return orrery_session_open(model, nullptr, &session, e); });
  if (failures) return 1;

  // From here on the library takes nothing of the C library either.
  const int64_t opened_mallocs = n_malloc, opened_bytes = malloc_bytes;
  std::string text = "Who are you? ";
  while (text.size() < 100000) text += text;
  orrery_vocab* vocab = orrery_model_vocab(model);
  size_t n = 0;
  call("tokenize", [&](orrery_error* e) { return orrery_tokenize(vocab, text.data(), text.size(), 0, nullptr, 0, &n, e); });
  call("message", [&](orrery_error* e) { return orrery_session_add_message(session, "user", "Who are you?", e); });
  call("generate", [&](orrery_error* e) { return orrery_generate(session, nullptr, &answer, e); });
  std::string said;
  orrery_event event;
  orrery_event_init(&event, sizeof event);
  do {
    call("next", [&](orrery_error* e) { return orrery_next(answer, &event, e); });
    if (event.type == ORRERY_EVENT_TEXT) said.append(event.text, event.text_bytes);
  } while (failures == 0 && event.type != ORRERY_EVENT_DONE);
  expect(said.find("Orrery") != std::string::npos, "the answer");
  orrery_model_info info;
  orrery_model_info_init(&info, sizeof info);
  call("info", [&](orrery_error* e) { return orrery_model_get_info(model, &info, e); });
  inside = true;
  orrery_generation_free(answer);
  orrery_session_free(session);
  orrery_vocab_free(vocab);
  orrery_model_free(model);
  orrery_runtime_free(runtime);
  inside = false;

  expect(n_new == 0, "the library called the program's operator new");
  expect(n_foreign == 0, "the library handed a block of its own to the program's operator delete");
  expect(n_malloc - opened_mallocs == 0, "the library called malloc to tokenize, to answer or to close");
  // Threads and files are the C library's: their few blocks stay with malloc.
  expect(opened_mallocs < 100 && opened_bytes < 200000, "the library called malloc to open");
  expect(info.host_peak_bytes > uint64_t{200000}, "the model's blocks are counted");
  // And the program's own allocations are its own.
  inside = true;
  { std::vector<int> mine(1000, 7); }
  inside = false;
  expect(n_new == 1, "the program's operator new is its own");
  expect(n_foreign == 0, "the program's operator delete is its own");
  std::printf("%lld mallocs of %lld bytes while opening, none afterwards; %zu tokens, %llu bytes of the model's\n",
              static_cast<long long>(opened_mallocs), static_cast<long long>(opened_bytes), n,
              static_cast<unsigned long long>(info.host_bytes));
  return failures ? 1 : 0;
}

// The C interface for tests: handles that free themselves, setup that throws when it fails, and whole answers
// as one value. Only orrery.h stands underneath.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "orrery_lab.h"
#include "tests/abi/tiny_model.h"
#include "tests/support/cpu_path.h"

namespace orrery::testing {

struct Free {
  void operator()(orrery_runtime* h) const { orrery_runtime_free(h); }
  void operator()(orrery_vocab* h) const { orrery_vocab_free(h); }
  void operator()(orrery_model* h) const { orrery_model_free(h); }
  void operator()(orrery_session* h) const { orrery_session_free(h); }
  void operator()(orrery_generation* h) const { orrery_generation_free(h); }
};
using Runtime = std::unique_ptr<orrery_runtime, Free>;
using Vocab = std::unique_ptr<orrery_vocab, Free>;
using Model = std::unique_ptr<orrery_model, Free>;
using Session = std::unique_ptr<orrery_session, Free>;
using Generation = std::unique_ptr<orrery_generation, Free>;

struct Error : orrery_error {
  Error() { orrery_error_init(this, sizeof(orrery_error)); }
};

inline void check(orrery_status status, const Error& error, const char* what) {
  if (status != ORRERY_OK) throw std::runtime_error(std::string(what) + ": " + orrery_status_name(status) + ": " + error.message);
}

template <class T>
T options(void (*init)(T*, size_t)) {
  T o;
  init(&o, sizeof o);
  return o;
}
inline orrery_runtime_options runtime_options() {
  orrery_runtime_options o = options(&orrery_runtime_options_init);
  static const std::string path = test_cpu_path();
  if (path != "auto") o.cpu_path = path.c_str();
  return o;
}
inline orrery_model_options model_options() { return options(&orrery_model_options_init); }
inline orrery_session_options session_options() { return options(&orrery_session_options_init); }
inline orrery_generate_options generate_options() { return options(&orrery_generate_options_init); }
inline orrery_generate_options generate_options(uint32_t max_tokens) {
  orrery_generate_options o = generate_options();
  o.max_tokens = max_tokens;
  return o;
}

// Where a file lies, for one call: orrery_model_open(runtime, path_source(path), ...).
class Source {
 public:
  explicit Source(uint32_t kind) : source_(options(&orrery_source_init)) { source_.kind = kind; }
  orrery_source* operator->() { return &source_; }
  operator const orrery_source*() const { return &source_; }

 private:
  orrery_source source_;
};
inline Source path_source(const char* path) {
  Source source(ORRERY_SOURCE_PATH);
  source->path = path;
  return source;
}
inline Source path_source(const std::string& path) { return path_source(path.c_str()); }
inline Source fd_source(int32_t fd, uint64_t offset = 0, uint64_t bytes = 0) {
  Source source(ORRERY_SOURCE_FD);
  source->fd = fd;
  source->fd_offset = offset;
  source->fd_bytes = bytes;
  return source;
}
inline Source memory_source(const void* memory, uint64_t bytes) {
  Source source(ORRERY_SOURCE_MEMORY);
  source->memory = memory;
  source->memory_bytes = bytes;
  return source;
}

// One thread unless told otherwise: the tests' models are too small to share out.
inline Runtime make_runtime(int32_t n_threads = 1) {
  orrery_runtime_options o = runtime_options();
  o.n_threads = n_threads;
  o.device_budget_bytes = uint64_t{256} << 20;
  Error error;
  orrery_runtime* h = nullptr;
  check(orrery_runtime_create(&o, &h, &error), error, "orrery_runtime_create");
  return Runtime(h);
}
inline Model open_model(const Runtime& runtime, const std::string& path) {
  Error error;
  orrery_model* h = nullptr;
  check(orrery_model_open(runtime.get(), path_source(path), nullptr, &h, &error), error, "orrery_model_open");
  return Model(h);
}
inline orrery_head_roles roles_of(const Session& session) {
  orrery_head_roles roles = options(&orrery_head_roles_init);
  Error error;
  check(orrery_session_head_roles(session.get(), &roles, &error), error, "orrery_session_head_roles");
  return roles;
}
inline Session open_session(const Model& model, const orrery_session_options& o) {
  Error error;
  orrery_session* h = nullptr;
  check(orrery_session_open(model.get(), &o, &h, &error), error, "orrery_session_open");
  return Session(h);
}
// Computes every prompt: one session of a test does not help another.
inline Session open_session(const Model& model, uint32_t n_context = 256) {
  orrery_session_options o = session_options();
  o.n_context = n_context;
  o.reuse_prompts = 0;
  return open_session(model, o);
}
inline void say(const Session& session, const char* text, const char* role = "user") {
  Error error;
  check(orrery_session_add_message(session.get(), role, text, &error), error, "orrery_session_add_message");
}
inline Generation generate(const Session& session, const orrery_generate_options& o) {
  Error error;
  orrery_generation* h = nullptr;
  check(orrery_generate(session.get(), &o, &h, &error), error, "orrery_generate");
  return Generation(h);
}
inline Generation generate_tokens(const Session& session, const std::vector<int32_t>& tokens, const orrery_generate_options& o) {
  Error error;
  orrery_generation* h = nullptr;
  check(orrery_generate_tokens(session.get(), tokens.data(), tokens.size(), &o, &h, &error), error, "orrery_generate_tokens");
  return Generation(h);
}

// What one generation told.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::string> texts;  // of the text events
  std::string bytes;               // of the tokens
  std::vector<uint64_t> progress;
  orrery_event done;

  std::string text() const {
    std::string all;
    for (const std::string& t : texts) all += t;
    return all;
  }
};

// Pulls until DONE; `look`, if there is one, sees every event.
inline Answer pull(orrery_generation* generation, const std::function<void(const orrery_event&)>& look = nullptr) {
  Answer answer;
  for (;;) {
    orrery_event e = options(&orrery_event_init);
    Error error;
    check(orrery_next(generation, &e, &error), error, "orrery_next");
    if (look) look(e);
    switch (e.type) {
      case ORRERY_EVENT_PROGRESS: answer.progress.push_back(e.done); break;
      case ORRERY_EVENT_TOKEN:
        answer.tokens.push_back(e.token);
        answer.logprobs.push_back(e.logprob);
        answer.bytes.append(e.text, e.text_bytes);
        break;
      case ORRERY_EVENT_TEXT: answer.texts.emplace_back(e.text, e.text_bytes); break;
      case ORRERY_EVENT_DONE: answer.done = e; return answer;
      default: throw std::runtime_error("an event of type " + std::to_string(e.type));
    }
  }
}
inline Answer pull(const Generation& generation) { return pull(generation.get()); }

inline Answer ask(const Session& session, const char* text, uint32_t max_tokens = 8) {
  say(session, text);
  return pull(generate(session, generate_options(max_tokens)));
}

inline std::vector<int32_t> tokens_of(const Session& session) {
  Error error;
  size_t n = 0;
  check(orrery_session_tokens(session.get(), nullptr, 0, &n, &error), error, "orrery_session_tokens");
  std::vector<int32_t> tokens(n);
  check(orrery_session_tokens(session.get(), tokens.data(), n, &n, &error), error, "orrery_session_tokens");
  return tokens;
}

inline std::string message_of(const Session& session, size_t i) {
  Error error;
  size_t n = 0;
  check(orrery_session_message(session.get(), i, nullptr, 0, &n, &error), error, "orrery_session_message");
  std::string json(n, '\0');
  check(orrery_session_message(session.get(), i, json.data(), n, &n, &error), error, "orrery_session_message");
  return json;
}

inline std::vector<unsigned char> save(const Session& session) {
  Error error;
  size_t n = 0;
  check(orrery_session_save_buffer(session.get(), nullptr, 0, &n, &error), error, "orrery_session_save_buffer");
  std::vector<unsigned char> bytes(n);
  check(orrery_session_save_buffer(session.get(), bytes.data(), n, &n, &error), error, "orrery_session_save_buffer");
  return bytes;
}

inline Session fork_of(const Session& session) {
  Error error;
  orrery_session* h = nullptr;
  check(orrery_session_fork(session.get(), &h, &error), error, "orrery_session_fork");
  return Session(h);
}

inline uint64_t arena_used(const Runtime& runtime) {
  Error error;
  orrery_runtime_info info = options(&orrery_runtime_info_init);
  check(orrery_runtime_get_info(runtime.get(), &info, &error), error, "orrery_runtime_get_info");
  return info.arena_used_bytes;
}

// The tokens that stand for each byte of a text in the tests' tiny model.
inline std::vector<int32_t> byte_tokens(const std::string& text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(kByte0 + static_cast<uint8_t>(c));
  return tokens;
}

// A logits hook that makes an answer say what it is told: token i of it is tokens[i], then </s>.
struct Script {
  std::vector<int32_t> tokens;
  size_t next = 0;

  static int32_t hook(void* user, float* logits, size_t n_vocab, const int32_t*, size_t) {
    Script& script = *static_cast<Script*>(user);
    for (size_t i = 0; i < n_vocab; ++i) logits[i] = -100.0f;
    logits[script.next < script.tokens.size() ? script.tokens[script.next] : 2] = 100.0f;
    ++script.next;
    return 0;
  }
};
inline orrery_generate_options scripted(Script* script) {
  orrery_generate_options o = generate_options();
  o.logits_hook = &Script::hook;
  o.logits_user = script;
  return o;
}

// The plan whose budget is exactly its own bytes. Whether weights are copied into the arena depends on the budget, so this takes a few
// plans.
template <class F>
orrery_plan_result exact_plan(uint64_t* budget, const F& plan) {
  orrery_plan_result p = plan();
  for (int i = 0; i < 4 && p.device_bytes != *budget; ++i) {
    *budget = p.device_bytes;
    p = plan();
  }
  return p;
}

}  // namespace orrery::testing

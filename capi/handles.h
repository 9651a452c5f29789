// The types behind the opaque handles, and the common parts of all entry points: they read options of any size, turn Status and exceptions
// into a status and the caller's orrery_error, and write results to buffers and structs of any size.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "orrery_lab.h"
#include "runtime/base/allocation/account.h"
#include "runtime/base/float_environment.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/answer/generation.h"
#include "runtime/engine/folder/folder.h"
#include "runtime/engine/shared/language_model.h"
#include "runtime/engine/shared/runtime.h"
#include "runtime/engine/session/session.h"
#include "runtime/engine/shared/vocabulary.h"
#include "runtime/text/grammar/grammar.h"

// `account` comes first, so that it outlives the rest: the handle and all that it stands for are charged to it.
struct orrery_runtime {
  orrery::AccountRef account;
  std::shared_ptr<orrery::engine::Runtime> runtime;
};
struct orrery_vocab {
  orrery::AccountRef account;  // the model's, for a model's vocabulary
  std::shared_ptr<const orrery::engine::Vocabulary> vocabulary;
};
struct orrery_model {
  orrery::AccountRef account;
  std::shared_ptr<orrery::engine::LanguageModel> model;
};
struct orrery_adapter {
  orrery::AccountRef account;
  std::shared_ptr<const orrery::engine::LoadedAdapter> adapter;
};
struct orrery_session {
  orrery::AccountRef account;
  std::shared_ptr<orrery::engine::Session> session;
};
struct orrery_folder {
  orrery::AccountRef account;
  std::shared_ptr<const orrery::engine::Folder> folder;
};
struct orrery_matcher {
  orrery::AccountRef account;
  std::shared_ptr<const orrery::engine::Vocabulary> vocabulary;
  std::shared_ptr<orrery::text::grammar::Grammar> grammar;
  std::optional<orrery::text::grammar::Matcher> matcher;
  std::atomic<bool> busy{false};
};
struct orrery_generation {
  orrery::AccountRef account;                        // the session's
  std::shared_ptr<orrery::engine::Session> session;  // the session lives as long as its generation
  std::unique_ptr<orrery::engine::Generation> generation;
  std::atomic<std::thread::id> running{};  // the thread inside orrery_run(), whose event function may call back
};

namespace orrery::capi {

// Errors out ---------------------------------------------------------------------------------------------

orrery_status report(const Status& status, orrery_error* error) noexcept;
orrery_status report_exception(orrery_error* error) noexcept;  // inside a catch block

// Whether an error can be written there: NULL, or a struct that an _init function has filled. The size of any other struct is unknown.
bool usable(const orrery_error* error) noexcept;

// Runs f() -> Status in the default floating-point environment, and turns every exception into a status. Every entry point that can fail is
// one guarded() call.
template <class F>
orrery_status guarded(orrery_error* error, F f) noexcept {
  if (!usable(error)) return ORRERY_INVALID_ARGUMENT;
  const DefaultFloatEnvironment environment;
  try {
    return report(f(), error);
  } catch (...) {
    return report_exception(error);
  }
}

// Makes a handle by fill(handle) -> Status, all of it on an account of its own.
template <class Handle, class F>
Status make_handle(Handle** out, F fill) {
  AccountRef account = AccountRef::open();
  if (!account) return error(Code::out_of_host_memory, "the system gave no memory");
  const AccountScope scope(account);
  auto handle = std::make_unique<Handle>();
  handle->account = std::move(account);
  ORRERY_TRY(fill(handle.get()));
  *out = handle.release();
  return ok_status();
}

Status null_argument(const char* name);
#define ORRERY_REQUIRE(pointer) \
  if ((pointer) == nullptr) return ::orrery::capi::null_argument(#pointer)

// Processes ----------------------------------------------------------------------------------------------

// Refuses a runtime of another process: in a child of fork() its threads do not exist, and its mutexes may stay locked.
Status check_process(const engine::Runtime& runtime);

// Frees a handle. In a child of fork() the object stays: its threads cannot be joined, its mutexes locked, or its memory given back.
template <class T>
void free_handle(T* handle, const engine::Runtime& runtime) noexcept {
  if (runtime.in_its_process()) delete handle;
}

// Structs by _init ---------------------------------------------------------------------------------------

// Whether some version of a struct may have this size.
constexpr bool plausible_size(size_t struct_size) { return struct_size >= 8 && struct_size % 8 == 0 && struct_size <= 4096; }

// Fills the caller's struct, which may be shorter or longer than T, with the defaults, and zeroes behind them. A size that no version has
// gives a struct_size of 0, which every call refuses.
void fill_struct(void* out, size_t struct_size, const void* defaults, size_t known_bytes) noexcept;
template <class T>
void init_struct(T* out, size_t struct_size, const T& defaults = {}) noexcept {
  fill_struct(out, struct_size, &defaults, sizeof(T));
}

// Structs in ---------------------------------------------------------------------------------------------

// Refuses a size that no version of the struct has, and an unknown tail that is not zero.
Status check_struct(const void* given, uint32_t given_bytes, uint32_t known_bytes, const char* name);

// Copies the caller's options over the defaults. null: the defaults.
template <class T>
Status read_options(const T* given, void (*init)(T*, size_t), const char* name, T* out) {
  init(out, sizeof *out);
  if (given == nullptr) return ok_status();
  ORRERY_TRY(check_struct(given, given->struct_size, sizeof(T), name));
  std::memcpy(out, given, given->struct_size < sizeof(T) ? given->struct_size : sizeof(T));
  return ok_status();
}

// Structs and buffers out --------------------------------------------------------------------------------

// Copies as much of `value` as the caller's struct holds. Its struct_size stays.
template <class T>
Status write_struct(const T& value, T* out, const char* name) {
  const uint32_t bytes = out->struct_size;
  ORRERY_TRY(check_struct(nullptr, bytes, sizeof(T), name));
  std::memcpy(out, &value, bytes < sizeof(T) ? bytes : sizeof(T));
  out->struct_size = bytes;
  return ok_status();
}

// The header's "Sizes out": *n is the needed size. A buffer that is too small stays as it is.
template <class T>
Status copy_out(const T* data, size_t size, T* out, size_t capacity, size_t* n) {
  *n = size;
  if (out == nullptr) return ok_status();
  if (capacity < size) return memory_error(Code::invalid_argument, size, capacity, "the buffer holds %zu, %zu are needed", capacity, size);
  if (size > 0) std::memcpy(out, data, size * sizeof(T));
  return ok_status();
}

// "Sizes out" for structs. The struct_size of the caller's first struct is the size of each of them.
template <class T>
Status copy_out_structs(const T* data, size_t size, T* out, size_t capacity, size_t* n, const char* name) {
  *n = size;
  if (out == nullptr) return ok_status();
  if (capacity < size) return memory_error(Code::invalid_argument, size, capacity, "the buffer holds %zu, %zu are needed", capacity, size);
  if (size == 0) return ok_status();
  const uint32_t stride = out->struct_size;
  Status status = check_struct(nullptr, stride, sizeof(T), name);
  if (!status.ok()) {
    *n = 0;
    return status;
  }
  std::byte* at = reinterpret_cast<std::byte*>(out);
  for (size_t i = 0; i < size; ++i, at += stride) {
    T value = data[i];
    value.struct_size = stride;
    std::memset(at, 0, stride);  // fields of a newer header
    std::memcpy(at, &value, stride < sizeof(T) ? stride : sizeof(T));
  }
  return ok_status();
}

// Text in ------------------------------------------------------------------------------------------------

Status check_utf8(std::string_view text, const char* name);

// Sessions -----------------------------------------------------------------------------------------------

// A call's hold on a session. take_status() is busy if another call holds it, or if a generation is under way and the call does not only
// read.
class SessionUse {
 public:
  enum class For { reading, changing, generating };
  SessionUse(engine::Session* session, For what);
  ~SessionUse();
  SessionUse(const SessionUse&) = delete;
  SessionUse& operator=(const SessionUse&) = delete;
  Status take_status() { return std::move(status_); }

 private:
  engine::Session* session_;
  bool entered_;
  Status status_;
};

// Options --------------------------------------------------------------------------------------------------

// Where a model, a vocabulary or a plan comes from, as it was given.
Result<engine::ModelSource> model_source(const orrery_source* given);

Result<engine::RuntimeOptions> runtime_options(const orrery_runtime_options* given);
Result<engine::ModelOptions> model_options(const orrery_model_options* given);
Result<engine::SessionOptions> session_options(const orrery_session_options* given);
// A list of adapters; sources are a plan's.
Result<engine::Adapters> adapters_of(const orrery_adapter_use* given, size_t n);
Result<KvType> kv_type(uint32_t given);           // of an ORRERY_KV_ value
uint32_t kv_type_number(KvType type);             // and back
uint32_t pooling_number(model::Pooling pooling);  // ORRERY_POOLING_
Result<engine::TemplateChoice> template_choice(const orrery_template_options* given);
// The grammar of the caller's options, compiled or found. Null: they have none.
Result<std::shared_ptr<text::grammar::Grammar>> grammar_of(const orrery_generate_options& o, const engine::Vocabulary& vocabulary);
// Tools and reasoning of the options, with the grammar of the content.
Status form_of(const orrery_generate_options& options, engine::FormRequest* form);

}  // namespace orrery::capi

// Errors as values. A Status is one pointer, null for success, so that returning success is nearly free. An error owns its detail:
// the message, the place in the file, the bytes requested and available. A Result<T> is a T or a Status. The numbers of Code are
// the numbers of the public ABI (include/orrery.h); capi/ checks that they agree.
//
// Inside the library, only the standard library throws exceptions (bad_alloc), and capi/ catches them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace orrery {

enum class Code : int32_t {
  ok = 0,
  invalid_argument = 1,
  out_of_device_memory = 2,
  out_of_pinned_memory = 3,
  out_of_host_memory = 4,
  context_full = 5,
  cancelled = 6,
  bad_model = 7,  // the file is damaged or contradicts itself
  unsupported_architecture = 8,
  unsupported_quantization = 9,
  unsupported_template = 10,
  unsupported = 11,  // anything else that this build cannot do
  busy = 12,         // the handle is in use by another call
  device_lost = 13,
  io = 14,           // the operating system refused a read, a write or a mapping
  bad_session = 15,  // a session file is damaged or belongs to another model
  internal = 16,     // a defect of the library
};

// The details of an error. Fields that do not apply stay zero.
struct ErrorDetail {
  Code code = Code::internal;
  std::string message;      // names the file, offset, key or tensor, the value found and the value expected
  int64_t native_code = 0;  // errno, CUDA error
  uint64_t bytes_requested = 0;
  uint64_t bytes_available = 0;
  uint64_t offset = 0;            // byte offset in the file
  uint32_t line = 0, column = 0;  // in a chat template, from 1
  const char* option = "";        // the field of the public options that is at fault; static
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(ErrorDetail detail) : detail_(std::make_unique<ErrorDetail>(std::move(detail))) {}

  bool ok() const { return detail_ == nullptr; }
  Code code() const { return detail_ ? detail_->code : Code::ok; }
  const ErrorDetail& detail() const { return *detail_; }  // only when !ok()
  ErrorDetail& detail() { return *detail_; }
  const char* message() const { return detail_ ? detail_->message.c_str() : ""; }

 private:
  std::unique_ptr<ErrorDetail> detail_;
};

inline Status ok_status() { return Status(); }

// The compiler checks the arguments `first` and on against argument `pattern`, a format of standard C. (MinGW's own "printf" is that of
// Microsoft's C library, which knows no %zu; C++ there uses the standard one.)
#if defined(__MINGW32__) && !defined(__clang__)
#define ORRERY_PRINTF(pattern, first) __attribute__((format(gnu_printf, pattern, first)))
#else
#define ORRERY_PRINTF(pattern, first) __attribute__((format(printf, pattern, first)))
#endif

// printf-style text as a std::string.
std::string format(const char* fmt, ...) ORRERY_PRINTF(1, 2);

// An error with a printf-style message.
Status error(Code code, const char* fmt, ...) ORRERY_PRINTF(2, 3);

// The same about an option, by the name of its field in the public header, which is static.
Status option_error(Code code, const char* option, const char* fmt, ...) ORRERY_PRINTF(3, 4);
// A status whose error is about `option`, if it names none yet.
Status about_option(const char* option, Status status);

// The same with the numbers of a refused allocation or budget.
Status memory_error(Code code, uint64_t requested, uint64_t available, const char* fmt, ...) ORRERY_PRINTF(4, 5);

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  T& value() & { return *std::get_if<0>(&state_); }
  const T& value() const& { return *std::get_if<0>(&state_); }
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() { return std::get_if<0>(&state_); }
  T& operator*() & { return value(); }
  Status take_status() { return ok() ? Status() : std::move(*std::get_if<1>(&state_)); }
  const Status& status() const { return *std::get_if<1>(&state_); }  // only when !ok()

 private:
  std::variant<T, Status> state_;
};

template <class T>
Result<T> about_option(const char* option, Result<T> result) {
  return result.ok() ? std::move(result) : Result<T>(about_option(option, result.take_status()));
}

#define ORRERY_CONCAT_(a, b) a##b
#define ORRERY_CONCAT(a, b) ORRERY_CONCAT_(a, b)
// Returns from the enclosing function when `expr` (a Status) is an error.
#define ORRERY_TRY(expr)                             \
  do {                                               \
    ::orrery::Status orrery_status_ = (expr);        \
    if (!orrery_status_.ok()) return orrery_status_; \
  } while (0)
// `ORRERY_ASSIGN(auto x, f())`: x = the value of a Result, or return its error.
#define ORRERY_ASSIGN(decl, expr) ORRERY_ASSIGN_(ORRERY_CONCAT(orrery_result_, __LINE__), decl, expr)
#define ORRERY_ASSIGN_(tmp, decl, expr)    \
  auto tmp = (expr);                       \
  if (!tmp.ok()) return tmp.take_status(); \
  decl = std::move(tmp).value()

}  // namespace orrery

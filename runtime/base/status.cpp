#include "runtime/base/status.h"

#include <cstdarg>
#include <cstdio>

namespace orrery {

namespace {

std::string vformat(const char* fmt, va_list args) {
  va_list again;
  va_copy(again, args);
  const int n = std::vsnprintf(nullptr, 0, fmt, args);
  std::string text;
  if (n > 0) {
    try {
      text.resize(static_cast<size_t>(n) + 1);
    } catch (...) {
      va_end(again);
      throw;
    }
    std::vsnprintf(text.data(), text.size(), fmt, again);
    text.resize(static_cast<size_t>(n));
  }
  va_end(again);
  return text;
}

}  // namespace

std::string format(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  std::string text = vformat(fmt, args);
  va_end(args);
  return text;
}

Status error(Code code, const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  ErrorDetail detail;
  detail.code = code;
  detail.message = vformat(fmt, args);
  va_end(args);
  return Status(std::move(detail));
}

Status option_error(Code code, const char* option, const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  ErrorDetail detail;
  detail.code = code;
  detail.message = vformat(fmt, args);
  detail.option = option;
  va_end(args);
  return Status(std::move(detail));
}

Status about_option(const char* option, Status status) {
  if (!status.ok() && *status.detail().option == '\0') status.detail().option = option;
  return status;
}

Status memory_error(Code code, uint64_t requested, uint64_t available, const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  ErrorDetail detail;
  detail.code = code;
  detail.bytes_requested = requested;
  detail.bytes_available = available;
  detail.message = vformat(fmt, args);
  va_end(args);
  return Status(std::move(detail));
}

}  // namespace orrery

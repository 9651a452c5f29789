// What fuzz targets demand of every call through orrery.h. A broken demand says what it was, and traps: that
// is how a target reports a fault, to libFuzzer and to the replay.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/abi/handles.h"

namespace orrery::fuzz {

[[noreturn]] inline void fault(const char* what, const char* detail = "") {
  std::fprintf(stderr, "broken promise: %s %s\n", what, detail);
  std::abort();
}
inline void require(bool holds, const char* what, const char* detail = "") {
  if (!holds) fault(what, detail);
}

// Length of the valid UTF-8 sequence at `text`, 0 where none begins. Written apart from the library's own.
inline size_t sequence_length(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto tail = [&](size_t i, uint8_t low, uint8_t high) { return at(i) >= low && at(i) <= high; };
  const uint8_t lead = at(0);
  if (text.empty()) return 0;
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return tail(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead < 0xF0) {
    const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;
    return tail(1, low, high) && tail(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead < 0xF5) {
    const uint8_t low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;
    return tail(1, low, high) && tail(2, 0x80, 0xBF) && tail(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}
inline bool whole_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = sequence_length(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

// An error struct that shows whether a call wrote it, and nothing beyond it.
class CheckedError {
 public:
  CheckedError() { reset(); }
  orrery_error* get() {
    reset();
    return &error_;
  }
  // The status is one of the header's, and the struct tells of it: whole UTF-8, one line, ended by NUL.
  // ORRERY_INTERNAL is a bug by its own definition.
  orrery_status check(orrery_status status) const {
    require(status >= ORRERY_OK && status < ORRERY_INTERNAL, "a status of the header's", error_.message);
    require(error_.struct_size == sizeof error_, "struct_size is the caller's");
    require(error_.status == status, "the error's status is the returned one", error_.message);
    const void* end = std::memchr(error_.message, '\0', sizeof error_.message);
    require(end != nullptr, "the message ends");
    const std::string_view message(error_.message);
    require(message.empty() == (status == ORRERY_OK), "a message for each error, and for errors alone", error_.message);
    require(whole_utf8(message), "the message is whole UTF-8", error_.message);
    for (const char c : message) require(static_cast<uint8_t>(c) >= 0x20, "the message is one line", error_.message);
    return status;
  }
  const orrery_error& operator*() const { return error_; }

 private:
  void reset() {
    std::memset(&error_, 0xA5, sizeof error_);
    error_.struct_size = sizeof error_;
  }
  orrery_error error_;
};

// "Sizes out", asked three times: for the size; with a byte too little, which must write nothing; with
// enough. f(buffer, capacity, &n, error) -> status. `out` receives what was written; nothing on an error.
template <class T, class F>
orrery_status sized_out(F f, std::vector<T>* out) {
  CheckedError error;
  out->clear();
  size_t n = 77;
  const orrery_status status = error.check(f(static_cast<T*>(nullptr), size_t{0}, &n, error.get()));
  if (status != ORRERY_OK) {
    require(n == 0, "a failed call's size is 0");
    return status;
  }
  if (n > 0) {
    std::vector<T> small(n, T{77});
    size_t again = 0;
    require(error.check(f(small.data(), n - 1, &again, error.get())) == ORRERY_INVALID_ARGUMENT,
            "a buffer that is too small is an invalid argument");
    require(again == n, "the size needed does not depend on the buffer");
    require(small == std::vector<T>(n, T{77}), "a buffer that is too small is left alone");
  }
  out->resize(n);
  size_t again = 0;
  T none{};
  require(error.check(f(n > 0 ? out->data() : &none, n, &again, error.get())) == ORRERY_OK && again == n,
          "a buffer of the size asked for is enough", (*error).message);
  return ORRERY_OK;
}

inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (;;) {
    const size_t at = text.find(separator);
    out.emplace_back(text.substr(0, at));
    if (at == text.npos) return out;
    text.remove_prefix(at + 1);
  }
}

// The bytes of an input, read from the front; zeros behind its end.
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool done() const { return at_ >= size_; }
  size_t left() const { return size_ - at_; }
  uint8_t byte() { return at_ < size_ ? data_[at_++] : uint8_t{0}; }
  template <class T>
  T number() {
    uint64_t bits = 0;  // little-endian, as the machines that run this are
    for (size_t i = 0; i < sizeof(T); ++i) bits |= uint64_t{byte()} << (8 * i);
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  // A text with its length in front; control bytes included.
  std::string text() {
    const size_t asked = byte();  // before left(): arguments of one call have no order
    const size_t n = std::min(asked, left());
    const std::string out(reinterpret_cast<const char*>(data_ + at_), n);
    at_ += n;
    return out;
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

}  // namespace orrery::fuzz

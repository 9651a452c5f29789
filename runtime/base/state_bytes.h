// The state of an object as bytes. One function of the object lists its values for three uses: it writes them, it checks bytes that anybody
// may have written, or it takes them. Little-endian.
//
// Reading stops at the first value that is out of range, and takes no more memory than the bytes that are there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"

namespace orrery {

class StateBytes {
 public:
  enum class Use : uint8_t { writes, checks, takes };
  explicit StateBytes(std::vector<std::byte>* out) : out_(out) {}
  StateBytes(Span<const std::byte> in, Use use) : in_(in), use_(use) {}

  bool reads() const { return use_ != Use::writes; }
  bool takes() const { return use_ == Use::takes; }
  size_t at() const { return reads() ? at_ : out_->size(); }
  size_t left() const { return in_.size() - at_; }  // of the bytes that are read

  // bad_session, with the place.
  Status wrong(const char* what) const {
    Status s = error(Code::bad_session, "the resident state, byte %zu: %s", at(), what);
    s.detail().offset = at();
    return s;
  }
  Status check(bool holds, const char* what) const { return holds || !reads() ? ok_status() : wrong(what); }

  // The next n bytes: room to write to, valid until the next call.
  std::byte* room(size_t n) {
    out_->resize(out_->size() + n);
    return out_->data() + (out_->size() - n);
  }
  // And bytes that are read.
  Status next(size_t n, Span<const std::byte>* bytes) {
    if (n > left()) return wrong("the state ends too early");
    *bytes = in_.subspan(at_, n);
    at_ += n;
    return ok_status();
  }

  // Any bits.
  template <class T>
  Status value(T* x) {
    static_assert(std::is_arithmetic_v<T>);
    return raw(x, 1);
  }
  // A number below `end`.
  template <class T>
  Status number(T* x, uint64_t end, const char* what) {
    static_assert(std::is_unsigned_v<T>);
    ORRERY_TRY(value(x));
    return check(uint64_t{*x} < end, what);
  }
  Status flag(bool* x, const char* what) {
    uint8_t byte = *x;
    ORRERY_TRY(number(&byte, 2, what));
    *x = byte != 0;
    return ok_status();
  }
  // A number that the reader knows.
  template <class T>
  Status known(T x, const char* what) {
    T found = x;
    ORRERY_TRY(value(&found));
    return check(found == x, what);
  }
  // n values of any bits. Reading makes `list` that long.
  template <class T, class A>
  Status values(std::vector<T, A>* list, size_t n) {
    static_assert(std::is_arithmetic_v<T>);
    if (reads()) {
      if (n > left() / sizeof(T)) return wrong("the state ends too early");
      list->resize(n);
    }
    return raw(list->data(), n);
  }
  // n numbers below `end`.
  template <class T, class A>
  Status numbers(std::vector<T, A>* list, size_t n, uint64_t end, const char* what) {
    ORRERY_TRY(values(list, n));
    const bool in_range = std::all_of(list->begin(), list->begin() + static_cast<ptrdiff_t>(n), [end](T x) { return uint64_t{x} < end; });
    return check(in_range, what);
  }

  // n values of memory that is there.
  template <class T>
  Status raw(T* x, size_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (n == 0) return ok_status();
    if (!reads()) {
      std::memcpy(room(n * sizeof(T)), x, n * sizeof(T));
      return ok_status();
    }
    Span<const std::byte> bytes;
    ORRERY_TRY(next(n * sizeof(T), &bytes));
    std::memcpy(x, bytes.data(), bytes.size());
    return ok_status();
  }

 private:
  std::vector<std::byte>* out_ = nullptr;
  Span<const std::byte> in_;
  size_t at_ = 0;
  Use use_ = Use::writes;
};

}  // namespace orrery

// Metadata values: a type and a place in the file's bytes, decoded when somebody asks.  Nothing is copied at
// open, so a vocabulary of a quarter of a million tokens costs its index only.
#include <iterator>
#include <limits>
#include <type_traits>

#include "runtime/gguf/gguf.h"
#include "runtime/gguf/names.h"
#include "runtime/gguf/parse.h"
#include "runtime/gguf/wire.h"

namespace orrery::gguf {

namespace {

// Calls f with the number at `p`, in its own C++ type. False for strings and arrays.
template <class F>
bool with_number(ValueType type, const std::byte* p, F f) {
  switch (type) {
    case ValueType::u8:
      return f(load<uint8_t>(p));
    case ValueType::i8:
      return f(load<int8_t>(p));
    case ValueType::u16:
      return f(load<uint16_t>(p));
    case ValueType::i16:
      return f(load<int16_t>(p));
    case ValueType::u32:
      return f(load<uint32_t>(p));
    case ValueType::i32:
      return f(load<int32_t>(p));
    case ValueType::u64:
      return f(load<uint64_t>(p));
    case ValueType::i64:
      return f(load<int64_t>(p));
    case ValueType::f32:
      return f(load<float>(p));
    case ValueType::f64:
      return f(load<double>(p));
    case ValueType::boolean:
      return f(static_cast<uint8_t>(load<uint8_t>(p) != 0));
    case ValueType::string:
    case ValueType::array:
      break;
  }
  return false;
}

}  // namespace

const char* value_type_name(ValueType type) {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  const auto number = static_cast<uint32_t>(type);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

bool Value::as_u64(uint64_t* out) const {
  if (!data_) return false;
  return with_number(type_, data_, [&](auto v) {
    if constexpr (std::is_integral_v<decltype(v)>) {
      if constexpr (std::is_signed_v<decltype(v)>)
        if (v < 0) return false;
      *out = static_cast<uint64_t>(v);
      return true;
    }
    return false;
  });
}

bool Value::as_i64(int64_t* out) const {
  if (!data_) return false;
  return with_number(type_, data_, [&](auto v) {
    if constexpr (std::is_same_v<decltype(v), uint64_t>)
      if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    if constexpr (std::is_integral_v<decltype(v)>) {
      *out = static_cast<int64_t>(v);
      return true;
    }
    return false;
  });
}

bool Value::as_f64(double* out) const {
  if (!data_ || type_ == ValueType::boolean) return false;
  return with_number(type_, data_, [&](auto v) {
    *out = static_cast<double>(v);
    return true;
  });
}

bool Value::as_bool(bool* out) const {
  uint64_t v;
  if (!as_u64(&v) || v > 1) return false;
  *out = v == 1;
  return true;
}

bool Value::as_string(std::string_view* out) const {
  if (type_ != ValueType::string || !data_) return false;
  *out = std::string_view(reinterpret_cast<const char*>(data_), count_);
  return true;
}

Value Value::at(uint64_t i) const {
  Value v;
  if (type_ != ValueType::array || i >= count_) return v;
  if (element_ == ValueType::array) return children_[i];
  v.type_ = element_;
  if (element_ == ValueType::string) {
    const std::byte* length = data_ + string_offsets_[i];
    v.count_ = load<uint64_t>(length);
    v.data_ = length + sizeof(uint64_t);
  } else {
    v.data_ = data_ + i * scalar_bytes(element_);
  }
  return v;
}

std::string describe(const Value& value) {
  std::string_view text;
  uint64_t u;
  int64_t i;
  double d;
  const char* name = value_type_name(value.type());
  if (value.type() == ValueType::array)
    return format("array of %llu %s", static_cast<unsigned long long>(value.size()),
                  value_type_name(value.element_type()));
  if (value.as_string(&text)) return format("string '%s'", printable(text).c_str());
  if (value.as_u64(&u)) return format("%s %llu", name, static_cast<unsigned long long>(u));
  if (value.as_i64(&i)) return format("%s %lld", name, static_cast<long long>(i));
  if (value.as_f64(&d)) return format("%s %.9g", name, d);
  return "nothing";
}

}  // namespace orrery::gguf

// Metadata values: a type and an offset in the header's copy, decoded on request. A vocabulary of a quarter of a
// million tokens therefore costs its bytes plus one offset per eighth token.
#include <algorithm>
#include <iterator>
#include <limits>
#include <type_traits>

#include "runtime/gguf/gguf.h"
#include "runtime/gguf/names.h"
#include "runtime/gguf/parse.h"
#include "runtime/gguf/wire.h"

namespace orrery::gguf {

namespace {

// Calls f with the number at `p` in its own C++ type. Returns false for strings and arrays.
template <class F>
bool with_number(ValueType type, const std::byte* p, F f) {
  switch (type) {
    case ValueType::u8: return f(load<uint8_t>(p));
    case ValueType::i8: return f(load<int8_t>(p));
    case ValueType::u16: return f(load<uint16_t>(p));
    case ValueType::i16: return f(load<int16_t>(p));
    case ValueType::u32: return f(load<uint32_t>(p));
    case ValueType::i32: return f(load<int32_t>(p));
    case ValueType::u64: return f(load<uint64_t>(p));
    case ValueType::i64: return f(load<int64_t>(p));
    case ValueType::f32: return f(load<float>(p));
    case ValueType::f64: return f(load<double>(p));
    case ValueType::boolean: return f(static_cast<uint8_t>(load<uint8_t>(p) != 0));
    case ValueType::string:
    case ValueType::array: break;
  }
  return false;
}

}  // namespace

const char* value_type_name(ValueType type) {
  static constexpr const char* kNames[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
  const auto number = static_cast<uint32_t>(type);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

const std::byte* Value::data() const { return header_->bytes.data() + at_; }

bool Value::as_u64(uint64_t* out) const {
  if (!header_) return false;
  return with_number(type(), data(), [&](auto v) {
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
  if (!header_) return false;
  return with_number(type(), data(), [&](auto v) {
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
  if (!header_ || type() == ValueType::boolean) return false;
  return with_number(type(), data(), [&](auto v) {
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
  if (type() != ValueType::string || !header_) return false;
  *out = std::string_view(reinterpret_cast<const char*>(data()), count_);
  return true;
}

Value Value::at(uint64_t i) const { return type() == ValueType::array && i < count_ ? header_->element(*this, i) : Value(); }

Value Header::element(const Value& array, uint64_t i) const {
  Value v;
  v.header_ = this;
  v.type_ = array.element_;
  const ValueType type = array.element_type();
  if (type != ValueType::string && type != ValueType::array) {
    v.at_ = (array.at_ + static_cast<uint32_t>(i * scalar_bytes(type))) & 0x0FFFFFFF;
    return v;
  }
  // Start at the last known offset and walk over the strings in between.
  const uint64_t stride = type == ValueType::string ? kStride : 1, known = i / stride;
  uint64_t at = array.at_;
  if (known > 0) {
    const auto it =
        std::lower_bound(indexes.begin(), indexes.end(), array.at_, [](const Index& index, uint32_t place) { return index.array < place; });
    at = element_at[it->first + known - 1];
  }
  const auto number = [&](uint64_t offset) { return static_cast<uint32_t>(load<uint64_t>(bytes.data() + offset)); };
  if (type == ValueType::string) {
    for (uint64_t k = known * stride; k < i; ++k) at += sizeof(uint64_t) + number(at);
    v.count_ = number(at) & 0x0FFFFFFF;
    v.at_ = static_cast<uint32_t>(at + sizeof(uint64_t)) & 0x0FFFFFFF;
  } else {
    v.element_ = load<uint32_t>(bytes.data() + at) & 0xF;
    v.count_ = number(at + sizeof(uint32_t)) & 0x0FFFFFFF;
    v.at_ = static_cast<uint32_t>(at + sizeof(uint32_t) + sizeof(uint64_t)) & 0x0FFFFFFF;
  }
  return v;
}

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 96;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (out.size() >= kLongest) return out + "...";
    const size_t n = utf8_sequence(text.substr(i));
    const auto c = static_cast<uint8_t>(text[i]);
    const bool control = n == 0 || c < 0x20 || c == 0x7F || c == '\'' || c == '\\' ||
                         (n == 2 && c == 0xC2 && static_cast<uint8_t>(text[i + 1]) < 0xA0);  // U+0080..U+009F control terminals too
    if (!control) {
      out.append(text.substr(i, n));
      i += n;
    } else {
      for (size_t end = i + (n == 0 ? 1 : n); i < end; ++i) {
        const auto b = static_cast<uint8_t>(text[i]);
        out += {'\\', 'x', kHex[b >> 4], kHex[b & 15]};
      }
    }
  }
  return out;
}

std::string describe(const Value& value) {
  std::string_view text;
  uint64_t u;
  int64_t i;
  double d;
  const char* name = value_type_name(value.type());
  if (value.type() == ValueType::array)
    return format("array of %llu %s", static_cast<unsigned long long>(value.size()), value_type_name(value.element_type()));
  if (value.as_string(&text)) return format("string '%s'", printable(text).c_str());
  if (value.as_u64(&u)) return format("%s %llu", name, static_cast<unsigned long long>(u));
  if (value.as_i64(&i)) return format("%s %lld", name, static_cast<long long>(i));
  if (value.as_f64(&d)) return format("%s %.9g", name, d);
  return "nothing";
}

}  // namespace orrery::gguf

// The header's parser: one pass over keys, values and tensor infos, then the checks that need the whole
// table.
//
// Rules that keep it safe on any bytes: every count is bounded by the bytes that remain before anything of
// that size is allocated; sizes are added and multiplied checked; recursion is bounded; duplicates and
// overlaps are found by sorting, whose time no choice of names can make quadratic.
#include "runtime/gguf/parse.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/base/checked.h"
#include "runtime/gguf/names.h"
#include "runtime/gguf/wire.h"

namespace orrery::gguf {

namespace {

using ull = unsigned long long;  // for printf

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
// The fewest bytes that a key (length, one letter, type, one byte) and a tensor info (length, one letter,
// n_dims, one dimension, type, offset) take: what bounds their counts.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;
// Tables larger than this grow as their entries are read: memory follows what is there, not what is promised.
constexpr uint64_t kMostReserved = 65536;

// Tensor types that GGUF defines and this library does not read, for messages.
constexpr struct {
  uint32_t number;
  const char* name;
} kForeignTypes[] = {
    {4, "Q4_2"},      {5, "Q4_3"},   {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"},  {17, "IQ2_XS"},
    {18, "IQ3_XXS"},  {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},       {25, "I16"},
    {26, "I32"},      {27, "I64"},   {28, "F64"},   {29, "IQ1_M"}, {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"}, {34, "TQ1_0"}, {35, "TQ2_0"}, {39, "MXFP4"}, {40, "NVFP4"},
};
const char* foreign_type_name(uint32_t type) {
  for (const auto& foreign : kForeignTypes)
    if (foreign.number == type) return foreign.name;
  return "not a type that GGUF defines";
}

std::string power_of_two_expected() {
  return format("expected a power of two from %llu to %llu", static_cast<ull>(kMinAlignment),
                static_cast<ull>(kMaxAlignment));
}

}  // namespace

Status bad_file(const std::string& file, uint64_t offset, const std::string& what) {
  Status s =
      error(Code::bad_model, "%s: byte %llu: %s", file.c_str(), static_cast<ull>(offset), what.c_str());
  s.detail().offset = offset;
  return s;
}

const Value* Header::find(std::string_view key) const {
  const auto it = std::lower_bound(key_order.begin(), key_order.end(), key,
                                   [&](uint64_t i, std::string_view k) { return keys[i] < k; });
  return it != key_order.end() && keys[*it] == key ? &values[*it] : nullptr;
}

struct Parser {
  const Input& in;
  bool* starved;
  Header header{};
  uint64_t at = 0;  // the next byte to read

  // What is being read, for messages: "key 3", or "key 'general.name'" once its name is known.
  const char* kind = "header";
  uint64_t index = 0;
  std::string_view name{};

  std::string subject() const {
    if (!name.empty()) return format("%s '%s'", kind, printable(name).c_str());
    return index == 0 ? std::string(kind) : format("%s %llu", kind, static_cast<ull>(index - 1));
  }
  void begin(const char* what, uint64_t i) {
    kind = what;
    index = i + 1;
    name = {};
  }
  Status bad(uint64_t offset, const std::string& what) const {
    return bad_file(in.name, offset, subject() + ": " + what);
  }

  uint64_t remaining() const { return in.file_bytes - at; }
  const std::byte* here() const { return in.bytes.data() + at; }

  // Makes sure that the next n bytes are there.
  Status need(uint64_t n, const char* what) {
    if (n > remaining())
      return bad(at,
                 format("%s needs %llu bytes, but the file ends after %llu (at byte %llu)", what,
                        static_cast<ull>(n), static_cast<ull>(remaining()), static_cast<ull>(in.file_bytes)));
    if (n > kMaxHeaderBytes - at)
      return bad(at, format("the header is longer than %llu bytes", static_cast<ull>(kMaxHeaderBytes)));
    if (n > in.bytes.size() - at) {
      *starved = true;
      return bad(at, "the header goes on behind the bytes that were read");
    }
    return ok_status();
  }
  template <class T>
  Status read(const char* what, T* out) {
    ORRERY_TRY(need(sizeof(T), what));
    *out = load<T>(here());
    at += sizeof(T);
    return ok_status();
  }
  Status read_string(const char* what, uint64_t longest, std::string_view* out) {
    uint64_t n;
    ORRERY_TRY(read(what, &n));
    if (n > longest)
      return bad(at - sizeof n, format("%s has a length of %llu bytes, expected at most %llu", what,
                                       static_cast<ull>(n), static_cast<ull>(longest)));
    ORRERY_TRY(need(n, what));
    *out = std::string_view(reinterpret_cast<const char*>(here()), n);
    at += n;
    return ok_status();
  }
  uint64_t offset_of(std::string_view text) const {
    return static_cast<uint64_t>(reinterpret_cast<const std::byte*>(text.data()) - in.bytes.data());
  }

  Status read_type(const char* what, ValueType* out) {
    uint32_t number;
    ORRERY_TRY(read(what, &number));
    if (number > static_cast<uint32_t>(ValueType::f64))
      return bad(at - sizeof number, format("%s is %u, expected 0 to 12", what, number));
    *out = static_cast<ValueType>(number);
    return ok_status();
  }

  Status read_value(ValueType type, int depth, Value* out) {
    out->type_ = type;
    if (type == ValueType::array) return read_array(depth, out);
    if (type == ValueType::string) {
      std::string_view text;
      ORRERY_TRY(read_string("its string", UINT64_MAX, &text));
      out->data_ = reinterpret_cast<const std::byte*>(text.data());
      out->count_ = text.size();
      return ok_status();
    }
    ORRERY_TRY(need(scalar_bytes(type), "its value"));
    if (type == ValueType::boolean) ORRERY_TRY(check_bools(1));
    out->data_ = here();
    at += scalar_bytes(type);
    return ok_status();
  }

  Status check_bools(uint64_t n) const {
    for (uint64_t i = 0; i < n; ++i)
      if (const auto b = load<uint8_t>(here() + i); b > 1)
        return bad(at + i, format("a bool is %u, expected 0 or 1", b));
    return ok_status();
  }

  Status read_array(int depth, Value* out) {
    if (depth >= kMaxArrayDepth) return bad(at, format("arrays nest deeper than %d levels", kMaxArrayDepth));
    ORRERY_TRY(read_type("its element type", &out->element_));
    const uint64_t count_at = at;
    uint64_t n;
    ORRERY_TRY(read("its element count", &n));
    // A string is at least its length field; an array its element type and count.
    const uint64_t least = out->element_ == ValueType::string  ? 8
                           : out->element_ == ValueType::array ? 12
                                                               : scalar_bytes(out->element_);
    if (n > remaining() / least)
      return bad(count_at, format("an array of %llu %s needs at least %llu bytes each, but %llu remain",
                                  static_cast<ull>(n), value_type_name(out->element_),
                                  static_cast<ull>(least), static_cast<ull>(remaining())));
    out->count_ = n;
    if (out->element_ == ValueType::string) return read_strings(n, out);
    if (out->element_ == ValueType::array) {
      // Filled before it is handed over: `children` itself grows below us.
      std::vector<Value> children;
      children.reserve(std::min(n, kMostReserved));
      for (uint64_t i = 0; i < n; ++i) {
        Value child;
        ORRERY_TRY(read_value(ValueType::array, depth + 1, &child));
        children.push_back(child);
      }
      out->children_ = children.data();
      header.children.push_back(std::move(children));
      return ok_status();
    }
    ORRERY_TRY(need(n * least, "an array"));
    if (out->element_ == ValueType::boolean) ORRERY_TRY(check_bools(n));
    out->data_ = here();
    at += n * least;
    return ok_status();
  }

  Status read_strings(uint64_t n, Value* out) {
    const uint64_t start = at;
    std::vector<uint64_t> offsets;
    offsets.reserve(std::min(n, kMostReserved));
    for (uint64_t i = 0; i < n; ++i) {
      offsets.push_back(at - start);
      std::string_view text;
      ORRERY_TRY(read_string("a string of its array", UINT64_MAX, &text));
    }
    out->data_ = in.bytes.data() + start;
    out->string_offsets_ = offsets.data();
    header.string_offsets.push_back(std::move(offsets));
    return ok_status();
  }

  Status read_name(const char* what, uint64_t longest) {
    std::string_view text;
    ORRERY_TRY(read_string(what, longest, &text));
    if (const char* fault = name_fault(text))
      return bad(offset_of(text), format("%s '%s' %s", what, printable(text).c_str(), fault));
    name = text;
    return ok_status();
  }

  Status read_keys(uint64_t n) {
    header.keys.reserve(std::min(n, kMostReserved));
    header.values.reserve(std::min(n, kMostReserved));
    for (uint64_t i = 0; i < n; ++i) {
      begin("key", i);
      ORRERY_TRY(read_name("its name", kMaxKeyBytes));
      ValueType type{};
      ORRERY_TRY(read_type("its value type", &type));
      Value value;
      ORRERY_TRY(read_value(type, 0, &value));
      header.keys.push_back(name);
      header.values.push_back(value);
    }
    std::vector<uint64_t>& order = header.key_order;
    order.resize(n);
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) {
      const int c = header.keys[a].compare(header.keys[b]);
      return c != 0 ? c < 0 : a < b;
    });
    for (uint64_t i = 1; i < n; ++i) {
      const std::string_view a = header.keys[order[i - 1]], b = header.keys[order[i]];
      if (a != b) continue;
      begin("key", order[i]);
      name = b;
      return bad(offset_of(b), format("occurs twice, first at byte %llu", static_cast<ull>(offset_of(a))));
    }
    return ok_status();
  }

  Status read_alignment() {
    const Value* value = header.find("general.alignment");
    if (!value) return ok_status();
    begin("key", 0);
    name = "general.alignment";
    const uint64_t offset =
        value->data_ ? static_cast<uint64_t>(value->data_ - in.bytes.data()) : uint64_t{0};
    uint64_t a;
    if (!value->as_u64(&a) || value->type() == ValueType::boolean || a < kMinAlignment || a > kMaxAlignment ||
        (a & (a - 1)) != 0)
      return bad(offset, format("found %s, %s", describe(*value).c_str(), power_of_two_expected().c_str()));
    header.alignment = a;
    return ok_status();
  }

  Status read_tensors(uint64_t n) {
    header.tensors.reserve(std::min(n, kMostReserved));
    for (uint64_t i = 0; i < n; ++i) {
      begin("tensor", i);
      ORRERY_TRY(read_name("its name", kMaxTensorNameBytes));
      Tensor t;
      t.name = name;
      ORRERY_TRY(read("its n_dims", &t.n_dims));
      if (t.n_dims < 1 || t.n_dims > 4)
        return bad(at - 4, format("has %u dimensions, expected 1 to 4", t.n_dims));
      const uint64_t dims_at = at;
      t.n_elements = 1;
      for (uint32_t d = 0; d < t.n_dims; ++d) {
        ORRERY_TRY(read("a dimension", &t.dims[d]));
        if (t.dims[d] == 0) return bad(at - 8, format("dimension %u is 0, expected at least 1", d));
        if (!checked_mul(t.n_elements, t.dims[d], &t.n_elements))
          return bad(at - 8, format("dimension %u is %llu: the number of elements wraps 64 bits", d,
                                    static_cast<ull>(t.dims[d])));
      }
      uint32_t type;
      ORRERY_TRY(read("its type", &type));
      ORRERY_TRY(read("its offset", &t.offset));
      t.type = static_cast<TensorType>(type);
      const TypeTraits* traits = type_traits(t.type);
      if (!traits) {
        Status s = bad(at - 12, format("its type is %u (%s), which this library does not read", type,
                                       foreign_type_name(type)));
        s.detail().code = Code::unsupported_quantization;
        return s;
      }
      if (t.dims[0] % traits->block_elements != 0)
        return bad(dims_at, format("its rows have %llu elements, expected a multiple of %u, the block of %s",
                                   static_cast<ull>(t.dims[0]), traits->block_elements, traits->name));
      if (!checked_mul(t.n_elements / traits->block_elements, traits->block_bytes, &t.bytes))
        return bad(dims_at, format("%llu elements of %s: the number of bytes wraps 64 bits",
                                   static_cast<ull>(t.n_elements), traits->name));
      if (t.offset % header.alignment != 0)
        return bad(at - 8, format("its offset is %llu, expected a multiple of the alignment %llu",
                                  static_cast<ull>(t.offset), static_cast<ull>(header.alignment)));
      header.tensors.push_back(t);
    }
    return ok_status();
  }

  // Turns offsets in the data section into offsets in the file; the data must lie inside it and not overlap.
  Status place_tensors() {
    if (header.tensors.empty()) return ok_status();
    // Cannot wrap: a header is at most kMaxHeaderBytes long.
    const uint64_t data_start = align_up(header.header_bytes, header.alignment);
    for (Tensor& t : header.tensors) {
      kind = "tensor";
      name = t.name;
      uint64_t end;
      if (!checked_add(t.offset, data_start, &t.offset) || !checked_add(t.offset, t.bytes, &end))
        return bad(offset_of(t.name), "its end wraps 64 bits");
      if (end > in.file_bytes)
        return bad(
            offset_of(t.name),
            format("its data is bytes %llu to %llu, but the file ends at byte %llu: truncated?",
                   static_cast<ull>(t.offset), static_cast<ull>(end), static_cast<ull>(in.file_bytes)));
    }
    std::vector<uint64_t> order(header.tensors.size());
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) {
      return std::pair(header.tensors[a].offset, a) < std::pair(header.tensors[b].offset, b);
    });
    for (size_t i = 1; i < order.size(); ++i) {
      const Tensor &a = header.tensors[order[i - 1]], &b = header.tensors[order[i]];
      if (b.offset >= a.offset + a.bytes) continue;
      name = b.name;
      return bad(offset_of(b.name),
                 format("its data at byte %llu overlaps that of tensor '%s' (bytes %llu to %llu)",
                        static_cast<ull>(b.offset), printable(a.name).c_str(), static_cast<ull>(a.offset),
                        static_cast<ull>(a.offset + a.bytes)));
    }
    return ok_status();
  }

  Status run() {
    uint32_t magic;
    ORRERY_TRY(read("the magic", &magic));
    if (magic != kMagic)
      return bad(
          0, format("starts with '%s', expected 'GGUF'",
                    printable(std::string_view(reinterpret_cast<const char*>(in.bytes.data()), 4)).c_str()));
    ORRERY_TRY(read("the version", &header.version));
    if (header.version != 2 && header.version != 3) {
      const bool swapped = header.version == 0x02000000 || header.version == 0x03000000;
      return bad(4, format("version is %u%s, expected 2 or 3", header.version,
                           swapped ? " (a big-endian file)" : ""));
    }
    uint64_t n_tensors = 0, n_keys = 0;
    ORRERY_TRY(read("the tensor count", &n_tensors));
    ORRERY_TRY(read("the key count", &n_keys));
    if (n_tensors > remaining() / kMinTensorInfoBytes)
      return bad(8, format("tensor count is %llu, more than the %llu bytes that remain can hold",
                           static_cast<ull>(n_tensors), static_cast<ull>(remaining())));
    if (n_keys > remaining() / kMinKeyBytes)
      return bad(16, format("key count is %llu, more than the %llu bytes that remain can hold",
                            static_cast<ull>(n_keys), static_cast<ull>(remaining())));
    // The header is there up to its counts; of the rest, memory follows the bytes that were read, not those
    // promised.
    ORRERY_TRY(read_keys(n_keys));
    ORRERY_TRY(read_alignment());
    ORRERY_TRY(read_tensors(n_tensors));
    header.header_bytes = at;
    return place_tensors();
  }
};

Result<Header> parse_header(const Input& input, bool* starved) {
  *starved = false;
  Parser parser{input, starved};
  ORRERY_TRY(parser.run());
  return std::move(parser.header);
}

}  // namespace orrery::gguf

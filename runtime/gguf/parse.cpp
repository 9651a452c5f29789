// The header's parser: one pass over keys, values and tensor infos, then the checks that need the whole table.
//
// Rules that keep it safe on any bytes: it reads its own copy of the bytes; the remaining bytes bound every count,
// and memory grows with the bytes read; additions and multiplications of sizes are checked; recursion is bounded;
// sorting finds duplicates and overlaps, and no choice of names makes the sort quadratic.
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
// The minimum bytes of a key (length, one letter, type, one byte) and of a tensor info (length, one letter, n_dims,
// one dimension, type, offset). They bound both counts.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;
// Tensor types that GGUF defines and this library does not support, for messages.
constexpr struct {
  uint32_t number;
  const char* name;
} kForeignTypes[] = {
    {4, "Q4_2"}, {5, "Q4_3"}, {9, "Q8_1"},   {15, "Q8_K"},     {19, "IQ1_S"},    {24, "I8"},       {25, "I16"},   {26, "I32"},
    {27, "I64"}, {28, "F64"}, {29, "IQ1_M"}, {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"}, {34, "TQ1_0"}, {35, "TQ2_0"},
};
const char* foreign_type_name(uint32_t type) {
  for (const auto& foreign : kForeignTypes)
    if (foreign.number == type) return foreign.name;
  return "not a type that GGUF defines";
}

std::string power_of_two_expected() {
  return format("expected a power of two from %llu to %llu", static_cast<ull>(kMinAlignment), static_cast<ull>(kMaxAlignment));
}

}  // namespace

Status bad_file(const std::string& file, uint64_t offset, const std::string& what) {
  Status s = error(Code::bad_model, "%s: byte %llu: %s", file.c_str(), static_cast<ull>(offset), what.c_str());
  s.detail().offset = offset;
  return s;
}

std::string_view Header::key(uint64_t i) const {
  const std::byte* name = bytes.data() + key_at[i];
  return {reinterpret_cast<const char*>(name), load<uint64_t>(name - sizeof(uint64_t))};
}

std::string_view Header::key_bytes(uint64_t i) const {
  const uint64_t end = i + 1 < n_keys() ? key_at[i + 1] - sizeof(uint64_t) : keys_end;
  return {reinterpret_cast<const char*>(bytes.data() + key_at[i]), static_cast<size_t>(end - key_at[i])};
}

uint64_t Header::index_of(std::string_view name) const {
  const auto it = std::lower_bound(key_order.begin(), key_order.end(), name, [&](uint32_t i, std::string_view n) { return key(i) < n; });
  return it != key_order.end() && key(*it) == name ? *it : n_keys();
}

const Value* Header::find(std::string_view name) const {
  const uint64_t i = index_of(name);
  return i < n_keys() ? &values[i] : nullptr;
}

uint64_t Header::offset_of_key(std::string_view name) const {
  const uint64_t i = index_of(name);
  return i < n_keys() ? key_at[i] : 0;
}

struct Parser {
  const Input& in;
  std::unique_ptr<Header> header = std::make_unique<Header>();
  uint64_t at = 0;  // the next byte to read

  // The subject of messages: "key 3", or "key 'general.name'" once the name is known. The name is kept by offset,
  // because the bytes move as the header grows.
  const char* kind = "header";
  uint64_t index = 0;
  uint64_t name_at = 0, name_bytes = 0;

  std::string_view text_at(uint64_t offset, uint64_t n) const {
    return {reinterpret_cast<const char*>(header->bytes.data() + offset), static_cast<size_t>(n)};
  }
  std::string_view name() const { return text_at(name_at, name_bytes); }
  std::string subject() const {
    if (name_bytes > 0) return format("%s '%s'", kind, printable(name()).c_str());
    return index == 0 ? std::string(kind) : format("%s %llu", kind, static_cast<ull>(index - 1));
  }
  void begin(const char* what, uint64_t i) {
    kind = what;
    index = i + 1;
    name_bytes = 0;
  }
  void begin_named(const char* what, std::string_view its_name) {
    kind = what;
    name_at = header->offset_of(its_name);
    name_bytes = its_name.size();
  }
  Status bad(uint64_t offset, const std::string& what) const { return bad_file(in.name, offset, subject() + ": " + what); }

  uint64_t remaining() const { return in.file_bytes - at; }
  const std::byte* here() const { return header->bytes.data() + at; }

  // Makes sure that the next n bytes are present.
  Status need(uint64_t n, const char* what) {
    if (n > remaining())
      return bad(at, format("%s needs %llu bytes, but the file ends after %llu (at byte %llu)", what, static_cast<ull>(n),
                            static_cast<ull>(remaining()), static_cast<ull>(in.file_bytes)));
    if (n > kMaxHeaderBytes - at) return bad(at, format("the header is longer than %llu bytes", static_cast<ull>(kMaxHeaderBytes)));
    return at + n <= header->bytes.size() ? ok_status() : header->bytes.read_until(in, at + n);
  }
  template <class T>
  Status read(const char* what, T* out) {
    ORRERY_TRY(need(sizeof(T), what));
    *out = load<T>(here());
    at += sizeof(T);
    return ok_status();
  }
  // Reads a string. Its bytes are [*offset, *offset + *n); `at` ends after them.
  Status read_string(const char* what, uint64_t longest, uint64_t* offset, uint64_t* n) {
    ORRERY_TRY(read(what, n));
    if (*n > longest)
      return bad(at - sizeof *n,
                 format("%s has a length of %llu bytes, expected at most %llu", what, static_cast<ull>(*n), static_cast<ull>(longest)));
    ORRERY_TRY(need(*n, what));
    *offset = at;
    at += *n;
    return ok_status();
  }

  Status read_type(const char* what, ValueType* out) {
    uint32_t number;
    ORRERY_TRY(read(what, &number));
    if (number > static_cast<uint32_t>(ValueType::f64)) return bad(at - sizeof number, format("%s is %u, expected 0 to 12", what, number));
    *out = static_cast<ValueType>(number);
    return ok_status();
  }

  // Every number here is below 2^28: need() keeps `at` within kMaxHeaderBytes, and each element takes at least one
  // byte.
  Value value_at(uint64_t offset, ValueType type, uint64_t count = 0, ValueType element = ValueType::u8) const {
    constexpr uint32_t kLow28 = 0x0FFFFFFF, kLow4 = 0xF;
    Value v;
    v.header_ = header.get();
    v.at_ = static_cast<uint32_t>(offset) & kLow28;
    v.type_ = static_cast<uint32_t>(type) & kLow4;
    v.count_ = static_cast<uint32_t>(count) & kLow28;
    v.element_ = static_cast<uint32_t>(element) & kLow4;
    return v;
  }

  Status read_value(ValueType type, Value* out) {
    if (type == ValueType::array) return read_array(0, out);
    if (type == ValueType::string) {
      uint64_t offset = 0, n = 0;
      ORRERY_TRY(read_string("its string", UINT64_MAX, &offset, &n));
      *out = value_at(offset, type, n);
      return ok_status();
    }
    ORRERY_TRY(need(scalar_bytes(type), "its value"));
    if (type == ValueType::boolean) ORRERY_TRY(check_bools(1));
    *out = value_at(at, type);
    at += scalar_bytes(type);
    return ok_status();
  }

  Status check_bools(uint64_t n) const {
    for (uint64_t i = 0; i < n; ++i)
      if (const auto b = load<uint8_t>(here() + i); b > 1) return bad(at + i, format("a bool is %u, expected 0 or 1", b));
    return ok_status();
  }

  Status read_array(int depth, Value* out) {
    if (depth >= kMaxArrayDepth) return bad(at, format("arrays nest deeper than %d levels", kMaxArrayDepth));
    ValueType element{};
    ORRERY_TRY(read_type("its element type", &element));
    const uint64_t count_at = at;
    uint64_t n = 0;
    ORRERY_TRY(read("its element count", &n));
    // A string takes at least its length field; an array takes its element type and count.
    const uint64_t least = element == ValueType::string ? 8 : element == ValueType::array ? 12 : scalar_bytes(element);
    if (n > remaining() / least)
      return bad(count_at, format("an array of %llu %s needs at least %llu bytes each, but %llu remain", static_cast<ull>(n),
                                  value_type_name(element), static_cast<ull>(least), static_cast<ull>(remaining())));
    const uint64_t start = at;
    if (element == ValueType::string || element == ValueType::array) {
      ORRERY_TRY(read_elements(element, n, depth));
    } else {
      ORRERY_TRY(need(n * least, "an array"));
      if (element == ValueType::boolean) ORRERY_TRY(check_bools(n));
      at += n * least;
    }
    *out = value_at(start, ValueType::array, n, element);
    return ok_status();
  }

  // Walks over strings or arrays and notes the offsets that Value::at() needs.
  Status read_elements(ValueType element, uint64_t n, int depth) {
    const uint64_t start = at;
    std::vector<uint32_t> places;  // separate, because inner arrays append their own places first
    for (uint64_t i = 0; i < n; ++i) {
      if (i > 0 && (element == ValueType::array || i % Header::kStride == 0)) places.push_back(static_cast<uint32_t>(at));
      if (element == ValueType::string) {
        uint64_t offset = 0, bytes = 0;
        ORRERY_TRY(read_string("a string of its array", UINT64_MAX, &offset, &bytes));
      } else {
        Value child;
        ORRERY_TRY(read_array(depth + 1, &child));
      }
    }
    if (places.empty()) return ok_status();
    header->indexes.push_back({static_cast<uint32_t>(start), static_cast<uint32_t>(header->element_at.size())});
    header->element_at.insert(header->element_at.end(), places.begin(), places.end());
    return ok_status();
  }

  Status read_name(const char* what, uint64_t longest) {
    uint64_t offset = 0, n = 0;
    ORRERY_TRY(read_string(what, longest, &offset, &n));
    const std::string_view text = text_at(offset, n);
    if (const char* fault = name_fault(text)) return bad(offset, format("%s '%s' %s", what, printable(text).c_str(), fault));
    name_at = offset;
    name_bytes = n;
    return ok_status();
  }

  Status read_keys(uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
      begin("key", i);
      ORRERY_TRY(read_name("its name", kMaxKeyBytes));
      header->key_at.push_back(static_cast<uint32_t>(name_at));
      ValueType type{};
      ORRERY_TRY(read_type("its value type", &type));
      Value value;
      ORRERY_TRY(read_value(type, &value));
      header->values.push_back(value);
    }
    header->keys_end = at;
    // An array is noted when it ends, after the arrays inside it.
    std::sort(header->indexes.begin(), header->indexes.end(),
              [](const Header::Index& a, const Header::Index& b) { return a.array < b.array; });
    return sort_keys();
  }

  Status sort_keys() {
    std::vector<uint32_t>& order = header->key_order;
    order.resize(header->n_keys());
    std::iota(order.begin(), order.end(), uint32_t{0});
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      const int c = header->key(a).compare(header->key(b));
      return c != 0 ? c < 0 : a < b;
    });
    for (size_t i = 1; i < order.size(); ++i) {
      const std::string_view a = header->key(order[i - 1]), b = header->key(order[i]);
      if (a != b) continue;
      begin_named("key", b);
      return bad(header->offset_of(b), format("occurs twice, first at byte %llu", static_cast<ull>(header->offset_of(a))));
    }
    return ok_status();
  }

  Status read_alignment() {
    const Value* value = header->find("general.alignment");
    if (!value) return ok_status();
    uint64_t a;
    if (!value->as_u64(&a) || value->type() == ValueType::boolean || a < kMinAlignment || a > kMaxAlignment || (a & (a - 1)) != 0)
      return bad_file(in.name, header->offset_of(*value),
                      format("key 'general.alignment': found %s, %s", describe(*value).c_str(), power_of_two_expected().c_str()));
    header->alignment = a;
    return ok_status();
  }

  Status read_tensors(uint64_t n) {
    std::deque<uint64_t> names_at;
    for (uint64_t i = 0; i < n; ++i) {
      begin("tensor", i);
      ORRERY_TRY(read_name("its name", kMaxTensorNameBytes));
      names_at.push_back(name_at);
      Tensor t;
      ORRERY_TRY(read("its n_dims", &t.n_dims));
      if (t.n_dims < 1 || t.n_dims > 4) return bad(at - 4, format("has %u dimensions, expected 1 to 4", t.n_dims));
      const uint64_t dims_at = at;
      t.n_elements = 1;
      for (uint32_t d = 0; d < t.n_dims; ++d) {
        ORRERY_TRY(read("a dimension", &t.dims[d]));
        if (t.dims[d] == 0) return bad(at - 8, format("dimension %u is 0, expected at least 1", d));
        if (!checked_mul(t.n_elements, t.dims[d], &t.n_elements))
          return bad(at - 8, format("dimension %u is %llu: the number of elements wraps 64 bits", d, static_cast<ull>(t.dims[d])));
      }
      uint32_t type;
      ORRERY_TRY(read("its type", &type));
      ORRERY_TRY(read("its offset", &t.offset));
      t.type = static_cast<TensorType>(type);
      const TypeTraits* traits = type_traits(t.type);
      if (!traits) {
        Status s = bad(at - 12, format("its type is %u (%s), which this library does not read", type, foreign_type_name(type)));
        s.detail().code = Code::unsupported_quantization;
        return s;
      }
      if (t.dims[0] % traits->block_elements != 0)
        return bad(dims_at, format("its rows have %llu elements, expected a multiple of %u, the block of %s", static_cast<ull>(t.dims[0]),
                                   traits->block_elements, traits->name));
      if (!checked_mul(t.n_elements / traits->block_elements, traits->block_bytes, &t.bytes))
        return bad(dims_at, format("%llu elements of %s: the number of bytes wraps 64 bits", static_cast<ull>(t.n_elements), traits->name));
      if (t.offset % header->alignment != 0)
        return bad(at - 8, format("its offset is %llu, expected a multiple of the alignment %llu", static_cast<ull>(t.offset),
                                  static_cast<ull>(header->alignment)));
      header->tensors.push_back(t);
    }
    // The bytes do not move from here on.
    header->header_bytes = at;
    header->bytes.trim(at);
    for (uint64_t i = 0; i < n; ++i)
      header->tensors[i].name = text_at(names_at[i], load<uint64_t>(header->bytes.data() + names_at[i] - sizeof(uint64_t)));
    return ok_status();
  }

  // Turns offsets in the data section into offsets in the file. The data must lie inside the file and must not
  // overlap.
  Status place_tensors() {
    if (header->tensors.empty()) return ok_status();
    // Cannot wrap: a header is at most kMaxHeaderBytes long.
    const uint64_t data_start = align_up(header->header_bytes, header->alignment);
    for (Tensor& t : header->tensors) {
      begin_named("tensor", t.name);
      uint64_t end;
      if (!checked_add(t.offset, data_start, &t.offset) || !checked_add(t.offset, t.bytes, &end))
        return bad(header->offset_of(t.name), "its end wraps 64 bits");
      if (end > in.file_bytes)
        return bad(header->offset_of(t.name), format("its data is bytes %llu to %llu, but the file ends at byte %llu: truncated?",
                                                     static_cast<ull>(t.offset), static_cast<ull>(end), static_cast<ull>(in.file_bytes)));
    }
    std::vector<uint64_t> order(header->tensors.size());
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::sort(order.begin(), order.end(),
              [&](uint64_t a, uint64_t b) { return std::pair(header->tensors[a].offset, a) < std::pair(header->tensors[b].offset, b); });
    for (size_t i = 1; i < order.size(); ++i) {
      const Tensor &a = header->tensors[order[i - 1]], &b = header->tensors[order[i]];
      if (b.offset >= a.offset + a.bytes) continue;
      begin_named("tensor", b.name);
      return bad(header->offset_of(b.name),
                 format("its data at byte %llu overlaps that of tensor '%s' (bytes %llu to %llu)", static_cast<ull>(b.offset),
                        printable(a.name).c_str(), static_cast<ull>(a.offset), static_cast<ull>(a.offset + a.bytes)));
    }
    return ok_status();
  }

  Status run() {
    uint32_t magic;
    ORRERY_TRY(read("the magic", &magic));
    if (magic != kMagic) return bad(0, format("starts with '%s', expected 'GGUF'", printable(text_at(0, 4)).c_str()));
    ORRERY_TRY(read("the version", &header->version));
    if (header->version != 2 && header->version != 3) {
      const bool swapped = header->version == 0x02000000 || header->version == 0x03000000;
      return bad(4, format("version is %u%s, expected 2 or 3", header->version, swapped ? " (a big-endian file)" : ""));
    }
    uint64_t n_tensors = 0, n_keys = 0;
    ORRERY_TRY(read("the tensor count", &n_tensors));
    ORRERY_TRY(read("the key count", &n_keys));
    if (n_tensors > remaining() / kMinTensorInfoBytes)
      return bad(8, format("tensor count is %llu, more than the %llu bytes that remain can hold", static_cast<ull>(n_tensors),
                           static_cast<ull>(remaining())));
    if (n_keys > remaining() / kMinKeyBytes)
      return bad(16, format("key count is %llu, more than the %llu bytes that remain can hold", static_cast<ull>(n_keys),
                            static_cast<ull>(remaining())));
    if (n_tensors > kMaxTensors)
      return bad(8, format("tensor count is %llu, expected at most %llu", static_cast<ull>(n_tensors), static_cast<ull>(kMaxTensors)));
    if (n_keys > kMaxKeys)
      return bad(16, format("key count is %llu, expected at most %llu", static_cast<ull>(n_keys), static_cast<ull>(kMaxKeys)));
    // From here on memory grows with the bytes that are read, not with the counts that the file promises.
    ORRERY_TRY(read_keys(n_keys));
    ORRERY_TRY(read_alignment());
    ORRERY_TRY(read_tensors(n_tensors));
    return place_tensors();
  }
};

Result<std::unique_ptr<Header>> parse_header(const Input& in) {
  Parser parser{in};
  ORRERY_TRY(parser.run());
  return std::move(parser.header);
}

}  // namespace orrery::gguf

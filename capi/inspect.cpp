#include "capi/inspect.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/base/tensor_type.h"
#include "runtime/gguf/gguf.h"
#include "runtime/model/families/family.h"
#include "runtime/model/load/model.h"
#include "runtime/text/json/json.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::capi {

namespace {

using text::Map;
using text::Value;

constexpr uint64_t kFirstElements = 8;
constexpr int kMaxNesting = 4;

Value string(std::string_view s) {
  std::string valid;
  text::utf8_append_valid(s, &valid);
  return Value::string(std::move(valid));
}

Value number(uint64_t n) {
  return n <= static_cast<uint64_t>(INT64_MAX) ? Value::integer(static_cast<int64_t>(n)) : Value::big_integer(std::to_string(n));
}

Value describe(const gguf::Value& v, int nesting) {
  int64_t i = 0;
  uint64_t u = 0;
  double d = 0.0;
  bool b = false;
  std::string_view s;
  switch (v.type()) {
    case gguf::ValueType::string: return v.as_string(&s) ? string(s) : Value::none();
    case gguf::ValueType::boolean: return v.as_bool(&b) ? Value::boolean(b) : Value::none();
    case gguf::ValueType::f32:
    case gguf::ValueType::f64:
      if (!v.as_f64(&d)) return Value::none();
      // JSON has no infinities or NaNs, and damaged files are worth inspecting.
      return std::isfinite(d) ? Value::floating(d) : string(std::isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
    case gguf::ValueType::array: {
      Map map;
      map.set("type", Value::string(gguf::value_type_name(v.element_type())));
      map.set("count", number(v.size()));
      std::vector<Value> first;
      if (nesting < kMaxNesting)
        for (uint64_t k = 0; k < std::min(v.size(), kFirstElements); ++k) first.push_back(describe(v.at(k), nesting + 1));
      map.set("first", Value::list(std::move(first)));
      return Value::map(std::move(map));
    }
    default: break;
  }
  if (v.as_i64(&i)) return Value::integer(i);
  return v.as_u64(&u) ? number(u) : Value::none();
}

Value describe(const gguf::Tensor& t) {
  Map map;
  map.set("name", string(t.name));
  map.set("type", Value::string(type_traits(t.type)->name));
  std::vector<Value> shape;  // the slowest dimension first, as matrices are written
  for (uint32_t d = t.n_dims; d-- > 0;) shape.push_back(number(t.dims[d]));
  map.set("shape", Value::list(std::move(shape)));
  map.set("bytes", number(t.bytes));
  map.set("offset", number(t.offset));
  map.set("part", number(t.part));
  return Value::map(std::move(map));
}

}  // namespace

Result<std::string> describe_file(const engine::ModelSource& source) {
  gguf::OpenOptions header;
  header.header_only = true;
  ORRERY_ASSIGN(const gguf::File file, source.open(header));

  Map root;
  root.set("path", string(file.path()));
  root.set("version", number(file.version()));
  root.set("file_bytes", number(file.file_bytes()));
  root.set("parts", number(file.n_parts()));
  root.set("alignment", number(file.alignment()));
  std::string_view architecture;
  const gguf::Value* key = file.find("general.architecture");
  if (key) key->as_string(&architecture);
  root.set("architecture", string(architecture));
  auto description = model::read_description(file, {});
  const Status readable = description.ok() ? model::check_tensors(file, *description) : description.take_status();
  root.set("supported", Value::boolean(readable.ok()));
  if (!readable.ok()) root.set("reason", string(readable.message()));

  uint64_t n_parameters = 0;
  struct Count {
    uint64_t tensors = 0, elements = 0, bytes = 0;
  };
  std::map<std::string, Count> types;
  std::vector<Value> tensors;
  for (const gguf::Tensor& t : file.tensors()) {
    n_parameters += t.n_elements;
    Count& count = types[type_traits(t.type)->name];
    ++count.tensors;
    count.elements += t.n_elements;
    count.bytes += t.bytes;
    tensors.push_back(describe(t));
  }
  root.set("n_parameters", number(n_parameters));
  std::vector<Value> by_type;
  for (const auto& [name, count] : types) {
    Map map;
    map.set("type", Value::string(name));
    map.set("tensors", number(count.tensors));
    map.set("parameters", number(count.elements));
    map.set("bytes", number(count.bytes));
    by_type.push_back(Value::map(std::move(map)));
  }
  root.set("types", Value::list(std::move(by_type)));
  Map metadata;
  for (uint64_t i = 0; i < file.n_keys(); ++i) metadata.set(string(file.key(i)), describe(file.value(i), 0));
  root.set("metadata", Value::map(std::move(metadata)));
  root.set("tensors", Value::list(std::move(tensors)));
  return text::dump_json(Value::map(std::move(root)));
}

}  // namespace orrery::capi

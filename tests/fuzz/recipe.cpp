#include "tests/fuzz/recipe.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "runtime/gguf/gguf.h"
#include "runtime/model/families/family.h"

namespace orrery::fuzz {
namespace {

using gguf::ValueType;
using testing::Bytes;
using testing::ByteWriter;

constexpr uint64_t kMostBytes = 1 << 20;  // of one tensor's data, or one array

constexpr uint32_t number(ValueType type) { return static_cast<uint32_t>(type); }

size_t scalar_bytes(uint32_t type) {
  switch (type) {
    case 0:
    case 1:
    case 7: return 1;
    case 2:
    case 3: return 2;
    case 4:
    case 5:
    case 6: return 4;
    case 10:
    case 11:
    case 12: return 8;
    default: return 0;  // strings and arrays, and what is no type
  }
}

template <class T>
T load(const Bytes& bytes, size_t at) {
  T value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Bytes that a value of this type takes in a valid file.
size_t value_bytes(const Bytes& file, size_t at, uint32_t type) {
  if (type == number(ValueType::string)) return 8 + load<uint64_t>(file, at);
  if (type != number(ValueType::array)) return scalar_bytes(type);
  const auto element = load<uint32_t>(file, at);
  const auto n = load<uint64_t>(file, at + 4);
  if (scalar_bytes(element) > 0) return 12 + n * scalar_bytes(element);
  size_t end = at + 12;
  for (uint64_t i = 0; i < n; ++i) end += value_bytes(file, end, element);
  return end - at;
}

// Numbers at which arithmetic breaks, beside those that the input spells out.
uint64_t interesting(uint8_t which, uint64_t spelt) {
  static constexpr uint64_t kNumbers[] = {0,          1,
                                          2,          3,
                                          31,         32,
                                          64,         127,
                                          128,        255,
                                          256,        1023,
                                          65535,      65536,
                                          0x7FFFFFFF, 1u << 31,
                                          0xFFFFFFFF, uint64_t{1} << 32,
                                          INT64_MAX,  uint64_t{1} << 63,
                                          UINT64_MAX};
  return which < std::size(kNumbers) ? kNumbers[which] : spelt;
}
uint64_t read_number(Reader* r) {
  const uint8_t which = r->byte();
  return interesting(which, which < 32 ? r->number<uint64_t>() : which < 128 ? r->number<uint16_t>() : r->byte());
}
double read_real(Reader* r) {
  static const double kReals[] = {0.0, -0.0, 1.0, -1.0, 0.5, 1e-5, 1e-30, 1e30, 3e38, 1e300, std::nan(""), HUGE_VAL, -HUGE_VAL};
  const uint8_t which = r->byte();
  return which < std::size(kReals) ? kReals[which] : which < 128 ? r->number<float>() : r->byte() / 16.0;
}

// A scalar of this type: integers by read_number(), others by read_real().
Bytes read_scalar(Reader* r, uint32_t type) {
  ByteWriter w;
  if (type == number(ValueType::f32)) {
    w.put(static_cast<float>(std::clamp(read_real(r), -3.4e38, 3.4e38)));
  } else if (type == number(ValueType::f64)) {
    w.put(read_real(r));
  } else {
    w.put(read_number(r));
    w.bytes.resize(scalar_bytes(type));
  }
  return std::move(w.bytes);
}

Bytes text_value(const std::string& text) { return std::move(ByteWriter().text(text).bytes); }

// An array's elements: one a piece, strings with their length.
struct Array {
  uint32_t element = 0;
  std::vector<Bytes> elements;

  explicit Array(const Bytes& value) : element(load<uint32_t>(value, 0)) {
    size_t at = 12;
    for (uint64_t i = 0, n = load<uint64_t>(value, 4); i < n && at < value.size(); ++i) {
      const size_t bytes = value_bytes(value, at, element);
      if (bytes == 0 || bytes > value.size() - at) break;
      const auto from = value.begin() + static_cast<std::ptrdiff_t>(at);
      elements.emplace_back(from, from + static_cast<std::ptrdiff_t>(bytes));
      at += bytes;
    }
  }
  Bytes value() const {
    ByteWriter w;
    w.put(element).put(uint64_t{elements.size()});
    for (const Bytes& e : elements) w.raw(e.data(), e.size());
    return std::move(w.bytes);
  }
};

// As many bytes as the shape takes, made of the old ones; false where there is no such number, or too many.
bool refit(FileParts::Tensor* t) {
  const TypeTraits* traits = type_traits(static_cast<TensorType>(t->type));
  uint64_t n = 1;
  for (const uint64_t d : t->dims) {
    if (d == 0 || n > kMostBytes / d) return false;
    n *= d;
  }
  if (!traits || t->dims.empty() || t->dims[0] % traits->block_elements != 0) return false;
  const uint64_t bytes = n / traits->block_elements * traits->block_bytes;
  if (bytes > kMostBytes) return false;
  const Bytes old = t->data.empty() ? Bytes(1) : t->data;
  t->data.resize(bytes);
  for (uint64_t i = 0; i < bytes; ++i) t->data[i] = old[i % old.size()];
  return true;
}

// Keys that models of all families may have; "%" stands for the family.
struct KnownKey {
  const char* name;
  ValueType type;
};
constexpr KnownKey kKnownKeys[] = {
    {"%.rope.scaling.type", ValueType::string},
    {"%.rope.scaling.factor", ValueType::f32},
    {"%.rope.scaling.attn_factor", ValueType::f32},
    {"%.rope.scaling.yarn_beta_fast", ValueType::f32},
    {"%.rope.scaling.yarn_beta_slow", ValueType::f32},
    {"%.rope.scaling.original_context_length", ValueType::u32},
    {"%.rope.scale_linear", ValueType::f32},
    {"%.rope.freq_base", ValueType::f32},
    {"%.rope.dimension_count", ValueType::u32},
    {"%.attention.sliding_window", ValueType::u32},
    {"%.attention.sliding_window_pattern", ValueType::u32},
    {"%.attention.head_count_kv", ValueType::u32},
    {"%.attention.key_length", ValueType::u32},
    {"%.attention.value_length", ValueType::u32},
    {"%.expert_count", ValueType::u32},
    {"%.attn_logit_softcapping", ValueType::f32},
    {"%.vocab_size", ValueType::u32},
    {"general.alignment", ValueType::u32},
    {"general.quantization_version", ValueType::u32},
    {"general.file_type", ValueType::u32},
    {"split.count", ValueType::u16},
    {"split.no", ValueType::u16},
    {"split.tensors.count", ValueType::i32},
    {"tokenizer.ggml.model", ValueType::string},
    {"tokenizer.ggml.pre", ValueType::string},
    {"tokenizer.ggml.add_bos_token", ValueType::boolean},
    {"tokenizer.ggml.add_eos_token", ValueType::boolean},
    {"tokenizer.ggml.add_space_prefix", ValueType::boolean},
    {"tokenizer.ggml.remove_extra_whitespaces", ValueType::boolean},
    {"tokenizer.ggml.bos_token_id", ValueType::u32},
    {"tokenizer.ggml.eos_token_id", ValueType::u32},
    {"tokenizer.ggml.eot_token_id", ValueType::u32},
    {"tokenizer.ggml.eom_token_id", ValueType::u32},
    {"tokenizer.ggml.unknown_token_id", ValueType::u32},
    {"tokenizer.ggml.padding_token_id", ValueType::u32},
    {"tokenizer.chat_template", ValueType::string},
    {"tokenizer.chat_template.more", ValueType::string},
};

std::string family_of(FileParts* file) {
  const FileParts::Key* key = file->find("general.architecture");
  if (!key || key->value.size() < 8) return "llama";
  return std::string(reinterpret_cast<const char*>(key->value.data()) + 8, key->value.size() - 8);
}

void set_key(FileParts* file, const std::string& name, uint32_t type, Bytes value) {
  if (FileParts::Key* key = file->find(name)) *key = {name, type, std::move(value)};
  else file->keys.push_back({name, type, std::move(value)});
}

void edit_key(Edit edit, Reader* r, FileParts* file) {
  if (file->keys.empty()) return;
  const size_t i = r->byte() % file->keys.size();
  FileParts::Key& key = file->keys[i];
  switch (edit) {
    case Edit::set_number:
      if (scalar_bytes(key.type) > 0) key.value = read_scalar(r, key.type);
      break;
    case Edit::retype_key:
      key.type = r->byte() % 14;
      if (scalar_bytes(key.type) > 0) key.value = read_scalar(r, key.type);
      else if (key.type == number(ValueType::string)) key.value = text_value(r->text());
      break;
    case Edit::set_text:
      key.type = number(ValueType::string);
      key.value = text_value(r->text());
      break;
    case Edit::rename_key: key.name = r->text(); break;
    case Edit::drop_key: file->keys.erase(file->keys.begin() + static_cast<std::ptrdiff_t>(i)); break;
    case Edit::double_key: {
      FileParts::Key copy = key;
      file->keys.push_back(std::move(copy));
      break;
    }
    default: {
      if (key.type != number(ValueType::array)) return;
      Array array(key.value);
      const size_t n = r->number<uint16_t>();
      if (edit == Edit::resize_array) {
        if (!array.elements.empty()) array.elements.resize(n % 600, array.elements.back());
      } else if (!array.elements.empty()) {
        array.elements[n % array.elements.size()] = scalar_bytes(array.element) > 0 ? read_scalar(r, array.element) : text_value(r->text());
      }
      key.value = array.value();
    }
  }
}

void fill_data(Reader* r, FileParts::Tensor* t) {
  if (t->data.empty()) return;
  const size_t at = r->number<uint16_t>() * size_t{4} % t->data.size();
  const size_t n = std::min<size_t>((r->byte() + size_t{1}) * 4, t->data.size() - at);
  static constexpr uint32_t kPatterns[] = {0,          0xFFFFFFFF, 0x7FC00000, 0x7F800000, 0xFF800000,
                                           0x7F7FFFFF, 0x00000001, 0x7C007C00, 0x7E007E00, 0xFBFFFBFF};
  const uint8_t which = r->byte();
  const uint32_t pattern = which < std::size(kPatterns) ? kPatterns[which] : r->number<uint32_t>();
  for (size_t i = 0; i < n; ++i) t->data[at + i] = static_cast<std::byte>(pattern >> (i % 4 * 8));
}

void edit_tensor(Edit edit, Reader* r, FileParts* file) {
  if (file->tensors.empty()) return;
  const size_t i = r->byte() % file->tensors.size();
  FileParts::Tensor& t = file->tensors[i];
  switch (edit) {
    case Edit::set_dim:
      if (!t.dims.empty()) t.dims[r->byte() % t.dims.size()] = read_number(r);
      if ((r->byte() & 1) == 0) refit(&t);
      break;
    case Edit::add_dim:
      if (t.dims.size() < 6) t.dims.push_back(read_number(r));
      refit(&t);
      break;
    case Edit::retype_tensor:
      t.type = r->byte() % 48;
      if ((r->byte() & 1) == 0) refit(&t);
      break;
    case Edit::fill_data: fill_data(r, &t); break;
    case Edit::rename_tensor: t.name = r->text(); break;
    case Edit::drop_tensor: file->tensors.erase(file->tensors.begin() + static_cast<std::ptrdiff_t>(i)); break;
    case Edit::double_tensor: {
      FileParts::Tensor copy = t;
      copy.name = r->text();
      if (copy.name.empty()) copy.name = t.name;
      file->tensors.push_back(std::move(copy));
      break;
    }
    default: std::swap(t.name, file->tensors[r->byte() % file->tensors.size()].name);
  }
}

void scale_everywhere(Reader* r, FileParts* file) {
  const uint64_t from = r->byte(), to = r->number<uint16_t>() % 1024;
  for (FileParts::Key& key : file->keys)
    if (key.type == number(ValueType::u32) && load<uint32_t>(key.value, 0) == from)
      key.value = ByteWriter().put(static_cast<uint32_t>(to)).bytes;
  for (FileParts::Tensor& t : file->tensors) {
    if (std::find(t.dims.begin(), t.dims.end(), from) == t.dims.end()) continue;
    std::replace(t.dims.begin(), t.dims.end(), from, to);
    refit(&t);
  }
}

void set_family(Reader* r, FileParts* file) {
  const std::string old = family_of(file) + ".";
  const auto families = model::families();
  const std::string family = families[r->byte() % families.size()].name;
  set_key(file, "general.architecture", number(ValueType::string), text_value(family));
  for (FileParts::Key& key : file->keys)
    if (key.name.compare(0, old.size(), old) == 0) key.name = family + "." + key.name.substr(old.size());
}

void add_known_key(Reader* r, FileParts* file) {
  const KnownKey& known = kKnownKeys[r->byte() % std::size(kKnownKeys)];
  const std::string name = known.name[0] == '%' ? family_of(file) + (known.name + 1) : known.name;
  static constexpr const char* kTexts[] = {"none", "linear",  "yarn",  "llama3",    "longrope",   "llama",
                                           "gpt2", "default", "qwen2", "llama-bpe", "chatglm-bpe"};
  if (known.type != ValueType::string) return set_key(file, name, number(known.type), read_scalar(r, number(known.type)));
  const uint8_t which = r->byte();
  set_key(file, name, number(known.type), text_value(which < std::size(kTexts) ? kTexts[which] : r->text()));
}

void set_token(Reader* r, FileParts* file) {
  FileParts::Key* tokens = file->find("tokenizer.ggml.tokens");
  if (!tokens || tokens->type != number(ValueType::array)) return;
  Array array(tokens->value);
  if (array.elements.empty()) return;
  const size_t i = r->number<uint16_t>() % array.elements.size();
  const uint8_t type = r->byte();
  const double score = read_real(r);
  array.elements[i] = text_value(r->text());
  tokens->value = array.value();
  if (FileParts::Key* types = file->find("tokenizer.ggml.token_type"); types && types->type == number(ValueType::array)) {
    Array of(types->value);
    if (i < of.elements.size()) of.elements[i] = ByteWriter().put(int32_t{type % 9}).bytes;
    types->value = of.value();
  }
  if (FileParts::Key* scores = file->find("tokenizer.ggml.scores"); scores && scores->type == number(ValueType::array)) {
    Array of(scores->value);
    if (i < of.elements.size()) of.elements[i] = ByteWriter().put(static_cast<float>(std::clamp(score, -3e38, 3e38))).bytes;
    scores->value = of.value();
  }
}

void add_merge(Reader* r, FileParts* file) {
  FileParts::Key* merges = file->find("tokenizer.ggml.merges");
  if (!merges) {
    file->keys.push_back({"tokenizer.ggml.merges", number(ValueType::array), ByteWriter().put(ValueType::string).put(uint64_t{0}).bytes});
    merges = &file->keys.back();
  }
  if (merges->type != number(ValueType::array)) return;
  Array array(merges->value);
  array.elements.push_back(text_value(r->text()));
  merges->value = array.value();
}

}  // namespace

FileParts FileParts::take_apart(const Bytes& bytes) {
  FileParts out;
  Result<gguf::File> file = gguf::File::parse({bytes.data(), bytes.size()}, "base");
  require(file.ok(), "the base of a recipe is valid");
  size_t at = 24;
  for (uint64_t i = 0; i < file->n_keys(); ++i) {
    const size_t length = load<uint64_t>(bytes, at);
    Key key;
    key.name.assign(reinterpret_cast<const char*>(bytes.data()) + at + 8, length);
    at += 8 + length;
    key.type = load<uint32_t>(bytes, at);
    const size_t n = value_bytes(bytes, at + 4, key.type);
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(at + 4);
    key.value.assign(from, from + static_cast<std::ptrdiff_t>(n));
    at += 4 + n;
    require(key.name == file->key(i), "a key is where it is looked for");
    out.keys.push_back(std::move(key));
  }
  for (const gguf::Tensor& t : file->tensors())
    out.tensors.push_back({std::string(t.name), {t.dims, t.dims + t.n_dims}, static_cast<uint32_t>(t.type), {t.data, t.data + t.bytes}});
  return out;
}

namespace {

template <class T>
void put(Bytes* to, T value) {
  const auto* p = reinterpret_cast<const std::byte*>(&value);
  to->insert(to->end(), p, p + sizeof value);
}
void put_text(Bytes* to, const std::string& text) {
  put(to, uint64_t{text.size()});
  const auto* p = reinterpret_cast<const std::byte*>(text.data());
  to->insert(to->end(), p, p + text.size());
}

}  // namespace

Bytes FileParts::build() const {
  Bytes file;
  build(&file);
  return file;
}

void FileParts::build(Bytes* to) const {
  Bytes& file = *to;
  file.clear();
  put(&file, uint32_t{0x46554747});
  put(&file, version);
  put(&file, uint64_t{tensors.size()} + more_tensors);
  put(&file, uint64_t{keys.size()} + more_keys);
  uint64_t alignment = 32;
  for (const Key& key : keys) {
    put_text(&file, key.name);
    put(&file, key.type);
    file.insert(file.end(), key.value.begin(), key.value.end());
    if (key.name != "general.alignment" || key.type != number(ValueType::u32)) continue;
    const auto a = load<uint32_t>(key.value, 0);
    if (a >= 8 && a <= 4096 && (a & (a - 1)) == 0) alignment = a;
  }
  uint64_t at = 0;  // from the start of the data
  for (const Tensor& t : tensors) {
    put_text(&file, t.name);
    put(&file, static_cast<uint32_t>(t.dims.size()));
    for (const uint64_t dim : t.dims) put(&file, dim);
    put(&file, t.type);
    put(&file, at);
    at += (std::max<uint64_t>(1, t.data.size()) + alignment - 1) / alignment * alignment;
  }
  const auto align = [&] { file.resize((file.size() + alignment - 1) / alignment * alignment); };
  align();
  for (const Tensor& t : tensors) {
    file.insert(file.end(), t.data.begin(), t.data.end());
    if (t.data.empty()) file.push_back(std::byte{0});
    align();
  }
  for (const auto& [place, byte] : pokes)
    if (!file.empty()) file[place % file.size()] = static_cast<std::byte>(byte);
  if (cut < file.size()) file.resize(cut);
}

FileParts::Key* FileParts::find(const std::string& name) {
  const auto it = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return it == keys.end() ? nullptr : &*it;
}

void apply(Edit edit, Reader* r, FileParts* file) {
  switch (edit) {
    case Edit::set_number:
    case Edit::retype_key:
    case Edit::set_text:
    case Edit::rename_key:
    case Edit::drop_key:
    case Edit::double_key:
    case Edit::set_element:
    case Edit::resize_array: return edit_key(edit, r, file);
    case Edit::set_dim:
    case Edit::add_dim:
    case Edit::retype_tensor:
    case Edit::fill_data:
    case Edit::rename_tensor:
    case Edit::drop_tensor:
    case Edit::double_tensor:
    case Edit::swap_tensors: return edit_tensor(edit, r, file);
    case Edit::scale_everywhere: return scale_everywhere(r, file);
    case Edit::set_family: return set_family(r, file);
    case Edit::add_known_key: return add_known_key(r, file);
    case Edit::set_token: return set_token(r, file);
    case Edit::add_merge: return add_merge(r, file);
    case Edit::poke: {
      const auto at = r->number<uint32_t>();
      file->pokes.emplace_back(at, r->byte());
      return;
    }
    case Edit::cut: file->cut = r->number<uint32_t>() % (1u << 19); return;
    case Edit::claim:
      file->more_keys = interesting(r->byte(), 0);
      file->more_tensors = interesting(r->byte(), 0);
      file->version = r->byte() % 6;
      return;
    case Edit::set_alignment: set_key(file, "general.alignment", number(ValueType::u32), read_scalar(r, number(ValueType::u32))); return;
    case Edit::count: return;
  }
}

}  // namespace orrery::fuzz

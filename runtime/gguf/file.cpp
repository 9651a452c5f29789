// Opening: one file or all parts of a split model, mapped or read, into one table of keys and tensors.
//
// Read loading parses the header from its first megabytes and only then reads the data, so that a bad file is
// refused before gigabytes have been read; a mapping does the same by itself.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/gguf/impl.h"
#include "runtime/gguf/names.h"

namespace orrery::gguf {

namespace {

using ull = unsigned long long;  // for printf

constexpr uint64_t kFirstRead = uint64_t{1} << 20;
constexpr uint64_t kReadChunk = uint64_t{64} << 20;

Status read_range(const os::InputFile& file, uint64_t from, uint64_t to, std::byte* base, const Progress& progress) {
  for (uint64_t at = from; at < to;) {
    const uint64_t n = std::min(kReadChunk, to - at);
    ORRERY_TRY(file.read_at(at, Span<std::byte>(base + at, n)));
    at += n;
    if (progress && !progress(at, file.size())) return error(Code::cancelled, "reading the model was cancelled");
  }
  return ok_status();
}

void attach_data(Part* part) {
  for (Tensor& t : part->header.tensors) t.data = part->input.bytes.data() + t.offset;
}

Result<Part> open_mapped(const std::string& path) {
  Part part;
  ORRERY_ASSIGN(part.mapped, os::MappedFile::open(path));
  part.input = {{part.mapped.data(), part.mapped.size()}, part.mapped.size(), path};
  bool starved;
  ORRERY_ASSIGN(part.header, parse_header(part.input, &starved));
  return part;
}

Result<Part> open_read(const std::string& path, const OpenOptions& options) {
  Part part;
  ORRERY_ASSIGN(const os::InputFile file, os::InputFile::open(path));
  const uint64_t size = file.size();
  // Room for the whole file, of which the system gives only what is written to.
  ORRERY_ASSIGN(part.region, os::Region::allocate(size));
  std::byte* base = part.region.data();
  for (uint64_t have = 0, want = std::min(size, kFirstRead);; want = std::min(size, want * 4)) {
    ORRERY_TRY(read_range(file, have, want, base, options.progress));
    have = want;
    part.input = {{base, have}, size, path};
    bool starved;
    Result<Header> header = parse_header(part.input, &starved);
    if (!header.ok() && starved) continue;
    ORRERY_ASSIGN(part.header, std::move(header));
    if (options.header_only) return part;
    ORRERY_TRY(read_range(file, have, size, base, options.progress));
    part.input.bytes = {base, size};
    return part;
  }
}

Result<Part> open_part(const std::string& path, const OpenOptions& options) {
  ORRERY_ASSIGN(Part part,
                options.load == Load::map ? open_mapped(path) : open_read(path, options));
  if (!options.header_only) attach_data(&part);
  return part;
}

// What a part says about itself; a file without split keys is part 0 of 1.
struct Split {
  uint64_t number = 0, count = 1;
  bool has_n_tensors = false;
  uint64_t n_tensors = 0;
};

Status read_split_key(const Part& part, const char* key, bool* present, uint64_t* out) {
  const Value* value = part.header.find(key);
  *present = value != nullptr;
  if (value && (value->type() == ValueType::boolean || !value->as_u64(out)))
    return bad_file(
        part.input.name, part.offset_of_key(key),
        format("key '%s': found %s, expected an unsigned integer", key, describe(*value).c_str()));
  return ok_status();
}

Result<Split> read_split(const Part& part) {
  Split split;
  bool has_count, has_number;
  ORRERY_TRY(read_split_key(part, "split.count", &has_count, &split.count));
  ORRERY_TRY(read_split_key(part, "split.no", &has_number, &split.number));
  ORRERY_TRY(read_split_key(part, "split.tensors.count", &split.has_n_tensors, &split.n_tensors));
  if (split.count == 0) split.count = 1;  // some writers' way of saying "not split"
  if (split.count > kMaxParts)
    return bad_file(part.input.name, part.offset_of_key("split.count"),
                    format("key 'split.count': found %llu, expected at most %llu",
                           static_cast<ull>(split.count), static_cast<ull>(kMaxParts)));
  if (split.number >= split.count)
    return bad_file(part.input.name, part.offset_of_key("split.no"),
                    format("key 'split.no': found %llu, expected less than split.count, %llu",
                           static_cast<ull>(split.number), static_cast<ull>(split.count)));
  return split;
}

std::string split_suffix(uint64_t number, uint64_t count) {
  return format("-%05llu-of-%05llu.gguf", static_cast<ull>(number + 1), static_cast<ull>(count));
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Every part says which one it is, how many there are, and (the first at least) how many tensors there are in
// all.
Status check_split(const std::vector<Part>& parts) {
  uint64_t n_tensors = 0;
  for (const Part& part : parts) n_tensors += part.header.tensors.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    ORRERY_ASSIGN(const Split split, read_split(part));
    if (split.count != parts.size() || split.number != i)
      return bad_file(part.input.name, part.offset_of_key("split.no"),
                      format("key 'split.no': this is part %llu of %llu, expected part %llu of %llu (from 0)",
                             static_cast<ull>(split.number), static_cast<ull>(split.count),
                             static_cast<ull>(i), static_cast<ull>(parts.size())));
    if (parts.size() > 1 && i == 0 && !split.has_n_tensors)
      return bad_file(part.input.name, part.header.header_bytes,
                      "key 'split.tensors.count' is missing in the first part of a split model");
    if (split.has_n_tensors && split.n_tensors != n_tensors)
      return bad_file(
          part.input.name, part.offset_of_key("split.tensors.count"),
          format("key 'split.tensors.count': found %llu, but the parts together hold %llu tensors",
                 static_cast<ull>(split.n_tensors), static_cast<ull>(n_tensors)));
  }
  return ok_status();
}

}  // namespace

uint64_t Part::offset_of_key(std::string_view key) const {
  for (std::string_view k : header.keys)
    if (k == key) return offset_of(k);
  return 0;
}

// Parts, already checked one by one, into one table.
Status File::Impl::assemble() {
  ORRERY_TRY(check_split(parts));
  alignment = parts[0].header.alignment;
  for (uint32_t p = 0; p < parts.size(); ++p) {
    alignment = std::min(alignment, parts[p].header.alignment);
    file_bytes += parts[p].input.file_bytes;
    for (Tensor& t : parts[p].header.tensors) {
      t.part = p;
      tensors.push_back(t);
    }
  }
  tensor_order.resize(tensors.size());
  std::iota(tensor_order.begin(), tensor_order.end(), uint64_t{0});
  std::sort(tensor_order.begin(), tensor_order.end(), [&](uint64_t a, uint64_t b) {
    const int c = tensors[a].name.compare(tensors[b].name);
    return c != 0 ? c < 0 : a < b;
  });
  for (size_t i = 1; i < tensor_order.size(); ++i) {
    const Tensor &a = tensors[tensor_order[i - 1]], &b = tensors[tensor_order[i]];
    if (a.name != b.name) continue;
    const Part &first = parts[a.part], &second = parts[b.part];
    return bad_file(second.input.name, second.offset_of(b.name),
                    format("tensor '%s': occurs twice, first at byte %llu of %s", printable(b.name).c_str(),
                           static_cast<ull>(first.offset_of(a.name)), first.input.name.c_str()));
  }
  return ok_status();
}

File::File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

Result<File> File::open(const std::string& path, const OpenOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  ORRERY_ASSIGN(Part given, open_part(path, options));
  ORRERY_ASSIGN(const Split split, read_split(given));
  if (split.count == 1) {
    impl->parts.push_back(std::move(given));
  } else {
    const std::string suffix = split_suffix(split.number, split.count);
    if (!ends_with(path, suffix))
      return bad_file(
          path, given.offset_of_key("split.no"),
          format("key 'split.no': this is part %llu of %llu (from 0), expected a name that ends in %s",
                 static_cast<ull>(split.number), static_cast<ull>(split.count), suffix.c_str()));
    const std::string stem = path.substr(0, path.size() - suffix.size());
    for (uint64_t i = 0; i < split.count; ++i) {
      if (i == split.number) {
        impl->parts.push_back(std::move(given));
        continue;
      }
      ORRERY_ASSIGN(Part part, open_part(stem + split_suffix(i, split.count), options));
      impl->parts.push_back(std::move(part));
    }
  }
  ORRERY_TRY(impl->assemble());
  return File(std::move(impl));
}

Result<File> File::parse(Span<const std::byte> bytes, const std::string& name) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kMinAlignment != 0)
    return error(Code::invalid_argument,
                 "%s: the file's bytes start at an address that is not a multiple of %llu", name.c_str(),
                 static_cast<ull>(kMinAlignment));
  auto impl = std::make_unique<Impl>();
  impl->path = name;
  Part part;
  part.input = {bytes, bytes.size(), name};
  bool starved;
  ORRERY_ASSIGN(part.header, parse_header(part.input, &starved));
  ORRERY_ASSIGN(const Split split, read_split(part));
  if (split.count != 1)
    return bad_file(
        name, part.offset_of_key("split.count"),
        format("key 'split.count': this is part %llu of %llu (from 0); a split model is opened by its path",
               static_cast<ull>(split.number), static_cast<ull>(split.count)));
  attach_data(&part);
  impl->parts.push_back(std::move(part));
  ORRERY_TRY(impl->assemble());
  return File(std::move(impl));
}

const std::string& File::path() const { return impl_->path; }
uint32_t File::version() const { return impl_->parts[0].header.version; }
uint64_t File::alignment() const { return impl_->alignment; }
uint64_t File::file_bytes() const { return impl_->file_bytes; }
uint32_t File::n_parts() const { return static_cast<uint32_t>(impl_->parts.size()); }

uint64_t File::n_keys() const { return impl_->parts[0].header.keys.size(); }
std::string_view File::key(uint64_t i) const { return impl_->parts[0].header.keys[i]; }
Value File::value(uint64_t i) const { return impl_->parts[0].header.values[i]; }
const Value* File::find(std::string_view key) const { return impl_->parts[0].header.find(key); }

void File::let_go(const Tensor& tensor) const {
  for (const Part& part : impl_->parts) {
    const std::byte* begin = part.input.bytes.data();
    if (tensor.data < begin || tensor.data >= begin + part.input.bytes.size()) continue;
    part.mapped.let_go(static_cast<uint64_t>(tensor.data - begin), tensor.bytes);
    part.region.discard(static_cast<uint64_t>(tensor.data - begin), tensor.bytes);
  }
}

Span<const Tensor> File::tensors() const { return impl_->tensors; }
const Tensor* File::find_tensor(std::string_view name) const {
  const std::vector<uint64_t>& order = impl_->tensor_order;
  const auto it = std::lower_bound(order.begin(), order.end(), name, [&](uint64_t i, std::string_view n) {
    return impl_->tensors[i].name < n;
  });
  return it != order.end() && impl_->tensors[*it].name == name ? &impl_->tensors[*it] : nullptr;
}

Status File::wrong(std::string_view key, const Value& value, const char* expected) const {
  const Part& part = impl_->parts[0];
  return bad_file(
      part.input.name, part.offset_of_key(key),
      format("key '%s': found %s, expected %s", printable(key).c_str(), describe(value).c_str(), expected));
}

Result<uint64_t> File::get_u64(std::string_view key, uint64_t fallback) const {
  const Value* value = find(key);
  if (!value) return fallback;
  uint64_t out;
  if (value->type() == ValueType::boolean || !value->as_u64(&out))
    return wrong(key, *value, "an integer that is not negative");
  return out;
}

Result<double> File::get_f64(std::string_view key, double fallback) const {
  const Value* value = find(key);
  if (!value) return fallback;
  double out;
  if (!value->as_f64(&out) || !std::isfinite(out)) return wrong(key, *value, "a finite number");
  return out;
}

Result<bool> File::get_bool(std::string_view key, bool fallback) const {
  const Value* value = find(key);
  if (!value) return fallback;
  bool out;
  if (!value->as_bool(&out)) return wrong(key, *value, "a bool");
  return out;
}

Result<std::string_view> File::get_string(std::string_view key, std::string_view fallback) const {
  const Value* value = find(key);
  if (!value) return fallback;
  std::string_view out;
  if (!value->as_string(&out)) return wrong(key, *value, "a string");
  return out;
}

namespace {
Status missing(const File& file, std::string_view key, const char* expected) {
  return error(Code::bad_model, "%s: key '%s' is missing, expected %s", file.path().c_str(),
               printable(key).c_str(), expected);
}
}  // namespace

Result<uint64_t> File::required_u64(std::string_view key) const {
  if (!find(key)) return missing(*this, key, "an integer that is not negative");
  return get_u64(key, 0);
}

Result<std::string_view> File::required_string(std::string_view key) const {
  if (!find(key)) return missing(*this, key, "a string");
  return get_string(key, {});
}

}  // namespace orrery::gguf

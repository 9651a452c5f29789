// Opens one file, or all parts of a split model, by mapping or reading, into one table of keys and tensors.
//
// All headers come first, so a bad file is refused before gigabytes are read. The data follows: either a mapping of
// each part, or the bytes of the tensors alone, so holes between tensors cost no memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/base/checked.h"
#include "runtime/gguf/impl.h"
#include "runtime/gguf/names.h"

namespace orrery::gguf {

namespace {

using ull = unsigned long long;  // for printf

constexpr uint64_t kReadChunk = uint64_t{4} << 20;  // between two calls of progress
constexpr uint64_t kMostPadding = 4096;             // a region begins at a page boundary: more padding aligns nothing

Status ask(const Progress& progress, uint64_t done, uint64_t total) {
  return !progress || progress(done, total) ? ok_status() : error(Code::cancelled, "reading the model was cancelled");
}

os::MemoryLimits memory_for(const OpenOptions& options) {
  if (options.memory_bytes == 0) return os::memory_limits();
  return {options.memory_bytes, options.memory_bytes, "as the caller has it"};
}

// One part up to its data. `before`: the bytes of the parts that were opened before it.
Result<Part> open_part(os::InputFile source, const OpenOptions& options, const os::MemoryLimits& memory, uint64_t before) {
  Part part;
  part.name = source.path();
  part.source = std::move(source);
  part.file_bytes = part.source.size();
  Input in;
  in.name = part.name;
  in.file_bytes = part.file_bytes;
  in.read = [&](uint64_t offset, Span<std::byte> out) { return part.source.read_at(offset, out); };
  in.between_pieces = [&](uint64_t done) { return ask(options.progress, options.load == Load::read ? done : 0, before + part.file_bytes); };
  in.memory_bytes = memory.available_bytes;
  in.memory_bound_by = memory.bound_by;
  ORRERY_ASSIGN(part.header, parse_header(in));
  if (!options.header_only && options.load == Load::map) {
    ORRERY_ASSIGN(part.mapped, os::MappedFile::map(part.source));
    part.data = {part.mapped.data(), part.mapped.size()};
  }
  if (options.header_only || options.load == Load::map) part.source = {};
  return part;
}

Result<Part> open_part(const std::string& path, const OpenOptions& options, const os::MemoryLimits& memory, uint64_t before) {
  ORRERY_ASSIGN(os::InputFile source, os::InputFile::open(path));
  return open_part(std::move(source), options, memory, before);
}

// What a part says about itself; a file without split keys is part 0 of 1.
struct Split {
  uint64_t number = 0, count = 1;
  bool has_n_tensors = false;
  uint64_t n_tensors = 0;
};

Status read_split_key(const Part& part, const char* key, bool* present, uint64_t* out) {
  const Value* value = part.header->find(key);
  *present = value != nullptr;
  if (value && (value->type() == ValueType::boolean || !value->as_u64(out)))
    return bad_file(part.name, part.header->offset_of_key(key),
                    format("key '%s': found %s, expected an unsigned integer", key, describe(*value).c_str()));
  return ok_status();
}

Result<Split> read_split(const Part& part) {
  Split split;
  bool has_count, has_number;
  ORRERY_TRY(read_split_key(part, "split.count", &has_count, &split.count));
  ORRERY_TRY(read_split_key(part, "split.no", &has_number, &split.number));
  ORRERY_TRY(read_split_key(part, "split.tensors.count", &split.has_n_tensors, &split.n_tensors));
  if (split.count == 0) split.count = 1;  // some writers mean "not split" by 0
  if (split.count > kMaxParts)
    return bad_file(
        part.name, part.header->offset_of_key("split.count"),
        format("key 'split.count': found %llu, expected at most %llu", static_cast<ull>(split.count), static_cast<ull>(kMaxParts)));
  if (split.number >= split.count)
    return bad_file(part.name, part.header->offset_of_key("split.no"),
                    format("key 'split.no': found %llu, expected less than split.count, %llu", static_cast<ull>(split.number),
                           static_cast<ull>(split.count)));
  return split;
}

std::string split_suffix(uint64_t number, uint64_t count) {
  return format("-%05llu-of-%05llu.gguf", static_cast<ull>(number + 1), static_cast<ull>(count));
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Metadata is read from the first part. A later part may repeat keys, but only with the same values; different values
// would never be read.
Status check_later_keys(const Part& first, const Part& part) {
  for (uint64_t i = 0; i < part.header->n_keys(); ++i) {
    const std::string_view key = part.header->key(i);
    if (key.substr(0, 6) == "split." || key == "general.alignment") continue;
    const uint64_t there = first.header->index_of(key);
    const bool absent = there == first.header->n_keys();
    if (!absent && first.header->key_bytes(there) == part.header->key_bytes(i)) continue;
    return bad_file(part.name, part.header->offset_of(key),
                    format("key '%s': is %s in this part, %s in the first", printable(key).c_str(),
                           describe(part.header->values[i]).c_str(), absent ? "and absent" : "something else"));
  }
  return ok_status();
}

// Every part states its number and the number of parts. At least the first part states the number of tensors in all.
Status check_split(const std::vector<Part>& parts) {
  uint64_t n_tensors = 0;
  for (const Part& part : parts) n_tensors += part.header->tensors.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    ORRERY_ASSIGN(const Split split, read_split(part));
    if (split.count != parts.size() || split.number != i)
      return bad_file(
          part.name, part.header->offset_of_key("split.no"),
          format("key 'split.no': this is part %llu of %llu, expected part %llu of %llu (from 0)", static_cast<ull>(split.number),
                 static_cast<ull>(split.count), static_cast<ull>(i), static_cast<ull>(parts.size())));
    if (parts.size() > 1 && i == 0 && !split.has_n_tensors)
      return bad_file(part.name, part.header->header_bytes, "key 'split.tensors.count' is missing in the first part of a split model");
    if (split.has_n_tensors && split.n_tensors != n_tensors)
      return bad_file(part.name, part.header->offset_of_key("split.tensors.count"),
                      format("key 'split.tensors.count': found %llu, but the parts together hold %llu tensors",
                             static_cast<ull>(split.n_tensors), static_cast<ull>(n_tensors)));
    if (i > 0) ORRERY_TRY(check_later_keys(parts[0], part));
  }
  return ok_status();
}

}  // namespace

// Combines the parts, each already checked, into one table.
Status File::Impl::assemble() {
  ORRERY_TRY(check_split(parts));
  alignment = parts[0].header->alignment;
  uint64_t n_tensors = 0;
  for (const Part& part : parts) n_tensors += part.header->tensors.size();
  if (n_tensors > kMaxTensors)
    return error(Code::bad_model, "%s: its parts hold %llu tensors, expected at most %llu", path.c_str(), static_cast<ull>(n_tensors),
                 static_cast<ull>(kMaxTensors));
  for (uint32_t p = 0; p < parts.size(); ++p) {
    alignment = std::min(alignment, parts[p].header->alignment);
    file_bytes += parts[p].file_bytes;
    for (Tensor& t : parts[p].header->tensors) t.part = p;
    if (p == 0) {
      tensors = std::move(parts[p].header->tensors);
    } else {
      tensors.insert(tensors.end(), parts[p].header->tensors.begin(), parts[p].header->tensors.end());
    }
    parts[p].header->tensors = {};
  }
  tensor_order.resize(tensors.size());
  std::iota(tensor_order.begin(), tensor_order.end(), uint32_t{0});
  std::sort(tensor_order.begin(), tensor_order.end(), [&](uint32_t a, uint32_t b) {
    const int c = tensors[a].name.compare(tensors[b].name);
    return c != 0 ? c < 0 : a < b;
  });
  for (size_t i = 1; i < tensor_order.size(); ++i) {
    const Tensor &a = tensors[tensor_order[i - 1]], &b = tensors[tensor_order[i]];
    if (a.name != b.name) continue;
    const Part &first = parts[a.part], &second = parts[b.part];
    return bad_file(second.name, second.header->offset_of(b.name),
                    format("tensor '%s': occurs twice, first at byte %llu of %s", printable(b.name).c_str(),
                           static_cast<ull>(first.header->offset_of(a.name)), first.name.c_str()));
  }
  return ok_status();
}

// Reads the tensors of all parts into our own memory, in the order of their data, without the gaps between them.
Status File::Impl::read_tensors(const os::MemoryLimits& memory, const Progress& progress) {
  const uint64_t padding = std::min(alignment, kMostPadding);
  std::vector<uint64_t> bytes(parts.size(), 0);  // per part
  uint64_t all = 0;
  for (const Tensor& t : tensors) {
    bytes[t.part] += align_up(t.bytes, padding);
    all += align_up(t.bytes, padding);
  }
  if (all > memory.available_bytes)
    return memory_error(Code::out_of_host_memory, all, memory.available_bytes,
                        "%s: reading its tensors takes %llu bytes of memory, %llu are free (%s)", path.c_str(), static_cast<ull>(all),
                        static_cast<ull>(memory.available_bytes), memory.bound_by);
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), uint32_t{0});
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(tensors[a].part, tensors[a].offset) < std::pair(tensors[b].part, tensors[b].offset);
  });
  uint64_t before = 0;  // bytes of earlier parts
  size_t i = 0;
  for (size_t p = 0; p < parts.size(); before += parts[p].file_bytes, ++p) {
    Part& part = parts[p];
    ORRERY_ASSIGN(part.region, os::Region::allocate(bytes[p]));
    part.data = {part.region.data(), part.region.size()};
    std::byte* next = part.region.data();
    for (; i < order.size() && tensors[order[i]].part == p; ++i) {
      Tensor& t = tensors[order[i]];
      t.data = next;
      for (uint64_t at = 0; at < t.bytes;) {
        const uint64_t n = std::min(kReadChunk, t.bytes - at);
        if (part.memory.empty()) ORRERY_TRY(part.source.read_at(t.offset + at, {next + at, static_cast<size_t>(n)}));
        else std::memcpy(next + at, part.memory.data() + t.offset + at, static_cast<size_t>(n));
        at += n;
        ORRERY_TRY(ask(progress, before + t.offset + at, file_bytes));
      }
      next += align_up(t.bytes, padding);
    }
    part.source = {};
  }
  return ok_status();
}

File::File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

Result<File> File::open(const std::string& path, const OpenOptions& given_options) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  OpenOptions options = given_options;
  uint64_t most = 0;  // the headers of all parts come before the data of the first part
  if (options.progress)
    options.progress = [&](uint64_t done, uint64_t total) { return given_options.progress(most = std::max(most, done), total); };
  os::MemoryLimits memory = memory_for(options);
  const auto take = [&](const Part& part) {  // subtracts the upper bound of the header's memory
    memory.available_bytes -= std::min(memory.available_bytes, HeaderBytes::kCost * part.header->header_bytes);
  };
  ORRERY_ASSIGN(Part given, open_part(path, options, memory, 0));
  take(given);
  ORRERY_ASSIGN(const Split split, read_split(given));
  if (split.count == 1) {
    impl->parts.push_back(std::move(given));
  } else {
    const std::string suffix = split_suffix(split.number, split.count);
    if (!ends_with(path, suffix))
      return bad_file(path, given.header->offset_of_key("split.no"),
                      format("key 'split.no': this is part %llu of %llu (from 0), expected a name that ends in %s",
                             static_cast<ull>(split.number), static_cast<ull>(split.count), suffix.c_str()));
    const std::string stem = path.substr(0, path.size() - suffix.size());
    uint64_t before = given.file_bytes;
    for (uint64_t i = 0; i < split.count; ++i) {
      if (i == split.number) {
        impl->parts.push_back(std::move(given));
        continue;
      }
      ORRERY_ASSIGN(Part part, open_part(stem + split_suffix(i, split.count), options, memory, before));
      before += part.file_bytes;
      take(part);
      impl->parts.push_back(std::move(part));
    }
  }
  return open_one(std::move(impl), options, memory);
}

// From the parts' headers to a whole file.
Result<File> File::open_one(std::unique_ptr<Impl> impl, const OpenOptions& options, const os::MemoryLimits& memory) {
  ORRERY_TRY(impl->assemble());
  File file(std::move(impl));
  if (options.accept) ORRERY_TRY(options.accept(file));
  if (!options.header_only && options.load == Load::read) {
    ORRERY_TRY(file.impl_->read_tensors(memory, options.progress));
  } else if (!options.header_only) {
    for (Tensor& t : file.impl_->tensors) t.data = file.impl_->parts[t.part].data.data() + t.offset;
  }
  return file;
}

namespace {

// A file that has no name from which those of its other parts follow.
Status check_whole(const Part& part) {
  ORRERY_ASSIGN(const Split split, read_split(part));
  if (split.count == 1) return ok_status();
  return bad_file(part.name, part.header->offset_of_key("split.count"),
                  format("key 'split.count': this is part %llu of %llu (from 0); a split model is opened by its path",
                         static_cast<ull>(split.number), static_cast<ull>(split.count)));
}

// A file in memory, up to its data.
Result<Part> parse_part(Span<const std::byte> bytes, const std::string& name, const os::MemoryLimits& memory) {
  if ((bytes.data() == nullptr && !bytes.empty()) || reinterpret_cast<uintptr_t>(bytes.data()) % kMinAlignment != 0)
    return option_error(Code::invalid_argument, "memory", "%s: the file's bytes start at an address that is not a multiple of %llu",
                        name.c_str(), static_cast<ull>(kMinAlignment));
  Part part;
  part.name = name;
  part.file_bytes = bytes.size();
  part.data = bytes;
  Input in;
  in.name = name;
  in.file_bytes = bytes.size();
  in.read = [&](uint64_t offset, Span<std::byte> out) {
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return ok_status();
  };
  in.memory_bytes = memory.available_bytes;
  in.memory_bound_by = memory.bound_by;
  ORRERY_ASSIGN(part.header, parse_header(in));
  ORRERY_TRY(check_whole(part));
  return part;
}

}  // namespace

Status File::check_mappable(uint64_t offset) {
  if (offset % kMinAlignment == 0) return ok_status();
  return option_error(Code::invalid_argument, "fd_offset",
                      "the file begins at byte %llu, expected a multiple of %llu; a file that is read may begin anywhere",
                      static_cast<ull>(offset), static_cast<ull>(kMinAlignment));
}

Result<File> File::open_descriptor(int32_t descriptor, const OpenOptions& options, uint64_t offset, uint64_t bytes) {
  if (options.load == Load::map && !options.header_only) ORRERY_TRY(check_mappable(offset));
  ORRERY_ASSIGN(os::InputFile source, os::InputFile::of_descriptor(descriptor));
  ORRERY_TRY(source.narrow(offset, bytes));
  const os::MemoryLimits memory = memory_for(options);
  auto impl = std::make_unique<Impl>();
  impl->path = source.path();
  ORRERY_ASSIGN(Part part, open_part(std::move(source), options, memory, 0));
  ORRERY_TRY(check_whole(part));
  impl->parts.push_back(std::move(part));
  return open_one(std::move(impl), options, memory);
}

Result<File> File::open_memory(Span<const std::byte> bytes, const std::string& name, const OpenOptions& options) {
  const os::MemoryLimits memory = memory_for(options);
  auto impl = std::make_unique<Impl>();
  impl->path = name;
  ORRERY_ASSIGN(Part part, parse_part(bytes, name, memory));
  part.memory = bytes;
  impl->parts.push_back(std::move(part));
  return open_one(std::move(impl), options, memory);
}

Result<File> File::parse(Span<const std::byte> bytes, const std::string& name) {
  auto impl = std::make_unique<Impl>();
  impl->path = name;
  ORRERY_ASSIGN(Part part, parse_part(bytes, name, {}));
  impl->parts.push_back(std::move(part));
  ORRERY_TRY(impl->assemble());
  for (Tensor& t : impl->tensors) t.data = bytes.data() + t.offset;
  return File(std::move(impl));
}

const std::string& File::path() const { return impl_->path; }
uint32_t File::version() const { return impl_->parts[0].header->version; }
uint64_t File::alignment() const { return impl_->alignment; }
uint64_t File::file_bytes() const { return impl_->file_bytes; }
uint32_t File::n_parts() const { return static_cast<uint32_t>(impl_->parts.size()); }

uint64_t File::n_keys() const { return impl_->parts[0].header->n_keys(); }
std::string_view File::key(uint64_t i) const { return impl_->parts[0].header->key(i); }
Value File::value(uint64_t i) const { return impl_->parts[0].header->values[i]; }
const Value* File::find(std::string_view key) const { return impl_->parts[0].header->find(key); }

void File::release_pages(const Tensor& tensor) const {
  const Part& part = impl_->parts[tensor.part];
  if (tensor.data == nullptr) return;
  const auto offset = static_cast<uint64_t>(tensor.data - part.data.data());
  part.mapped.release_pages(offset, tensor.bytes);
  part.region.discard(offset, tensor.bytes);
}

bool File::is_mapped() const { return impl_->parts[0].mapped.size() > 0; }
void File::prefetch(const Tensor& tensor, uint64_t from, uint64_t bytes) const {
  if (tensor.data != nullptr) impl_->parts[tensor.part].mapped.prefetch(tensor.offset + from, bytes);
}

Span<const Tensor> File::tensors() const { return impl_->tensors; }
const Tensor* File::find_tensor(std::string_view name) const {
  const std::vector<uint32_t>& order = impl_->tensor_order;
  const auto it =
      std::lower_bound(order.begin(), order.end(), name, [&](uint32_t i, std::string_view n) { return impl_->tensors[i].name < n; });
  return it != order.end() && impl_->tensors[*it].name == name ? &impl_->tensors[*it] : nullptr;
}

Status File::wrong(std::string_view key, const Value& value, const char* expected) const {
  const Part& part = impl_->parts[0];
  return bad_file(part.name, part.header->offset_of_key(key),
                  format("key '%s': found %s, expected %s", printable(key).c_str(), describe(value).c_str(), expected));
}

Result<uint64_t> File::get_u64(std::string_view key, uint64_t fallback) const {
  const Value* value = find(key);
  if (!value) return fallback;
  uint64_t out;
  if (value->type() == ValueType::boolean || !value->as_u64(&out)) return wrong(key, *value, "an integer that is not negative");
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
  return error(Code::bad_model, "%s: key '%s' is missing, expected %s", file.path().c_str(), printable(key).c_str(), expected);
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

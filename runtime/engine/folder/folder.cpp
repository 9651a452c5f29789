#include "runtime/engine/folder/folder.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runtime/base/hash.h"
#include "runtime/os/folder/folder.h"
#include "runtime/text/json/json.h"
#include "runtime/text/unicode/utf8.h"

namespace orrery::engine {

namespace {

const char* const kSuffix = ".orrery";

std::string name_of(const os::FolderFile& file) { return file.name.substr(0, file.name.size() - std::char_traits<char>::length(kSuffix)); }

std::string hex(const EntryHash& hash) {
  std::string out;
  for (const uint8_t byte : hash) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    out += digits;
  }
  return out;
}

bool is_unnamed(const std::string& name) { return !name.empty() && name[0] == '~'; }

// The last used first; those of one time by name.
void sort_by_use(std::vector<os::FolderFile>* files) {
  std::sort(files->begin(), files->end(), [](const os::FolderFile& a, const os::FolderFile& b) {
    return a.changed_ns != b.changed_ns ? a.changed_ns > b.changed_ns : a.name < b.name;
  });
}

}  // namespace

Result<std::shared_ptr<Folder>> Folder::open(const std::string& path, uint64_t max_bytes, const std::string& program) {
  ORRERY_TRY(os::make_folder(path));
  ORRERY_TRY(os::list_folder(path, kSuffix).take_status());  // whether it can be read
  return std::shared_ptr<Folder>(new Folder(path, max_bytes, program));
}

EntryHash Folder::program(const char* backend, const char* instruction_set) const {
  const std::string all = program_ + '\n' + backend + '\n' + instruction_set;
  return entry_hash(all.data(), all.size());
}

std::string Folder::path_of(const std::string& name) const { return os::path_in(path_, name + kSuffix); }

Status Folder::check_name(const std::string& name, bool writes) {
  const auto refuse = [](const std::string& why) { return option_error(Code::invalid_argument, "name", "name: %s", why.c_str()); };
  if (name.empty() || name.size() > kMostNameBytes)
    return refuse("has " + std::to_string(name.size()) + " bytes, expected 1 to " + std::to_string(kMostNameBytes));
  if (!text::utf8_valid(name)) return refuse("is not UTF-8");
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || std::string("/\\:*?\"<>|").find(c) != std::string::npos)
      return refuse("has the byte " + std::to_string(static_cast<unsigned char>(c)) + ", which is in no name of an entry");
  if (name[0] == '.' || name[0] == ' ') return refuse("begins with '.' or ' '");
  if (writes && is_unnamed(name)) return refuse("begins with '~', as unnamed entries alone do");
  return ok_status();
}

std::string Folder::unnamed(const EntryKey& key, Span<const int32_t> tokens) {
  Hash128 hash;
  for (const EntryHash* part : {&key.fingerprint, &key.formats, &key.program}) hash.update(part->data(), part->size());
  hash.update(tokens.data(), tokens.size() * sizeof(int32_t));
  EntryHash out;
  hash.digest(out.data());
  return "~" + hex(out);
}

std::vector<Folder::Found> Folder::find(const EntryKey& key, Span<const int32_t> tokens, uint32_t from) const {
  std::vector<Found> out;
  auto files = os::list_folder(path_, kSuffix);
  if (!files.ok()) return out;
  sort_by_use(&*files);
  const EntryWanted wanted{key, tokens};
  for (const os::FolderFile& file : *files) {
    if (!file.regular) continue;
    const auto opened = os::InputFile::open(os::path_in(path_, file.name));
    if (!opened.ok()) continue;
    auto entry = read_entry(opened.value(), &wanted);
    if (!entry.ok()) continue;
    const uint32_t n_pages = entry->usable_pages(entry->common_pages(tokens));
    if (n_pages * kEntryTokens <= from) continue;
    const auto place =
        std::find_if(out.begin(), out.end(), [n_pages](const Found& found) { return found.n_pages < n_pages; });  // equals: by use
    out.insert(place, Found{name_of(file), std::move(*entry), n_pages});
    if (out.size() > kMostFound) out.pop_back();
  }
  return out;
}

Result<os::InputFile> Folder::open_entry(const std::string& name) const {
  ORRERY_TRY(check_name(name, false));
  return os::InputFile::open(path_of(name));
}

void Folder::touch(const std::string& name) const { (void)os::touch_file(path_of(name)); }  // a folder that is only read keeps its times

Status Folder::make_room(const std::string& name, uint64_t bytes) const {
  if (max_bytes_ == 0) return ok_status();
  ORRERY_ASSIGN(std::vector<os::FolderFile> files, os::list_folder(path_, kSuffix));
  sort_by_use(&files);
  const std::string own = name + kSuffix;
  uint64_t total = bytes;
  for (const os::FolderFile& file : files)
    if (file.regular && file.name != own) total += file.bytes;
  Status first = ok_status();
  for (auto file = files.rbegin(); file != files.rend() && total > max_bytes_; ++file) {
    if (!file->regular || file->name == own) continue;
    Status removed = os::remove_file(os::path_in(path_, file->name));
    if (removed.ok()) total -= file->bytes;
    else if (first.ok()) first = std::move(removed);
  }
  return total <= max_bytes_ ? ok_status() : std::move(first);
}

Status Folder::save(const std::string& name, uint64_t bytes, const std::function<Status(const Sink&)>& write) const {
  if (max_bytes_ > 0 && bytes > max_bytes_)
    return memory_error(Code::invalid_argument, bytes, max_bytes_, "%s: takes %llu bytes, the folder may have %llu", path_of(name).c_str(),
                        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(max_bytes_));
  ORRERY_ASSIGN(const std::vector<os::FolderFile> files, os::list_folder(path_, kSuffix));
  for (const os::FolderFile& file : files)
    if (file.name == name + kSuffix && !file.regular) return error(Code::io, "%s: is no regular file", path_of(name).c_str());
  ORRERY_ASSIGN(os::AtomicFile file, os::AtomicFile::create(path_of(name)));
  os::remove_leftovers(path_);
  ORRERY_TRY(make_room(name, bytes));
  ORRERY_TRY(write([&](Span<const std::byte> piece) { return file.write(piece); }));
  ORRERY_TRY(file.commit());
  touch(name);
  // Other processes may have saved meanwhile. What cannot be removed now is tried again by the next entry.
  (void)make_room(name, bytes);
  return ok_status();
}

void Folder::replace_shorter(const std::string& name, const Entry& entry) const {
  const auto files = os::list_folder(path_, kSuffix);
  if (!files.ok() || entry.tokens.empty()) return;
  const EntryWanted wanted{entry.key, entry.tokens};
  for (const os::FolderFile& file : files.value()) {
    const std::string other = name_of(file);
    if (!file.regular || !is_unnamed(other) || other == name) continue;
    const auto opened = os::InputFile::open(os::path_in(path_, file.name));
    if (!opened.ok()) continue;
    const auto shorter = read_entry(opened.value(), &wanted);
    if (!shorter.ok()) continue;
    const uint32_t n = shorter.value().n_pages();
    if (entry.common_pages(shorter.value().tokens) == n && entry.usable_pages(n) >= shorter.value().usable_pages(n))
      (void)os::remove_file(os::path_in(path_, file.name));
  }
}

Status Folder::remove(const std::string& name) const {
  ORRERY_TRY(check_name(name, false));
  ORRERY_TRY(os::InputFile::open(path_of(name)).take_status());
  return os::remove_file(path_of(name));
}

Result<std::string> Folder::list() const {
  ORRERY_ASSIGN(std::vector<os::FolderFile> files, os::list_folder(path_, kSuffix));
  sort_by_use(&files);
  std::vector<text::Value> out;
  for (const os::FolderFile& file : files) {
    if (!check_name(name_of(file), false).ok()) continue;
    text::Map item;
    const auto set = [&item](const char* key, uint64_t value) { item.set(key, text::Value::integer(static_cast<int64_t>(value))); };
    item.set("name", text::Value::string(name_of(file)));
    set("bytes", file.bytes);
    set("used", static_cast<uint64_t>(std::max<int64_t>(file.changed_ns, 0) / 1'000'000'000));
    const auto opened = os::InputFile::open(os::path_in(path_, file.name));
    const auto entry = opened.ok() ? read_entry(opened.value()) : Result<Entry>(Status(opened.status().detail()));
    if (entry.ok()) {
      set("tokens", entry.value().n_tokens);
      set("shared_tokens", entry.value().tokens.size());
      item.set("model", text::Value::string(hex(entry.value().key.fingerprint)));
    } else {
      const std::string why = entry.status().message();  // has the path, which may be any bytes
      item.set("error", text::Value::string(text::utf8_valid(why) ? why : "cannot be read as an entry"));
    }
    out.push_back(text::Value::map(std::move(item)));
  }
  return text::dump_json(text::Value::list(std::move(out)));
}

}  // namespace orrery::engine

// See store.h.
#include "eval/store.h"

#include <cerrno>
#include <cstring>
#include <string_view>

#include "system/failure.h"
#include "system/files.h"
#include "system/write_file.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

[[noreturn]] void fail(const char* verb, const std::string& path) {
  throw Failure(kExitFailure, path + ": cannot " + verb + ": " + std::strerror(errno));
}

}  // namespace

EvalStore::EvalStore(const std::string& path) : path_(path) {
  if (is_stream(path)) throw Failure(kExitFailure, path + ": cannot keep results: not a regular file");
  size_t whole = 0;  // bytes up to the last newline
  if (file_kind(path) != FileKind::none) {
    const std::string content = read_file(path);
    size_t end;
    for (; (end = content.find('\n', whole)) != std::string::npos; whole = end + 1) {
      try {
        Json line = parse_json(content.substr(whole, end - whole), path);
        records_[line.at("key").get<std::string>()] = line.at("record");
      } catch (const Failure&) {
      } catch (const Json::exception&) {
      }
    }
  }
  fd_ = open_file(path, Access::append);
  if (fd_ < 0) fail("open", path);
  if (!truncate_file(fd_, whole)) fail("write", path);
}

EvalStore::~EvalStore() {
  if (fd_ >= 0) close_file(fd_);
}

const Json* EvalStore::find(const std::string& key) const {
  const auto it = records_.find(key);
  return it == records_.end() ? nullptr : &it->second;
}

void EvalStore::add(const std::string& key, const Json& record) {
  records_[key] = record;
  if (fd_ < 0) return;
  if (!write_all(fd_, dump_json({{"key", key}, {"record", record}}, -1) + "\n")) fail("write", path_);
}

void EvalStore::remove_file() {
  if (fd_ < 0) return;
  close_file(fd_);
  fd_ = -1;
  tool::remove_file(path_);
}

void make_folder(const std::string& path) {
  if (!make_one_folder(path, false) && errno != EEXIST) fail("make", path);
  if (!can_write_in(path)) fail("write to", path);
}

std::string digest_of(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return format("%016llx", static_cast<unsigned long long>(h));
}

}  // namespace orrery::tool

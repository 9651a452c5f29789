// See store.h.
#include "eval/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "terminal/failure.h"
#include "terminal/output.h"
#include "terminal/write_file.h"

namespace orrery::tool {
namespace {

[[noreturn]] void fail(const char* verb, const std::string& path) {
  throw Failure(kExitFailure, path + ": cannot " + verb + ": " + std::strerror(errno));
}

void write_whole(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      fail("write", path);
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

EvalStore::EvalStore(const std::string& path) : path_(path) {
  if (is_stream(path)) throw Failure(kExitFailure, path + ": cannot keep results: not a regular file");
  size_t whole = 0;  // bytes up to the last newline
  if (access(path.c_str(), F_OK) == 0) {
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
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("open", path);
  if (ftruncate(fd_, static_cast<off_t>(whole)) != 0) fail("write", path);
}

EvalStore::~EvalStore() {
  if (fd_ >= 0) close(fd_);
}

const Json* EvalStore::find(const std::string& key) const {
  const auto it = records_.find(key);
  return it == records_.end() ? nullptr : &it->second;
}

void EvalStore::add(const std::string& key, const Json& record) {
  records_[key] = record;
  if (fd_ < 0) return;
  write_whole(fd_, dump_json({{"key", key}, {"record", record}}, -1) + "\n", path_);
}

void EvalStore::remove_file() {
  if (fd_ < 0) return;
  close(fd_);
  fd_ = -1;
  unlink(path_.c_str());
}

void make_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) fail("make", path);
  if (access((path + "/.").c_str(), W_OK | X_OK) != 0) fail("write to", path);
}

std::string digest_of(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return format("%016llx", static_cast<unsigned long long>(h));
}

}  // namespace orrery::tool

// See history.h.
#include "terminal/history.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "system/failure.h"
#include "system/files.h"
#include "system/process.h"
#include "system/write_file.h"
#include "terminal/characters.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

constexpr size_t kMostMessages = 1000;
constexpr size_t kLongestMessage = 64 << 10;  // a longer one is a document: it is not worth a search
constexpr const char* kHeader = "_HiStOrY_V2_\n";

// Makes the folders above `path`, private to the user.
void make_folders(const std::string& path) {
  const std::string folder = folder_of(path);
  if (folder.size() < 2 || folder.size() == path.size() || file_kind(folder) == FileKind::folder) return;
  make_folders(folder.substr(0, folder.size() - 1));
  make_one_folder(folder, true);  // an error shows when the file is written
}

std::string encoded(const std::string& message) {
  std::string line;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x20 && byte < 0x7f && c != '\\') {
      line += c;
    } else {
      line += format("\\%03o", byte);
    }
  }
  return line + "\n";
}

std::string decoded(const std::string& line) {
  std::string message;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto octal = [&](size_t at) { return at < line.size() && line[at] >= '0' && line[at] <= '7'; };
    if (line[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      message += static_cast<char>((line[i + 1] - '0') * 64 + (line[i + 2] - '0') * 8 + (line[i + 3] - '0'));
      i += 3;
    } else {
      message += line[i];
    }
  }
  return well_formed(message);
}

}  // namespace

std::string History::default_path() {
  const std::string folder = state_folder();
  return folder.empty() ? "" : folder + "/orrery/history";
}

History::History(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  make_folders(path_);
  const FileKind kind = file_kind(path_);
  if (kind == FileKind::none) return;
  std::string content;
  try {
    if (kind != FileKind::regular) throw Failure(kExitFailure, "");
    content = read_file(path_);
  } catch (const Interrupted&) {
    throw;
  } catch (const Failure&) {
    note(path_ + ": cannot read the history; this conversation's messages are not added");
    path_.clear();
    return;
  }
  for (size_t at = 0; at < content.size();) {
    const size_t end = std::min(content.find('\n', at), content.size());
    const std::string line = content.substr(at, end - at);
    at = end + 1;
    if (line + "\n" == kHeader || line.empty()) continue;
    std::string message = decoded(line);
    if (message.find('\0') == std::string::npos) messages_.push_back(std::move(message));
  }
  if (messages_.size() <= kMostMessages) return;
  const size_t before = messages_.size();
  messages_.erase(messages_.begin(), messages_.end() - static_cast<std::ptrdiff_t>(kMostMessages));
  if (before < 2 * kMostMessages) return;  // the file is rewritten only now and then
  std::string shorter = kHeader;
  for (const std::string& message : messages_) shorter += encoded(message);
  try {
    write_file(path_, shorter);
  } catch (const Failure&) {  // adding reports it
  }
}

void History::add(const std::string& message) {
  if (message.empty() || message.size() > kLongestMessage) return;
  if (!messages_.empty() && messages_.back() == message) return;
  messages_.push_back(message);
  if (path_.empty()) return;
  const int fd = open_file(path_, Access::append_private);
  const int64_t bytes = fd < 0 ? -1 : file_bytes(fd);
  const bool written = bytes >= 0 && write_all(fd, (bytes == 0 ? std::string(kHeader) : std::string()) + encoded(message));
  const int error = errno;
  if (fd >= 0) close_file(fd);
  if (written) return;
  note(path_ + ": cannot write the history: " + std::strerror(error));
  path_.clear();
}

}  // namespace orrery::tool

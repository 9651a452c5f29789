// The messages of earlier conversations, kept in a file: one line each, in the form that libedit reads and writes
// (_HiStOrY_V2_, other bytes as \ooo), so that a file of an earlier version goes on. A message is added as it is sent, so two
// conversations at once lose nothing.
#pragma once

#include <string>
#include <vector>

namespace orrery::tool {

class History {
 public:
  // `path` "": nothing is kept. A file that cannot be read or written is reported once, then left alone.
  explicit History(std::string path);
  void add(const std::string& message);
  const std::vector<std::string>& messages() const { return messages_; }  // the oldest first

  // orrery/history in state_folder(); "" if there is no such folder.
  static std::string default_path();

 private:
  std::string path_;
  std::vector<std::string> messages_;
};

}  // namespace orrery::tool

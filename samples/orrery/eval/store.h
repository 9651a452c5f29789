// What has been evaluated, kept on disk while an evaluation runs, so that one that was interrupted or killed goes on
// where it stopped: FILE.partial holds a JSON object a line, {"key": ..., "record": ...}, appended when a sample is
// done under one policy. The key stands for everything that decides the record.
#pragma once

#include <map>
#include <string>

#include "json_file.h"

namespace orrery::tool {

class EvalStore {
 public:
  // Keeps nothing on disk.
  EvalStore() = default;
  // Reads what is there. A last line that was cut off in the middle is dropped, and so is anything else that is no
  // record: it is evaluated again.
  explicit EvalStore(const std::string& path);
  ~EvalStore();
  EvalStore(const EvalStore&) = delete;
  EvalStore& operator=(const EvalStore&) = delete;

  size_t size() const { return records_.size(); }
  const Json* find(const std::string& key) const;  // nullptr: not there; until the next call
  void forget(const std::string& key) { records_.erase(key); }
  void add(const std::string& key, const Json& record);
  void remove_file();  // the results stand elsewhere now

 private:
  std::string path_;
  int fd_ = -1;
  std::map<std::string, Json> records_;
};

// Makes the folder where there is none; throws where it cannot be written to.
void make_folder(const std::string& path);

// 64 bits of FNV-1a, as 16 hexadecimal digits.
std::string digest_of(const std::string& text);

}  // namespace orrery::tool

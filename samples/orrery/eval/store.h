// Keeps results on disk during an evaluation, so that an interrupted or killed evaluation continues where it stopped.
// FILE.partial holds one JSON object per line, {"key": ..., "record": ...}, appended when a sample is done under one
// policy. The key contains every setting that decides the record.
#pragma once

#include <map>
#include <string>

#include "json_file.h"

namespace orrery::tool {

class EvalStore {
 public:
  // A store without a file.
  EvalStore() = default;
  // Reads the existing file. An incomplete last line, and any line that is no record, is dropped and evaluated again.
  explicit EvalStore(const std::string& path);
  ~EvalStore();
  EvalStore(const EvalStore&) = delete;
  EvalStore& operator=(const EvalStore&) = delete;

  size_t size() const { return records_.size(); }
  const Json* find(const std::string& key) const;  // nullptr: no such key; valid until the next call
  void forget(const std::string& key) { records_.erase(key); }
  void add(const std::string& key, const Json& record);
  void remove_file();  // called once the results are in their own file

 private:
  std::string path_;
  int fd_ = -1;
  std::map<std::string, Json> records_;
};

// Makes the folder if it does not exist. Throws if it cannot be written to.
void make_folder(const std::string& path);

// 64 bits of FNV-1a, as 16 hexadecimal digits.
std::string digest_of(const std::string& text);

}  // namespace orrery::tool

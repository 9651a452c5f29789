// A temporary directory for one test. It is removed with its files when the object is destroyed.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace orrery::testing {

class TempDir {
 public:
  TempDir() {
    std::random_device random;
    for (int tries = 0; tries < 100; ++tries) {
      const std::filesystem::path name = std::filesystem::temp_directory_path() / ("orrery-test-" + std::to_string(random()));
      if (!std::filesystem::create_directory(name)) continue;
      path_ = name.string();
      return;
    }
    throw std::runtime_error("cannot make a temporary directory");
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::vector<std::byte>& bytes) const {
    const std::string path = file(name);
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) throw std::runtime_error("cannot write " + path);
    return path;
  }

 private:
  std::string path_;
};

}  // namespace orrery::testing

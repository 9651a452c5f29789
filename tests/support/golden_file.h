// Reads the expected arrays that tests/golden/golden_file.py writes: "ORGOLD1\n", a u64 with the header's bytes, a JSON header
// {"arrays": {name: {"dtype", "shape", "offset"}}}, padding to 64, then raw little-endian float32.
//
// A golden that cannot be read means a broken checkout: functions throw std::runtime_error that names file and array, and GoogleTest
// reports it.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace orrery::testing {

struct GoldenArray {
  std::vector<uint64_t> shape;  // row-major: the last dimension is contiguous
  std::vector<float> values;
  uint64_t rows() const { return shape.empty() ? 0 : shape[0]; }
  uint64_t row_size() const { return rows() == 0 ? 0 : values.size() / rows(); }
  const float* row(uint64_t i) const { return values.data() + i * row_size(); }
};

class GoldenFile {
 public:
  static GoldenFile open(const std::string& path);
  static GoldenFile parse(const std::string& bytes, const std::string& path);

  const std::map<std::string, GoldenArray>& arrays() const { return arrays_; }
  const GoldenArray& at(const std::string& name) const {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) throw std::runtime_error(path_ + ": has no array " + name);
    return found->second;
  }

 private:
  std::string path_;
  std::map<std::string, GoldenArray> arrays_;
};

}  // namespace orrery::testing

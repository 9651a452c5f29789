// Reads the expected arrays that tests/golden/golden_file.py writes: "ORGOLD1\n", a u64 with the header's bytes, a JSON header
// {"arrays": {name: {"dtype", "shape", "offset"}}}, padding to 64, then raw little-endian float32.
//
// A golden that cannot be read means a broken checkout: functions throw std::runtime_error that names file and array, and GoogleTest
// reports it.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
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
  static GoldenFile open(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error(path + ": cannot be opened");
    return parse(std::string(std::istreambuf_iterator<char>(in), {}), path);
  }

  static GoldenFile parse(const std::string& bytes, const std::string& path) {
    const auto fail = [&](const std::string& what) { throw std::runtime_error(path + ": " + what); };
    uint64_t header_bytes = 0;
    if (bytes.size() < 16 || bytes.compare(0, 8, "ORGOLD1\n") != 0) fail("is no golden file");
    std::memcpy(&header_bytes, bytes.data() + 8, 8);
    if (header_bytes > bytes.size() - 16) fail("header is longer than the file");
    const uint64_t data_start = (16 + header_bytes + 63) / 64 * 64;
    if (data_start > bytes.size()) fail("ends before its data");
    GoldenFile file;
    file.path_ = path;
    const nlohmann::json header = nlohmann::json::parse(bytes.substr(16, header_bytes), nullptr, false);
    if (!header.is_object() || !header.contains("arrays")) fail("header is not the JSON expected");
    uint64_t used = 0;
    for (const auto& [name, entry] : header.at("arrays").items()) {
      if (entry.at("dtype") != "f32") fail(name + ": dtype is not f32");
      GoldenArray array;
      array.shape = entry.at("shape").get<std::vector<uint64_t>>();
      const uint64_t offset = entry.at("offset").get<uint64_t>();
      const uint64_t room = (bytes.size() - data_start) / sizeof(float);
      uint64_t count = 1;
      for (const uint64_t d : array.shape) {
        if (d == 0 || d > room / count) fail(name + ": shape does not fit the file");
        count *= d;
      }
      if (offset % sizeof(float) != 0 || offset / sizeof(float) > room - count)
        fail(name + ": offset is outside the file");
      array.values.resize(count);
      std::memcpy(array.values.data(), bytes.data() + data_start + offset, count * sizeof(float));
      used += count;
      file.arrays_.emplace(name, std::move(array));
    }
    if (data_start + used * sizeof(float) != bytes.size()) fail("arrays do not fill the file");
    return file;
  }

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

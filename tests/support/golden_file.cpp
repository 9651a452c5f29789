// See golden_file.h. The JSON library is a second's work to compile, so this file has it and the header does not.
#include "tests/support/golden_file.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace orrery::testing {

GoldenFile GoldenFile::open(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": cannot be opened");
  return parse(std::string(std::istreambuf_iterator<char>(in), {}), path);
}

GoldenFile GoldenFile::parse(const std::string& bytes, const std::string& path) {
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
    if (offset % sizeof(float) != 0 || offset / sizeof(float) > room - count) fail(name + ": offset is outside the file");
    array.values.resize(count);
    std::memcpy(array.values.data(), bytes.data() + data_start + offset, count * sizeof(float));
    used += count;
    file.arrays_.emplace(name, std::move(array));
  }
  if (data_start + used * sizeof(float) != bytes.size()) fail("arrays do not fill the file");
  return file;
}

}  // namespace orrery::testing

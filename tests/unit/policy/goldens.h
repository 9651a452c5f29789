// Shared by the tests of policy goldens: reading a file of tests/golden, and the mixing function from which the scripts make their
// attention.
#pragma once

#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/shared.h"

namespace orrery::policy {

inline nlohmann::json read_goldens(const char* file) {
  std::ifstream in(testing::source_path(std::string("tests/golden/") + file));
  return nlohmann::json::parse(in);
}

inline uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

inline uint64_t hash(std::initializer_list<uint64_t> parts) {
  uint64_t h = 0;
  for (const uint64_t part : parts) h = mix(h ^ part);
  return h;
}

}  // namespace orrery::policy

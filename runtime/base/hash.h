// XXH3-128 of a stream of bytes, for fingerprints and checksums. The digest is in canonical (big-endian) byte order, so that a file
// written on one machine can be checked on any other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orrery {

class Hash128 {
 public:
  Hash128();
  void update(const void* data, size_t bytes);
  void digest(uint8_t out[16]) const;

 private:
  alignas(64) std::byte state_[576];  // room for an XXH3_state_t, whose definition stays in hash.cpp
};

}  // namespace orrery

#include "runtime/base/hash.h"

#define XXH_INLINE_ALL  // xxHash exports nothing and links nothing
#include <xxhash.h>

#include <cstring>
#include <new>

namespace orrery {

static_assert(sizeof(XXH3_state_t) <= 576 && alignof(XXH3_state_t) <= 64, "Hash128 holds its state in place");

Hash128::Hash128() {
  XXH3_state_t* state = new (state_) XXH3_state_t;
  XXH3_INITSTATE(state);
  XXH3_128bits_reset(state);
}

void Hash128::update(const void* data, size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(reinterpret_cast<XXH3_state_t*>(state_), data, bytes);
}

void Hash128::digest(uint8_t out[16]) const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(reinterpret_cast<const XXH3_state_t*>(state_)));
  std::memcpy(out, canonical.digest, 16);
}

}  // namespace orrery

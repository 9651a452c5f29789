// A model's fingerprint: which weights a saved session or a head profile belongs to.
//
// It hashes the header's raw bytes (metadata and tensor table, with every type, shape and offset) and samples
// of every tensor: re-quantizing or fine-tuning changes every tensor nearly everywhere, so its first and last
// 4 KiB tell models apart without reading gigabytes.  `full` is for those who must notice a single flipped
// bit.
#define XXH_INLINE_ALL  // nothing of xxHash is exported, and nothing linked
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "runtime/gguf/impl.h"

namespace orrery::gguf {

void File::fingerprint(bool full, uint8_t out[16]) const {
  constexpr uint64_t kSample = 4096;
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  const auto number = [&](uint64_t n) { XXH3_128bits_update(&state, &n, sizeof n); };
  const auto bytes = [&](const std::byte* p, uint64_t n) {
    number(n);  // so that no two different sequences of pieces give one stream
    XXH3_128bits_update(&state, p, n);
  };
  const bool data = impl_->tensors.empty() || impl_->tensors[0].data != nullptr;
  number(!data ? 0 : full ? 2 : 1);
  number(impl_->parts.size());
  for (const Part& part : impl_->parts) bytes(part.input.bytes.data(), part.header.header_bytes);
  for (const Tensor& t : impl_->tensors) {
    if (!t.data) continue;
    if (full || t.bytes <= 2 * kSample) {
      bytes(t.data, t.bytes);
    } else {
      bytes(t.data, kSample);
      bytes(t.data + t.bytes - kSample, kSample);
    }
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  std::memcpy(out, canonical.digest, 16);
}

}  // namespace orrery::gguf

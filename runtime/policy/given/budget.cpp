#include "runtime/policy/given/budget.h"

#include <algorithm>
#include <cmath>

namespace orrery::policy {

KvShare::KvShare(double of_bytes, uint64_t kept_bytes, uint64_t slot_bytes)
    : of_bytes_(of_bytes), of_tokens_(of_bytes), kept_bytes_(kept_bytes), slot_bytes_(slot_bytes) {
  if (kept_bytes == slot_bytes) return;
  of_tokens_ = of_bytes * static_cast<double>(kept_bytes) / static_cast<double>(slot_bytes);
  if (of_tokens_ > 1 - 1e-7) of_tokens_ = 1;
}

uint64_t KvShare::tokens(uint32_t n) const {
  if (of_tokens_ >= 1) return n;
  const auto kept = static_cast<uint64_t>(std::ceil(of_bytes_ * n * (1 - 1e-7)));
  return std::min<uint64_t>(kept * kept_bytes_ / slot_bytes_, n);
}

double KvShare::least(uint64_t tokens, uint32_t n) const {
  const uint64_t kept = (tokens * slot_bytes_ + kept_bytes_ - 1) / kept_bytes_;
  return static_cast<double>((kept - 1) * 1000 / n + 1) / 1000;
}

uint64_t slots_for_share(const Shape& shape, const KvShare& share) {
  uint64_t slots = 0;
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    const uint64_t window = static_cast<uint64_t>(shape.window[l]);
    const uint64_t wanted = window > 0 ? window : std::max<uint64_t>(share.tokens(shape.n_context), kMinSlots);
    slots += std::min<uint64_t>(wanted, shape.n_context) * shape.n_kv_heads;
  }
  return slots;
}

}  // namespace orrery::policy

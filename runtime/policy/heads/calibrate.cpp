#include "runtime/policy/heads/calibrate.h"

#include <algorithm>

#include "runtime/policy/given/host_bytes.h"

namespace orrery::policy {

uint64_t calibration_bytes(const Shape& shape, const Calibration& calibration) {
  const uint64_t n_heads = shape.n_kv_heads, n_queries = std::min(calibration.n_queries, shape.n_context);
  const uint64_t k = std::min(calibration.top_k, std::max(1u, shape.n_context / 4));
  const uint64_t overlaps = LayerOverlaps::host_bytes(n_heads, std::max<uint64_t>(n_queries, 2) - 1, k, shape.n_context);
  return bytes_of<uint32_t>(n_heads * (n_queries + 1) * k) + bytes_of<KeyQuery>(n_heads) + shape.n_layers * overlaps;
}

Result<Calibrated> calibrate(Heads* heads, const WindowRings& rings, const Shape& shape, uint32_t n_tokens,
                             const Calibration& calibration) {
  const uint32_t n_queries = std::min({calibration.n_queries, heads->n_queries(), n_tokens});
  const uint32_t oldest = n_tokens - n_queries, n_keys = oldest + 1;
  const uint32_t k = std::min(calibration.top_k, std::max(1u, n_keys / 4));
  const uint32_t n_steps = std::max(n_queries, 2u) - 1;
  Calibrated found;
  found.top_k = k;
  std::vector<uint32_t> best(size_t{shape.n_kv_heads} * n_queries * k);
  std::vector<KeyQuery> queries(shape.n_kv_heads);
  std::vector<Tokens> sets(shape.n_kv_heads);
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    if (rings.has(l * shape.n_kv_heads)) continue;
    for (uint32_t h = 0; h < shape.n_kv_heads; ++h)
      queries[h] = {l * shape.n_kv_heads + h, oldest, n_queries, n_keys, k, false, &best[size_t{h} * n_queries * k]};
    ORRERY_TRY(heads->top_keys(queries, calibration.rule));
    ORRERY_ASSIGN(LayerOverlaps overlaps, LayerOverlaps::make(shape.n_kv_heads, n_steps));
    for (uint32_t step = 0; step <= n_steps; ++step) {
      const uint32_t row = n_queries - 1 - std::min(step, n_queries - 1);
      for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
        const auto begin = best.begin() + static_cast<ptrdiff_t>((size_t{h} * n_queries + row) * k);
        sets[h].assign(begin, begin + k);
      }
      ORRERY_TRY(overlaps.add(step, sets));
    }
    found.layers.push_back(std::move(overlaps));
  }
  return found;
}

}  // namespace orrery::policy

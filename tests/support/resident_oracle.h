// Reads a session's keys, in the reservoir and on the device, and its last queries. From these a policy's test computes in double precision
// what the policy should have done.
#pragma once

#include <cmath>
#include <vector>

#include "runtime/engine/resident/resident.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/quantize.h"
#include "tests/support/kv_tokens.h"

namespace orrery::testing {

inline std::vector<float> key_at(const KvFormat& f, uint64_t token) {
  return read_key(f.type, reinterpret_cast<const std::byte*>(token), static_cast<uint64_t>(f.head_dim));
}
inline std::vector<float> value_at(const KvFormat& f, uint64_t token) {
  return read_value(f.type, reinterpret_cast<const std::byte*>(token + f.key_bytes()), static_cast<uint64_t>(f.head_dim));
}
inline uint64_t reservoir_token(const kv::PageTable& reservoir, uint32_t head, uint32_t position) {
  const KvFormat& f = reservoir.format();
  return reservoir.view().pages[position / kPageTokens] + f.head_offset(head) + position % kPageTokens * f.token_bytes();
}
inline std::vector<float> reservoir_key(const kv::PageTable& reservoir, uint32_t head, uint32_t position) {
  return key_at(reservoir.format(), reservoir_token(reservoir, head, position));
}
inline std::vector<float> reservoir_value(const kv::PageTable& reservoir, uint32_t head, uint32_t position) {
  return value_at(reservoir.format(), reservoir_token(reservoir, head, position));
}
inline std::vector<float> device_key(const engine::Resident& resident, uint32_t head, uint32_t slot) {
  return key_at(resident.format(), resident.store().tiles(head)[slot / kPageTokens] + slot % kPageTokens * resident.format().token_bytes());
}

// The queries of a KV head's group, (group, head_dim), at a position that the ring holds.
inline const float* ring_queries(const engine::Resident& resident, const model::Description& h, uint32_t head, uint32_t position) {
  const auto kv_heads = static_cast<uint32_t>(h.kv().n_kv_heads);
  const QueryRing ring = resident.queries();
  const uint64_t row = uint64_t{head / kv_heads} * static_cast<uint64_t>(ring.n_rows) + position % static_cast<uint32_t>(ring.n_rows);
  return reinterpret_cast<const float*>(ring.data.address) +
         (row * kv_heads + head % kv_heads) * static_cast<uint64_t>(h.kv().n_heads / h.kv().n_kv_heads * h.kv().head_dim);
}

// The least half that is not less than x: digests round bounds in this way. Over all dimensions this changes a score by a percent.
inline double half_above(double x) {
  const float value = static_cast<float>(x);
  uint16_t half;
  float nearest;
  gguf::quantize_row(TensorType::f16, &value, reinterpret_cast<std::byte*>(&half), 1);
  gguf::dequantize_row(TensorType::f16, reinterpret_cast<const std::byte*>(&half), &nearest, 1);
  if (nearest >= value) return nearest;
  half = static_cast<uint16_t>(nearest < 0 ? half - 1 : half + 1);
  gguf::dequantize_row(TensorType::f16, reinterpret_cast<const std::byte*>(&half), &nearest, 1);
  return nearest;
}

// The scores that digests give to a head's pages first .. first + n - 1: (group, n), not scaled.
inline std::vector<std::vector<double>> page_bounds(const engine::Resident& resident, const model::Description& h, uint32_t head,
                                                    uint32_t position, uint32_t page, uint32_t first, uint32_t n, bool deviation) {
  const auto dim = static_cast<size_t>(h.kv().head_dim), group = static_cast<size_t>(h.kv().n_heads / h.kv().n_kv_heads);
  const float* q = ring_queries(resident, h, head, position);
  std::vector<std::vector<double>> bounds(group, std::vector<double>(n));
  for (uint32_t i = 0; i < n; ++i) {
    std::vector<double> low(dim, INFINITY), high(dim, -INFINITY), off(dim);
    std::vector<std::vector<float>> keys;
    for (uint32_t t = 0; t < page; ++t) {
      keys.push_back(reservoir_key(resident.reservoir(), head, (first + i) * page + t));
      for (size_t d = 0; d < dim; ++d) {
        low[d] = std::min<double>(low[d], keys[t][d]);
        high[d] = std::max<double>(high[d], keys[t][d]);
      }
    }
    for (size_t d = 0; deviation && d < dim; ++d) {
      const double middle = (low[d] + high[d]) / 2;
      for (uint32_t t = 0; t < page; ++t) off[d] += std::fabs(static_cast<double>(keys[t][d]) - middle) / page;
      low[d] = middle - off[d], high[d] = middle + off[d];
    }
    for (size_t d = 0; d < dim; ++d) low[d] = -half_above(-low[d]), high[d] = half_above(high[d]);
    for (size_t g = 0; g < group; ++g)
      for (size_t d = 0; d < dim; ++d) {
        const double x = q[g * dim + d];
        bounds[g][i] += std::max(x * low[d], x * high[d]);
      }
  }
  return bounds;
}

// The mean of the rows' softmaxes.
inline std::vector<double> mean_of_softmaxes(const std::vector<std::vector<double>>& rows) {
  std::vector<double> scores(rows[0].size());
  for (const std::vector<double>& b : rows) {
    const double most = *std::max_element(b.begin(), b.end());
    double sum = 0;
    for (const double x : b) sum += std::exp(x - most);
    for (size_t i = 0; i < b.size(); ++i) scores[i] += std::exp(b[i] - most) / sum / static_cast<double>(rows.size());
  }
  return scores;
}

// The pages that a head holds. Empty unless each page is whole, in one piece, and held once.
inline std::set<uint32_t> whole_pages(Span<const uint32_t> held, uint32_t page) {
  std::set<uint32_t> pages;
  for (size_t i = 0; i + page <= held.size(); i += page) {
    if (held[i] % page != 0 || !pages.insert(held[i] / page).second) return {};
    for (uint32_t t = 1; t < page; ++t)
      if (held[i + t] != held[i] + t) return {};
  }
  return pages;
}

}  // namespace orrery::testing

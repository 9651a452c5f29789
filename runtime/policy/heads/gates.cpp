#include "runtime/policy/heads/gates.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace orrery::policy {
namespace {

constexpr bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

Status wrong(size_t line, size_t column, const std::string& what) {
  return error(Code::invalid_argument, "gates: line %zu, column %zu: %s", line, column, what.c_str());
}

// The gates of a line; none if the line is empty.
Status read_line(std::string_view text, size_t line, std::vector<double>* gates) {
  const char *const begin = text.data(), *const end = begin + text.size();
  for (const char* at = begin;;) {
    while (at < end && is_space(*at)) ++at;
    if (at == end) return ok_status();
    double gate = 0;
    const auto [behind, failed] = std::from_chars(at, end, gate);
    const char* const first_wrong = failed != std::errc() || (behind == end || is_space(*behind)) ? at : behind;
    const bool is_gate = failed == std::errc() && first_wrong == at && gate >= 0 && gate <= 1;  // false for NaN
    if (!is_gate) return wrong(line, static_cast<size_t>(first_wrong - begin) + 1, "expected a number of 0 to 1");
    if (gates->size() == kMaxKvHeads) return wrong(line, static_cast<size_t>(at - begin) + 1, format("more than %u heads", kMaxKvHeads));
    gates->push_back(gate);
    at = behind;
  }
}

Status read_layers(std::string_view text, std::vector<ProfileLayer>* layers) {
  for (size_t line = 1; !text.empty(); ++line) {
    const std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(row.size() + 1, text.size()));
    ProfileLayer layer;
    ORRERY_TRY(read_line(row, line, &layer.gates));
    if (layer.gates.empty()) continue;
    if (layers->size() == kMaxLayers) return wrong(line, 1, format("more than %u layers", kMaxLayers));
    if (!layers->empty() && layer.gates.size() != layers->front().gates.size())
      return wrong(line, row.size() + 1, format("%zu heads, the first layer has %zu", layer.gates.size(), layers->front().gates.size()));
    layers->push_back(std::move(layer));
  }
  return layers->empty() ? wrong(1, 1, "expected a number of 0 to 1") : ok_status();
}

}  // namespace

uint32_t heads_above_quantile(uint32_t n, double sparsity) {
  if (sparsity <= 0) return n;
  if (sparsity >= 1 || n == 0) return 0;
  // The quantile lies between two gates, or equals one up to rounding.
  return n - static_cast<uint32_t>(std::ceil(sparsity * (n - 1) - 1e-9));
}

Result<HeadProfile> import_gates(std::string_view text, double sparsity) {
  if (!(sparsity >= 0 && sparsity <= 1)) return error(Code::invalid_argument, "gates: a sparsity of %g, expected 0 to 1", sparsity);
  HeadProfile profile;
  ORRERY_TRY(read_layers(text, &profile.layers));
  const size_t n_layers = profile.layers.size(), n_kv_heads = profile.layers[0].gates.size();
  std::vector<uint32_t> order(n_layers * n_kv_heads);
  std::iota(order.begin(), order.end(), 0u);
  const auto gate = [&](uint32_t head) { return profile.layers[head / n_kv_heads].gates[head % n_kv_heads]; };
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return gate(a) > gate(b); });
  for (ProfileLayer& layer : profile.layers) {
    layer.roles.roles.assign(n_kv_heads, Role::anchor);
    layer.roles.pivot_of.assign(n_kv_heads, kNoHead);
  }
  const uint32_t n_full = heads_above_quantile(static_cast<uint32_t>(order.size()), sparsity);
  for (uint32_t i = 0; i < n_full; ++i) profile.layers[order[i] / n_kv_heads].roles.roles[order[i] % n_kv_heads] = Role::volatile_head;
  profile.note = format("imported DuoAttention gates, sparsity %g", sparsity);
  ORRERY_TRY(check_profile(profile));
  return profile;
}

}  // namespace orrery::policy

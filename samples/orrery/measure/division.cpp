#include "measure/division.h"

#include <algorithm>
#include <cmath>

namespace orrery::tool {

// Sheets of the makers; PCIe 3, 4 and 5 of 8 and 16 lanes carry 6.2, 12.5, 25 and 50 GB/s.
const std::vector<Card>& all_cards() {
  static const std::vector<Card> cards = {
      {"rtx-2080-8g", 8, 448, 12.5},     {"rtx-3060-12g", 12, 360, 25},   {"rtx-3090-24g", 24, 936, 25},  {"rtx-4060-8g", 8, 272, 12.5},
      {"rtx-4060ti-16g", 16, 288, 12.5}, {"rtx-4070-12g", 12, 504, 25},   {"rtx-4090-24g", 24, 1008, 25}, {"rtx-5060ti-16g", 16, 448, 25},
      {"rtx-5070-12g", 12, 672, 50},     {"rtx-5070ti-16g", 16, 896, 50}, {"rtx-5080-16g", 16, 960, 50},  {"rtx-5090-32g", 32, 1792, 50},
  };
  return cards;
}

const Card* find_card(const std::string& name) {
  for (const Card& card : all_cards())
    if (name == card.name) return &card;
  return nullptr;
}

Rates rates_of(const Card& card, bool mixture) {
  return {card.read_gb_per_second * 1e9 * (mixture ? kMixtureReadShare : kReadShare), card.link_gb_per_second * 1e9, kGuessedShare,
          kRoundTrip};
}

double hit_share(double share_on_device, Reuse reuse) {
  const double share = std::clamp(share_on_device, 0.0, 1.0);
  return reuse == Reuse::uniform ? share : std::pow(share, 0.3);
}

double Division::unit_bytes() const {
  const uint64_t all = mixture() ? work.expert_bytes : work.layer_bytes;
  return n_units() > 0 ? static_cast<double>(all) / static_cast<double>(n_units()) : 0.0;
}

uint64_t Division::least() const { return work.expert_layers > 0 ? std::min(work.n_experts, 2 * work.n_experts / work.expert_layers) : 0; }

uint64_t Division::fitting(double budget) const {
  const double left = budget - bytes(0);
  if (bytes(n_units()) <= budget) return n_units();
  return left < 0 ? 0 : std::min(n_units(), static_cast<uint64_t>(left / unit_bytes()));
}

double Division::bytes(uint64_t n_on_device) const {
  const double rest = static_cast<double>(work.resident_bytes) + session_bytes;
  if (mixture()) return rest + static_cast<double>(n_on_device) * unit_bytes();
  if (n_on_device >= n_units()) return rest;
  const uint64_t away = n_units() - n_on_device;
  return rest - static_cast<double>(away) * unit_bytes() + static_cast<double>(std::min<uint64_t>(away, 2)) * unit_bytes();
}

// While a layer computes, the experts that it has guessed for the next one cross the link. Other experts are waited for. Of a
// dense model all is known beforehand: the link is busy all the time.
TokenTime Division::time(const Rates& rates, uint64_t n_on_device, double hit) const {
  TokenTime t;
  const double used = static_cast<double>(work.used_experts);
  t.kv = kv_bytes / rates.read;
  if (!mixture()) {
    t.weights = static_cast<double>(work.bytes()) / rates.read;
    const auto away = static_cast<double>(n_units() - std::min(n_units(), n_on_device));
    t.link = away * unit_bytes() / rates.link;
    t.exposed = std::max(0.0, t.link - t.weights - t.kv) + away * rates.round_trip;
    return t;
  }
  t.weights = (static_cast<double>(work.bytes()) - used * unit_bytes()) / rates.read;
  t.experts = used * unit_bytes() / rates.read;
  if (n_on_device >= n_units()) return t;
  t.link = used * (1.0 - hit) * unit_bytes() / rates.link;
  t.exposed = t.link - std::min(t.link * rates.guessed, t.weights + t.kv + t.experts);
  t.exposed += static_cast<double>(work.expert_layers) * rates.round_trip;
  return t;
}

// Of a layer's k chosen experts, j are the host's with the probability of k draws from all experts of the layer, of which a share lies there.
// The layer takes as long as the slower side.
TokenTime Division::time_by_host(const Rates& rates, uint64_t n_on_device) const {
  TokenTime t = time(rates, n_units(), 1.0);
  if (!mixture()) {
    if (n_on_device >= n_units()) return t;
    const double blocks = static_cast<double>(work.block_bytes), away = static_cast<double>(n_units() - n_on_device) * unit_bytes();
    const double on_host = std::min(away, blocks);
    t.weights = (static_cast<double>(work.bytes()) - on_host) / rates.read;
    const double host = on_host / rates.host + static_cast<double>(work.n_layers) * rates.round_trip;
    t.exposed = std::max(0.0, host - (blocks - on_host) / rates.read);
    t.link = (away - on_host) / rates.link;
    t.exposed += std::max(0.0, t.link - t.total());
    return t;
  }
  if (n_on_device >= n_units() || work.expert_layers == 0) return t;
  const auto layers = static_cast<double>(work.expert_layers);
  const auto k = static_cast<int>(std::lround(static_cast<double>(work.used_experts) / layers));
  const double all = std::round(static_cast<double>(n_units()) / layers);
  const double on_host = std::round(all * (1.0 - static_cast<double>(n_on_device) / static_cast<double>(n_units())));
  const auto ways = [](double n, int j) { return std::lgamma(n + 1) - std::lgamma(j + 1.0) - std::lgamma(n - j + 1); };
  double behind = 0;  // seconds of a layer
  for (int j = 0; j <= k; ++j) {
    if (j > on_host || k - j > all - on_host) continue;
    const double p = std::exp(ways(on_host, j) + ways(all - on_host, k - j) - ways(all, k));
    const double device = (k - j) * unit_bytes() / rates.read, host = j > 0 ? j * unit_bytes() / rates.host + rates.round_trip : 0.0;
    behind += p * std::max(device, host);
  }
  t.exposed = layers * behind - t.experts;
  return t;
}

TokenTime Division::time(const Rates& rates, uint64_t n_on_device, Reuse reuse) const {
  const double all = static_cast<double>(std::max<uint64_t>(n_units(), 1));
  return time(rates, n_on_device, hit_share(static_cast<double>(n_on_device) / all, reuse));
}

}  // namespace orrery::tool

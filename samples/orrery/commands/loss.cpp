#include "loss.h"

#include <cmath>
#include <iterator>

namespace orrery::tool {
namespace {

constexpr double kLossShares[] = {.5, .2, .1, .05};
constexpr size_t kLossBudgets = std::size(kLossShares);

struct PolicyLoss {
  const char* policy;
  double kl[kLossBudgets];  // 0: refused, or not measured
};
struct LossModel {
  const char *architecture, *name;
  PolicyLoss policies[12];
};
// The reporting half's means, behind 1,024 tokens.
constexpr LossModel kLossModels[] = {{"llama",
                                      "SmolLM2-135M-Instruct",
                                      {{"auto", {.0020, .0028, .0028, .0093}},
                                       {"auto by window", {.0063, .0420, .0699, .1349}},
                                       {"duoattention", {.0161, .1781, .5127, 0}},
                                       {"quest", {.0348, .3748, 0, 0}},
                                       {"razorattention", {.0512, .2542, .4479, 0}},
                                       {"shadowkv", {.0536, .6819, 0, 0}},
                                       {"heterocache", {.0538, .2815, .5955, 0}},
                                       {"cake", {.0817, .2791, .6092, 0}},
                                       {"adakv", {.0891, .3626, .7225, 0}},
                                       {"snapkv", {.0959, .3679, .7168, 0}},
                                       {"freekv", {.1093, .5806, 0, 0}},
                                       {"synckv", {.1668, 0, 0, 0}}}},
                                     {"qwen2",
                                      "Qwen2.5-Coder-0.5B-Instruct",
                                      {{"auto", {.0005, .0016, .0016, .0204}},
                                       {"auto by window", {.0008, .0257, .1108, .1852}},
                                       {"duoattention", {.0661, .4164, .7843, 0}},
                                       {"quest", {.0371, .4730, 0, 0}},
                                       {"razorattention", {.2437, .4886, .9872, 0}},
                                       {"shadowkv", {.1705, 1.4130, 0, 0}},
                                       {"heterocache", {.0587, .4214, 1.2091, 0}},
                                       {"cake", {.0589, .5084, 1.2577, 0}},
                                       {"adakv", {.1159, .6814, 1.2797, 0}},
                                       {"snapkv", {.1437, .8008, 1.2967, 0}},
                                       {"freekv", {.0820, 1.0230, 0, 0}},
                                       {"synckv", {0, 0, 0, 0}}}}};

std::optional<ExpectedLoss> loss_on(const LossModel& model, const std::string& policy, double share) {
  for (const PolicyLoss& m : model.policies) {
    if (policy != m.policy || m.kl[0] == 0) continue;
    ExpectedLoss loss;
    loss.measured_on = model.name;
    if (share >= kLossShares[0]) {
      loss.kl = m.kl[0];
      return loss;
    }
    for (size_t i = 1; i < kLossBudgets; ++i) {
      if (m.kl[i] == 0) return std::nullopt;
      loss.kl = m.kl[i];
      if (share < kLossShares[i]) continue;
      const double part = std::log(share / kLossShares[i]) / std::log(kLossShares[i - 1] / kLossShares[i]);
      loss.kl = m.kl[i] * std::pow(m.kl[i - 1] / m.kl[i], part);
      return loss;
    }
    loss.at_least = true;
    return loss;
  }
  return std::nullopt;
}

}  // namespace

std::optional<ExpectedLoss> expected_loss(const std::string& policy, const std::string& architecture, double share) {
  std::optional<ExpectedLoss> worst;
  for (const LossModel& model : kLossModels) {
    std::optional<ExpectedLoss> loss = loss_on(model, policy, share);
    if (loss && architecture == model.architecture) {
      loss->of_architecture = true;
      return loss;
    }
    if (loss && (!worst || loss->kl > worst->kl)) worst = loss;
  }
  return worst;
}

}  // namespace orrery::tool

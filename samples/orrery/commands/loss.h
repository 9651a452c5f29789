// What a KV policy loses at a budget: KL from full attention, as measured on published models (tests/bench/results/real-models.md).
#pragma once

#include <optional>
#include <string>

namespace orrery::tool {

struct ExpectedLoss {
  double kl = 0;            // nats, mean over an answer's tokens
  bool at_least = false;    // the budget is smaller than the smallest that was measured, whose loss this is
  std::string measured_on;  // the model; or, of an architecture that was not measured, the model that lost the most
  bool of_architecture = false;
};
// Of a policy with its default options ("auto" in place, or "auto by window") at a share of full KV's bytes.
// Between measured shares the logarithm of KL is a straight line over the logarithm of the share; above them the loss is that of the
// largest. Nothing: the policy was not measured there.
std::optional<ExpectedLoss> expected_loss(const std::string& policy, const std::string& architecture, double share);

}  // namespace orrery::tool

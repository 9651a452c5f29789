// The table of policies: the one place that knows their names.
#include "runtime/policy/policy.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "runtime/policy/parts.h"

namespace orrery::policy {

namespace {

struct Entry {
  const char* name;
  Needs needs;
  Result<std::unique_ptr<Policy>> (*make)(const Shape&, const Budget&, const Options&, const SharedProfile&);
};

constexpr Entry kPolicies[] = {
    {"heterocache", {64}, &make_heterocache},
    {"streaming", {0}, &make_streaming},
    {"synckv", {64}, &make_synckv},
};

}  // namespace

uint64_t tokens_of_share(double share, uint32_t n) {
  return static_cast<uint64_t>(std::ceil(share * n * (1 - 1e-7)));
}

uint64_t slots_for_share(const Shape& shape, double share) {
  uint64_t slots = 0;
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    const uint64_t window = static_cast<uint64_t>(shape.window[l]);
    const uint64_t wanted = window > 0 ? window
                                       : std::max<uint64_t>(tokens_of_share(share, shape.n_context), kLeastSlots);
    slots += std::min<uint64_t>(wanted, shape.n_context) * shape.n_kv_heads;
  }
  return slots;
}

Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const Shape& shape, const Budget& budget,
                                            const Options& options, const SharedProfile& profile) {
  std::vector<std::string> known = {"full"};
  for (const Entry& entry : kPolicies) {
    if (name == entry.name) return entry.make(shape, budget, options, profile);
    known.emplace_back(entry.name);
  }
  std::string list;
  for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
  const std::string* near = nearest_name(name, known);
  return error(Code::invalid_argument, "there is no KV policy '%.40s'%s%s%s; these are: %s", name.c_str(),
               near ? "; did you mean '" : "", near ? near->c_str() : "", near ? "'?" : "", list.c_str());
}

Needs policy_needs(const std::string& name) {
  for (const Entry& entry : kPolicies)
    if (name == entry.name) return entry.needs;
  return {};
}

}  // namespace orrery::policy

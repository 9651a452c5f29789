#include "runtime/policy/table.h"

#include <algorithm>
#include <iterator>

#include "runtime/policy/options.h"

namespace orrery::policy {

namespace {

#define ORRERY_ADDRESS_OF_METHOD(name) &name,
constexpr const Method* kMethods[] = {ORRERY_POLICIES(ORRERY_ADDRESS_OF_METHOD)};
#undef ORRERY_ADDRESS_OF_METHOD

const Method* find(const std::string& name) {
  for (const Method* method : kMethods)
    if (name == method->row.name && method->make != nullptr) return method;
  return nullptr;
}

}  // namespace

const PolicyRow& PolicyRows::Iterator::operator*() const { return (*at_)->row; }

PolicyRows policy_rows() { return PolicyRows({kMethods, std::size(kMethods)}); }

Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const Shape& shape, const Budget& budget, const Options& options,
                                            const SharedProfile& profile) {
  if (const Method* method = find(name)) return method->make(shape, budget, options, profile);
  std::vector<std::string> known;
  std::string list;
  for (const PolicyRow& row : policy_rows()) {
    known.emplace_back(row.name);
    list += (list.empty() ? "" : ", ") + known.back();
  }
  const std::string* near = nearest_name(name, known);
  return option_error(Code::invalid_argument, "policy", "there is no KV policy '%.40s'%s%s%s; the policies are: %s", name.c_str(),
                      near ? " (did you mean '" : "", near ? near->c_str() : "", near ? "'?)" : "", list.c_str());
}

Needs policy_needs(const std::string& name, const Options& options) {
  Needs needs;
  if (const Method* method = find(name)) needs = method->needs;
  for (const auto& [option, value] : options) {
    // Pages by what some queries attend to.
    if (needs.kept_queries > 0 && option == "heads" && value == "adaptive") needs.kept_queries = std::max(needs.kept_queries, kPageQueries);
    needs.codes_share = 1;  // an option without `by` is one of the window's
  }
  const auto given = [&](const char* name_of, const char* value_of) {
    return std::any_of(options.begin(), options.end(),
                       [&](const auto& o) { return o.first == name_of && (!value_of || o.second == value_of); });
  };
  const bool by_codes = given("by", "codes");  // as keycodes has it
  if (by_codes) needs.coarser = needs.coarser_by_codes, needs.in_place_share = 0;
  if (needs.in_place_share > 0 && !options.empty()) needs.in_place_share = Needs::kNever;
  if (given("copy", "1") || given("stay", nullptr)) needs.in_place_share = Needs::kNever;  // tokens are copied
  return needs;
}

}  // namespace orrery::policy

// Reads a policy's options by name, and checks them. finish() refuses unknown names, naming the nearest known one.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/policy.h"

namespace orrery::policy {

class OptionReader {
 public:
  OptionReader(const char* policy, const Options& options) : policy_(policy), options_(options) {}
  // Each leaves `value` as it is where the option is not given. Bounds are inclusive.
  Status count(const char* name, uint32_t least, uint32_t most, uint32_t* value);
  Status odd(const char* name, uint32_t most, uint32_t* value);  // from 1
  Status fraction(const char* name, double* value) { return number(name, 0, 1, value); }
  Status number(const char* name, double least, double most, double* value);
  Status choice(const char* name, Span<const char* const> choices, uint32_t* index);
  Status flag(const char* name, bool* value);                                        // 0 or 1
  Status ascending(const char* name, uint32_t most, std::vector<uint32_t>* values);  // "2+8+18"
  bool given(const char* name) const;
  void allow(const char* name) { known_.emplace_back(name); }  // an option that somebody else reads
  Status finish() const;

  // choice() into an enum of uint32_t whose values are the indices.
  template <size_t n, class Choice>
  Status choice(const char* name, const char* const (&choices)[n], Choice* value) {
    auto index = static_cast<uint32_t>(*value);
    ORRERY_TRY(choice(name, Span<const char* const>(choices, n), &index));
    *value = static_cast<Choice>(index);
    return ok_status();
  }

 private:
  const char* policy_;
  const Options& options_;
  std::vector<std::string> known_;
};

// The known name that `name` most likely means; null where none is near.
const std::string* nearest_name(const std::string& name, const std::vector<std::string>& known);

}  // namespace orrery::policy

// The reader of a policy's options.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/policy/policy.h"

namespace orrery::policy {

// Reads a policy's options by name; finish() refuses those that nobody asked for, with the nearest known name.
class OptionReader {
 public:
  OptionReader(const char* policy, const Options& options) : policy_(policy), options_(options) {}
  Status count(const char* name, uint32_t least, uint32_t most, uint32_t* value);
  Status fraction(const char* name, double* value) { return number(name, 0, 1, value); }
  Status number(const char* name, double least, double most, double* value);
  Status choice(const char* name, Span<const char* const> choices, uint32_t* index);
  Status flag(const char* name, bool* value);         // 0 or 1
  Status ascending(const char* name, uint32_t most, std::vector<uint32_t>* values);   // "2+8+18"
  bool given(const char* name) const;
  Status finish() const;

 private:
  const char* policy_;
  const Options& options_;
  std::vector<std::string> known_;
};

// The known name that `name` was probably meant to be; null when none is near.
const std::string* nearest_name(const std::string& name, const std::vector<std::string>& known);

}  // namespace orrery::policy

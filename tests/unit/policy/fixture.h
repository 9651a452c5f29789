// Shared by the tests of policies: values of results.
#pragma once

#include <stdexcept>
#include <utility>

#include "runtime/base/status.h"

namespace orrery::policy {

// The value, or the test fails with the error's message.
template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).value();
}

}  // namespace orrery::policy

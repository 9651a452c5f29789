// The floating-point environment that results are defined in: rounding to nearest, subnormal numbers as they are, no traps.
// A caller may have changed his: audio programs flush subnormals to zero, interval arithmetic rounds upwards. Threads of
// the pool inherit the environment of the thread that starts them. So every call of the C interface runs in the default
// one, whoever calls, and gives the caller his back, with the exception flags that he had.
#pragma once

#include <cfenv>

namespace orrery {

class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace orrery

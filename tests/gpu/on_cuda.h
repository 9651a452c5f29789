// Runtime options with which the tests of tests/gpu open whole models on the CUDA backend.
#pragma once

#include "tests/support/engine_fixture.h"

namespace orrery::testing {

inline engine::RuntimeOptions on_cuda(uint64_t budget_bytes = 64u << 20) {
  engine::RuntimeOptions options = runtime_options(1, "auto", budget_bytes);
  options.backend = "cuda";
  options.prompt_part_us = uint64_t{1} << 40;   // an emulated GPU is slow: parts would follow its clock, and tests count what passes
  return options;
}

}  // namespace orrery::testing

// Runtime options with which the tests of tests/gpu open whole models on the CUDA backend.
#pragma once

#include "tests/support/engine_fixture.h"

namespace orrery::testing {

inline engine::RuntimeOptions on_cuda(uint64_t budget_bytes = 64u << 20) {
#ifndef ORRERY_EMULATED
  budget_bytes +=
      uint64_t{256} << 20;  // cuBLAS takes a workspace of 64 MiB from sm_90 on; and a workspace that grows lies beside the new one
#endif
  engine::RuntimeOptions options = runtime_options(1, "auto", budget_bytes);
  options.backend = "cuda";
  options.prompt_part_us = uint64_t{1} << 40;  // an emulated GPU is slow: parts would follow its clock, and tests count what passes
  return options;
}

}  // namespace orrery::testing

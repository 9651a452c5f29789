// The toy operation of toy_operation_test.cpp: the seam between its backend and its kernels, as runtime/cpu/kernels/kernels.h is.
#pragma once

#include <cstdint>

namespace orrery::cpu {

// x[i] = max(x[i], slope * x[i]), for slope in [0, 1]. A NaN stays one. In place, n values.
struct LeakyTask {
  float* x;
  int64_t n;
  float slope;
};

struct ToyKernels {
  const char* name;
  void (*leaky)(const LeakyTask& task);
};

extern const ToyKernels kToyPlain;
#ifdef ORRERY_TOY_AVX2
extern const ToyKernels kToyAvx2;
#endif

}  // namespace orrery::cpu

// The operations of encoders that decoders lack. A backend that has them also has AttendShape::ahead. All are called between
// begin_steps() and end_step(), for the step's rows.
#pragma once

#include <cstdint>

#include "runtime/backend/memory.h"

namespace orrery {

class EncoderOperations {
 public:
  // out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, of n values for each row, contiguous. weight, bias: (n); bias may be null. May run in
  // place.
  virtual void layer_norm(Ptr<const float> x, Ptr<const float> weight, Ptr<const float> bias, Ptr<float> out, int64_t n, float eps) = 0;
  // out[i] = gate[i] / 2 * (1 + erf(gate[i] / sqrt(2))), times up[i] unless `up` is null; n values for each row, rows `stride` floats apart in the
  // inputs.
  virtual void gelu_erf(Ptr<const float> gate, Ptr<const float> up, int64_t stride, Ptr<float> out, int64_t out_stride, int64_t n) = 0;

 protected:
  ~EncoderOperations() = default;
};

}  // namespace orrery

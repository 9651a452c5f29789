// The plain path's two halves: attention (kernels_plain_attend.cpp) for the table in kernels_plain.cpp.
#pragma once

#include "runtime/cpu/kernels.h"

namespace orrery::cpu {

void plain_attend_decode(const DecodeTask& task);
void plain_merge_partials(const float* partials, int64_t n, int64_t partial_stride, int32_t head_dim,
                          float* out);
void plain_attend_prefill(const PrefillTask& task);
int64_t plain_attend_scratch_bytes(int32_t head_dim);

}  // namespace orrery::cpu

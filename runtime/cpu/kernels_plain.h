// The plain path's parts for the table in kernels_plain.cpp: attention (kernels_plain_attend.cpp), key scores
// (kernels_plain_scores.cpp).
#pragma once

#include "runtime/cpu/kernels.h"

namespace orrery::cpu {

void plain_attend_decode(const DecodeTask& task);
void plain_merge_partials(const float* partials, int64_t n, int64_t partial_stride, int32_t head_dim,
                          float* out);
void plain_attend_prefill(const PrefillTask& task);
int64_t plain_attend_scratch_bytes(int32_t head_dim);
void plain_widen(const float* x, float* low, float* high, int32_t n);
void plain_key_weights(const KeyWeightsTask& task);
float* plain_key_scores(const ScoresTask& task);

}  // namespace orrery::cpu

// Functions for the table in kernels_plain.cpp: attention (kernels_plain_attend.cpp), key scores and low-rank keys
// (kernels_plain_scores.cpp).
#pragma once

#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

void plain_attend_decode(const DecodeTask& task);
void plain_merge_partials(const float* partials, int64_t n, int64_t partial_stride, int32_t value_dim, const float* sink, float* out);
void plain_attend_prefill(const PrefillTask& task);
int64_t plain_attend_scratch_bytes(int32_t head_dim);
void plain_widen(const float* x, float* low, float* high, int32_t n);
void plain_key_weights(const KeyWeightsTask& task);
void plain_encode_key(const EncodeTask& task);
void plain_code_weights(const CodeWeightsTask& task);
void plain_code_values(const CodeValuesTask& task);
int64_t plain_list_reaching(const float* scores, int64_t n, float low, float high, uint32_t* out, int64_t* n_high);
void plain_key_scores(const ScoresTask& task);
void plain_tile_shares(const float* units, const float* sums, int64_t n_tiles, float* shares);
void plain_add_means(const MeansTask& task);
void plain_key_moments(const MomentsTask& task);
void plain_add_gram(const GramTask& task);
void plain_project_keys(const ProjectTask& task);
void plain_pack_basis(const BasisTask& task);
void plain_rebuild_keys(const RebuildTask& task);
// Turns a tile's y (n), of which the first `seen` are visible, into weights (kPageTokens), as KeyWeightsTask defines them.
void plain_weigh_tile(const float* y, int64_t seen, float* weights, float* unit, float* sum);

}  // namespace orrery::cpu

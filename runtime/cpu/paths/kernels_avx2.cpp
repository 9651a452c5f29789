// AVX2: the shared kernels over the vector of vectors/avx2.h, and the tables of AVX2 and of AVX2 with AVX-VNNI. Compiled for instructions
// that the machine may lack, so only the tables have external linkage.
#include "runtime/cpu/paths/kernels_avx2.h"
#include "runtime/cpu/vectors/bytes_avx2.h"
// V inherits from ByteProducts, so its header comes first.
#include "runtime/cpu/vectors/avx2.h"
// These headers use V.
#include "runtime/cpu/attention/attend.h"
#include "runtime/cpu/products/bands_avx2.h"
#include "runtime/cpu/products/dot_avx2.h"
// decode.h uses dot_rows().
#include "runtime/cpu/products/decode.h"
#include "runtime/cpu/attention/encode.h"
#include "runtime/cpu/attention/low_rank.h"
#include "runtime/cpu/attention/moves.h"
#include "runtime/cpu/products/prefill.h"
#include "runtime/cpu/products/rows.h"
#include "runtime/cpu/attention/scores.h"
#include "runtime/cpu/products/recurrent.h"
#include "runtime/cpu/paths/table.h"

namespace orrery::cpu {

const Kernels kAvx2Kernels = table("avx2", matmul_decode, in_bands, bands_as_prefill);

#ifndef ORRERY_CPU_AVX2_ONLY
namespace {

void attend_decode_or_vnni(const DecodeTask& t) { in_blocks(t.kv.type) ? attend_decode_avx2vnni(t) : attend_decode(t); }

// AVX-VNNI multiplies bytes: products with weights, and attention over quantized KV. All else is AVX2's.
constexpr Kernels avx2vnni() {
  Kernels kernels = table("avx2vnni", matmul_decode_avx2vnni, in_bands_avx2vnni, bands_as_prefill_avx2vnni);
  kernels.matmul_prefill = matmul_prefill_avx2vnni;
  kernels.attend_decode = attend_decode_or_vnni;
  return kernels;
}

}  // namespace

const Kernels kAvx2VnniKernels = avx2vnni();
#endif

}  // namespace orrery::cpu

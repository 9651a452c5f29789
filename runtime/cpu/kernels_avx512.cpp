// The AVX-512 path, and what AMX's does without tiles: the shared kernels over simd_avx512.h's vector.  Compiled for instructions that the
// machine may lack, so everything but the table has internal linkage.
#include "runtime/cpu/kernels_avx512.h"
#include "runtime/cpu/simd_avx512.h"
// After the vector that they are written over.
#include "runtime/cpu/simd_attend.h"
#include "runtime/cpu/simd_low_rank.h"
#include "runtime/cpu/simd_prefill.h"
#include "runtime/cpu/simd_rows.h"
#include "runtime/cpu/simd_scores.h"
#include "runtime/cpu/simd_table.h"

namespace orrery::cpu {

namespace {

constexpr Kernels avx512(const char* name) { return table(name, matmul_decode_avx512, in_bands_avx512); }
constexpr Kernels amx() {
  Kernels kernels = avx512("amx");
  kernels.pack_rows = pack_rows_amx;
  kernels.matmul_prefill = matmul_prefill_amx;
  return kernels;
}

}  // namespace

const Kernels kAvx512Kernels = avx512("avx512");
const Kernels kAmxKernels = amx();

}  // namespace orrery::cpu

// The AVX-512 path, and what AMX's does without tiles: the shared kernels over simd_avx512.h's vector.  Compiled for instructions that the
// machine may lack, so everything but the table has internal linkage.
#include "runtime/cpu/kernels_amx.h"
#include "runtime/cpu/simd_avx512.h"
// After the vector that they are written over.
#include "runtime/cpu/simd_attend.h"
#include "runtime/cpu/simd_dot_avx512.h"
// After dot_row().
#include "runtime/cpu/simd_decode.h"
#include "runtime/cpu/simd_low_rank.h"
#include "runtime/cpu/simd_prefill.h"
#include "runtime/cpu/simd_rows.h"
#include "runtime/cpu/simd_scores.h"
#include "runtime/cpu/simd_table.h"

namespace orrery::cpu {

const Kernels kAvx512Kernels = table("avx512");
const Kernels kAmxKernels = table("amx", matmul_prefill_amx, pack_rows_amx);

}  // namespace orrery::cpu

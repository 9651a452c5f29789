// The AVX2 path: the shared kernels over simd_avx2.h's vector.  Compiled for instructions that the machine
// may lack, so everything but the table has internal linkage.
#include "runtime/cpu/simd_bytes_avx2.h"
// After what multiplies its bytes.
#include "runtime/cpu/simd_avx2.h"
// After the vector that they are written over.
#include "runtime/cpu/simd_attend.h"
#include "runtime/cpu/simd_bands_avx2.h"
#include "runtime/cpu/simd_dot_avx2.h"
// After dot_row().
#include "runtime/cpu/simd_decode.h"
#include "runtime/cpu/simd_low_rank.h"
#include "runtime/cpu/simd_moves.h"
#include "runtime/cpu/simd_prefill.h"
#include "runtime/cpu/simd_rows.h"
#include "runtime/cpu/simd_scores.h"
#include "runtime/cpu/simd_table.h"

namespace orrery::cpu {

const Kernels kAvx2Kernels = table("avx2", matmul_decode, in_bands);

}  // namespace orrery::cpu

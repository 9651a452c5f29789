// The NEON path: the shared kernels over simd_neon.h's vector.  Compiled for instructions that the machine
// may lack, so everything but the table has internal linkage.
#include "runtime/cpu/simd_neon.h"
// After the vector that they are written over.
#include "runtime/cpu/simd_attend.h"
#include "runtime/cpu/simd_dot_neon.h"
// After dot_row().
#include "runtime/cpu/simd_decode.h"
#include "runtime/cpu/simd_low_rank.h"
#include "runtime/cpu/simd_moves.h"
#include "runtime/cpu/simd_prefill_neon.h"
#include "runtime/cpu/simd_rows.h"
#include "runtime/cpu/simd_scores.h"
#include "runtime/cpu/simd_table.h"

namespace orrery::cpu {

const Kernels kNeonKernels = table("neon", matmul_decode, in_bands);

}  // namespace orrery::cpu

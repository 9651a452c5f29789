// The NEON path: the shared kernels over simd_neon.h's vector.  Compiled for instructions that the machine
// may lack, so everything but the table has internal linkage.
#include "runtime/cpu/simd_neon.h"
// After the vector that they are written over.
#include "runtime/cpu/simd_attend.h"
#include "runtime/cpu/simd_dot_neon.h"
// After dot_row().
#include "runtime/cpu/simd_decode.h"
#include "runtime/cpu/simd_prefill_neon.h"
#include "runtime/cpu/simd_rows.h"
#include "runtime/cpu/simd_scores.h"

namespace orrery::cpu {

const Kernels kNeonKernels = {
    "neon",
    quantize_row,
    matmul_decode,
    matmul_prefill,
    kTileOut,
    kTileRows,
    sizeof(MatmulScratch),
    rms_norm,
    rope,
    swiglu,
    add,
    load_kv_vector,
    store_kv_vector,
    attend_decode,
    merge_partials,
    attend_prefill,
    attend_scratch_bytes,
    key_weights,
    key_scores,
};

}  // namespace orrery::cpu

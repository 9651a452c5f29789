// The AVX-512 path: the shared kernels over simd_avx512.h's vector.  Compiled for instructions that the
// machine may lack, so everything but the table has internal linkage.
#include "runtime/cpu/simd_avx512.h"
// After the vector that they are written over.
#include "runtime/cpu/simd_attend.h"
#include "runtime/cpu/simd_dot_avx512.h"
// After dot_row().
#include "runtime/cpu/simd_decode.h"
#include "runtime/cpu/simd_prefill.h"
#include "runtime/cpu/simd_rows.h"
#include "runtime/cpu/simd_scores.h"

namespace orrery::cpu {

const Kernels kAvx512Kernels = {
    "avx512",
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

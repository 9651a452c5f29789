// Decode where there is AVX-512: 256 bits wide, as on AVX2, with its own VNNI.  Memory is what holds it up; vectors of twice the width
// compute no faster from the caches (Q4_K: 34 GB/s on two threads, 42 so), for they would gather scales across twice the lanes, and
// eight rows of a band (products/bands_avx2.h) are eight lanes.  Everything but the two functions has internal linkage.
#include "runtime/cpu/paths/kernels_avx512.h"
#include "runtime/cpu/vectors/bytes_avx2vnni.h"
// After what multiplies its bytes.
#include "runtime/cpu/vectors/avx2.h"
// After the vector that they are written over.
#include "runtime/cpu/products/bands_avx2.h"
#include "runtime/cpu/products/dot_avx2.h"
// After dot_row().
#include "runtime/cpu/products/decode.h"

namespace orrery::cpu {

void matmul_decode_avx512(const MatmulTask& t) { matmul_decode(t); }
bool in_bands_avx512(TensorType type) { return in_bands(type); }

}  // namespace orrery::cpu

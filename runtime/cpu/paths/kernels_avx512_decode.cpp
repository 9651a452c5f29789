// Decode products on machines with AVX-512. Over bands: two bands side by side, 512 bits wide (products/bands_avx512.h). Weights in the
// file's layout, and one or two rows of Q4_K: 256 bits wide, as on AVX2, with AVX-512's VNNI. There 512 bits would gather scales across
// twice as many lanes. Only the three functions have external linkage.
#include "runtime/cpu/paths/kernels_avx512.h"
#include "runtime/cpu/vectors/bytes_avx2vnni.h"
// V inherits from ByteProducts, so its header comes first.
#include "runtime/cpu/vectors/avx2.h"
// These headers use V.
#include "runtime/cpu/products/bands_avx2.h"
#include "runtime/cpu/products/bands_avx512.h"
#include "runtime/cpu/products/dot_avx2.h"
// decode.h uses dot_rows().
#include "runtime/cpu/products/decode.h"

namespace orrery::cpu {

void matmul_decode_avx512(const MatmulTask& t) { matmul_decode(t); }
bool in_bands_avx512(TensorType type) { return in_bands(type); }
bool bands_as_prefill_avx512(TensorType type) { return bands_as_prefill(type); }

}  // namespace orrery::cpu

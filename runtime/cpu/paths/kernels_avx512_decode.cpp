// Decode products on machines with AVX-512. One or two rows, and weights in the file's layout: 256 bits wide, as on AVX2, with AVX-512's
// VNNI. Memory is the limit. Vectors of 512 bits compute no faster from the caches (Q4_K: 34 GB/s on two threads, against 42 with 256
// bits): they would gather scales across twice as many lanes, and the eight rows of a band (products/bands_avx2.h) are eight lanes.
// More rows over bands: 512 bits wide (products/bands_avx512.h), because arithmetic is the limit. Only the three functions have
// external linkage.
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

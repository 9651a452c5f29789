// AVX2 with AVX-VNNI: as kernels_avx2.cpp, but one instruction multiplies and sums bytes. Only the table has external linkage.
#include "runtime/cpu/vectors/bytes_avx2vnni.h"
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
#include "runtime/cpu/paths/table.h"

namespace orrery::cpu {

const Kernels kAvx2VnniKernels = table("avx2vnni", matmul_decode, in_bands, bands_as_prefill);

}  // namespace orrery::cpu

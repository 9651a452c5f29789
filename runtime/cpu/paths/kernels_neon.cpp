// 64-bit ARM: the shared kernels over the vector of vectors/neon.h. Compiled for instructions that the machine may lack, so only
// the table has external linkage.
#include "runtime/cpu/vectors/neon.h"
// These headers use V.
#include "runtime/cpu/attention/attend.h"
#include "runtime/cpu/products/dot_neon.h"
// decode.h uses dot_rows().
#include "runtime/cpu/products/decode.h"
#include "runtime/cpu/attention/encode.h"
#include "runtime/cpu/attention/low_rank.h"
#include "runtime/cpu/attention/moves.h"
#include "runtime/cpu/products/prefill_neon.h"
#include "runtime/cpu/products/rows.h"
#include "runtime/cpu/attention/scores.h"
#include "runtime/cpu/products/recurrent.h"
#include "runtime/cpu/paths/table.h"

namespace orrery::cpu {

const Kernels kNeonKernels = table("neon", matmul_decode, in_bands, bands_as_prefill);

}  // namespace orrery::cpu

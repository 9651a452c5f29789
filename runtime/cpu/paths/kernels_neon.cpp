// The NEON path: the shared kernels over vectors/neon.h's vector.  Compiled for instructions that the machine
// may lack, so everything but the table has internal linkage.
#include "runtime/cpu/vectors/neon.h"
// After the vector that they are written over.
#include "runtime/cpu/attention/attend.h"
#include "runtime/cpu/products/dot_neon.h"
// After dot_row().
#include "runtime/cpu/products/decode.h"
#include "runtime/cpu/attention/low_rank.h"
#include "runtime/cpu/attention/moves.h"
#include "runtime/cpu/products/prefill_neon.h"
#include "runtime/cpu/products/rows.h"
#include "runtime/cpu/attention/scores.h"
#include "runtime/cpu/paths/table.h"

namespace orrery::cpu {

const Kernels kNeonKernels = table("neon", matmul_decode, in_bands);

}  // namespace orrery::cpu

// Prefill's products on AMX's tiles.  Compiled for instructions that the machine may lack, so everything but
// the one function has internal linkage.
#include "runtime/cpu/kernels_amx.h"

#include "runtime/cpu/simd_avx512.h"
// After the vector that it is written over.
#include "runtime/cpu/simd_amx.h"

namespace orrery::cpu {

void matmul_prefill_amx(const MatmulTask& t) {
  by_type(
      t.type, [&](auto format) { tile_blocks<decltype(format)>(t); },
      [&](auto type) {
        if constexpr (decltype(type)::value == TensorType::f32)
          prefill_floats<TensorType::f32>(t);
        else
          tile_halves<decltype(type)::value>(t);
      });
}

}  // namespace orrery::cpu

// Prefill's products and its attention on AMX's tiles.  Compiled for instructions that the machine may lack, so everything but
// the functions of kernels_avx512.h has internal linkage.
#include "runtime/cpu/kernels_avx512.h"

#include "runtime/cpu/simd_avx512.h"
// After the vector that they are written over.
#include "runtime/cpu/simd_amx.h"
#include "runtime/cpu/simd_amx_attend.h"

namespace orrery::cpu {

void pack_rows_amx(const float* x, int64_t x_stride, int64_t n_rows, int64_t n, std::byte* out) {
  for (int64_t c = 0; c < n; c += kPackedColumns, out += kPackedTileBytes) {
    V::F pairs[kPackedRows];
    for (int64_t r = 0; r < kPackedRows; ++r) {
      const std::byte* row = reinterpret_cast<const std::byte*>(x + r * x_stride);
      pairs[r] = r < n_rows ? _mm512_castsi512_ps(rounded(load_left<TensorType::f32>(row, c, n - c),
                                                          load_left<TensorType::f32>(row, c + 16, n - c - 16)))
                            : V::zero();
    }
    V::transpose(pairs);
    for (int i = 0; i < kPackedRows; ++i) V::store(reinterpret_cast<float*>(out) + i * kPackedRows, pairs[i]);
  }
}

void matmul_prefill_amx(const MatmulTask& t) {
  by_type(
      t.type, [&](auto format) { multiply_tiles(t, unpack_blocks<decltype(format)>); },
      [&](auto type) {
        if constexpr (decltype(type)::value == TensorType::f32)
          prefill_floats<TensorType::f32>(t);
        else
          multiply_tiles(t, unpack_floats<decltype(type)::value>);
      });
}

void attend_prefill_amx(const PrefillTask& t) { attend_steps<kMostSteps>(t); }

// What takes a page's conversion to few parts of a hundred, and a task's queries and outputs to less than half of a second-level cache
// of 2 MB.
int32_t prefill_queries_amx(int32_t head_dim) {
  constexpr int64_t kMost = 2048, kValues = int64_t{1} << 17;
  const int64_t fitting = kValues / tiled_dim(head_dim);
  return static_cast<int32_t>(fitting < kMost ? fitting : kMost);
}

int64_t attend_scratch_bytes_amx(int32_t head_dim) {
  AttendTiles s;
  const int64_t n_blocks = (prefill_queries_amx(head_dim) + kQueries - 1) / kQueries;
  return attend_tiles(nullptr, tiled_dim(head_dim), n_blocks, &s);
}

}  // namespace orrery::cpu

// A head's product is cut as other products are, by the same kernels: the heads' matrices are one matrix, and a head's outputs are a
// stretch of its rows. So decode reads each head's matrix once for all rows of the step.
#include "runtime/cpu/head_products.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/cpu/formats/bands.h"
#include "runtime/cpu/formats/blocks.h"
#include "runtime/cpu/items.h"
#include "runtime/cpu/planners/matmul.h"

namespace orrery::cpu {

void multiply_heads(const ExpertsWork& work, const Weight& w, int32_t n_heads, const float* x, int64_t x_dim, float* out, int64_t out_dim) {
  const int64_t n_rows = work.n_rows, n_in = w.n_cols, n_out = w.n_rows / n_heads;
  const bool in_bands = w.repacked;
  const bool decodes = work.decode || (n_rows <= kShortPrompt && in_bands && work.kernels.bands_as_prefill(w.type));
  const bool packs = !decodes && work.kernels.packs && work.kernels.packs(w.type), quantizes = !packs && block_format(w.type) != nullptr;
  const int64_t quantized_stride = quantized_row_bytes(n_in), strip_bytes = packed_strip_bytes(n_in),
                n_strips = div_up<int64_t>(n_rows, kPackedRows);
  const int64_t x_stride = n_heads * x_dim, out_stride = n_heads * out_dim;
  if (packs)
    for_items(work, n_heads * n_strips, kPackedRows * n_in, [&](int64_t i) {
      const int64_t head = i / n_strips, first = i % n_strips * kPackedRows;
      work.kernels.pack_rows(x + first * x_stride + head * x_dim, x_stride, std::min<int64_t>(kPackedRows, n_rows - first), n_in,
                             work.quantized + i * strip_bytes);
    });
  if (quantizes) {
    const StepTrace::Scope scope(work.trace, Operation::quantize, static_cast<uint64_t>(n_rows * n_heads * n_in) * sizeof(float));
    for_items(work, n_heads * n_rows, n_in, [&](int64_t i) {
      work.kernels.quantize_row(x + i % n_rows * x_stride + i / n_rows * x_dim, n_in, work.quantized + i * quantized_stride);
    });
  }

  const auto row_size = static_cast<int64_t>(in_bands ? band_bytes(w.type, static_cast<uint64_t>(n_in)) / kBandRows
                                                      : row_bytes(w.type, static_cast<uint64_t>(n_in)));
  int64_t outs = work.kernels.tile_out, rows = work.kernels.tile_rows;
  if (decodes) {
    constexpr int64_t kLeast = int64_t{16} << 10, kMost = int64_t{256} << 10;
    const int64_t share = std::clamp(w.n_rows * row_size / (8 * work.pool->n_threads()), kLeast, kMost);
    outs = static_cast<int64_t>(align_up(static_cast<uint64_t>(div_up(share, row_size)), kBandRows)), rows = n_rows;
  }
  const int64_t out_tiles = div_up(n_out, outs), row_tiles = div_up(n_rows, rows), n_copied = std::min(x_dim - n_in, out_dim - n_out);
  const StepTrace::Scope scope(work.trace, Operation::product, static_cast<uint64_t>(w.n_rows * row_size), w.type, w.n_rows, n_in);
  work.pool->run(n_heads * out_tiles * row_tiles, [&](int64_t item, int32_t thread) {
    const StepTrace::Busy busy(work.trace, thread);
    const int64_t head = item / (out_tiles * row_tiles), first = item / row_tiles % out_tiles * outs;
    MatmulTask task{};
    task.type = w.type, task.weight = host(w.data), task.in_bands = in_bands, task.row_bytes = row_size, task.n_columns = n_in;
    task.first_out = head * n_out + first, task.last_out = head * n_out + std::min(n_out, first + outs);
    task.x = x + head * x_dim, task.x_stride = x_stride;
    task.quantized = work.quantized + head * n_rows * quantized_stride, task.quantized_stride = quantized_stride;
    task.packed = packs ? work.quantized + head * n_strips * strip_bytes : nullptr;
    task.first_row = item % row_tiles * rows, task.last_row = std::min(n_rows, task.first_row + rows);
    task.out = out + head * (out_dim - n_out), task.out_stride = out_stride;  // output head * n_out is the head's first
    task.scratch = work.threads + static_cast<uint64_t>(thread) * work.thread_bytes;
    (decodes ? work.kernels.matmul_decode : work.kernels.matmul_prefill)(task);
    if (first > 0 || n_copied <= 0) return;
    for (int64_t r = task.first_row; r < task.last_row; ++r)
      std::copy_n(x + r * x_stride + head * x_dim + n_in, n_copied, out + r * out_stride + head * out_dim + n_out);
  });
}

}  // namespace orrery::cpu

// For now prompts take decode's kernels.
#include "cuda/kernels.h"

namespace orrery::cuda {

void matmul_prefill(Queue& queue, const DeviceShape& device, const Products& products, ConstRows x, const QuantizedRows& quantized,
                    int32_t n_rows) {
  matmul_decode(queue, device, products, x, quantized, n_rows);
}

}  // namespace orrery::cuda

#include "cuda/kernels.h"

namespace orrery::cuda {

void matmul_prefill(Queue& , const DeviceShape& , const Products& , ConstRows , const QuantizedRows& ,
                    int32_t ) {}

}  // namespace orrery::cuda

#include "cuda/kernels.h"

namespace orrery::cuda {

void embed(Queue& , const StepView& , const Weight& , float* , int32_t ) {}

}  // namespace orrery::cuda

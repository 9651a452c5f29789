#include "cuda/kernels.h"

namespace orrery::cuda {

void attend_prefill(Queue& , const DeviceShape& , const StepView& , const Attention& , ConstRows , Rows ,
                    int32_t , std::byte* ) {}

}  // namespace orrery::cuda

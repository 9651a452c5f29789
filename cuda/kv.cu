#include "cuda/kernels.h"

namespace orrery::cuda {

void append_kv(Queue& , const StepView& , const KvFormat& , KvType , bool , int32_t , ConstRows ,
               ConstRows , int32_t ) {}
void convert_kv(Queue& , std::byte* , KvType , const std::byte* , KvType , uint64_t ) {}
void keep_queries(Queue& , const StepView& , float* , int32_t , ConstRows , int64_t , int32_t ) {}

}  // namespace orrery::cuda

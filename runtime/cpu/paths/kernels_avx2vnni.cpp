// AVX2 with AVX-VNNI: one instruction multiplies and sums bytes. Products with weights, and decode attention over quantized KV, for the
// table of kernels_avx2.cpp. Only the functions of kernels_avx2.h have external linkage.
#include "runtime/cpu/paths/kernels_avx2.h"

#include "runtime/cpu/vectors/bytes_avx2vnni.h"
// V inherits from ByteProducts, so its header comes first.
#include "runtime/cpu/vectors/avx2.h"
// These headers use V.
#include "runtime/cpu/attention/attend.h"
#include "runtime/cpu/products/bands_avx2.h"
#include "runtime/cpu/products/dot_avx2.h"
// decode.h uses dot_rows().
#include "runtime/cpu/products/decode.h"
#include "runtime/cpu/products/prefill.h"

namespace orrery::cpu {

void matmul_decode_avx2vnni(const MatmulTask& t) { matmul_decode(t); }
void matmul_prefill_avx2vnni(const MatmulTask& t) { matmul_prefill(t); }
bool in_bands_avx2vnni(TensorType type) { return in_bands(type); }
bool bands_as_prefill_avx2vnni(TensorType type) { return bands_as_prefill(type); }

void attend_decode_avx2vnni(const DecodeTask& t) {
  if (t.kv.type == KvType::q8_0) return decode_type<KvType::q8_0>(t);
  t.kv.type == KvType::k8v4 ? decode_type<KvType::k8v4>(t) : decode_type<KvType::q4_0>(t);
}

}  // namespace orrery::cpu

// Keys and values on the device: constants of their layout by type, loads and stores of single values, arithmetic on halves, RoPE and the
// norm of a head's vector value by value, and the one table of head sizes that attention is compiled for. The size of a tile, and of a
// warp's strip of it, is a multiple of 16 bytes in every type.
#pragma once

#include <type_traits>

#include "cuda/kernels/kernels.h"
#include "cuda/device/ptx.h"

namespace orrery::cuda {

inline constexpr char kNoSuchHead[] = "attending with heads of a size that no kernel is made for";

// What runtime/backend/kv.h says, for device code: the type of K or V; the bytes of n values of K, of V, or of whole tokens; and from a
// token's K to its V.
ORRERY_HOST_DEVICE constexpr KvType part_type(KvType type, int is_value) {
  return type != KvType::k8v4 ? type : is_value ? KvType::q4_0 : KvType::q8_0;
}
ORRERY_HOST_DEVICE constexpr int kv_bytes(KvType type, int n) {
  return type == KvType::f32    ? 4 * n
         : type == KvType::f16  ? 2 * n
         : type == KvType::q8_0 ? n / 32 * 34
         : type == KvType::q4_0 ? n / 32 * 18
                                : n / 32 * 26;  // K8V4: the mean of both
}
constexpr bool kv_is_the_tables() {
  for (const KvTypeRow& row : kKvTypeRows)
    if (part_type(row.type, 0) != row.key || part_type(row.type, 1) != row.value || kv_bytes(row.type, row.block_values) != row.block_bytes)
      return false;
  return true;
}
static_assert(kv_is_the_tables(), "device code has the bytes and parts of kKvTypeRows");
ORRERY_HOST_DEVICE constexpr int value_at(KvType type, int head_dim) { return kv_bytes(part_type(type, 0), head_dim); }

// kShared: KvFormat::shared_values.
template <KvType kType, int kDim, int kShared>
struct KvLayout {
  static constexpr KvType kKeyType = part_type(kType, 0), kValueType = part_type(kType, 1);
  static constexpr int kValueDim = kShared > 0 ? kShared : kDim;
  static constexpr int kKeyBytes = kv_bytes(kKeyType, kDim), kValueBytes = kShared > 0 ? 0 : kv_bytes(kValueType, kDim);
  static constexpr int kTokenBytes = kKeyBytes + kValueBytes;     // K, then V, if it is not a part of K
  static constexpr int kValueFrom = kShared > 0 ? 0 : kKeyBytes;  // from a token's K to its V
  static constexpr int kKeyBlockBytes = kv_bytes(kKeyType, 32), kValueBlockBytes = kv_bytes(kValueType, 32);  // of 32 values
  static_assert(kKeyType == key_type(kType) && kKeyBytes == key_bytes(kType, kDim) && kValueType == value_type(kType) &&
                    (kShared > 0 || (kValueBytes == value_bytes(kType, kDim) && kTokenBytes == kv_bytes(kType, 2 * kDim))),
                "as runtime/backend/kv.h");
};

template <KvType kType>
using KvTypeIs = std::integral_constant<KvType, kType>;
template <int kDim>
using DimIs = std::integral_constant<int, kDim>;

// The one table of head sizes. Calls body(KvTypeIs<type>{}, DimIs<head_dim>{}, DimIs<KvFormat::shared_values>{}).
template <KvType kType, class F>
void with_latent_dim(int head_dim, const F& body) {
  switch (head_dim) {
    case 48:  // the tests' models have such rows
      if constexpr (!in_blocks(kType)) body(KvTypeIs<kType>{}, DimIs<48>{}, DimIs<32>{});
      return;
    case 96:
      if constexpr (!in_blocks(kType)) body(KvTypeIs<kType>{}, DimIs<96>{}, DimIs<64>{});
      return;
    case 576:  // of DeepSeek-V2 and its kin. In F32 decode has no registers for it
      if constexpr (kType == KvType::f16) body(KvTypeIs<kType>{}, DimIs<576>{}, DimIs<512>{});
      return;
    default: return;
  }
}
template <KvType kType, class F>
void with_head_dim(int head_dim, int shared_values, const F& body) {
  constexpr DimIs<0> kNone;
  if (shared_values > 0) return with_latent_dim<kType>(head_dim, body);
  switch (head_dim) {
    case 16:  // the tests' models have such heads
      if constexpr (!in_blocks(kType)) body(KvTypeIs<kType>{}, DimIs<16>{}, kNone);
      return;
    case 32: return body(KvTypeIs<kType>{}, DimIs<32>{}, kNone);
    case 64: return body(KvTypeIs<kType>{}, DimIs<64>{}, kNone);
    case 80:
      if constexpr (!in_blocks(kType)) body(KvTypeIs<kType>{}, DimIs<80>{}, kNone);
      return;
    case 96: return body(KvTypeIs<kType>{}, DimIs<96>{}, kNone);
    case 128: return body(KvTypeIs<kType>{}, DimIs<128>{}, kNone);
    case 256: return body(KvTypeIs<kType>{}, DimIs<256>{}, kNone);
    case 512:  // in F32 decode has no registers for it
      if constexpr (kType != KvType::f32) body(KvTypeIs<kType>{}, DimIs<512>{}, kNone);
      return;
    default: return;  // attends() is false
  }
}
template <class F>
void with_kv_type(KvType type, int head_dim, int shared_values, const F& body) {
  switch (type) {
    case KvType::f32: return with_head_dim<KvType::f32>(head_dim, shared_values, body);
    case KvType::f16: return with_head_dim<KvType::f16>(head_dim, shared_values, body);
    case KvType::q8_0: return with_head_dim<KvType::q8_0>(head_dim, shared_values, body);
    case KvType::q4_0: return with_head_dim<KvType::q4_0>(head_dim, shared_values, body);
    case KvType::k8v4: return with_head_dim<KvType::k8v4>(head_dim, shared_values, body);
  }
}

// Pragmas before loops: unroll whole, or twice where more would spill registers.
#ifdef __CUDACC__
#define ORRERY_UNROLL _Pragma("unroll")
#define ORRERY_UNROLL_TWICE _Pragma("unroll 2")
#else
#define ORRERY_UNROLL
#define ORRERY_UNROLL_TWICE
#endif

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Load words from memory that is aligned to 2 bytes only.
__device__ __forceinline__ uint32_t load_16(const std::byte* p) { return *reinterpret_cast<const uint16_t*>(p); }
__device__ __forceinline__ uint32_t load_2x16(const std::byte* p) { return load_16(p) | load_16(p + 2) << 16; }
__device__ __forceinline__ float half_at(const std::byte* p) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const unsigned short*>(p)));
}

// Each lane loads one of the 32 values from index 32 * block on. The type is that of a K or V (part_type()).
__device__ __forceinline__ float load_value(KvType type, const std::byte* values, int64_t block, int lane) {
  switch (type) {
    case KvType::f32: return reinterpret_cast<const float*>(values)[block * 32 + lane];
    case KvType::f16: return half_at(values + (block * 32 + lane) * 2);
    case KvType::q8_0: {
      const std::byte* b = values + block * 34;
      return __fmul_rn(half_at(b), static_cast<float>(static_cast<int8_t>(b[2 + lane])));
    }
    default: {
      const std::byte* b = values + block * 18;
      const int pair = static_cast<int>(static_cast<uint8_t>(b[2 + lane % 16]));
      return __fmul_rn(half_at(b), static_cast<float>((pair >> (lane / 16 * 4) & 15) - 8));
    }
  }
}

__device__ __forceinline__ uint32_t half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
__device__ __forceinline__ uint32_t pack_halves(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  return __half_as_ushort(pair.x) | static_cast<uint32_t>(__half_as_ushort(pair.y)) << 16;
}
__device__ __forceinline__ float finite_or_zero(float x) { return fabsf(x) < INFINITY ? x : 0.0f; }

__device__ __forceinline__ void store_half(std::byte* to, uint32_t bits) { *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bits); }

// Each lane stores one of the 32 values from index 32 * block on, and returns the value that load_value() will read. In quantized types all
// lanes of the warp take part.
__device__ __forceinline__ float store_value(KvType type, float value, std::byte* values, int64_t block, int lane) {
  switch (type) {
    case KvType::f32: reinterpret_cast<float*>(values)[block * 32 + lane] = value; return value;
    case KvType::f16: {
      const uint32_t bits = half_bits(value);
      store_half(values + (block * 32 + lane) * 2, bits);
      return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    }
    case KvType::q8_0: {  // d = max|x| / 127, q = x / d rounded to nearest, ties away from zero
      std::byte* b = values + block * 34;
      const float x = finite_or_zero(value), d = warp_max(fabsf(x)) / 127.0f, inverse = finite_or_zero(1.0f / d);
      const uint32_t scale = half_bits(d);
      const int q = static_cast<int>(roundf(__fmul_rn(x, inverse)));
      if (lane == 0) store_half(b, scale);
      b[2 + lane] = static_cast<std::byte>(q & 255);
      return __fmul_rn(__half2float(__ushort_as_half(static_cast<unsigned short>(scale))), static_cast<float>(static_cast<int8_t>(q)));
    }
    default: {  // d = (the first value of largest magnitude) / -8, q = x / d + 8.5 truncated to an integer, at most 15
      std::byte* b = values + block * 18;
      const float x = finite_or_zero(value), largest = warp_max(fabsf(x));
      const int first = __ffs(static_cast<int>(__ballot_sync(kAllLanes, fabsf(x) == largest))) - 1;
      const float d = __shfl_sync(kAllLanes, x, first) / -8.0f, inverse = finite_or_zero(1.0f / d);
      const uint32_t scale = half_bits(d);
      const int q = min(15, static_cast<int>(__fadd_rn(__fmul_rn(x, inverse), 8.5f)));
      const int upper = __shfl_down_sync(kAllLanes, q, 16);
      if (lane == 0) store_half(b, scale);
      if (lane < 16) b[2 + lane] = static_cast<std::byte>(q | upper << 4);
      return __fmul_rn(__half2float(__ushort_as_half(static_cast<unsigned short>(scale))), static_cast<float>(q - 8));
    }
  }
}
// Rounds a and b to halves, and rounds the two errors to halves, too. Both halves together keep 22 bits of each value.
__device__ __forceinline__ void split_halves(float a, float b, uint32_t* high, uint32_t* low) {
  const __half2 pair = __floats2half2_rn(a, b);
  *high = __half_as_ushort(pair.x) | static_cast<uint32_t>(__half_as_ushort(pair.y)) << 16;
  *low = pack_halves(a - __half2float(pair.x), b - __half2float(pair.y));
}
__device__ __forceinline__ __half2 half2_of(uint32_t bits) {
  __half2 pair;
  pair.x = __ushort_as_half(static_cast<unsigned short>(bits & 0xFFFFu));
  pair.y = __ushort_as_half(static_cast<unsigned short>(bits >> 16));
  return pair;
}
__device__ __forceinline__ uint32_t bits_of(__half2 pair) {
  return __half_as_ushort(pair.x) | static_cast<uint32_t>(__half_as_ushort(pair.y)) << 16;
}

// Converts two codes of Q8_0 or Q4_0 to halves. `bytes` has each code plus kCodeOffset. A half with the upper byte 0x64 and the lower byte
// b is 1024 + b, so one subtraction gives the code exactly.
template <KvType kType>
inline constexpr uint32_t kCodeOffset = kType == KvType::q8_0 ? 128 : 8;
template <KvType kType>
__device__ __forceinline__ uint32_t codes_to_halves(uint32_t bytes, uint32_t selector) {
  constexpr uint32_t kHalf = 0x6400 + kCodeOffset<kType>;
  return bits_of(__hsub2(half2_of(__byte_perm(bytes, 0x64646464u, selector)), half2_of(kHalf | kHalf << 16)));
}

// Where a part of the step's state lies in another sequence's block: `first` is its address in the first block (StepView).
template <class T>
__device__ __forceinline__ const T* of_sequence(const StepView& step, const T* first, int sequence) {
  return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(first) + sequence * step.sequence_bytes);
}

// The keys that a row sees, of one KV head.
struct KeySpan {
  const uint64_t* tiles;
  uint64_t offset;                  // of the layer and the head in a tile
  int first, last;                  // the row sees keys [first, last)
  const float* compensation_token;  // a resident head's compensation token, beside its keys
  float compensation_weight;
  const float* compensation_logs;    // (group) its weight for each query head, as log2; or null
  const float* compensation_values;  // (group, head_dim) its V for each query head; or null
};
// Where one layer's keys lie: kernels make a row's KeySpan of it.
struct KvPlace {
  uint64_t layer_offset, head_bytes;
  int32_t first_head;  // layer * n_kv_heads
  int32_t first_page;  // Attention::first_page
  int32_t window;
  bool resident;
};
inline KvPlace kv_place(const Attention& a) {
  return {a.resident ? 0 : a.kv.head_offset(a.layer, 0),
          a.resident ? 0 : a.kv.head_bytes(),
          a.layer * a.kv.n_kv_heads,
          a.first_page,
          a.window,
          a.resident};
}
__device__ __forceinline__ KeySpan key_span(const StepView& step, const KvPlace& place, int row, int kv_head) {
  const Row r = step.rows[row];
  if (place.resident) {
    const DeviceHead& head = of_sequence(step, step.heads, r.sequence)[place.first_head + kv_head];
    return {
        head.tiles, 0, 0, head.n_keys, head.compensation_token, head.compensation_weight, head.compensation_logs, head.compensation_values};
  }
  return {of_sequence(step, step.pages, r.sequence) + place.first_page,
          place.layer_offset + static_cast<uint64_t>(kv_head) * place.head_bytes,
          first_visible(r.position, place.window),
          r.position + 1,
          nullptr,
          0.0f,
          nullptr,
          nullptr};
}

// Rotates a pair by an angle.
__device__ __forceinline__ float2 rotated(float first, float second, float cosine, float sine) {
  return make_float2(fmaf(first, cosine, -__fmul_rn(second, sine)), fmaf(first, sine, __fmul_rn(second, cosine)));
}

// The factor of the RMS norm for a vector of `dim` values. sum: of the values' squares.
__device__ __forceinline__ float norm_scale(float sum, int dim, float eps) { return 1.0f / sqrtf(sum / static_cast<float>(dim) + eps); }

}  // namespace orrery::cuda

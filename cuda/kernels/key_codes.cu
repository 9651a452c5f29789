// Key codes (runtime/backend/key_codes.h): means and codes, made between steps; and weights of queries by codes, which take the place of
// kernel 1 of top_keys.cu. README.md: the cost.
//
// Making codes. A warp has the two keys whose codes share bytes of a tile. A lane has dimensions lane, 32 + lane, ... of a key, so a
// dimension's partner in the Hadamard transform is in another lane or in another register. Sums and roundings are those of the CPU backend:
// codes and factors have its bits.
//
// Weights by codes. A thread block prepares up to 8 rows of queries: it rotates them, and rounds them to 16 bits, as an upper and a lower
// byte. Levels are whole numbers of one byte (4 bits: of 14 bits, as two bytes). So m16n8k32 on bytes adds up products exactly: rows 0 to 7
// of the products are the queries' upper bytes, rows 8 to 15 the lower ones, columns are 8 keys. A warp has a tile. A lane loads words of 8
// keys' groups and turns them into the columns' bytes: two permutations of bytes gather the codes of one key, and a third one looks up
// their levels.
#include <algorithm>
#include <cmath>

#include "cuda/device/launch.h"
#include "cuda/kernels/top_keys.cuh"

namespace orrery::cuda {

namespace key_codes_cu {

using namespace top_keys_cu;

constexpr int kThreads = 256, kWarps = kThreads / 32, kMostLaneDims = 16;  // of a lane: head_dim / 32, 8 or 16 (kLaneDims)
constexpr int kHalfTile = kPageTokens / 2;
constexpr int kAhead = 8;  // loads under way

struct CodesWork {
  const CodesPart* parts;
  KvType type;                           // of K, or of V
  int32_t place, token_bytes, head_dim;  // place: from a token's first byte to the K or V
  int32_t first_page;                    // the pages' table begins with this one
};
__device__ __forceinline__ const std::byte* token_at(const CodesWork& w, const CodesPart& part, int token) {
  const uint64_t page = part.pages[token / kPageTokens - w.first_page] + part.offset;
  return reinterpret_cast<const std::byte*>(page) + token % kPageTokens * w.token_bytes + w.place;
}

// The dimension of a thread, of up to kThreads in a thread block.
__device__ __forceinline__ int own_dim() { return static_cast<int>(blockIdx.z * kThreads + threadIdx.x); }

// A thread block has a head, or half of a large one, and a thread a dimension.
__global__ void __launch_bounds__(kThreads) mean_keys_kernel(CodesWork w, int first, int end, int step) {
  const CodesPart part = w.parts[blockIdx.x];
  const int at = own_dim(), n = end > first ? (end - first + step - 1) / step : 0;
  if (at >= w.head_dim) return;
  double sum = 0.0;
  for (int i = 0; i < n; i += kAhead) {
    float x[kAhead];
    ORRERY_UNROLL for (int j = 0; j < kAhead; ++j) x[j] =
        i + j < n ? load_value(w.type, token_at(w, part, first + (i + j) * step), at / 32, at % 32) : 0.0f;
    ORRERY_UNROLL for (int j = 0; j < kAhead; ++j) sum += static_cast<double>(x[j]);
  }
  part.mean[at] = static_cast<float>(sum / static_cast<double>(max(n, 1)));
}

// A thread block has a page of a head, or half of a large one, and a thread a dimension: the sum of the page's V, in floats.
__global__ void __launch_bounds__(kThreads) page_values_kernel(CodesWork w) {
  const CodesPart part = w.parts[blockIdx.y];
  const int at = own_dim(), page = static_cast<int>(blockIdx.x), n = min(part.n_shares - page * kPageTokens, kPageTokens);
  if (at >= w.head_dim || n <= 0) return;
  const float* shares = part.shares + page * kPageTokens;
  float sum = 0.0f;
  for (int i = 0; i < n; i += kAhead) {
    float x[kAhead], share[kAhead];
    ORRERY_UNROLL for (int j = 0; j < kAhead; ++j) share[j] = i + j < n ? shares[i + j] : 0.0f;
    ORRERY_UNROLL for (int j = 0; j < kAhead; ++j)  // a share of 0 reads nothing
        x[j] = share[j] != 0.0f ? load_value(w.type, token_at(w, part, page * kPageTokens + i + j), at / 32, at % 32) : 0.0f;
    ORRERY_UNROLL for (int j = 0; j < kAhead; ++j) sum = __fadd_rn(sum, __fmul_rn(share[j], x[j]));
  }
  part.sums[static_cast<int64_t>(page) * w.head_dim + at] = sum;
}

// A thread block has a head, or half of a large one, and a thread a dimension: the sum of its pages, in order.
__global__ void __launch_bounds__(kThreads) mean_values_kernel(CodesWork w) {
  const CodesPart part = w.parts[blockIdx.x];
  const int at = own_dim(), n_pages = (part.n_shares + kPageTokens - 1) / kPageTokens;
  if (at >= w.head_dim) return;
  double sum = 0.0;
  for (int page = 0; page < n_pages; ++page) sum += static_cast<double>(part.sums[static_cast<int64_t>(page) * w.head_dim + at]);
  part.mean[at] = static_cast<float>(sum);
}

// x = T x: x[i] is dimension 32 i + lane. scale: 1 / sqrt(block).
template <int kLaneDims>
__device__ __forceinline__ void transform(float (&x)[kLaneDims], int lane, int block, float scale) {
  if (block <= 1) return;
  for (int h = 1; h < 32 && h < block; h *= 2) {
    ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, x[i], h);
      x[i] = lane & h ? other - x[i] : x[i] + other;
    }
  }
  ORRERY_UNROLL for (int h = 1; h < kLaneDims; h *= 2) {
    if (32 * h >= block) break;
    ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) {
      if (i & h) continue;
      const float a = x[i], b = x[i + h];
      x[i] = a + b, x[i + h] = a - b;
    }
  }
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) x[i] = __fmul_rn(x[i], scale);
}

// The sum of all lanes' numbers, in 16 chains: chain c has dimensions c, 16 + c, ... The chains are added in the CPU backend's order.
template <int kLaneDims>
__device__ __forceinline__ float sum_in_chains(const float (&x)[kLaneDims], int dim, int lane) {
  float sum = 0.0f;
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) {
    if (32 * i >= dim) break;
    const float low = __shfl_sync(kAllLanes, x[i], lane % 16), high = __shfl_sync(kAllLanes, x[i], 16 + lane % 16);
    sum = __fadd_rn(__fadd_rn(sum, low), high);
  }
  ORRERY_UNROLL for (int i = 8; i > 0; i /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, i));
  return sum;
}

// The codebook, as constants that device code may read: functions of the host's headers it may not call.
template <int kBits, int i>
inline constexpr float kLevel = key_code_level(kBits, i < 1 << kBits ? i : 0);
template <int kBits>
struct Codebook {
  static constexpr int kLevels = 1 << kBits;
  float level[16] = {kLevel<kBits, 0>,  kLevel<kBits, 1>,  kLevel<kBits, 2>,  kLevel<kBits, 3>, kLevel<kBits, 4>,  kLevel<kBits, 5>,
                     kLevel<kBits, 6>,  kLevel<kBits, 7>,  kLevel<kBits, 8>,  kLevel<kBits, 9>, kLevel<kBits, 10>, kLevel<kBits, 11>,
                     kLevel<kBits, 12>, kLevel<kBits, 13>, kLevel<kBits, 14>, kLevel<kBits, 15>};
};

// codes[i] = the code of dimension 32 i + lane. Returns the factor.
template <int kBits, int kLaneDims>
__device__ __forceinline__ float encode(const float (&x)[kLaneDims], int dim, int lane, int (&codes)[kLaneDims]) {
  const Codebook<kBits> book;
  float products[kLaneDims];
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) products[i] = __fmul_rn(x[i], x[i]);
  const float unit = sqrtf(sum_in_chains(products, dim, lane) / static_cast<float>(dim));
  float squares[kLaneDims];
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) {
    float level = book.level[0];
    codes[i] = 0;
    ORRERY_UNROLL for (int j = 0; j + 1 < book.kLevels; ++j) {
      const bool beyond = x[i] > __fmul_rn(unit, .5f * (book.level[j] + book.level[j + 1]));
      codes[i] += beyond;
      if (beyond) level = __fadd_rn(level, book.level[j + 1] - book.level[j]);
    }
    const bool within = 32 * i + lane < dim;
    if (!within) codes[i] = 0;
    products[i] = within ? __fmul_rn(x[i], level) : 0.0f, squares[i] = within ? __fmul_rn(level, level) : 0.0f;
  }
  constexpr float kLargestHalf = 65504;
  const float factor = sum_in_chains(products, dim, lane) / sum_in_chains(squares, dim, lane);
  return !(unit < INFINITY) ? NAN : factor < kLargestHalf ? factor : kLargestHalf;
}

struct EncodeWork {
  CodesWork keys;
  int32_t block;  // of the Hadamard transform
  float scale;
  int32_t first, end;  // tokens
};

// A thread block has a tile. A tile that begins within [first, end) is written whole: codes of tokens behind `end` become 0.
template <int kBits, int kLaneDims>
__global__ void __launch_bounds__(kThreads, 1) encode_keys_kernel(EncodeWork w) {
  constexpr int kOfGroup = 4 / kBits;
  const CodesPart part = w.keys.parts[blockIdx.y];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, dim = w.keys.head_dim;
  const int tile = w.first / kPageTokens + static_cast<int>(blockIdx.x), n_groups = dim / kOfGroup;
  std::byte* codes_at = part.tiles + static_cast<int64_t>(tile) * (n_groups * kHalfTile + 2 * kPageTokens);
  std::byte* factors = codes_at + n_groups * kHalfTile;
  const bool begins = w.first <= tile * kPageTokens;
  float mean[kLaneDims];
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) mean[i] = 32 * i + lane < dim ? part.mean[32 * i + lane] : 0.0f;
  for (int at = warp; at < kHalfTile; at += kWarps) {
    int both[kLaneDims] = {}, kept = 0xFF;  // kept: the bits of the byte that are not written
    for (int half = 0; half < 2; ++half) {
      const int key = tile * kPageTokens + half * kHalfTile + at;
      const bool encoded = key >= w.first && key < w.end;
      if (encoded || begins) kept &= half ? 0x0F : 0xF0;
      uint32_t factor = 0;
      if (encoded) {
        const std::byte* from = token_at(w.keys, part, key);
        float x[kLaneDims];
        ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) x[i] =
            32 * i + lane < dim ? load_value(w.keys.type, from, i, lane) - mean[i] : 0.0f;
        transform(x, lane, w.block, w.scale);
        int codes[kLaneDims];
        factor = half_bits(encode<kBits>(x, dim, lane, codes));
        ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) {
          int group = codes[i] << lane % kOfGroup * kBits;
          ORRERY_UNROLL for (int d = 1; d < kOfGroup; d *= 2) group |= __shfl_xor_sync(kAllLanes, group, d);
          both[i] |= group << 4 * half;
        }
      }
      if (lane == 0 && (encoded || begins)) store_half(factors + 2 * (half * kHalfTile + at), factor);
    }
    if (kept == 0xFF) continue;
    ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) {
      if (32 * i + lane >= dim || lane % kOfGroup) continue;
      std::byte* to = codes_at + (32 * i + lane) / kOfGroup * kHalfTile + at;
      *to = static_cast<std::byte>(both[i] | (kept ? static_cast<int>(*to) & kept : 0));
    }
  }
}

// ---- weights by codes

struct CodesGeometry {
  static constexpr int kTiles = 16;  // of a thread block
  static constexpr int kRows = 8;    // of queries
};
using G = CodesGeometry;

// Levels as whole numbers: level i = unit * (128 * high + low - zero). 1 and 2 bits: `low` alone, signed. 2 bits: 3 and 10 stand for .45278
// and 1.51042, whose ratio is 3.336; the unit halves the error between both.
template <int kBits>
struct Levels {
  float unit = 0, zero = 0;
  uint32_t low[4] = {}, high[4] = {};  // four bytes each
};
template <int kBits>
constexpr Levels<kBits> make_levels() {
  Levels<kBits> l;
  if (kBits == 1) {
    l.unit = key_code_level(1, 1), l.low[0] = 0x01FF;
  } else if (kBits == 2) {
    l.unit = .151024f, l.low[0] = 0x0A03FDF6;
  } else {
    constexpr float kLargest = key_code_level(4, 15);
    l.unit = 2 * kLargest / 16383, l.zero = 16383 / 2.f;
    for (int i = 0; i < 16; ++i) {
      const auto n = static_cast<uint32_t>((key_code_level(4, i) + kLargest) / l.unit + .5f);
      l.low[i / 4] |= (n & 127) << i % 4 * 8, l.high[i / 4] |= (n >> 7) << i % 4 * 8;
    }
  }
  return l;
}
template <int kBits>
inline constexpr float kUnit = make_levels<kBits>().unit;
template <int kBits>
inline constexpr float kZero = make_levels<kBits>().zero;
template <int kBits, int i>
inline constexpr uint32_t kLowLevels = make_levels<kBits>().low[i];
template <int kBits, int i>
inline constexpr uint32_t kHighLevels = make_levels<kBits>().high[i];

// The levels of four codes: nibbles of the selector's low half.
// No byte of a table of 16 levels has its highest bit: a selector of the table's other half gives 0.
template <int kBits>
__device__ __forceinline__ uint32_t low_levels(uint32_t selector) {
  if constexpr (kBits < 4) return permute_bytes(kLowLevels<kBits, 0>, 0, selector);
  return permute_bytes(kLowLevels<kBits, 0>, kLowLevels<kBits, 1>, selector) |
         permute_bytes(kLowLevels<kBits, 2>, kLowLevels<kBits, 3>, selector ^ 0x8888u);
}
__device__ __forceinline__ uint32_t high_levels(uint32_t selector) {
  return permute_bytes(kHighLevels<4, 0>, kHighLevels<4, 1>, selector) |
         permute_bytes(kHighLevels<4, 2>, kHighLevels<4, 3>, selector ^ 0x8888u);
}

// Two codes of four keys, as nibbles of four bytes: `side` 0 has the keys in the low halves of the words' bytes.
template <int kBits>
__device__ __forceinline__ uint32_t first_codes(const uint32_t* words, int side) {
  const uint32_t w = words[0] >> 4 * side;
  if constexpr (kBits == 1) return (w & 0x01010101u) | (w << 3 & 0x10101010u);
  else if constexpr (kBits == 2) return (w & 0x03030303u) | (w << 2 & 0x30303030u);
  else return (w & 0x0F0F0F0Fu) | (words[1] << (side ? 0 : 4) & 0xF0F0F0F0u);
}
template <int kBits>
__device__ __forceinline__ uint32_t next_codes(const uint32_t* words, int side) {
  if constexpr (kBits == 1) {
    const uint32_t w = words[0] >> 4 * side;
    return (w >> 2 & 0x01010101u) | (w << 1 & 0x10101010u);
  } else {
    return first_codes<kBits>(words + kBits / 2, side);
  }
}

// A thread block's queries. Row r's scale turns sums of whole numbers into products times log2(e); `zero` is to be added to these sums.
template <int kLaneDims>
struct CodeRows {
  uint4 fragments[kLaneDims][32];  // steps of 32 dimensions
  float scale[G::kRows], zero[G::kRows];
};

// A warp rotates a query, rounds it to 16 bits, and writes its row of the fragments. q: null for a row of zeros.
template <int kBits, int kLaneDims>
__device__ __forceinline__ void prepare_row(const float* q, int dim, int block, float block_scale, float scale, int row, int lane,
                                            CodeRows<kLaneDims>* rows) {
  constexpr int kOfGroup = 4 / kBits;
  float x[kLaneDims];
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) x[i] = q && 32 * i + lane < dim ? q[32 * i + lane] : 0.0f;
  transform(x, lane, block, block_scale);
  float largest = 0.0f;
  bool finite = true;
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) largest = fmaxf(largest, fabsf(x[i])), finite &= fabsf(x[i]) < INFINITY;
  largest = warp_max(largest);
  const bool usable = !__any_sync(kAllLanes, !finite);
  constexpr float kMost = 127 * 256;
  const float unit = largest / kMost, inverse = unit > 0 ? kMost / largest : 0.0f;
  // A lane's place in each step: word j of its lane t, which has group 4 j + t of the step.
  const int group = lane / kOfGroup, t = group % 4, j = group / 4, byte = j % kBits * kOfGroup + lane % kOfGroup;
  int sum = 0;
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) {
    if (32 * i >= dim) break;
    const int whole = usable ? __float2int_rn(__fmul_rn(x[i], inverse)) : 0, high = (whole + 128) >> 8;
    sum += whole;
    auto* to = reinterpret_cast<int8_t*>(&rows->fragments[i][4 * row + t]) + 8 * (j / kBits) + byte;
    to[0] = static_cast<int8_t>(high), to[4] = static_cast<int8_t>(whole - 256 * high);
  }
  sum = static_cast<int>(warp_total(static_cast<unsigned>(sum)));
  if (lane != 0) return;
  rows->scale[row] = usable ? __fmul_rn(__fmul_rn(unit, __fmul_rn(scale, kLog2E)), kUnit<kBits>) : NAN;
  rows->zero[row] = __fmul_rn(-kZero<kBits>, static_cast<float>(sum));
}

// weight_of(), for a unit that is at least y, less 1/2. 0 for NaN, and for weights below 2^-126.
__device__ __forceinline__ float weight_below(float y, float unit) {
  const float whole = rintf(y), exponent = whole - unit;
  const int bits =
      __float_as_int(exp2_approx(y - whole)) + static_cast<int>(static_cast<unsigned>(__float2int_rn(fmaxf(exponent, -126.0f))) << 23);
  return exponent > -126.0f ? __int_as_float(bits) : 0.0f;
}

struct CodeWeightsWork {
  TopKeysWork top;
  int32_t block;  // of the queries' rotation
  float block_scale;
};

template <int kBits, int kLaneDims>
__global__ void __launch_bounds__(kThreads, kBits == 4 ? 2 : 3) code_weights_kernel(CodeWeightsWork work) {
  constexpr int kWords = 2 * kBits, kParts = kBits == 4 ? 2 : 1, kColumns = 8;  // kColumns: products of 8 keys in a tile
  __shared__ CodeRows<kLaneDims> rows;
  const TopKeysWork& w = work.top;
  const TopKeysPart part = parts_of(w)[blockIdx.y];
  const int first_tile = static_cast<int>(blockIdx.x) * G::kTiles, n_tiles = (part.n_keys + kPageTokens - 1) / kPageTokens;
  if (first_tile >= n_tiles) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, column = lane / 4, t = lane % 4;
  const int group = w.plan.group, dim = w.head_dim, n_groups = dim * kBits / 4, n_steps = (dim + 31) / 32;
  const int n_rows = part.n_positions * group;
  for (int first_row = 0; first_row < n_rows; first_row += G::kRows) {
    if (first_row > 0) __syncthreads();  // all warps have read the rows before
    static_assert(G::kRows == kWarps, "a warp prepares a row");
    const int of_warp = first_row + warp;
    const float* q = in_global(part.queries) + (part.first_position + of_warp / group - w.ring_first) % w.ring_rows * w.ring_stride +
                     of_warp % group * dim;
    prepare_row<kBits>(of_warp < n_rows ? q : nullptr, dim, work.block, work.block_scale, w.scale, warp, lane, &rows);
    __syncthreads();
    for (int tile = first_tile + warp; tile < min(first_tile + G::kTiles, n_tiles); tile += kWarps) {
      // The part in memory: what finds a tile is read once a tile, and stays in no register meanwhile.
      const std::byte* codes = in_global(reinterpret_cast<const std::byte*>(tile_of(parts_of(w)[blockIdx.y], tile)));
      const std::byte* of_lane = codes + t * kHalfTile + 4 * column;
      // Words of group 4 j + t of a step. Only the last step may have half of its dimensions, which are in the first words.
      const auto load = [&](int step, uint32_t(&words)[kWords]) {
        const std::byte* from = of_lane + step * 4 * kWords * kHalfTile;
        const bool whole = 32 * step + 16 < dim;
        ORRERY_UNROLL for (int j = 0; j < kWords; ++j) words[j] =
            j < kBits || whole ? *reinterpret_cast<const uint32_t*>(from + 4 * j * kHalfTile) : 0;
      };
      int32_t sums[kParts][kColumns][4] = {};
      uint32_t next[kWords];
      load(0, next);
      for (int step = 0; step < n_steps; ++step) {
        uint32_t words[kWords];
        ORRERY_UNROLL for (int j = 0; j < kWords; ++j) words[j] = next[j];
        if (step + 1 < n_steps) load(step + 1, next);
        const uint4 query = rows.fragments[step][lane];
        const uint32_t a[4] = {query.x, query.y, query.z, query.w};
        ORRERY_UNROLL for (int half = 0; half < 2; ++half) {
          // Selectors of two keys each: low halves and high halves.
          uint32_t selectors[2][2];
          ORRERY_UNROLL for (int r = 0; r < 2; ++r) {
            const uint32_t first = first_codes<kBits>(words + r * kBits, half), second = next_codes<kBits>(words + r * kBits, half);
            selectors[r][0] = permute_bytes(first, second, 0x5140), selectors[r][1] = permute_bytes(first, second, 0x7362);
          }
          ORRERY_UNROLL for (int i = 0; i < 4; ++i) {
            const uint32_t s[2] = {selectors[0][i / 2] >> i % 2 * 16, selectors[1][i / 2] >> i % 2 * 16};
            int32_t* low = sums[0][4 * half + i];
            const uint32_t b[2] = {low_levels<kBits>(s[0]), low_levels<kBits>(s[1])};
            mma_s8(low, a, b, low);
            if constexpr (kParts == 2) {
              int32_t* high = sums[1][4 * half + i];
              const uint32_t c[2] = {high_levels(s[0]), high_levels(s[1])};
              mma_s8(high, a, c, high);
            }
          }
        }
      }
      // The lane has 8 keys of each half of the tile, for its row: keys 8 t + 4 e + i.
      const float scale = rows.scale[column], zero = rows.zero[column];
      float y[2][8];
      float largest = -INFINITY;
      const int of_lane_first = part.first_key - tile * kPageTokens - 8 * t, of_lane_end = part.n_keys - tile * kPageTokens - 8 * t;
      const bool all_seen = part.first_key <= tile * kPageTokens && (tile + 1) * kPageTokens <= part.n_keys;
      ORRERY_UNROLL for (int half = 0; half < 2; ++half) {
        const uint4 halves = *reinterpret_cast<const uint4*>(codes + n_groups * kHalfTile + 2 * (half * kHalfTile + 8 * t));
        const uint32_t factors[4] = {halves.x, halves.y, halves.z, halves.w};
        ORRERY_UNROLL for (int k = 0; k < 8; ++k) {
          const int i = 4 * half + k % 4, e = k / 4;
          const auto total = [&](int of_part) { return static_cast<float>(sums[of_part][i][e] * 256 + sums[of_part][i][e + 2]); };
          float sum = total(0);
          if constexpr (kParts == 2) sum = fmaf(128.0f, total(1), sum) + zero;
          const float factor = __half2float(__ushort_as_half(static_cast<unsigned short>(factors[k / 2] >> k % 2 * 16 & 0xFFFFu)));
          y[half][k] = __fmul_rn(__fmul_rn(sum, scale), factor);
        }
      }
      if (!all_seen) {
        ORRERY_UNROLL for (int k = 0; k < 2 * 8; ++k) {
          const int key = k / 8 * kHalfTile + k % 8;
          if (key < of_lane_first || key >= of_lane_end) y[k / 8][k % 8] = -INFINITY;
        }
      }
      ORRERY_UNROLL for (int k = 0; k < 2 * 8; ++k) largest = fmaxf(largest, y[k / 8][k % 8]);
      ORRERY_UNROLL for (int i = 1; i < 4; i *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, i));
      const float unit = largest == -INFINITY ? 0.0f : rintf(largest);
      float sum = 0.0f;
      ORRERY_UNROLL for (int half = 0; half < 2; ++half) {
        ORRERY_UNROLL for (int k = 0; k < 8; ++k) y[half][k] = weight_below(y[half][k], unit), sum += y[half][k];
      }
      ORRERY_UNROLL for (int i = 1; i < 4; i *= 2) sum += __shfl_xor_sync(kAllLanes, sum, i);
      if (const int row = first_row + column; row < n_rows) {
        const int g = row % group;
        float* entry = entry_of(w, part.first_entry + row / group);
        float* to = entry + g * w.plan.stride + static_cast<int64_t>(tile) * kPageTokens + 8 * t;
        ORRERY_UNROLL for (int half = 0; half < 2; ++half) {
          ORRERY_UNROLL for (int k = 0; k < 8; k += 4) * reinterpret_cast<float4*>(to + half * kHalfTile + k) =
              make_float4(y[half][k], y[half][k + 1], y[half][k + 2], y[half][k + 3]);
        }
        if (t == 0) units_of(w, entry)[g * w.plan.tile_stride + tile] = unit, sums_of(w, entry)[g * w.plan.tile_stride + tile] = sum;
      }
    }
  }
}

// Scores of held keys count `stay` times. A thread has a held key of a part, of one query.
__global__ void __launch_bounds__(kThreads) weigh_held_kernel(TopKeysWork w) {
  const TopKeysPart& part = parts_of(w)[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= part.n_held) return;
  uint32_t* score = bits_of(w, entry_of(w, part.first_entry)) + part.held[i];
  *score = __float_as_uint(__fmul_rn(__uint_as_float(*score), part.stay));
}

// A thread block has a query head: log2 of the weights of the keys that are not among its part's best ones. TopKeysPart::log_evicted holds
// the largest unit, whose tile has the largest share. Best keys are subtracted from the sum of their tile; a tile of best keys alone adds
// nothing.
__global__ void __launch_bounds__(kThreads) evicted_logs_kernel(TopKeysWork w, int bits, float error) {
  const TopKeysPart& part = parts_of(w)[blockIdx.y];
  if (!part.log_evicted) return;
  const int thread = static_cast<int>(threadIdx.x), g = static_cast<int>(blockIdx.x),
            n_tiles = (part.n_keys + kPageTokens - 1) / kPageTokens;
  float* entry = entry_of(w, part.first_entry);
  const float* weights = entry + g * w.plan.stride + part.first_key;
  const float *shares = units_of(w, entry) + g * w.plan.tile_stride, *sums = sums_of(w, entry) + g * w.plan.tile_stride;
  const uint32_t* best = reinterpret_cast<const uint32_t*>(w.scratch + w.plan.out) + part.first_out;
  const int n_best = part.finds_number ? static_cast<int>(*reinterpret_cast<const uint32_t*>(pairs_of(w, entry))) : part.k;
  float left = 0.0f, largest = 0.0f;
  for (int tile = thread; tile < n_tiles; tile += kThreads) {
    const int begin = max(tile * kPageTokens - part.first_key, 0), end = min((tile + 1) * kPageTokens, part.n_keys) - part.first_key;
    int first = 0, last = n_best;  // searches the first of the best keys in the tile
    while (first < last) {
      const int middle = (first + last) / 2;
      if (static_cast<int>(best[middle]) < begin) first = middle + 1;
      else last = middle;
    }
    largest = fmaxf(largest, shares[tile]);
    float taken = 0.0f;
    for (last = first; last < n_best && static_cast<int>(best[last]) < end; ++last) taken += weights[best[last]];
    if (last - first < end - begin) left = fmaf(fmaxf(sums[tile] - taken, 0.0f), shares[tile], left);
  }
  left = over_block(left, [](float a, float b) { return a + b; });
  largest = over_block(largest, [](float a, float b) { return fmaxf(a, b); });

  // The variance of the query's products, given the codes: a thread has a factor of some tiles, and a dimension, or two.
  static_assert(kVarianceTiles * kPageTokens == kThreads && 32 * kMostLaneDims <= 2 * kThreads,
                "a factor and up to two dimensions for each thread");
  const int n_read = min(n_tiles, kVarianceTiles), of = thread / kPageTokens, tile = n_read > 1 ? of * (n_tiles - 1) / (n_read - 1) : 0;
  const int key = tile * kPageTokens + thread % kPageTokens;
  float square = 0.0f, counts = 0.0f;
  if (of < n_read && key >= part.first_key && key < part.n_keys) {
    const auto* codes = reinterpret_cast<const std::byte*>(tile_of(part, tile));
    const float factor = half_at(codes + w.head_dim * bits / 4 * kHalfTile + 2 * (thread % kPageTokens));
    if (fabsf(factor) < INFINITY) square = factor * factor, counts = 1.0f;
  }
  const float* q = part.queries + (part.first_position - w.ring_first) % w.ring_rows * w.ring_stride + g * w.head_dim;
  const float x = thread < w.head_dim ? q[thread] : 0.0f, further = thread + kThreads < w.head_dim ? q[thread + kThreads] : 0.0f;
  const auto sum = [](float a, float b) { return a + b; };
  const float squares = over_block(square, sum), n = over_block(counts, sum), of_query = over_block(fmaf(further, further, x * x), sum);
  const float variance = w.scale * w.scale * of_query * error * (squares / fmaxf(n, 1.0f));
  if (thread != 0) return;
  float* log = part.log_evicted + g;
  *log = left > 0 && !(variance > kMostCodeVariance) ? *log + log2f(left / largest) : -INFINITY;
}

CodesWork work_of(const CodesPart* parts, const KvFormat& kv, bool values, int32_t first_page) {
  return {parts,
          values ? value_type(kv.type) : key_type(kv.type),
          values ? static_cast<int32_t>(kv.key_bytes()) : 0,
          static_cast<int32_t>(kv.token_bytes()),
          kv.head_dim,
          first_page};
}
// A thread for each dimension: of a thread block, and its number of blocks.
Dim3 threads_of(const KvFormat& kv) { return Dim3(static_cast<unsigned>(std::min((kv.head_dim + 31) / 32 * 32, kThreads))); }
unsigned blocks_of(const KvFormat& kv) { return static_cast<unsigned>((kv.head_dim + kThreads - 1) / kThreads); }
float scale_of(int32_t block) { return 1.0f / std::sqrt(static_cast<float>(block)); }

// Calls body(std::integral_constant<int, bits>{}, std::integral_constant<int, kLaneDims>{}). No policy has codes of 4 bits for heads of
// more than 256 dimensions.
template <class F>
void with_bits(int32_t bits, int32_t head_dim, const F& body) {
  using std::integral_constant;
  constexpr integral_constant<int, 8> kUsual;
  constexpr integral_constant<int, 16> kLarge;
  const bool large = head_dim > 256;
  if (bits == 1) return large ? body(integral_constant<int, 1>{}, kLarge) : body(integral_constant<int, 1>{}, kUsual);
  if (bits == 2) return large ? body(integral_constant<int, 2>{}, kLarge) : body(integral_constant<int, 2>{}, kUsual);
  body(integral_constant<int, 4>{}, kUsual);
}

}  // namespace key_codes_cu
using namespace key_codes_cu;

void mean_keys(Queue& queue, const CodesPart* parts, const KvFormat& kv, int32_t n_parts, int32_t first, int32_t end, int32_t step) {
  launch<mean_keys_kernel>(queue, {Dim3(static_cast<unsigned>(n_parts), 1, blocks_of(kv)), threads_of(kv)},
                           work_of(parts, kv, false, first / kPageTokens), first, end, step);
}

void mean_values(Queue& queue, const CodesPart* parts, const KvFormat& kv, int32_t n_parts, int32_t most_pages) {
  const CodesWork w = work_of(parts, kv, true, 0);
  const auto n = static_cast<unsigned>(n_parts);
  if (most_pages > 0) launch<page_values_kernel>(queue, {Dim3(static_cast<unsigned>(most_pages), n, blocks_of(kv)), threads_of(kv)}, w);
  launch<mean_values_kernel>(queue, {Dim3(n, 1, blocks_of(kv)), threads_of(kv)}, w);
}

void encode_keys(Queue& queue, const CodesPart* parts, const KeyCodesShape& shape, int32_t n_parts, int32_t first, int32_t end) {
  const EncodeWork w = {work_of(parts, shape.kv, false, first / kPageTokens), shape.block, scale_of(shape.block), first, end};
  const int32_t n_tiles = (end - 1) / kPageTokens - first / kPageTokens + 1;
  with_bits(shape.codes.bits, shape.kv.head_dim, [&](auto bits, auto lane_dims) {
    launch<encode_keys_kernel<decltype(bits)::value, decltype(lane_dims)::value>>(
        queue, {Dim3(static_cast<unsigned>(n_tiles), static_cast<unsigned>(n_parts)), Dim3(kThreads)}, w);
  });
}

void code_weights(Queue& queue, const TopKeysWork& work, const KeyCodeFormat& codes, int32_t block, int32_t n_parts, int32_t most_keys) {
  const CodeWeightsWork w = {work, block, scale_of(block)};
  const int32_t of_block = G::kTiles * kPageTokens;
  const Dim3 grid(static_cast<unsigned>((most_keys + of_block - 1) / of_block), static_cast<unsigned>(n_parts));
  with_bits(codes.bits, work.head_dim, [&](auto bits, auto lane_dims) {
    launch<code_weights_kernel<decltype(bits)::value, decltype(lane_dims)::value>>(queue, {grid, Dim3(kThreads)}, w);
  });
}

void weigh_held(Queue& queue, const TopKeysWork& work, int32_t n_parts, int32_t most_held) {
  const Dim3 grid(static_cast<unsigned>((most_held + kThreads - 1) / kThreads), static_cast<unsigned>(n_parts));
  launch<weigh_held_kernel>(queue, {grid, Dim3(kThreads)}, work);
}

void evicted_logs(Queue& queue, const TopKeysWork& work, const KeyCodeFormat& codes, int32_t n_parts) {
  const Dim3 grid(static_cast<unsigned>(work.plan.group), static_cast<unsigned>(n_parts));
  launch<evicted_logs_kernel>(queue, {grid, Dim3(kThreads)}, work, codes.bits, key_code_error(codes.bits));
}

}  // namespace orrery::cuda

// Key codes (runtime/backend/key_codes.h): means and codes, made between steps; weights of queries by codes, which take the place of
// kernel 1 of top_keys.cu; and means of values by codes. README.md: the cost.
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
//
// Turns. A query's products with the means at the positions of a tile are a product of matrices, too: 16 numbers of the query, for each turn
// one that counts the cosines and one that counts the sines, and 16 cosines and sines of each key. m16n8k16 on halves multiplies them; a
// number is two halves, so 22 bits of it count. The angle of the tile goes to the query's numbers, and what lies within a tile is the
// same for all tiles.
//
// Means of values. A block of 64 dimensions of a tile's values has the layout of a tile of keys: dimensions stand where keys stand, and
// tokens where a key's dimensions stand. So the same products, of weights of 16 bits with levels, add up the tile's values.
#include <algorithm>
#include <cmath>

#include "cuda/device/launch.h"
#include "cuda/kernels/top_keys.cuh"

namespace orrery::cuda {

namespace key_codes_cu {

using namespace top_keys_cu;

constexpr int kThreads = 256, kWarps = kThreads / 32;
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
  part.mean[at] = static_cast<float>(sum * (1.0 / static_cast<double>(max(n, 1))));
}

// With turns: a thread block has a head, and a thread has pairs of dimensions, or single dimensions behind the last pair. A warp then finds
// the turns one after the other.
__global__ void __launch_bounds__(kThreads)
    mean_turned_keys_kernel(CodesWork w, TurnsWork t, uint32_t interleaved, int turns_from, int first, int end, int step) {
  constexpr int kMostDims = 32 * kMostLaneDims;
  __shared__ double sums[kMostDims], back[kMostDims], angles[kMostDims];  // of keys; of pairs turned back; of cosines and sines
  const CodesPart part = w.parts[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x), n = end > first ? (end - first + step - 1) / step : 0;
  const int stride = interleaved ? 2 : 1, apart = interleaved ? 1 : t.n_pairs;
  const double of_token = 1.0 / static_cast<double>(max(n, 1));
  for (int item = thread; item < w.head_dim - t.n_pairs; item += kThreads) {
    const bool is_pair = item < t.n_pairs;
    const int a = is_pair ? item * stride : item + t.n_pairs, b = is_pair ? a + apart : a;
    double sum_a = 0.0, sum_b = 0.0, back_a = 0.0, back_b = 0.0, cosines = 0.0, sines = 0.0;
    for (int i = 0; i < n; i += kAhead) {
      float x[kAhead], y[kAhead];
      float2 angle[kAhead];
      ORRERY_UNROLL for (int j = 0; j < kAhead; ++j) {
        x[j] = y[j] = 0.0f, angle[j] = make_float2(0.0f, 0.0f);
        if (i + j >= n) continue;
        const int token = first + (i + j) * step;
        const std::byte* key = token_at(w, part, token);
        x[j] = load_value(w.type, key, a / 32, a % 32), y[j] = load_value(w.type, key, b / 32, b % 32);
        if (is_pair) angle[j] = angle_at(t, item, token);
      }
      ORRERY_UNROLL for (int j = 0; j < kAhead; ++j) {  // products of two floats are exact as doubles
        const double u = static_cast<double>(x[j]), v = static_cast<double>(y[j]), c = static_cast<double>(angle[j].x),
                     s = static_cast<double>(angle[j].y);
        sum_a += u, sum_b += v, cosines += c, sines += s;
        back_a += u * c + v * s, back_b += v * c - u * s;
      }
    }
    sums[a] = sum_a * of_token, sums[b] = sum_b * of_token;
    if (is_pair) back[2 * item] = back_a * of_token, back[2 * item + 1] = back_b * of_token;
    if (is_pair) angles[2 * item] = cosines, angles[2 * item + 1] = sines;
  }
  __syncthreads();
  auto* turns = reinterpret_cast<KeyTurn*>(part.mean + turns_from);
  for (int turn = 0; thread < 32 && turn < t.n; ++turn) {  // the pair that loses most, the lower one of equals
    double most = 0.0;
    int best = -1;
    for (int i = thread; i < t.n_pairs; i += 32) {
      const double x = sums[i * stride], y = sums[i * stride + apart], u = back[2 * i], v = back[2 * i + 1];
      const double lost = __dmul_rn(u, u) + __dmul_rn(v, v) - (__dmul_rn(x, x) + __dmul_rn(y, y));
      if (lost > most) most = lost, best = i;
    }
    for (int i = 16; i > 0; i /= 2) {
      const double other = __shfl_xor_sync(kAllLanes, most, i);
      const int other_best = __shfl_xor_sync(kAllLanes, best, i);
      if (other > most || (other == most && other_best < best)) most = other, best = other_best;
    }
    __syncwarp();  // all lanes have read the sums
    if (thread == 0) {
      KeyTurn found = {};
      if (best >= 0) {
        found.first = best * stride, found.second = found.first + apart, found.pair = best;
        found.x = static_cast<float>(back[2 * best]), found.y = static_cast<float>(back[2 * best + 1]);
        const double x = static_cast<double>(found.x), y = static_cast<double>(found.y);
        const double cosine = __dmul_rn(angles[2 * best], of_token), sine = __dmul_rn(angles[2 * best + 1], of_token);
        sums[found.first] -= __dmul_rn(x, cosine) - __dmul_rn(y, sine);
        sums[found.second] -= __dmul_rn(x, sine) + __dmul_rn(y, cosine);
        back[2 * best] = back[2 * best + 1] = 0.0;
      }
      turns[turn] = found;
    }
    __syncwarp();
  }
  __syncthreads();
  for (int at = thread; at < w.head_dim; at += kThreads) part.mean[at] = static_cast<float>(sums[at]);
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
  int32_t first, end;                                        // tokens
  int32_t tile_bytes, turns_from, codes_from, factors_from;  // turns_from: of the means, in floats; the others of a tile, in bytes
  TurnsWork turns;
};

// A thread block has a tile. A tile that begins within [first, end) is written whole: codes of tokens behind `end` become 0.
template <int kBits, int kLaneDims>
__global__ void __launch_bounds__(kThreads, 1) encode_keys_kernel(EncodeWork w) {
  constexpr int kOfGroup = 4 / kBits;
  const CodesPart part = w.keys.parts[blockIdx.y];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, dim = w.keys.head_dim;
  const int tile = w.first / kPageTokens + static_cast<int>(blockIdx.x), n_groups = dim / kOfGroup;
  std::byte* codes_at = part.tiles + static_cast<int64_t>(tile) * w.tile_bytes;
  std::byte* factors = codes_at + n_groups * kHalfTile;
  const bool begins = w.first <= tile * kPageTokens;
  __shared__ float shifts[kWarps][32 * kLaneDims];  // by turns, of a warp's key
  KeyTurn turn = {};
  if (lane < w.turns.n) turn = reinterpret_cast<const KeyTurn*>(part.mean + w.turns_from)[lane];
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) shifts[warp][32 * i + lane] = 0.0f;
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
        __syncwarp();  // all lanes have read the last key's shifts
        if (turn.x != 0.0f || turn.y != 0.0f) {
          const float2 shift = turned(angle_at(w.turns, turn.pair, key), make_float2(turn.x, turn.y));
          shifts[warp][turn.first] = shift.x, shifts[warp][turn.second] = shift.y;
        }
        __syncwarp();
        float x[kLaneDims];
        ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) x[i] =
            32 * i + lane < dim ? load_value(w.keys.type, from, i, lane) - shifts[warp][32 * i + lane] - mean[i] : 0.0f;
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

// The same of values. A warp has the tokens that share bytes of the tile, and a lane the dimensions of a byte's two halves.
template <int kBits, int kLaneDims>
__global__ void __launch_bounds__(kThreads, 1) encode_values_kernel(EncodeWork w) {
  constexpr int kOfGroup = 4 / kBits, kGroups = kPageTokens / kOfGroup, kBlocks = kLaneDims / 2;
  const CodesPart part = w.keys.parts[blockIdx.y];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, dim = w.keys.head_dim;
  const int tile = w.first / kPageTokens + static_cast<int>(blockIdx.x);
  std::byte* codes_at = part.tiles + static_cast<int64_t>(tile) * w.tile_bytes + w.codes_from;
  std::byte* factors = part.tiles + static_cast<int64_t>(tile) * w.tile_bytes + w.factors_from;
  const bool begins = w.first <= tile * kPageTokens;
  for (int group = warp; group < kGroups; group += kWarps) {
    int both[kBlocks] = {}, kept = 0xFF;
    for (int i = 0; i < kOfGroup; ++i) {
      const int in_tile = group * kOfGroup + i, token = tile * kPageTokens + in_tile;
      const bool encoded = token >= w.first && token < w.end;
      if (!encoded && !begins) continue;
      kept &= ~(((1 << kBits) - 1) * 0x11 << i * kBits);
      uint32_t factor_bits = 0;
      if (encoded) {
        const std::byte* from = token_at(w.keys, part, token);
        float x[kLaneDims];
        ORRERY_UNROLL for (int d = 0; d < kLaneDims; ++d) x[d] = 32 * d + lane < dim ? load_value(w.keys.type, from, d, lane) : 0.0f;
        transform(x, lane, w.block, w.scale);
        int codes[kLaneDims];
        const float factor = encode<kBits>(x, dim, lane, codes);
        factor_bits = factor == factor ? half_bits(factor) : 0;
        ORRERY_UNROLL for (int d = 0; d < kLaneDims; ++d) both[d / 2] |= codes[d] << (i * kBits + d % 2 * 4);
      }
      if (lane == 0) store_half(factors + 2 * in_tile, factor_bits);
    }
    if (kept == 0xFF) continue;
    ORRERY_UNROLL for (int b = 0; b < kBlocks; ++b) {
      if (b * kPageTokens >= dim) break;
      std::byte* to = codes_at + (b * kGroups + group) * kHalfTile + lane;
      *to = static_cast<std::byte>(both[b] | (kept ? static_cast<int>(*to) & kept : 0));
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

constexpr int kColumns = 8;  // products of 8 keys each in a tile
template <int kBits>
inline constexpr int kParts = kBits == 4 ? 2 : 1;  // of a level
template <int kBits>
inline constexpr int kWords = 2 * kBits;  // of a lane in a step of 32 dimensions

// Adds the products of 8 rows with 32 dimensions of a tile's codes: of key 32 * half + 8 t + 4 e + i to sums[part][4 * half + i][e] and
// [e + 2]. words: of groups 4 j + t of the step.
template <int kBits>
__device__ __forceinline__ void add_products(const uint32_t (&words)[kWords<kBits>], const uint4& rows,
                                             int32_t (&sums)[kParts<kBits>][kColumns][4]) {
  const uint32_t a[4] = {rows.x, rows.y, rows.z, rows.w};
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
      if constexpr (kParts<kBits> == 2) {
        int32_t* high = sums[1][4 * half + i];
        const uint32_t c[2] = {high_levels(s[0]), high_levels(s[1])};
        mma_s8(high, a, c, high);
      }
    }
  }
}

// Writes the whole number of a row's dimension 32 * step + lane to its fragment: an upper and a lower byte. `step`: of the fragment, (32).
template <int kBits>
__device__ __forceinline__ void put_number(int whole, int row, int lane, uint4* step) {
  constexpr int kOfGroup = 4 / kBits;
  // A lane's place in each step: word j of its lane t, which has group 4 j + t of the step.
  const int group = lane / kOfGroup, t = group % 4, j = group / 4, byte = j % kBits * kOfGroup + lane % kOfGroup;
  const int high = (whole + 128) >> 8;
  auto* to = reinterpret_cast<int8_t*>(step + 4 * row + t) + 8 * (j / kBits) + byte;
  to[0] = static_cast<int8_t>(high), to[4] = static_cast<int8_t>(whole - 256 * high);
}
constexpr float kMostNumber = 127 * 256;

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
  float x[kLaneDims];
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) x[i] = q && 32 * i + lane < dim ? q[32 * i + lane] : 0.0f;
  transform(x, lane, block, block_scale);
  float largest = 0.0f;
  bool finite = true;
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) largest = fmaxf(largest, fabsf(x[i])), finite &= fabsf(x[i]) < INFINITY;
  largest = warp_max(largest);
  const bool usable = !__any_sync(kAllLanes, !finite);
  const float unit = largest / kMostNumber, inverse = unit > 0 ? kMostNumber / largest : 0.0f;
  int sum = 0;
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) {
    if (32 * i >= dim) break;
    const int whole = usable ? __float2int_rn(__fmul_rn(x[i], inverse)) : 0;
    sum += whole;
    put_number<kBits>(whole, row, lane, rows->fragments[i]);
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

// What turns add to a thread block's products.
struct TurnRows {
  float2 numbers[G::kRows][kMostTurns];  // of a query, for each turn: its product with the mean, and with the mean turned by a right angle
  // Of the 8 keys of a product, in its fragments' layout: cosines and sines of turns t and t + 4, as halves; and what the halves leave out.
  uint4 within[kColumns][32];
  int32_t pairs[kMostTurns];
};
static_assert(kMostTurns == 8, "a product of halves has two numbers for each turn");

__device__ __forceinline__ void prepare_turns(const TurnsWork& t, const KeyTurn* turns, TurnRows* rows) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n = turns ? t.n : 0;
  if (warp == 0 && lane < kMostTurns) rows->pairs[lane] = lane < n ? turns[lane].pair : 0;
  static_assert(kWarps == kColumns, "a warp prepares the columns of a product");
  const int slot = warp / 4 * kHalfTile + lane / 4 * 4 + warp % 4;
  float2 angles[2];
  ORRERY_UNROLL for (int i = 0; i < 2; ++i) {
    const int turn = lane % 4 + 4 * i;
    angles[i] = turn < n ? angle_within(t, turns[turn].pair, slot) : make_float2(0.0f, 0.0f);
  }
  uint4 fragment;
  split_halves(angles[0].x, angles[0].y, &fragment.x, &fragment.z);
  split_halves(angles[1].x, angles[1].y, &fragment.y, &fragment.w);
  rows->within[warp][lane] = fragment;
}

// q: null for a row of zeros. A lane has a turn.
__device__ __forceinline__ void prepare_turned_row(const float* q, const TurnsWork& t, const KeyTurn* turns, float scale, int row, int lane,
                                                   TurnRows* rows) {
  if (lane >= kMostTurns) return;
  float2 numbers = make_float2(0.0f, 0.0f);
  if (q && turns && lane < t.n) {
    const KeyTurn turn = turns[lane];
    const float a = q[turn.first], b = q[turn.second];
    numbers.x = fmaf(a, turn.x, b * turn.y) * scale, numbers.y = fmaf(b, turn.x, -a * turn.y) * scale;
  }
  rows->numbers[row][lane] = numbers;
}

// The fragment of the queries' numbers, turned by the angle of a tile.
__device__ __forceinline__ void turn_rows(const TurnsWork& turns, const TurnRows& rows, int tile, int lane, uint32_t (&a)[4]) {
  constexpr float kMost = 60000;  // a half can hold it
  const int row = lane / 4, t = lane % 4;
  ORRERY_UNROLL for (int i = 0; i < 2; ++i) {
    const float2 x = rows.numbers[row][t + 4 * i], by = angle_of_tile(turns, rows.pairs[t + 4 * i], tile);
    const float of_cosine = fmaf(x.x, by.x, x.y * by.y), of_sine = fmaf(x.y, by.x, -x.x * by.y);
    split_halves(fminf(fmaxf(of_cosine, -kMost), kMost), fminf(fmaxf(of_sine, -kMost), kMost), &a[2 * i], &a[2 * i + 1]);
  }
}
// Adds the products with the means at the positions of two of a product's keys.
__device__ __forceinline__ void add_turns(const uint32_t (&a)[4], const uint4& within, float* first, float* second) {
  const uint32_t high[2] = {within.x, within.y}, low[2] = {within.z, within.w};
  float sums[4] = {};
  mma_f16(sums, a, high), mma_f16(sums, a, low);
  *first += sums[0] + sums[2], *second += sums[1] + sums[3];
}

struct CodeWeightsWork {
  TopKeysWork top;
  int32_t block;  // of the queries' rotation
  float block_scale;
  TurnsWork turns;
};

// kTurned: keys have turns.
template <int kBits, int kLaneDims, bool kTurned>
__global__ void __launch_bounds__(kThreads, kBits == 4 || kTurned ? 2 : 3) code_weights_kernel(CodeWeightsWork work) {
  __shared__ CodeRows<kLaneDims> rows;
  [[maybe_unused]] __shared__ TurnRows turned;
  const TopKeysWork& w = work.top;
  const TopKeysPart part = parts_of(w)[blockIdx.y];
  const int first_tile = static_cast<int>(blockIdx.x) * G::kTiles, n_tiles = (part.n_keys + kPageTokens - 1) / kPageTokens;
  if (first_tile >= n_tiles) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, column = lane / 4, t = lane % 4;
  const int group = w.plan.group, dim = w.head_dim, n_groups = dim * kBits / 4, n_steps = (dim + 31) / 32;
  const int n_rows = part.n_positions * group;
  if constexpr (kTurned) prepare_turns(work.turns, part.turns, &turned);
  for (int first_row = 0; first_row < n_rows; first_row += G::kRows) {
    if (first_row > 0) __syncthreads();  // all warps have read the rows before
    static_assert(G::kRows == kWarps, "a warp prepares a row");
    const int of_warp = first_row + warp;
    const float* q = in_global(part.queries) + (part.first_position + of_warp / group - w.ring_first) % w.ring_rows * w.ring_stride +
                     of_warp % group * dim;
    prepare_row<kBits>(of_warp < n_rows ? q : nullptr, dim, work.block, work.block_scale, w.scale, warp, lane, &rows);
    if constexpr (kTurned)
      prepare_turned_row(of_warp < n_rows ? q : nullptr, work.turns, part.turns, w.scale * kLog2E, warp, lane, &turned);
    __syncthreads();
    for (int tile = first_tile + warp; tile < min(first_tile + G::kTiles, n_tiles); tile += kWarps) {
      // The part in memory: what finds a tile is read once a tile, and stays in no register meanwhile.
      const std::byte* codes = in_global(reinterpret_cast<const std::byte*>(tile_of(parts_of(w)[blockIdx.y], tile)));
      const std::byte* of_lane = codes + t * kHalfTile + 4 * column;
      // Words of group 4 j + t of a step. Only the last step may have half of its dimensions, which are in the first words.
      const auto load = [&](int step, uint32_t(&words)[kWords<kBits>]) {
        const std::byte* from = of_lane + step * 4 * kWords<kBits> * kHalfTile;
        const bool whole = 32 * step + 16 < dim;
        ORRERY_UNROLL for (int j = 0; j < kWords<kBits>; ++j) words[j] =
            j < kBits || whole ? *reinterpret_cast<const uint32_t*>(from + 4 * j * kHalfTile) : 0;
      };
      int32_t sums[kParts<kBits>][kColumns][4] = {};
      uint32_t next[kWords<kBits>];
      load(0, next);
      for (int step = 0; step < n_steps; ++step) {
        uint32_t words[kWords<kBits>];
        ORRERY_UNROLL for (int j = 0; j < kWords<kBits>; ++j) words[j] = next[j];
        if (step + 1 < n_steps) load(step + 1, next);
        add_products<kBits>(words, rows.fragments[step][lane], sums);
      }
      // The lane has 8 keys of each half of the tile, for its row: keys 8 t + 4 e + i.
      const float scale = rows.scale[column], zero = rows.zero[column];
      float y[2][8];
      float largest = -INFINITY;
      const int of_lane_first = part.first_key - tile * kPageTokens - 8 * t, of_lane_end = part.n_keys - tile * kPageTokens - 8 * t;
      [[maybe_unused]] uint32_t turned_rows[4];
      if constexpr (kTurned) turn_rows(work.turns, turned, tile, lane, turned_rows);
      const bool all_seen = part.first_key <= tile * kPageTokens && (tile + 1) * kPageTokens <= part.n_keys;
      ORRERY_UNROLL for (int half = 0; half < 2; ++half) {
        const uint4 halves = *reinterpret_cast<const uint4*>(codes + n_groups * kHalfTile + 2 * (half * kHalfTile + 8 * t));
        const uint32_t factors[4] = {halves.x, halves.y, halves.z, halves.w};
        ORRERY_UNROLL for (int k = 0; k < 8; ++k) {
          const int i = 4 * half + k % 4, e = k / 4;
          const auto total = [&](int of_part) { return static_cast<float>(sums[of_part][i][e] * 256 + sums[of_part][i][e + 2]); };
          float sum = total(0);
          if constexpr (kParts<kBits> == 2) sum = fmaf(128.0f, total(1), sum) + zero;
          const float factor = __half2float(__ushort_as_half(static_cast<unsigned short>(factors[k / 2] >> k % 2 * 16 & 0xFFFFu)));
          y[half][k] = __fmul_rn(__fmul_rn(sum, scale), factor);
        }
        if constexpr (kTurned) {
          ORRERY_UNROLL for (int i = 0; i < 4; ++i) add_turns(turned_rows, turned.within[4 * half + i][lane], &y[half][i], &y[half][4 + i]);
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

// ---- means of values

// Stretches of tiles, of G::kTiles; the last one has the rest, too, so it has values enough to lie in the place of weights.
ORRERY_HOST_DEVICE constexpr int n_stretches(int n_tiles) { return n_tiles < 2 * G::kTiles ? 1 : n_tiles / G::kTiles; }

struct ValuesWork {
  TopKeysWork top;
  int32_t block;  // of the values' rotation
  float block_scale;
  int32_t codes_from, factors_from;  // bytes of a tile
};
// Where a stretch's sums of a query head lie, (head_dim). Those of the first stretch take the place of the result, those of the others the
// place of their first weights.
__device__ __forceinline__ float* stretch_sums(const TopKeysWork& w, const TopKeysPart& part, int g, int stretch) {
  if (stretch == 0) return part.value_evicted + g * w.head_dim;
  return entry_of(w, part.first_entry) + g * w.plan.stride + stretch * (G::kTiles * kPageTokens);
}

// A thread block has a stretch, up to 8 query heads at a time. A warp has a tile: it rounds the products of weights and factors to 16 bits,
// and multiplies them with the levels of kAtOnce blocks of dimensions. Tiles with less than 2^-20 of their part of the weights are left out.
template <int kBits, int kLaneDims>
__global__ void __launch_bounds__(kThreads, 2) evicted_values_kernel(ValuesWork work) {
  constexpr int kSteps = kPageTokens / 32, kAtOnce = 2, kGroups = kPageTokens * kBits / 4;
  constexpr float kLeftOut = 1.0f / (1 << 20);
  __shared__ uint4 fragments[kWarps][kSteps][32];
  __shared__ float4 of_warps[kWarps][G::kRows][kPageTokens / 4];
  __shared__ float units[kWarps][G::kRows], sums[G::kRows][32 * kLaneDims];
  const TopKeysWork& w = work.top;
  const TopKeysPart part = parts_of(w)[blockIdx.y];
  const int n_tiles = (part.n_keys + kPageTokens - 1) / kPageTokens, stretch = static_cast<int>(blockIdx.x);
  if (!part.value_evicted || stretch >= n_stretches(n_tiles)) return;
  const int first_tile = stretch * G::kTiles, end_tile = stretch + 1 < n_stretches(n_tiles) ? first_tile + G::kTiles : n_tiles;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, column = lane / 4, t = lane % 4;
  const int dim = w.head_dim, n_blocks = (dim + kPageTokens - 1) / kPageTokens;
  float* entry = entry_of(w, part.first_entry);
  const float least = kLeftOut / static_cast<float>(n_tiles);
  for (int first_row = 0; first_row < w.plan.group; first_row += G::kRows) {
    const int n_rows = min(w.plan.group - first_row, G::kRows);
    for (int first_block = 0; first_block < n_blocks; first_block += kAtOnce) {
      float values[kAtOnce][16] = {};
      for (int tile = first_tile + warp; tile < end_tile; tile += kWarps) {
        const std::byte* codes = in_global(reinterpret_cast<const std::byte*>(tile_of(part, tile)));
        const float factors[kSteps] = {half_at(codes + work.factors_from + 2 * lane), half_at(codes + work.factors_from + 2 * (32 + lane))};
        // A lane clears what it alone has read.
        ORRERY_UNROLL for (int step = 0; step < kSteps; ++step) fragments[warp][step][lane] = make_uint4(0, 0, 0, 0);
        __syncwarp();
        bool any = false;
        for (int row = 0; row < n_rows; ++row) {
          const int g = first_row + row;
          const float share = units_of(w, entry)[g * w.plan.tile_stride + tile];
          const bool counts = share * sums_of(w, entry)[g * w.plan.tile_stride + tile] > least;
          float x[kSteps] = {}, largest = 0.0f;
          const float* weights = entry + g * w.plan.stride + static_cast<int64_t>(tile) * kPageTokens;
          ORRERY_UNROLL for (int step = 0; step < kSteps; ++step) {
            if (counts) x[step] = __fmul_rn(weights[32 * step + lane], factors[step]);
            largest = fmaxf(largest, x[step]);
          }
          largest = warp_max(largest);
          any |= largest > 0;
          const float inverse = largest > 0 ? kMostNumber / largest : 0.0f;
          ORRERY_UNROLL for (int step = 0; step < kSteps; ++step)
              put_number<kBits>(__float2int_rn(__fmul_rn(x[step], inverse)), row, lane, fragments[warp][step]);
          if (lane == 0) units[warp][row] = largest / kMostNumber * kUnit<kBits> * share;
        }
        __syncwarp();
        if (!any) continue;
        const float unit = column < n_rows ? units[warp][column] : 0.0f;
        ORRERY_UNROLL for (int b = 0; b < kAtOnce; ++b) {
          if (first_block + b >= n_blocks) break;
          const std::byte* of_lane = codes + work.codes_from + ((first_block + b) * kGroups + t) * kHalfTile + 4 * column;
          int32_t products[kParts<kBits>][kColumns][4] = {};
          ORRERY_UNROLL for (int step = 0; step < kSteps; ++step) {
            uint32_t words[kWords<kBits>];
            ORRERY_UNROLL for (int j = 0; j < kWords<kBits>; ++j) words[j] =
                *reinterpret_cast<const uint32_t*>(of_lane + (step * kWords<kBits> + j) * 4 * kHalfTile);
            add_products<kBits>(words, fragments[warp][step][lane], products);
          }
          ORRERY_UNROLL for (int k = 0; k < 16; ++k) {
            const int32_t* of_key = products[0][k / 8 * 4 + k % 4];
            values[b][k] = fmaf(static_cast<float>(of_key[k % 8 / 4] * 256 + of_key[k % 8 / 4 + 2]), unit, values[b][k]);
          }
        }
      }
      ORRERY_UNROLL for (int b = 0; b < kAtOnce; ++b) {
        if (first_block + b >= n_blocks) break;
        ORRERY_UNROLL for (int k = 0; k < 16; k += 4) of_warps[warp][column][(k / 8 * kHalfTile + 8 * t + k % 8) / 4] =
            make_float4(values[b][k], values[b][k + 1], values[b][k + 2], values[b][k + 3]);
        __syncthreads();
        for (int i = thread; i < n_rows * kPageTokens; i += kThreads) {
          float sum = 0.0f;
          ORRERY_UNROLL for (int v = 0; v < kWarps; ++v) sum +=
              reinterpret_cast<const float*>(of_warps[v][i / kPageTokens])[i % kPageTokens];
          sums[i / kPageTokens][(first_block + b) * kPageTokens + i % kPageTokens] = sum;
        }
        __syncthreads();
      }
    }
    // All warps have read the weights of these query heads.
    for (int i = thread; i < n_rows * dim; i += kThreads)
      stretch_sums(w, part, first_row + i / dim, stretch)[i % dim] = sums[i / dim][i % dim];
  }
}

// A thread block has a query head: adds up its stretches, and rotates the sum back.
template <int kLaneDims>
__global__ void __launch_bounds__(kThreads) mean_evicted_values_kernel(ValuesWork work) {
  __shared__ float of_warps[kWarps][32 * kLaneDims];
  const TopKeysWork& w = work.top;
  const TopKeysPart part = parts_of(w)[blockIdx.y];
  if (!part.value_evicted) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = static_cast<int>(blockIdx.x);
  const int n = n_stretches((part.n_keys + kPageTokens - 1) / kPageTokens);
  float x[kLaneDims] = {};
  for (int stretch = warp; stretch < n; stretch += kWarps) {
    const float* from = stretch_sums(w, part, g, stretch);
    ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) if (32 * i + lane < w.head_dim) x[i] += from[32 * i + lane];
  }
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) of_warps[warp][32 * i + lane] = x[i];
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int i = 0; i < kLaneDims; ++i)
#pragma unroll
    for (int v = 1; v < kWarps; ++v) x[i] += of_warps[v][32 * i + lane];
  transform(x, lane, work.block, work.block_scale);
  ORRERY_UNROLL for (int i = 0; i < kLaneDims; ++i) if (32 * i + lane < w.head_dim) part.value_evicted[g * w.head_dim + 32 * i + lane] =
      x[i];
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
TurnsWork turns_of(const KeyTurnTables& tables, const KeyCodeFormat& codes) {
  return {reinterpret_cast<const float*>(static_cast<uintptr_t>(tables.tiles.address)),
          reinterpret_cast<const float*>(static_cast<uintptr_t>(tables.within.address)), codes.n_turns, tables.n_pairs};
}
int32_t turns_from(const KeyCodeFormat& codes) { return static_cast<int32_t>(codes.turns_offset() / sizeof(float)); }

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
// The same of values. Nothing for 0 bits.
template <class F>
void with_value_bits(int32_t bits, int32_t head_dim, const F& body) {
  using std::integral_constant;
  const auto of = [&](auto of_bits) {
    if (head_dim > 256) return body(of_bits, integral_constant<int, 16>{});
    body(of_bits, integral_constant<int, 8>{});
  };
  if (bits == 1) of(integral_constant<int, 1>{});
  if (bits == 2) of(integral_constant<int, 2>{});
}

}  // namespace key_codes_cu
using namespace key_codes_cu;

void mean_keys(Queue& queue, const CodesPart* parts, const KeyCodesShape& shape, int32_t n_parts, int32_t first, int32_t end,
               int32_t step) {
  const CodesWork w = work_of(parts, shape.kv, false, first / kPageTokens);
  const auto n = static_cast<unsigned>(n_parts);
  if (shape.codes.n_turns == 0)
    return launch<mean_keys_kernel>(queue, {Dim3(n, 1, blocks_of(shape.kv)), threads_of(shape.kv)}, w, first, end, step);
  launch<mean_turned_keys_kernel>(queue, {Dim3(n), Dim3(kThreads)}, w, turns_of(shape.turns, shape.codes), uint32_t{shape.interleaved},
                                  turns_from(shape.codes), first, end, step);
}

void mean_values(Queue& queue, const CodesPart* parts, const KvFormat& kv, int32_t n_parts, int32_t most_pages) {
  const CodesWork w = work_of(parts, kv, true, 0);
  const auto n = static_cast<unsigned>(n_parts);
  if (most_pages > 0) launch<page_values_kernel>(queue, {Dim3(static_cast<unsigned>(most_pages), n, blocks_of(kv)), threads_of(kv)}, w);
  launch<mean_values_kernel>(queue, {Dim3(n, 1, blocks_of(kv)), threads_of(kv)}, w);
}

void encode_keys(Queue& queue, const CodesPart* parts, const KeyCodesShape& shape, int32_t n_parts, int32_t first, int32_t end) {
  const KeyCodeFormat& codes = shape.codes;
  EncodeWork w = {work_of(parts, shape.kv, false, first / kPageTokens),
                  shape.block,
                  scale_of(shape.block),
                  first,
                  end,
                  static_cast<int32_t>(codes.tile_bytes()),
                  turns_from(codes),
                  static_cast<int32_t>(codes.keys_bytes()),
                  static_cast<int32_t>(codes.value_factors_offset()),
                  turns_of(shape.turns, codes)};
  const int32_t n_tiles = (end - 1) / kPageTokens - first / kPageTokens + 1;
  const Geometry grid = {Dim3(static_cast<unsigned>(n_tiles), static_cast<unsigned>(n_parts)), Dim3(kThreads)};
  with_bits(codes.bits, shape.kv.head_dim, [&](auto bits, auto lane_dims) {
    launch<encode_keys_kernel<decltype(bits)::value, decltype(lane_dims)::value>>(queue, grid, w);
  });
  w.keys = work_of(parts, shape.kv, true, first / kPageTokens);
  with_value_bits(codes.value_bits, shape.kv.head_dim, [&](auto bits, auto lane_dims) {
    launch<encode_values_kernel<decltype(bits)::value, decltype(lane_dims)::value>>(queue, grid, w);
  });
}

void code_weights(Queue& queue, const TopKeysWork& work, const KeysShape& shape, int32_t n_parts, int32_t most_keys) {
  const CodeWeightsWork w = {work, shape.code_block, scale_of(shape.code_block), turns_of(shape.turns, shape.codes)};
  const int32_t of_block = G::kTiles * kPageTokens;
  const Dim3 grid(static_cast<unsigned>((most_keys + of_block - 1) / of_block), static_cast<unsigned>(n_parts));
  with_bits(shape.codes.bits, work.head_dim, [&](auto bits, auto lane_dims) {
    constexpr int kBits = decltype(bits)::value, kLaneDims = decltype(lane_dims)::value;
    if (shape.codes.n_turns > 0) launch<code_weights_kernel<kBits, kLaneDims, true>>(queue, {grid, Dim3(kThreads)}, w);
    else launch<code_weights_kernel<kBits, kLaneDims, false>>(queue, {grid, Dim3(kThreads)}, w);
  });
}

void evicted_values(Queue& queue, const TopKeysWork& work, const KeysShape& shape, int32_t n_parts, int32_t most_keys) {
  const KeyCodeFormat& codes = shape.codes;
  const ValuesWork w = {work, shape.code_block, scale_of(shape.code_block), static_cast<int32_t>(codes.keys_bytes()),
                        static_cast<int32_t>(codes.value_factors_offset())};
  const auto n = static_cast<unsigned>(n_parts), most = static_cast<unsigned>(n_stretches((most_keys + kPageTokens - 1) / kPageTokens));
  with_value_bits(codes.value_bits, work.head_dim, [&](auto bits, auto lane_dims) {
    constexpr int kLaneDims = decltype(lane_dims)::value;
    launch<evicted_values_kernel<decltype(bits)::value, kLaneDims>>(queue, {Dim3(most, n), Dim3(kThreads)}, w);
    launch<mean_evicted_values_kernel<kLaneDims>>(queue, {Dim3(static_cast<unsigned>(work.plan.group), n), Dim3(kThreads)}, w);
  });
}

}  // namespace orrery::cuda

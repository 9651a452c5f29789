// Selection on the device, behind top_keys(): which pages a head's slots lack, and the tokens that fill them (FetchOperations).
//
// 1. plan: a thread block has a head. The wanted pages ascend, so a binary search finds a held page among them. Two passes list the missing
//    pages and the free places, both ascending, and the table of held pages gets its new pages.
// 2. fill: a warp has a piece of a missing page. It reads the reservoir in shared host memory. Launches are sized for as many misses as a
//    head has places; warps behind the last miss end at once.
//
// Cost: a step of 8 heads with 256 pages each is two launches. The link gives the time: its bytes are those of the missing tokens.
#include <algorithm>

#include "cuda/device/launch.h"
#include "cuda/kernels/moves.cuh"

namespace orrery::cuda {

namespace fetch_cu {

constexpr int kPlanThreads = 1024, kFillThreads = 256, kFillWarps = kFillThreads / 32;
constexpr int kMostPieces = 256;   // warps that share a page

struct FetchWork {
  const FetchPart* parts;
  const uint64_t* pages;   // of the step's sequence
  uint64_t from_token_bytes, to_token_bytes;
  KvType from_type, to_type;
  int32_t page_tokens, token_values;
};

// The j-th wanted page; they ascend.
__device__ __forceinline__ uint32_t wanted_page(const FetchPart& p, int j) {
  if (j < p.n_first) return static_cast<uint32_t>(j);
  if (j < p.n_first + p.k) return static_cast<uint32_t>(p.first_page) + p.best[j - p.n_first];
  return static_cast<uint32_t>(p.first_page + p.n_keys + j - p.n_first - p.k);
}
// The index of a page among the wanted ones, or -1.
__device__ __forceinline__ int index_of(const FetchPart& p, uint32_t page) {
  int first = 0, last = p.n_held - 1;   // searches the first page that is not less
  while (first < last) {
    const int middle = (first + last) / 2;
    if (wanted_page(p, middle) < page)
      first = middle + 1;
    else
      last = middle;
  }
  return wanted_page(p, first) == page ? first : -1;
}

// Calls emit(i, rank) for each i < n with take(i), in order. All threads of the block call it and get the number of these i.
template <class Take, class Emit>
__device__ __forceinline__ int list_in_order(int n, const Take& take, const Emit& emit) {
  __shared__ unsigned taken[kPlanThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const unsigned below = (1u << thread % 32) - 1;
  unsigned n_taken = 0;
  for (int first = 0; first < n; first += kPlanThreads) {
    const int i = first + thread;
    const bool takes = i < n && take(i);
    const unsigned lanes = __ballot_sync(kAllLanes, takes);
    if (thread % 32 == 0) taken[warp] = static_cast<unsigned>(__popc(lanes));
    __syncthreads();
    unsigned at = n_taken + static_cast<unsigned>(__popc(lanes & below));
    ORRERY_UNROLL_TWICE for (int v = 0; v < kPlanThreads / 32; ++v) at += v < warp ? taken[v] : 0, n_taken += taken[v];
    if (takes) emit(i, static_cast<int>(at));
    __syncthreads();   // the counts have been read
  }
  return static_cast<int>(n_taken);
}

__global__ void __launch_bounds__(kPlanThreads) plan_fetch_kernel(FetchWork w) {
  const FetchPart part = w.parts[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  for (int j = thread; j < part.n_held; j += kPlanThreads) part.resident[j] = 0;
  __syncthreads();
  for (int place = thread; place < part.n_held; place += kPlanThreads)
    if (const int j = index_of(part, part.held[place]); j >= 0) part.resident[j] = 1;
  __syncthreads();
  const int n = list_in_order(
      part.n_held, [&](int j) { return part.resident[j] == 0; }, [&](int j, int i) { part.misses[i].page = wanted_page(part, j); });
  list_in_order(
      part.n_held, [&](int place) { return index_of(part, part.held[place]) < 0; },
      [&](int place, int i) { part.misses[i].place = static_cast<uint32_t>(place); });
  for (int i = thread; i < n; i += kPlanThreads) part.held[part.misses[i].place] = part.misses[i].page;
  if (thread == 0) *part.n_misses = n;
}

__global__ void __launch_bounds__(kFillThreads, 4) fill_pages_kernel(FetchWork w) {
  const FetchPart& part = w.parts[blockIdx.z];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int i = static_cast<int>(blockIdx.x) * kFillWarps + static_cast<int>(threadIdx.x) / 32;
  if (i >= *part.n_misses) return;
  const FetchMiss miss = part.misses[i];
  const uint64_t tokens = static_cast<uint64_t>(w.page_tokens), position = miss.page * tokens;
  const uint64_t from = w.pages[position / kPageTokens] + part.from + position % kPageTokens * w.from_token_bytes;
  move_values(w.to_type, w.from_type, part.slots + miss.place * tokens * w.to_token_bytes, from,
              static_cast<int64_t>(w.page_tokens) * w.token_values, lane);
}

}  // namespace fetch_cu
using namespace fetch_cu;

void fetch_pages(Queue& queue, const FetchPart* parts, const uint64_t* pages, const FetchShape& shape, int32_t n_parts, int32_t most_held) {
  const KvFormat slots = {shape.slot_type, 1, 1, shape.reservoir.head_dim};
  const FetchWork w{parts, pages, shape.reservoir.token_bytes(), slots.token_bytes(), shape.reservoir.type, shape.slot_type,
                    shape.page_tokens, 2 * shape.reservoir.head_dim};
  const unsigned n = static_cast<unsigned>(n_parts), warps = static_cast<unsigned>((most_held + kFillWarps - 1) / kFillWarps);
  const int pieces = (shape.page_tokens * w.token_values + kPieceValues - 1) / kPieceValues;
  launch<plan_fetch_kernel>(queue, {Dim3(n), Dim3(kPlanThreads)}, w);
  launch<fill_pages_kernel>(queue, {Dim3(warps, static_cast<unsigned>(std::min(pieces, kMostPieces)), n), Dim3(kFillThreads)}, w);
}

}  // namespace orrery::cuda

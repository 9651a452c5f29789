// Selection on the device, behind top_keys(): which pages a head's slots lack, and the tokens that fill them (FetchOperations).
//
// 1. plan: a thread block has a head. The wanted pages ascend, so a binary search finds a held page among them. Two passes list the missing
//    pages and the free places, both ascending, and the table of held pages gets its new pages. Or, where the lowest scores are replaced,
//    each free place counts the places before it.
//    Of many places many thread blocks make the plan (plan_by_many): flags of the wanted pages take the place of searches.
// 2. fill: a warp has a piece of a missing page. It reads the reservoir in shared host memory. Launches are sized for as many misses as a
//    head has places; warps behind the last miss end at once. Or, where keys are rebuilt, list_runs() makes the list of rebuild_keys().
// 3. Where queries change little, query_changes() finds the heads whose query has changed, and plan_changed() plans for this step or for
// the
//    next one. Or plan_lowest() replaces the lowest scores. Both keep the table as it was. fill_changed() compares both tables, on another
//    stream: it needs no list of misses.
//
// Cost: a step of 8 heads with 256 pages each is two launches. The link gives the time: its bytes are those of the missing tokens.
#include <algorithm>

#include "cuda/device/launch.h"
#include "cuda/kernels/moves.cuh"
#include "cuda/kernels/top_keys.cuh"

namespace orrery::cuda {

namespace fetch_cu {

constexpr int kPlanThreads = kSelectThreads, kFillThreads = 256, kFillWarps = kFillThreads / 32;
constexpr unsigned kMostPieces = 256;  // warps that share a page

struct FetchWork {
  const FetchPart* parts;
  const uint64_t* pages;  // of the step's sequence
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
  int first = 0, last = p.n_wanted - 1;  // searches the first page that is not less
  while (first < last) {
    const int middle = (first + last) / 2;
    if (wanted_page(p, middle) < page) first = middle + 1;
    else last = middle;
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
    __syncthreads();  // the counts have been read
  }
  return static_cast<int>(n_taken);
}

// Lists the missing pages. Returns their number.
__device__ __forceinline__ int list_missing(const FetchPart& part) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int j = thread; j < part.n_wanted; j += kPlanThreads) part.resident()[j] = 0;
  __syncthreads();
  for (int place = thread; place < part.n_held; place += kPlanThreads)
    if (const int j = index_of(part, part.held[place]); j >= 0) part.resident()[j] = 1;
  __syncthreads();
  return list_in_order(
      part.n_wanted, [&](int j) { return part.resident()[j] == 0; }, [&](int j, int i) { part.misses[i].page = wanted_page(part, j); });
}
// The table gets its new pages, and the host is told.
__device__ __forceinline__ void end_plan(const FetchPart& part, int n, bool has_entry) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kPlanThreads) part.held[part.misses[i].place] = part.misses[i].page;
  if (threadIdx.x == 0) *part.n_misses() = n, *part.told = {static_cast<uint32_t>(n), has_entry ? part.held[part.n_held] : 0};
}

__global__ void __launch_bounds__(kPlanThreads) plan_fetch_kernel(const FetchPart* parts) {
  const FetchPart part = parts[blockIdx.x];
  const int n = list_missing(part);
  list_in_order(
      part.n_held, [&](int place) { return index_of(part, part.held[place]) < 0; },
      [&](int place, int i) { part.misses[i].place = static_cast<uint32_t>(place); });
  end_plan(part, n, false);
}

// ---- the same plan by many thread blocks: a thread block has a slice of a head's places, or of its wanted pages
//
// Behind write_taken_kernel, which has set the flags of wanted pages. note_held: a held page that is wanted gets the flag 2; counts each
// slice's free places. count_missing: counts each slice's wanted pages that are not held. list_misses: lists both, in order.
// end_plan_by_many: the table gets its new pages.

constexpr int kManyPlaces = 2048;  // one thread block plans as many, and many thread blocks plan more

// The flag of a page. null: no wanted page could be it.
__device__ __forceinline__ uint8_t* flag_of(const FetchPart& p, uint32_t page) {
  const uint32_t first = static_cast<uint32_t>(p.first_page), n_keys = static_cast<uint32_t>(p.n_keys),
                 n_first = static_cast<uint32_t>(p.n_first);
  const uint32_t n_last = static_cast<uint32_t>(p.n_wanted - p.k) - n_first;
  if (page < n_first) return p.flags + n_keys + page;
  if (page - first < n_keys) return p.flags + (page - first);
  return page - first - n_keys < n_last ? p.flags + n_first + (page - first) : nullptr;
}
__device__ __forceinline__ uint32_t* free_slices(const FetchPart& p) { return p.selection + SelectionMemory::kSlices; }
__device__ __forceinline__ uint32_t* missing_slices(const FetchPart& p) { return free_slices(p) + n_slices(p.n_held); }
__device__ __forceinline__ bool is_free(const FetchPart& p, int place) {
  const uint8_t* flag = flag_of(p, p.held[place]);
  return !flag || *flag == 0;
}
__device__ __forceinline__ bool is_missing(const FetchPart& p, int j) { return *flag_of(p, wanted_page(p, j)) == 1; }

__global__ void __launch_bounds__(kSliceThreads) note_held_kernel(const FetchPart* parts) {
  const FetchPart part = parts[blockIdx.y];
  const int first = static_cast<int>(blockIdx.x) * kSlice + static_cast<int>(threadIdx.x);
  if (static_cast<int>(blockIdx.x) * kSlice >= part.n_held) return;
  unsigned n = 0;
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) {
    const int place = first + j * kSliceThreads;
    if (place >= part.n_held) continue;
    uint8_t* flag = flag_of(part, part.held[place]);  // pages differ: no two threads have the same flag
    const bool stays = flag && *flag != 0;
    if (stays) *flag = 2;
    n += !stays;
  }
  n = sum_of_block(n);
  if (threadIdx.x == 0) free_slices(part)[blockIdx.x] = n;
}

__global__ void __launch_bounds__(kSliceThreads) count_missing_kernel(const FetchPart* parts) {
  const FetchPart part = parts[blockIdx.y];
  const int first = static_cast<int>(blockIdx.x) * kSlice + static_cast<int>(threadIdx.x);
  if (static_cast<int>(blockIdx.x) * kSlice >= part.n_wanted) return;
  unsigned n = 0;
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) n +=
      first + j * kSliceThreads < part.n_wanted && is_missing(part, first + j * kSliceThreads);
  n = sum_of_block(n);
  if (threadIdx.x == 0) missing_slices(part)[blockIdx.x] = n;
}

// blockIdx.z: 0 lists the free places, 1 the missing pages.
__global__ void __launch_bounds__(kSliceThreads) list_misses_kernel(const FetchPart* parts) {
  const FetchPart part = parts[blockIdx.y];
  const bool of_pages = blockIdx.z != 0;
  const int n = of_pages ? part.n_wanted : part.n_held, slice = static_cast<int>(blockIdx.x);
  const int first = slice * kSlice + static_cast<int>(threadIdx.x);
  if (of_pages && slice == 0) {
    const unsigned n_missing = sum_of_slices(missing_slices(part), n_slices(n));
    if (threadIdx.x == 0) *part.n_misses() = static_cast<int32_t>(n_missing), *part.told = {n_missing, 0};
  }
  if (slice * kSlice >= n) return;
  unsigned kinds[kOfThread], before[kOfThread];
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) {
    const int i = first + j * kSliceThreads;
    kinds[j] = i < n && (of_pages ? is_missing(part, i) : is_free(part, i)) ? kFirst : 0;
  }
  const unsigned n_before = sum_of_slices(of_pages ? missing_slices(part) : free_slices(part), slice);
  rank_in_slice(kinds, before);
  ORRERY_UNROLL for (int j = 0; j < kOfThread; ++j) {
    if (kinds[j] == 0) continue;
    FetchMiss& miss = part.misses[n_before + before[j]];
    const int i = first + j * kSliceThreads;
    if (of_pages) miss.page = wanted_page(part, i);
    else miss.place = static_cast<uint32_t>(i);
  }
}

__global__ void __launch_bounds__(kSliceThreads) end_plan_by_many_kernel(const FetchPart* parts) {
  const FetchPart& part = parts[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x) * kSliceThreads + static_cast<int>(threadIdx.x);
  if (i < *part.n_misses()) part.held[part.misses[i].place] = part.misses[i].page;
}

// Unwanted pages, the lowest score first, of equal scores the later page: the order of these numbers.
__device__ __forceinline__ unsigned long long replaced_at(const FetchPart& p, const uint32_t* scores, uint32_t page) {
  const uint32_t key = page - static_cast<uint32_t>(p.first_page);
  const uint32_t score = key < static_cast<uint32_t>(p.n_keys) ? scores[key] : 0xFFFFFFFFu;
  return static_cast<unsigned long long>(score) << 32 | (0xFFFFFFFFu - page);
}

__global__ void __launch_bounds__(kPlanThreads) plan_replacing_kernel(const FetchPart* parts, const uint32_t* scores) {
  constexpr uint32_t kInfinity = 0xFF800000u;  // order_of() it
  const FetchPart& part = parts[blockIdx.x];
  const int n = list_missing(part);
  const int n_free = list_in_order(
      part.n_held, [&](int place) { return index_of(part, part.held[place]) < 0; },
      [&](int place, int i) { part.order[i] = replaced_at(part, scores, part.held[place]); });
  if (threadIdx.x == 0) part.held[part.n_held] = FetchShape::kNoPlace;
  __syncthreads();
  for (int place = static_cast<int>(threadIdx.x); place < part.n_held; place += kPlanThreads) {
    if (index_of(part, part.held[place]) >= 0) continue;
    const unsigned long long at = replaced_at(part, scores, part.held[place]);
    int before = 0;
    for (int i = 0; i < n_free; ++i) before += part.order[i] < at;
    if (before < n) part.misses[before].place = static_cast<uint32_t>(place);
    if (before == n && at >> 32 < kInfinity) part.held[part.n_held] = static_cast<uint32_t>(place);
  }
  __syncthreads();
  end_plan(part, n, true);
}

// A warp has a KV head.
__global__ void __launch_bounds__(32)
    query_changes_kernel(const float* now, const float* before, int group, int head_dim, double tau, uint32_t* changed) {
  const int lane = static_cast<int>(threadIdx.x);
  double cosines = 0.0;
  for (int g = 0; g < group; ++g) {
    const int64_t at = (static_cast<int64_t>(blockIdx.x) * group + g) * head_dim;
    double ab = 0.0, aa = 0.0, bb = 0.0;
    for (int i = lane; i < head_dim; i += 32) {
      const double a = static_cast<double>(now[at + i]), b = static_cast<double>(before[at + i]);
      ab += a * b, aa += a * a, bb += b * b;  // products of floats are exact
    }
    for (int i = 16; i > 0; i /= 2) {
      ab += __shfl_xor_sync(kAllLanes, ab, i);
      aa += __shfl_xor_sync(kAllLanes, aa, i);
      bb += __shfl_xor_sync(kAllLanes, bb, i);
    }
    if (aa > 0.0 && bb > 0.0) cosines += ab / sqrt(aa * bb);
  }
  const auto mean = static_cast<float>(cosines / static_cast<double>(group));
  if (lane == 0) changed[blockIdx.x] = static_cast<double>(mean) < tau;
}

__global__ void __launch_bounds__(kPlanThreads)
    plan_changed_kernel(const FetchPart* parts, const uint32_t* changed, int n_kv_heads, Candidates candidates) {
  FetchPart part = parts[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  const bool fetches_now = changed[part.kv_head] != 0, completes = candidates != Candidates::of_both;
  bool any = false;
  for (int i = 0; i < n_kv_heads; ++i) any = any || changed[i] != 0;
  if (completes && any != (candidates == Candidates::of_this_step)) {  // the other call plans
    if (thread == 0) *part.n_misses() = 0;
    return;
  }
  const uint32_t leaving = static_cast<uint32_t>(part.first_page + part.n_keys);  // with of_this_step: from the last pages
  const int n_kept = completes && !fetches_now ? 1 : 0;                           // free places that stay as they are
  if (candidates == Candidates::of_this_step) part.n_keys += n_kept, part.n_wanted -= n_kept;
  if (thread == 0) part.held[part.n_held] = fetches_now ? QueryChange::kChanged : 0;
  const int n = list_missing(part);
  list_in_order(
      part.n_held, [&](int place) { return index_of(part, part.held[place]) < 0; },
      [&](int place, int i) {
        if (i < n_kept) part.held[part.n_held] = static_cast<uint32_t>(place);
        else part.misses[i - n_kept].place = static_cast<uint32_t>(place);
      });
  for (int place = thread; place < part.n_held && !fetches_now; place += kPlanThreads) part.before[place] = part.held[place];
  __syncthreads();
  end_plan(part, n, true);
  if (!fetches_now) {
    if (thread == 0) *part.n_misses() = 0;
    return;
  }
  __syncthreads();
  for (int place = thread; place < part.n_held; place += kPlanThreads) {
    const uint32_t page = part.held[place];
    part.before[place] = page;
    if (completes && page == leaving) part.told->entry = part.held[part.n_held] = QueryChange::kChanged | static_cast<uint32_t>(place);
  }
}

// Misses take the unwanted places with the lowest scores, of equal scores those of the later pages; both ascend. Meanwhile `before` lists
// the unwanted places, and resident() their scores, inverted.
__global__ void __launch_bounds__(kPlanThreads) plan_lowest_kernel(const FetchPart* parts) {
  const FetchPart& part = parts[blockIdx.x];  // in memory: a copy takes more registers than there are
  const int thread = static_cast<int>(threadIdx.x);
  const auto n_wanted = static_cast<int32_t>(part.held[part.n_held]);
  int n = 0;
  if (n_wanted > 0) {
    FetchPart wanted = part;
    wanted.k = wanted.n_wanted = n_wanted;
    n = list_missing(wanted);
  }
  if (n > 0) {
    uint32_t *places = part.before, *scores = part.resident();
    const int n_free = list_in_order(
        part.n_held,
        [&](int place) {
          FetchPart wanted = part;
          wanted.k = wanted.n_wanted = n_wanted;
          return index_of(wanted, part.held[place]) < 0;
        },
        [&](int place, int i) {
          places[i] = static_cast<uint32_t>(place);
          scores[i] = ~part.scores()[part.held[place] - static_cast<uint32_t>(part.first_page)];
        });
    const Threshold least = find_threshold(scores, n_free, static_cast<unsigned>(n));
    const auto taken = [&](int i) {
      if (scores[i] != least.bits) return scores[i] > least.bits;
      const uint32_t page = part.held[places[i]];
      unsigned n_later = 0;
      for (int j = 0; j < n_free; ++j) n_later += scores[j] == least.bits && part.held[places[j]] > page;
      return n_later < least.n_equal;
    };
    list_in_order(n_free, taken, [&](int i, int at) { part.misses[at].place = places[i]; });
  }
  for (int place = thread; place < part.n_held; place += kPlanThreads) part.before[place] = part.held[place];
  __syncthreads();
  for (int i = thread; i < n; i += kPlanThreads) part.held[part.misses[i].place] = part.misses[i].page;
  if (thread == 0) *part.told = {static_cast<uint32_t>(n), part.held[part.n_held]};
}

// Addresses of a miss: its slot, and its first token in the reservoir.
struct MissAt {
  uint64_t to, from;
};
__device__ __forceinline__ MissAt place_of(const FetchWork& w, const FetchPart& part, FetchMiss miss) {
  const uint64_t tokens = static_cast<uint64_t>(w.page_tokens), position = miss.page * tokens;
  return {part.slots + miss.place * tokens * w.to_token_bytes,
          w.pages[position / kPageTokens] + part.from + position % kPageTokens * w.from_token_bytes};
}

__global__ void __launch_bounds__(kFillThreads, 4) fill_pages_kernel(FetchWork w) {
  const FetchPart& part = w.parts[blockIdx.z];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int i = static_cast<int>(blockIdx.x) * kFillWarps + static_cast<int>(threadIdx.x) / 32;
  if (i >= *part.n_misses()) return;
  const MissAt at = place_of(w, part, part.misses[i]);
  move_tokens(w.to_type, w.from_type, at.to, at.from, w.page_tokens, w.token_values, lane);
}

// A warp has a piece of a place.
__global__ void __launch_bounds__(kFillThreads, 4) fill_changed_kernel(FetchWork w) {
  const FetchPart& part = w.parts[blockIdx.z];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int place = static_cast<int>(blockIdx.x) * kFillWarps + static_cast<int>(threadIdx.x) / 32;
  if (place >= part.n_held || part.before[place] == part.held[place]) return;
  const MissAt at = place_of(w, part, {static_cast<uint32_t>(place), part.held[place]});
  move_tokens(w.to_type, w.from_type, at.to, at.from, w.page_tokens, w.token_values, lane);
}

__global__ void __launch_bounds__(kFillThreads) list_runs_kernel(FetchWork w, int first, int n, RebuiltRun* runs) {
  const FetchPart& part = w.parts[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x) * kFillThreads + static_cast<int>(threadIdx.x);
  if (i >= n) return;
  RebuiltRun run = {};
  if (first + i < *part.n_misses()) {
    const FetchMiss miss = part.misses[first + i];
    const MissAt at = place_of(w, part, miss);
    const int value = value_at(w.from_type, w.token_values / 2);
    run.position = static_cast<int32_t>(miss.page) * w.page_tokens, run.count = w.page_tokens;
    run.to.address = at.to, run.values.address = at.from + static_cast<uint64_t>(value);
    run.kv_head = part.kv_head, run.values_gap = value;  // the next token's K
  }
  runs[static_cast<int64_t>(blockIdx.y) * n + i] = run;
}

FetchWork work_of(const FetchPart* parts, const uint64_t* pages, const FetchShape& shape) {
  const KvFormat slots = {shape.slot_type, 1, 1, shape.reservoir.head_dim};
  return {parts,
          pages,
          shape.reservoir.token_bytes(),
          slots.token_bytes(),
          shape.reservoir.type,
          shape.slot_type,
          shape.page_tokens,
          2 * shape.reservoir.head_dim};
}
unsigned blocks(int32_t n, int32_t per_block) { return static_cast<unsigned>((n + per_block - 1) / per_block); }
// Of fill_pages_kernel: a warp for each of most_held pages, and for each piece of a page.
Geometry fill_geometry(const FetchWork& w, int32_t n_parts, int32_t most_held) {
  const unsigned pieces = std::min(blocks(w.page_tokens * w.token_values, kPieceValues), kMostPieces);
  return {Dim3(blocks(most_held, kFillWarps), pieces, static_cast<unsigned>(n_parts)), Dim3(kFillThreads)};
}

}  // namespace fetch_cu
using namespace fetch_cu;

void plan_fetch(Queue& queue, const FetchPart* parts, int32_t n_parts, int32_t most_held, bool by_many_blocks) {
  const auto n = static_cast<unsigned>(n_parts), slices = static_cast<unsigned>(n_slices(most_held));
  if (!by_many_blocks || most_held <= kManyPlaces) return launch<plan_fetch_kernel>(queue, {Dim3(n), Dim3(kPlanThreads)}, parts);
  launch<note_held_kernel>(queue, {Dim3(slices, n), Dim3(kSliceThreads)}, parts);
  launch<count_missing_kernel>(queue, {Dim3(slices, n), Dim3(kSliceThreads)}, parts);
  launch<list_misses_kernel>(queue, {Dim3(slices, n, 2), Dim3(kSliceThreads)}, parts);
  launch<end_plan_by_many_kernel>(queue, {Dim3(blocks(most_held, kSliceThreads), n), Dim3(kSliceThreads)}, parts);
}

void plan_replacing(Queue& queue, const FetchPart* parts, const uint32_t* scores, int32_t n_parts) {
  launch<plan_replacing_kernel>(queue, {Dim3(static_cast<unsigned>(n_parts)), Dim3(kPlanThreads)}, parts, scores);
}

void fill_pages(Queue& queue, const FetchPart* parts, const uint64_t* pages, const FetchShape& shape, int32_t n_parts, int32_t most_held) {
  const FetchWork w = work_of(parts, pages, shape);
  launch<fill_pages_kernel>(queue, fill_geometry(w, n_parts, most_held), w);
}

void query_changes(Queue& queue, const float* now, const float* before, int32_t n_kv_heads, int32_t group, int32_t head_dim, double tau,
                   uint32_t* changed) {
  launch<query_changes_kernel>(queue, {Dim3(static_cast<unsigned>(n_kv_heads)), Dim3(32)}, now, before, group, head_dim, tau, changed);
}

void plan_changed(Queue& queue, const FetchPart* parts, const uint32_t* changed, int32_t n_kv_heads, Candidates candidates,
                  int32_t n_parts) {
  launch<plan_changed_kernel>(queue, {Dim3(static_cast<unsigned>(n_parts)), Dim3(kPlanThreads)}, parts, changed, n_kv_heads, candidates);
}

void plan_lowest(Queue& queue, const FetchPart* parts, int32_t n_parts) {
  launch<plan_lowest_kernel>(queue, {Dim3(static_cast<unsigned>(n_parts)), Dim3(kPlanThreads)}, parts);
}

void fill_changed(Queue& queue, const FetchPart* parts, const uint64_t* pages, const FetchShape& shape, int32_t n_parts,
                  int32_t most_held) {
  const FetchWork w = work_of(parts, pages, shape);
  launch<fill_changed_kernel>(queue, fill_geometry(w, n_parts, most_held), w);
}

void list_runs(Queue& queue, const FetchPart* parts, const uint64_t* pages, const FetchShape& shape, int32_t n_parts, int32_t first,
               int32_t n, RebuiltRun* runs) {
  launch<list_runs_kernel>(queue, {Dim3(blocks(n, kFillThreads), static_cast<unsigned>(n_parts)), Dim3(kFillThreads)},
                           work_of(parts, pages, shape), first, n, runs);
}

}  // namespace orrery::cuda

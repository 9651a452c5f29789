// Tests selection on the device (FetchOperations): the kernels against the CPU backend's best keys and moves and a plan in plain code, and
// whole sessions against the host's selection: the same bits, the same statistics.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/policy/score/score.h"
#include "runtime/policy/select/top_k.h"
#include "tests/gpu/kv_pages.h"
#include "tests/gpu/on_cuda.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/session_bytes.h"

namespace orrery {
namespace {

using namespace testing;
using engine::Session;

constexpr int32_t kKvHeads = 2, kGroup = 3, kLayers = 2, kDim = 32, kMostKeys = 1200;

StepLimits limits(int32_t most_keys = kMostKeys) {
  StepLimits l;
  l.max_rows = 1;
  l.max_context = most_keys + 80;
  l.n_heads = kKvHeads * kGroup, l.n_kv_heads = kKvHeads, l.head_dim = kDim, l.n_layers = kLayers;
  l.max_in = 256;
  l.max_top_keys = most_keys;
  return l;
}

struct Case {
  int32_t page_tokens, n_keys, k, first_page, n_first, n_last;
  int32_t n_jobs = 4;
  int32_t n_numbers = kMostKeys;  // keys behind these are NaN
  bool equal_keys = false;        // each tile of keys is the first one
  KvType from = KvType::f16, to = KvType::f16;
  int32_t n_excluded = 0;  // every third key
  bool one_set = false, lowest_first = false;
  int32_t n_others = 0;
  bool own_keys = false;                           // each job has the tiles in another order
  std::vector<int32_t> infinite = {}, mixed = {};  // keys whose products are infinite: above zero, or of different signs
  bool holds_unwanted = false;                     // at first each held page is none that can be wanted
  float alpha = -1;                                // not negative: fetch_near_best()
  int32_t most_keys = kMostKeys;                   // of the limits
  bool near_best() const { return alpha >= 0; }
  bool has_entry() const { return lowest_first || near_best(); }
  int32_t n_held() const { return n_first + k + n_last + n_others; }
};

// The table and the slots of each job, after one job for each, and after the same jobs once more.
struct Fetched {
  std::vector<std::vector<uint32_t>> tables[2];
  std::vector<uint32_t> n_missed[2];
  std::vector<std::byte> slots[2];
};

// held becomes what the job's head wants. Returns the moved pages as (place, page). scores: of the keys, with lowest_first; held has an
// entry more then.
std::vector<std::pair<uint32_t, uint32_t>> plan(const Case& c, const std::vector<uint32_t>& best, const std::vector<float>& scores,
                                                std::vector<uint32_t>* held) {
  std::vector<uint32_t> wanted;
  for (int32_t i = 0; i < c.n_first; ++i) wanted.push_back(static_cast<uint32_t>(i));
  for (const uint32_t key : best) wanted.push_back(static_cast<uint32_t>(c.first_page) + key);
  for (int32_t i = 0; i < c.n_last; ++i) wanted.push_back(static_cast<uint32_t>(c.first_page + c.n_keys + i));
  const auto in = [](const std::vector<uint32_t>& list, uint32_t page) { return std::find(list.begin(), list.end(), page) != list.end(); };
  std::vector<std::pair<uint32_t, uint32_t>> moved;
  const std::vector<uint32_t> before(held->begin(), held->begin() + c.n_held());
  std::vector<uint32_t> free;
  for (uint32_t place = 0; place < before.size(); ++place)
    if (!in(wanted, before[place])) free.push_back(place);
  const auto score = [&](uint32_t place) { return policy::order_of(scores[before[place] - static_cast<uint32_t>(c.first_page)]); };
  if (c.lowest_first)
    std::sort(free.begin(), free.end(),
              [&](uint32_t a, uint32_t b) { return score(a) != score(b) ? score(a) < score(b) : before[a] > before[b]; });
  size_t next = 0;
  for (const uint32_t page : wanted) {
    if (in(before, page)) continue;
    moved.emplace_back(free[next], page);
    (*held)[free[next++]] = page;
  }
  if (c.lowest_first)
    held->back() = next < free.size() && score(free[next]) < policy::order_of(INFINITY) ? free[next] : FetchShape::kNoPlace;
  return moved;
}

// Products of the jobs' query heads with their keys, (jobs, kGroup, n_keys).
std::vector<float> products(Machine* m, const std::vector<FetchJob>& jobs, const KeysShape& of) {
  KeysShape shape = of;
  shape.products = true;
  const auto n = static_cast<size_t>(jobs[0].n_keys);
  std::vector<float> rows(jobs.size() * kGroup * n);
  std::vector<KeyWeightsJob> weights(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) static_cast<KeysJob&>(weights[i]) = jobs[i], weights[i].out = &rows[i * kGroup * n];
  (*m)->keys()->key_weights(weights, shape);
  EXPECT_TRUE((*m)->synchronize().ok());
  return rows;
}
std::vector<float> mean_products(Machine* m, const std::vector<FetchJob>& jobs, const KeysShape& of) {
  std::vector<float> mean(static_cast<size_t>(jobs[0].n_keys));
  EXPECT_TRUE(
      policy::group_reduce(products(m, jobs, of), static_cast<uint32_t>(jobs.size()) * kGroup, policy::GroupReduce::mean, mean).ok());
  return mean;
}

// plan() of fetch_near_best(), for all jobs. rows: products(). all_held: each with an entry behind it.
std::vector<std::vector<std::pair<uint32_t, uint32_t>>> plan_near_best(const Case& c, std::vector<float> rows,
                                                                       std::vector<std::vector<uint32_t>>* all_held) {
  const auto n = static_cast<size_t>(c.n_keys), n_jobs = all_held->size();
  size_t n_near = 0;
  for (size_t row = 0; row < n_jobs * kGroup; ++row) {
    float* first = &rows[row / kGroup * kGroup * n];  // the job's first row becomes its keys' smallest distances
    float* of_row = &rows[row * n];
    const float best = *std::max_element(of_row, of_row + n);
    for (size_t i = 0; i < n; ++i) {
      const float x = of_row[i] - best;
      n_near += x > -c.alpha;
      if (row % kGroup == 0 || first[i] < x) first[i] = x;
    }
  }
  const size_t n_wanted = std::min(n_near / (n_jobs * kGroup), static_cast<size_t>(c.k));
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> moved(n_jobs);
  for (size_t job = 0; job < n_jobs; ++job) {
    std::vector<uint32_t>& held = (*all_held)[job];
    held.back() = static_cast<uint32_t>(n_wanted);
    const auto order = [&](uint32_t page) { return policy::order_of(rows[job * kGroup * n + page - static_cast<uint32_t>(c.first_page)]); };
    std::vector<uint32_t> pages(n), free;
    std::iota(pages.begin(), pages.end(), static_cast<uint32_t>(c.first_page));
    std::stable_sort(pages.begin(), pages.end(), [&](uint32_t a, uint32_t b) { return order(a) > order(b); });
    pages.resize(n_wanted);
    std::sort(pages.begin(), pages.end());
    const std::vector<uint32_t> before(held.begin(), held.end() - 1);
    const auto in = [](const std::vector<uint32_t>& list, uint32_t page) {
      return std::find(list.begin(), list.end(), page) != list.end();
    };
    for (uint32_t place = 0; place < before.size(); ++place)
      if (!in(pages, before[place])) free.push_back(place);
    std::sort(free.begin(), free.end(), [&](uint32_t a, uint32_t b) {
      const uint32_t p = before[a], q = before[b];
      return order(p) != order(q) ? order(p) < order(q) : p > q;
    });
    pages.erase(std::remove_if(pages.begin(), pages.end(), [&](uint32_t page) { return in(before, page); }), pages.end());
    std::sort(free.begin(), free.begin() + static_cast<ptrdiff_t>(pages.size()));
    for (size_t i = 0; i < pages.size(); ++i) held[free[i]] = pages[i], moved[job].emplace_back(free[i], pages[i]);
  }
  return moved;
}

Fetched fetched(Machine* m, const Case& c) {
  const KvFormat keys_kv = kv_format(KvType::f16, 1, 1, kDim), kv = kv_format(c.from, kLayers, kKvHeads, kDim);
  const KvFormat slots_kv = kv_format(c.to, kLayers, kKvHeads, kDim);
  const Pages keys(m, keys_kv, std::min(c.n_numbers, c.most_keys), 11);
  std::vector<uint64_t> tiles(keys.addresses(), keys.addresses() + keys.view().n_pages);
  if (c.equal_keys) std::fill(tiles.begin(), tiles.end(), tiles[0]);
  const int32_t n_pages = c.first_page + c.n_keys + c.n_last;
  const HostPages pages(m, kv, n_pages * c.page_tokens, 5);
  const KvView view = pages.view();
  std::vector<float> queries = normal_values(kKvHeads * kGroup * kDim, 13);
  for (size_t head = 0; head < size_t{kKvHeads * kGroup} && !c.infinite.empty(); ++head)
    queries[head * kDim] = 1.0f, queries[head * kDim + 1] = head % 2 == 0 ? 1.0f : -1.0f;
  const auto set_infinite = [&](int32_t key, uint64_t dimension) {
    const uint16_t infinity = 0x7C00;
    (*m)->upload(
        {tiles[static_cast<size_t>(key / kPageTokens)] + static_cast<uint64_t>(key % kPageTokens) * keys_kv.token_bytes() + 2 * dimension},
        &infinity, sizeof infinity);
  };
  for (const int32_t key : c.infinite) set_infinite(key, 0);
  for (const int32_t key : c.mixed) set_infinite(key, 1);
  Buffer<float> q(m, queries);
  const auto n_held = static_cast<size_t>(c.n_held()), n_jobs = static_cast<size_t>(c.n_jobs);
  const uint64_t head_bytes = n_held * static_cast<uint64_t>(c.page_tokens) * slots_kv.token_bytes();
  Buffer<std::byte> slots(m, std::vector<std::byte>(n_jobs * head_bytes, std::byte{0x5A}));
  std::vector<std::vector<uint32_t>> tables;
  Random random(3);
  for (size_t i = 0; i < n_jobs; ++i) {
    std::vector<uint32_t> all(static_cast<size_t>(n_pages));
    std::iota(all.begin(), all.end(), 0u);
    for (size_t at = all.size(); at > 1; --at) std::swap(all[at - 1], all[random.below(at)]);
    const auto is_nothing = [&](uint32_t page) {
      return page >= static_cast<uint32_t>(c.n_first) && page < static_cast<uint32_t>(c.first_page);
    };
    if (c.has_entry()) all.erase(std::remove_if(all.begin(), all.end(), is_nothing), all.end());
    if (c.holds_unwanted) std::partition(all.begin(), all.end(), is_nothing);
    tables.emplace_back(all.begin(), all.begin() + static_cast<ptrdiff_t>(n_held));
    if (c.has_entry()) tables.back().push_back(0);
  }
  std::vector<std::unique_ptr<Buffer<uint32_t>>> held;
  std::vector<std::vector<uint32_t>> best(n_jobs, std::vector<uint32_t>(static_cast<size_t>(c.k)));
  std::vector<FetchJob> jobs(n_jobs);
  std::vector<std::vector<uint64_t>> own(n_jobs, tiles);
  Buffer<uint32_t> working(m, std::vector<uint32_t>(n_held * n_jobs, 7));
  Buffer<FetchTold> told(m, std::vector<FetchTold>(n_jobs));
  for (size_t i = 0; i < n_jobs; ++i) {
    FetchJob& job = jobs[i];
    const auto head = static_cast<uint32_t>(i) % (kLayers * kKvHeads);
    held.push_back(std::make_unique<Buffer<uint32_t>>(m, tables[i]));
    if (c.own_keys) std::rotate(own[i].begin(), own[i].begin() + static_cast<ptrdiff_t>(i % tiles.size()), own[i].end());
    job.kv_head = static_cast<int32_t>(head % kKvHeads), job.tiles = own[i].data();
    job.n_keys = c.n_keys, job.k = c.k, job.n_positions = 1;
    job.first_page = c.first_page, job.n_first = c.n_first, job.n_last = c.n_last, job.n_others = c.n_others;
    job.held = held.back()->ptr(), job.slots = slots.ptr() + i * head_bytes, job.from = kv.head_offset(head);
    job.before = working.ptr() + i * n_held, job.told = told.ptr() + i;
  }
  TopKeysShape shape;
  shape.kv = kv_format(KvType::f16, 1, kKvHeads, kDim), shape.n_heads = kKvHeads * kGroup, shape.scale = .2f, shape.queries = {q.ptr(), 1};
  Step step;
  step.kv = kv, step.sequences = {&view, 1};
  std::vector<uint32_t> excluded;
  for (int32_t i = 0; i < c.n_excluded; ++i) excluded.push_back(static_cast<uint32_t>(3 * i));
  for (FetchJob& job : jobs) job.excluded = excluded;
  Fetched result;
  for (int round = 0; round < 2; ++round) {
    if (m->cuda()) {
      m->begin(Phase::decode, 1, n_pages * c.page_tokens - 1, step);
      (*m)->send();
      std::vector<FetchTold> results(n_jobs);
      const Download download = {results.data(), {told.address()}, n_jobs * sizeof(FetchTold)};
      FetchShape fetch;
      fetch.reservoir = kv, fetch.slot_type = c.to, fetch.page_tokens = c.page_tokens;
      fetch.one_set = c.one_set, fetch.lowest_first = c.lowest_first;
      if (c.near_best()) (*m)->kv_moves()->join_moves((*m)->fetches()->fetch_near_best(jobs, shape, fetch, c.alpha, download));
      else (*m)->fetches()->fetch_best(jobs, shape, fetch, download);
      m->end();
      (*m)->fetches()->download_told(download);
      for (size_t i = 0; i < n_jobs; ++i) {
        result.tables[round].push_back(held[i]->get());
        result.n_missed[round].push_back(results[i].n_missed);
        EXPECT_EQ(results[i].entry, c.has_entry() ? result.tables[round][i].back() : 0);
      }
    } else {
      const std::vector<float> scores = mean_products(m, jobs, shape);
      std::vector<TopKeysJob> asked(jobs.begin(), jobs.end());
      std::vector<std::vector<uint32_t>> all(n_jobs, std::vector<uint32_t>(static_cast<size_t>(c.n_keys)));
      for (size_t i = 0; i < n_jobs; ++i) asked[i].out = all[i].data(), asked[i].k = c.n_keys, asked[i].by_score = true;
      (*m)->keys()->top_keys(asked, shape);
      for (size_t i = 0; i < n_jobs; ++i) {
        const auto is_excluded = [&](uint32_t key) { return std::find(excluded.begin(), excluded.end(), key) != excluded.end(); };
        all[i].erase(std::remove_if(all[i].begin(), all[i].end(), is_excluded), all[i].end());
        std::copy_n(all[i].begin(), c.k, best[i].begin());
        std::sort(best[i].begin(), best[i].end());
        if (c.one_set) policy::top_k_ascending(scores, static_cast<size_t>(c.k), &best[i]);
      }
      std::vector<KvMove> moves;
      std::vector<std::vector<std::pair<uint32_t, uint32_t>>> moved(n_jobs);
      if (c.near_best()) moved = plan_near_best(c, products(m, jobs, shape), &tables);
      for (size_t i = 0; i < n_jobs; ++i) {
        if (!c.near_best()) moved[i] = plan(c, best[i], scores, &tables[i]);
        result.n_missed[round].push_back(static_cast<uint32_t>(moved[i].size()));
        for (const auto& [place, page] : moved[i]) {
          const uint32_t position = page * static_cast<uint32_t>(c.page_tokens);
          moves.push_back({jobs[i].slots.address + uint64_t{place} * static_cast<uint64_t>(c.page_tokens) * slots_kv.token_bytes(),
                           view.pages[position / kPageTokens] + jobs[i].from + position % kPageTokens * kv.token_bytes(),
                           static_cast<uint32_t>(c.page_tokens)});
        }
      }
      (*m)->kv_moves()->move_kv(moves, c.to, c.from, kv.token_values());
      EXPECT_TRUE((*m)->synchronize().ok());
      result.tables[round] = tables;
    }
    result.slots[round] = slots.get();
  }
  return result;
}

void expect_as_planned(const Case& c) {
  StepLimits l = limits(c.most_keys);
  l.max_context = std::max(l.max_context, (c.first_page + c.n_keys + c.n_last) * c.page_tokens);
  const auto [expected, got] = on_both(l, [&](Machine* m) { return fetched(m, c); });
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(got.tables[round], expected.tables[round]) << "round " << round;
    EXPECT_EQ(got.n_missed[round], expected.n_missed[round]) << "round " << round;
    EXPECT_TRUE(got.slots[round] == expected.slots[round]) << "round " << round;
  }
  EXPECT_TRUE(got.slots[0] == got.slots[1]) << "nothing is missing the second time";
}

TEST(GpuFetch, PagesAndTokens) {
  expect_as_planned({16, 70, 9, 2, 2, 3});
  expect_as_planned({64, 15, 4, 1, 1, 1});
  expect_as_planned({1, 300, 40, 4, 0, 0});
  expect_as_planned({1, 65, 1, 0, 0, 0});
}

TEST(GpuFetch, EveryCandidateIsWanted) {
  expect_as_planned({8, 12, 12, 1, 1, 2});
  expect_as_planned({1, 64, 64, 3, 0, 0});
}

TEST(GpuFetch, MorePlacesThanThreads) { expect_as_planned({1, 1190, 1100, 2, 2, 5, 2}); }

TEST(GpuFetch, ManyHeadsInSeveralBatches) {
  expect_as_planned({1, 130, 20, 1, 1, 1, 24});
  expect_as_planned({1, 1150, 33, 4, 4, 6, 24});
}

TEST(GpuFetch, TiesGoToTheLowerPages) { expect_as_planned({1, 1190, 30, 0, 0, 0, 2, kMostKeys, true}); }

// Keys without a number come last, the lower ones first.
TEST(GpuFetch, NoNumbers) { expect_as_planned({1, 120, 110, 0, 0, 2, 2, 100}); }

// Excluded keys are not selected, even where others have no weight. Keys without a number have none.
TEST(GpuFetch, ExcludedPages) {
  expect_as_planned({8, 130, 30, 0, 0, 0, 4, kMostKeys, false, KvType::f16, KvType::f16, 10});
  expect_as_planned({8, 120, 100, 0, 0, 0, 4, 70, false, KvType::f16, KvType::f16, 20});
}

// One set of scores for all heads: the mean of their products, which may be negative.
Case one_set(int32_t page_tokens, int32_t n_keys, int32_t k, int32_t n_others) {
  Case c = {page_tokens, n_keys, k, 2, 1, 3};
  c.one_set = true, c.lowest_first = n_others >= 0, c.n_others = std::max(n_others, 0);
  return c;
}

TEST(GpuFetch, OneSetForAllHeads) {
  expect_as_planned(one_set(16, 70, 9, -1));
  expect_as_planned(one_set(8, 130, 120, -1));  // most of the scores are negative
  expect_as_planned(one_set(16, 40, 40, -1));
}

TEST(GpuFetch, LowestScoresAreReplaced) {
  expect_as_planned(one_set(16, 70, 9, 11));
  expect_as_planned(one_set(8, 150, 30, 0));  // each unwanted page is replaced, in the order of the scores
  expect_as_planned(one_set(8, 150, 1, 140));
  expect_as_planned(one_set(1, 1190, 500, 600));
  expect_as_planned(one_set(1, 1190, 1100, 60));  // more wanted pages than threads
  expect_as_planned(one_set(8, 150, 10, 2));      // the place that is replaced next has a positive score
}

TEST(GpuFetch, OneSetInSeveralBatches) {
  Case c = one_set(1, 1150, 33, 50);
  c.n_jobs = 24, c.own_keys = true;
  expect_as_planned(c);
}

// Of equal scores the lower pages are selected, and the later pages replaced. Pages without a number come last, and leave first.
TEST(GpuFetch, OneSetWithTiesAndNoNumbers) {
  Case c = one_set(1, 1190, 30, 40);
  c.n_jobs = 2, c.equal_keys = true;
  expect_as_planned(c);
  c = one_set(1, 120, 110, 6);
  c.n_jobs = 2, c.n_numbers = 100;
  expect_as_planned(c);
}

// A mean of infinite products of both signs is no number: its pages come last. A page with an infinite score is not replaced before it must
// be.
TEST(GpuFetch, OneSetWithInfiniteScores) {
  Case c = one_set(8, 60, 50, 6);
  c.infinite = {3, 4, 5}, c.mixed = {7, 8, 20, 21};
  expect_as_planned(c);
  c = one_set(8, 10, 2, 5);
  c.infinite = {0, 1, 2, 3, 4, 5, 6, 7, 9}, c.mixed = {8};
  expect_as_planned(c);
  c.n_others = 0;
  expect_as_planned(c);
}

// As many keys as are near the best, in the mean over all query heads.
Case near_best(int32_t n_keys, int32_t k, int32_t n_others, float alpha) {
  Case c = {1, n_keys, k, 3, 0, 0};
  c.n_others = n_others, c.alpha = alpha;
  return c;
}

TEST(GpuFetch, KeysNearTheBest) {
  expect_as_planned(near_best(300, 60, 20, 1.5f));
  expect_as_planned(near_best(300, 10, 70, 1.5f));       // more are near than a head may have
  expect_as_planned(near_best(300, 10, 30, 0.0f));       // none is: nothing is fetched
  expect_as_planned(near_best(65, 65, 0, 100.0f));       // all are
  expect_as_planned(near_best(1190, 1150, 20, 100.0f));  // more wanted keys than threads
  expect_as_planned(near_best(1190, 20, 1030, 2.0f));    // more unwanted ones
}

TEST(GpuFetch, KeysNearTheBestInSeveralBatches) {
  Case c = near_best(1150, 200, 90, 2.0f);
  c.n_jobs = 24, c.own_keys = true;
  expect_as_planned(c);
}

// Of equal scores the lower keys are wanted, and the later ones leave. Keys without a number come last, and leave first.
TEST(GpuFetch, KeysNearTheBestWithTiesAndNoNumbers) {
  Case c = near_best(1190, 40, 60, 1.0f);
  c.n_jobs = 2, c.equal_keys = true;
  expect_as_planned(c);
  c = near_best(120, 60, 50, 3.0f);
  c.n_jobs = 2, c.n_numbers = 70;
  expect_as_planned(c);
  c = near_best(120, 60, 50, 3.0f);
  c.mixed = {7, 8, 20, 21};  // two query heads have nothing near infinity
  expect_as_planned(c);
}

// Many thread blocks select among more than 4096 keys, and plan for more than 2048 places.
Case many(Case c) {
  c.most_keys = c.n_keys + c.n_last;
  if (c.n_numbers == kMostKeys) c.n_numbers = c.most_keys;
  c.n_jobs = 2;
  return c;
}

TEST(GpuFetchByManyBlocks, PagesAndTokens) {
#ifdef ORRERY_EMULATED
  const auto launches = [](const char* kernel) { return emulated::launches_of(kernel); };
  const uint64_t n_selected = launches("write_taken_kernel"), n_planned = launches("list_misses_kernel");
#endif
  expect_as_planned(many({1, 5000, 40, 4, 0, 0}));    // one thread block plans
  expect_as_planned(many({1, 6145, 2100, 7, 3, 5}));  // one key behind a slice
  expect_as_planned(many({1, 8192, 4096, 4, 4, 0}));
  expect_as_planned(many({1, 4097, 4097, 2, 1, 3}));        // all
  expect_as_planned(many({1, 5000, 0, 1200, 1000, 1500}));  // none
  expect_as_planned(many({1, 5000, 1, 1200, 1000, 1500}));
  Case c = many({1, 5000, 2100, 2200, 3, 5});  // all are missing
  c.holds_unwanted = true;
  expect_as_planned(c);
#ifdef ORRERY_EMULATED
  EXPECT_GT(launches("write_taken_kernel"), n_selected);
  EXPECT_GT(launches("list_misses_kernel"), n_planned);
#endif
}

// Equal scores lie in all slices. Keys without a number, and those with infinite products, have no weight or all of it.
TEST(GpuFetchByManyBlocks, TiesAndNoNumbers) {
  Case c = many({1, 6200, 2600, 0, 0, 0});
  c.equal_keys = true;
  expect_as_planned(c);
  c = many({1, 6200, 6180, 0, 0, 2});
  c.n_numbers = 6150;  // all tiles are there
  expect_as_planned(c);
}

TEST(GpuFetchByManyBlocks, ExcludedPages) {
  Case c = many({1, 5000, 2400, 0, 0, 0});
  c.n_excluded = 800;
  expect_as_planned(c);
}

TEST(GpuFetchByManyBlocks, OneSetAndNearTheBest) {
  Case c = many({1, 5000, 700, 2, 1, 3});
  c.one_set = true;
  expect_as_planned(c);
  c.lowest_first = true, c.n_others = 50;
  expect_as_planned(c);
  c = many({1, 5000, 900, 3, 0, 0});
  c.n_others = 100, c.alpha = 1.5f;
  expect_as_planned(c);
  c.k = 10;  // more are near than a head may have
  expect_as_planned(c);
  c.alpha = 0.0f;  // none is
  expect_as_planned(c);
}

TEST(GpuFetch, ConvertsAsMovesDo) {
  for (const KvType to : {KvType::f16, KvType::q8_0, KvType::q4_0, KvType::k8v4})
    expect_as_planned({16, 30, 7, 1, 1, 2, 4, kMostKeys, false, KvType::f32, to});
  expect_as_planned({4, 60, 20, 0, 0, 1, 4, kMostKeys, false, KvType::f16, KvType::q8_0});
  const KvType k8v4 = KvType::k8v4;
  for (const auto& [from, to] : {std::pair(k8v4, k8v4), std::pair(k8v4, KvType::q4_0), std::pair(KvType::q8_0, k8v4)})
    expect_as_planned({4, 60, 20, 0, 0, 1, 4, kMostKeys, false, from, to});
}

// ---- pages of heads whose query has changed, and of the others for the next step

struct ChangeCase {
  int32_t page_tokens, n_keys, k, n_first, n_last;
  bool completes = false;
  int32_t n_changed = 1;  // of kKvHeads, from first_changed on
  KvType to = KvType::f16;
  int32_t n_followers = 0;        // of each KV head: fetch_followers()
  int32_t n_numbers = kMostKeys;  // as Case
  bool equal_keys = false;
  int32_t first_changed = 0;
  int32_t most_keys = kMostKeys;
  bool has_changed(int32_t kv_head) const { return kv_head >= first_changed && kv_head < first_changed + n_changed; }
  size_t n_jobs() const { return static_cast<size_t>(kKvHeads * std::max(n_followers, 1)); }
  int32_t kv_head(size_t job) const { return static_cast<int32_t>(job) / std::max(n_followers, 1); }
  int32_t slots_of(size_t job) const { return n_followers > 0 ? static_cast<int32_t>(job) % kKvHeads : kv_head(job); }
  int32_t k_of(size_t job) const { return n_followers > 0 ? std::max(k - 7 * (static_cast<int32_t>(job) % n_followers), 1) : k; }
  size_t n_held(size_t job) const { return static_cast<size_t>(n_first + k_of(job) + n_last); }
};

// As QueryChange says: 32 sums, folded in halves.
double cosine(const float* a, const float* b) {
  double sums[3][32] = {};
  for (int i = 0; i < kDim; ++i) {
    const double x = a[i], y = b[i];
    sums[0][i % 32] += x * y, sums[1][i % 32] += x * x, sums[2][i % 32] += y * y;
  }
  for (double* sum : sums)
    for (int half = 16; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
  return sums[1][0] > 0 && sums[2][0] > 0 ? sums[0][0] / std::sqrt(sums[1][0] * sums[2][0]) : 0;
}

struct Changed {
  std::vector<std::vector<uint32_t>> tables;
  std::vector<uint32_t> n_missed;
  std::vector<std::byte> slots, attended;  // behind the step; and as the layer's attention finds them
};

Changed changed(Machine* m, const ChangeCase& c) {
  const KvFormat keys_kv = kv_format(KvType::f16, 1, 1, kDim), kv = kv_format(KvType::f16, kLayers, kKvHeads, kDim);
  const KvFormat slots_kv = kv_format(c.to, kLayers, kKvHeads, kDim);
  const Pages keys(m, keys_kv, c.n_numbers, 11);
  std::vector<uint64_t> tiles(keys.addresses(), keys.addresses() + keys.view().n_pages);
  if (c.equal_keys) std::fill(tiles.begin(), tiles.end(), tiles[0]);
  const int32_t n_pages = c.n_first + c.n_keys + c.n_last + 1;
  const HostPages pages(m, kv, n_pages * c.page_tokens, 5);
  const KvView view = pages.view();
  const std::vector<float> now = normal_values(kKvHeads * kGroup * kDim, 13);
  std::vector<float> before = now;
  for (size_t i = 0; i < before.size(); ++i)
    if (c.has_changed(static_cast<int32_t>(i) / (kGroup * kDim))) before[i] = -now[i];
  Buffer<float> q(m, now), last(m, before);
  const size_t n_jobs = c.n_jobs(), most_held = c.n_held(0);
  const uint64_t head_bytes = most_held * static_cast<uint64_t>(c.page_tokens) * slots_kv.token_bytes();
  Buffer<std::byte> slots(m, std::vector<std::byte>(n_jobs * head_bytes, std::byte{0x5A})),
      attended(m, std::vector<std::byte>(n_jobs * head_bytes));
  Buffer<uint32_t> working(m, std::vector<uint32_t>(most_held * n_jobs, 7));
  Buffer<FetchTold> told(m, std::vector<FetchTold>(n_jobs));
  Changed result;
  Random random(3);
  for (size_t i = 0; i < n_jobs; ++i) {  // the last pages, and others in any order
    std::vector<uint32_t> all(static_cast<size_t>(n_pages - 1 - c.n_last));
    std::iota(all.begin(), all.end(), 0u);
    for (size_t at = all.size(); at > 1; --at) std::swap(all[at - 1], all[random.below(at)]);
    all.resize(c.n_held(i) - static_cast<size_t>(c.n_last));
    for (int32_t page = 0; page < c.n_last; ++page) all.insert(all.begin() + page, static_cast<uint32_t>(c.n_first + c.n_keys + page));
    all.push_back(99);
    result.tables.push_back(all);
  }
  std::vector<std::unique_ptr<Buffer<uint32_t>>> held;
  std::vector<FetchJob> jobs(n_jobs), next;
  for (size_t i = 0; i < n_jobs; ++i) {
    FetchJob& job = jobs[i];
    held.push_back(std::make_unique<Buffer<uint32_t>>(m, result.tables[i]));
    job.kv_head = c.kv_head(i), job.follower = c.slots_of(i), job.tiles = tiles.data();
    job.n_keys = c.n_keys, job.k = c.k_of(i), job.n_positions = 1;
    job.first_page = job.n_first = c.n_first, job.n_last = c.n_last;
    job.held = held.back()->ptr(), job.before = working.ptr() + i * most_held, job.told = told.ptr() + i;
    job.slots = slots.ptr() + i * head_bytes, job.from = kv.head_offset(static_cast<uint32_t>(c.slots_of(i)));
  }
  for (const FetchJob& job : jobs) {
    if (!c.completes) break;
    next.push_back(job);
    ++next.back().n_keys, --next.back().n_last, next.back().n_others = 1;
  }
  TopKeysShape shape;
  shape.kv = kv_format(KvType::f16, 1, kKvHeads, kDim), shape.n_heads = kKvHeads * kGroup, shape.scale = .2f, shape.queries = {q.ptr(), 1};
  Step step;
  step.kv = kv, step.sequences = {&view, 1};
  if (m->cuda()) {
    m->begin(Phase::decode, 1, n_pages * c.page_tokens - 1, step);
    (*m)->send();
    std::vector<FetchTold> results(n_jobs);
    const Download download = {results.data(), {told.address()}, n_jobs * sizeof(FetchTold)};
    FetchShape fetch;
    fetch.reservoir = kv, fetch.slot_type = c.to, fetch.page_tokens = c.page_tokens;
    QueryChange change;
    change.before = last.ptr(), change.tau = .9;
    if (c.n_followers > 0) (*m)->fetches()->fetch_followers(jobs, shape, fetch, change, download);
    else (*m)->fetches()->fetch_changed(jobs, next, shape, fetch, change, download);
    (*m)->send();  // nothing: the layer has not attended
    (*m)->copy(attended.ptr(), slots.ptr(), n_jobs * head_bytes);
    m->end();
    (*m)->fetches()->download_told(download);
    for (size_t i = 0; i < n_jobs; ++i) {
      result.tables[i] = held[i]->get();
      result.n_missed.push_back(results[i].n_missed);
      EXPECT_EQ(results[i].entry, result.tables[i].back());
    }
    result.slots = slots.get(), result.attended = attended.get();
    return result;
  }
  std::vector<KvMove> moves, ahead;
  for (size_t i = 0; i < n_jobs; ++i) {
    const bool fetches_now = c.has_changed(c.slots_of(i));
    std::vector<uint32_t> best(static_cast<size_t>(c.k_of(i))), wanted, free;
    TopKeysJob asked = c.completes && c.n_changed == 0 ? next[i] : jobs[i];
    asked.out = best.data();
    (*m)->keys()->top_keys({&asked, 1}, shape);
    for (int32_t page = 0; page < c.n_first; ++page) wanted.push_back(static_cast<uint32_t>(page));
    for (const uint32_t key : best) wanted.push_back(static_cast<uint32_t>(c.n_first) + key);
    for (int32_t page = c.completes && !fetches_now; page < c.n_last; ++page)
      wanted.push_back(static_cast<uint32_t>(c.n_first + c.n_keys + page));
    std::vector<uint32_t>& table = result.tables[i];
    const auto in = [&](const auto& list, uint32_t page) { return std::find(list.begin(), list.end(), page) != list.end(); };
    const std::vector<uint32_t> old(table.begin(), table.end() - 1);
    for (uint32_t place = 0; place < old.size(); ++place)
      if (!in(wanted, old[place])) free.push_back(place);
    table.back() = fetches_now ? QueryChange::kChanged : 0;
    size_t taken = 0;
    if (c.completes && !fetches_now) table.back() = free[taken++];
    const size_t n_kept = taken;
    for (const uint32_t page : wanted) {
      if (in(old, page)) continue;
      const uint32_t place = free[taken++], position = page * static_cast<uint32_t>(c.page_tokens);
      table[place] = page;
      (fetches_now ? moves : ahead)
          .push_back({jobs[i].slots.address + uint64_t{place} * static_cast<uint64_t>(c.page_tokens) * slots_kv.token_bytes(),
                      view.pages[position / kPageTokens] + jobs[i].from + position % kPageTokens * kv.token_bytes(),
                      static_cast<uint32_t>(c.page_tokens)});
    }
    result.n_missed.push_back(static_cast<uint32_t>(taken - n_kept));
    const auto leaving = std::find(table.begin(), table.end() - 1, static_cast<uint32_t>(c.n_first + c.n_keys));
    if (c.completes && fetches_now) table.back() |= static_cast<uint32_t>(leaving - table.begin());
  }
  for (auto [list, to] : {std::pair(&moves, &result.attended), std::pair(&ahead, &result.slots)}) {
    (*m)->kv_moves()->move_kv(*list, c.to, KvType::f16, kv.token_values());
    EXPECT_TRUE((*m)->synchronize().ok());
    *to = slots.get();
  }
  return result;
}

void expect_changed(const ChangeCase& c) {
  for (const auto& [first, n] : {std::pair(0, 0), std::pair(0, 1), std::pair(1, 1), std::pair(0, 2)}) {
    SCOPED_TRACE(std::to_string(n) + " from " + std::to_string(first));
    ChangeCase of = c;
    of.first_changed = first, of.n_changed = n;
    const auto [expected, got] = on_both(limits(c.most_keys), [&](Machine* m) { return changed(m, of); });
    EXPECT_EQ(got.tables, expected.tables);
    EXPECT_EQ(got.n_missed, expected.n_missed);
    EXPECT_TRUE(got.slots == expected.slots);
    EXPECT_TRUE(got.attended == expected.attended);
  }
}

TEST(GpuFetchChanged, ForThisStepOrTheNext) {
  expect_changed({16, 30, 7, 1, 2});
  for (const KvType to : {KvType::q8_0, KvType::k8v4}) expect_changed({4, 60, 20, 2, 3, false, 1, to});
}

TEST(GpuFetchChanged, AStepThatCompletesAPage) {
  expect_changed({16, 30, 7, 1, 2, true});
  expect_changed({4, 60, 20, 0, 1, true});  // the page that leaves is the only window page
}

TEST(GpuFetchChanged, MorePlacesThanThreads) { expect_changed({1, 1190, 1100, 2, 2, true}); }

// Heads that hold the best tokens of another head, each as many as it has places for.
ChangeCase followers(int32_t n_keys, int32_t k, int32_t n_followers) {
  ChangeCase c = {1, n_keys, k, 0, 0};
  c.n_followers = n_followers;
  return c;
}

TEST(GpuFetchFollowers, ForThisStepOrTheNext) {
  expect_changed(followers(300, 60, 3));
  expect_changed(followers(1190, 1150, 2));  // more places than threads
  expect_changed(followers(64, 64, 1));      // every key
  ChangeCase c = followers(130, 20, 4);
  c.to = KvType::q8_0;
  expect_changed(c);
}

TEST(GpuFetchByManyBlocks, ChangedQueriesAndFollowers) {
  ChangeCase c = {1, 4300, 300, 2, 2, true};
  c.most_keys = c.n_numbers = 4302;
  expect_changed(c);
  c = followers(4300, 300, 2);
  c.most_keys = c.n_numbers = 4300;
  expect_changed(c);
}

// A leader's followers may lie in several batches.
TEST(GpuFetchFollowers, SeveralBatches) { expect_changed(followers(1190, 90, 12)); }

TEST(GpuFetchFollowers, TiesAndNoNumbers) {
  ChangeCase c = followers(300, 40, 3);
  c.equal_keys = true;
  expect_changed(c);
  c = followers(120, 110, 2);
  c.n_numbers = 70;
  expect_changed(c);
}

// A head's query has changed if its cosine is less than tau, to the last bit.
TEST(GpuFetchChanged, AtTheThreshold) {
  const auto on = [](Machine* m, const std::vector<float>& now, const std::vector<float>& before, double tau) {
    const KvFormat kv = kv_format(KvType::f16, kLayers, kKvHeads, kDim);
    const Pages keys(m, kv_format(KvType::f16, 1, 1, kDim), 8, 11);
    const HostPages pages(m, kv, 12 * 16, 5);
    const KvView view = pages.view();
    Buffer<float> q(m, now), last(m, before);
    Buffer<std::byte> slots(m, std::vector<std::byte>(kKvHeads * 16 * kv.token_bytes()));
    Buffer<uint32_t> held(m, std::vector<uint32_t>(2 * kKvHeads, 0)), working(m, std::vector<uint32_t>(kKvHeads, 0));
    Buffer<FetchTold> told(m, std::vector<FetchTold>(kKvHeads));
    std::vector<FetchJob> jobs(kKvHeads);
    for (size_t i = 0; i < jobs.size(); ++i) {
      FetchJob& job = jobs[i];
      job.kv_head = static_cast<int32_t>(i), job.tiles = keys.addresses(), job.n_keys = 8, job.k = 1, job.n_positions = 1;
      job.held = held.ptr() + 2 * i, job.before = working.ptr() + i, job.slots = slots.ptr() + i * 16 * kv.token_bytes();
      job.told = told.ptr() + i;
    }
    TopKeysShape shape;
    shape.kv = kv_format(KvType::f16, 1, kKvHeads, kDim), shape.n_heads = kKvHeads * kGroup, shape.queries = {q.ptr(), 1};
    Step step;
    step.kv = kv, step.sequences = {&view, 1};
    m->begin(Phase::decode, 1, 12 * 16 - 1, step);
    (*m)->send();
    std::vector<FetchTold> results(kKvHeads);
    const Download download = {results.data(), {told.address()}, kKvHeads * sizeof(FetchTold)};
    FetchShape fetch;
    fetch.reservoir = kv, fetch.page_tokens = 16;
    QueryChange change;
    change.before = last.ptr(), change.tau = tau;
    (*m)->fetches()->fetch_changed(jobs, {}, shape, fetch, change, download);
    m->end();
    (*m)->fetches()->download_told(download);
    return std::vector<uint32_t>{results[0].entry, results[1].entry};
  };
  std::vector<float> now = normal_values(kKvHeads * kGroup * kDim, 17), before = normal_values(kKvHeads * kGroup * kDim, 19);
  double mean = 0;
  for (int g = 0; g < kGroup; ++g) mean += cosine(&now[static_cast<size_t>(g * kDim)], &before[static_cast<size_t>(g * kDim)]);
  const auto threshold = static_cast<float>(mean / kGroup);
  std::fill(now.begin() + kGroup * kDim, now.end(), 0.0f);  // zero vectors: their cosine is 0
  Machine machine(true, limits());
  constexpr uint32_t kChanged = QueryChange::kChanged;
  EXPECT_EQ(on(&machine, now, before, static_cast<double>(threshold))[0], 0u);
  EXPECT_EQ(on(&machine, now, before, std::nextafter(static_cast<double>(threshold), 2.0))[0], kChanged);
  EXPECT_EQ(on(&machine, now, before, 0.0)[1], 0u);
  EXPECT_EQ(on(&machine, now, before, 1e-300)[1], kChanged);
  now[kGroup * kDim] = INFINITY, before[kGroup * kDim] = 1;  // the cosine is no number
  EXPECT_EQ(on(&machine, now, before, 2.0)[1], 0u);
}

// ---- whole sessions

enum Count : size_t { kMissed = 1, kRequests = 6 };
struct Told {
  std::vector<float> logits;
  std::vector<uint64_t> counts;
  uint64_t forked_ahead = 0;  // tokens that the last step before the fork has fetched for the next one
  uint64_t fetched = 0;       // tokens in all
  void add(Session* session) {
    read_positions(session);
    const policy::Report report = session->resident()->report();
    const kv::Refills::Stats stats = session->resident()->refill_stats();
    for (const uint64_t x : {report.wanted_tokens, report.missed_tokens, report.n_settled, report.n_checks, stats.tokens, stats.bytes,
                             stats.requests, report.n_triggers, session->resident()->reads().searched, session->resident()->reads().kv})
      counts.push_back(x);
    for (uint32_t head = 0; head < session->resident()->store().n_heads(); ++head)
      for (const uint32_t position : session->resident()->store().positions(head)) counts.push_back(position);
  }
};

// An answer, a fork of it, a rewind with another prompt, steps that fail, and a rewind to fewer tokens.
Told told(const std::shared_ptr<engine::LanguageModel>& model, const engine::SessionOptions& options, bool on_host) {
  Told all;
  const auto session = unwrap(Session::open(model, options));
  if (on_host) session->resident()->select_on_host();
  unwrap(session->prefill(random_tokens(*model, 72, 1), nullptr, nullptr));
  greedy(session.get(), 9, &all.logits);
  all.add(session.get());
  all.forked_ahead = pending_tokens(*session);
  const auto fork = unwrap(session->fork());
  if (on_host) fork->resident()->select_on_host();
  const auto second = unwrap(fork->fork()), loaded = unwrap(Session::open(model, options));  // a saved session goes on alike
  unwrap(engine::SessionFile::load(loaded.get(), save_bytes(session.get()), "a session"));
  std::vector<float> of_second, of_loaded;
  for (Session* s : {second.get(), loaded.get()}) {
    if (on_host) s->resident()->select_on_host();
    greedy(s, 9, s == second.get() ? &of_second : &of_loaded);
  }
  EXPECT_TRUE(same_bits(of_second, of_loaded));
  for (Session* s : {session.get(), fork.get()}) {
    greedy(s, 2, &all.logits);
    feed(s, s == fork.get() ? 3 : 5);
    greedy(s, 7, &all.logits);
    all.add(s);
  }
  unwrap(session->rewind(76));
  unwrap(session->prefill(random_tokens(*model, 5, 2), nullptr, nullptr));
  greedy(session.get(), 3, &all.logits);
  const auto fail = [&] {
    session->resident()->set_step_fault([](uint64_t) { return error(Code::internal, "a fault"); });
    session->push_generated(7);
    EXPECT_FALSE(session->decode().ok());
    session->resident()->set_step_fault(nullptr);
  };
  fail();
  greedy(session.get(), 4, &all.logits);  // completes a page
  fail();
  unwrap(session->rewind(61));  // heads have fewer slots than in the step that failed
  unwrap(session->prefill(random_tokens(*model, 3, 4), nullptr, nullptr));
  greedy(session.get(), 2, &all.logits);
  all.add(session.get());
  all.fetched = session->resident()->refill_stats().tokens;
  return all;
}

using Mode = std::pair<const char*, KvType>;  // the type of resident KV
// Satellites need layers of several KV heads.
std::string spec_of(const Mode& mode) { return std::string(mode.first).substr(0, 10) == "satellites" ? "llama-plain" : "qwen3"; }
engine::SessionOptions options_of(const Mode& mode) {
  std::vector<PolicyMode> modes = policy_modes();
  modes.push_back(
      {"arkvale_all", "arkvale", {{"page", "8"}, {"sinks", "8"}, {"window", "16"}, {"first_layers", "0"}, {"asked", "1"}}, true, true});
  modes.push_back({"arkvale_adaptive",
                   "arkvale",
                   {{"page", "4"}, {"sinks", "0"}, {"window", "8"}, {"first_layers", "0"}, {"digest", "range"}, {"heads", "adaptive"}},
                   true,
                   true});
  modes.push_back({"arkvale_next", "arkvale", {{"page", "8"}, {"set", "head"}, {"tau", "0"}, {"first_layers", "0"}}, true});
  modes.push_back(
      {"freekv_seldom", "freekv", {{"page", "8"}, {"first_layers", "0"}, {"sinks", "8"}, {"window", "8"}, {"tau", "0.2"}}, true, true});
  modes.push_back({"freekv_adaptive",
                   "freekv",
                   {{"page", "4"}, {"first_layers", "0"}, {"window", "8"}, {"digest", "deviation"}, {"heads", "adaptive"}},
                   true,
                   true});
  modes.push_back(
      {"keycodes_best", "keycodes", {{"bits", "4"}, {"window", "8"}, {"stay", "1"}, {"compensation", "0"}, {"heads", "uniform"}}, true});
  modes.push_back({"keycodes_staying", "keycodes", {{"bits", "1"}, {"window", "4"}, {"stay", "32"}, {"reduce", "mean"}}, true});
  const policy::Options satellites = {{"tau_sim", "0"}, {"full_share", "0.25"}, {"satellites", "speculative"}, {"calibration", "4"}};
  for (const auto& [name, tau] : {std::pair("satellites", "0.95"), std::pair("satellites_seldom", "0.05")}) {
    modes.push_back({name, "heterocache", satellites, true, true});
    modes.back().options.emplace_back("tau", tau);
  }
  modes.push_back({"freekv_corrected", "freekv", {{"page", "8"}, {"first_layers", "0"}, {"tau", "0.99"}}, true, true});
  const auto found = std::find_if(modes.begin(), modes.end(), [&](const PolicyMode& m) { return m.name == std::string(mode.first); });
  if (found == modes.end()) throw std::runtime_error(mode.first);
  const bool small = mode.second == KvType::k8v4;  // the reservoir has K8V4, too; digests are a larger share of it
  const KvType kept = small ? KvType::k8v4 : KvType::f16;
  engine::SessionOptions options = with_mode(*found, share_of_tokens(small ? 0.6 : 0.55, kept, mode.second), 128, kept);
  options.device_kv_type = mode.second;
  return options;
}

class GpuFetchModes : public ::testing::TestWithParam<Mode> {};

TEST_P(GpuFetchModes, TheHostsSelectionToTheBit) {
  const auto model = open_spec(spec_of(GetParam()), on_cuda());
#ifdef ORRERY_EMULATED
  const auto plans = [] {
    uint64_t n = 0;
    for (const char* plan : {"fetch", "replacing", "changed", "lowest"})
      n += emulated::launches_of("plan_" + std::string(plan) + "_kernel");
    return n;
  };
  const uint64_t before = plans();
#endif
  const Told expected = told(model, options_of(GetParam()), true);
#ifdef ORRERY_EMULATED
  EXPECT_EQ(plans(), before);
#endif
  const Told got = told(model, options_of(GetParam()), false);
#ifdef ORRERY_EMULATED
  EXPECT_GT(plans(), before);
#endif
  EXPECT_TRUE(same_bits(got.logits, expected.logits));
  EXPECT_EQ(got.counts, expected.counts);
  EXPECT_GT(expected.counts[kMissed], 0u) << "nothing is fetched";
  const std::string name = GetParam().first;
  const bool fetches_ahead = name == "freekv_seldom" || name == "satellites_seldom";
  EXPECT_TRUE(!fetches_ahead || expected.forked_ahead > 0) << "the fork has nothing to go on from";
}

INSTANTIATE_TEST_SUITE_P(
    Modes, GpuFetchModes,
    ::testing::Values(Mode{"quest", KvType::f16}, Mode{"quest_adaptive", KvType::q8_0}, Mode{"loki", KvType::f16},
                      Mode{"loki_max", KvType::q8_0}, Mode{"shadowkv", KvType::f16}, Mode{"shadowkv_exact_keys", KvType::f16},
                      Mode{"shadowkv_plus", KvType::q8_0}, Mode{"arkvale", KvType::f16}, Mode{"arkvale", KvType::q8_0},
                      Mode{"arkvale_all", KvType::f16}, Mode{"arkvale_adaptive", KvType::f16}, Mode{"freekv_corrected", KvType::f16},
                      Mode{"freekv_seldom", KvType::q8_0}, Mode{"freekv_adaptive", KvType::f16}, Mode{"infinigen", KvType::f16},
                      Mode{"keycodes", KvType::f16}, Mode{"keycodes_best", KvType::q8_0}, Mode{"keycodes_staying", KvType::f16},
                      Mode{"keycodes", KvType::k8v4}, Mode{"keycodes_values", KvType::f16}, Mode{"keycodes_value_signs", KvType::q8_0},
                      Mode{"infinigen_few", KvType::q8_0}, Mode{"satellites", KvType::f16}, Mode{"satellites_seldom", KvType::f16},
                      Mode{"quest", KvType::k8v4}, Mode{"shadowkv", KvType::k8v4}, Mode{"freekv_corrected", KvType::k8v4}));

// Tokens that kernels read in the reservoir, ahead or within their layer, are those that the I/O thread carries over a link: within a step,
// or for the next one.
class GpuDirectModes : public ::testing::TestWithParam<Mode> {};

TEST_P(GpuDirectModes, TheIoThreadsTokensToTheBit) {
  engine::RuntimeOptions with_link = on_cuda();
  with_link.link.bytes_per_second = uint64_t{1} << 40;
  Told expected = told(open_spec(spec_of(GetParam()), with_link), options_of(GetParam()), false);
  Told got = told(open_spec(spec_of(GetParam()), on_cuda()), options_of(GetParam()), false);
  EXPECT_TRUE(same_bits(got.logits, expected.logits));
  expected.counts[kRequests] = got.counts[kRequests];  // the I/O thread cuts them
  EXPECT_EQ(got.counts, expected.counts);
  EXPECT_GT(expected.fetched, 0u) << "nothing is fetched";
}

INSTANTIATE_TEST_SUITE_P(
    Modes, GpuDirectModes,
    ::testing::Values(Mode{"quest", KvType::f16}, Mode{"loki", KvType::q8_0}, Mode{"omnikv", KvType::f16}, Mode{"keycodes", KvType::q8_0},
                      Mode{"keycodes_values", KvType::q8_0}, Mode{"shadowkv", KvType::q8_0}, Mode{"infinigen", KvType::q8_0},
                      Mode{"infinigen_few", KvType::f16}, Mode{"freekv_corrected", KvType::f16}, Mode{"freekv_small_pages", KvType::q8_0},
                      Mode{"synckv_every_step", KvType::q8_0}, Mode{"synckv_late", KvType::f16}, Mode{"arkvale_next", KvType::f16},
                      Mode{"satellites_seldom", KvType::f16}, Mode{"omnikv", KvType::k8v4}, Mode{"shadowkv", KvType::k8v4}));

}  // namespace
}  // namespace orrery

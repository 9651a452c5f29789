// Plans: opening takes exactly the plan, to the byte and region by region. And descriptions of files, vocabularies and templates.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "tests/abi/handles.h"
#include "tests/support/shared.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_plan_test {
namespace {

using nlohmann::json;

class Files : public ::testing::Test {
 protected:
  TempDir dir;
  std::string tiny = dir.write("tiny.gguf", TinyModel().build());
  std::string demo = source_path("samples/models/demo-q8_0.gguf");
};

// Plans ----------------------------------------------------------------------------------------------------

orrery_plan_result plan_of(const std::string& path, const orrery_runtime_options& r, const orrery_session_options& s) {
  orrery_plan_result plan = options(&orrery_plan_result_init);
  Error error;
  check(orrery_plan(path_source(path), &r, nullptr, &s, &plan, &error), error, "orrery_plan");
  return plan;
}

Runtime runtime_of(const orrery_runtime_options& o) {
  orrery_runtime* h = nullptr;
  Error error;
  check(orrery_runtime_create(&o, &h, &error), error, "orrery_runtime_create");
  return Runtime(h);
}

TEST_F(Files, PlanIsWhatOpeningTakes) {
  for (const std::string& path : {tiny, demo}) {
    for (const uint32_t type :
         std::initializer_list<uint32_t>{ORRERY_KV_F16, ORRERY_KV_F32, ORRERY_KV_Q8_0, ORRERY_KV_Q4_0, ORRERY_KV_K8V4}) {
      for (const uint32_t context : {1u, 64u, 65u, 500u, 4096u}) {
        for (const uint32_t chunk : {0u, 1u, 300u}) {
          SCOPED_TRACE(path + ", KV type " + std::to_string(type) + ", context " + std::to_string(context));
          orrery_runtime_options r = runtime_options();
          r.n_threads = path == tiny ? 2 : 1;
          r.device_budget_bytes = uint64_t{1} << 30;
          orrery_session_options s = session_options();
          s.n_context = context;
          s.kv_type = type;
          s.chunk_tokens = chunk;
          s.policy = "full";
          const orrery_plan_result plan = exact_plan(&r.device_budget_bytes, [&] { return plan_of(path, r, s); });
          EXPECT_EQ(plan.fits, 1u);
          EXPECT_EQ(plan.n_context, context);
          EXPECT_EQ(plan.device_bytes, plan.weights_bytes + plan.full_kv_bytes + plan.compressed_kv_bytes + plan.digests_bytes +
                                           plan.staging_bytes + plan.workspace_bytes);

          // Exactly that much is enough, and all of it is taken.
          r.device_budget_bytes = plan.device_bytes;
          {
            const Runtime runtime = runtime_of(r);
            const Model model = open_model(runtime, path);
            const Session session = open_session(model, s);
            EXPECT_EQ(arena_used(runtime), plan.device_bytes);
            orrery_stats stats = options(&orrery_stats_init);
            ASSERT_EQ(orrery_session_stats(session.get(), &stats, nullptr), ORRERY_OK);
            EXPECT_EQ(stats.device_kv_bytes, plan.full_kv_bytes);
            EXPECT_EQ(stats.workspace_bytes, plan.workspace_bytes);
            const std::vector<int32_t> prompt(std::min<uint32_t>(context, 70), 70);
            pull(generate_tokens(session, prompt, generate_options(2)));
            EXPECT_EQ(arena_used(runtime), plan.device_bytes);  // working takes no more
          }
          // A little less is not, and says by how much.
          r.device_budget_bytes = plan.device_bytes - 256;
          const orrery_plan_result short_plan = plan_of(path, r, s);
          EXPECT_EQ(short_plan.fits, 0u);
          EXPECT_EQ(short_plan.device_bytes, plan.device_bytes);
          EXPECT_LT(short_plan.largest_context, context);
          const Runtime runtime = runtime_of(r);
          const Model model = open_model(runtime, path);
          orrery_session* h = nullptr;
          Error error;
          ASSERT_EQ(orrery_session_open(model.get(), &s, &h, &error), ORRERY_OUT_OF_DEVICE_MEMORY);
          EXPECT_EQ(error.bytes_requested, plan.device_bytes - plan.weights_bytes);
          EXPECT_EQ(error.bytes_available, error.bytes_requested - 256);
          EXPECT_EQ(arena_used(runtime), plan.weights_bytes);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Nobody has named a policy: a context whose KV does not fit is auto's, with as much of it as does, as long as that is a tenth; in Q8_0,
// where nobody has named a type, in which 53 of 100 are everything.
TEST_F(Files, AContextThatDoesNotFitIsAutos) {
  orrery_runtime_options r = runtime_options();
  r.n_threads = 1;
  r.device_budget_bytes = uint64_t{1} << 30;
  orrery_session_options s = session_options();
  s.n_context = 4096;
  const orrery_plan_result full = plan_of(demo, r, s);
  EXPECT_EQ(full.compressed_kv_bytes, 0u);
  EXPECT_EQ(full.reservoir_bytes, 0u);
  uint64_t most = UINT64_MAX;
  for (const auto& [percent, type] : {std::pair<uint64_t, uint32_t>{99, ORRERY_KV_F16},
                                      {60, ORRERY_KV_F16},
                                      {50, ORRERY_KV_Q8_0},
                                      {25, ORRERY_KV_Q8_0},
                                      {20, ORRERY_KV_F16}}) {
    SCOPED_TRACE(percent);
    s.device_kv_type = type == ORRERY_KV_Q8_0 ? 0 : 1 + type;
    r.device_budget_bytes = full.device_bytes - full.full_kv_bytes * (100 - percent) / 100;
    const orrery_plan_result plan = plan_of(demo, r, s);
    EXPECT_EQ(plan.fits, 1u);
    EXPECT_EQ(plan.n_context, 4096u);
    EXPECT_EQ(plan.full_kv_bytes, 0u);
    EXPECT_GT(plan.reservoir_bytes, 0u);
    EXPECT_LE(plan.device_bytes, plan.budget_bytes);
    EXPECT_GT(plan.device_bytes + full.full_kv_bytes / 500, plan.budget_bytes);  // shares go by thousandths
    EXPECT_LT(plan.compressed_kv_bytes + plan.digests_bytes, most);
    EXPECT_EQ(plan.device_kv_type, type);
    most = plan.compressed_kv_bytes + plan.digests_bytes;
    const Runtime runtime = runtime_of(r);
    const Model model = open_model(runtime, demo);
    const Session session = open_session(model, s);
    EXPECT_EQ(arena_used(runtime), plan.device_bytes);
    orrery_stats stats = options(&orrery_stats_init);
    ASSERT_EQ(orrery_session_stats(session.get(), &stats, nullptr), ORRERY_OK);
    EXPECT_EQ(stats.reservoir_bytes, plan.reservoir_bytes);
    EXPECT_EQ(stats.device_kv_type, type);
    pull(generate_tokens(session, std::vector<int32_t>(600, 70), generate_options(40)));
    EXPECT_EQ(arena_used(runtime), plan.device_bytes);
    // Named, it is what it is; and what fits is never less than the whole.
    orrery_session_options named = s;
    named.policy = "full";
    EXPECT_EQ(plan_of(demo, r, named).fits, 0u);
    named = s;
    named.n_context = 0;
    const orrery_plan_result whole = plan_of(demo, r, named);
    EXPECT_EQ(whole.fits, 1u);
    EXPECT_EQ(whole.compressed_kv_bytes, 0u);
    EXPECT_LT(whole.n_context, 4096u);
  }
  s.device_kv_type = 0;
  for (const uint64_t percent : {99u, 70u}) {
    r.device_budget_bytes = full.device_bytes - full.full_kv_bytes * (100 - percent) / 100;
    const orrery_plan_result plan = plan_of(demo, r, s);
    EXPECT_EQ(plan.fits, 1u);
    EXPECT_EQ(plan.compressed_kv_bytes, full.full_kv_bytes / 64 * 34);
    EXPECT_EQ(plan.device_kv_type, uint32_t{ORRERY_KV_Q8_0});
  }
  r.device_budget_bytes = full.device_bytes - full.full_kv_bytes * 95 / 100;
  EXPECT_EQ(plan_of(demo, r, s).fits, 0u);
  EXPECT_EQ(plan_of(demo, r, s).full_kv_bytes, full.full_kv_bytes);
  const Runtime runtime = runtime_of(r);
  const Model model = open_model(runtime, demo);
  orrery_session* h = nullptr;
  Error error;
  EXPECT_EQ(orrery_session_open(model.get(), &s, &h, &error), ORRERY_OUT_OF_DEVICE_MEMORY);
  EXPECT_NE(std::string(error.message).find("the largest context that fits is"), std::string::npos);
}

// A share is the same bytes, whatever their type, and holds the more tokens the coarser they are.
TEST_F(Files, ACoarserTypeOnTheDeviceIsPlannedToTheByte) {
  for (const char* policy : {"streaming", "heterocache", "synckv"}) {
    uint64_t same_bytes = 0, reservoir = 0, staging = 0;
    for (const uint32_t device : {0u, 1u + ORRERY_KV_Q8_0, 1u + ORRERY_KV_K8V4, 1u + ORRERY_KV_Q4_0}) {
      SCOPED_TRACE(policy + std::to_string(device));
      orrery_runtime_options r = runtime_options();
      r.n_threads = 1;
      r.device_budget_bytes = uint64_t{1} << 30;
      orrery_session_options s = session_options();
      s.n_context = 4096;
      s.policy = policy;
      s.kv_budget_share = 0.5f;
      s.device_kv_type = device;
      const orrery_plan_result plan = plan_of(demo, r, s);
      const uint64_t kv = plan.full_kv_bytes + plan.compressed_kv_bytes;
      if (device == 0) {
        same_bytes = kv;
        EXPECT_EQ(plan.device_kv_type, uint32_t{ORRERY_KV_F16});
        reservoir = plan.reservoir_bytes;
        staging = plan.staging_bytes;
      } else {  // 2,048 tokens a head, of blocks of 32 in 34 or 18 bytes, of 64: 3,855, or all
        EXPECT_EQ(plan.device_kv_type, device - 1);
        const uint64_t bytes = 32 * (device == 1 + ORRERY_KV_Q8_0 ? 3855u * 68 : device == 1 + ORRERY_KV_K8V4 ? 4096u * 52 : 4096u * 36);
        EXPECT_EQ(kv, (bytes + 255) / 256 * 256);
        EXPECT_LE(kv, same_bytes);
      }
      EXPECT_EQ(plan.reservoir_bytes, reservoir);
      // What is fetched comes as it is kept; beside slots of four bits, keys are centred: the mean keys of 32 heads of 32 floats.
      EXPECT_EQ(plan.staging_bytes, staging + (device == 1 + ORRERY_KV_Q4_0 || device == 1 + ORRERY_KV_K8V4 ? 32 * 32 * 4 : 0));
      r.device_budget_bytes = plan.device_bytes;
      const Runtime runtime = runtime_of(r);
      const Model model = open_model(runtime, demo);
      const Session session = open_session(model, s);
      EXPECT_EQ(arena_used(runtime), plan.device_bytes);
      orrery_stats stats = options(&orrery_stats_init);
      ASSERT_EQ(orrery_session_stats(session.get(), &stats, nullptr), ORRERY_OK);
      EXPECT_EQ(stats.device_kv_bytes, kv);
      pull(generate_tokens(session, std::vector<int32_t>(300, 70), generate_options(40)));
      EXPECT_EQ(arena_used(runtime), plan.device_bytes);
    }
  }
}

// Regions ----------------------------------------------------------------------------------------------------

using Regions = std::vector<orrery_plan_region>;

Regions regions_of(const std::string& path, const orrery_runtime_options& r, const orrery_session_options& s) {
  Error error;
  size_t n = 0;
  check(orrery_plan_regions(path_source(path), &r, nullptr, &s, nullptr, 0, &n, &error), error, "orrery_plan_regions");
  Regions regions(n);
  orrery_plan_region_init(regions.data(), sizeof regions[0]);
  size_t again = 0;
  check(orrery_plan_regions(path_source(path), &r, nullptr, &s, regions.data(), n, &again, &error), error, "orrery_plan_regions");
  EXPECT_EQ(again, n);
  return regions;
}

// Of one kind, or of all.
uint64_t sum(const Regions& regions, uint64_t orrery_plan_region::*bytes, uint32_t kind = UINT32_MAX) {
  uint64_t total = 0;
  for (const orrery_plan_region& region : regions) total += kind == UINT32_MAX || region.kind == kind ? region.*bytes : 0;
  return total;
}

TEST_F(Files, RegionsAddUpToThePlanUnderEveryPolicy) {
  orrery_runtime_options r = runtime_options();
  r.n_threads = 1;
  r.device_budget_bytes = uint64_t{1} << 30;
  r.link_bytes_per_second = uint64_t{1} << 34;  // with a ring to fetch through
  size_t n = 0;
  ASSERT_EQ(orrery_policies(nullptr, 0, &n, nullptr), ORRERY_OK);
  std::string table(n, '\0');
  ASSERT_EQ(orrery_policies(table.data(), n, &n, nullptr), ORRERY_OK);
  std::map<std::string, std::set<std::string>> names;  // of regions with bytes on the device, by policy
  for (const json& policy : json::parse(table)) {
    const std::string name = policy.at("name");
    for (const float share : {1.f, .5f}) {
      if (name == "full" && share < 1) continue;
      SCOPED_TRACE(name + " " + std::to_string(share));
      orrery_session_options s = session_options();
      s.n_context = 4096;
      s.policy = name.c_str();
      s.kv_budget_share = share;
      const orrery_option by_attention = {"rank", "attention"};  // without a head profile
      if (name == "duoattention" || name == "razorattention") s.policy_options = &by_attention, s.n_policy_options = 1;
      const orrery_plan_result plan = plan_of(demo, r, s);
      const Regions regions = regions_of(demo, r, s);
      const auto device = &orrery_plan_region::device_bytes;
      EXPECT_EQ(sum(regions, device), plan.device_bytes);
      EXPECT_EQ(sum(regions, device, ORRERY_REGION_WEIGHTS), plan.weights_bytes);
      EXPECT_EQ(sum(regions, device, ORRERY_REGION_WORKSPACE), plan.workspace_bytes);
      EXPECT_EQ(sum(regions, device, ORRERY_REGION_SUMMARIES), plan.digests_bytes);
      EXPECT_EQ(sum(regions, device, ORRERY_REGION_STAGING), plan.staging_bytes);
      EXPECT_EQ(sum(regions, device, ORRERY_REGION_KV), plan.full_kv_bytes + plan.compressed_kv_bytes);
      EXPECT_EQ(sum(regions, device, ORRERY_REGION_TABLES), 0u);
      EXPECT_EQ(sum(regions, &orrery_plan_region::full_heads_bytes), plan.full_kv_bytes);
      EXPECT_EQ(sum(regions, &orrery_plan_region::reservoir_bytes), plan.reservoir_bytes);
      const uint64_t mapped = sum(regions, &orrery_plan_region::host_bytes, ORRERY_REGION_WEIGHTS);
      EXPECT_EQ(mapped, plan.weights_mapped_bytes);
      EXPECT_EQ(sum(regions, &orrery_plan_region::host_bytes) - mapped, plan.host_bytes);
      std::set<std::string> seen;
      for (const orrery_plan_region& region : regions) {
        EXPECT_TRUE(seen.insert(region.name).second) << region.name << " is listed twice";
        EXPECT_EQ(region.struct_size, sizeof region);
        EXPECT_LE(region.kind, uint32_t{ORRERY_REGION_TABLES});
        EXPECT_LE(region.full_heads_bytes, region.device_bytes);
        EXPECT_GT(region.device_bytes + region.reservoir_bytes + region.host_bytes, 0u) << region.name;
        if (region.device_bytes > 0) names[name].insert(region.name);
      }
      // An open session takes them, and its statistics are their sums.
      const Runtime runtime = runtime_of(r);
      const Session session = open_session(open_model(runtime, demo), s);
      EXPECT_EQ(arena_used(runtime), sum(regions, device));
      orrery_stats stats = options(&orrery_stats_init);
      ASSERT_EQ(orrery_session_stats(session.get(), &stats, nullptr), ORRERY_OK);
      EXPECT_EQ(stats.device_kv_bytes, sum(regions, device, ORRERY_REGION_KV) + sum(regions, device, ORRERY_REGION_SUMMARIES));
      EXPECT_EQ(stats.reservoir_bytes, sum(regions, &orrery_plan_region::reservoir_bytes));
    }
  }
  // The parts that a policy is known for.
  EXPECT_EQ(names["full"].count("KV pages"), 1u);
  EXPECT_EQ(names["quest"].count("page digests"), 1u);
  EXPECT_EQ(names["loki"].count("low-rank keys"), 1u);
  EXPECT_EQ(names["shadowkv"].count("low-rank keys"), 1u);
  EXPECT_EQ(names["auto"].count("compensation tokens"), 1u);
  EXPECT_EQ(names["heterocache"].count("exported attention weights"), 1u);
  EXPECT_EQ(names["freekv"].count("staging ring"), 1u);
  EXPECT_EQ(names["snapkv"].count("last queries"), 1u);
  EXPECT_EQ(names["snapkv"].count("staging ring"), 0u);
}

TEST_F(Files, RegionsComeInStructsOfAnyVersion) {
  const orrery_runtime_options r = runtime_options();
  const orrery_session_options s = session_options();
  const Regions whole = regions_of(tiny, r, s);
  ASSERT_GE(whole.size(), 4u);
  for (const size_t stride : {size_t{16}, size_t{24}, sizeof(orrery_plan_region), size_t{64}}) {
    SCOPED_TRACE(stride);
    std::vector<std::byte> bytes(stride * whole.size() + 8, std::byte{0xaa});
    orrery_plan_region_init(reinterpret_cast<orrery_plan_region*>(bytes.data()), stride);
    size_t n = 0;
    Error error;
    ASSERT_EQ(orrery_plan_regions(path_source(tiny), &r, nullptr, &s, reinterpret_cast<orrery_plan_region*>(bytes.data()), whole.size(), &n,
                                  &error),
              ORRERY_OK)
        << error.message;
    ASSERT_EQ(n, whole.size());
    for (size_t i = 0; i < n; ++i) {
      orrery_plan_region region = {}, expected = whole[i];
      expected.struct_size = static_cast<uint32_t>(stride);
      const size_t known = std::min(stride, sizeof region);
      std::memcpy(&region, bytes.data() + i * stride, known);
      EXPECT_EQ(std::memcmp(&region, &expected, known), 0) << i;
      for (size_t k = known; k < stride; ++k) EXPECT_EQ(bytes[i * stride + k], std::byte{0}) << i << ", byte " << k;
    }
    for (size_t k = bytes.size() - 8; k < bytes.size(); ++k) EXPECT_EQ(bytes[k], std::byte{0xaa});  // nothing behind the last one
  }
}

TEST_F(Files, RegionsRefuseHostileArguments) {
  const orrery_runtime_options r = runtime_options();
  const orrery_session_options s = session_options();
  const size_t n_regions = regions_of(tiny, r, s).size();
  Regions regions(n_regions);
  std::memset(static_cast<void*>(regions.data()), 0xaa, n_regions * sizeof regions[0]);
  const Regions before = regions;
  const auto untouched = [&] { return std::memcmp(regions.data(), before.data(), n_regions * sizeof regions[0]) == 0; };
  size_t n = 7;
  Error error;
  const auto call = [&](const char* path, size_t capacity, size_t* count) {
    return orrery_plan_regions(path_source(path), &r, nullptr, &s, regions.data(), capacity, count, &error);
  };
  EXPECT_EQ(call(nullptr, n_regions, &n), ORRERY_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "path is NULL");
  EXPECT_EQ(n, 0u);
  EXPECT_EQ(call(tiny.c_str(), n_regions, nullptr), ORRERY_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "n_regions is NULL");
  for (const size_t capacity : {size_t{0}, n_regions - 1}) {  // too small: the number is told, and nothing written
    EXPECT_EQ(call(tiny.c_str(), capacity, &n), ORRERY_INVALID_ARGUMENT);
    EXPECT_EQ(n, n_regions);
    EXPECT_EQ(error.bytes_available, capacity);
  }
  EXPECT_EQ(call(tiny.c_str(), n_regions, &n), ORRERY_INVALID_ARGUMENT);  // _init has not filled the first one
  EXPECT_NE(std::string(error.message).find("orrery_plan_region has a struct_size of"), std::string::npos) << error.message;
  EXPECT_EQ(n, 0u);
  EXPECT_EQ(call(dir.file("none").c_str(), n_regions, &n), ORRERY_IO);
  EXPECT_EQ(call(dir.write("noise", std::vector<std::byte>(1000)).c_str(), n_regions, &n), ORRERY_BAD_MODEL);
  EXPECT_EQ(n, 0u);
  EXPECT_TRUE(untouched());
  orrery_session_options unknown = s;
  unknown.policy = "no such policy";
  EXPECT_EQ(orrery_plan_regions(path_source(tiny), nullptr, nullptr, &unknown, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(orrery_plan_regions(path_source(tiny), nullptr, nullptr, nullptr, nullptr, 0, &n, nullptr), ORRERY_OK);
  EXPECT_GE(n, 4u);
  EXPECT_STREQ(orrery_region_kind_name(ORRERY_REGION_KV), "ORRERY_REGION_KV");
  EXPECT_STREQ(orrery_region_kind_name(6), "unknown region kind");
}

TEST_F(Files, LargestContextIsTheLargest) {
  for (const uint64_t budget : {uint64_t{1} << 20, uint64_t{3} << 20, (uint64_t{5} << 20) + 12345, uint64_t{1} << 30}) {
    orrery_runtime_options r = runtime_options();
    r.n_threads = 1;
    r.device_budget_bytes = budget;
    orrery_session_options s = session_options();
    s.chunk_tokens = 16;
    const orrery_plan_result plan = plan_of(tiny, r, s);
    const Runtime runtime = runtime_of(r);
    const Model model = open_model(runtime, tiny);
    if (plan.largest_context == 0) {
      EXPECT_EQ(plan.fits, 0u);
      continue;
    }
    EXPECT_EQ(plan.n_context, plan.largest_context);
    EXPECT_LE(plan.largest_context, 1024u);  // as trained
    {
      const Session session = open_session(model, s);  // takes it by itself
      orrery_stats stats = options(&orrery_stats_init);
      ASSERT_EQ(orrery_session_stats(session.get(), &stats, nullptr), ORRERY_OK);
      EXPECT_EQ(stats.n_context, plan.largest_context);
    }
    if (plan.largest_context < 1024) {
      s.n_context = plan.largest_context + 1;
      EXPECT_EQ(plan_of(tiny, r, s).fits, 0u);
    }
  }
}

TEST_F(Files, EverythingIsGivenBack) {
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, tiny);
  const uint64_t weights = arena_used(runtime);
  Session a = open_session(model, 256);
  const uint64_t with_one = arena_used(runtime);
  {
    const Session b = open_session(model, 256);
    EXPECT_GT(arena_used(runtime), with_one);
    const Session c = fork_of(a);
  }
  EXPECT_EQ(arena_used(runtime), with_one);
  a.reset();
  EXPECT_LE(arena_used(runtime), with_one);
  EXPECT_GE(arena_used(runtime), weights);
}

TEST_F(Files, PlanRefusesWhatOpeningRefuses) {
  orrery_plan_result plan = options(&orrery_plan_result_init);
  Error error;
  EXPECT_EQ(orrery_plan(path_source(dir.file("none")), nullptr, nullptr, nullptr, &plan, &error), ORRERY_IO);
  EXPECT_EQ(orrery_plan(path_source(dir.write("noise", std::vector<std::byte>(1000))), nullptr, nullptr, nullptr, &plan, &error),
            ORRERY_BAD_MODEL);
  orrery_runtime_options r = runtime_options();
  r.backend = "abacus";
  EXPECT_EQ(orrery_plan(path_source(tiny), &r, nullptr, nullptr, &plan, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("abacus"), std::string::npos);
}

// Opening --------------------------------------------------------------------------------------------------

TEST_F(Files, OpeningShowsProgressAndCanBeCancelled) {
  struct Progress {
    uint64_t calls = 0, last = 0, total = 0, passes = 1;
    uint64_t cancel_at = UINT64_MAX;  // call
    static int32_t see(void* user, uint64_t done, uint64_t total) {
      Progress& p = *static_cast<Progress*>(user);
      EXPECT_LE(done, total);
      p.passes += done < p.last;
      if (p.calls > 0) {
        EXPECT_EQ(total, p.total);
      }
      p.last = done;
      p.total = total;
      return p.calls++ == p.cancel_at;
    }
  };
  const Runtime runtime = make_runtime();
  const uint64_t used = arena_used(runtime);
  for (const uint32_t load : std::initializer_list<uint32_t>{ORRERY_LOAD_MAP, ORRERY_LOAD_READ}) {
    for (const uint32_t full : {0u, 1u}) {
      orrery_model_options o = model_options();
      o.load = load;
      o.full_fingerprint = full;
      o.progress = &Progress::see;
      Progress whole;
      o.progress_user = &whole;
      orrery_model* h = nullptr;
      Error error;
      ASSERT_EQ(orrery_model_open(runtime.get(), path_source(demo), &o, &h, &error), ORRERY_OK) << error.message;
      orrery_model_free(h);
      EXPECT_GT(whole.calls, 0u);
      EXPECT_LE(whole.passes, 1 + full);  // hashing every weight is a second pass
      if (!full) {
        EXPECT_EQ(whole.last, whole.total);
      }
      for (uint64_t at = 0; at < whole.calls; at += 1 + whole.calls / 8) {
        Progress cut;
        cut.cancel_at = at;
        o.progress_user = &cut;
        EXPECT_EQ(orrery_model_open(runtime.get(), path_source(demo), &o, &h, &error), ORRERY_CANCELLED) << at;
        EXPECT_EQ(h, nullptr);
        EXPECT_EQ(cut.calls, at + 1);
        EXPECT_EQ(arena_used(runtime), used);
      }
    }
  }
}

TEST_F(Files, FingerprintIsTheContents) {
  const Runtime runtime = make_runtime();
  const auto fingerprint = [&](const std::string& path, uint32_t load, uint32_t full) {
    orrery_model_options o = model_options();
    o.load = load;
    o.full_fingerprint = full;
    orrery_model* h = nullptr;
    Error error;
    check(orrery_model_open(runtime.get(), path_source(path), &o, &h, &error), error, "orrery_model_open");
    const Model model(h);
    orrery_model_info info = options(&orrery_model_info_init);
    EXPECT_EQ(orrery_model_get_info(h, &info, nullptr), ORRERY_OK);
    return std::string(reinterpret_cast<const char*>(info.fingerprint), sizeof info.fingerprint);
  };
  TinyModel other;
  other.seed = 2;
  const std::string copy = dir.write("copy.gguf", TinyModel().build()), changed = dir.write("other.gguf", other.build());
  for (const uint32_t full : {0u, 1u}) {
    const std::string it = fingerprint(tiny, ORRERY_LOAD_MAP, full);
    EXPECT_EQ(fingerprint(tiny, ORRERY_LOAD_READ, full), it);
    EXPECT_EQ(fingerprint(copy, ORRERY_LOAD_MAP, full), it);
    EXPECT_NE(fingerprint(changed, ORRERY_LOAD_MAP, full), it);
  }
}

// Descriptions ---------------------------------------------------------------------------------------------

TEST_F(Files, InspectIsJson) {
  for (const std::string& path : {tiny, demo}) {
    size_t n = 0;
    ASSERT_EQ(orrery_inspect(path_source(path), nullptr, 0, &n, nullptr), ORRERY_OK);
    std::string text(n, '\0');
    ASSERT_EQ(orrery_inspect(path_source(path), text.data(), n, &n, nullptr), ORRERY_OK);
    const json j = json::parse(text);
    const Runtime runtime = make_runtime();
    const Model model = open_model(runtime, path);
    orrery_model_info info = options(&orrery_model_info_init);
    ASSERT_EQ(orrery_model_get_info(model.get(), &info, nullptr), ORRERY_OK);
    EXPECT_EQ(j.at("architecture"), info.architecture);
    EXPECT_EQ(j.at("supported"), true);
    EXPECT_EQ(j.at("n_parameters"), info.n_parameters);
    EXPECT_EQ(j.at("file_bytes"), info.file_bytes);
    EXPECT_EQ(j.at("metadata").at("general.name"), info.name);
    EXPECT_EQ(j.at("metadata").at("llama.block_count"), info.n_layers);
    EXPECT_LE(j.at("metadata").at("tokenizer.ggml.tokens").at("first").size(), 8u);
    EXPECT_EQ(j.at("metadata").at("tokenizer.ggml.tokens").at("count"), info.n_vocab);
    uint64_t elements = 0;
    for (const json& t : j.at("tensors")) {
      uint64_t product = 1;
      for (const json& d : t.at("shape")) product *= d.get<uint64_t>();
      elements += product;
    }
    EXPECT_EQ(elements, info.n_parameters);
  }
}

// A file with a tensor or a key that changes answers and that nobody reads: opening, planning and inspecting say the same of it.
TEST_F(Files, WhatNobodyReadsIsRefusedByAll) {
  TinyModel tensor, key;
  tensor.extra_tensor = "blk.1.attn_norm.bias";
  key.extra_key = "llama.attention.sliding_window";
  const Runtime runtime = make_runtime();
  for (const auto& [file, named] : {std::pair{tensor, tensor.extra_tensor}, std::pair{key, key.extra_key}}) {
    const std::string path = dir.write("strange.gguf", file.build());
    for (const uint32_t load : std::initializer_list<uint32_t>{ORRERY_LOAD_MAP, ORRERY_LOAD_READ}) {
      orrery_model_options o = model_options();
      o.load = load;
      orrery_model* model = nullptr;
      Error error;
      EXPECT_EQ(orrery_model_open(runtime.get(), path_source(path), &o, &model, &error), ORRERY_UNSUPPORTED_ARCHITECTURE);
      EXPECT_NE(std::string(error.message).find("'" + named + "'"), std::string::npos) << error.message;
    }
    orrery_plan_result plan = options(&orrery_plan_result_init);
    Error error;
    EXPECT_EQ(orrery_plan(path_source(path), nullptr, nullptr, nullptr, &plan, &error), ORRERY_UNSUPPORTED_ARCHITECTURE);
    EXPECT_NE(std::string(error.message).find("'" + named + "'"), std::string::npos) << error.message;
    size_t n = 0;
    ASSERT_EQ(orrery_inspect(path_source(path), nullptr, 0, &n, nullptr), ORRERY_OK);
    std::string text(n, '\0');
    ASSERT_EQ(orrery_inspect(path_source(path), text.data(), n, &n, nullptr), ORRERY_OK);
    const json j = json::parse(text);
    EXPECT_EQ(j.at("supported"), false);
    EXPECT_NE(j.at("reason").get<std::string>().find("'" + named + "'"), std::string::npos) << j.at("reason");
  }
}

// Vocabularies and templates -------------------------------------------------------------------------------

std::string render(const Vocab& vocab, const char* messages, const orrery_template_options* o = nullptr) {
  size_t n = 0;
  Error error;
  check(orrery_render_chat(vocab.get(), messages, o, nullptr, 0, &n, &error), error, "orrery_render_chat");
  std::string text(n, '\0');
  check(orrery_render_chat(vocab.get(), messages, o, text.data(), n, &n, &error), error, "orrery_render_chat");
  return text;
}

Vocab open_vocab(const std::string& path) {
  orrery_vocab* h = nullptr;
  Error error;
  check(orrery_vocab_open(path_source(path), &h, &error), error, "orrery_vocab_open");
  return Vocab(h);
}

TEST_F(Files, TokenizerOnly) {
  TinyModel spec;
  spec.tensors = false;
  const std::string path = dir.write("vocab.gguf", spec.build());
  const Vocab vocab = open_vocab(path);
  orrery_vocab_info info = options(&orrery_vocab_info_init);
  ASSERT_EQ(orrery_vocab_get_info(vocab.get(), &info, nullptr), ORRERY_OK);
  EXPECT_EQ(info.bos, 1);
  EXPECT_EQ(info.eos, 2);
  EXPECT_EQ(info.has_template, 1u);
  const std::string text = "some \xE6\xBC\xA2 text";
  std::vector<int32_t> ids(100);
  size_t n = 0;
  ASSERT_EQ(orrery_tokenize(vocab.get(), text.data(), text.size(), 0, ids.data(), ids.size(), &n, nullptr), ORRERY_OK);
  char back[100];
  size_t n_back = 0;
  ASSERT_EQ(orrery_detokenize(vocab.get(), ids.data(), n, 0, back, sizeof back, &n_back, nullptr), ORRERY_OK);
  EXPECT_EQ(std::string(back, n_back), text);
  EXPECT_EQ(render(vocab, R"([{"role": "user", "content": "hi"}])"), "[user]hi[a]");
  // No model can be made of it.
  const Runtime runtime = make_runtime();
  orrery_model* model = nullptr;
  Error error;
  EXPECT_EQ(orrery_model_open(runtime.get(), path_source(path), nullptr, &model, &error), ORRERY_BAD_MODEL) << error.message;
}

TEST_F(Files, FlagsOfTokenizing) {
  const Vocab vocab = open_vocab(tiny);
  const auto ids = [&](const std::string& text, uint32_t flags) {
    std::vector<int32_t> out(100);
    size_t n = 0;
    EXPECT_EQ(orrery_tokenize(vocab.get(), text.data(), text.size(), flags, out.data(), out.size(), &n, nullptr), ORRERY_OK);
    out.resize(n);
    return out;
  };
  const std::vector<int32_t> plain = ids("a</s>", 0), special = ids("a</s>", ORRERY_TOKENIZE_SPECIAL);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 2), 0);
  EXPECT_EQ(special.back(), 2);
  EXPECT_EQ(ids("a", ORRERY_TOKENIZE_BOS).front(), 1);
  char text[20];
  size_t n = 0;
  const int32_t end = 2;
  ASSERT_EQ(orrery_detokenize(vocab.get(), &end, 1, 0, text, sizeof text, &n, nullptr), ORRERY_OK);
  EXPECT_EQ(n, 0u);
  ASSERT_EQ(orrery_detokenize(vocab.get(), &end, 1, ORRERY_DETOKENIZE_SPECIAL, text, sizeof text, &n, nullptr), ORRERY_OK);
  EXPECT_EQ(std::string(text, n), "</s>");
}

TEST_F(Files, TemplateChoices) {
  TinyModel spec;
  spec.more_template = "more:{{ messages | length }}";
  const Vocab vocab = open_vocab(dir.write("named.gguf", spec.build()));
  const char* messages = R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])";
  orrery_template_options o = options(&orrery_template_options_init);
  o.add_generation_prompt = 0;
  EXPECT_EQ(render(vocab, messages, &o), "[user]hi[assistant]ho");
  o.template_name = "more";
  EXPECT_EQ(render(vocab, messages, &o), "more:2");
  o.template_name = "less";
  size_t n = 0;
  Error error;
  EXPECT_EQ(orrery_render_chat(vocab.get(), messages, &o, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("less"), std::string::npos);
  o.template_name = nullptr;
  o.template_source = "{{ tools[0].name }} {{ tools | length }} {{ flag }} {{ bos_token }}";
  o.tools_json = R"([{"name": "clock"}])";
  o.variables_json = R"({"flag": true})";
  EXPECT_EQ(render(vocab, messages, &o), "clock 1 True <s>");
}

TEST_F(Files, TemplateErrorsSayWhere) {
  const Vocab vocab = open_vocab(tiny);
  const char* messages = R"([{"role": "user", "content": "hi"}])";
  size_t n = 0;
  Error error;
  orrery_template_options o = options(&orrery_template_options_init);
  const struct {
    const char* source;
    uint32_t line;
  } cases[] = {
      {"ok\n{% frobnicate %}", 2},
      {"{{ unclosed", 1},
      {"a\nb\n  {{ messages | nosuchfilter }}", 3},
      {"{% for m in messages %}\n{{ raise_exception('no') }}{% endfor %}", 2},
  };
  for (const auto& c : cases) {
    o.template_source = c.source;
    const orrery_status s = orrery_render_chat(vocab.get(), messages, &o, nullptr, 0, &n, &error);
    EXPECT_TRUE(s == ORRERY_UNSUPPORTED_TEMPLATE || s == ORRERY_INVALID_ARGUMENT) << c.source << ": " << error.message;
    EXPECT_EQ(error.line, c.line) << c.source << ": " << error.message;
    EXPECT_GT(error.column, 0u) << c.source;
  }
  o = options(&orrery_template_options_init);
  for (const char* bad : {"", "{", "{}", "1", "[1,]"}) {
    o.tools_json = bad;
    EXPECT_EQ(orrery_render_chat(vocab.get(), messages, &o, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT) << bad;
  }
  o.tools_json = nullptr;
  for (const char* bad : {"", "[", "[]", "1", "{\"a\"}"}) {
    o.variables_json = bad;
    EXPECT_EQ(orrery_render_chat(vocab.get(), messages, &o, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT) << bad;
  }
  EXPECT_EQ(orrery_render_chat(vocab.get(), "[\n  {", nullptr, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(error.line, 2u);
  EXPECT_EQ(orrery_render_chat(vocab.get(), "{}", nullptr, nullptr, 0, &n, &error), ORRERY_INVALID_ARGUMENT);
}

TEST_F(Files, WithoutATemplate) {
  TinyModel spec;
  spec.chat_template = false;
  const std::string path = dir.write("bare.gguf", spec.build());
  const Runtime runtime = make_runtime();
  const Model model = open_model(runtime, path);
  const Session session = open_session(model);
  say(session, "hi");
  Error error;
  orrery_event event = options(&orrery_event_init);
  EXPECT_EQ(orrery_next(generate(session, generate_options(2)).get(), &event, &error), ORRERY_UNSUPPORTED_TEMPLATE);
  orrery_template_options o = options(&orrery_template_options_init);
  o.template_source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[a]";
  ASSERT_EQ(orrery_session_set_template(session.get(), &o, &error), ORRERY_OK) << error.message;
  EXPECT_EQ(pull(generate(session, generate_options(2))).tokens.size(), 2u);
  o.template_source = "{% bad";
  EXPECT_NE(orrery_session_set_template(session.get(), &o, &error), ORRERY_OK);
  EXPECT_EQ(ask(session, "still", 2).tokens.size(), 2u);  // the old one stays
}

}  // namespace
}  // namespace orrery::testing::contract_plan_test

// Plans: the memory of a model and a session, from the file's header alone, as sums and region by region. All functions translate one
// kv::Plan, whose layout is the list of regions that opening takes (runtime/engine/session/plan.h).
#include <vector>

#include "capi/handles.h"
#include "runtime/engine/session/plan.h"

using namespace orrery;
using namespace orrery::capi;

namespace {

static_assert(ORRERY_REGION_WEIGHTS == static_cast<int>(kv::Holds::weights));
static_assert(ORRERY_REGION_WORKSPACE == static_cast<int>(kv::Holds::workspace));
static_assert(ORRERY_REGION_KV == static_cast<int>(kv::Holds::kv));
static_assert(ORRERY_REGION_SUMMARIES == static_cast<int>(kv::Holds::summaries));
static_assert(ORRERY_REGION_STAGING == static_cast<int>(kv::Holds::staging));
static_assert(ORRERY_REGION_TABLES == static_cast<int>(kv::Holds::tables));

Result<kv::Plan> make_plan(const engine::ModelSource& source, const orrery_runtime_options* runtime, const orrery_model_options* model,
                           const orrery_session_options* session) {
  ORRERY_ASSIGN(const engine::RuntimeOptions r, runtime_options(runtime));
  ORRERY_ASSIGN(const engine::ModelOptions m, model_options(model));
  ORRERY_ASSIGN(const engine::SessionOptions s, session_options(session));
  return engine::plan_file(source, r, m, s);
}

orrery_plan_region described(const kv::Region& region) {
  orrery_plan_region out;
  orrery_plan_region_init(&out, sizeof out);
  out.kind = static_cast<uint32_t>(region.holds);
  out.name = region.name;
  out.device_bytes = region.device_bytes;
  out.full_heads_bytes = region.full_heads_bytes;
  out.reservoir_bytes = region.reservoir_bytes;
  out.host_bytes = region.host_bytes;
  return out;
}

}  // namespace

extern "C" {

void orrery_plan_result_init(orrery_plan_result* plan, size_t struct_size) { init_struct(plan, struct_size); }

orrery_status orrery_plan(const orrery_source* source, const orrery_runtime_options* runtime, const orrery_model_options* model,
                          const orrery_session_options* session, orrery_plan_result* plan, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_ASSIGN(const engine::ModelSource from, model_source(source));
    ORRERY_REQUIRE(plan);
    ORRERY_ASSIGN(const kv::Plan p, make_plan(from, runtime, model, session));
    orrery_plan_result out;
    orrery_plan_result_init(&out, sizeof out);
    out.n_context = p.n_context;
    out.weights_mapped_bytes = p.weights_mapped_bytes;
    out.weights_bytes = p.weights_bytes;
    out.full_kv_bytes = p.full_kv_bytes;
    out.compressed_kv_bytes = p.compressed_kv_bytes;
    out.digests_bytes = p.digests_bytes;
    out.staging_bytes = p.staging_bytes;
    out.reservoir_bytes = p.reservoir_bytes;
    out.workspace_bytes = p.workspace_bytes;
    out.device_bytes = p.device_bytes;
    out.host_bytes = p.host_bytes;
    out.budget_bytes = p.budget_bytes;
    out.largest_context = p.largest_context;
    out.fits = p.fits;
    out.device_kv_type = kv_type_number(p.device_type);
    out.trained_context = p.trained_context;
    out.reservoir_budget_bytes = p.reservoir_budget_bytes;
    out.policy = p.policy;
    out.kv_share = static_cast<float>(p.kv_share);
    return write_struct(out, plan, "orrery_plan_result");
  });
}

void orrery_plan_region_init(orrery_plan_region* region, size_t struct_size) { init_struct(region, struct_size); }

orrery_status orrery_plan_regions(const orrery_source* source, const orrery_runtime_options* runtime, const orrery_model_options* model,
                                  const orrery_session_options* session, orrery_plan_region* regions, size_t capacity, size_t* n_regions,
                                  orrery_error* error) {
  if (n_regions) *n_regions = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_ASSIGN(const engine::ModelSource from, model_source(source));
    ORRERY_REQUIRE(n_regions);
    ORRERY_ASSIGN(const kv::Plan plan, make_plan(from, runtime, model, session));
    std::vector<orrery_plan_region> all;
    for (const kv::Region& region : plan.layout.regions()) all.push_back(described(region));
    return copy_out_structs(all.data(), all.size(), regions, capacity, n_regions, "orrery_plan_region");
  });
}

}  // extern "C"

// Session options from strangers: policies by name, their options as strings, head profiles, budgets, KV
// types. What is accepted takes what its plan says, answers, and a fork of it answers alike.
//
// Input: 16 bytes (model; KV type; device KV type; overflow; context, chunk (2 each); budget's share (float)
// and bytes (4)), then fields separated by 0x1E: policy, options (NAME=VALUE, one a line), head profile. An
// empty field is NULL.
#include "tests/fuzz/checks.h"
#include "tests/support/model_spec.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace orrery;
using namespace orrery::fuzz;
using namespace orrery::testing;

constexpr size_t kHead = 16;
constexpr uint32_t kPrompt = 72, kAnswer = 2, kMostContext = 128;  // policies begin to act behind a page of 64

struct World {
  TempDir dir;
  Runtime runtime;
  std::vector<std::string> paths;
  std::vector<Model> models;
  uint64_t idle_bytes = 0;

  World() {
    orrery_runtime_options o = runtime_options_of();
    CheckedError error;
    orrery_runtime* h = nullptr;
    require(error.check(orrery_runtime_create(&o, &h, error.get())) == ORRERY_OK, "the runtime opens");
    runtime.reset(h);
    TinyModel tiny;
    paths.push_back(dir.write("tiny.gguf", tiny.build()));
    // More KV heads, and a sliding window.
    paths.push_back(dir.write("heads.gguf", named_model_gguf("llama-plain")));
    paths.push_back(dir.write("window.gguf", named_model_gguf("phi3-window")));
    for (const std::string& path : paths) models.push_back(open_model(runtime, path));
    idle_bytes = arena_used(runtime);
  }
  static orrery_runtime_options runtime_options_of() {
    orrery_runtime_options o = runtime_options();
    o.n_threads = 1;
    o.device_budget_bytes = uint64_t{4} << 20;
    o.reservoir_bytes = uint64_t{4} << 20;
    return o;
  }
};

// The answer to a prompt; empty where one could not be had.
std::vector<int32_t> answer(const Session& session, const std::vector<int32_t>& tokens) {
  CheckedError error;
  orrery_generate_options o = generate_options(kAnswer);
  o.ignore_end = 1;
  orrery_generation* h = nullptr;
  const orrery_status begun = error.check(orrery_generate_tokens(session.get(), tokens.data(), tokens.size(), &o, &h, error.get()));
  require(begun == ORRERY_OK || begun == ORRERY_CONTEXT_FULL, "an answer begins, or the context is full", (*error).message);
  const Generation generation(h);
  std::vector<int32_t> out;
  orrery_event e = options(&orrery_event_init);
  while (h && e.type != ORRERY_EVENT_DONE) {
    require(error.check(orrery_next(h, &e, error.get())) == ORRERY_OK, "an answer goes on", (*error).message);
    if (e.type == ORRERY_EVENT_TOKEN) out.push_back(e.token);
  }
  return out;
}

// `rewinds`: checks a rewound session, else a fork.
void use(World* world, const Session& session, const orrery_plan_result& plan, bool rewinds) {
  CheckedError error;
  orrery_stats stats = options(&orrery_stats_init);
  require(error.check(orrery_session_stats(session.get(), &stats, error.get())) == ORRERY_OK, "a session tells of itself");
  require(stats.n_context == plan.n_context && stats.reservoir_bytes == plan.reservoir_bytes && stats.device_kv_type == plan.device_kv_type,
          "a session is what was planned");
  const std::vector<int32_t> all = [] {
    std::vector<int32_t> out(kPrompt);
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(5 + i * 13 % 110);
    return out;
  }();
  const uint64_t used = arena_used(world->runtime);
  const std::vector<int32_t> prompt(all.begin(), all.begin() + std::min(plan.n_context, kPrompt));
  const std::vector<int32_t> first = answer(session, prompt);
  require(arena_used(world->runtime) == used, "answering takes no more");
  require(answer(session, prompt) == first, "the same prompt has the same answer");
  if (rewinds) {
    require(error.check(orrery_session_rewind(session.get(), prompt.size() / 2, error.get())) == ORRERY_OK, "a session rewinds");
    require(answer(session, prompt) == first, "a rewound session answers as before");
    return;
  }

  std::vector<int32_t> longer = prompt;
  longer.insert(longer.end(), first.begin(), first.end());
  longer.push_back(7);
  orrery_session* h = reinterpret_cast<orrery_session*>(1);
  const orrery_status forked = error.check(orrery_session_fork(session.get(), &h, error.get()));
  require((forked == ORRERY_OK) == (h != nullptr), "a fork, or NULL");
  const Session fork(h);
  orrery_stats of_fork = options(&orrery_stats_init);
  if (h) require(error.check(orrery_session_stats(h, &of_fork, error.get())) == ORRERY_OK, "a fork tells of itself");
  if (h && of_fork.parked == 0) require(answer(fork, longer) == answer(session, longer), "a fork answers as its session does");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kHead) return 0;
  static World world;
  Reader r(data, kHead);
  const size_t which = r.byte() % world.models.size();
  orrery_session_options o = session_options();
  o.kv_type = r.byte() % 6;
  o.device_kv_type = r.byte() % 7;
  const uint8_t modes = r.byte();
  o.overflow = modes % 3;
  o.speculate = modes / 64;
  o.n_context = r.number<uint16_t>() % (kMostContext + 1);
  o.chunk_tokens = r.number<uint16_t>();
  o.kv_budget_share = r.number<float>();
  o.kv_budget_bytes = r.number<uint32_t>();
  if (o.n_context == 0) o.n_context = kMostContext;
  std::vector<std::string> fields = split({reinterpret_cast<const char*>(data) + kHead, size - kHead}, '\x1E');
  fields.resize(std::max<size_t>(fields.size(), 3));
  if (!fields[0].empty()) o.policy = fields[0].c_str();
  if (!fields[2].empty()) o.head_profile = fields[2].c_str();
  std::vector<std::pair<std::string, std::string>> pairs;
  if (!fields[1].empty())
    for (const std::string& line : split(fields[1], '\n')) {
      const size_t at = line.find('=');
      pairs.emplace_back(line.substr(0, at), at == line.npos ? "" : line.substr(at + 1));
    }
  std::vector<orrery_option> list;
  for (const auto& [name, value] : pairs) list.push_back({name.c_str(), value.c_str()});
  o.policy_options = list.empty() ? nullptr : list.data();
  o.n_policy_options = static_cast<uint32_t>(list.size());

  CheckedError error;
  const orrery_runtime_options runtime = World::runtime_options_of();
  orrery_plan_result plan = options(&orrery_plan_result_init);
  const orrery_status planned = error.check(orrery_plan(path_source(world.paths[which]), &runtime, nullptr, &o, &plan, error.get()));
  require(planned == ORRERY_OK || planned == ORRERY_INVALID_ARGUMENT || planned == ORRERY_UNSUPPORTED,
          "a plan, or what is wrong with the options", (*error).message);
  if (modes & 8) {
    orrery_plan_region regions[32];
    size_t n_regions = 0;
    orrery_plan_region_init(regions, sizeof regions[0]);
    const orrery_status listed =
        error.check(orrery_plan_regions(path_source(world.paths[which]), &runtime, nullptr, &o, regions, 32, &n_regions, error.get()));
    require(listed == planned, "the regions of every plan, and no others", (*error).message);
    uint64_t device_bytes = 0;
    for (size_t i = 0; i < n_regions; ++i) device_bytes += regions[i].device_bytes;
    require(device_bytes == plan.device_bytes, "regions that add up to the plan");
  }
  orrery_session* h = reinterpret_cast<orrery_session*>(1);
  const orrery_status opened = error.check(orrery_session_open(world.models[which].get(), &o, &h, error.get()));
  require((opened == ORRERY_OK) == (h != nullptr), "a session, or NULL");
  const Session session(h);
  require(opened == ORRERY_OK || opened == ORRERY_INVALID_ARGUMENT || opened == ORRERY_UNSUPPORTED ||
              opened == ORRERY_OUT_OF_DEVICE_MEMORY || opened == ORRERY_OUT_OF_HOST_MEMORY,
          "a session, or what is wrong with the options", (*error).message);
  require(planned == ORRERY_OK || opened != ORRERY_OK, "what cannot be planned cannot be opened");
  if (opened == ORRERY_OK) use(&world, session, plan, (modes & 4) != 0);
  return 0;
}

// orrery plan: the memory of a model and a session in exact bytes, from the model's header alone: a summary, then region by region. Loads
// nothing.
#include "api.h"
#include "command.h"
#include "commands/loss.h"
#include "commands/plan_card.h"
#include "json_file.h"
#include "settings.h"
#include "shapes/described_model.h"

#include <cctype>
#include <optional>
#include <vector>

namespace orrery::tool {
namespace {

constexpr double kCliff = .1;  // of full KV's bytes: published evaluations see answers fail from about here on

struct Row {
  const char* name;
  uint64_t bytes;
};

// What the reservoir has beside KV: weights, and work memory of what the processor computes beside the device.
struct BesideKv {
  uint64_t weights = 0, work = 0;
  uint64_t bytes() const { return weights + work; }
};

void print_table(const orrery_plan_result& plan, const BesideKv& beside, const orrery_session_options& session, bool pinned, Output& out) {
  const bool shrunk = session.n_context == 0 && plan.fits && plan.n_context < plan.trained_context;
  const char* const rest = plan.policy == std::string("full") ? "windows, recurrent states" : "compressed, windows, states";
  const Row arena[] = {{"weights in the arena", plan.weights_bytes},
                       {"KV cache, full heads", plan.full_kv_bytes},
                       {rest, plan.compressed_kv_bytes},
                       {"digests, other summaries", plan.digests_bytes},
                       {"staging", plan.staging_bytes},
                       {"workspace", plan.workspace_bytes}};
  const Row outside[] = {{"weights, mapped or read", plan.weights_mapped_bytes},
                         {pinned ? "KV reservoir, pinned" : "KV reservoir, pageable", plan.reservoir_bytes - beside.bytes()},
                         {"weights in the reservoir", beside.weights},
                         {"work memory of the processor", beside.work},
                         {"tables and buffers", plan.host_bytes}};
  const auto line = [&](const char* name, uint64_t bytes) {
    out.write(format("  %-30s %20s  %12s\n", name, grouped(bytes).c_str(), human_bytes(bytes).c_str()));
  };
  out.write(format("A session of %s tokens, KV cache in %s\n", grouped(plan.n_context).c_str(),
                   kv_type_names(session.kv_type, plan.device_kv_type).c_str()));
  if (plan.policy != std::string("full"))
    out.write(
        format("Policy %s keeps %.4g%% of the bytes of full KV on the device, and full KV in host memory: answers are approximations.\n",
               plan.policy, 100 * static_cast<double>(plan.kv_share)));
  if (session.policy == nullptr && session.kv_budget_bytes == 0 && session.kv_budget_share == 1 && plan.policy != std::string("full"))
    out.write("Warning: nobody asked for a policy. The full KV of this context does not fit the budget; --policy full refuses it.\n");
  out.write("\n");
  out.write(format("%-32s %20s  %12s\n", "In the budget (arena)", "bytes", ""));
  for (const Row& row : arena) {
    if (row.bytes > 0) line(row.name, row.bytes);
  }
  line("together", plan.device_bytes);
  out.write("Outside the budget (host memory)\n");
  uint64_t total = 0;
  for (const Row& row : outside) {
    if (row.bytes > 0) line(row.name, row.bytes);
    total += row.bytes;
  }
  line("together", total);
  out.write(format("\n%-32s %20s  %12s\n", "Budget", grouped(plan.budget_bytes).c_str(), human_bytes(plan.budget_bytes).c_str()));
  if (plan.reservoir_bytes > 0)
    out.write(format("%-32s %20s  %12s\n", "Host memory for the reservoir", grouped(plan.reservoir_budget_bytes).c_str(),
                     human_bytes(plan.reservoir_budget_bytes).c_str()));
  out.write(format("%-32s %20s  %12s\n", "Smallest budget for this context", grouped(plan.device_bytes).c_str(),
                   human_bytes(plan.device_bytes).c_str()));
  out.write(format("%-32s %20s  tokens\n", plan.reservoir_bytes > 0 ? "Largest context for both" : "Largest context for the budget",
                   grouped(plan.largest_context).c_str()));
  if (plan.n_context > plan.trained_context)
    out.write(format("Warning: the model was trained for %s tokens. Behind them answers get worse, unless RoPE is scaled.\n",
                     grouped(plan.trained_context).c_str()));
  if (shrunk)
    out.write(format("Warning: the model was trained for %s tokens; the budget has room for %s of them.\n",
                     grouped(plan.trained_context).c_str(), grouped(plan.n_context).c_str()));
  if (plan.fits) out.write("It fits.\n");
  if (plan.device_bytes > plan.budget_bytes)
    out.write(format("It does not fit: the budget is %s too small.\n", human_bytes(plan.device_bytes - plan.budget_bytes).c_str()));
  if (plan.reservoir_bytes > plan.reservoir_budget_bytes)
    out.write(format("It does not fit: host memory for the KV reservoir is %s too small.\n",
                     human_bytes(plan.reservoir_bytes - plan.reservoir_budget_bytes).c_str()));
}

std::string architecture_of(const std::string& path) {
  std::string found;
  walk_json(inspect(path), [&](std::string_view part, const std::string& key, const Json& value) {
    if (part == "metadata" && key == "general.architecture" && value.is_string()) found = value.get<std::string>();
  });
  return found;
}

// Whether attention reads tokens in host memory, so that the device has their codes alone.
bool in_place(const orrery_plan_result& plan) { return plan.compressed_kv_bytes == 0 && plan.digests_bytes > 0; }

// What part of full KV's bytes lies in the arena; 1 where no policy leaves any out.
double share_of(const orrery_plan_result& plan, const BesideKv& beside) {
  const uint64_t of_kv = plan.reservoir_bytes - beside.bytes();
  const double all = static_cast<double>(of_kv);
  if (in_place(plan)) return static_cast<double>(plan.kv_share);
  const uint64_t resident = plan.full_kv_bytes + plan.compressed_kv_bytes + plan.digests_bytes;
  const bool whole = plan.compressed_kv_bytes + plan.digests_bytes == 0 || resident >= of_kv;
  return whole ? 1 : static_cast<double>(resident) / all;
}

// Nothing: the whole KV is kept, or the policy was not measured with these options.
std::optional<ExpectedLoss> loss_of(const std::string& path, const orrery_plan_result& plan, double share,
                                    const orrery_session_options& session) {
  if (share >= 1 || session.n_policy_options > 0 || session.device_kv_type != 0 || session.speculate == ORRERY_SPECULATE_POLICY)
    return std::nullopt;
  std::string policy = plan.policy;
  if (policy == "auto" && !in_place(plan)) policy = "auto by window";  // by codes its tokens are read in place
  return expected_loss(policy, architecture_of(path), share);
}

// share: of the tokens that stay within reach.
void print_loss(const std::optional<ExpectedLoss>& loss, double share, Output& out) {
  if (loss)
    out.write(format("%-32s %20s  nats of KL from full attention, %s %s\n", "Loss to expect",
                     ((loss->at_least ? "more than " : "") + format("%.4f", loss->kl)).c_str(),
                     loss->of_architecture ? "as on" : "of the measured models the most, as on", loss->measured_on.c_str()));
  if (share <= kCliff)
    out.write(
        "Warning: nine tenths of the KV are gone. With so little left, answers may fail at once rather than get worse step by step.\n");
}

using Regions = std::vector<orrery_plan_region>;

// The plan's list: what each part takes of every kind of memory. The last line is the sum, and the sum of the table above.
void print_regions(const Regions& regions, Output& out) {
  const auto line = [&](const orrery_plan_region& region) {
    const auto cell = [](uint64_t bytes) { return bytes > 0 ? grouped(bytes) : std::string("-"); };
    out.write(format("  %-29s %15s %15s %15s\n", region.name, cell(region.device_bytes).c_str(), cell(region.reservoir_bytes).c_str(),
                     cell(region.host_bytes).c_str()));
  };
  orrery_plan_region sum = {};
  out.write(format("\n%-31s %15s %15s %15s\n", "Region by region, in bytes", "arena", "reservoir", "host memory"));
  for (const orrery_plan_region& region : regions) {
    line(region);
    sum.device_bytes += region.device_bytes;
    sum.reservoir_bytes += region.reservoir_bytes;
    sum.host_bytes += region.host_bytes;
  }
  sum.name = "together";
  line(sum);
}

// "kv" of ORRERY_REGION_KV.
std::string kind_of(const orrery_plan_region& region) {
  std::string kind = std::string(orrery_region_kind_name(region.kind)).substr(sizeof "ORRERY_REGION_" - 1);
  for (char& c : kind) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return kind;
}

int print_plan(const Args& args, Output& out) {
  const DescribedModel described(args);
  const std::string& path = described.path();
  const File file(path);
  orrery_runtime_options runtime = runtime_options(args);
  if (args.has("--card")) runtime.device_budget_bytes = uint64_t{1} << 40;  // nothing is left out of the session for want of room here
  const orrery_model_options model = model_options(args);
  const SessionSettings session_settings(args);
  const orrery_session_options session = session_settings.options();
  orrery_plan_result plan;
  orrery_plan_result_init(&plan, sizeof plan);
  const bool pinned = runtime.reservoir_mode == ORRERY_RESERVOIR_PINNED;
  call([&](orrery_error* error) { return orrery_plan(file, &runtime, &model, &session, &plan, error); });
  if (args.has("--card")) return plan_card(args, path, plan, out);
  if (args.has("--card-picture")) throw UsageError("--card-picture needs --card");
  Regions regions(1);
  call([&](orrery_error* error) {
    size_t n = 0;
    const orrery_status status = orrery_plan_regions(file, &runtime, &model, &session, nullptr, 0, &n, error);
    if (status != ORRERY_OK) return status;
    regions.resize(n);
    orrery_plan_region_init(regions.data(), sizeof regions[0]);
    return orrery_plan_regions(file, &runtime, &model, &session, regions.data(), regions.size(), &n, error);
  });
  BesideKv beside;
  for (const orrery_plan_region& region : regions) {
    if (region.kind == ORRERY_REGION_WEIGHTS) beside.weights += region.reservoir_bytes;
    if (region.kind == ORRERY_REGION_WORKSPACE) beside.work += region.reservoir_bytes;
  }
  const double share = share_of(plan, beside);
  const std::optional<ExpectedLoss> loss = loss_of(path, plan, share, session);
  if (args.has("--json")) {
    Json list = Json::array();
    for (const orrery_plan_region& region : regions)
      list.push_back({{"name", region.name},
                      {"kind", kind_of(region)},
                      {"device_bytes", region.device_bytes},
                      {"full_heads_bytes", region.full_heads_bytes},
                      {"reservoir_bytes", region.reservoir_bytes},
                      {"host_bytes", region.host_bytes}});
    Json json = {{"n_context", plan.n_context},
                 {"policy", plan.policy},
                 {"kv_share", plan.kv_share},
                 {"kv_type", kv_type_name(session.kv_type)},
                 {"device_kv_type", kv_type_name(plan.device_kv_type)},
                 {"weights_mapped_bytes", plan.weights_mapped_bytes},
                 {"weights_bytes", plan.weights_bytes},
                 {"full_kv_bytes", plan.full_kv_bytes},
                 {"compressed_kv_bytes", plan.compressed_kv_bytes},
                 {"digests_bytes", plan.digests_bytes},
                 {"staging_bytes", plan.staging_bytes},
                 {"workspace_bytes", plan.workspace_bytes},
                 {"device_bytes", plan.device_bytes},
                 {"reservoir_bytes", plan.reservoir_bytes},
                 {"weights_reservoir_bytes", beside.weights},
                 {"reservoir_mode", pinned ? "pinned" : "pageable"},
                 {"host_bytes", plan.host_bytes},
                 {"budget_bytes", plan.budget_bytes},
                 {"reservoir_budget_bytes", plan.reservoir_budget_bytes},
                 {"largest_context", plan.largest_context},
                 {"trained_context", plan.trained_context},
                 {"fits", plan.fits != 0},
                 {"regions", list}};
    if (loss)
      json["expected_kl"] = loss->kl, json["expected_kl_at_least"] = loss->at_least, json["expected_kl_measured_on"] = loss->measured_on;
    out.write(dump_json(json, 2) + "\n");
  } else {
    print_table(plan, beside, session, pinned, out);
    print_loss(loss, in_place(plan) ? 1 : share, out);
    print_regions(regions, out);
  }
  return plan.fits ? kExitOk : kExitDoesNotFit;
}

}  // namespace

const Command& plan_command() {
  static const Command command = {
      "plan",
      "MODEL.gguf | --shape NAME [options]",
      "the memory of a model and a session, and whether it fits",
      "Reads only the model's header. The bytes are exact: a session opened with the same options uses these bytes and no\n"
      "more. The last table names every region: its columns add up to the summary above it. The exit code is 0 if the\n"
      "session fits the budget, 4 if it does not. Under a KV policy it also says what loss to expect of the answers, as it was\n"
      "measured on published models.\n",
      {{"Options",
        {{"--json", nullptr, "The plan as a JSON object, in bytes."},
         {"--card", "NAME",
          "Instead: predict tokens per second on a card, as in rtx-3060-12g, for three divisions of its memory between a mixture's experts "
          "and the rest. --budget replaces the card's memory. Weights count as the file has them."},
         {"--card-picture", "FILE", "The prediction by memory for experts, as PNG."},
         DescribedModel::option()}},
       session_group(),
       runtime_group(),
       model_group()},
      "  orrery plan model.gguf --context 131072 --kv-type q8_0\n"
      "  orrery plan model.gguf --context 32768 --budget 2GiB && orrery chat model.gguf --context 32768 "
      "--budget 2GiB\n"
      "  orrery plan model.gguf --lora tone.gguf:0.5\n"
      "  orrery plan --shape qwen3.6-35b-a3b --context 131072 --budget 16GiB\n"
      "  orrery plan --shape qwen3.6-35b-a3b --context 131072 --card rtx-3060-12g\n",
      0,
      1,
      print_plan};
  return command;
}

}  // namespace orrery::tool

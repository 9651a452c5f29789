// See settings.h.
#include "settings.h"

#include <limits>
#include <string_view>

#include "json_file.h"
#include "terminal/progress.h"

namespace orrery::tool {
namespace {

constexpr uint64_t kMaxTokens = std::numeric_limits<uint32_t>::max();

const std::vector<const char*>& all_kv_types() {  // in the order of ORRERY_KV_
  static const std::vector<const char*> names = {"f16", "f32", "q8_0", "q4_0", "k8v4"};
  return names;
}

void log_to_stderr(void*, int32_t, const char* message) { note(message); }

// --link BANDWIDTH[,LATENCY]: "12GB/s", "12GB/s,10us"
void parse_link(const std::string& text, orrery_runtime_options* options) {
  const auto ends_with = [](std::string_view whole, std::string_view end) {
    return whole.size() >= end.size() && whole.substr(whole.size() - end.size()) == end;
  };
  const size_t comma = text.find(',');
  const std::string_view bandwidth = std::string_view(text).substr(0, comma);
  if (!ends_with(bandwidth, "/s"))
    throw UsageError("--link: '" + text + "' is not a bandwidth, as in 12GB/s, or that and a latency, as in 12GB/s,10us");
  constexpr uint64_t kFastest = 1'000'000'000'000'000;
  options->link_bytes_per_second = parse_bytes(bandwidth.substr(0, bandwidth.size() - 2), "--link");
  if (options->link_bytes_per_second > kFastest)
    throw UsageError("--link: '" + std::string(bandwidth) + "' is not a bandwidth from 1B/s to 1000TB/s");
  if (comma == std::string::npos) return;
  const std::string_view latency = std::string_view(text).substr(comma + 1);
  if (!ends_with(latency, "us")) throw UsageError("--link: latency '" + std::string(latency) + "' is not in microseconds, as in 10us");
  options->link_latency_us = static_cast<uint32_t>(parse_integer(latency.substr(0, latency.size() - 2), "--link", 0, 60'000'000));
}

// --var NAME=VALUE: JSON if VALUE is JSON (true, 3, "text", [..]), otherwise the text itself.
void add_variable(Json& variables, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) throw UsageError("--var: '" + text + "' is not NAME=VALUE");
  const std::string value = text.substr(equals + 1);
  auto parsed = Json::parse(value, nullptr, false);
  variables[text.substr(0, equals)] = parsed.is_discarded() ? Json(value) : std::move(parsed);
}

}  // namespace

// What follows the last colon is the scale if it is a number.
std::pair<std::string, float> parse_lora(const std::string& text, const std::string& what) {
  constexpr double kMost = 1e6;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || text.find_first_not_of("+-.0123456789eE", colon + 1) != std::string::npos || colon + 1 == text.size())
    return {text, 1.0f};
  const double scale = parse_real(std::string_view(text).substr(colon + 1), what, -kMost, kMost);
  if (colon == 0) throw UsageError(what + ": '" + text + "' is not FILE or FILE:SCALE");
  return {text.substr(0, colon), static_cast<float>(scale)};
}

OptionGroup runtime_group() {
  return {"Running",
          {{"--threads", "N", "Threads; 0: one per processor (default 0)."},
           {"--backend", "NAME",
            "auto (a GPU if there is one, else the CPU), cpu, gpu (or an error that says why not) or cuda (default auto)."},
           {"--device", "N", "Which GPU, by the driver's number from 0 on (default: the first that can be used)."},
           {"--cpu-path", "NAME", "Instruction set: auto, plain, avx2, avx2vnni, avx512, avx512bf16, amx or neon (default auto)."},
           {"--budget", "SIZE", "Memory for KV cache and workspace, as in 512MiB or 2GiB (default: half of the memory)."},
           {"--reservoir", "HOW",
            "Host memory of a KV policy: pageable, or pinned (locked in memory when the session opens, as far as the "
            "system allows) (default pageable)."},
           {"--link", "RATE[,LATENCY]",
            "For measurement: simulate a link between host memory and device for refills during an answer, as in 12GB/s or "
            "12GB/s,10us (default: no limit)."},
           {"--verbose", nullptr, "Print the library's log to standard error."}}};
}

OptionGroup model_group() {
  return {
      "Loading",
      {{"--load", "HOW", "map the file, or read it into memory (default map)."},
       {"--rope-scaling", "KIND", "none, linear, yarn, llama3 or longrope; replaces the file's scaling."},
       {"--rope-scale", "FACTOR", "Factor of linear, yarn and llama3."},
       {"--rope-base", "BASE", "Frequency base; replaces the file's base."},
       {"--rope-original-context", "N", "yarn, llama3, longrope: the context that the model was trained with."},
       {"--experts-on-device", "N",
        "Of a mixture's experts, counted over all layers, those that have room in the budget; the others are in host memory, where the "
        "processor computes them, or cross the link when a layer chooses them (--host-computes; default: all if they fit, else as many as "
        "fit beside --sessions-memory)."},
       {"--host-computes", "WHEN",
        "The processor computes, beside the device, what is not in the budget: experts of a mixture, or columns of a dense model's "
        "feed-forward blocks. For answers where host memory is faster than the link. Of a long prompt these cross the link. always, never, "
        "or "
        "auto (default): on a GPU."},
       {"--sessions-memory", "SIZE",
        "What weights leave of the budget to the KV and the work of sessions (default: experts and columns leave what a session of 8,192 "
        "tokens needs; layers leave only if no session fits, and then what one of 2,048 tokens needs)."},
       {"--layers-on-device", "N",
        "Layers whose matrices have room in the budget; the others are in host memory and cross the link in each step (default: all "
        "if they fit, else as many as fit beside --sessions-memory)."},
       {"--columns-on-device", "PERCENT",
        "With --host-computes always, of a dense model: how much of each feed-forward block has room in the budget (default: all "
        "if it fits, else as much as fits beside --sessions-memory)."}}};
}

OptionGroup session_group() {
  return {
      "Session",
      {{"--context", "N", "Tokens that the session holds; 0: as trained, or as many as fit (default 0)."},
       {"--kv-type", "TYPE", "KV cache: f16, f32, q8_0, k8v4 (also k:q8_0,v:q4_0) or q4_0 (default f16)."},
       {"--device-kv-type", "TYPE",
        "Type of a policy's KV on the device: --kv-type (the type in host memory), or a coarser type (default: under "
        "policy auto q8_0, k8v4 or q4_0, by the budget, if --kv-type is finer, else --kv-type)."},
       {"--policy", "NAME",
        "Which KV stays on the device: full, or a policy of `orrery policies`. Host memory holds the rest, and prompts "
        "still attend to it (default full; auto with --kv-budget, or if --context does not fit)."},
       {"--policy-option", "NAME=VALUE", "An option of the policy, as in sinks=8; may be given several times.", true},
       {"--kv-budget", "SHARE|SIZE",
        "KV cache on the device under a policy: 30% (of the bytes of the full KV cache in --kv-type), or 512MiB (default 100%)."},
       {"--head-profile", "FILE",
        "A profile of the model's heads: from `orrery profile` (its --import-gates converts DuoAttention's gates), or a "
        "published HeteroCache head analysis. Policies heterocache and synckv use it (default: they measure the heads at the "
        "prompt's end); duoattention and razorattention need it."},
       {"--overflow", "WHAT", "When the context is full: stop, or drop-oldest (drop the oldest turns) (default stop)."},
       {"--speculate", "HOW",
        "Guess tokens ahead: off, ngram (from earlier text: faster where the answer quotes it), policy (a KV policy's KV on the "
        "device drafts, and all KV verifies), draft (--draft-model drafts), or mtp (the file's own block that guesses tokens drafts). "
        "The answer is full attention's (default off; draft with --draft-model)."},
       {"--draft-model", "FILE", "A smaller model with the same vocabulary, which guesses tokens for the model to verify."},
       {"--lora", "FILE[:SCALE]",
        "A LoRA adapter of the model, as GGUF, and the factor of what it adds (default 1); may be given several times: all are added up.",
        true},
       {"--chunk", "N", "Prompt tokens per prefill step; 0: the library's choice (default 0)."}}};
}

OptionGroup template_group() {
  return {"Chat template",
          {{"--template", "FILE", "A Jinja template that replaces the model's."},
           {"--template-name", "NAME", "One of the model's named templates."},
           {"--tools", "FILE", "JSON array of tool definitions, for the template and for calls of tools."},
           {"--var", "NAME=VALUE", "A variable for the template; VALUE is JSON, otherwise text; may be given several times.", true},
           {"--no-think", nullptr, "Short for --var enable_thinking=false."}}};
}

orrery_runtime_options runtime_options(const Args& args) {
  orrery_runtime_options options;
  orrery_runtime_options_init(&options, sizeof options);
  options.n_threads = static_cast<int32_t>(args.integer("--threads", 0, 1024, 0));
  if (const std::string* backend = args.find("--backend")) {
    args.choice("--backend", {"auto", "cpu", "gpu", "cuda"}, 0);
    options.backend = backend->c_str();
  }
  if (const std::string* path = args.find("--cpu-path")) {
    args.choice("--cpu-path", {"auto", "plain", "avx2", "avx2vnni", "avx512", "avx512bf16", "amx", "neon"}, 0);
    options.cpu_path = path->c_str();
  }
  if (args.has("--device")) options.device = static_cast<int32_t>(args.integer("--device", 0, 1023, 0));
  options.device_budget_bytes = args.bytes("--budget", 0);
  options.max_sessions = 1;
  options.reservoir_mode = args.choice("--reservoir", {"pageable", "pinned"}, 0) == 0 ? ORRERY_RESERVOIR_PAGEABLE : ORRERY_RESERVOIR_PINNED;
  if (const std::string* link = args.find("--link")) parse_link(*link, &options);
  if (args.has("--verbose")) {
    options.log = log_to_stderr;
    options.log_level = ORRERY_LOG_DEBUG;
  } else {
    options.log = log_to_stderr;
    options.log_level = ORRERY_LOG_WARNING;
  }
  return options;
}

orrery_model_options model_options(const Args& args) {
  orrery_model_options options;
  orrery_model_options_init(&options, sizeof options);
  options.load = args.choice("--load", {"map", "read"}, 0) == 0 ? ORRERY_LOAD_MAP : ORRERY_LOAD_READ;
  if (args.has("--rope-scaling")) {
    static constexpr uint32_t kKinds[] = {ORRERY_ROPE_NONE, ORRERY_ROPE_LINEAR, ORRERY_ROPE_YARN, ORRERY_ROPE_LLAMA3, ORRERY_ROPE_LONGROPE};
    options.rope_scaling = kKinds[args.choice("--rope-scaling", {"none", "linear", "yarn", "llama3", "longrope"}, 0)];
  }
  if (args.has("--rope-scale")) options.rope_scale = static_cast<float>(args.real("--rope-scale", 1e-3, 1e6, 1));
  if (args.has("--rope-base")) options.rope_base = static_cast<float>(args.real("--rope-base", 1, 1e12, 1));
  options.rope_original_context = static_cast<uint32_t>(args.tokens("--rope-original-context", 0, kMaxTokens, 0));
  if (args.has("--experts-on-device"))
    options.experts_on_device = static_cast<int64_t>(args.integer("--experts-on-device", 0, uint64_t{1} << 20, 0));
  options.host_computes = static_cast<uint32_t>(args.choice("--host-computes", {"auto", "always", "never"}, 0));
  if (args.has("--layers-on-device"))
    options.layers_on_device = static_cast<int64_t>(args.integer("--layers-on-device", 0, uint64_t{1} << 20, 0));
  if (args.has("--columns-on-device")) options.columns_on_device = static_cast<int64_t>(args.integer("--columns-on-device", 0, 100, 0));
  options.sessions_bytes = args.bytes("--sessions-memory", 0);
  return options;
}

SessionSettings::SessionSettings(const Args& args) {
  orrery_session_options& options = base_;
  orrery_session_options_init(&options, sizeof options);
  options.n_context = static_cast<uint32_t>(args.tokens("--context", 0, kMaxTokens, options.n_context));
  options.kv_type = kv_type_option(args, "--kv-type", options.kv_type);
  if (args.has("--device-kv-type")) options.device_kv_type = 1 + kv_type_option(args, "--device-kv-type", 0);
  options.overflow = args.choice("--overflow", {"stop", "drop-oldest"}, 0) == 0 ? ORRERY_OVERFLOW_STOP : ORRERY_OVERFLOW_DROP_OLDEST;
  options.speculate = static_cast<uint32_t>(args.choice("--speculate", {"off", "ngram", "policy", "draft", "mtp"},
                                                        args.has("--draft-model") ? ORRERY_SPECULATE_DRAFT : ORRERY_SPECULATE_OFF));
  options.chunk_tokens = static_cast<uint32_t>(args.tokens("--chunk", 0, kMaxTokens, options.chunk_tokens));
  if (const std::string* policy = args.find("--policy")) policy_ = *policy;
  if (const std::string* path = args.find("--draft-model")) draft_model_.emplace(*path);
  for (const std::string& text : args.all("--lora")) {
    auto [path, scale] = parse_lora(text, "--lora");
    adapters_.emplace_back(std::make_unique<File>(model_file(path)), scale);
  }
  if (const std::string* path = args.find("--head-profile")) head_profile_ = read_text(*path);
  for (const std::string& text : args.all("--policy-option")) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) throw UsageError("--policy-option: '" + text + "' is not NAME=VALUE");
    policy_options_.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  if (const std::string* budget = args.find("--kv-budget")) {
    if (is_share(*budget)) options.kv_budget_share = static_cast<float>(parse_share(*budget, "--kv-budget"));
    else options.kv_budget_bytes = parse_bytes(*budget, "--kv-budget");
  }
}

orrery_session_options SessionSettings::options() const {
  orrery_session_options options = base_;
  pointers_.clear();
  for (const auto& [name, value] : policy_options_) pointers_.push_back({name.c_str(), value.c_str()});
  options.policy = policy_.empty() ? nullptr : policy_.c_str();
  if (draft_model_) options.draft_source = *draft_model_;
  if (head_profile_) options.head_profile = head_profile_->c_str();
  uses_.clear();
  for (const auto& [file, scale] : adapters_) uses_.push_back({nullptr, *file, scale, 0});
  options.adapters = uses_.data();
  options.n_adapters = static_cast<uint32_t>(uses_.size());
  options.policy_options = pointers_.data();
  options.n_policy_options = static_cast<uint32_t>(pointers_.size());
  return options;
}

const char* kv_type_name(uint32_t kv_type) { return kv_type < all_kv_types().size() ? all_kv_types()[kv_type] : "unknown"; }

uint32_t parse_kv_type(const std::string& text, const std::string& what) {
  const size_t second = text.find(",v:");
  if (text.compare(0, 2, "k:") != 0 || second == std::string::npos) return static_cast<uint32_t>(parse_choice(text, what, all_kv_types()));
  const std::string key = text.substr(2, second - 2), value = text.substr(second + 3);
  if (key == "q8_0" && value == "q4_0") return ORRERY_KV_K8V4;
  if (key == value && key != kv_type_name(ORRERY_KV_K8V4)) return parse_kv_type(key, what);
  throw UsageError(what + ": '" + text + "': the types of K and V that may differ are k:q8_0,v:q4_0");
}

uint32_t kv_type_option(const Args& args, const char* name, uint32_t fallback) {
  const std::string* text = args.find(name);
  return text ? parse_kv_type(*text, name) : fallback;
}

std::string kv_type_names(uint32_t kv_type, uint32_t device_kv_type) {
  const std::string kept = kv_type_name(kv_type);
  return kv_type == device_kv_type ? kept : kept + ", on the device in " + kv_type_name(device_kv_type);
}

TemplateSettings::TemplateSettings(const Args& args) {
  if (const std::string* path = args.find("--template")) {
    source_ = read_text(*path);
    has_source_ = true;
  }
  name_ = args.text("--template-name", "");
  if (const std::string* path = args.find("--tools")) {
    tools_ = read_text(*path);
    if (!parse_json(tools_, *path).is_array()) throw Failure(kExitFailure, *path + ": is not a JSON array of tools");
  }
  Json variables = Json::object();
  for (const std::string& variable : args.all("--var")) add_variable(variables, variable);
  if (args.has("--no-think")) variables["enable_thinking"] = false;
  if (!variables.empty()) {
    variables_ = dump_json(variables, -1);
  }
}

orrery_template_options TemplateSettings::options() const {
  orrery_template_options options;
  orrery_template_options_init(&options, sizeof options);
  if (has_source_) options.template_source = source_.c_str();
  if (!name_.empty()) options.template_name = name_.c_str();
  if (!tools_.empty()) options.tools_json = tools_.c_str();
  if (!variables_.empty()) options.variables_json = variables_.c_str();
  return options;
}

const std::string& model_file(const std::string& path) {
  const auto begins = [&](std::string_view start) { return path.compare(0, start.size(), start) == 0; };
  const auto ends = [&](std::string_view end) {
    return path.size() >= end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
  };
  if (begins("http://") || begins("https://"))
    throw Failure(kExitFailure, path + ": is an address; download the GGUF file first (curl -LO ADDRESS), and give the file's path");
  if (ends(".safetensors") || ends(".pt"))
    throw Failure(kExitFailure, path + ": is no GGUF file; download the model's GGUF, or convert it (convert_hf_to_gguf.py of llama.cpp)");
  return path;
}

Loaded load(const std::string& path, const Args& args, const Interrupts& interrupts, const LogSink* sink) {
  InterruptibleProgress progress{interrupts, ProgressBar("loading", ProgressBar::Unit::bytes)};
  orrery_runtime_options runtime = runtime_options(args);
  if (sink) runtime.log = sink->log, runtime.log_user = sink->user, runtime.log_level = sink->level;
  orrery_model_options model = model_options(args);
  model.progress = InterruptibleProgress::step;
  model.progress_user = &progress;
  Loaded loaded;
  loaded.runtime = make<Runtime>([&](orrery_runtime** out, orrery_error* error) { return orrery_runtime_create(&runtime, out, error); });
  loaded.model = make<Model>([&](orrery_model** out, orrery_error* error) {
    return orrery_model_open(loaded.runtime.get(), File(model_file(path)), &model, out, error);
  });
  return loaded;
}

Session open_session(const Loaded& loaded, const orrery_session_options& given) {
  orrery_session_options options = given;
  const Model& model = loaded.model;
  std::vector<orrery_adapter_use> uses(given.adapters, given.adapters + given.n_adapters);
  std::vector<Adapter> adapters;  // the session keeps what is open
  for (orrery_adapter_use& use : uses) {
    const orrery_source* source = std::exchange(use.source, nullptr);
    adapters.push_back(
        make<Adapter>([&](orrery_adapter** out, orrery_error* error) { return orrery_adapter_open(model.get(), source, out, error); }));
    use.adapter = adapters.back().get();
  }
  options.adapters = uses.data();
  Model draft;
  if (const orrery_source* source = std::exchange(options.draft_source, nullptr)) {
    draft = make<Model>(
        [&](orrery_model** out, orrery_error* error) { return orrery_model_open(loaded.runtime.get(), source, nullptr, out, error); });
    options.draft_model = draft.get();
  }
  return make<Session>([&](orrery_session** out, orrery_error* error) { return orrery_session_open(model.get(), &options, out, error); });
}

}  // namespace orrery::tool

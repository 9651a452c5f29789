// orrery eval: compares the answers under KV policies with full attention's answers. Samples are generated or read.
// Each sample runs under full attention first, then under every policy at every budget. Results are kept on disk, so
// an evaluation of hours can be interrupted and continued.
#include <algorithm>
#include <optional>
#include <string_view>

#include "command.h"
#include "eval/charts.h"
#include "eval/kvpress.h"
#include "eval/results.h"
#include "eval/store.h"
#include "system/terminal.h"
#include "system/write_file.h"

namespace orrery::tool {
namespace {

constexpr uint64_t kLeastLength = 256;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// "streaming:sinks=8", "full:kv-type=q8_0", and "30%" or "512MiB".
EvalConfig parse_config(const std::string& policy, const std::string& budget) {
  EvalConfig config;
  config.policy = policy;
  config.budget = budget;
  const std::vector<std::string> parts = split(policy, ':');
  config.name = parts[0];
  if (config.name.empty()) throw UsageError("--policies: '" + policy + "' does not begin with a name");
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == 0 || equals == std::string::npos)
      throw UsageError("--policies: '" + parts[i] + "' in '" + policy + "' is not NAME=VALUE");
    const std::string name = parts[i].substr(0, equals), value = parts[i].substr(equals + 1);
    if (name == "kv-type") {
      config.kv_type = parse_kv_type(value, "--policies: '" + policy + "'");
    } else if (name == "device-kv-type") {
      config.device_kv_type = parse_kv_type(value, "--policies: '" + policy + "'");
    } else if (name == "head-profile") {
      config.head_profile = read_text(value);
    } else {
      config.options.emplace_back(name, value);
    }
  }
  if (!budget.empty() && budget.back() == '%') {
    config.share = static_cast<float>(parse_real(budget.substr(0, budget.size() - 1), "--budgets", 1e-4, 100) / 100);
  } else if (!budget.empty()) {
    config.bytes = parse_bytes(budget, "--budgets");
  }
  return config;
}

// Full attention first, then every other policy at every budget.
std::vector<EvalConfig> parse_configs(const Args& args) {
  std::vector<EvalConfig> configs = {parse_config("full", "")};
  std::vector<std::string> seen;
  for (const std::string& policy : split(args.text("--policies", "full,streaming"), ',')) {
    if (policy == "full") continue;
    if (policy.compare(0, 5, "full:") == 0) {  // full attention has no budget
      if (std::find(seen.begin(), seen.end(), policy) != seen.end()) continue;
      seen.push_back(policy);
      configs.push_back(parse_config(policy, ""));
      continue;
    }
    for (const std::string& budget : split(args.text("--budgets", "50%"), ',')) {
      if (budget.empty()) throw UsageError("--budgets: '' is not a share or a size, as in 30% or 512MiB");
      if (std::find(seen.begin(), seen.end(), policy + " " + budget) != seen.end()) continue;
      seen.push_back(policy + " " + budget);
      configs.push_back(parse_config(policy, budget));
    }
  }
  return configs;
}

bool is_file(const std::string& task) {
  return task.find('/') != std::string::npos || (task.size() > 6 && task.compare(task.size() - 6, 6, ".jsonl") == 0);
}

// Samples of equal length are adjacent, shortest first.
std::vector<EvalSample> collect_samples(const Args& args, const orrery_vocab* vocab) {
  const TokenCount count = [vocab](const std::string& text) {
    size_t n = 0;
    call([&](orrery_error* error) { return orrery_tokenize(vocab, text.data(), text.size(), 0, nullptr, 0, &n, error); });
    return n;
  };
  const uint64_t n_samples = args.integer("--samples", 1, 1000000, 4);
  const auto n_questions = static_cast<uint32_t>(args.integer("--questions", 1, 16, 4));
  const uint64_t seed = args.integer("--seed", 0, UINT64_MAX, 0);
  std::vector<uint64_t> lengths;
  for (const std::string& text : split(args.text("--lengths", "1024"), ',')) {
    lengths.push_back(parse_tokens(text, "--lengths", kLeastLength, 1u << 28));
  }
  std::vector<std::string> known(task_names().begin(), task_names().end());
  std::vector<std::string> tasks;
  for (const std::string& task : split(args.text("--tasks", "all"), ',')) {
    if (task == "all") {
      tasks.insert(tasks.end(), known.begin(), known.end());
    } else if (is_file(task) || std::find(known.begin(), known.end(), task) != known.end()) {
      tasks.push_back(task);
    } else {
      const std::string near = nearest(task, known);
      throw UsageError("--tasks: no task is called '" + task + "'" + (near.empty() ? "" : "; did you mean '" + near + "'?"));
    }
  }
  std::vector<EvalSample> samples;
  for (size_t t = 0; t < tasks.size(); ++t) {
    if (std::find(tasks.begin(), tasks.begin() + static_cast<ptrdiff_t>(t), tasks[t]) != tasks.begin() + static_cast<ptrdiff_t>(t))
      continue;
    if (is_file(tasks[t])) {
      const std::vector<EvalSample> read = read_samples(tasks[t], args.has("--samples") ? n_samples : 0, count);
      samples.insert(samples.end(), read.begin(), read.end());
      continue;
    }
    for (const uint64_t length : lengths) {
      for (uint64_t i = 0; i < n_samples; ++i) samples.push_back(make_sample(tasks[t], length, i, seed, n_questions, count));
    }
  }
  std::stable_sort(samples.begin(), samples.end(), [](const EvalSample& a, const EvalSample& b) { return a.length < b.length; });
  return samples;
}

EvalMode parse_mode(const Args& args) {
  EvalMode mode;
  mode.multi_turn = args.choice("--turns", {"multi", "single"}, 0) == 0;
  if (args.has("--aware") && args.has("--agnostic")) throw UsageError("--aware and --agnostic exclude each other");
  mode.aware = !args.has("--agnostic");
  mode.max_tokens = static_cast<uint32_t>(args.tokens("--max-tokens", 1, 1u << 20, 128));
  return mode;
}

// The names of all policies.
std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const Json& row : parse_json(policies(), "policies")) names.push_back(row.at("name").get<std::string>());
  return names;
}

// An unknown policy or option would fail at every budget, so it is reported once, before the work.
void check_policies(const std::string& path, const Args& args, const std::vector<EvalConfig>& configs) {
  const orrery_runtime_options runtime = runtime_options(args);
  const orrery_model_options model = model_options(args);
  const std::vector<std::string> names = policy_names();
  for (size_t i = 1; i < configs.size(); ++i) {
    if (configs[i].name != "full" && std::find(names.begin(), names.end(), configs[i].name) == names.end()) {
      const std::string near = nearest(configs[i].name, names);
      throw UsageError("--policies: no policy is called '" + configs[i].name + "'" +
                       (near.empty() ? "" : "; did you mean '" + near + "'?"));
    }
    const SessionSettings settings(args);
    orrery_session_options session = settings.options();
    std::vector<orrery_option> options;
    for (const auto& [name, value] : configs[i].options) options.push_back({name.c_str(), value.c_str()});
    session.policy = configs[i].name.c_str();
    session.policy_options = options.data();
    session.n_policy_options = static_cast<uint32_t>(options.size());
    if (configs[i].kv_type) session.kv_type = *configs[i].kv_type;
    if (configs[i].device_kv_type) session.device_kv_type = 1 + *configs[i].device_kv_type;
    if (configs[i].head_profile) session.head_profile = configs[i].head_profile->c_str();
    if (configs[i].name == "full") session.device_kv_type = 0;
    orrery_plan_result plan;
    orrery_plan_result_init(&plan, sizeof plan);
    call([&](orrery_error* error) { return orrery_plan(File(path), &runtime, &model, &session, &plan, error); });
  }
}

std::string hexadecimal(const uint8_t* bytes, size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += format("%02x", static_cast<unsigned>(bytes[i]));
  return text;
}

// What tells adapters from others: their contents and scales.
Json adapters_json(const orrery_session_options& session) {
  Json adapters = Json::array();
  for (uint32_t i = 0; i < session.n_adapters; ++i) {
    adapters.push_back({{"digest", digest_of(read_file(session.adapters[i].source->path))}, {"scale", session.adapters[i].scale}});
  }
  return adapters;
}

// All settings that decide an answer, except the sample and the row. The instruction path decides last bits.
Json settings_json(const Args& args, const Loaded& loaded, const orrery_model_info& info, const TemplateSettings& chat,
                   const orrery_session_options& session, const EvalMode& mode) {
  const orrery_template_options given = chat.options();
  Json words = Json::array();
  for (const char* text : {given.template_source, given.template_name, given.tools_json, given.variables_json})
    words.push_back(text ? Json(text) : Json());
  Json rope = Json::object();
  for (const char* option : {"--rope-scaling", "--rope-scale", "--rope-base", "--rope-original-context"}) {
    if (const std::string* value = args.find(option)) rope[option] = *value;
  }
  orrery_runtime_info runtime;
  orrery_runtime_info_init(&runtime, sizeof runtime);
  call([&](orrery_error* error) { return orrery_runtime_get_info(loaded.runtime.get(), &runtime, error); });
  Json link;
  if (const std::string* value = args.find("--link")) link = *value;  // decides how long steps wait
  Json json = {{"library", orrery_version()},
               {"build", orrery_build_info()},
               {"backend", runtime.backend},
               {"path", runtime.path},
               {"model",
                {{"name", info.name},
                 {"architecture", info.architecture},
                 {"quantization", info.quantization},
                 {"fingerprint", hexadecimal(info.fingerprint, sizeof info.fingerprint)}}},
               {"rope", rope},
               {"link", link},
               {"chat", chat.given() ? Json(digest_of(dump_json(words, -1))) : Json()},
               {"head_profile", session.head_profile ? Json(digest_of(session.head_profile)) : Json()},
               {"context", session.n_context},
               {"kv_type", kv_type_name(session.kv_type)},
               {"device_kv_type", session.device_kv_type ? Json(kv_type_name(session.device_kv_type - 1)) : Json()},  // the type under a
                                                                                                                      // policy
               {"turns", mode.multi_turn ? "multi" : "single"},
               {"question", mode.aware ? "aware" : "agnostic"},
               {"max_tokens", mode.max_tokens}};
  if (session.n_adapters > 0) json["adapters"] = adapters_json(session);
  return json;
}

// What tells the row from others: its own settings, beside the policy as it is written and the budget.
Json config_json(const EvalConfig& config) {
  return {config.policy, config.budget, config.head_profile ? Json(digest_of(*config.head_profile)) : Json()};
}

// The context of a sample's sessions, in units of 256 tokens. Other samples do not decide it, so records of several files serve an
// evaluation of all of them.
uint32_t context_for(const EvalRunner& runner, const EvalSample& sample, uint32_t wished) {
  const uint64_t needed = runner.context_needed(sample);
  if (wished > 0 && needed > wished) {
    throw Failure(kExitDoesNotFit, format("sample %s needs a context of %llu tokens with its answers, --context is %u", sample.id.c_str(),
                                          static_cast<unsigned long long>(needed), wished));
  }
  const uint64_t rounded = (needed + 255) / 256 * 256;
  if (wished == 0 && rounded > UINT32_MAX) throw Failure(kExitDoesNotFit, "the samples are longer than any context");
  return wished > 0 ? wished : static_cast<uint32_t>(rounded);
}

class Evaluation {
 public:
  Evaluation(const EvalRunner& runner, EvalStore& store, const Json& settings, EvalResults& results)
      : runner_(runner), store_(store), settings_(dump_json(settings, -1)), results_(results) {}

  // before(c): config c is about to be evaluated; done(c): its record is there.
  void run_sample(size_t s, uint32_t n_context, const std::function<void(size_t)>& before, const std::function<void(size_t)>& done) {
    const EvalSample& sample = results_.samples[s];
    std::vector<std::string> keys;
    for (const EvalConfig& config : results_.configs) {
      const Json what = {settings_, n_context, config_json(config), sample_json(sample)};
      keys.push_back(digest_of(dump_json(what, -1)));
    }
    EvalReference reference;
    bool have_reference = false;
    for (size_t c = 0; c < keys.size(); ++c) {
      EvalRecord record;
      if (!stored(keys[c], sample, &record)) {
        before(c);
        if (c == 0 || !have_reference) {
          const EvalRecord full = runner_.run_full(sample, n_context, &reference);
          have_reference = true;
          if (c == 0) record = full;
        }
        if (c > 0) record = runner_.run_policy(sample, results_.configs[c], n_context, &reference);
        store_.add(keys[c], record_json(record));
      }
      results_.entries.push_back({s, c, std::move(record)});
      done(c);
    }
  }

 private:
  // An entry that this tool did not write is no record; the sample is evaluated again.
  bool stored(const std::string& key, const EvalSample& sample, EvalRecord* record) {
    const Json* json = store_.find(key);
    if (!json) return false;
    try {
      *record = record_from(*json);
      if (!record->error.empty() || record->answers.size() == sample.questions.size()) return true;
    } catch (const Json::exception&) {
    }
    return false;
  }

  const EvalRunner& runner_;
  EvalStore& store_;
  std::string settings_;
  EvalResults& results_;
};

int eval(const Args& args, Output& out) {
  const std::string& path = args.words()[0];
  EvalResults results;
  results.configs = parse_configs(args);
  const EvalMode mode = parse_mode(args);
  results.aware = mode.aware;
  results.multi_turn = mode.multi_turn;
  const SessionSettings session_settings(args);
  const TemplateSettings chat(args);
  {
    const Vocab vocab = open_vocab(path);
    results.samples = collect_samples(args, vocab.get());
  }
  if (const std::string* file = args.find("--write-samples")) {
    out.flush();
    write_samples(*file, results.samples, static_cast<Layout>(args.choice("--layout", {"own", "ruler", "longbench", "scbench"}, 0)));
    return kExitOk;
  }
  for (const EvalSample& sample : results.samples) {
    if (!mode.aware && sample.question_inside) {
      throw UsageError("--agnostic: sample " + sample.id + " has its question inside the text, as RULER's files have");
    }
  }
  check_policies(path, args, results.configs);
  const std::string* png_folder = args.find("--png");
  const std::string* kvpress_folder = args.find("--kvpress");
  for (const std::string* folder : {png_folder, kvpress_folder}) {
    if (folder) make_folder(*folder);  // fails before hours of work, not after them
  }

  const Interrupts interrupts;
  const Loaded loaded = load(path, args, interrupts);
  const orrery_model_info info = model_info(loaded.model.get());
  const orrery_session_options session = session_settings.options();
  EvalRunner runner(loaded, chat, session, mode);
  std::vector<uint32_t> contexts;
  for (const EvalSample& sample : results.samples) {
    runner.check(sample);
    contexts.push_back(context_for(runner, sample, session.n_context));
  }

  const std::string* json_path = args.find("--json");
  Output words(json_path && is_standard_output(*json_path) ? kStderr : kStdout);  // tables never mix with the JSON
  const bool resumable = json_path && !is_stream(*json_path);
  const std::string* kept_records = args.find("--records");
  const std::string records = kept_records ? *kept_records : resumable ? *json_path + ".partial" : "";
  std::optional<EvalStore> store;
  if (!records.empty()) {
    store.emplace(records);
  } else {
    store.emplace();
  }
  if (store->size() > 0) note(records + ": " + counted(store->size(), "result") + " from an earlier run");
  const Json settings = settings_json(args, loaded, info, chat, session, mode);
  Evaluation evaluation(runner, *store, settings, results);

  words.text(format("%s: %s, %zu samples, %s-turn, question-%s\n\n", info.name[0] ? info.name : path.c_str(), info.architecture,
                    results.samples.size(), mode.multi_turn ? "multi" : "single", mode.aware ? "aware" : "agnostic"));
  const EvalTable table(results, words.columns());
  words.write(table.head());
  words.flush();
  const size_t n = results.samples.size();
  const bool one_task = results.tasks().size() == 1;
  for (size_t first = 0, last; first < n; first = last) {
    const uint64_t length = results.samples[first].length;
    for (last = first; last < n && results.samples[last].length == length;) ++last;
    for (size_t s = first; s < last; ++s) {
      const std::string& task = results.samples[s].task;
      bool ends_task = true;
      for (size_t later = s + 1; later < last; ++later) ends_task = ends_task && results.samples[later].task != task;
      const auto before = [&](size_t c) {
        if (interrupts.pending()) throw Interrupted();
        const EvalConfig& config = results.configs[c];
        runner.set_label(format("sample %zu of %zu, %s %s", s + 1, n, config.policy.c_str(), config.budget.c_str()));
      };
      // A row appears with its last record.
      const auto done = [&](size_t c) {
        if (ends_task && !one_task) words.text(table.line(results.row(c, length, task)));
        if (s + 1 == last && one_task) words.text(table.line(results.row(c, length, "")));
        if (ends_task) words.flush();
      };
      evaluation.run_sample(s, contexts[s], before, done);
    }
    for (size_t c = 0; !one_task && c < results.configs.size(); ++c) words.text(table.line(results.row(c, length, "")));
    words.flush();
  }
  if (const std::string names = table.left_out(); !names.empty()) note("the terminal has no room for: " + names + " (--json has all)");
  words.text("\n" + task_table(results, words.columns()));
  words.flush();
  if (png_folder) write_charts(*png_folder, results);
  if (kvpress_folder) write_kvpress(*kvpress_folder, info.name[0] ? info.name : path, results);
  if (json_path) {
    Json json = {{"settings", settings}};
    json["settings"]["seed"] = args.integer("--seed", 0, UINT64_MAX, 0);
    json.update(results_json(results));
    write_file(*json_path, dump_json(json, 1) + "\n");
    if (!kept_records) store->remove_file();
  }
  return kExitOk;
}

// The session options that an evaluation leaves open. The evaluation itself sets policy and budget. A conversation
// that dropped its text would measure nothing.
OptionGroup eval_session_group() {
  OptionGroup group{"Session", {}};
  for (const Option& option : session_group().options) {
    const std::string name = option.name;
    if (name == "--context" || name == "--kv-type" || name == "--device-kv-type" || name == "--head-profile" || name == "--lora" ||
        name == "--chunk")
      group.options.push_back(option);
  }
  return group;
}

}  // namespace

const Command& eval_command() {
  static const Command command = {
      "eval",
      "MODEL.gguf [options]",
      "KV policies compared with full attention, on generated tasks and on files",
      "Asks questions about long texts: first under full attention, then under every policy at every budget, all greedy.\n"
      "  score        mean of the answers' scores\n"
      "  kept         share of full attention's score that the policy keeps, answer by answer, with its 95% interval\n"
      "               (Wilson's). Right answers of one character, and full answers that were cut off, do not count\n"
      "  KL, top-1    divergence KL(full || policy) in nats (mean, and 99th percentile), and share of equal likeliest tokens,\n"
      "               both over full attention's own answers, forced token by token through the policy's decode steps\n"
      "  tokens/s     decode speed\n"
      "  device KV    the KV of a session on the device, and its type\n"
      "  moved/token  bytes from host memory per generated token\n"
      "A text is read once: every row loads its KV. A row appears as soon as it is complete. Policies that refresh add:\n"
      "  hits         share of the needed tokens that were already on the device\n"
      "  hidden       share of the transfer time that no step waited for\n"
      "  exposed      waiting time per generated token\n"
      "  triggers     HeteroCache's triggers, and heads that FreeKV and Quest correct, per 100 generated tokens\n"
      "\n"
      "Tasks (after RULER), generated in the language of the demo model, which is plain English:\n"
      "  single       a number for a key, hidden among sentences without facts\n"
      "  multi-key    the same, among numbers for many other keys\n"
      "  multi-value  two or three numbers for a key, all asked for\n"
      "  multi-query  two or three facts asked for at once\n"
      "  variables    variables that take a value from one another\n"
      "  facts        where a person lives, what the person keeps, is or owns, among many others\n"
      "  listing      every sentence about magic numbers, in order\n"
      "Their answers are compared as a whole, ignoring case and punctuation. --tasks also takes files of JSON lines:\n"
      "  RULER        (input, outputs); score: share of the outputs that the answer contains\n"
      "  LongBench    (input, context, answers, dataset); score: F1 of the words, for the nearest answer\n"
      "  SCBench      (context, multi_turns); score: share of a turn's answers that the answer contains, F1 for choices\n"
      "  our own      files of --write-samples\n",
      {{"Options",
        {{"--policies", "LIST",
          "Policies, as in full,streaming:sinks=8,streaming. Options follow the name, each after a colon; kv-type=TYPE, "
          "device-kv-type=TYPE and head-profile=FILE are the session's, of this row alone, as in full:kv-type=q8_0. Full "
          "attention in --kv-type is always evaluated (default full,streaming)."},
         {"--budgets", "LIST",
          "KV cache on the device, as shares or sizes: 80%,50%,64MiB. A budget that a policy refuses is reported in "
          "its row (default 50%)."},
         {"--lengths", "LIST", "Tokens of the generated texts, at least 256 (default 1024)."},
         {"--tasks", "LIST", "Tasks, all, and files FILE.jsonl (default all)."},
         {"--samples", "N", "Texts per task and length (default 4). For a file: its first N (default all)."},
         {"--questions", "N", "Questions about each generated text, 1 to 16; listing has one (default 4)."},
         {"--turns", "HOW",
          "multi: all questions about a text in one conversation that keeps every answer; single: each question "
          "alone after the text, which is read once (default multi)."},
         {"--aware", nullptr, "The question is part of the prompt: the policy settles after the question (the default)."},
         {"--agnostic", nullptr,
          "The policy settles after the text, before it knows the question. The question is then decoded token by "
          "token, and the answer follows."},
         {"--seed", "N", "The same seed gives the same texts everywhere (default 0)."},
         {"--max-tokens", "N", "The longest answer (default 128)."},
         {"--json", "FILE",
          "All results, with every answer, as JSON. FILE.partial holds finished results: after an interruption, the same "
          "command continues there. - is standard output (the tables then go to standard error). Standard output, a "
          "device or a pipe has no FILE.partial."},
         {"--records", "FILE",
          "Keep finished results in FILE instead of FILE.partial, also after the end: a later run with more policies or texts "
          "evaluates the missing ones alone."},
         {"--png", "DIR",
          "Pictures: accuracy-LENGTH.png and kl-LENGTH.png, score and KL against budget; depth-NN-POLICY.png, scores by depth "
          "and length."},
         {"--kvpress", "DIR",
          "Results as kvpress's evaluation writes them: for each length, policy and budget a folder with config.yaml, "
          "metrics.json and predictions.csv."},
         {"--write-samples", "FILE", "Write the texts, questions and answers as JSON lines without evaluating; - is standard output."},
         {"--layout", "NAME", "Of --write-samples: own, ruler, longbench or scbench (default own)."}}},
       eval_session_group(),
       template_group(),
       runtime_group(),
       model_group()},
      "  orrery eval model.gguf --policies full,streaming --budgets 80%,50%,30% --lengths 1024,4096\n"
      "  orrery eval model.gguf --tasks niah_single_1.jsonl,hotpotqa.jsonl --turns single --json board.json\n"
      "  orrery eval model.gguf --policies full:kv-type=q8_0,auto,auto:device-kv-type=q4_0 --budgets 20% --records all.jsonl\n"
      "  orrery eval model.gguf --tasks single,facts --lengths 2048 --samples 100 --write-samples texts.jsonl\n",
      1,
      1,
      eval};
  return command;
}

}  // namespace orrery::tool

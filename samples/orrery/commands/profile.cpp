// orrery profile: measures on texts which heads of a model attend alike and which heads keep attending to the same
// keys, and writes a head profile. Also reads profiles, and gates, from other sources.
#include <algorithm>
#include <array>

#include "api.h"
#include "charts/profile_charts.h"
#include "command.h"
#include "eval/store.h"
#include "json_file.h"
#include "settings.h"
#include "system/files.h"
#include "system/terminal.h"
#include "system/write_file.h"
#include "terminal/progress.h"

namespace orrery::tool {
namespace {

struct FreeCalibration {
  void operator()(orrery_calibration* handle) const { orrery_calibration_free(handle); }
};
using Calibration = std::unique_ptr<orrery_calibration, FreeCalibration>;

std::string file_name(const std::string& path) { return path == "-" ? "standard input" : path.substr(folder_of(path).size()); }

struct Counts {
  size_t anchor = 0, volatile_heads = 0, pivot = 0, satellite = 0, representatives = 0, in_clusters = 0;
  size_t full() const { return volatile_heads + pivot; }
  size_t all() const { return full() + anchor + satellite; }
};

// Counts without the layers in `skipped`, unless they are all layers.
Counts count(const Json& profile, const std::vector<size_t>& skipped) {
  Counts counts;
  const Json& layers = profile.at("layers");
  for (size_t l = 0; l < layers.size(); ++l) {
    if (skipped.size() < layers.size() && std::find(skipped.begin(), skipped.end(), l) != skipped.end()) continue;
    for (const Json& role : layers[l].at("roles")) {
      counts.anchor += role == "anchor";
      counts.volatile_heads += role == "volatile";
      counts.pivot += role == "pivot";
      counts.satellite += role == "satellite";
    }
    if (!layers[l].contains("representatives")) continue;
    counts.in_clusters += layers[l].at("roles").size();
    for (const Json& head : layers[l].at("representatives")) counts.representatives += !head.is_null();
  }
  return counts;
}

// "12.1 (0.83 + 0.02), ...": layer and head, induction and echo, of the heads that retrieve most.
void print_retrieval(const Json& profile, const std::vector<size_t>& skipped, Output& out) {
  constexpr size_t kShown = 6;
  struct Found {
    double induction, echo;
    size_t layer, head;
  };
  std::vector<Found> found;
  const Json& layers = profile.at("layers");
  for (size_t l = 0; l < layers.size(); ++l) {
    if (!layers[l].contains("induction") || std::find(skipped.begin(), skipped.end(), l) != skipped.end()) continue;
    for (size_t h = 0; h < layers[l].at("induction").size(); ++h)
      found.push_back({layers[l].at("induction")[h], layers[l].at("echo")[h], l, h});
  }
  if (found.empty()) return;
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.induction + a.echo > b.induction + b.echo; });
  std::string text;
  for (size_t i = 0; i < std::min(kShown, found.size()); ++i)
    text += format("%s%zu.%zu (%.2f + %.2f)", i ? ", " : "", found[i].layer, found[i].head, found[i].induction, found[i].echo);
  out.write("Retrieving  most: " + text + "; layer.head (induction + echo)\n");
}

void print_counts(const Json& profile, const std::vector<size_t>& windowed, Output& out) {
  const Counts counts = count(profile, windowed);
  if (profile.at("layers").at(0).contains("gates")) {
    out.write(format("Gates       of %zu heads: duoattention keeps %zu whole, or as many as the KV budget holds; the others stream\n",
                     counts.all(), counts.full()));
    return;
  }
  out.write(format("Heads       %zu: %zu anchor, %zu volatile, %zu pivot, %zu satellite\n", counts.all(), counts.anchor,
                   counts.volatile_heads, counts.pivot, counts.satellite));
  out.write(format("Full        %zu of %zu heads: heterocache needs a KV budget of more than %.3f\n", counts.full(), counts.all(),
                   static_cast<double>(counts.full()) / static_cast<double>(counts.all())));
  if (counts.in_clusters > 0) {
    out.write(format("Represented by %zu of %zu heads: synckv needs a KV budget of more than %.3f\n", counts.representatives,
                     counts.in_clusters, static_cast<double>(counts.representatives) / static_cast<double>(counts.in_clusters)));
  }
  print_retrieval(profile, windowed, out);
}

void write_results(const Args& args, const std::string& name, const std::string& text, const Json& profile, const Json* steps,
                   Output& out) {
  if (const std::string* path = args.find("--out")) {
    out.flush();
    write_file(*path, text + "\n");
    out.text("Written     " + *path + "\n");
  }
  if (const std::string* folder = args.find("--png")) {
    for (const std::string& path : write_profile_charts(*folder, name, profile, steps)) out.text("Picture     " + path + "\n");
  }
}

int import_profile(const Args& args, const char* option, const std::string& path, Output& out) {
  if (!args.words().empty()) throw UsageError(std::string(option) + " reads a profile: it takes no model and no texts");
  const bool gates = std::string(option) == "--import-gates";
  std::vector<const char*> allowed = {"--out", "--png"};
  if (gates) allowed.push_back("--sparsity");
  args.only_with(option, allowed);
  const double sparsity = args.real("--sparsity", 0, 1, .5);
  if (const std::string* folder = args.find("--png")) make_folder(*folder);
  const std::string given = read_text(path);
  std::string text;
  try {
    text = sized<std::string>([&](char* json, size_t capacity, size_t* n, orrery_error* error) {
      return gates ? orrery_head_profile_import_gates(given.c_str(), sparsity, json, capacity, n, error)
                   : orrery_head_profile_import(given.c_str(), json, capacity, n, error);
    });
  } catch (const ApiError& error) {  // the library has seen a text, not a file
    throw Failure(error.code(), (path == "-" ? std::string("standard input") : path) + ": " + error.what());
  }
  const Json profile = parse_json(text, path);
  const std::string model = profile.at("model");
  out.text(file_name(path) + ": " + (model.empty() ? "of no particular model" : "of the model " + model) + ", " +
           std::to_string(profile.at("layers").size()) + " layers\n");
  print_counts(profile, {}, out);
  write_results(args, file_name(path), text, profile, nullptr, out);
  return kExitOk;
}

orrery_calibrate_options calibrate_options(const Args& args) {
  orrery_calibrate_options options;
  orrery_calibrate_options_init(&options, sizeof options);
  options.n_steps = static_cast<uint32_t>(args.tokens("--steps", 1, 1024, options.n_steps));
  options.top_k = static_cast<uint32_t>(args.integer("--top-k", 1, 1u << 20, options.top_k));
  options.n_representatives = static_cast<uint32_t>(args.integer("--representatives", 0, 1024, 0));
  options.tau_sim = args.real("--tau-sim", 0, 1, options.tau_sim);
  options.tau_stable = args.real("--tau-stable", 0, 1, options.tau_stable);
  options.tau_drift = args.real("--tau-drift", 0, 1, options.tau_drift);
  options.kv_type = kv_type_option(args, "--kv-type", options.kv_type);
  if (const std::string* share = args.find("--full-share")) options.full_share = parse_share(*share, "--full-share");
  return options;
}

int profile_model(const Args& args, Output& out) {
  const std::string *given = args.find("--import"), *gates = args.find("--import-gates");
  if (given && gates) throw UsageError("--import and --import-gates: one at a time");
  if (args.find("--sparsity") && !gates) throw UsageError("--sparsity needs --import-gates");
  if (given) return import_profile(args, "--import", *given, out);
  if (gates) return import_profile(args, "--import-gates", *gates, out);
  if (args.words().size() < 2) throw UsageError("expected a model and at least one text");
  orrery_calibrate_options options = calibrate_options(args);
  const std::string* folder = args.find("--png");
  if (folder) make_folder(*folder);  // fails before the work, not after it
  if (const std::string* path = args.find("--out")) {
    if (file_kind(*path) == FileKind::folder) throw Failure(kExitFailure, *path + ": is a folder");
    const std::string into = folder_of(*path);
    if (file_kind(*path) == FileKind::none && !can_write_in(into.empty() ? "." : into))
      throw Failure(kExitFailure, *path + ": no file can be created there");
  }
  std::vector<std::string> texts;
  for (size_t i = 1; i < args.words().size(); ++i) texts.push_back(read_file(args.words()[i]));

  const Interrupts interrupts;
  const Loaded loaded = load(args.words()[0], args, interrupts);
  const Vocab vocab(orrery_model_vocab(loaded.model.get()));
  const orrery_model_info info = model_info(loaded.model.get());
  uint64_t context = args.tokens("--context", 0, UINT32_MAX, 0);
  if (context == 0) context = info.trained_context;
  const uint64_t most = context - std::min<uint64_t>(options.n_steps, context);
  // A rendered chat contains its own BOS.
  const uint32_t flags = args.has("--special") ? ORRERY_TOKENIZE_SPECIAL : vocab_info(vocab.get()).add_bos != 0 ? ORRERY_TOKENIZE_BOS : 0u;
  std::vector<int32_t> tokens;
  std::vector<size_t> lengths;
  std::string note_text = texts.size() == 1 ? "" : format("%zu texts: ", texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& path = args.words()[i + 1];
    std::vector<int32_t> ids = tokenize(vocab.get(), texts[i], flags);
    if (ids.size() > most) {
      note(format("%s has %s tokens; the first %s are read", path.c_str(), grouped(ids.size()).c_str(), grouped(most).c_str()));
      ids.resize(most);
    }
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    lengths.push_back(ids.size());
    if (i < 4) note_text += (i ? ", " : "") + file_name(path).substr(0, 200);
  }
  if (texts.size() > 4) note_text += ", ...";
  note_text = dump_json(note_text + format("; %zu tokens, %u steps", tokens.size(), options.n_steps), -1);
  note_text = parse_json(note_text, "note").get<std::string>();  // a file's name may be any bytes
  options.note = note_text.c_str();

  InterruptibleProgress progress{interrupts, ProgressBar("calibrating", ProgressBar::Unit::tokens)};
  options.progress = InterruptibleProgress::step;
  options.progress_user = &progress;
  const Calibration calibration = make<Calibration>([&](orrery_calibration** handle, orrery_error* error) {
    return orrery_calibrate(loaded.model.get(), tokens.data(), lengths.data(), lengths.size(), &options, handle, error);
  });
  progress.bar.erase();
  const std::string text = sized<std::string>([&](char* json, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_calibration_profile(calibration.get(), json, capacity, n, error);
  });
  const Json profile = parse_json(text, "profile");
  const Json steps = parse_json(sized<std::string>([&](char* json, size_t capacity, size_t* n, orrery_error* error) {
                                  return orrery_calibration_steps(calibration.get(), json, capacity, n, error);
                                }),
                                "steps");

  const std::string name = info.name[0] ? info.name : file_name(args.words()[0]);
  out.text(format("%s: %s, %s parameters\n", name.c_str(), info.architecture, human_count(info.n_parameters).c_str()));
  out.write(format("Texts       %zu with %s tokens, %u steps after each; sets of %s keys\n", texts.size(), grouped(tokens.size()).c_str(),
                   options.n_steps, grouped(profile.at("top_k")).c_str()));
  const double drift = profile.at("tau_drift"), chance = steps.at("chance");
  out.write(format("Thresholds  tau_sim %g, tau_stable %g%s; tau_drift %g, where random sets overlap by %.2g\n",
                   profile.at("tau_sim").get<double>(), profile.at("tau_stable").get<double>(),
                   options.full_share > 0 ? format(" (for at most %g%% full heads)", 100 * options.full_share).c_str() : "", drift,
                   chance));
  const auto windowed = steps.at("windowed_layers").get<std::vector<size_t>>();
  if (!windowed.empty())
    out.write(
        format("Windows     %zu of %zu layers have a sliding window: they were scored without the window, and policies skip "
               "these layers\n",
               windowed.size(), profile.at("layers").size()));
  print_counts(profile, windowed, out);
  if (chance >= drift)
    note(format("random sets overlap by %.2g: a tau_drift of %g cannot tell them from the prompt's sets", chance, drift));
  write_results(args, name, text, profile, &steps, out);
  return kExitOk;
}

// A profile on standard output is the only output there.
int profile(const Args& args, Output& out) {
  const std::string* path = args.find("--out");
  if (!path || !is_standard_output(*path)) return profile_model(args, out);
  Output words(kStderr);
  const int code = profile_model(args, words);
  words.flush();
  return code;
}

}  // namespace

const Command& profile_command() {
  static const Command command = {
      "profile",
      "MODEL.gguf TEXT... [options]",
      "which heads attend alike: a head profile for KV policies",
      "Reads texts, generates some tokens after each, and records the keys that every KV head attends to most. The profile\n"
      "names anchors (heads that keep the prompt's keys), volatile heads (heads that do not), satellites (heads that attend\n"
      "as another head does), pivots (the heads that satellites follow), and clusters for policy synckv. Volatile and pivot\n"
      "heads keep their whole KV under policy heterocache, so their share is the smallest possible budget. 256 random tokens,\n"
      "read four times, then tell which heads retrieve, for policies duoattention and razorattention: by the attention to what\n"
      "followed a token's earlier occurrence (induction) and to that occurrence (echo). --head-profile of\n"
      "run, chat, bench, eval, plan and demo reads the file. TEXT is a file, or - for standard input. Best are a few\n"
      "thousand tokens of the kind of text that the model will read. A small model has few similar heads: --full-share\n"
      "finds thresholds for a wanted share of heads with whole KV.\n",
      {{"Options",
        {{"--out", "FILE",
          "Write the profile (JSON) to FILE; - is standard output, and the numbers then go to standard error. Without "
          "--out, the numbers are printed and no profile is written."},
         {"--png", "DIR", "Pictures: roles.png, stability.png, similarity.png, layers.png, drift.png and drift-layers.png."},
         {"--steps", "N", "Tokens generated after each text, 1 to 1024 (default 99)."},
         {"--top-k", "N", "Keys in a head's set; at most a quarter of the text's tokens (default 1024)."},
         {"--tau-sim", "X", "Heads with at least this overlap of their sets are similar (default 0.5)."},
         {"--tau-stable", "X", "Other heads that keep at least this share of the prompt's set are anchors (default 0.5)."},
         {"--tau-drift", "X", "Pivots that keep a smaller share refresh their satellites (default: tau-stable)."},
         {"--full-share", "SHARE", "Choose the nearest thresholds at which at most this share of heads keeps whole KV, as in 20%."},
         {"--representatives", "N", "Representative heads per layer, for synckv; 0: 2 of 8 or more heads, else 1 (default 0)."},
         {"--special", nullptr, "Text that spells a control token is that token: for chats, as `orrery template` renders them."},
         {"--context", "N", "Maximum tokens of a text and its steps; longer texts are cut; 0: as trained (default 0)."},
         {"--kv-type", "TYPE", "KV cache: f16, f32, q8_0, k8v4 (also k:q8_0,v:q4_0) or q4_0 (default f16)."},
         {"--import", "FILE",
          "Read a profile of this command, or a published HeteroCache head analysis, and print its numbers. With --out, "
          "write it in our format."},
         {"--import-gates", "FILE",
          "As --import, for learned gates of DuoAttention (full_attention_heads.tsv): one line per layer, with one number "
          "from 0 to 1 per KV head, separated by tabs or spaces. For policy duoattention."},
         {"--sparsity", "X", "With --import-gates: the share of heads that stream, those with the smallest gates (default 0.5)."}}},
       runtime_group(),
       model_group()},
      "  orrery profile model.gguf book.txt talk.txt --out model.profile.json --png pictures\n"
      "  orrery profile model.gguf book.txt --full-share 20% --out model.profile.json\n"
      "  orrery template model.gguf --messages chat.json > chat.txt\n"
      "  orrery profile model.gguf chat.txt --special --steps 12 --out model.profile.json\n"
      "  orrery chat model.gguf --policy heterocache --kv-budget 30% --head-profile model.profile.json\n"
      "  orrery profile --import-gates full_attention_heads.tsv --sparsity 0.5 --out duo.profile.json\n"
      "  orrery chat model.gguf --policy duoattention --kv-budget 60% --head-profile duo.profile.json\n",
      0,
      1000000,
      profile};
  return command;
}

}  // namespace orrery::tool

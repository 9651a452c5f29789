// orrery inspect: a GGUF file's description of itself, from its header alone. The library describes the file as JSON;
// this file prints it as a table. Missing entries are left out. Strings of the file are shown with control characters
// replaced.
#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "api.h"
#include "command.h"
#include "json_file.h"
#include "settings.h"
#include "shapes/described_model.h"

namespace orrery::tool {
namespace {

constexpr size_t kLongestValue = 100;  // characters of a metadata value in the table

// What the summary shows of a file. A file may have a million keys, so the others are not kept.
class Summary {
 public:
  explicit Summary(const std::string& description) {
    walk_json(description, [&](std::string_view part, const std::string& key, const Json& value) {
      if (part.empty()) {
        facts_[key] = value;
      } else if (part == "types") {
        types_.push_back(value);
      } else if (part == "tensors") {
        count(value);
      } else if (part == "metadata" && key.compare(0, kTemplate.size(), kTemplate) == 0 && value.is_string()) {
        const std::string name = key.size() > kTemplate.size() + 1 ? key.substr(kTemplate.size() + 1) : "default";
        templates_ += (templates_.empty() ? "" : ", ") + name + " (" + grouped(value.get<std::string>().size()) + " bytes)";
      } else if (part == "metadata" && shown(key)) {
        metadata_.emplace(key, value);
      }
    });
  }
  const Json& at(const std::string& key) const {  // null if the key is absent
    static const Json nothing;
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? nothing : found->second;
  }
  std::string text(const std::string& key) const {
    const Json& value = at(key);
    return value.is_string() ? value.get<std::string>() : std::string();
  }
  const Json& fact(const std::string& key) const { return facts_.at(key); }
  std::string fact_text(const std::string& key) const {
    const auto found = facts_.find(key);
    return found != facts_.end() && found->second.is_string() ? found->second.get<std::string>() : std::string();
  }
  const std::string& templates() const { return templates_; }
  const std::vector<Json>& types() const { return types_; }
  // The tensors of towers for images and sound, which text runs without.
  uint64_t n_tower_tensors() const { return n_tower_tensors_; }
  uint64_t tower_bytes() const { return tower_bytes_; }
  // The table of per-layer embeddings, which stays in host memory.
  uint64_t table_bytes() const { return table_bytes_; }

 private:
  void count(const Json& tensor) {
    const std::string name = tensor.at("name").get<std::string>();
    if (name == "per_layer_token_embd.weight") table_bytes_ = tensor.at("bytes").get<uint64_t>();
    for (const std::string_view start : {"v.", "a.", "mm."})
      if (name.compare(0, start.size(), start) == 0) ++n_tower_tensors_, tower_bytes_ += tensor.at("bytes").get<uint64_t>();
  }

  static constexpr std::string_view kTemplate = "tokenizer.chat_template";
  static bool shown(const std::string& key) {
    for (const char* name : {"general.architecture", "general.name", "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens"})
      if (key == name) return true;
    const size_t dot = key.find('.');
    if (dot == std::string::npos) return false;
    for (const char* end :
         {"block_count", "embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
          "feed_forward_length", "expert_count", "expert_used_count", "expert_feed_forward_length", "attention.kv_lora_rank",
          "attention.sliding_window", "attention.shared_kv_layers", "embedding_length_per_layer_input", "nextn_predict_layers",
          "context_length", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"})
      if (key.compare(dot + 1, std::string::npos, end) == 0) return true;
    return false;
  }
  std::unordered_map<std::string, Json> facts_, metadata_;
  std::vector<Json> types_;
  std::string templates_;
  uint64_t n_tower_tensors_ = 0, tower_bytes_ = 0, table_bytes_ = 0;
};

// The number of elements of a metadata array: {"type", "count", "first"}.
uint64_t array_length(const Json& value) { return value.is_object() ? value.at("count").get<uint64_t>() : 0; }

// An array, of a value for each layer, as its different values: "0 or 2". The description has the first elements alone.
std::string number_text(const Json& value) {
  if (value.is_object() && !value.at("first").empty()) {
    std::set<Json> different;
    for (const Json& each : value.at("first"))
      if (each.is_number()) different.insert(each);
    std::string text;
    for (const Json& each : different) text += (text.empty() ? "" : " or ") + number_text(each);
    return value.at("count").get<uint64_t>() > value.at("first").size() ? text + " ..." : text;
  }
  if (value.is_number_unsigned()) return grouped(value.get<uint64_t>());
  if (value.is_number()) {
    const double number = value.get<double>();
    const bool whole = number >= 0 && number < 1e15 && number == std::floor(number);
    return whole ? grouped(static_cast<uint64_t>(number)) : format("%g", number);
  }
  return value.is_null() ? "" : dump_json(value, -1);
}

// One line; a long line is cut, but never inside a UTF-8 character.
std::string short_text(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : dump_json(value, -1);
  for (char& c : text) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  if (text.size() <= kLongestValue) return text;
  size_t cut = kLongestValue;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return text.substr(0, cut) + "... (" + grouped(text.size()) + " bytes)";
}

class Table {
 public:
  explicit Table(Output& out) : out_(out) {}
  void row(const char* name, const std::string& value) {
    if (!value.empty()) out_.text(format("%-16s", name) + value + "\n");
  }

 private:
  Output& out_;
};

void print_summary(const std::string& description, Output& out) {
  const Summary metadata(description);
  const std::string architecture = metadata.text("general.architecture");
  const auto number = [&](const char* key) { return number_text(metadata.at(architecture + "." + key)); };
  const auto with = [](const std::string& value, const std::string& what) { return value.empty() ? value : value + " " + what; };
  Table table(out);
  table.row("file", metadata.fact_text("path"));
  table.row("size", with(grouped(metadata.fact("file_bytes").get<uint64_t>()), "bytes") + "  (" +
                        human_bytes(metadata.fact("file_bytes").get<uint64_t>()) + ")");
  table.row("name", metadata.text("general.name"));
  table.row("architecture", architecture);
  if (!metadata.fact("supported").get<bool>()) table.row("cannot run", metadata.fact_text("reason"));

  std::string shape;
  for (const std::string& part : {with(number("block_count"), "layers"), with(number("embedding_length"), "wide"),
                                  with(number("attention.head_count"), "heads"), with(number("attention.head_count_kv"), "KV heads"),
                                  with(number("attention.key_length"), "per head"), with(number("feed_forward_length"), "feed-forward")}) {
    if (!part.empty()) shape += (shape.empty() ? "" : ", ") + part;
  }
  table.row("shape", shape);
  std::string experts = number("expert_count");
  if (!experts.empty() && experts != "0") {
    experts += ", of which a token takes " + number("expert_used_count");
    const std::string width = number("expert_feed_forward_length");
    if (!width.empty()) experts += ", " + width + " feed-forward";
    table.row("experts", experts);
  }
  if (const std::string n = number("attention.kv_lora_rank"); !n.empty() && n != "0")
    table.row("latent KV",
              with(number("attention.key_length"), "numbers of a token in each layer, of which the first " + n + " are values"));
  const std::string window = number("attention.sliding_window"), guessing = number("nextn_predict_layers");
  if (window != "0") table.row("windows", with(window, "tokens"));
  if (const std::string n = number("attention.shared_kv_layers"); n != "0")
    table.row("shared KV", with(n, n == "1" ? "layer reads that of another" : "layers read that of others"));
  if (metadata.table_bytes() > 0)
    table.row("per layer",
              with(number("embedding_length_per_layer_input"), "more numbers of a token, from a table that stays in host memory, ") +
                  human_bytes(metadata.table_bytes()));
  const bool guesses = architecture == "qwen35" || architecture == "qwen35moe";
  if (guessing != "0" && guesses)
    table.row("guesses", with(guessing, guessing == "1" ? "further layer, for --speculate mtp"
                                                        : "further layers, of which --speculate mtp takes the first"));
  if (guessing != "0" && !guesses)
    table.row("not computed", with(guessing, guessing == "1" ? "layer, which guesses tokens" : "layers, which guess tokens"));
  if (metadata.n_tower_tensors() > 0)
    table.row("not computed",
              grouped(metadata.n_tower_tensors()) + " tensors of towers for images or sound, " + human_bytes(metadata.tower_bytes()));
  table.row("context", with(number("context_length"), "tokens"));
  std::string rope = with(number("rope.freq_base"), "base");
  const std::string scaling = metadata.text(architecture + ".rope.scaling.type");
  if (!scaling.empty()) {
    rope += (rope.empty() ? "" : ", ") + scaling + " scaling";
    const std::string factor = number("rope.scaling.factor"), original = number("rope.scaling.original_context_length");
    if (!factor.empty()) rope += " by " + factor;
    if (!original.empty()) rope += " from " + original + " tokens";
  }
  table.row("rope", rope);

  const std::string tokenizer = metadata.text("tokenizer.ggml.model");
  if (!tokenizer.empty()) {
    const std::string pre = metadata.text("tokenizer.ggml.pre");
    const uint64_t n_tokens = array_length(metadata.at("tokenizer.ggml.tokens"));
    table.row("tokenizer", tokenizer + (pre.empty() ? "" : " (" + pre + ")") + ", " + grouped(n_tokens) + " tokens");
  }
  table.row("chat template", metadata.templates().empty() ? "none" : metadata.templates());

  struct Sum {
    std::string type;
    uint64_t tensors = 0, parameters = 0, bytes = 0;
  };
  std::vector<Sum> sums;
  Sum all;
  all.type = "  together";
  for (const Json& type : metadata.types()) {
    sums.push_back({"  " + type.at("type").get<std::string>(), type.at("tensors").get<uint64_t>(), type.at("parameters").get<uint64_t>(),
                    type.at("bytes").get<uint64_t>()});
    all.tensors += sums.back().tensors;
    all.parameters += sums.back().parameters;
    all.bytes += sums.back().bytes;
  }
  std::sort(sums.begin(), sums.end(), [](const Sum& a, const Sum& b) { return a.bytes > b.bytes; });
  sums.push_back(all);
  out.write(format("\n%-16s%8s  %16s  %16s\n", "parameters", "tensors", "numbers", "bytes"));
  for (const Sum& sum : sums) {
    out.text(format("%-16s%8s  %16s  %16s  %10s\n", sum.type.c_str(), grouped(sum.tensors).c_str(), grouped(sum.parameters).c_str(),
                    grouped(sum.bytes).c_str(), human_bytes(sum.bytes).c_str()));
  }
}

// What a session of full attention takes at some contexts, and how it divides between a card and host memory. The weights count as all
// tensors that are computed.
void print_memory(const std::string& path, const std::string& description, Output& out) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  constexpr uint64_t kCards[] = {8 * kGiB, 12 * kGiB, 16 * kGiB, 24 * kGiB};
  constexpr double kOurs = .9;  // of a card: the desktop and the driver have the rest
  const Summary file(description);
  if (!file.fact("supported").get<bool>()) return;
  uint64_t weights = 0;
  for (const Json& type : file.types()) weights += type.at("bytes").get<uint64_t>();
  weights -= file.tower_bytes();
  orrery_runtime_options runtime;
  orrery_runtime_options_init(&runtime, sizeof runtime);
  runtime.backend = "cpu";
  const auto plan_at = [&](uint32_t n_context) {
    orrery_session_options session;
    orrery_session_options_init(&session, sizeof session);
    session.policy = "full", session.n_context = n_context;
    orrery_plan_result plan;
    orrery_plan_result_init(&plan, sizeof plan);
    call([&](orrery_error* error) { return orrery_plan(File(path), &runtime, nullptr, &session, &plan, error); });
    return plan;
  };
  const Json& latent = file.at(file.text("general.architecture") + ".attention.kv_lora_rank");
  const bool divides = !latent.is_number() || latent.get<double>() == 0;  // no KV policy divides latent KV
  const uint32_t trained = plan_at(256).trained_context;
  std::set<uint32_t> contexts = {trained};
  for (const uint32_t n : {8192u, 32768u})
    if (n < trained) contexts.insert(n);
  out.write("\nmemory                 KV in F16     together");
  for (const uint64_t card : kCards) out.write(format("%9s", (grouped(card / kGiB) + " GiB").c_str()));
  out.write("\n");
  for (const uint32_t n : contexts) {
    const orrery_plan_result plan = plan_at(n);
    const uint64_t kv = plan.full_kv_bytes + plan.compressed_kv_bytes;
    const uint64_t beside = weights - file.table_bytes() + plan.workspace_bytes + plan.compressed_kv_bytes;
    out.write(format("  %-15s %14s %12s", (grouped(n) + " tokens").c_str(), human_bytes(kv).c_str(),
                     human_bytes(weights + kv + plan.workspace_bytes).c_str()));
    for (const uint64_t card : kCards) {
      const double left = kOurs * static_cast<double>(card) - static_cast<double>(beside);
      const double share = plan.full_kv_bytes ? left / static_cast<double>(plan.full_kv_bytes) : left >= 0 ? 1 : 0;
      out.write(format("%9s", share >= 1                 ? "all"
                              : share >= .01 && !divides ? "not all"
                              : share >= .01             ? format("%.0f%% KV", std::floor(100 * share)).c_str()
                                                         : "-"));
    }
    out.write("\n");
  }
  out.write(std::string("  of a card's memory nine tenths; ") +
            (divides ? "% KV: the share of the KV that fits next to the weights (--kv-budget)"
                     : "not all: the KV does not fit next to the weights, and no policy divides latent KV") +
            "; -: the weights do not fit\n");
}

void print_metadata(const std::string& description, Output& out) {
  out.write("\nmetadata\n");
  walk_json(description, [&](std::string_view part, const std::string& key, const Json& value) {
    if (part == "metadata") out.text(format("  %-44s ", key.c_str()) + short_text(value) + "\n");
  });
}

void print_tensors(const std::string& description, Output& out) {
  out.write(format("\n%-42s %-8s %-24s %16s\n", "tensors", "type", "shape", "bytes"));
  walk_json(description, [&](std::string_view part, const std::string&, const Json& tensor) {
    if (part != "tensors") return;
    std::string shape;
    for (const Json& dim : tensor.at("shape")) shape += (shape.empty() ? "" : " x ") + std::to_string(dim.get<uint64_t>());
    out.text(format("  %-40s %-8s %-24s %16s  %10s\n", tensor.at("name").get<std::string>().c_str(),
                    tensor.at("type").get<std::string>().c_str(), shape.c_str(), grouped(tensor.at("bytes").get<uint64_t>()).c_str(),
                    human_bytes(tensor.at("bytes").get<uint64_t>()).c_str()));
  });
}

int inspect_file(const Args& args, Output& out) {
  const DescribedModel described(args);
  const std::string description = inspect(described.path());
  if (args.has("--json")) {
    out.text(description + "\n");
    return kExitOk;
  }
  print_summary(description, out);
  print_memory(described.path(), description, out);
  if (args.has("--metadata")) print_metadata(description, out);
  if (args.has("--tensors")) print_tensors(description, out);
  return kExitOk;
}

}  // namespace

const Command& inspect_command() {
  static const Command command = {
      "inspect",
      "MODEL.gguf | --shape NAME [--metadata] [--tensors] [--json]",
      "the contents of a model file",
      "Architecture, shape, context, tokenizer, chat templates, and parameters by type, from the file's header alone. This\n"
      "takes no noticeable time at any model size. For a split model, name any of its parts.\n",
      {{"Options",
        {{"--metadata", nullptr, "Every key with its value; long values are cut."},
         {"--tensors", nullptr, "Every tensor with its type, shape and bytes."},
         {"--json", nullptr, "The whole description, as JSON."},
         DescribedModel::option()}}},
      "  orrery inspect model.gguf\n"
      "  orrery inspect model.gguf --json | jq '.metadata[\"general.architecture\"]'\n"
      "  orrery inspect --shape gemma-4-26b-a4b\n",
      0,
      1,
      inspect_file};
  return command;
}

}  // namespace orrery::tool

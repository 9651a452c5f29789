// orrery template: renders messages through a chat template and prints the exact text that the model reads; or says how the template has
// reasoning and calls of tools written.
#include "api.h"
#include "command.h"
#include "json_file.h"
#include "settings.h"

namespace orrery::tool {
namespace {

// A row of the description: texts of the template stand in quotes, with escapes.
std::string row(const char* label, const std::string& words) { return tool::format("%-16s%s\n", label, words.c_str()); }
std::string quoted(const Json& text) { return dump_json(text, -1); }

std::string reasoning_row(const Json& reasoning) {
  if (reasoning.is_null()) return row("Reasoning", "none that the template marks");
  std::string words = reasoning["open"] == "" ? "from the answer's beginning to " : "between " + quoted(reasoning["open"]) + " and ";
  words += quoted(reasoning["close"]);
  if (reasoning["after"] != "") words += ", then " + quoted(reasoning["after"]);
  if (reasoning["prompt"] == "open") words += "; the prompt begins it";
  if (reasoning["prompt"] == "closed") words += "; the prompt ends it: the model does not reason";
  return row("Reasoning", words);
}

std::string arguments_rows(const Json& arguments) {
  if (arguments["notation"] == "json")
    return row("Arguments",
               std::string("a JSON object, ") + (arguments["spaces"].get<bool>() ? "\", \" and \": \"" : "\",\" and \":\"") + " in it");
  const auto value = [&](const char* open, const char* close) { return quoted(arguments[open]) + " VALUE " + quoted(arguments[close]); };
  std::string rows = row("Arguments", quoted(arguments["open"]) + " KEY " + value("to_string", "string_close") + " of a text");
  rows += row("", quoted(arguments["open"]) + " KEY " + value("to_value", "value_close") + " of another value");
  rows += row("  next key", quoted(arguments["next_key"]) + (arguments["sorted"].get<bool>() ? "; keys in alphabetical order" : ""));
  rows += row("  end", quoted(arguments["end"]) + "; without arguments " + quoted(arguments["none"]));
  rows += row("  words", arguments["true"].get<std::string>() + ", " + arguments["false"].get<std::string>() + ", " +
                             arguments["null"].get<std::string>());
  rows += row("  texts", "have no " + quoted(arguments["string_end"]));
  constexpr const char* kHow[][2] = {{"none", "cannot be written: tools that have them are refused"},
                                     {"json", "as JSON"},
                                     {"bare", "texts within them between the same marks, keys without marks"},
                                     {"python", "as Python writes them"}};
  for (const char* part : {"lists", "objects"})
    for (const auto& [name, how] : kHow)
      if (arguments[part] == name) rows += row((std::string("  ") + part).c_str(), how);
  return rows;
}

std::string call_rows(const Json& report) {
  const Json& calls = report["calls"];
  if (calls.is_null()) return row("Calls", "none: " + report["why_none"].get<std::string>());
  std::string rows = row("Calls", report["proved"].get<bool>()
                                      ? "derived from the template; proved: printed back, the same bytes as the template's"
                                      : "of the table, row " + report["source"].get<std::string>() + ": the template prints no calls back");
  rows += row("First call", quoted(calls["first"]));
  if (calls["with_content"].get<bool>()) rows += row("  after text", quoted(calls["after_content"]));
  std::string fields = calls["fields"][0].get<std::string>();
  for (size_t i = 0; i < calls["between"].size(); ++i)
    fields += ", " + quoted(calls["between"][i]) + ", " + calls["fields"][i + 1].get<std::string>();
  rows += row("A call", fields);
  rows += row("Next call", calls["several"].get<bool>() ? quoted(calls["next"]) : "none: an answer has one call");
  rows += row("End", quoted(calls["last"]));
  rows += arguments_rows(calls["arguments"]);
  if (calls["id_length"] != 0) rows += row("Ids", std::to_string(calls["id_length"].get<uint64_t>()) + " letters and digits");
  if (!calls["with_content"].get<bool>()) rows += row("Text", "not before a call");
  return rows + "Example\n" + report["example"].get<std::string>() + "\n";
}

int describe_format(const Args& args, Output& out) {
  if (args.has("--messages") || args.has("--no-generation-prompt"))
    throw UsageError("--format is not about messages: leave --messages out");
  const TemplateSettings settings(args);
  const orrery_template_options options = settings.options();
  const Vocab vocab = open_vocab(model_file(args.words()[0]));
  const std::string described = sized<std::string>([&](char* json, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_chat_format(vocab.get(), &options, json, capacity, n, error);
  });
  const Json report = parse_json(described, "the description");
  if (args.has("--json")) {
    out.text(dump_json(report, 2) + "\n");
    return kExitOk;
  }
  out.text(reasoning_row(report["reasoning"]));
  const Json& content = report["content"];
  if (!content.is_null()) out.text(row("Text", "between " + quoted(content["open"]) + " and " + quoted(content["close"])));
  out.text(call_rows(report));
  return kExitOk;
}

int render(const Args& args, Output& out) {
  if (args.has("--format")) return describe_format(args, out);
  if (args.has("--json")) throw UsageError("--json describes a format: give --format too");
  const std::string* path = args.find("--messages");
  if (!path) throw UsageError("--messages FILE is missing; --format says how calls are written");
  TemplateSettings settings(args);
  std::string messages = read_text(*path);
  const Json json = parse_json(messages, *path);
  if (json.is_object()) {
    if (!json.contains("messages") || !json["messages"].is_array()) {
      throw Failure(kExitFailure, *path + ": the object has no array \"messages\"");
    }
    if (json.contains("tools") && !json["tools"].is_null() && !args.has("--tools")) {
      settings.set_tools(dump_json(json["tools"], -1));
    }
    messages = dump_json(json["messages"], -1);
  } else if (!json.is_array()) {
    throw Failure(kExitFailure, *path + ": is neither an array of messages nor an object with \"messages\"");
  }
  orrery_template_options options = settings.options();
  options.add_generation_prompt = args.has("--no-generation-prompt") ? 0 : 1;
  const Vocab vocab = open_vocab(model_file(args.words()[0]));
  out.text(sized<std::string>([&](char* text, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_render_chat(vocab.get(), messages.c_str(), &options, text, capacity, n, error);
  }));
  return kExitOk;
}

}  // namespace

const Command& template_command() {
  static const Command command = {
      "template",
      "MODEL.gguf --messages FILE.json | --format [options]",
      "messages as the model reads them, calls as it writes them",
      "Prints the rendered conversation exactly: a newline at the end is printed only if the template writes one. FILE is a\n"
      "JSON array of messages, [{\"role\": \"user\", \"content\": \"...\"}, ...], or an object with \"messages\" and, if the template\n"
      "reads them, \"tools\". MODEL needs no tensors. --format prints how the template has reasoning and calls of tools written, and "
      "whether\n"
      "that is proved; or why the model cannot call tools.\n",
      {{"Options",
        {{"--messages", "FILE", "The messages; - is standard input."},
         {"--format", nullptr, "Say how reasoning and calls are written, with an example."},
         {"--json", nullptr, "The format as JSON."},
         {"--no-generation-prompt", nullptr, "Leave out the text that begins the assistant's answer."}}},
       template_group()},
      "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | orrery template model.gguf --messages -\n"
      "  orrery template model.gguf --messages chat.json --tools tools.json --no-think\n"
      "  orrery template model.gguf --format\n",
      1,
      1,
      render};
  return command;
}

}  // namespace orrery::tool

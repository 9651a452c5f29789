// The slash commands of a conversation. They write to stderr, so standard output holds only answers.
#include <algorithm>
#include <string>

#include "api.h"
#include "command.h"
#include "commands/chat.h"
#include "json_file.h"
#include "system/process.h"
#include "system/write_file.h"
#include "terminal/characters.h"

namespace orrery::tool {
namespace {

struct Request {
  Chat& chat;
  std::string argument;  // the rest of the line, trimmed
  bool leave = false, interrupted = false;
};

struct SlashCommand {
  const char* name;
  const char* argument;  // "" none, "FILE" needed, "[N]" may be given
  const char* help;
  void (*run)(Request& request);
};

void help(Request&);

void stats(Request& request) {
  orrery_stats stats;
  orrery_stats_init(&stats, sizeof stats);
  call([&](orrery_error* error) { return orrery_session_stats(request.chat.session(), &stats, error); });
  const auto rate = [](const char* pattern, double value) {  // "" if the rate was not measured
    return value > 0 ? format(pattern, value) : std::string();
  };
  say("context     " + grouped(stats.n_tokens) + " of " + counted(stats.n_context, "token") + ", " +
      counted(request.chat.n_messages(), "message"));
  say("prompts     " + counted(stats.prompt_tokens, "token") + " computed" +
      rate(" at %.0f/s", per_second(stats.prompt_tokens, stats.prefill_us)) + ", " + grouped(stats.reused_tokens) + " reused" +
      (stats.folder_tokens > 0 ? ", " + grouped(stats.folder_tokens) + " of them from the folder" : ""));
  say("answers     " + counted(stats.generated_tokens, "token") + rate(" at %.1f/s", per_second(stats.generated_tokens, stats.decode_us)));
  if (stats.guessed_tokens > 0)
    say("guesses     " + counted(stats.guessed_tokens, "token") + ", " + grouped(stats.accepted_tokens) + " of them right");
  say(format("KV cache    %s in use of %s, %s, workspace %s", human_bytes(stats.device_kv_used_bytes).c_str(),
             human_bytes(stats.device_kv_bytes).c_str(), kv_type_name(stats.device_kv_type), human_bytes(stats.workspace_bytes).c_str()));
  const ResidentMemory memory = resident_memory();
  if (memory.peak > 0) say("process     " + human_bytes(memory.now) + " resident, at most " + human_bytes(memory.peak));
  if (request.chat.last().finish_reason != 0) say("last turn   " + speed_line(request.chat.last()));
}

// The library saves to regular files. The tool writes the same bytes to a device or a pipe.
void save(Request& request) {
  if (is_stream(request.argument)) {
    write_file(request.argument, sized<std::string>([&](char* bytes, size_t capacity, size_t* n, orrery_error* error) {
                 return orrery_session_save_buffer(request.chat.session(), bytes, capacity, n, error);
               }));
  } else {
    call([&](orrery_error* error) { return orrery_session_save(request.chat.session(), request.argument.c_str(), error); });
  }
  say("saved to '" + request.argument + "'");
}

void load_saved(Request& request) {
  call([&](orrery_error* error) { return orrery_session_load(request.chat.session(), request.argument.c_str(), error); });
  say("loaded " + counted(request.chat.n_messages(), "message") + ", " + counted(orrery_session_n_tokens(request.chat.session()), "token"));
}

void reset(Request& request) {
  request.chat.reset();
  say(request.chat.n_messages() > 0 ? "removed all messages except the system message" : "removed all messages");
}

void take_back(Request& request, size_t n_turns) {
  const size_t undone = request.chat.undo(n_turns);
  say(undone == 0 ? "there is no question yet" : "removed " + counted(undone, "turn"));
}

void undo(Request& request) { take_back(request, 1); }

void rewind_turns(Request& request) {
  take_back(request, request.argument.empty() ? 1 : parse_integer(request.argument, "/rewind", 1, 1000000));
}

void retry(Request& request) {
  if (request.chat.sampling().greedy()) say("(at temperature 0 the answer stays the same)");
  request.interrupted = !request.chat.retry();
}

void go_on(Request& request) { request.interrupted = !request.chat.go_on(request.argument); }

void system_message(Request& request) {
  if (request.argument.empty()) {
    const std::string text = request.chat.system();
    say(text.empty() ? "no system message" : text);
  } else if (request.argument == "-") {
    request.chat.set_system("");
    say("the system message is removed");
  } else {
    request.chat.set_system(request.argument);
    say("the system message is set");
  }
}

void schema(Request& request) {
  if (request.argument.empty()) throw UsageError("/schema: name a file, or paste a schema; - removes it");
  request.chat.sampling().set_grammar(request.argument == "-" ? Grammar() : Grammar::of_schema(request.argument));
  say(request.argument == "-" ? "answers are free again"
                              : "answers are JSON that fits this schema; it is not in the prompt: say what you want");
}

void tools(Request& request) {
  const bool remove = request.argument == "-";
  std::string json;
  if (!remove) {
    json = read_text(request.argument);
    if (!parse_json(json, request.argument).is_array()) throw Failure(kExitFailure, request.argument + ": is not a JSON array of tools");
  }
  request.chat.set_tools(json);
  say(remove ? "the model has no tools" : "the model may call these tools; you type the results");
}

void lora(Request& request) {
  const bool remove = request.argument == "-";
  request.chat.set_adapter(remove ? "" : request.argument);
  say(remove ? "answers have no adapter" : "answers have the adapter " + request.argument);
}

void document(Request& request) {
  if (request.argument == "-") throw UsageError("/file: standard input is the conversation itself; name a file, or paste the text");
  const size_t n_tokens = request.chat.add_document(request.argument);
  say(request.argument + ": " + counted(n_tokens, "token") + " before the next question");
}

void settings(Request& request) { set(request.chat, request.argument); }

void quit(Request& request) { request.leave = true; }

// Other names by which people know a command.
constexpr const char* kAliases[][2] = {{"/?", "/help"},    {"/h", "/help"},      {"/exit", "/quit"},        {"/q", "/quit"},
                                       {"/bye", "/quit"},  {"/regen", "/retry"}, {"/regenerate", "/retry"}, {"/clear", "/reset"},
                                       {"/new", "/reset"}, {"/doc", "/file"}};

constexpr SlashCommand kCommands[] = {
    {"/help", "", "this list (also help, /?)", help},
    {"/set", "[NAME [VALUE]]", "show or change sampling, limits, thinking and the system message", settings},
    {"/file", "FILE", "put a document before the next question", document},
    {"/schema", "FILE", "answers are JSON that fits the schema in FILE; - for free answers", schema},
    {"/tools", "FILE", "the model may call the tools in FILE, and you type the results; - for none", tools},
    {"/lora", "FILE", "answer with the LoRA adapter in FILE[:SCALE] alone; - for none", lora},
    {"/system", "[TEXT]", "show or set the system message; - removes it", system_message},
    {"/undo", "", "remove the last question and its answer", undo},
    {"/rewind", "[N]", "remove the last N questions and answers", rewind_turns},
    {"/retry", "", "answer the last question again with another seed", retry},
    {"/continue", "[TEXT]", "let the last answer go on; with TEXT: answer again, beginning so", go_on},
    {"/reset", "", "remove all messages except the system message", reset},
    {"/save", "FILE", "save the conversation with its KV cache", save},
    {"/load", "FILE", "continue a saved conversation", load_saved},
    {"/stats", "", "tokens, speed and memory", stats},
    {"/quit", "", "end the program (also exit, /exit, Ctrl-D)", quit},
};

void help(Request&) {
  for (const SlashCommand& command : kCommands) {
    explain(std::string("  ") + command.name + " " + command.argument, 22, command.help);
  }
  explain("", 2,
          "A paste is one message. Alt-Enter, or a backslash at the end, begins another line; \"\"\" opens and closes a "
          "block of lines; // begins a message with /. Tab completes commands.");
}

}  // namespace

void explain(const std::string& name, size_t column, const std::string& explanation) {
  std::string line = name;
  line.resize(std::max(name.size() + (name.empty() ? 0 : 1), column), ' ');
  append_wrapped(explanation, column, static_cast<size_t>(std::max(terminal_columns(kStderr), 40)), &line);
  say(line);
}

std::vector<std::string> slash_names() {
  std::vector<std::string> names;
  for (const SlashCommand& command : kCommands) names.emplace_back(command.name);
  return names;
}

bool carry_out(Chat& chat, const std::string& line, bool* interrupted) {
  const size_t end = line.find_first_of(" \t");
  std::string name = line.substr(0, end);
  for (const auto& [alias, meant] : kAliases) {
    if (name == alias) name = meant;
  }
  Request request{chat, ""};
  if (end != std::string::npos) {
    const size_t first = line.find_first_not_of(" \t", end), last = line.find_last_not_of(" \t");
    if (first != std::string::npos) request.argument = line.substr(first, last - first + 1);
  }
  std::vector<std::string> names;
  for (const SlashCommand& command : kCommands) {
    names.push_back(command.name);
    if (name != command.name) continue;
    const std::string_view wanted = command.argument;
    if (wanted.empty() && !request.argument.empty()) throw UsageError(name + " takes no argument");
    if (!wanted.empty() && wanted[0] != '[' && request.argument.empty()) throw UsageError(name + " " + command.argument + " is missing");
    // No shell reads this line, so the tool expands the home folder.
    const std::string home = home_folder();
    if (wanted == "FILE" && request.argument.compare(0, 2, "~/") == 0 && !home.empty()) request.argument.replace(0, 1, home);
    command.run(request);
    *interrupted = request.interrupted;
    return !request.leave;
  }
  const std::string near = nearest(name, names);
  throw UsageError("unknown command " + name + (near.empty() ? "" : "; did you mean " + near + "?") + " (/help lists the commands)");
}

}  // namespace orrery::tool

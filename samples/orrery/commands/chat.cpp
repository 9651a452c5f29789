// orrery chat: see chat.h. On a terminal, the tool reports a failed turn and the conversation continues. From a pipe,
// a failed turn ends the program, because the later turns may refer to it.
#include "commands/chat.h"

#include <optional>

#include "bundled.h"
#include "command.h"
#include "json_file.h"
#include "terminal/line_reader.h"
#include "terminal/characters.h"

#ifdef _WIN32
#define ORRERY_HISTORY "%LOCALAPPDATA%\\orrery\\history"
#else
#define ORRERY_HISTORY "~/.local/state/orrery/history"
#endif

namespace orrery::tool {

std::string Chat::role(size_t message) const { return parse_json(message_json(session_.get(), message), "message").value("role", ""); }

void Chat::keep(size_t n) {
  call([&](orrery_error* error) { return orrery_session_rewind_messages(session_.get(), n, error); });
}

size_t Chat::last_question() const {
  for (size_t i = n_messages(); i-- > 0;) {
    if (role(i) == "user") return i;
  }
  return n_messages();
}

// The next call that waits, and what it waits for.
void Chat::tell_waiting() const {
  if (!waiting_.empty()) say("call " + waiting_[0].name + "(" + waiting_[0].arguments + "): type its result");
}

void Chat::set_tools(const std::string& json) {
  TemplateSettings changed = templates_;
  changed.set_tools(json);
  const orrery_template_options options = changed.options();
  call([&](orrery_error* error) { return orrery_session_set_template(session_.get(), &options, error); });
  templates_ = std::move(changed);
  sampling_.calls().tools = json.empty() ? ORRERY_TOOLS_IGNORED : ORRERY_TOOLS_AUTO;
  sampling_.calls().name.clear();
  waiting_.clear();
}

void Chat::set_adapter(const std::string& text) {
  Adapter adapter;
  orrery_adapter_use use = {};
  if (!text.empty()) {
    const auto [path, scale] = parse_lora(text, "/lora");
    adapter = make<Adapter>([&, file = &path](orrery_adapter** out, orrery_error* error) {
      return orrery_adapter_open(model_, File(model_file(*file)), out, error);
    });
    use.adapter = adapter.get(), use.scale = scale;
  }
  call([&](orrery_error* error) { return orrery_session_set_adapters(session_.get(), &use, adapter ? 1 : 0, error); });
}

bool Chat::ask(const std::string& question) {
  if (!waiting_.empty()) {
    const Json result = {{"role", "tool"}, {"tool_call_id", waiting_[0].id}, {"name", waiting_[0].name}, {"content", question}};
    const std::string message = dump_json(result, -1);
    call([&](orrery_error* error) { return orrery_session_add_message_json(session_.get(), message.c_str(), error); });
    waiting_.erase(waiting_.begin());
    tell_waiting();
    return waiting_.empty() ? answer() : true;
  }
  add_message(session_.get(), "user", documents_ + question);
  if (!documents_.empty()) asked_documents_.push_back(std::move(documents_));
  documents_.clear();
  return answer();
}

bool Chat::answer(bool goes_on) {
  AnswerWriter writer(out_, look_.thinking, look_.style, look_.opens_thinking, look_.live);
  const auto take_back = [&] {
    if (n_messages() > 0 && role(n_messages() - 1) == "user") undo(1);
  };
  try {
    orrery_generate_options options = sampling_.options();
    options.continue_last = goes_on ? 1 : 0;
    const Generation generation = begin_answer(session_.get(), options);
    AnswerWishes wishes;
    bool thinking = false;  // the writer folds thinking by its marks
    const auto think = [&](bool now) {
      if (now && !thinking && !look_.opens_thinking) writer.text("<think>");
      if (!now && thinking) writer.text("</think>");
      thinking = now;
    };
    wishes.stream = [&](std::string_view text) { think(false), writer.text(text); };
    wishes.thinking = [&](std::string_view text) { think(true), writer.text(text); };
    waiting_.clear();
    last_ = take_answer(generation.get(), wishes);
    waiting_ = last_.calls;
    think(false);
  } catch (const ApiError&) {
    writer.end();
    take_back();
    throw;
  }
  writer.end();
  out_.write("\n");
  out_.flush();
  if (last_.finish_reason == ORRERY_FINISH_CONTEXT)
    note("the context is full: the answer ends here (/undo, /reset, or --overflow drop-oldest)");
  if (last_.finish_reason == ORRERY_FINISH_LENGTH)
    note("the answer was cut at " + counted(sampling_.max_tokens(), "token") + " (/continue, or /set max-tokens N; 0: no limit)");
  tell_waiting();
  // A question without an answer would precede the next question, which many templates refuse.
  if (last_.interrupted() && last_.text.empty() && last_.calls.empty() && !goes_on) undo(1);
  return !last_.interrupted();
}

bool Chat::retry() {
  const size_t question = last_question();
  if (question == n_messages()) throw Failure(kExitFailure, "there is no question yet");
  keep(question + 1);
  sampling_.set_seed(sampling_.seed() + 1);
  return answer();
}

bool Chat::go_on(const std::string& beginning) {
  if (last_question() == n_messages()) throw Failure(kExitFailure, "there is no question yet");
  if (!beginning.empty()) {
    keep(last_question() + 1);
    add_message(session_.get(), "assistant", beginning);
    out_.text(beginning);
  }
  return answer(true);
}

size_t Chat::undo(size_t n_turns) {
  size_t undone = 0;
  waiting_.clear();
  for (; undone < n_turns; ++undone) {
    const size_t question = last_question();
    if (question == n_messages()) break;
    const Json message = parse_json(message_json(session_.get(), question), "message");
    keep(question);
    // A document belongs to its question. After the undo it waits for the next question.
    const std::string content =
        message.contains("content") && message["content"].is_string() ? message["content"].get<std::string>() : std::string();
    if (!asked_documents_.empty() && content.compare(0, asked_documents_.back().size(), asked_documents_.back()) == 0) {
      documents_ = asked_documents_.back() + documents_;
      asked_documents_.pop_back();
    }
  }
  return undone;
}

std::string Chat::system() const {
  if (n_messages() == 0) return "";
  const Json first = parse_json(message_json(session_.get(), 0), "message");
  if (first.value("role", "") != "system" || !first.contains("content") || !first["content"].is_string()) return "";
  return first["content"].get<std::string>();
}

void Chat::set_system(const std::string& text) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < n_messages(); ++i) {
    if (i > 0 || role(i) != "system") rest.push_back(message_json(session_.get(), i));
  }
  keep(0);
  if (!text.empty()) add_message(session_.get(), "system", text);
  for (const std::string& message : rest) {
    call([&](orrery_error* error) { return orrery_session_add_message_json(session_.get(), message.c_str(), error); });
  }
}

size_t Chat::add_document(const std::string& path) {
  std::string text = read_text(path);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) throw Failure(kExitFailure, path + ": the file is empty");
  documents_ += text + "\n\n";
  return tokenize(vocab_.get(), text, 0).size();
}

void Chat::reset() {
  waiting_.clear();
  const std::string first = system();
  keep(0);
  documents_.clear();
  asked_documents_.clear();
  if (!first.empty()) add_message(session_.get(), "system", first);
}

namespace {

// A word that means a command where a person types it: at a prompt, nobody expects "exit" to be a question.
std::string as_command(const std::string& message) {
  const size_t first = message.find_first_not_of(" \t"), last = message.find_last_not_of(" \t");
  const std::string word = message.substr(first, last - first + 1);
  return word == "exit" || word == "quit" || word == "help" ? "/" + word : message;
}

// Reads and answers until the end of the input. Returns the exit code.
int converse(Chat& chat, LineReader& reader, Interrupts& interrupts, bool interactive) {
  bool warned = false;
  const auto stopped = [&] {
    aside("(stopped)\n");
    warned = true;  // Ctrl-C once more, at once, leaves
  };
  for (;;) {
    if (interactive) interrupts.clear();  // drops a Ctrl-C that came when nothing was running
    std::string message;
    bool typed = false;
    const LineReader::Got got = reader.read(&message, &typed);
    if (got == LineReader::Got::end) return kExitOk;
    if (got == LineReader::Got::interrupted) {
      if (!interactive || (warned && !typed)) return kExitInterrupted;
      warned = true;
      aside("(Ctrl-C again or Ctrl-D ends the program)\n");
      continue;
    }
    warned = false;
    if (interactive) interrupts.clear();
    while (!message.empty() && message.back() == '\n') message.pop_back();
    if (message.find_first_not_of(" \t\n") == std::string::npos) continue;
    if (interactive) message = as_command(message);
    try {
      const LineReader::Away away(reader);
      bool interrupted = false;
      if (message[0] == '/' && message.compare(0, 2, "//") != 0 && message.find('\n') == std::string::npos) {
        if (!carry_out(chat, message, &interrupted)) return kExitOk;
      } else {
        if (message[0] == '/') message.erase(0, 1);
        interrupted = !chat.ask(message);
      }
      if (interrupted) {
        if (!interactive) return kExitInterrupted;
        stopped();
      }
    } catch (const Interrupted&) {
      if (!interactive) throw;
      stopped();
    } catch (const Failure& failure) {
      if (!interactive) throw;
      note(failure.what());
    }
  }
}

// Whether the model's template begins an answer as thinking. A template that needs more than a question is asked no further.
bool opens_thinking(const orrery_vocab* vocab, const TemplateSettings& templates) {
  const orrery_template_options options = templates.options();
  try {
    return tool::opens_thinking(sized<std::string>([&](char* text, size_t capacity, size_t* n, orrery_error* error) {
      return orrery_render_chat(vocab, "[{\"role\": \"user\", \"content\": \"Hello!\"}]", &options, text, capacity, n, error);
    }));
  } catch (const ApiError&) {
    return false;
  }
}

Color color_option(const Args& args) {
  static constexpr Color kColors[] = {Color::automatic, Color::always, Color::never};
  return kColors[args.choice("--color", {"auto", "always", "never"}, 0)];
}

// Null: none is wanted.
Folder folder_of(const Args& args) {
  constexpr uint64_t kDefaultBytes = uint64_t{4} << 30;
  const std::string* path = args.find("--folder");
  const uint64_t most = args.bytes("--folder-bytes", kDefaultBytes);
  if (!path && args.has("--folder-bytes")) throw UsageError("--folder-bytes: needs --folder");
  if (most == 0) throw UsageError("--folder-bytes: expected at least 1");
  orrery_folder* folder = nullptr;
  if (path) call([&](orrery_error* error) { return orrery_folder_open(path->c_str(), most, &folder, error); });
  return Folder(folder);
}

int chat(const Args& args, Output& out) {
  if (args.has("--history") && args.has("--no-history")) throw UsageError("--history and --no-history contradict each other");
  Sampling sampling(args, kChatting);
  const TemplateSettings templates(args);
  const SessionSettings session_settings(args);
  orrery_session_options wishes = session_settings.options();
  wishes.load_behind = args.has("--load-behind") ? 1 : 0;
  const Folder folder = folder_of(args);
  wishes.folder = folder.get();
  const bool interactive = is_terminal(kStdin);
  LineReader::Wishes reading;
  reading.history_path = args.has("--no-history") ? "" : args.text("--history", History::default_path());
  reading.completions = slash_names();
  reading.color = color_option(args);
  Chat::Look look;
  look.style = style_of(kStdout, reading.color);
  look.live = obeys_escapes(kStdout);
  look.thinking = look.style.on && out.terminal() ? Thinking::dim : Thinking::show;
  look.thinking = static_cast<Thinking>(args.choice("--thinking", kThinkingNames, static_cast<size_t>(look.thinking)));
  const bool named = !args.words().empty();
  const std::string path = named ? args.words()[0] : bundled(kBundledModel);
  if (!named) note("no model is named: this is the bundled demo model, " + path);

  Interrupts interrupts;
  std::string system;
  if (const std::string* text = args.find("--system")) system = *text;
  std::vector<std::string> documents = args.all("--file");
  for (const std::string& file : documents) {
    if (file == "-" && interactive) throw UsageError("--file: standard input is the conversation itself; name a file, or paste the text");
  }
  LineReader reader(interactive, reading, interrupts);
  std::optional<LineReader::Away> away(reader);
  const std::string recommended = sampling.take_from_model(inspect(model_file(path)));
  const Loaded loaded = load(path, args, interrupts);
  Session session = open_session(loaded, wishes);
  if (templates.given()) {
    const orrery_template_options options = templates.options();
    call([&](orrery_error* error) { return orrery_session_set_template(session.get(), &options, error); });
  }
  orrery_stats stats;
  orrery_stats_init(&stats, sizeof stats);
  call([&](orrery_error* error) { return orrery_session_stats(session.get(), &stats, error); });
  Vocab vocab(orrery_model_vocab(loaded.model.get()));
  look.opens_thinking = opens_thinking(vocab.get(), templates);
  Chat conversation(loaded.model.get(), std::move(session), std::move(vocab), std::move(sampling), templates, look, out);
  if (!system.empty()) conversation.set_system(system);
  for (const std::string& file : documents) {
    const size_t n_tokens = conversation.add_document(file);
    if (interactive) note(file + ": " + counted(n_tokens, "token") + " before the first question");
  }
  if (interactive) {
    const orrery_model_info info = model_info(loaded.model.get());
    aside(printable(format("%s, context %s tokens\n/help lists commands, Ctrl-C stops an answer, Ctrl-D ends the program.\n",
                           info.name[0] ? info.name : path.c_str(), grouped(stats.n_context).c_str())));
    if (!recommended.empty()) aside("The model's own sampling: " + recommended + ".\n");
  }
  away.reset();
  const int code = converse(conversation, reader, interrupts, interactive);
  if (folder && code == kExitOk && orrery_session_n_tokens(conversation.session()) > 0) {
    call([&](orrery_error* error) { return orrery_folder_save(folder.get(), conversation.session(), nullptr, error); });
  }
  return code;
}

}  // namespace

const Command& chat_command() {
  static const Command command = {
      "chat",
      "[MODEL.gguf] [options]",
      "a conversation, on a terminal or from a pipe",
      "Without MODEL.gguf: the bundled demo model. Sampling is the model's own where its file names it, else as below.\n"
      "\n"
      "On a terminal: line editing, history, and commands that begin with a slash (/help lists them, /set changes the sampling).\n"
      "// begins a message with a slash. A paste is one message, whatever its lines. Alt-Enter, or a backslash at the end, begins\n"
      "another line of the message; \"\"\" opens and closes a block of lines. Keys pressed during an answer are kept for the next\n"
      "message. Ctrl-C stops the answer and keeps the conversation; a second Ctrl-C, and Ctrl-D at the prompt, end the program.\n"
      "\n"
      "From a pipe: each line is a question, no prompts are printed, and standard output holds only the answers.\n",
      {{"Options",
        {{"--system", "TEXT", "The system message."},
         {"--file", "FILE", "A document before the first question; may be given several times.", true},
         {"--load-behind", nullptr, "/load returns at once, and reads the file's KV cache meanwhile. The next answer finds damage there."},
         {"--folder", "DIR",
          "Conversations on disk: a conversation is saved there when it ends, and one that begins with the same system message and "
          "documents "
          "reads their KV cache from there."},
         {"--folder-bytes", "SIZE", "What --folder may have; what was used least recently leaves (default 4GiB)."},
         {"--thinking", "HOW",
          "A model's thinking: show (with its markers), dim (faint), fold (one line) or hide (default dim on a terminal with "
          "colour, else show)."},
         {"--color", "WHEN", "auto, always or never; auto: on a terminal, without NO_COLOR, and not under TERM=dumb (default auto)."},
         {"--history", "FILE", "The file for typed messages (default " ORRERY_HISTORY ")."},
         {"--no-history", nullptr, "Keep no history."}}},
       sampling_group(kChatting),
       grammar_group(),
       calls_group(),
       session_group(),
       template_group(),
       runtime_group(),
       model_group()},
      "  orrery chat\n"
      "  orrery chat model.gguf --temperature 0.8 --max-tokens 2k\n"
      "  orrery chat model.gguf --file report.txt --context 65536 --kv-type q8_0 --overflow drop-oldest\n"
      "  printf 'Hello!\\nWho are you?\\n' | orrery chat model.gguf\n",
      0,
      1,
      chat};
  return command;
}

}  // namespace orrery::tool

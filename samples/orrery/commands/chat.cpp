// orrery chat: see chat.h. On a terminal, the tool reports a failed turn and the conversation continues. From a pipe,
// a failed turn ends the program, because the later turns may refer to it.
#include "commands/chat.h"

#include "command.h"
#include "json_file.h"
#include "terminal/line_reader.h"

namespace orrery::tool {

std::string Chat::role(size_t message) const {
  return parse_json(message_json(session_.get(), message), "message").value("role", "");
}

void Chat::keep(size_t n) {
  call([&](orrery_error* error) { return orrery_session_rewind_messages(session_.get(), n, error); });
}

size_t Chat::last_question() const {
  for (size_t i = n_messages(); i-- > 0;) {
    if (role(i) == "user") return i;
  }
  return n_messages();
}

bool Chat::ask(const std::string& question) {
  add_message(session_.get(), "user", documents_ + question);
  if (!documents_.empty()) asked_documents_.push_back(std::move(documents_));
  documents_.clear();
  return answer();
}

bool Chat::answer() {
  const auto take_back = [&] {
    if (n_messages() > 0 && role(n_messages() - 1) == "user") undo(1);
  };
  try {
    const Generation generation = begin_answer(session_.get(), sampling_.options());
    AnswerWishes wishes;
    wishes.stream = &out_;
    last_ = take_answer(generation.get(), wishes);
  } catch (const ApiError&) {
    take_back();
    throw;
  }
  out_.write("\n");
  out_.flush();
  if (last_.finish_reason == ORRERY_FINISH_CONTEXT) {
    note("the context is full: the answer ends here (/undo, /reset, or --overflow drop-oldest)");
  }
  // A question without an answer would precede the next question, which many templates refuse.
  if (last_.interrupted() && last_.text.empty()) undo(1);
  return !last_.interrupted();
}

bool Chat::retry() {
  const size_t question = last_question();
  if (question == n_messages()) throw Failure(kExitFailure, "there is no question yet");
  keep(question + 1);
  sampling_.set_seed(sampling_.seed() + 1);
  return answer();
}

size_t Chat::undo(size_t n_turns) {
  size_t undone = 0;
  for (; undone < n_turns; ++undone) {
    const size_t question = last_question();
    if (question == n_messages()) break;
    const Json message = parse_json(message_json(session_.get(), question), "message");
    keep(question);
    // A document belongs to its question. After the undo it waits for the next question.
    const std::string content = message.contains("content") && message["content"].is_string()
                                    ? message["content"].get<std::string>()
                                    : std::string();
    if (!asked_documents_.empty() &&
        content.compare(0, asked_documents_.back().size(), asked_documents_.back()) == 0) {
      documents_ = asked_documents_.back() + documents_;
      asked_documents_.pop_back();
    }
  }
  return undone;
}

std::string Chat::system() const {
  if (n_messages() == 0) return "";
  const Json first = parse_json(message_json(session_.get(), 0), "message");
  if (first.value("role", "") != "system" || !first.contains("content") || !first["content"].is_string())
    return "";
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
    call([&](orrery_error* error) {
      return orrery_session_add_message_json(session_.get(), message.c_str(), error);
    });
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
  const std::string first = system();
  keep(0);
  documents_.clear();
  asked_documents_.clear();
  if (!first.empty()) add_message(session_.get(), "system", first);
}

namespace {

// Reads and answers until the end of the input. Returns the exit code.
int converse(Chat& chat, LineReader& reader, Interrupts& interrupts, bool interactive) {
  bool warned = false;
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
    if (message.find_first_not_of(" \t\n") == std::string::npos) continue;
    try {
      bool interrupted = false;
      if (message[0] == '/' && message.compare(0, 2, "//") != 0 && message.find('\n') == std::string::npos) {
        if (!carry_out(chat, message, &interrupted)) return kExitOk;
      } else {
        if (message[0] == '/') message.erase(0, 1);
        interrupted = !chat.ask(message);
      }
      if (interrupted) {
        if (!interactive) return kExitInterrupted;
        aside("(stopped)\n");
      }
    } catch (const Interrupted&) {
      if (!interactive) throw;
      aside("(stopped)\n");
    } catch (const Failure& failure) {
      if (!interactive) throw;
      note(failure.what());
    }
  }
}

int chat(const Args& args, Output& out) {
  if (args.has("--history") && args.has("--no-history"))
    throw UsageError("--history and --no-history contradict each other");
  Sampling sampling(args);
  const TemplateSettings templates(args);
  const SessionSettings session_settings(args);
  const orrery_session_options wishes = session_settings.options();
  const bool interactive = is_terminal(kStdin);
  const std::string history =
      args.has("--no-history") ? "" : args.text("--history", LineReader::default_history_path());

  Interrupts interrupts;
  const Loaded loaded = load(args.words()[0], args, interrupts);
  Session session = open_session(loaded.model, wishes);
  if (templates.given()) {
    const orrery_template_options options = templates.options();
    call([&](orrery_error* error) { return orrery_session_set_template(session.get(), &options, error); });
  }
  orrery_stats stats;
  orrery_stats_init(&stats, sizeof stats);
  call([&](orrery_error* error) { return orrery_session_stats(session.get(), &stats, error); });
  Chat conversation(std::move(session), Vocab(orrery_model_vocab(loaded.model.get())), std::move(sampling),
                    out);
  if (const std::string* system = args.find("--system")) conversation.set_system(*system);
  for (const std::string& path : args.all("--file")) {
    const size_t n_tokens = conversation.add_document(path);
    if (interactive)
      note(path + ": " + counted(n_tokens, "token") + " before the first question");
  }
  if (interactive) {
    const orrery_model_info info = model_info(loaded.model.get());
    aside(printable(
        format("%s, context %s tokens. /help lists commands, Ctrl-C stops an answer, Ctrl-D ends the program.\n",
               info.name[0] ? info.name : args.words()[0].c_str(), grouped(stats.n_context).c_str())));
  }
  LineReader reader(interactive, history, interrupts);
  return converse(conversation, reader, interrupts, interactive);
}

}  // namespace

const Command& chat_command() {
  static const Command command = {
      "chat",
      "MODEL.gguf [options]",
      "a conversation, on a terminal or from a pipe",
      "On a terminal: line editing, history, and commands that begin with a slash (/help lists them). // begins a message\n"
      "with a slash. A line that ends in a backslash continues on the next line. \"\"\" opens and closes a block of lines.\n"
      "Ctrl-C stops the answer and keeps the conversation. At the prompt, Ctrl-C twice or Ctrl-D ends the program. A second\n"
      "Ctrl-C while the first is still pending ends the program at once.\n"
      "\n"
      "From a pipe: each line is a question, no prompts are printed, and standard output holds only the answers.\n",
      {{"Options",
        {{"--system", "TEXT", "The system message."},
         {"--file", "FILE", "A document before the first question; may be given several times.",
          true},
         {"--history", "FILE", "The file for typed lines (default ~/.local/state/orrery/history)."},
         {"--no-history", nullptr, "Keep no history."}}},
       sampling_group(),
       session_group(),
       template_group(),
       runtime_group(),
       model_group()},
      "  orrery chat model.gguf\n"
      "  orrery chat model.gguf --file report.txt --context 65536 --kv-type q8_0 --overflow drop-oldest\n"
      "  printf 'Hello!\\nWho are you?\\n' | orrery chat model.gguf\n",
      1,
      1,
      chat};
  return command;
}

}  // namespace orrery::tool

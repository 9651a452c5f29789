// One conversation: the session, and the state that the tool keeps beside it. chat.cpp answers questions;
// chat_commands.cpp runs the commands that begin with a slash; chat_settings.cpp is /set. The session holds the messages. The
// tool holds only documents that no question has used yet.
#pragma once

#include <string>
#include <vector>

#include "answer.h"
#include "api.h"
#include "sampling.h"
#include "settings.h"
#include "terminal/characters.h"
#include "terminal/output.h"
#include "thinking.h"

namespace orrery::tool {

// A line beside the conversation, on stderr.
inline void say(const std::string& text) { aside(printable(text) + "\n"); }

class Chat {
 public:
  struct Look {
    Thinking thinking = Thinking::show;
    Style style;                  // of the answers
    bool live = false;            // the answers go to a terminal that obeys escape codes
    bool opens_thinking = false;  // the template's prompt already begins the model's thinking
  };
  // model: of the session; it outlives the conversation.
  Chat(orrery_model* model, Session session, Vocab vocab, Sampling sampling, TemplateSettings templates, const Look& look, Output& out)
      : model_(model), session_(std::move(session)), vocab_(std::move(vocab)), sampling_(std::move(sampling)),
        templates_(std::move(templates)), look_(look), out_(out) {}

  orrery_session* session() const { return session_.get(); }
  const orrery_vocab* vocab() const { return vocab_.get(); }
  const Answer& last() const { return last_; }
  Sampling& sampling() { return sampling_; }
  Look& look() { return look_; }

  // Asks the question and streams the answer. On a failure the question is undone, and its documents wait for the
  // next question. Returns false after Ctrl-C.
  bool ask(const std::string& question);
  // Answers the last question again with another seed. Throws Failure if there is no question.
  bool retry();
  // The last answer goes on; with `beginning`: the last question's answer, which begins so. Throws Failure if there is no question.
  bool go_on(const std::string& beginning);

  void set_system(const std::string& text);  // "": removes the message; the rest of the conversation stays
  std::string system() const;
  size_t add_document(const std::string& path);  // adds it to the next question; returns its size in tokens
  // A JSON array of tools, which the model may call from then on; "": none.
  void set_tools(const std::string& json);
  // A LoRA adapter, "FILE[:SCALE]", takes the place of all that the session has; "": none. The KV of other adapters is computed again.
  void set_adapter(const std::string& text);
  // Calls of the last answer that wait for their results. ask() takes the result of the first one.
  const std::vector<Answer::Call>& waiting() const { return waiting_; }
  size_t undo(size_t n_turns);  // returns the number of questions undone
  void reset();                 // removes every message except the system message
  size_t n_messages() const { return orrery_session_n_messages(session_.get()); }

 private:
  bool answer(bool goes_on = false);
  void tell_waiting() const;
  size_t last_question() const;  // its index, or n_messages() if there is none
  std::string role(size_t message) const;
  void keep(size_t n_messages);

  orrery_model* model_;
  Session session_;
  Vocab vocab_;
  Sampling sampling_;
  TemplateSettings templates_;
  Look look_;
  Output& out_;
  Answer last_;
  std::vector<Answer::Call> waiting_;
  std::string documents_;                     // documents for the next question, each with the blank line after it
  std::vector<std::string> asked_documents_;  // documents of earlier questions, for undo
};

// Runs "/NAME arguments". Returns false to leave the program. Throws Failure.
bool carry_out(Chat& chat, const std::string& line, bool* interrupted);
std::vector<std::string> slash_names();  // every command, for completion

// "  NAME   EXPLANATION" for the terminal's width, on stderr.
void explain(const std::string& name, size_t column, const std::string& explanation);

// /set: "" lists all settings, "NAME" shows one, "NAME VALUE" sets it. Throws UsageError that names the values allowed.
void set(Chat& chat, const std::string& argument);

}  // namespace orrery::tool

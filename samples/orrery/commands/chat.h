// One conversation: the session and what the tool keeps beside it. chat.cpp answers questions,
// chat_commands.cpp carries out what begins with a slash. The messages themselves live in the session; only
// text that has not been asked about yet is held here.
#pragma once

#include <string>
#include <vector>

#include "answer.h"
#include "api.h"
#include "terminal/output.h"
#include "settings.h"

namespace orrery::tool {

class Chat {
 public:
  Chat(Session session, Vocab vocab, Sampling sampling, Output& out)
      : session_(std::move(session)), vocab_(std::move(vocab)), sampling_(std::move(sampling)), out_(out) {}

  orrery_session* session() const { return session_.get(); }
  const orrery_vocab* vocab() const { return vocab_.get(); }
  const Answer& last() const { return last_; }
  bool greedy() const { return sampling_.greedy(); }

  // Asks and streams the answer. On a failure the question is taken back, and its documents wait for the next
  // one. False: Ctrl-C.
  bool ask(const std::string& question);
  // Another answer to the last question, by another seed. Throws Failure where there is none.
  bool retry();

  void set_system(const std::string& text);  // "": none; the rest of the conversation stays
  std::string system() const;
  size_t add_document(const std::string& path);  // for the next question; its size in tokens
  size_t undo(size_t n_turns);                   // how many questions were taken back
  void reset();                                  // forget all but the system message
  size_t n_messages() const { return orrery_session_n_messages(session_.get()); }

 private:
  bool answer();
  size_t last_question() const;  // its index, or n_messages() where there is none
  std::string role(size_t message) const;
  void keep(size_t n_messages);

  Session session_;
  Vocab vocab_;
  Sampling sampling_;
  Output& out_;
  Answer last_;
  std::string documents_;                     // each with the blank line after it; waiting for a question
  std::vector<std::string> asked_documents_;  // what was put before questions, so that undo finds it again
};

// Carries out "/NAME arguments". False: leave. Throws Failure.
bool carry_out(Chat& chat, const std::string& line, bool* interrupted);

}  // namespace orrery::tool

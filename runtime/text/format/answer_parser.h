// Reads an answer that answer_tree() allows, as it is written: its reasoning, its content, its calls. Every byte that enters leaves in one
// piece, in order, so the pieces' `raw` are the answer. What a piece is does not depend on how the bytes were cut. Bytes that may be the
// beginning of a mark are withheld; a mark is at most some dozens of bytes long.
//
// Arguments come as JSON, whatever the format: the pieces of one call are one object.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/format/answer.h"

namespace orrery::text::format {

struct Piece {
  enum Type : uint8_t {
    text,  // of the content
    reasoning,
    call,       // a call begins: its name
    arguments,  // json: the next part of its arguments
    call_end,   // json: all of its arguments
    mark,       // what belongs to none of these
  };
  Type type;
  std::string raw;
  std::string json;
  size_t number = 0;  // of the call, in the answer
};

class AnswerParser {
 public:
  explicit AnswerParser(const AnswerRules& rules);  // which outlive the parser

  void feed(std::string_view bytes, std::vector<Piece>* out);
  // The answer ends: what was withheld is text. A call that is not whole is no call.
  void finish(std::vector<Piece>* out);

  struct ReadCall {
    std::string name, id, arguments;  // id: empty if the format has none
    bool whole = false;
  };
  const std::vector<ReadCall>& calls() const { return calls_; }
  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }
  bool in_reasoning() const { return state_ == State::reasoning; }
  // Within reasoning: the bytes that lead to its end from here.
  std::string_view rest_of_reasoning() const { return std::string_view(rules_.format.reasoning.close).substr(held_.size()); }
  // The bytes of an unfinished call, which is none: they belong to the content.
  std::string unfinished() const {
    return state_ >= State::literal && (calls_.empty() || !calls_.back().whole) ? call_raw_ + held_ : std::string();
  }

 private:
  enum class State : uint8_t {
    start,
    reasoning,
    after,
    content,
    content_end,
    done,
    literal,
    name,
    id,
    json,
    key,
    string_value,
    other_value
  };
  // What may follow at this place; `then` says what it leads to.
  struct Branch {
    std::string text;
    enum Then : uint8_t { field, next_call, end, first_key, next_key, value } then;
  };

  void byte(char c, std::vector<Piece>* out);
  void decide(bool last, std::vector<Piece>* out);
  void mark_text(char c, std::string_view mark, Piece::Type type, State then, std::vector<Piece>* out);
  void begin_call(std::vector<Piece>* out);
  void end_call(std::vector<Piece>* out);
  void expect(std::vector<Branch> branches, size_t matched, std::vector<Piece>* out);
  bool is_string(const std::string& key) const;
  void match(char c, std::vector<Piece>* out);
  void take(Branch::Then then, std::vector<Piece>* out);
  void begin_field(std::vector<Piece>* out);
  void end_field(std::vector<Piece>* out);
  void after_value(size_t matched, std::vector<Piece>* out);
  void json_byte(char c, std::vector<Piece>* out);
  void raw_byte(char c, std::vector<Piece>* out);
  void noted_byte(char c, std::vector<Piece>* out);
  void noted_string(char c, std::vector<Piece>* out);
  void noted_value(char c, std::vector<Piece>* out);
  void emit(Piece::Type type, std::string_view raw, std::string_view json, std::vector<Piece>* out);
  void give_json(std::string_view raw, std::string_view json, std::vector<Piece>* out);
  const CallFormat& format() const { return *rules_.format.call; }

  const AnswerRules& rules_;
  std::string trigger_, first_;  // first_: what follows the trigger, to the first field
  State state_ = State::start;
  bool may_reason_;
  std::string held_;  // withheld
  std::string content_, reasoning_;

  std::vector<ReadCall> calls_;
  std::string call_raw_;  // bytes of the call under way
  size_t field_ = 0;
  std::vector<Branch> branches_;
  std::vector<std::pair<size_t, uint8_t>> at_;  // of each branch: its place, digits of a number so far; kDead: refused
  // JSON.
  uint32_t depth_ = 0;
  bool in_string_ = false, escaped_ = false, value_begun_ = false, value_is_json_ = false;
  // Tagged arguments.
  std::string key_;
  bool any_key_ = false;
  // A list or an object in a notation of its own.
  enum class Place : uint8_t { value, open, word, string, key, after };  // open: within the mark that begins a string
  grammar::Notation notation_ = grammar::Notation::json;
  std::string closers_;  // of the lists and objects that are open
  Place place_ = Place::value;
  bool is_key_ = false;  // Python's string is a key
  char quote_ = '"';
};

}  // namespace orrery::text::format

#include "runtime/engine/answer/answer_reader.h"

#include <utility>

#include "runtime/text/json/json.h"

namespace orrery::engine {

using text::Map;
using text::Value;
using text::format::Piece;

bool AnswerReader::feed(std::string_view bytes, text::TextStream* stream) {
  if (parser_.in_reasoning()) ++n_reasoning_tokens_;
  pieces_.clear();
  parser_.feed(bytes, &pieces_);
  return take(&pieces_, stream);
}

bool AnswerReader::finish(text::TextStream* stream) {
  if (finished_) return false;
  finished_ = true;
  pieces_.clear();
  parser_.finish(&pieces_);
  const bool found = take(&pieces_, stream);
  std::string text;
  const bool at_end = stream->finish(&text);
  give(EventType::text, std::move(text), 0);
  return found || at_end;
}

bool AnswerReader::take(std::vector<Piece>* pieces, text::TextStream* stream) {
  for (Piece& piece : *pieces) {
    if (stopped_) break;
    std::string text;
    switch (piece.type) {
      case Piece::text:
        stopped_ = stream->feed(piece.raw, &text);
        give(EventType::text, std::move(text), 0);
        break;
      case Piece::reasoning:
        whole_.feed(piece.raw, &text);
        give(EventType::reasoning, std::move(text), 0);
        break;
      case Piece::call: give(EventType::call, {}, piece.number); break;
      case Piece::arguments:
        whole_.feed(piece.json, &text);
        give(EventType::arguments, std::move(text), piece.number);
        break;
      case Piece::call_end: give(EventType::call_end, std::move(piece.json), piece.number); break;
      case Piece::mark: break;
    }
  }
  return stopped_;
}

void AnswerReader::give(EventType type, std::string text, size_t call) {
  const bool of_call = type == EventType::call || type == EventType::arguments || type == EventType::call_end;
  if (text.empty() && !(type == EventType::call || type == EventType::call_end)) return;
  if (n_given_ == events_.size()) events_.clear(), n_given_ = 0;
  events_.push_back({type, std::move(text), of_call ? parser_.calls()[call].name : std::string(), of_call ? id_of(call) : std::string(),
                     static_cast<uint32_t>(call)});
}

std::string AnswerReader::id_of(size_t call) const {
  const std::string& own = parser_.calls()[call].id;
  if (!own.empty() && parser_.calls()[call].whole) return own;
  for (const text::format::Field field : form_->rules.format.call->fields)
    if (field == text::format::Field::id) return own;  // which may still come
  std::string digits = std::to_string((first_id_ + call) % 100000);
  return "call" + std::string(5 - digits.size(), '0') + digits;  // nine letters and digits: some templates demand that
}

bool AnswerReader::next(Event* event) {
  if (n_given_ == events_.size()) return false;
  const Queued& q = events_[n_given_++];
  event->type = q.type;
  event->text = q.text;
  event->name = q.name.c_str();
  event->call_id = q.id.c_str();
  event->call = q.call;
  return true;
}

Value AnswerReader::message(const std::string& content) const {
  std::string text = content;
  std::vector<Value> calls;
  for (size_t i = 0; i < parser_.calls().size(); ++i) {
    const auto& call = parser_.calls()[i];
    if (!call.whole) continue;
    Result<Value> arguments = text::parse_json(call.arguments);
    Map function;
    function.set("name", Value::string(call.name));
    function.set("arguments", arguments.ok() ? *arguments : Value::string(call.arguments));
    Map item;
    item.set("id", Value::string(id_of(i)));
    item.set("type", Value::string("function"));
    item.set("function", Value::map(std::move(function)));
    calls.push_back(Value::map(std::move(item)));
  }
  if (!calls.empty()) {  // the blanks before the first call are the template's
    const std::string& before = form_->rules.format.call->after_content;
    const std::string blanks = before.substr(0, before.find_first_not_of(" \n\r\t"));
    if (!blanks.empty() && text.size() >= blanks.size() && text.compare(text.size() - blanks.size(), blanks.size(), blanks) == 0)
      text.resize(text.size() - blanks.size());
  }
  Map message;
  message.set("role", Value::string("assistant"));
  message.set("content", Value::string(text + parser_.unfinished()));
  if (!parser_.reasoning().empty()) message.set("reasoning_content", Value::string(parser_.reasoning()));
  if (!calls.empty()) message.set("tool_calls", Value::list(std::move(calls)));
  return Value::map(std::move(message));
}

}  // namespace orrery::engine

#include "runtime/text/format/answer_parser.h"

#include <algorithm>
#include <utility>

#include "runtime/text/json/json.h"

namespace orrery::text::format {
namespace {

constexpr size_t kDead = SIZE_MAX;

bool is_bare_key(char c) { return grammar::is_bare_key_byte(c); }
// A word or a number as JSON has it.
std::string json_word(const std::string& word, const std::string (&words)[3]) {
  constexpr const char* kJson[3] = {"true", "false", "null"};
  for (size_t w = 0; w < 3; ++w)
    if (word == words[w]) return kJson[w];
  return word;
}
bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
std::string_view after_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text[0])) text.remove_prefix(1);
  return text;
}

// A text as it stands between the quotes of JSON.
std::string escaped(std::string_view text) {
  Result<std::string> json = dump_json(Value::string(std::string(text)));
  return json.ok() ? json->substr(1, json->size() - 2) : std::string();
}

}  // namespace

AnswerParser::AnswerParser(const AnswerRules& rules) : rules_(rules) {
  if (rules.calls() && rules.format.call) {
    trigger_ = rules.format.call->trigger();
    first_ = after_blanks(rules.format.call->first).substr(trigger_.size());
  }
  const ReasoningFormat& r = rules.format.reasoning;
  may_reason_ = r.known() && rules.may_reason;
  if (r.known() && (rules.reasons_first || (may_reason_ && r.open.empty()))) state_ = State::reasoning;
}

void AnswerParser::emit(Piece::Type type, std::string_view raw, std::string_view json, std::vector<Piece>* out) {
  if (raw.empty() && json.empty() && type != Piece::call_end && type != Piece::call) return;
  if (type == Piece::text) content_ += raw;
  if (type == Piece::reasoning) reasoning_ += raw;
  if (state_ >= State::literal) call_raw_ += raw;
  const size_t number = calls_.empty() ? 0 : calls_.size() - 1;
  if (!out->empty() && out->back().type == type && out->back().number == number && type != Piece::call && type != Piece::call_end) {
    out->back().raw += raw;
    out->back().json += json;
    return;
  }
  out->push_back({type, std::string(raw), std::string(json), number});
}

void AnswerParser::feed(std::string_view bytes, std::vector<Piece>* out) {
  for (const char c : bytes) byte(c, out);
}

void AnswerParser::byte(char c, std::vector<Piece>* out) {
  switch (state_) {
    case State::start:
    case State::after: held_ += c; return decide(false, out);
    case State::reasoning: return mark_text(c, rules_.format.reasoning.close, Piece::reasoning, State::after, out);
    case State::content:
      if (!rules_.format.content_open.empty()) return mark_text(c, rules_.format.content_close, Piece::text, State::content_end, out);
      return mark_text(c, trigger_, Piece::text, State::literal, out);
    case State::content_end: return emit(Piece::mark, {&c, 1}, {}, out);
    case State::done: return emit(Piece::text, {&c, 1}, {}, out);
    case State::literal: return match(c, out);
    case State::name:
    case State::id:
      if (is_name_byte(c)) {
        (state_ == State::name ? calls_.back().name : calls_.back().id) += c;
        held_ += c;
        return;
      }
      end_field(out);
      return byte(c, out);
    case State::json: return json_byte(c, out);
    case State::key:
    case State::string_value:
    case State::other_value: return raw_byte(c, out);
  }
}

// At the beginning, and after reasoning: what begins here? `last`: nothing follows.
void AnswerParser::decide(bool last, std::vector<Piece>* out) {
  const ChatFormat& f = rules_.format;
  const bool is_start = state_ == State::start;
  const std::string_view text = after_blanks(held_);
  const auto take_all = [&](Piece::Type type) {
    const std::string held = std::move(held_);
    held_.clear();
    emit(type, held, {}, out);
  };
  if (!last && text.empty() && held_.size() <= 8) return;
  bool wait = false;
  const auto is = [&](std::string_view mark) {
    if (mark.empty()) return false;
    if (begins(text, mark)) return true;
    wait = wait || (!last && begins(mark, text));
    return false;
  };
  if (is_start && may_reason_ && is(f.reasoning.open)) {
    take_all(Piece::mark);
    state_ = State::reasoning;
    return;
  }
  if (!is_start && is(f.reasoning.after)) {  // the next bytes decide whether content or a call follows
    take_all(Piece::mark);
    return;
  }
  if (is(f.content_open)) {
    take_all(Piece::mark);
    state_ = State::content;
    return;
  }
  if (rules_.calls() && f.call) {
    const std::string_view mark = trigger_.empty() ? std::string_view(first_) : std::string_view(trigger_);
    // A call without a mark: the grammar has content begin with another byte, or in a way of its own.
    const bool bare = trigger_.empty() && !text.empty() && (mark.empty() || text[0] == mark[0]) && !wait;
    if (bare || (!trigger_.empty() && is(mark))) {
      const std::string held = std::move(held_);
      held_.clear();
      const size_t blanks = held.size() - (text.size());
      state_ = State::literal;
      emit(Piece::mark, std::string_view(held).substr(0, blanks), {}, out);
      emit(Piece::mark, trigger_, {}, out);
      begin_call(out);
      for (const char c : std::string_view(held).substr(blanks + trigger_.size())) byte(c, out);
      return;
    }
  }
  if (wait) return;
  // Content. Blanks after reasoning belong to its end.
  const std::string held = std::move(held_);
  held_.clear();
  const size_t blanks = is_start ? 0 : held.size() - after_blanks(held).size();
  emit(Piece::mark, std::string_view(held).substr(0, blanks), {}, out);
  state_ = State::content;
  for (const char c : std::string_view(held).substr(blanks)) byte(c, out);
}

// A byte of free text that ends where `mark` begins.
void AnswerParser::mark_text(char c, std::string_view mark, Piece::Type type, State then, std::vector<Piece>* out) {
  held_ += c;
  if (mark.empty()) {
    emit(type, held_, {}, out);
    held_.clear();
    return;
  }
  if (begins(held_, mark)) {  // all of it: held_ is never longer
    held_.clear();
    state_ = then;
    emit(Piece::mark, mark, {}, out);
    if (then == State::literal) begin_call(out);
    return;
  }
  size_t keep = 0;  // from here on, held_ may begin the mark
  while (keep < held_.size() && !begins(mark, std::string_view(held_).substr(keep))) ++keep;
  const std::string free = held_.substr(0, keep);
  held_.erase(0, keep);
  emit(type, free, {}, out);
}

void AnswerParser::begin_call(std::vector<Piece>* out) {
  field_ = 0;
  expect({{first_, Branch::field}}, 0, out);
}

void AnswerParser::end_call(std::vector<Piece>* out) {
  calls_.back().whole = true;
  emit(Piece::call_end, {}, calls_.back().arguments, out);
  call_raw_.clear();
}

// The first `matched` bytes of each branch have been read.
void AnswerParser::expect(std::vector<Branch> branches, size_t matched, std::vector<Piece>* out) {
  branches_ = std::move(branches);
  at_.assign(branches_.size(), {matched, 0});
  state_ = State::literal;
  held_.clear();
  if (branches_.size() == 1 && branches_[0].text.size() == matched) take(branches_[0].then, out);
}

bool AnswerParser::is_string(const std::string& key) const {
  for (const Tool& tool : rules_.tools) {
    if (tool.name != calls_.back().name) continue;
    const auto known = tool.is_string.find(key);
    return known != tool.is_string.end() && known->second;
  }
  return false;
}

// A byte of a literal. Of several that may follow, those that go on with it remain; a literal that ends decides where no longer one goes
// on.
void AnswerParser::match(char c, std::vector<Piece>* out) {
  const auto ended = [&](size_t i) { return at_[i].first == branches_[i].text.size(); };
  const std::vector<std::pair<size_t, uint8_t>> before = at_;
  bool any = false;
  for (size_t i = 0; i < branches_.size(); ++i) {
    auto& [at, digits] = at_[i];
    if (at == kDead) continue;
    const std::string& text = branches_[i].text;
    if (at < text.size() && text[at] == kCounter && digits > 0 && !(c >= '0' && c <= '9')) ++at, digits = 0;
    if (at == text.size()) {
      at = kDead;
    } else if (text[at] == kCounter) {
      if (c >= '0' && c <= '9' && digits < 3) {
        ++digits;
        any = true;
      } else {
        at = kDead;
      }
    } else if (text[at] == c) {
      ++at;
      any = true;
    } else {
      at = kDead;
    }
  }
  if (!any) {  // the byte belongs to what follows a literal that had ended
    for (size_t i = 0; i < branches_.size(); ++i) {
      const std::string& text = branches_[i].text;
      const auto [at, digits] = before[i];
      const bool counted = at != kDead && at + 1 == text.size() && text.back() == kCounter && digits > 0;
      if (at != text.size() && !counted) continue;
      take(branches_[i].then, out);
      return byte(c, out);
    }
    emit(Piece::mark, {&c, 1}, {}, out);  // no text of the grammar
    return;
  }
  emit(Piece::mark, {&c, 1}, {}, out);
  size_t alive = 0, last = 0;
  for (size_t i = 0; i < branches_.size(); ++i)
    if (at_[i].first != kDead) ++alive, last = i;
  if (alive == 1 && ended(last)) take(branches_[last].then, out);
}

void AnswerParser::take(Branch::Then then, std::vector<Piece>* out) {
  switch (then) {
    case Branch::field: return begin_field(out);
    case Branch::next_call:
    case Branch::end:
      if (!calls_.back().whole) {  // tagged arguments end with what follows them
        give_json({}, any_key_ ? "}" : "{}", out);
        end_call(out);
      }
      state_ = State::done;
      if (then == Branch::end) return;
      field_ = 0;
      return begin_field(out);
    case Branch::first_key:
    case Branch::next_key:
      key_.clear();
      held_.clear();
      state_ = State::key;
      return;
    case Branch::value:
      held_.clear();
      closers_.clear();
      value_begun_ = value_is_json_ = false;
      state_ = is_string(key_) ? State::string_value : State::other_value;
      give_json({}, (any_key_ ? ", \"" : "{\"") + escaped(key_) + "\": " + (state_ == State::string_value ? "\"" : ""), out);
      any_key_ = true;
      return;
  }
}

void AnswerParser::begin_field(std::vector<Piece>* out) {
  if (field_ == 0) calls_.emplace_back();
  held_.clear();
  switch (format().fields[field_]) {
    case Field::name: state_ = State::name; return;
    case Field::id: state_ = State::id; return;
    case Field::arguments:
      depth_ = 0;
      in_string_ = escaped_ = any_key_ = false;
      if (!format().tagged) {
        state_ = State::json;
        return;
      }
      const TaggedFormat& t = *format().tagged;
      std::vector<Branch> branches = {{t.open, Branch::first_key}, {t.none + format().last, Branch::end}};
      if (format().many && rules_.many) branches.push_back({t.none + format().next, Branch::next_call});
      return expect(std::move(branches), 0, out);
  }
}

// A field is complete: what follows it?
void AnswerParser::end_field(std::vector<Piece>* out) {
  const Field field = format().fields[field_];
  if (field == Field::name) {
    emit(Piece::call, held_, {}, out);
  } else if (field == Field::id) {
    emit(Piece::mark, held_, {}, out);
  }
  held_.clear();
  if (++field_ < format().fields.size()) {
    return expect({{format().between[field_ - 1], Branch::field}}, 0, out);
  }
  end_call(out);
  std::vector<Branch> branches = {{format().last, Branch::end}};
  if (format().many && rules_.many) branches.push_back({format().next, Branch::next_call});
  expect(std::move(branches), 0, out);
}

void AnswerParser::give_json(std::string_view raw, std::string_view json, std::vector<Piece>* out) {
  calls_.back().arguments += json;
  emit(Piece::arguments, raw, json, out);
}

void AnswerParser::json_byte(char c, std::vector<Piece>* out) {
  give_json({&c, 1}, {&c, 1}, out);
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
    return;
  }
  if (c == '"') in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  if ((c == '}' || c == ']') && --depth_ == 0) {
    if (state_ == State::json) return end_field(out);
    after_value(0, out);
  }
}

// A byte of a list or an object that is not JSON. What it stands for leaves as JSON at once.
void AnswerParser::noted_byte(char c, std::vector<Piece>* out) {
  const TaggedFormat& t = *format().tagged;
  const bool python = notation_ == grammar::Notation::python, in_object = !closers_.empty() && closers_.back() == '}';
  switch (place_) {
    case Place::string: return noted_string(c, out);
    case Place::open:
      held_ += c;
      if (held_.size() < t.bare.open.size()) return;
      give_json(std::exchange(held_, {}), "\"", out);
      place_ = Place::string;
      return;
    case Place::word:
      if (is_name_byte(c) || c == '+') {
        held_ += c;
        return;
      }
      give_json(held_, json_word(held_, t.words), out);
      held_.clear();
      place_ = Place::after;
      return noted_byte(c, out);
    case Place::key:
      if (is_blank(c)) return give_json({&c, 1}, {}, out);
      if (python && (c == '\'' || c == '"')) return noted_value(c, out);
      if (!python && is_bare_key(c)) {
        held_ += c;
        return;
      }
      if (c == ':') {  // in Python's notation its string has been given
        const std::string raw = std::exchange(held_, {}) + c;
        give_json(raw, python ? ": " : "\"" + escaped(std::string_view(raw).substr(0, raw.size() - 1)) + "\": ", out);
        place_ = Place::value;
        return;
      }
      place_ = Place::after;
      return noted_byte(c, out);
    case Place::value: return noted_value(c, out);
    case Place::after: break;
  }
  if (c == ',') {
    give_json({&c, 1}, ", ", out);
    place_ = in_object ? Place::key : Place::value;
    is_key_ = in_object;
    return;
  }
  if (c == ']' || c == '}') {
    give_json({&c, 1}, {&c, 1}, out);
    if (!closers_.empty()) closers_.pop_back();
    if (closers_.empty()) after_value(0, out);
    return;
  }
  give_json({&c, 1}, {}, out);  // blanks
}

void AnswerParser::noted_value(char c, std::vector<Piece>* out) {
  const TaggedFormat& t = *format().tagged;
  if (c == '{' || c == '[') {
    give_json({&c, 1}, {&c, 1}, out);
    closers_ += c == '{' ? '}' : ']';
    place_ = c == '{' ? Place::key : Place::value;
    is_key_ = c == '{';
    return;
  }
  if (notation_ == grammar::Notation::bare && c == t.bare.open[0]) {
    place_ = Place::open;
    return noted_byte(c, out);
  }
  if (notation_ == grammar::Notation::python && (c == '\'' || c == '"')) {
    quote_ = c;
    escaped_ = false;
    place_ = Place::string;
    return give_json({&c, 1}, "\"", out);
  }
  if (is_blank(c)) return give_json({&c, 1}, {}, out);
  place_ = is_name_byte(c) || c == '+' ? Place::word : Place::after;
  noted_byte(c, out);
}

void AnswerParser::noted_string(char c, std::vector<Piece>* out) {
  const Place after = is_key_ ? Place::key : Place::after;
  if (notation_ == grammar::Notation::python) {
    if (escaped_) {
      escaped_ = false;
      const char plain = c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c;
      const std::string raw = std::exchange(held_, {}) + c;
      return give_json(raw, escaped({&plain, 1}), out);
    }
    if (c == '\\') {
      escaped_ = true;
      held_ = c;
      return;
    }
    if (c != quote_) return give_json({&c, 1}, escaped({&c, 1}), out);
    give_json({&c, 1}, "\"", out);
    place_ = after;
    is_key_ = false;
    return;
  }
  const std::string& close = format().tagged->bare.close;
  held_ += c;
  if (begins(held_, close)) {
    give_json(std::exchange(held_, {}), "\"", out);
    place_ = after;
    return;
  }
  size_t keep = 0;
  while (keep < held_.size() && !begins(close, std::string_view(held_).substr(keep))) ++keep;
  const std::string free = held_.substr(0, keep);
  held_.erase(0, keep);
  if (!free.empty()) give_json(free, escaped(free), out);
}

// Keys, raw strings, and other values of tagged arguments.
void AnswerParser::raw_byte(char c, std::vector<Piece>* out) {
  const TaggedFormat& t = *format().tagged;
  if (state_ == State::other_value) {
    if (!value_begun_ && (c == '{' || c == '[')) {
      notation_ = c == '[' ? t.lists : t.objects;
      value_is_json_ = true;
      place_ = Place::value;
    }
    value_begun_ = true;
    if (value_is_json_) return notation_ == grammar::Notation::json ? json_byte(c, out) : noted_byte(c, out);
    if (is_name_byte(c) || c == '+') {
      held_ += c;
      return;
    }
    const std::string scalar = std::move(held_);
    held_.clear();
    give_json(scalar, json_word(scalar, t.words), out);
    after_value(0, out);
    return byte(c, out);
  }
  const std::string mark = state_ == State::key ? std::string(t.key_end()) : t.string_end;  // a key ends where its value's text begins
  held_ += c;
  if (begins(held_, mark)) {
    if (state_ == State::key) {
      emit(Piece::mark, held_, {}, out);
      return expect({{t.to_value[is_string(key_) ? 0 : 1], Branch::value}}, mark.size(), out);
    }
    give_json(held_, "\"", out);
    return after_value(mark.size(), out);
  }
  size_t keep = 0;
  while (keep < held_.size() && !begins(mark, std::string_view(held_).substr(keep))) ++keep;
  const std::string free = held_.substr(0, keep);
  held_.erase(0, keep);
  if (free.empty()) return;
  if (state_ == State::key) {
    key_ += free;
    emit(Piece::mark, free, {}, out);
  } else {
    give_json(free, escaped(free), out);
  }
}

// A value of tagged arguments is complete, and the first `matched` bytes of what follows it have been read.
void AnswerParser::after_value(size_t matched, std::vector<Piece>* out) {
  const TaggedFormat& t = *format().tagged;
  const std::string& close = t.close[matched > 0 ? 0 : 1];
  std::vector<Branch> branches = {{close + t.next_key, Branch::next_key}, {close + t.end + format().last, Branch::end}};
  if (format().many && rules_.many) branches.push_back({close + t.end + format().next, Branch::next_call});
  expect(std::move(branches), matched, out);
}

void AnswerParser::finish(std::vector<Piece>* out) {
  if (state_ == State::start || state_ == State::after) {
    const Piece::Type type = state_ == State::start ? Piece::text : Piece::mark;
    emit(type, held_, {}, out);
  } else if (state_ == State::reasoning) {
    emit(Piece::reasoning, held_, {}, out);
  } else if (state_ == State::content) {
    emit(Piece::text, held_, {}, out);
  } else if (state_ == State::literal) {  // a literal that had ended, before a longer one
    for (size_t i = 0; i < branches_.size() && state_ == State::literal; ++i)
      if (at_[i].first == branches_[i].text.size()) take(branches_[i].then, out);
  } else if (state_ != State::done) {
    emit(Piece::mark, held_, {}, out);
  }
  held_.clear();
}

}  // namespace orrery::text::format

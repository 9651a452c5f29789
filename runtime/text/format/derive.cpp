// A chat template's format, by probes. Words that no template contains stand for names, keys, values and ids; where they appear in a
// rendering, and what lies between them, is the format. Two renderings that differ in one thing show what belongs to it. At last print()
// must give every rendering back.
#include <algorithm>
#include <array>

#include "runtime/text/format/format.h"
#include "runtime/text/json/json.h"

namespace orrery::text::format {
namespace {

constexpr const char* kNames[3] = {"aqfirst", "zvsecond", "mwthird"};
constexpr const char* kKeys[3] = {"bkeyone", "ykeytwo", "akeythree"};
constexpr const char* kUpperKey = "Ykeyupper";  // behind the others, but before them by its bytes
constexpr const char* kValues[3] = {"cvalueone", "xvaluetwo", "lvaluethree"};
constexpr const char* kIds[3] = {"probe0001", "probe0002", "probe0003"};
constexpr const char *kContent = "dcontent", *kThought = "wthought";

size_t common_prefix(std::string_view a, std::string_view b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}
size_t common_suffix(std::string_view a, std::string_view b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  return n;
}
bool ends(std::string_view text, std::string_view with) {
  return text.size() >= with.size() && text.substr(text.size() - with.size()) == with;
}
std::string_view without_blanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \n\r\t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \n\r\t") - begin + 1);
}

// The part of `text` of length `n` that ends with no tag begun: "</a><b" becomes "</a>".
size_t whole_tags(std::string_view text, size_t n) {
  const size_t open = text.substr(0, n).rfind('<'), close = text.substr(0, n).rfind('>');
  return open != std::string_view::npos && (close == std::string_view::npos || close < open) && n < text.size() ? open : n;
}
// "<a>" and "</a>", or marks that say START and END.
bool are_marks(std::string_view open, std::string_view close) {
  if (open.empty() || close.empty() || open == close) return false;
  if (close == std::string(1, open[0]) + "/" + std::string(open.substr(1))) return true;
  const size_t at = open.find("START");
  return at != std::string_view::npos && close == std::string(open).replace(at, 5, "END");
}

Value arguments_of(std::initializer_list<std::pair<const char*, Value>> entries) {
  Map map;
  for (const auto& [key, value] : entries) map.set(key, value);
  return Value::map(std::move(map));
}
Value text_value(const char* text) { return Value::string(text); }

// How a template wants its messages: templates take arguments as an object or as JSON text, and content as text or as none.
struct Shape {
  bool text_arguments, null_content, short_id;
};

class Prober {
 public:
  Prober(const ChatTemplate& chat_template, const ChatOptions& options) : template_(chat_template), options_(options) {
    options_.limits.max_output_bytes = 1u << 18;  // all probes together take at most seconds, whatever the template
    options_.limits.max_steps = 1'000'000;
    options_.limits.max_work_bytes = 32u << 20;
    std::vector<Value> tools;
    for (const char* name : kNames) {
      Map properties;
      for (const char* key : kKeys)
        properties.set(key, arguments_of({{"type", text_value("string")}, {"description", text_value("some")}}));
      Map function;
      function.set("name", text_value(name));
      function.set("description", text_value("does"));
      function.set(
          "parameters",
          arguments_of({{"type", text_value("object")}, {"properties", Value::map(std::move(properties))}, {"required", Value::list({})}}));
      tools.push_back(arguments_of({{"type", text_value("function")}, {"function", Value::map(std::move(function))}}));
    }
    tools_ = Value::list(std::move(tools));
    options_.tools = &tools_;
  }

  // Firefunction's names for tools and time.
  void use_variables() {
    Map more = options_.extra != nullptr ? options_.extra->as_map() : Map();
    for (const char* name : {"functions", "datetime"})
      if (more.find(name) == nullptr) more.set(name, text_value(""));
    variables_ = Value::map(std::move(more));
    options_.extra = &variables_;
  }
  void use_tools(bool use) { options_.tools = use ? &tools_ : nullptr; }

  // The question alone: with the generation prompt, and without.
  Result<std::string> question(bool generation_prompt) const {
    options_.add_generation_prompt = generation_prompt;
    ORRERY_ASSIGN(const Text text, render_chat(template_, Value::list({question_message()}), options_));
    return text.bytes();
  }
  // The question and an answer: what the template adds to the question.
  std::optional<std::string> answer(const char* content, const char* thought, const std::vector<Call>& calls, const Shape& shape) const {
    Map message;
    message.set("role", Value::literal("assistant"));
    if (*content == '\0' && shape.null_content) {
      message.set("content", Value::none());
    } else {
      message.set("content", text_value(content));
    }
    if (thought != nullptr) {
      message.set("reasoning_content", text_value(thought));
      message.set("thinking", text_value(thought));
      message.set("reasoning", text_value(thought));
    }
    std::vector<Value> list;
    for (const Call& call : calls) {
      Map function;
      function.set("name", text_value(call.name.c_str()));
      Value arguments = call.arguments;
      if (shape.text_arguments) {
        Result<std::string> json = dump_json(arguments);
        if (!json.ok()) return std::nullopt;
        arguments = Value::string(*json);
      }
      function.set("arguments", std::move(arguments));
      list.push_back(arguments_of({{"type", text_value("function")},
                                   {"id", Value::string(shape.short_id ? call.id.substr(6) : call.id)},
                                   {"function", Value::map(std::move(function))}}));
    }
    if (!calls.empty()) message.set("tool_calls", Value::list(std::move(list)));
    options_.add_generation_prompt = false;
    Result<Text> text = render_chat(template_, Value::list({question_message(), Value::map(std::move(message))}), options_);
    if (!text.ok()) {
      failure_ = text.status().message();
      return std::nullopt;
    }
    return text->bytes();
  }
  const std::string& failure() const { return failure_; }

 private:
  static Value question_message() { return arguments_of({{"role", Value::literal("user")}, {"content", text_value("question")}}); }
  const ChatTemplate& template_;
  mutable ChatOptions options_;
  Value tools_, variables_;
  mutable std::string failure_;
};

// What all that may follow a string begins with: its first tag, or all of it.
std::string string_end(const TaggedFormat& t, const CallFormat& f) {
  const std::string key = t.close[0] + t.next_key, end = t.close[0] + t.end;
  std::string_view same = std::string_view(key).substr(0, common_prefix(key, end + f.last));
  if (f.many) same = same.substr(0, common_prefix(same, end + f.next));
  const size_t begin = same.find_first_not_of(" \n");
  if (begin == std::string_view::npos) return std::string(same);
  const size_t tag = same[begin] == '<' || same[begin] == '[' ? same.find(same[begin] == '<' ? '>' : ']', begin) : std::string_view::npos;
  return std::string(same.substr(0, tag == std::string_view::npos ? same.size() : tag + 1));
}

struct Probe {
  const char* content;
  const char* thought;
  std::vector<Call> calls;
};

class Deriver {
 public:
  Deriver(const ChatTemplate& chat_template, const ChatOptions& options) : prober_(chat_template, options) {}

  Result<ChatFormat> run(std::string_view source) {
    ORRERY_TRY(frame());
    format_.source = kFromProbes;
    reasoning();
    if (!format_.reasoning.known()) format_.reasoning = known_reasoning(source);
    settle_header();
    const std::string_view before =
        without_reasoning(std::string_view(before_content_).substr(std::min(before_content_.size(), header_.size())));
    // A template whose prompt for an answer is not how its answers begin shows nothing about content.
    if (!without_blanks(before).empty() && begins(before_content_, prompt_))
      format_.content_open = before, format_.content_close = turn_end_;
    std::string first_reason;
    for (const Shape& shape :
         {Shape{false, false, false}, Shape{true, false, false}, Shape{false, true, false}, Shape{true, true, false}}) {
      std::string reason;
      std::optional<CallFormat> call = calls(shape, &reason);
      if (call) {
        format_.call = std::move(call);
        return format_;
      }
      const bool refuses_null = shape.null_content && begins(reason, kRefuses);  // not calls, but content that is null
      if (first_reason.empty() || (first_reason == kNoCalls && reason != kNoCalls && !refuses_null)) first_reason = reason;
    }
    if (const KnownFormat* known = known_format(source)) {
      format_.call = known->call();
      if (format_.call->tagged) format_.call->tagged->string_end = string_end(*format_.call->tagged, *format_.call);
      format_.source = known->name;
    } else {
      format_.why_none = first_reason;
    }
    return format_;
  }

 private:
  static constexpr const char* kNoCalls = "the chat template prints no calls of tools";
  static constexpr const char* kRefuses = "the chat template refuses calls: ";

  // What stands before an answer, and what the template asks the model with.
  Status frame() {
    Result<std::string> base = prober_.question(false);
    if (!base.ok()) {  // not with tools, or not without names that callers give as variables
      prober_.use_tools(false);
      base = prober_.question(false);
    }
    if (!base.ok()) {
      prober_.use_variables();
      base = prober_.question(false);
      if (!base.ok()) return base.take_status();
    }
    base_ = *base;
    ORRERY_ASSIGN(const std::string asked, prober_.question(true));
    const size_t n = common_prefix(base_, asked);
    prompt_ = asked.substr(n);
    format_.prompt_end = prompt_;
    cut_base_ = n;
    const Shape plain{};
    if (const auto text = prober_.answer(kContent, nullptr, {}, plain); text && begins(*text, base_.substr(0, n))) {
      const std::string_view body = std::string_view(*text).substr(n);
      const size_t at = body.find(kContent);
      if (at != std::string_view::npos) {
        header_ = body.substr(0, whole_tags(body, common_prefix(body.substr(0, at), prompt_)));
        before_content_ = body.substr(0, at);
        turn_end_ = body.substr(at + std::string_view(kContent).size());
      }
    }
    return ok_status();
  }

  // The tag that a text ends with, or begins with.
  static std::string last_tag(std::string_view text) {
    text = without_blanks(text);
    if (text.empty() || (text.back() != '>' && text.back() != ']')) return {};
    const size_t at = text.rfind(text.back() == '>' ? '<' : '[');
    return at == std::string_view::npos ? std::string() : std::string(text.substr(at));
  }
  static std::string first_tag(std::string_view text) {
    text = without_blanks(text);
    if (text.empty() || (text[0] != '<' && text[0] != '[')) return {};
    const size_t at = text.find(text[0] == '<' ? '>' : ']');
    return at == std::string_view::npos ? std::string() : std::string(text.substr(0, at + 1));
  }

  void reasoning() {
    const auto text = prober_.answer(kContent, kThought, {}, Shape{});
    if (!text || text->size() < cut_base_) return;
    const std::string_view body = std::string_view(*text).substr(cut_base_);
    const size_t at = body.find(kThought), content = body.find(kContent);
    if (at == std::string_view::npos || content == std::string_view::npos || content < at) return;
    const size_t after = at + std::string_view(kThought).size();
    std::string open = last_tag(body.substr(0, at)), close = first_tag(body.substr(after, content - after));
    if (!are_marks(open, close)) return;
    format_.reasoning.open = std::move(open);
    format_.reasoning.close = std::move(close);
  }

  // The generation prompt may open the reasoning, or close an empty one: that is no part of what stands before each answer.
  void settle_header() {
    const ReasoningFormat& r = format_.reasoning;
    if (!r.known()) return;
    if (const size_t at = header_.find(r.open); at != std::string::npos) header_.resize(at);
    while (!header_.empty() && before_content_.size() > header_.size() && header_.back() == '\n' && !begins(prompt_, header_))
      header_.pop_back();
  }

  // Cuts reasoning that is empty off the beginning of an answer, with the blanks around it.
  std::string_view without_reasoning(std::string_view answer) const {
    const ReasoningFormat& r = format_.reasoning;
    if (!r.known()) return answer;
    const size_t open = answer.find_first_not_of(" \n");
    std::string_view rest = answer;
    if (open == std::string_view::npos) return answer;
    if (begins(rest.substr(open), r.open)) rest.remove_prefix(open + r.open.size());
    const size_t close = rest.find_first_not_of(" \n");
    if (close == std::string_view::npos || !begins(rest.substr(close), r.close)) return answer;
    rest.remove_prefix(close + r.close.size());
    const size_t blanks = rest.find_first_not_of(" \n");
    return rest.substr(blanks == std::string_view::npos ? rest.size() : blanks);
  }

  // An answer between what stands before it and the end of its turn.
  std::optional<std::string> body(const Probe& probe, const Shape& shape) {
    const auto text = prober_.answer(probe.content, probe.thought, probe.calls, shape);
    if (!text || text->size() < cut_base_ || std::string_view(*text).substr(0, cut_base_) != std::string_view(base_).substr(0, cut_base_))
      return std::nullopt;
    std::string_view rest = std::string_view(*text).substr(cut_base_);
    if (!begins(rest, header_)) return std::nullopt;
    rest.remove_prefix(header_.size());
    rest = without_reasoning(rest);
    return std::string(rest);
  }

  static Call call_of(size_t i, Value arguments) { return {kNames[i], kIds[i], std::move(arguments)}; }
  static Value one_argument(size_t i) { return arguments_of({{kKeys[i], text_value(kValues[i])}}); }

  std::optional<CallFormat> calls(const Shape& shape, std::string* why) {
    CallFormat f;
    f.text_arguments = shape.text_arguments;
    const auto one = body({"", nullptr, {call_of(0, one_argument(0))}}, shape);
    if (!one) {
      *why = prober_.failure().empty() ? kNoCalls : kRefuses + prober_.failure();
      return std::nullopt;
    }
    const size_t name = one->find(kNames[0]), key = one->find(kKeys[0]), value = one->find(kValues[0]), id = one->find(kIds[0]);
    if (key == std::string::npos || value == std::string::npos || (name == std::string::npos && id == std::string::npos)) {
      *why = kNoCalls;
      return std::nullopt;
    }
    if (name == std::string::npos) {
      *why = "the chat template prints a call without its name";
      return std::nullopt;
    }
    struct Place {
      Field field;
      size_t begin, end;
    };
    std::vector<Place> places = {{Field::name, name, name + std::string_view(kNames[0]).size()}};
    if (id != std::string::npos) places.push_back({Field::id, id, id + std::string_view(kIds[0]).size()});
    // JSON arguments, or a key and a value apart.
    bool json = false;
    for (const bool compact : {false, true}) {
      const std::string text = std::string("{\"") + kKeys[0] + (compact ? "\":\"" : "\": \"") + kValues[0] + "\"}";
      const size_t at = one->find(text);
      if (at == std::string::npos) continue;
      json = true;
      f.compact = compact;
      places.push_back({Field::arguments, at, at + text.size()});
      break;
    }
    if (!json) places.push_back({Field::arguments, key, value + std::string_view(kValues[0]).size()});
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
    for (size_t i = 0; i < places.size(); ++i) {
      f.fields.push_back(places[i].field);
      if (i > 0 && places[i].begin < places[i - 1].end) {
        *why = "the parts of a call overlap in the chat template's text";
        return std::nullopt;
      }
      if (i > 0) f.between.push_back(one->substr(places[i - 1].end, places[i].begin - places[i - 1].end));
    }
    const auto at = [&](Field field) { return std::find(f.fields.begin(), f.fields.end(), field); };
    if (at(Field::arguments) < at(Field::name) || (!json && f.fields.back() != Field::arguments)) {
      *why = "the chat template prints a call's name or id after its arguments";
      return std::nullopt;
    }
    f.first = one->substr(0, places[0].begin);
    std::string_view rest = std::string_view(*one).substr(places.back().end);
    f.last = rest;
    if (!cut_turn_end(&f.last)) {
      *why = "the chat template ends a turn with calls in another way than one without";
      return std::nullopt;
    }
    const auto two = body({"", nullptr, {call_of(0, one_argument(0)), call_of(1, one_argument(1))}}, shape);
    if (two) several(*two, shape, &f);
    if (!json && !tagged(*one, shape, &f, why)) return std::nullopt;
    if (const auto both = body({kContent, nullptr, {call_of(0, one_argument(0))}}, shape)) {
      const size_t content = both->find(kContent), first = both->find(places[0].field == Field::name ? kNames[0] : kIds[0]);
      if (content == 0 && first != std::string::npos) {
        f.after_content = both->substr(std::string_view(kContent).size(), first - std::string_view(kContent).size());
        f.with_content = !f.trigger().empty();
      }
    }
    if (std::find(f.fields.begin(), f.fields.end(), Field::id) != f.fields.end()) {
      Shape short_ids = shape;
      short_ids.short_id = true;
      if (!body({"", nullptr, {call_of(0, one_argument(0))}}, short_ids))
        f.id_length = static_cast<uint32_t>(std::string_view(kIds[0]).size());
    }
    if (!readable(f, why) || !proved(shape, &f, why)) return std::nullopt;
    return f;
  }

  // Where a name or an id ends is seen by the byte behind it.
  static bool readable(const CallFormat& f, std::string* why) {
    for (size_t i = 0; i + 1 < f.fields.size(); ++i) {
      const std::string& behind = f.tagged && f.fields[i + 1] == Field::arguments ? f.tagged->open : f.between[i];
      const bool is_json = f.fields[i + 1] == Field::arguments && !f.tagged;  // which begins with a brace
      if (f.fields[i] == Field::arguments || (behind.empty() ? is_json : !is_name_byte(behind[0]))) continue;
      *why = "the chat template prints a name or an id without an end";
      return false;
    }
    return true;
  }

  bool cut_turn_end(std::string* last) const {
    if (ends(*last, turn_end_)) {
      last->resize(last->size() - turn_end_.size());
      return true;
    }
    const std::string_view blanks = without_blanks(turn_end_);
    if (!blanks.empty() && ends(without_blanks(*last), blanks)) {
      last->resize(last->rfind(blanks));
      return true;
    }
    return true;  // another end of turn: it stays, and the grammar ends where an end of generation stands
  }

  // Where each call ends and the next one begins. Texts that count the calls get kCounter.
  void several(const std::string& two, const Shape& shape, CallFormat* f) {
    const auto first_of = [&](const std::string& text, size_t i) { return text.find(f->fields[0] == Field::name ? kNames[i] : kIds[i]); };
    const auto end_of = [&](const std::string& text, size_t i) -> size_t {
      if (f->fields.back() == Field::id) return text.find(kIds[i]) + std::string_view(kIds[i]).size();
      const size_t value = text.find(kValues[i]);
      if (value == std::string::npos) return std::string::npos;
      const size_t end = value + std::string_view(kValues[i]).size();
      const bool json =
          begins(std::string_view(text).substr(end), "\"}") && text.rfind(std::string("{\"") + kKeys[i], value) != std::string::npos;
      return end + (json ? 2 : 0);
    };
    const size_t end = end_of(two, 0), next = first_of(two, 1);
    if (end == std::string::npos || next == std::string::npos || next < end) return;
    f->next = two.substr(end, next - end);
    f->many = true;
    // Numbers: 0 in the first call's texts, 1 before the second, 2 before the third.
    const auto three = body({"", nullptr, {call_of(0, one_argument(0)), call_of(1, one_argument(1)), call_of(2, one_argument(2))}}, shape);
    if (!three) return;
    const size_t end2 = end_of(*three, 1), next3 = first_of(*three, 2);
    if (end2 == std::string::npos || next3 == std::string::npos || next3 < end2) return;
    const std::string third = three->substr(end2, next3 - end2);
    count_between(two, f);
    if (third == f->next || third.size() != f->next.size()) return;
    for (size_t i = 0; i < third.size(); ++i)
      if (f->next[i] == '1' && third[i] == '2') f->next[i] = kCounter;
    const std::string_view around = f->next;
    const size_t at = around.rfind(kCounter);
    if (at == std::string_view::npos) return;
    const std::string zero = "0" + std::string(around.substr(at + 1));
    if (ends(f->first, zero)) f->first[f->first.size() - zero.size()] = kCounter;
  }

  // Between the fields of a call: 0 in the first call, 1 in the second.
  static void count_between(const std::string& two, CallFormat* f) {
    size_t at = two.find(f->fields[0] == Field::name ? kNames[1] : kIds[1]);
    for (size_t i = 0; i < f->between.size() && at != std::string::npos; ++i) {
      std::string& between = f->between[i];
      if (f->fields[i] == Field::arguments) return;
      at += std::string_view(f->fields[i] == Field::name ? kNames[1] : kIds[1]).size();
      for (size_t b = 0; b < between.size() && at + b < two.size(); ++b)
        if (between[b] == '0' && two[at + b] == '1') between[b] = kCounter;
      at += between.size();
    }
  }

  // Keys and values that stand apart: what stands around them, of strings and of other values.
  bool tagged(const std::string& one, const Shape& shape, CallFormat* f, std::string* why) {
    TaggedFormat t;
    *why = "the chat template writes arguments in a notation that probes do not show";
    const std::string_view key0 = kKeys[0], value0 = kValues[0];
    const auto pair =
        body({"", nullptr, {call_of(0, arguments_of({{kKeys[0], text_value(kValues[0])}, {kKeys[1], text_value(kValues[1])}}))}}, shape);
    const auto mixed =
        body({"", nullptr, {call_of(0, arguments_of({{kKeys[0], Value::integer(7357)}, {kKeys[1], text_value(kValues[1])}}))}}, shape);
    const auto number = body({"", nullptr, {call_of(0, arguments_of({{kKeys[0], Value::integer(7357)}}))}}, shape);
    const auto none = body({"", nullptr, {call_of(0, arguments_of({}))}}, shape);
    if (!pair || !mixed || !number || !none) return false;
    const size_t key = one.find(key0), value = one.find(value0);
    const size_t n_key = number->find(key0), n_value = number->find("7357");
    const size_t name_end = one.find(kNames[0]) + std::string_view(kNames[0]).size();
    if (n_key == std::string::npos || n_value == std::string::npos || n_value < n_key || key != n_key) return false;
    t.open = one.substr(name_end, key - name_end);
    t.to_value[0] = one.substr(key + key0.size(), value - key - key0.size());
    t.to_value[1] = number->substr(key + key0.size(), n_value - key - key0.size());
    const size_t p_value = pair->find(value0), p_key = pair->find(kKeys[1]), m_key = mixed->find(kKeys[1]), m_value = mixed->find("7357");
    for (const size_t found : {p_value, p_key, m_key, m_value})
      if (found == std::string::npos) return false;
    if (p_key < p_value || m_key < m_value) return false;
    const std::string strings = pair->substr(p_value + value0.size(), p_key - p_value - value0.size()),
                      others = mixed->substr(m_value + 4, m_key - m_value - 4);
    // After the last value, and without arguments, to the end of the turn.
    std::string last[2] = {one.substr(value + value0.size()), number->substr(n_value + 4)};
    std::string last_none = none->substr(std::min(none->size(), none->find(kNames[0]) + std::string_view(kNames[0]).size()));
    if (!cut_turn_end(&last[0]) || !cut_turn_end(&last[1]) || !cut_turn_end(&last_none)) return false;
    // What ends a value: of the two kinds, what differs; it is followed by the next key and by the end alike.
    const size_t same = std::min(common_suffix(strings, others), common_suffix(last[0], last[1]));
    const size_t shared = std::min(common_prefix(strings, last[0]), common_prefix(others, last[1]));
    if (strings == others && last[0] == last[1]) {
      t.close[0] = t.close[1] = strings.substr(0, whole_tags(strings, shared));
    } else {
      t.close[0] = strings.substr(0, strings.size() - std::min(strings.size(), common_suffix(strings, others)));
      t.close[1] = others.substr(0, others.size() - std::min(others.size(), common_suffix(strings, others)));
      if (same == 0 || !begins(last[0], t.close[0]) || !begins(last[1], t.close[1])) return false;
    }
    t.next_key = strings.substr(t.close[0].size());
    const std::string rest = last[0].substr(t.close[0].size());
    const size_t tail = common_suffix(rest, last_none);
    t.end = rest.substr(0, rest.size() - tail);
    t.none = last_none.substr(0, last_none.size() - tail);
    f->last = rest.substr(rest.size() - tail);
    if (f->many) {
      const std::string before = t.close[0] + t.end;
      if (!begins(f->next, before)) {
        f->many = false;
      } else {
        f->next = f->next.substr(before.size());
      }
    }
    t.string_end = string_end(t, *f);
    if (t.string_end.empty()) {
      *why = "nothing in the chat template's text ends a string of a call";
      return false;
    }
    // Order of keys; words; lists.
    const auto order =
        body({"", nullptr, {call_of(0, arguments_of({{kKeys[1], text_value(kValues[1])}, {kKeys[0], text_value(kValues[0])}}))}}, shape);
    if (order && order->find(kKeys[0]) < order->find(kKeys[1])) {
      const auto upper =
          body({"", nullptr, {call_of(0, arguments_of({{kUpperKey, text_value(kValues[1])}, {kKeys[0], text_value(kValues[0])}}))}}, shape);
      t.order = upper && upper->find(kKeys[0]) < upper->find(kUpperKey) ? KeyOrder::letters : KeyOrder::bytes;
    }
    const Value words[3] = {Value::boolean(true), Value::boolean(false), Value::none()};
    const std::string_view guesses[3][2] = {{"true", "True"}, {"false", "False"}, {"null", "None"}};
    for (size_t w = 0; w < 3; ++w) {
      t.words[w] = guesses[w][0];
      const auto text = body({"", nullptr, {call_of(0, arguments_of({{kKeys[0], words[w]}}))}}, shape);
      if (!text) continue;
      for (const std::string_view guess : guesses[w])
        if (text->find(t.to_value[1] + std::string(guess) + t.close[1]) != std::string::npos) t.words[w] = guess;
    }
    f->between.back().clear();
    f->tagged = std::move(t);
    why->clear();
    return true;
  }

  // Lists and objects in one another, with what notations write in ways of their own.
  static Value deep_lists() {
    const Value texts = Value::list({text_value("it's"), text_value("a \"b\""), text_value("\xC3\xA9\n\t\\ <c>"), Value::none(),
                                     Value::boolean(false), Value::floating(2.5)});
    const Value inner =
        arguments_of({{kKeys[1], texts}, {kUpperKey, arguments_of({})}, {kKeys[0], Value::list({})}, {kKeys[2], Value::integer(-3)}});
    const Value in_object = arguments_of({{kKeys[0], inner}, {kKeys[1], Value::list({inner, texts})}});
    return arguments_of({{kKeys[0], Value::list({texts, inner, Value::list({inner})})}, {kKeys[1], in_object}});
  }

  // How tagged arguments have lists and objects written: as JSON, in marks like those of other strings, as Python has them, or not at all.
  template <class Simple, class Deep>
  static void find_notation(const Simple& simple, const Deep& deep, CallFormat* f) {
    TaggedFormat& t = *f->tagged;
    const auto is = [&](Notation lists, Notation objects, bool compact) {
      t.lists = lists, t.objects = objects, f->compact = compact;
      return simple() && ((lists == Notation::json && objects == Notation::json) || deep());
    };
    if (is(Notation::json, Notation::json, false) || is(Notation::json, Notation::json, true)) return;
    const std::string_view value = t.to_value[0], close = t.close[0];
    if (begins(value, t.to_value[1]) && value.size() > t.to_value[1].size() && ends(close, t.close[1]) &&
        close.size() > t.close[1].size()) {
      t.bare.open = value.substr(t.to_value[1].size());
      t.bare.close = close.substr(0, close.size() - t.close[1].size());
      for (const bool spaced : {false, true}) {
        t.bare.comma = spaced ? ", " : ",", t.bare.colon = spaced ? ": " : ":";
        if (is(Notation::bare, Notation::bare, false)) return;
      }
      t.bare = BareMarks();
    }
    if (is(Notation::python, Notation::json, false) || is(Notation::python, Notation::python, false)) return;
    is(Notation::none, Notation::none, false);
  }

  // Every rendering, printed back. What a template does not print alike is left out of its format where a format can do without.
  bool proved(const Shape& shape, CallFormat* f, std::string* why) {
    const auto same = [&](const Probe& probe) {
      const auto text = body(probe, shape);
      if (!text) {
        difference_ = "the template refuses it: " + prober_.failure();
        return false;
      }
      Result<std::string> printed = print(*f, probe.calls, probe.content);
      if (!printed.ok()) return false;
      std::string_view rendered = *text;
      if (ends(rendered, turn_end_)) {
        rendered.remove_suffix(turn_end_.size());
      } else {  // ends that differ in blanks alone
        std::string whole(rendered);
        if (cut_turn_end(&whole)) rendered = rendered.substr(0, whole.size());
      }
      if (rendered == *printed) return true;
      const size_t n = common_prefix(rendered, *printed);
      const std::string before(rendered.substr(n < 20 ? 0 : n - 20, std::min<size_t>(n, 20))), there(rendered.substr(n, 30));
      difference_ = "after '" + before + "' the template prints '" + there + "', the format '" + printed->substr(n, 30) + "'";
      return false;
    };
    const Value rich = arguments_of(
        {{kKeys[2], Value::boolean(true)}, {kKeys[0], text_value("it's <a> \"b\" \xC3\xA9\nc")}, {kKeys[1], Value::integer(-5)}});
    const Value words = arguments_of({{kKeys[0], Value::boolean(false)}, {kKeys[1], Value::none()}, {kKeys[2], Value::floating(2.5)}});
    const Value lists = arguments_of({{kKeys[0], Value::list({Value::integer(1), text_value("x"), Value::boolean(true)})},
                                      {kKeys[1], arguments_of({{"a", Value::integer(2)}, {"b", Value::none()}})}});
    bool good = same({"", nullptr, {call_of(0, one_argument(0))}}) && same({"", nullptr, {call_of(1, arguments_of({}))}}) &&
                same({"", nullptr, {call_of(0, rich)}}) && same({"", nullptr, {call_of(2, words)}});
    if (good && f->tagged) {
      find_notation(
          [&] {
            return same({"", nullptr, {call_of(0, lists)}});
          },
          [&] {
            return same({"", nullptr, {call_of(0, deep_lists())}});
          },
          f);
    } else if (good) {
      good = same({"", nullptr, {call_of(0, lists)}});
    }
    if (good && f->many)
      f->many = same({"", nullptr, {call_of(0, one_argument(0)), call_of(1, rich)}}) &&
                same({"", nullptr, {call_of(1, arguments_of({})), call_of(2, rich)}}) &&
                same({"", nullptr, {call_of(0, rich), call_of(1, words), call_of(2, one_argument(2))}});
    if (good && f->with_content) f->with_content = same({kContent, nullptr, {call_of(0, rich)}});
    if (!good) *why = "the format that probes show does not print the template's text: " + difference_;
    return good;
  }

  Prober prober_;
  ChatFormat format_;
  std::string base_, prompt_, header_, before_content_, turn_end_, difference_;
  size_t cut_base_ = 0;  // bytes that stand before every answer
};

}  // namespace

Result<ChatFormat> derive(const ChatTemplate& chat_template, std::string_view source, const ChatOptions& options) {
  return Deriver(chat_template, options).run(source);
}

}  // namespace orrery::text::format

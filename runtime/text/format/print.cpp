// Calls as text, by a format.
#include <algorithm>

#include "runtime/text/format/format.h"
#include "runtime/text/json/json.h"
#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::format {
namespace {

std::string counted(std::string_view literal, size_t number) {
  std::string out;
  for (const char c : literal) c == kCounter ? (void)(out += std::to_string(number)) : (void)(out += c);
  return out;
}

void sort_keys(const TaggedFormat& tagged, std::vector<Map::Entry>* entries) {
  std::stable_sort(entries->begin(), entries->end(),
                   [&](const auto& a, const auto& b) { return tagged.before(a.first.as_string(), b.first.as_string()); });
}

Result<std::string> json_of(const Value& value, bool compact) {
  JsonFormat json;
  if (compact) json.item_separator = ",", json.key_separator = ":", json.custom_separators = true;
  return dump_json(value, json);
}

// A string as Python's repr() has it.
std::string python_string(std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t n = unicode::sequence_length(text, at);
    const char c = text[at];
    if (c == quote || c == '\\') {
      out.append(1, '\\').append(1, c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out.append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else {  // others that repr() writes as numbers are in no answer
      out.append(text.substr(at, n));
    }
    at += n;
  }
  return out + quote;
}

// A value within lists and objects that are not JSON.
Result<std::string> noted(const TaggedFormat& tagged, Notation notation, const Value& value) {
  const bool python = notation == Notation::python;
  constexpr const char* kPython[] = {"True", "False", "None"};
  const auto joined = [&](const auto& items, const char* open, const char* close, const auto& write) -> Result<std::string> {
    std::string out = open;
    for (const auto& item : items) {
      if (out.size() > 1) out += python ? ", " : tagged.bare.comma;
      ORRERY_TRY(write(item, &out));
    }
    return out + close;
  };
  const auto append = [&](const Value& item, std::string* out) -> Status {
    ORRERY_ASSIGN(const std::string text, noted(tagged, notation, item));
    *out += text;
    return ok_status();
  };
  if (value.is_string())
    return python ? python_string(value.as_string()) : tagged.bare.open + std::string(value.as_string()) + tagged.bare.close;
  if (value.is_bool() || value.is_none()) {
    const size_t word = value.is_none() ? 2 : value.as_bool() ? 0 : 1;
    return python ? std::string(kPython[word]) : tagged.words[word];
  }
  if (value.is_list()) return joined(value.as_items(), "[", "]", append);
  if (!value.is_map()) return json_of(value, false);
  std::vector<Map::Entry> entries = value.as_map().entries();
  if (!python && tagged.order != KeyOrder::given) sort_keys(tagged, &entries);
  return joined(entries, "{", "}", [&](const Map::Entry& entry, std::string* out) -> Status {
    const std::string_view key = entry.first.as_string();
    *out += python ? python_string(key) + ": " : std::string(key) + tagged.bare.colon;
    return append(entry.second, out);
  });
}

Result<std::string> tagged_value(const TaggedFormat& tagged, const Value& value, bool compact) {
  if (value.is_string()) return std::string(value.as_string());
  if (value.is_bool()) return tagged.words[value.as_bool() ? 0 : 1];
  if (value.is_none()) return tagged.words[2];
  const Notation notation = value.is_list() ? tagged.lists : value.is_map() ? tagged.objects : Notation::json;
  if (notation == Notation::bare || notation == Notation::python) return noted(tagged, notation, value);
  return json_of(value, compact);
}

Result<std::string> tagged_arguments(const CallFormat& format, const Map& arguments) {
  const TaggedFormat& tagged = *format.tagged;
  if (arguments.size() == 0) return tagged.none;
  std::vector<Map::Entry> entries = arguments.entries();
  if (tagged.order != KeyOrder::given) sort_keys(tagged, &entries);
  std::string out = tagged.open;
  for (size_t i = 0; i < entries.size(); ++i) {
    const size_t kind = entries[i].second.is_string() ? 0 : 1;
    if (i > 0) out += tagged.next_key;
    ORRERY_ASSIGN(const std::string value, tagged_value(tagged, entries[i].second, format.compact));
    out.append(entries[i].first.as_string()).append(tagged.to_value[kind]).append(value).append(tagged.close[kind]);
  }
  return out + tagged.end;
}

}  // namespace

Result<std::string> print(const CallFormat& format, const std::vector<Call>& calls, std::string_view content) {
  std::string out = content.empty() ? std::string() : std::string(content) + counted(format.after_content, 0);
  if (content.empty()) out = counted(format.first, 0);
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    if (i > 0) out += counted(format.next, i);
    for (size_t f = 0; f < format.fields.size(); ++f) {
      if (f > 0) out += counted(format.between[f - 1], i);
      switch (format.fields[f]) {
        case Field::name: out += call.name; break;
        case Field::id: out += call.id; break;
        case Field::arguments: {
          if (!call.arguments.is_map()) return error(Code::invalid_argument, "a call's arguments are not an object");
          ORRERY_ASSIGN(const std::string text,
                        format.tagged ? tagged_arguments(format, call.arguments.as_map()) : json_of(call.arguments, format.compact));
          out += text;
          break;
        }
      }
    }
  }
  return out + counted(format.last, calls.empty() ? 0 : calls.size() - 1);
}

Opening opening(const ReasoningFormat& reasoning, std::string_view prompt_end) {
  if (!reasoning.known()) return Opening::none;
  const size_t end = prompt_end.find_last_not_of(" \n\r\t");
  const std::string_view text = prompt_end.substr(0, end == std::string_view::npos ? 0 : end + 1);
  const auto ends = [&](std::string_view mark) { return text.size() >= mark.size() && text.substr(text.size() - mark.size()) == mark; };
  if (ends(reasoning.close)) return Opening::closed;
  return ends(reasoning.open) ? Opening::open : Opening::none;  // an empty mark is always there
}

std::string CallFormat::trigger() const {
  const size_t begin = first.find_first_not_of(" \n\t\r");
  if (begin == std::string::npos) return std::string();
  const std::string_view text = std::string_view(first).substr(begin);
  if (text[0] != '<' && text[0] != '[') return std::string();
  const size_t end = text.find(text[0] == '<' ? '>' : ']');
  return std::string(text.substr(0, end == std::string_view::npos ? text.size() : end + 1));
}

}  // namespace orrery::text::format

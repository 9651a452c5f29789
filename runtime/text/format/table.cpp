// What probes cannot see: formats of templates that print no calls back, or print them in a way of their own.
#include "runtime/text/format/format.h"

namespace orrery::text::format {
namespace {

CallFormat json_calls(const char* first, const char* between, const char* next, const char* last) {
  CallFormat f;
  f.first = first;
  f.fields = {Field::name, Field::arguments};
  f.between = {between};
  f.next = next;
  f.last = last;
  f.many = true;
  return f;
}

// Granite 3: a list of JSON objects behind a control token.
CallFormat granite() { return json_calls("<|tool_call|>[{\"name\": \"", "\", \"arguments\": ", "}, {\"name\": \"", "}]"); }

// LFM2: a Python list of calls with keyword arguments.
CallFormat lfm2() {
  CallFormat f = json_calls("<|tool_call_start|>[", "", "), ", ")]<|tool_call_end|>");
  TaggedFormat t;
  t.open = t.none = "(";
  t.to_value[0] = "=\"", t.to_value[1] = "=";
  t.close[0] = "\"";
  t.next_key = ", ";
  t.lists = t.objects = Notation::python;
  t.words[0] = "True", t.words[1] = "False", t.words[2] = "None";
  f.tagged = std::move(t);
  return f;
}

constexpr KnownFormat kKnown[] = {
    {"Granite 3", {"<|tool_call|>", "<|start_of_role|>"}, granite},
    {"LFM2", {"List of tools: ", "<|im_start|>"}, lfm2},
};

// In the order of the search. `after`: Harmony begins a new message.
constexpr const char* kReasoning[][3] = {{"<think>", "</think>", ""},
                                         {"[THINK]", "[/THINK]", ""},
                                         {"<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant"},
                                         {"<|think|>", "<|end|>", ""},
                                         {"<|channel>thought", "<channel|>", ""},
                                         {"", "[BEGIN FINAL RESPONSE]", ""}};

}  // namespace

const KnownFormat* known_format(std::string_view source) {
  const auto has = [&](const char* mark) { return source.find(mark) != std::string_view::npos; };
  for (const KnownFormat& known : kKnown)
    if (has(known.marks[0]) && has(known.marks[1])) return &known;
  return nullptr;
}

ReasoningFormat known_reasoning(std::string_view source) {
  const auto has = [&](const char* mark) { return source.find(mark) != std::string_view::npos; };
  for (const auto& [open, close, after] : kReasoning)
    if (has(open) && has(close)) return {open, close, after};
  return {};
}

}  // namespace orrery::text::format

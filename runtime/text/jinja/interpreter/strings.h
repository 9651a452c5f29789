// Text operations that methods and filters share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/interpreter/interpreter.h"
#include "runtime/text/text_search.h"

namespace orrery::text::jinja {

size_t code_points(std::string_view s);

// unicode::upper() and its kin.
using Convert = std::string (*)(std::string_view, const std::atomic<bool>*, OriginMap*);
template <Convert convert>
Text convert_text(Interp& in, TextView s) {
  OriginMap origins(s);
  std::string converted = convert(s.bytes(), in.limits().cancel, &origins);
  return origins.take(std::move(converted));
}

// '&', '<', '>' and quotes as HTML's entities.
Text escape_html(TextView s);

// Looks for one text in others, paying for what it compares.  `from_right`: the last occurrence first.
template <bool from_right>
class Finder {
 public:
  // `part` is not empty and outlives the finder.
  bool prepare(Interp& in, std::string_view part) {
    part_ = part;
    return in.step(part.size() / 4) && search_.reset(part, Spend{&in});
  }
  // Where `part` begins in s (from `from` on, unless from_right), or npos.
  bool find(Interp& in, std::string_view s, size_t from, size_t* at) const {
    if (!search_.find(s, from, Spend{&in}, at)) return false;
    if (from_right && *at != std::string_view::npos) *at = s.size() - *at - part_.size();
    return true;
  }

 private:
  struct Spend {
    Interp* in;
    bool operator()(size_t bytes) const { return in->step(bytes / 16); }
  };
  std::string_view part_;
  TextSearch<from_right> search_;
};

// str.find() and str.rfind() in bytes; an empty part is found at either end.
template <bool from_right>
bool find_text(Interp& in, std::string_view s, std::string_view part, size_t* at);

// Without the characters of `chars` (null: white space) at either end.
bool strip_text(Interp& in, std::string_view s, const Value* chars, bool left, bool right, std::string_view* out);
std::string_view strip_blanks(std::string_view s, bool left, bool right);

// Replaces the first `count` occurrences of `old` (all if negative).
bool replace_text(Interp& in, const Value& s, std::string_view old, TextView with, int64_t count, Value* out);

// The parts between `separator`s, or between runs of white space if `separator` is empty. Cuts at most `limit` times,
// unless `limit` is negative.
bool split_text(Interp& in, TextView s, std::string_view separator, int64_t limit, bool from_right, std::vector<Value>* out);

// The lines; any of Python's line boundaries ends a line.
bool split_lines(Interp& in, TextView s, bool keep_ends, std::vector<Value>* out);

// Pads to `width` code points: align -1 left, 0 centered, 1 right.
bool justify_text(Interp& in, const Value& s, int64_t width, TextView fill, int align, Value* out);

// str.isupper() and the related methods.
bool is_upper_text(std::string_view s);
bool is_lower_text(std::string_view s);
bool is_title_text(std::string_view s);
bool is_ascii_text(std::string_view s);
bool is_printable_text(std::string_view s);
bool is_identifier_text(std::string_view s);

}  // namespace orrery::text::jinja

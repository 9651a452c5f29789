// See strings.h.  Searching works on bytes: in UTF-8 a match can only begin where a character begins.
#include "runtime/text/jinja/interpreter/strings.h"

#include <algorithm>
#include <utility>

#include "runtime/text/unicode/python_characters.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

namespace {

bool blank_at(std::string_view s, size_t i) {
  const auto b = static_cast<unsigned char>(s[i]);
  if (b < 0x80) return b == ' ' || (b >= 9 && b <= 13) || (b >= 28 && b <= 31);
  return unicode::is(unicode::decode(s, i), unicode::kSpace);
}

// The start of the character that ends at `end`.
size_t previous(std::string_view s, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(s[at]) & 0xC0) == 0x80) --at;
  return at + unicode::sequence_length(s, at) == end ? at : end - 1;
}

bool add_part(Interp& in, TextView part, std::vector<Value>* out) {
  Value v;
  TRY(in.string_value(part, &v));
  out->push_back(std::move(v));
  return in.step();
}

bool split_blanks(Interp& in, TextView text, int64_t limit, std::vector<Value>* out) {
  const std::string_view s = text.bytes();
  for (size_t i = 0;;) {
    while (i < s.size() && blank_at(s, i)) i += unicode::sequence_length(s, i);
    if (i >= s.size()) return true;
    if (limit >= 0 && static_cast<int64_t>(out->size()) >= limit)
      return add_part(in, text.part(strip_blanks(s.substr(i), false, true)), out);
    const size_t start = i;
    while (i < s.size() && !blank_at(s, i)) i += unicode::sequence_length(s, i);
    TRY(add_part(in, text.substr(start, i - start), out));
  }
}

bool rsplit_blanks(Interp& in, TextView text, int64_t limit, std::vector<Value>* out) {
  const std::string_view s = text.bytes();
  for (size_t end = s.size();;) {
    while (end > 0 && blank_at(s, previous(s, end))) end = previous(s, end);
    if (end == 0) return true;
    if (limit >= 0 && static_cast<int64_t>(out->size()) >= limit)
      return add_part(in, text.part(strip_blanks(s.substr(0, end), true, false)), out);
    const size_t stop = end;
    while (end > 0 && !blank_at(s, previous(s, end))) end = previous(s, end);
    TRY(add_part(in, text.substr(end, stop - end), out));
  }
}

}  // namespace

Text escape_html(TextView s) {
  Text out;
  s.each_run([&out](std::string_view run, Origin origin) {
    for (const char& c : run) {
      const std::string_view entity = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&#34;" : "&#39;";
      const bool escaped = c == '&' || c == '<' || c == '>' || c == '"' || c == '\'';
      out.append(escaped ? entity : std::string_view(&c, 1), origin);
    }
    return true;
  });
  return out;
}

size_t code_points(std::string_view s) {
  size_t n = 0;
  for (size_t i = 0; i < s.size(); i += unicode::sequence_length(s, i)) ++n;
  return n;
}

template <bool from_right>
bool find_text(Interp& in, std::string_view s, std::string_view part, size_t* at) {
  *at = part.empty() ? (from_right ? s.size() : 0) : std::string_view::npos;
  if (part.empty() || part.size() > s.size()) return true;
  Finder<from_right> finder;
  return finder.prepare(in, part) && finder.find(in, s, 0, at);
}
template bool find_text<false>(Interp&, std::string_view, std::string_view, size_t*);
template bool find_text<true>(Interp&, std::string_view, std::string_view, size_t*);

namespace {

// Less the characters that `goes(offset, bytes)` names.
template <class Goes>
std::string_view stripped(std::string_view s, bool left, bool right, const Goes& goes) {
  size_t from = 0, to = s.size();
  while (left && from < to) {
    const size_t n = unicode::sequence_length(s, from);
    if (!goes(from, n)) break;
    from += n;
  }
  while (right && from < to) {
    const size_t at = previous(s, to);
    if (!goes(at, to - at)) break;
    to = at;
  }
  return s.substr(from, to - from);
}

// A character as a number; a byte that is no character has one of its own.
uint32_t number_of(std::string_view s, size_t at, size_t n) {
  const auto byte = static_cast<unsigned char>(s[at]);
  return n == 1 && byte >= 0x80 ? 0x110000u + byte : unicode::decode(s, at);
}

}  // namespace

std::string_view strip_blanks(std::string_view s, bool left, bool right) {
  return stripped(s, left, right, [s](size_t at, size_t) { return blank_at(s, at); });
}

bool strip_text(Interp& in, std::string_view s, const Value* chars, bool left, bool right, std::string_view* out) {
  TRY(in.step(s.size() / 16));
  if (chars == nullptr) {
    *out = strip_blanks(s, left, right);
    return true;
  }
  const std::string_view c = chars->as_string();
  TRY(in.step(c.size()));
  bool ascii[128] = {};
  std::vector<uint32_t> others;  // sorted
  for (size_t i = 0; i < c.size();) {
    const size_t n = unicode::sequence_length(c, i);
    const uint32_t number = number_of(c, i, n);
    if (number < 128) ascii[number] = true;
    else if (others.empty() || others.back() != number) others.push_back(number);
    i += n;
  }
  std::sort(others.begin(), others.end());
  *out = stripped(s, left, right, [&](size_t at, size_t n) {
    const uint32_t number = number_of(s, at, n);
    return number < 128 ? ascii[number] : std::binary_search(others.begin(), others.end(), number);
  });
  return in.step((s.size() - out->size()) / 4);  // what a search in `others` takes
}

bool replace_text(Interp& in, const Value& value, std::string_view old, TextView with, int64_t count, Value* out) {
  const TextView source = value.as_text();
  const std::string_view s = source.bytes();
  uint64_t left = count < 0 ? UINT64_MAX : static_cast<uint64_t>(count);
  // Eight short replacements are a step's work.
  uint64_t made = 0;
  const auto pay = [&](uint64_t bytes) {
    TRY(in.charge(bytes + with.n_changes() * 4));
    return (++made % 8 != 0 && with.size() < 16) || in.step(1 + with.size() / 16);
  };
  Text text;
  size_t from = 0;
  if (old.empty()) {  // insert before every character and at the end
    for (; left > 0; --left) {
      TRY(pay(with.size() + 4));
      text.append(with);
      if (from >= s.size()) break;
      const size_t n = unicode::sequence_length(s, from);
      text.append(source.substr(from, n));
      from += n;
    }
  } else {
    Finder<false> finder;
    if (old.size() <= s.size()) TRY(finder.prepare(in, old));
    for (; left > 0 && old.size() <= s.size(); --left) {
      size_t at;
      TRY(finder.find(in, s, from, &at));
      if (at == std::string_view::npos) break;
      TRY(pay(with.size() + 1));
      text.append(source.substr(from, at - from)).append(with);
      from = at + old.size();
    }
  }
  if (from < s.size()) text.append(source.substr(from));
  return in.string_value(std::move(text), out);
}

bool split_text(Interp& in, TextView text, std::string_view separator, int64_t limit, bool from_right, std::vector<Value>* out) {
  std::string_view s = text.bytes();
  TRY(in.step(s.size() / 16));
  if (from_right) {
    if (separator.empty()) {
      TRY(rsplit_blanks(in, text, limit, out));
    } else {
      Finder<true> finder;
      TRY(finder.prepare(in, separator));
      while (limit < 0 || static_cast<int64_t>(out->size()) < limit) {
        size_t at;
        TRY(finder.find(in, s, 0, &at));
        if (at == std::string_view::npos) break;
        TRY(add_part(in, text.part(s.substr(at + separator.size())), out));
        s = s.substr(0, at);
      }
      TRY(add_part(in, text.part(s), out));
    }
    std::reverse(out->begin(), out->end());
    return true;
  }
  if (separator.empty()) return split_blanks(in, text, limit, out);
  Finder<false> finder;
  TRY(finder.prepare(in, separator));
  while (limit < 0 || static_cast<int64_t>(out->size()) < limit) {
    size_t at;
    TRY(finder.find(in, s, 0, &at));
    if (at == std::string_view::npos) break;
    TRY(add_part(in, text.part(s.substr(0, at)), out));
    s = s.substr(at + separator.size());
  }
  return add_part(in, text.part(s), out);
}

bool split_lines(Interp& in, TextView text, bool keep_ends, std::vector<Value>* out) {
  const std::string_view s = text.bytes();
  size_t start = 0;
  for (size_t i = 0; i < s.size();) {
    const uint32_t c = unicode::decode(s, i);
    size_t n = unicode::sequence_length(s, i);
    const bool boundary = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!boundary) {
      i += n;
      continue;
    }
    if (c == '\r' && i + 1 < s.size() && s[i + 1] == '\n') n = 2;
    TRY(add_part(in, text.substr(start, i + (keep_ends ? n : 0) - start), out));
    i += n;
    start = i;
  }
  return start == s.size() || add_part(in, text.substr(start), out);
}

bool justify_text(Interp& in, const Value& s, int64_t width, TextView fill, int align, Value* out) {
  const auto length = static_cast<int64_t>(s.string_length());
  if (width <= length) {
    *out = s;
    return true;
  }
  const auto total = static_cast<uint64_t>(width - length);
  TRY(in.charge(total > UINT64_MAX / 4 ? UINT64_MAX : total * fill.size()));
  uint64_t before = 0;
  if (align > 0) before = total;
  if (align == 0) before = total / 2 + (total & static_cast<uint64_t>(width) & 1);
  Text text;
  for (uint64_t i = 0; i < before; ++i) text.append(fill);
  text.append(s.as_text());
  for (uint64_t i = before; i < total; ++i) text.append(fill);
  return in.string_value(std::move(text), out);
}

bool is_upper_text(std::string_view s) {
  bool cased = false;
  for (size_t i = 0; i < s.size(); i += unicode::sequence_length(s, i)) {
    const uint32_t c = unicode::classes(unicode::decode(s, i));
    if ((c & (unicode::kLowerCase | unicode::kTitleCase)) != 0) return false;
    cased = cased || (c & unicode::kUpperCase) != 0;
  }
  return cased;
}

bool is_lower_text(std::string_view s) {
  bool cased = false;
  for (size_t i = 0; i < s.size(); i += unicode::sequence_length(s, i)) {
    const uint32_t c = unicode::classes(unicode::decode(s, i));
    if ((c & (unicode::kUpperCase | unicode::kTitleCase)) != 0) return false;
    cased = cased || (c & unicode::kLowerCase) != 0;
  }
  return cased;
}

bool is_title_text(std::string_view s) {
  bool cased = false, inside = false;
  for (size_t i = 0; i < s.size(); i += unicode::sequence_length(s, i)) {
    const uint32_t c = unicode::classes(unicode::decode(s, i));
    if ((c & (unicode::kUpperCase | unicode::kTitleCase)) != 0) {
      if (inside) return false;
      inside = cased = true;
    } else if ((c & unicode::kLowerCase) != 0) {
      if (!inside) return false;
      cased = true;
    } else {
      inside = false;
    }
  }
  return cased;
}

bool is_ascii_text(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_printable_text(std::string_view s) {
  for (size_t i = 0; i < s.size(); i += unicode::sequence_length(s, i))
    if (unicode::is(unicode::decode(s, i), unicode::kUnprintable)) return false;
  return true;
}

bool is_identifier_text(std::string_view s) {
  for (size_t i = 0; i < s.size(); i += unicode::sequence_length(s, i)) {
    const uint32_t c = unicode::decode(s, i);
    if (c == '_' || unicode::is(c, unicode::kAlpha) || (i > 0 && unicode::is(c, unicode::kDecimal))) continue;
    return false;
  }
  return !s.empty();
}

}  // namespace orrery::text::jinja

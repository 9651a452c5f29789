// The scanners. A Matcher is one regular expression, tried at one place. split() walks over a piece with a Matcher;
// stages<> chains several. Inside, a character is (bytes, CharSet). At the end of the text its length is 0 and its
// set is empty, so look-ahead needs no special case.
//
// Each matcher is linear: it reads the run that it returns at most once, or skips the characters that it has read.
// The exception is cased_word(), which may read a run twice.
#include "runtime/text/tokenizer/pretokenize.h"

#include "runtime/text/pace.h"
#include "runtime/text/unicode/character_sets.h"

namespace orrery::text {
namespace {

struct AsciiSets {
  uint8_t set[128] = {};
  constexpr AsciiSets() {
    for (uint32_t c = 0; c < 128; c++) set[c] = static_cast<uint8_t>(char_set(c));
  }
};
constexpr AsciiSets kAscii;

// The end of a piece, and the cancel flag. Runs are walked in strides, and the walk reads the flag after each stride.
// A cancelled run ends early, and split() then ends the whole walk.
class End {
 public:
  End(const char* at, Pace* pace) : at_(at), pace_(pace) {}
  operator const char*() const { return at_; }  // NOLINT: implicit by design
  End with(const char* at) const { return End(at, pace_); }
  const char* stride(const char* p) const { return at_ - p > kStride ? p + kStride : at_; }
  bool ends_run(const char* p) const { return p >= at_ || pace_->look(); }
  bool stop() const { return pace_->stop(); }
  bool stopped() const { return pace_->stopped(); }

 private:
  static constexpr ptrdiff_t kStride = 1 << 16;
  const char* at_;
  Pace* pace_;
};

struct Char {
  uint32_t code_point;
  uint32_t set;
  uint32_t length;  // 0 at the end
};

inline Char char_at(const char* p, End end) {
  if (p == end) return {kInvalidCodePoint, 0, 0};
  const auto byte = static_cast<uint8_t>(*p);
  if (byte < 0x80) return {byte, kAscii.set[byte], 1};
  const CodePoint c = utf8_decode_multibyte(p, end);
  return {c.value, char_set(c.value), c.length};
}

inline bool is_newline(const Char& c) { return c.code_point == '\n' || c.code_point == '\r'; }

// The end of the run of characters that are in the set (or outside it).
inline const char* skip_in(const char* p, End end, uint32_t set) {
  do {
    for (const char* stride = end.stride(p); p < stride;) {
      const Char c = char_at(p, end);
      if (!(c.set & set)) return p;
      p += c.length;
    }
  } while (!end.ends_run(p));
  return p;
}
inline const char* skip_not_in(const char* p, End end, uint32_t set) {
  do {
    for (const char* stride = end.stride(p); p < stride;) {
      const Char c = char_at(p, end);
      if (c.set & set) return p;
      p += c.length;
    }
  } while (!end.ends_run(p));
  return p;
}
inline const char* skip_newlines(const char* p, End end, bool slash_too = false) {
  while (p != end && (*p == '\n' || *p == '\r' || (slash_too && *p == '/')) && !end.stop()) p++;
  return p;
}

// The result of a matcher at p: a match [p, next), or the fact that no match begins before next.
struct Step {
  const char* next;
  bool matched;
};
using Matcher = Step (*)(const char* p, End end);

inline Step none(const char* p, const Char& c) { return {p + c.length, false}; }

template <Matcher match, class Emit>
void split(const char* p, End end, Emit&& emit) {
  const char* gap = p;  // [gap, p) is not covered by any match
  while (p != end) {
    if (end.stop()) return;
    const Step step = match(p, end);
    if (step.matched) {
      if (gap != p) emit(gap, p);
      emit(p, step.next);
      gap = step.next;
    }
    p = step.next;
  }
  if (gap != end && !end.stopped()) emit(gap, end);
}

template <class Emit>
void stages(const char* p, End end, Emit& emit) {
  emit(p, end);
}
template <Matcher first, Matcher... rest, class Emit>
void stages(const char* p, End end, Emit& emit) {
  split<first>(p, end, [&](const char* from, const char* to) { stages<rest...>(from, end.with(to), emit); });
}

// ---- parts that several families share

// \s+(?!\S)|\s+ at a white space: the run without its last character, unless the text ends there or the run has one
// character. With `newlines`, first \s*[\r\n]+: the run up to its last line break.
template <bool newlines>
const char* white_space(const char* p, End end) {
  const char *at = p, *last = p, *behind_newline = nullptr;
  for (;;) {
    const Char c = char_at(at, end);
    if (!(c.set & kSpace) || end.stop()) break;
    last = at;
    at += c.length;
    if (newlines && is_newline(c)) behind_newline = at;
  }
  if (behind_newline) return behind_newline;
  return at == end || last == p ? at : last;
}

// 's 't 're 've 'm 'll 'd at p; returns p if none matches. Ignoring case also accepts the long s (U+017F), whose
// upper case is S.
template <bool any_case>
const char* contraction(const char* p, End end) {
  if (end - p < 2 || *p != '\'') return p;
  const auto letter = [&](int i) {
    if (p + i >= end) return '\0';
    return any_case && p[i] >= 'A' && p[i] <= 'Z' ? static_cast<char>(p[i] + 32) : p[i];
  };
  const char a = letter(1), b = letter(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
  if (any_case && a == '\xC5' && b == '\xBF') return p + 3;
  return p;
}

// \p{N}{1,n}
template <int n>
const char* numbers(const char* p, End end) {
  for (int i = 0; i < n; i++) {
    const Char c = char_at(p, end);
    if (!(c.set & kNumber)) break;
    p += c.length;
  }
  return p;
}

template <uint32_t set>
Step run_of(const char* p, End end) {
  const Char c = char_at(p, end);
  if (!(c.set & set)) return none(p, c);
  return {skip_in(p + c.length, end, set), true};
}

// \s?[set]+
template <uint32_t set>
Step run_after_space(const char* p, End end) {
  const Char c = char_at(p, end);
  const char* from = c.set & kSpace ? p + c.length : p;
  const char* to = skip_in(from, end, set);
  if (to == from) return none(p, c);
  return {to, true};
}

Step one_number(const char* p, End end) {
  const Char c = char_at(p, end);
  return {p + c.length, (c.set & kNumber) != 0};
}
Step three_numbers(const char* p, End end) {
  const char* to = numbers<3>(p, end);
  if (to == p) return none(p, char_at(p, end));
  return {to, true};
}
Step three_ascii_digits(const char* p, End end) {
  const auto digit = [&](int i) { return p[i] >= '0' && p[i] <= '9'; };
  if (end - p >= 3 && digit(0) && digit(1) && digit(2)) return {p + 3, true};
  return none(p, char_at(p, end));
}
Step one_newline(const char* p, End end) {
  const Char c = char_at(p, end);
  return {p + c.length, is_newline(c)};
}

// ---- GPT-2 and its successors

Step gpt2(const char* p, End end) {
  const char* to = contraction<false>(p, end);
  if (to != p) return {to, true};
  const Char c = char_at(p, end);
  const Char head = c.code_point == ' ' ? char_at(p + 1, end) : c;
  const char* behind_head = p + (c.code_point == ' ' ? 1 : 0) + head.length;
  if (head.set & kLetter) return {skip_in(behind_head, end, kLetter), true};
  if (head.set & kNumber) return {skip_in(behind_head, end, kNumber), true};
  if (head.set & kSpace || head.length == 0) return {white_space<false>(p, end), true};
  return {skip_not_in(behind_head, end, kSpace | kLetter | kNumber), true};
}

// Punctuation, and the ASCII symbols that the two oldest families treat as punctuation.
template <bool backtick>
Step punctuation_run(const char* p, End end) {
  const auto in = [](const Char& c) {
    if (c.set & kPunctuation) return true;
    switch (c.code_point) {
      case '$':
      case '+':
      case '<':
      case '=':
      case '>':
      case '^':
      case '~':
      case '|': return true;  // clang-format off
      case '`': return backtick;  // clang-format on
      default: return false;
    }
  };
  Char c = char_at(p, end);
  if (!in(c)) return none(p, c);
  do {
    p += c.length;
    c = char_at(p, end);
  } while (in(c) && !end.stop());
  return {p, true};
}

// ---- Llama 3, Qwen 2, and cased words

// ` ?[^\s\p{L}\p{N}]+[\r\n]*` (or `[\r\n/]*`), where \p{L} stands for `letters`; returns p if it does not match.
template <bool slash, uint32_t letters = kLetter>
const char* other_run(const char* p, End end) {
  const char* from = *p == ' ' ? p + 1 : p;
  const char* to = skip_not_in(from, end, kSpace | letters | kNumber);
  return to == from ? p : skip_newlines(to, end, slash);
}

// letters: what a word is made of. With marks, a mark before a word is a part of it, as a prefix or as its first character.
template <int max_numbers, uint32_t letters = kLetter>
Step llama3(const char* p, End end) {
  const char* to = contraction<true>(p, end);
  if (to != p) return {to, true};
  const Char c = char_at(p, end);
  if (c.set & letters) return {skip_in(p + c.length, end, letters), true};
  if (c.set & kNumber) return {numbers<max_numbers>(p, end), true};
  if (!is_newline(c)) {
    const Char next = char_at(p + c.length, end);
    if (next.set & letters) return {skip_in(p + c.length + next.length, end, letters), true};
  }
  to = other_run<false, letters>(p, end);
  return {to != p ? to : white_space<true>(p, end), true};
}

// With U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], W = [\p{Ll}\p{Lm}\p{Lo}\p{M}]:
//     [^\r\n\p{L}\p{N}]?U*W+ | [^\r\n\p{L}\p{N}]?U+W*
// Returns p if neither matches. U and W overlap: the first form takes the whole run of U, then backtracks until W can
// begin. The form ends after the Ws that follow the run of U. If none follow, it ends after the last character of the
// run that is also a W. The rest of the run then has no W, and the second form takes all of it. No character is
// therefore read more than twice.
const char* cased_word(const char* p, End end) {
  constexpr uint32_t U = kUpper | kCaseless | kMark, W = kLower | kCaseless | kMark;
  const Char c = char_at(p, end);
  const bool prefix = !(c.set & (kLetter | kNumber)) && !is_newline(c);
  const char* from = prefix ? p + c.length : p;
  const char *at = from, *behind_last_w = nullptr;
  for (;;) {
    const Char u = char_at(at, end);
    if (!(u.set & U) || end.stop()) break;
    at += u.length;
    if (u.set & W) behind_last_w = at;
  }
  const char* to = skip_in(at, end, W);
  if (to != at) return to;
  if (behind_last_w) return behind_last_w;
  if (c.set & kMark) return from;  // a mark cannot be both prefix and word; alone it is a word of the first form
  return at != from ? at : p;
}

template <int max_numbers, bool with_contraction>
Step cased(const char* p, End end) {
  const char* to = cased_word(p, end);
  if (to != p) return {with_contraction ? contraction<true>(to, end) : to, true};
  to = numbers<max_numbers>(p, end);
  if (to != p) return {to, true};
  to = other_run<true>(p, end);
  return {to != p ? to : white_space<true>(p, end), true};
}

// ---- DeepSeek

struct Range {
  uint32_t first, last;
};
// The cased letters of \s?[A-Za-z...]+ in DeepSeek LLM, sorted.
constexpr Range kDeepseekLetters[] = {
    {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},       {0xD8, 0xF6},       {0xF8, 0x1BA},
    {0x1BC, 0x1BF},     {0x1C4, 0x293},     {0x295, 0x2AF},     {0x370, 0x373},     {0x376, 0x377},     {0x37B, 0x37D},
    {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},     {0x38C, 0x38C},     {0x38E, 0x3A1},     {0x3A3, 0x3F5},
    {0x3F7, 0x481},     {0x48A, 0x52F},     {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},
    {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},
    {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},
    {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},   {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},
    {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},
    {0x2102, 0x2102},   {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},
    {0x2126, 0x2126},   {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
    {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},
    {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},
    {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},   {0x10400, 0x1044F},
    {0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};

bool deepseek_letter(uint32_t c) {
  if (c < 0x80) return (kAscii.set[c] & kLetter) != 0;
  size_t low = 0, high = sizeof kDeepseekLetters / sizeof *kDeepseekLetters;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (kDeepseekLetters[middle].last < c) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < sizeof kDeepseekLetters / sizeof *kDeepseekLetters && c >= kDeepseekLetters[low].first;
}

constexpr bool within(uint32_t c, uint32_t first, uint32_t last) { return c >= first && c <= last; }

bool deepseek_punctuation(uint32_t c) {
  return within(c, '!', '/') || within(c, ':', '~') || within(c, 0xFF01, 0xFF0F) || within(c, 0xFF1A, 0xFF5E) ||
         within(c, 0x2018, 0x201F) || within(c, 0x3000, 0x3002);
}
bool cjk(uint32_t c) { return within(c, 0x0800, 0x9FA5) || within(c, 0xAC00, 0xD7FF); }
bool cjk_and_kana(uint32_t c) { return within(c, 0x4E00, 0x9FA5) || within(c, 0x3040, 0x30FF); }

template <bool (*in)(uint32_t)>
const char* skip_while(const char* p, End end) {
  for (;;) {
    const Char c = char_at(p, end);
    if (!in(c.code_point) || end.stop()) return p;
    p += c.length;
  }
}
template <bool (*in)(uint32_t), bool after_space>
Step listed_run(const char* p, End end) {
  const Char c = char_at(p, end);
  const char* from = after_space && c.set & kSpace ? p + c.length : p;
  const char* to = skip_while<in>(from, end);
  // The white space itself may be in the list (U+3000); nothing must follow it then.
  if (to == from && from != p) to = skip_while<in>(p, end), from = p;
  if (to == from) return none(p, c);
  return {to, true};
}

// \s+$
Step trailing_space(const char* p, End end) {
  const Char c = char_at(p, end);
  if (!(c.set & kSpace)) return none(p, c);
  const char* to = skip_in(p, end, kSpace);
  return {to, to == end};
}

Step deepseek_v3_words(const char* p, End end) {
  const Char c = char_at(p, end);
  const Char next = char_at(p + c.length, end);
  if (c.code_point < 0x80 && c.set & (kPunctuation | kSymbol) && next.code_point < 0x80 && next.set & kLetter) {
    p += 2;
    while (p != end && static_cast<uint8_t>(*p) < 0x80 && kAscii.set[static_cast<uint8_t>(*p)] & kLetter && !end.stop()) p++;
    return {p, true};
  }
  if (c.set & (kLetter | kMark)) return {skip_in(p, end, kLetter | kMark), true};
  if (!(c.set & (kPunctuation | kSymbol)) && !is_newline(c) && next.set & (kLetter | kMark))
    return {skip_in(p + c.length, end, kLetter | kMark), true};
  const char* from = c.code_point == ' ' ? p + 1 : p;
  const char* to = skip_in(from, end, kPunctuation | kSymbol);
  if (to != from) return {skip_newlines(to, end), true};
  if (c.set & kSpace) return {white_space<true>(p, end), true};
  return none(p, c);
}

template <class Emit>
void run_stages(PreTokenizer kind, const char* begin, End end, Emit& emit) {
  switch (kind) {
    case PreTokenizer::classic: return stages<punctuation_run<false>, gpt2, run_of<kNumber>, three_ascii_digits>(begin, end, emit);
    case PreTokenizer::gpt2: return stages<gpt2>(begin, end, emit);
    case PreTokenizer::digits_gpt2: return stages<one_number, gpt2>(begin, end, emit);
    case PreTokenizer::falcon: return stages<punctuation_run<true>, gpt2, three_ascii_digits>(begin, end, emit);
    case PreTokenizer::llama3: return stages<llama3<3>>(begin, end, emit);
    case PreTokenizer::qwen2: return stages<llama3<1>>(begin, end, emit);
    case PreTokenizer::qwen35: return stages<llama3<1, kLetter | kMark>>(begin, end, emit);
    case PreTokenizer::tekken: return stages<cased<1, false>>(begin, end, emit);
    case PreTokenizer::gpt4o: return stages<cased<3, true>>(begin, end, emit);
    case PreTokenizer::deepseek_llm:
      return stages<one_newline, listed_run<deepseek_letter, true>, listed_run<deepseek_punctuation, true>, trailing_space,
                    listed_run<cjk, false>, one_number>(begin, end, emit);
    case PreTokenizer::deepseek_coder:
      return stages<one_newline, run_after_space<kLetter>, run_after_space<kPunctuation>, listed_run<cjk, false>, one_number>(begin, end,
                                                                                                                              emit);
    case PreTokenizer::deepseek_v3: return stages<three_numbers, listed_run<cjk_and_kana, false>, deepseek_v3_words>(begin, end, emit);
  }
}

}  // namespace

bool pre_tokenize(PreTokenizer kind, std::string_view text, std::vector<uint32_t>* ends, const std::atomic<bool>* cancel) {
  Pace pace(cancel);
  const char* begin = text.data();
  auto emit = [&](const char*, const char* to) { ends->push_back(static_cast<uint32_t>(to - begin)); };
  run_stages(kind, begin, End(begin + text.size(), &pace), emit);
  return !pace.stopped();
}

}  // namespace orrery::text

#include "runtime/text/grammar/json_schema/decimal.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "runtime/text/json/json.h"

namespace orrery::text::grammar {
namespace {

constexpr size_t kMostDigits = 17;  // of a whole part without an upper bound, and of a fraction
constexpr uint64_t kMostModulus = 20000;
constexpr size_t kMostNumberStates = 60000;

Decimal from_text(const std::string& text) {
  Decimal d;
  size_t i = 0;
  if (i < text.size() && text[i] == '-') d.negative = true, ++i;
  std::string digits, exponent;
  long point = -1;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      point = static_cast<long>(digits.size());
    } else {
      digits += text[i];
    }
  }
  long power = 0;
  if (i < text.size()) {
    ++i;
    const bool minus = i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    for (; i < text.size() && power < 100000; ++i) power = power * 10 + (text[i] - '0');
    if (minus) power = -power;
  }
  long place = (point < 0 ? static_cast<long>(digits.size()) : point) + power;
  if (place > 2000 || place < -2000) return d;
  while (place < 0) digits.insert(digits.begin(), '0'), ++place;
  while (static_cast<long>(digits.size()) < place) digits += '0';
  d.whole = digits.substr(0, static_cast<size_t>(place));
  d.fraction = digits.substr(static_cast<size_t>(place));
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  if (d.whole.empty()) d.whole = "0";
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  if (d.is_zero()) d.negative = false;
  return d;
}

int compare_magnitude(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int c = a.whole.compare(b.whole); c != 0) return c < 0 ? -1 : 1;
  const size_t n = std::max(a.fraction.size(), b.fraction.size());
  std::string x = a.fraction, y = b.fraction;
  x.resize(n, '0');
  y.resize(n, '0');
  const int c = x.compare(y);
  return c < 0 ? -1 : c > 0;
}

}  // namespace

std::optional<Decimal> decimal_of(const Value& number) {
  std::string text;
  if (number.is_int()) {
    text = std::to_string(number.as_int());
  } else if (number.kind() == Kind::big_integer) {
    text = std::string(number.as_string());
  } else if (number.is_float()) {
    text = format_float(number.as_float());
    if (text.find_first_of("in") != std::string::npos) return std::nullopt;
  } else {
    return std::nullopt;
  }
  if (text.size() > 400) return std::nullopt;
  return from_text(text);
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? -compare_magnitude(a, b) : compare_magnitude(a, b);
}

std::optional<uint64_t> scaled(const Decimal& value, size_t digits) {
  if (value.fraction.size() > digits) return std::nullopt;
  std::string text = value.whole + value.fraction;
  text.append(digits - value.fraction.size(), '0');
  uint64_t out = 0;
  for (const char c : text) {
    if (out > (uint64_t{1} << 58)) return std::nullopt;
    out = out * 10 + static_cast<uint64_t>(c - '0');
  }
  return out;
}

bool is_multiple(const Decimal& value, const Decimal& factor) {
  const size_t digits = std::max(value.fraction.size(), factor.fraction.size());
  const auto modulus = scaled(factor, digits);
  if (!modulus || *modulus == 0 || *modulus >= (uint64_t{1} << 58)) return false;
  std::string text = value.whole + value.fraction;
  text.append(digits - value.fraction.size(), '0');
  uint64_t rest = 0;
  for (const char c : text) rest = (rest * 10 + static_cast<uint64_t>(c - '0')) % *modulus;
  return rest == 0;
}

namespace {

// Numbers without sign between two magnitudes, one digit after another. A place knows how the digits so far compare with each bound's, and
// their rest by the factor.
class MagnitudeMachine {
 public:
  MagnitudeMachine(const NumberRange& range, uint64_t modulus, size_t scale, Tree* tree)
      : range_(range), modulus_(modulus), scale_(scale), tree_(tree) {}

  bool build(Machine* machine) {
    const size_t shortest = range_.least ? range_.least->whole.size() : 1;
    const size_t longest = range_.most ? range_.most->whole.size() : std::max<size_t>(kMostDigits, shortest + 1);
    for (size_t length = shortest; length <= longest; ++length) {
      // Fewer or more digits than a bound's decide the comparison at once; equal ones compare digit by digit.
      const int low = !range_.least || length > range_.least->whole.size() ? kFree : kEqual;
      const int high = !range_.most || length < range_.most->whole.size() ? kFree : kEqual;
      machine->edges.push_back({Machine::kStart, place(machine, {length, 0, low, high, false, 0}), kNoNode});
    }
    while (!todo_.empty()) {
      const Place p = todo_.back();
      todo_.pop_back();
      if (number_.size() > kMostNumberStates) return false;
      expand(machine, p);
    }
    return true;
  }

 private:
  static constexpr int kFree = 0, kEqual = 1;
  // left: digits of the whole part still to come; then fraction: digits of the fraction so far, + 1 behind the point.
  struct Place {
    size_t left, fraction;
    int low, high;
    bool begun;  // a digit has been read: a leading zero is none any more
    uint64_t rest;
    bool operator<(const Place& o) const {
      return std::tie(left, fraction, low, high, begun, rest) < std::tie(o.left, o.fraction, o.low, o.high, o.begun, o.rest);
    }
  };

  uint32_t place(Machine* machine, const Place& p) {
    const auto [at, is_new] = number_.emplace(p, 0);
    if (is_new) {
      at->second = machine->state();
      todo_.push_back(p);
    }
    return at->second;
  }

  char digit_of(const Decimal& bound, const Place& p) const {
    if (p.fraction == 0) return bound.whole[bound.whole.size() - p.left];
    return p.fraction - 1 < bound.fraction.size() ? bound.fraction[p.fraction - 1] : '0';
  }
  bool rest_is_zero(const Decimal& bound, const Place& p) const {  // of a bound's digits that are still to come
    return bound.fraction.find_first_not_of('0', p.fraction == 0 ? 0 : p.fraction - 1) == std::string::npos;
  }
  bool may_end(const Place& p) const {
    if (p.left > 0 || p.fraction == 1) return false;
    if (range_.least && p.low == kEqual && (!rest_is_zero(*range_.least, p) || range_.above_least)) return false;
    if (range_.most && p.high == kEqual && rest_is_zero(*range_.most, p) && range_.below_most) return false;
    if (modulus_ == 0) return true;
    uint64_t rest = p.rest;
    for (size_t f = p.fraction == 0 ? 0 : p.fraction - 1; f < scale_; ++f) rest = rest * 10 % modulus_;
    return rest == 0;
  }

  void expand(Machine* machine, const Place& p) {
    const uint32_t from = number_[p];
    if (may_end(p)) machine->edges.push_back({from, Machine::kFinal, kNoNode});
    if (p.left == 0 && p.fraction == 0) {
      if (range_.integer || (modulus_ != 0 && scale_ == 0)) return;
      machine->edges.push_back({from, place(machine, {0, 1, p.low, p.high, true, p.rest}), digit('.', '.')});
      return;
    }
    const size_t most_fraction = modulus_ != 0 ? scale_ : most_fraction_digits();
    if (p.fraction > most_fraction) return;
    const bool first = !p.begun && p.left > 1;
    for (char d = first ? '1' : '0'; d <= '9'; ++d) {
      Place to = p;
      if (p.low == kEqual && range_.least) {
        const char bound = digit_of(*range_.least, p);
        if (d < bound) continue;
        if (d > bound) to.low = kFree;
      }
      if (p.high == kEqual && range_.most) {
        const char bound = digit_of(*range_.most, p);
        if (d > bound) continue;
        if (d < bound) to.high = kFree;
      }
      if (modulus_ != 0) to.rest = (p.rest * 10 + static_cast<uint64_t>(d - '0')) % modulus_;
      if (p.fraction == 0) {
        --to.left;
        to.begun = true;
      } else {
        ++to.fraction;
      }
      machine->edges.push_back({from, place(machine, to), digit(d, d)});
    }
  }

  size_t most_fraction_digits() const {
    size_t n = kMostDigits;
    if (range_.least) n = std::max(n, range_.least->fraction.size() + 1);
    if (range_.most) n = std::max(n, range_.most->fraction.size() + 1);
    return n;
  }
  uint32_t digit(char first, char last) {
    const auto [at, is_new] = digits_.emplace(std::make_pair(first, last), 0);
    if (is_new) at->second = tree_->chars(CharSet{{static_cast<uint32_t>(first), static_cast<uint32_t>(last)}});
    return at->second;
  }

  const NumberRange& range_;
  const uint64_t modulus_;
  const size_t scale_;
  Tree* tree_;
  std::map<Place, uint32_t> number_;
  std::vector<Place> todo_;
  std::map<std::pair<char, char>, uint32_t> digits_;
};

}  // namespace

std::optional<uint32_t> number_node(const NumberRange& range, Tree* tree, const char** why) {
  size_t scale = 0;
  for (const Decimal& m : range.multiples) scale = std::max(scale, m.fraction.size());
  uint64_t modulus = range.multiples.empty() ? 0 : 1;
  for (const Decimal& m : range.multiples) {
    const auto factor = scaled(m, scale);
    if (!factor || *factor == 0 || *factor > kMostModulus) return *why = "multipleOf is too large", std::nullopt;
    uint64_t a = modulus, b = *factor;
    while (b != 0) std::tie(a, b) = std::make_pair(b, a % b);
    modulus = modulus / a * *factor;
    if (modulus > kMostModulus) return *why = "multipleOf is too large", std::nullopt;
  }
  if (range.integer && scale > 0) {  // whole multiples alone
    uint64_t power = 1;
    for (size_t i = 0; i < scale; ++i) power *= 10;
    uint64_t a = modulus, b = power;
    while (b != 0) std::tie(a, b) = std::make_pair(b, a % b);
    modulus = modulus / a;  // lcm(modulus, power) / power
    scale = 0;
  }
  const Decimal zero;
  std::vector<uint32_t> choices;
  const auto add = [&](const NumberRange& part, bool minus) {
    Machine machine;
    if (!MagnitudeMachine(part, modulus, scale, tree).build(&machine)) return false;
    const uint32_t node = tree->machine(std::move(machine));
    choices.push_back(minus ? tree->sequence({tree->literal("-"), node}) : node);
    return true;
  };
  *why = "the range of numbers needs too many states";
  if (!range.most || compare(*range.most, zero) >= 0) {
    NumberRange part = range;
    if (part.least && compare(*part.least, zero) < 0) {
      part.least.reset();
      part.above_least = false;
    }
    if (!add(part, false)) return std::nullopt;
  }
  if (!range.least || compare(*range.least, zero) < 0) {  // the magnitudes of what is below zero
    NumberRange part = range;
    part.least = zero;
    part.above_least = true;
    part.most.reset();
    part.below_most = false;
    if (range.most && compare(*range.most, zero) < 0) {
      part.least = range.most;
      part.least->negative = false;
      part.above_least = range.below_most;
    }
    if (range.least) {
      part.most = range.least;
      part.most->negative = false;
      part.below_most = range.above_least;
    }
    if (!add(part, true)) return std::nullopt;
  }
  return tree->choice(choices);
}

}  // namespace orrery::text::grammar

// See numbers.h. std::from_chars reads the digits: no locale, no leading blanks, no sign of its own for whole numbers.
#include "numbers.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <system_error>

#include "system/failure.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

struct Unit {
  const char* name;
  uint64_t factor;
};
constexpr uint64_t kKilo = 1000, kKibi = 1024;
constexpr Unit kByteUnits[] = {{"", 1},
                               {"B", 1},
                               {"K", kKibi},
                               {"KB", kKilo},
                               {"KiB", kKibi},
                               {"M", kKibi* kKibi},
                               {"MB", kKilo* kKilo},
                               {"MiB", kKibi* kKibi},
                               {"G", kKibi* kKibi* kKibi},
                               {"GB", kKilo* kKilo* kKilo},
                               {"GiB", kKibi* kKibi* kKibi},
                               {"T", kKibi* kKibi* kKibi* kKibi},
                               {"TB", kKilo* kKilo* kKilo* kKilo},
                               {"TiB", kKibi* kKibi* kKibi* kKibi}};
constexpr Unit kTokenUnits[] = {{"", 1}, {"k", kKibi}, {"M", kKibi* kKibi}};
constexpr uint64_t kMostBytes = uint64_t{1} << 53;  // far beyond any memory, and exact in a double

std::string shown(double value) {
  if (std::isinf(value)) return value < 0 ? "-infinity" : "infinity";
  return format("%g", value);
}

bool equal_but_for_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

// The number with its unit, if the whole of `text` is one and the product is at most `most`.
template <size_t n>
bool with_unit(std::string_view text, const Unit (&units)[n], uint64_t most, uint64_t* value) {
  const size_t digits = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, digits);
  const std::string_view unit = digits == std::string_view::npos ? std::string_view() : text.substr(digits);
  for (const Unit& known : units) {
    if (!equal_but_for_case(unit, known.name)) continue;
    const char* const end = number.data() + number.size();
    uint64_t whole = 0;
    if (const auto read = std::from_chars(number.data(), end, whole); read.ec == std::errc() && read.ptr == end) {
      if (whole > most / known.factor) return false;
      *value = whole * known.factor;
      return true;
    }
    double fraction = 0;
    const auto read = std::from_chars(number.data(), end, fraction, std::chars_format::fixed);
    const bool whole_text = read.ec == std::errc() && read.ptr == end && number.back() != '.';
    if (!whole_text || known.factor == 1) return false;  // half a byte is no size
    const double product = fraction * static_cast<double>(known.factor);
    if (product > static_cast<double>(most)) return false;
    *value = static_cast<uint64_t>(product);
    return true;
  }
  return false;
}

std::string not_a(std::string_view text, const std::string& what) { return what + ": '" + std::string(text) + "' is not "; }

std::string range(uint64_t least, uint64_t most) {
  if (most < std::numeric_limits<uint64_t>::max()) return " from " + std::to_string(least) + " to " + std::to_string(most);
  return least > 0 ? " of at least " + std::to_string(least) : "";
}

}  // namespace

uint64_t parse_integer(std::string_view text, const std::string& what, uint64_t least, uint64_t most) {
  uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = !text.empty() && problem == std::errc() && end == text.data() + text.size();
  if (whole && value >= least && value <= most) return value;
  throw UsageError(not_a(text, what) + "a whole number" + range(least, most));
}

double parse_real(std::string_view text, const std::string& what, double least, double most) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = !text.empty() && problem == std::errc() && end == text.data() + text.size();
  if (whole && value >= least && value <= most) return value;  // NaN is in no range
  throw UsageError(not_a(text, what) + "a number from " + shown(least) + " to " + shown(most));
}

uint64_t parse_bytes(std::string_view text, const std::string& what) {
  uint64_t bytes = 0;
  if (with_unit(text, kByteUnits, kMostBytes, &bytes) && bytes > 0) return bytes;
  throw UsageError(not_a(text, what) + "a size from 1 byte to 8192TiB, as in 1500000, 512MiB, 4G (= 4GiB) or 1.5GB");
}

bool is_share(std::string_view text) { return !text.empty() && text.back() == '%'; }

double parse_share(std::string_view text, const std::string& what) {
  double value = 0;
  if (is_share(text)) {
    const char* const end = text.data() + text.size() - 1;
    const auto read = std::from_chars(text.data(), end, value, std::chars_format::fixed);
    if (read.ec == std::errc() && read.ptr == end && value >= 1e-4 && value <= 100) return value / 100;
  }
  throw UsageError(not_a(text, what) + "a share from 0.0001% to 100%, as in 30%");
}

uint64_t parse_tokens(std::string_view text, const std::string& what, uint64_t least, uint64_t most) {
  uint64_t tokens = 0;
  if (with_unit(text, kTokenUnits, most, &tokens) && tokens >= least) return tokens;
  throw UsageError(not_a(text, what) + "a number of tokens" + range(least, most) + ", as in 8192 or 32k (= 32768)");
}

}  // namespace orrery::tool

// Decimal numbers of any size, exactly: bounds and factors of a schema, and the numbers that satisfy them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/text/grammar/tree/tree.h"
#include "runtime/text/json/value.h"

namespace orrery::text::grammar {

struct Decimal {
  bool negative = false;
  std::string whole = "0";  // without leading zeros
  std::string fraction;     // without trailing zeros
  bool is_integer() const { return fraction.empty(); }
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

std::optional<Decimal> decimal_of(const Value& number);  // empty: no number, or one beyond 400 digits
int compare(const Decimal& a, const Decimal& b);
bool is_multiple(const Decimal& value, const Decimal& factor);        // factor > 0 and below 2^31 when its point is removed
std::optional<uint64_t> scaled(const Decimal& value, size_t digits);  // |value| times 10^digits, if it is whole and small

struct NumberRange {
  bool integer = false;
  std::optional<Decimal> least, most;
  bool above_least = false, below_most = false;
  std::vector<Decimal> multiples;
};
// The node of all numbers of a range, in decimal notation: at most 17 digits more than the bounds have. Null text: too large, named in
// *why.
std::optional<uint32_t> number_node(const NumberRange& range, Tree* tree, const char** why);

}  // namespace orrery::text::grammar

// The normal form of a JSON schema. For each type of JSON it says what a value of that type must satisfy; a schema is a list of such
// alternatives. Two forms are joined field by field, so keywords that stand side by side, in allOf, or behind $ref always all hold.
//
// A place inside a value (a property, an item) holds a *conjunction*: a set of places of the schema document, each as it stands or negated.
// A conjunction is made into a form when it is needed, once. There are finitely many, so recursive schemas end.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/text/grammar/json_schema/decimal.h"
#include "runtime/text/grammar/json_schema/tagged.h"
#include "runtime/text/grammar/languages/char_dfa.h"
#include "runtime/text/json/value.h"

namespace orrery::text::grammar {

// A set of literals: 2 * place, + 1 if negated; as a number. 0 is the empty set: any value.
using Conjunction = uint32_t;
constexpr Conjunction kAnything = 0;

enum JsonType : uint8_t { kNull = 1, kFalse = 2, kTrue = 4, kNumber = 8, kString = 16, kArray = 32, kObject = 64, kAllTypes = 127 };

struct NumberForm {
  bool integer = false;
  std::optional<Decimal> least, most;
  bool above_least = false, below_most = false;  // the bound itself is excluded
  std::vector<Decimal> multiples;
  bool free() const { return !integer && !least && !most && multiples.empty(); }
};

struct StringForm {
  CharSet set = CharSet::all();  // of every character
  uint32_t least = 0, most = kUnbounded;
  std::shared_ptr<const CharDfa> dfa;  // null: any text
};

struct ArrayForm {
  struct Contains {
    Conjunction what;
    uint32_t least;
  };
  std::vector<Conjunction> prefix;
  Conjunction rest = kAnything;
  uint32_t least = 0, most = kUnbounded;
  std::vector<Contains> contains;
  bool unique = false;
  uint32_t evaluated = 0;       // the first items that a keyword in place looks at; kUnbounded: all. As of objects
  bool evaluates_some = false;  // contains looks at further items: those that satisfy it
  bool free() const { return prefix.empty() && rest == kAnything && least == 0 && most == kUnbounded && contains.empty() && !unique; }
};

struct ObjectForm {
  std::vector<std::pair<std::string, Conjunction>> properties;
  std::vector<std::pair<std::shared_ptr<const CharDfa>, Conjunction>> classes;  // disjoint sets of other keys
  Conjunction rest = kAnything;                                                 // keys that are in none of them
  std::vector<std::string> required;
  uint32_t least = 0, most = kUnbounded;
  // The keys that a keyword in place looks at: names, texts of classes, or all. They constrain nothing until unevaluatedProperties reads
  // them.
  struct Evaluated {
    std::vector<std::string> names;
    std::vector<std::shared_ptr<const CharDfa>> classes;
    bool all = false;
  } evaluated;
  bool free() const {
    return properties.empty() && classes.empty() && rest == kAnything && required.empty() && least == 0 && most == kUnbounded;
  }
  Conjunction of(const std::string& key) const;  // not the index into `properties` but what a key's value must satisfy
};

struct Alternative {
  uint8_t types = kAllTypes;
  NumberForm number;
  StringForm string;
  ArrayForm array;
  ObjectForm object;
  std::shared_ptr<const std::vector<Value>> values;  // null: not enumerated
  bool may_evaluate_more = false;                    // other choices may hold, too, and look at other keys or items
};
using Form = std::vector<Alternative>;  // empty: no value

// The texts of formats, by the format's expression. Several schemas may share them, one after the other.
using FormatTexts = std::map<std::string_view, StringForm>;

struct SchemaOptions {
  enum class Whitespace : uint32_t { free, compact, spaced } whitespace = Whitespace::free;
  bool any_order = false;                 // of an object's keys; otherwise the schema's order
  const TaggedOptions* tagged = nullptr;  // of the root, which is then an object; null: JSON
  FormatTexts* formats = nullptr;         // null: the schema's own
};

// Reads a document and answers what conjunctions of its places mean.
class SchemaDocument {
 public:
  SchemaDocument(Value root, const CompileLimits& limits, std::vector<std::string>* notices, FormatTexts* formats = nullptr);
  ~SchemaDocument();
  Status index();
  Result<const Form*> form(Conjunction c);
  Conjunction root();
  Conjunction join(Conjunction a, Conjunction b);
  Conjunction nothing();
  // No value satisfies it, as far as one can see without looking into recursion.
  Result<bool> is_nothing(Conjunction c);
  Result<bool> satisfies(const Value& value, Conjunction c);
  Result<bool> satisfies(const Value& value, const Alternative& a);
  std::string place_of(Conjunction c) const;  // for messages: a JSON pointer

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;
};

// Errors: invalid_argument and unsupported, which name the schema's place and keyword.
Result<Tree> schema_tree(std::string_view source, const SchemaOptions& options, const CompileLimits& limits,
                         std::vector<std::string>* notices);

}  // namespace orrery::text::grammar

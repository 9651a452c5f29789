// Keywords -> forms.
#pragma once

#include <set>

#include "runtime/text/grammar/json_schema/form.h"
#include "runtime/text/pace.h"

namespace orrery::text::grammar {

class SchemaDocument::Reader {
 public:
  Reader(Value root, const CompileLimits& limits, std::vector<std::string>* notices, FormatTexts* formats)
      : root_(std::move(root)), limits_(limits), pace_(limits.cancel), notices_(*notices),
        formats_(formats != nullptr ? *formats : own_formats_) {}

  Status index();
  Result<const Form*> form(Conjunction c);
  Conjunction join(Conjunction a, Conjunction b);
  Conjunction literal(uint32_t number);
  Conjunction nothing() { return literal(kFalsePlace * 2); }
  Result<bool> is_nothing(Conjunction c);
  Result<bool> satisfies(const Value& value, Conjunction c, int depth);
  Result<bool> satisfies(const Value& value, const Alternative& a, int depth);
  std::string place_of(Conjunction c) const;
  uint32_t root_place() const { return root_number_; }

 private:
  static constexpr uint32_t kTruePlace = 0, kFalsePlace = 1;
  static constexpr int kMostDepth = 64;  // references within references at one place of a value
  static constexpr size_t kMostAlternatives = 1024;
  struct Place {
    Value schema;
    std::string pointer;
    std::string base;  // the URI that references are relative to
  };

  Status refuse(uint32_t place, const std::string& keyword, const std::string& why, Code code = Code::unsupported) const;
  Result<uint32_t> place(const Value& schema, uint32_t parent, const std::string& keyword);
  Result<Conjunction> child(const Value& schema, uint32_t parent, const std::string& keyword);
  Result<uint32_t> resolve(uint32_t from, const std::string& reference);
  Result<const Value*> pointed(const Value& from, std::string_view pointer) const;

  Result<Form> positive(uint32_t place, int depth);
  Result<Form> negative(uint32_t place, int depth);
  Result<Form> literal_form(uint32_t number, int depth);
  Result<Form> both(const Form& a, const Form& b, uint32_t place);
  Result<std::optional<Alternative>> both(const Alternative& a, const Alternative& b);
  Status both_objects(const ObjectForm& a, const ObjectForm& b, ObjectForm* out);
  Result<Form> negate(const Alternative& a, uint32_t place);
  Status negate_object(const ObjectForm& object, uint32_t place, Form* out);

  Status simple_keywords(uint32_t place, Alternative* out);
  Status number_keyword(uint32_t place, const std::string& key, const Value& value, NumberForm* out);
  Status string_keywords(uint32_t place, StringForm* out);
  Status array_keywords(uint32_t place, ArrayForm* out);
  Status object_keywords(uint32_t place, ObjectForm* out);
  Status applicators(uint32_t place, int depth, Form* form);
  Status unevaluated(uint32_t place, Form* form);
  Result<Form> one_of(uint32_t place, const Value& list, int depth);
  Result<uint32_t> count(uint32_t place, const std::string& key, const Value& value) const;
  Status check_keywords(uint32_t place);
  Result<bool> empty_alternative(const Alternative& a, int depth);

  Value root_;
  const CompileLimits& limits_;
  Pace pace_;
  std::vector<std::string>& notices_;
  std::set<std::string> noticed_;
  bool legacy_ = false;  // draft 7 or older: keywords beside $ref are ignored
  uint32_t root_number_ = 0;
  std::vector<Place> places_;
  std::unordered_map<const void*, uint32_t> place_numbers_;
  std::map<std::string, uint32_t> identifiers_;  // URIs of $id and anchors
  std::vector<std::vector<uint32_t>> conjunctions_ = {{}};
  std::map<std::vector<uint32_t>, uint32_t> conjunction_numbers_ = {{{}, 0}};
  FormatTexts own_formats_;
  FormatTexts& formats_;
  std::map<uint32_t, Form> literal_forms_;
  std::map<Conjunction, std::unique_ptr<Form>> forms_;
  std::set<uint32_t> in_progress_;
  std::map<Conjunction, bool> nothing_;
};

// A format's expression, or null.
const char* format_expression(std::string_view name);
// For each JSON type that a value may have: the bit; 0 for what JSON has not.
uint8_t type_of(const Value& value);
// The names of both lists, each once, in the order in which they come.
std::vector<std::string> without_repeats(const std::vector<std::string>& a, const std::vector<std::string>& b);
bool json_equal(const Value& a, const Value& b);
Result<std::shared_ptr<const CharDfa>> dfa_of(const StringForm& s);

}  // namespace orrery::text::grammar

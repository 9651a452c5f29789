// Formats of texts as regular expressions. Every text that an expression takes has the format. Where a format is no regular language or has
// rules of meaning, its expression takes less: `regex` has groups to a depth of two, and neither back references nor named groups.
#include <utility>

#include "runtime/text/grammar/json_schema/reader.h"

namespace orrery::text::grammar {
namespace {

#define ORRERY_DATE                                                                                                                 \
  "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))" \
  "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define ORRERY_TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define ORRERY_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define ORRERY_IPV4 ORRERY_BYTE "(?:\\." ORRERY_BYTE "){3}"
#define ORRERY_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define ORRERY_HEX4 "[0-9A-Fa-f]{1,4}"

// RFC 3986, and with further characters RFC 3987. `more`: characters within brackets.
#define ORRERY_UNICODE "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF\\u{10000}-\\u{1FFFD}\\u{20000}-\\u{2FFFD}"
#define ORRERY_ESCAPED "|%[0-9A-Fa-f]{2})"
#define ORRERY_PATH_CHAR(more) "(?:[A-Za-z0-9._~!$&'()*+,;=:@" more "-]" ORRERY_ESCAPED
#define ORRERY_NO_COLON(more) "(?:[A-Za-z0-9._~!$&'()*+,;=@" more "-]" ORRERY_ESCAPED
#define ORRERY_AUTHORITY(more) "(?:[A-Za-z0-9._~!$&'()*+,;=:" more "-]" ORRERY_ESCAPED "+"
#define ORRERY_PATH(more) "(?:/" ORRERY_PATH_CHAR(more) "*)*"
#define ORRERY_TAIL(more)                                          \
  "(?:\\?(?:[A-Za-z0-9._~!$&'()*+,;=:@/?" more "-]" ORRERY_ESCAPED \
  "*)?"                                                            \
  "(?:#(?:[A-Za-z0-9._~!$&'()*+,;=:@/?" more "-]" ORRERY_ESCAPED "*)?"
#define ORRERY_URI(more)                                 \
  "[A-Za-z][A-Za-z0-9+.-]*:(?://" ORRERY_AUTHORITY(more) \
      ORRERY_PATH(more) "|(?:///|/?)" ORRERY_PATH_CHAR(more) "+" ORRERY_PATH(more) ")" ORRERY_TAIL(more)
#define ORRERY_RELATIVE(more)                                                                                                  \
  "(?://" ORRERY_AUTHORITY(more) ORRERY_PATH(more) "|/(?:" ORRERY_PATH_CHAR(more) "+" ORRERY_PATH(more) ")?|" ORRERY_NO_COLON( \
      more) "+" ORRERY_PATH(more) ")?" ORRERY_TAIL(more)

#define ORRERY_VARIABLE "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(?::[1-9][0-9]{0,3}|\\*)?"
#define ORRERY_POINTER "(?:/(?:[^~/]|~[01])*)*"

// A regular expression: atoms, how often they repeat, and what reads no character. `inner`: what stands in a group.
#define ORRERY_REGEX_ESCAPE(more) "\\\\(?:[dDwWsStnrfv^$\\\\.*+?()\\[\\]{}|/" more "]|x[0-9A-Fa-f]{2})"
#define ORRERY_REGEX_RANGE "0-[0-9]|1-[1-9]|[2-8]-9|a-[a-z]|[b-y]-z|A-[A-Z]|[B-Y]-Z"
#define ORRERY_REGEX_CLASS "\\[\\^?(?:[^\\[\\]\\\\^&|~-]|" ORRERY_REGEX_RANGE "|" ORRERY_REGEX_ESCAPE("-") ")+-?\\]"
#define ORRERY_REGEX_RISING \
  "0,[0-9]|1,[1-9]|2,[2-9]|3,[3-9]|4,[4-9]|5,[5-9]|6,[6-9]|7,[7-9]|8,[89]|9,9|[0-9],[1-9][0-9]{1,2}|[1-9][0-9],[1-9][0-9]{2}"
#define ORRERY_REGEX_TIMES "(?:(?:[*+?]|\\{[0-9]{1,3},?\\}|\\{(?:" ORRERY_REGEX_RISING ")\\})[?]?)?"
#define ORRERY_REGEX_ATOM "[^^$\\\\.*+?()\\[\\]{}|]|\\.|" ORRERY_REGEX_ESCAPE("") "|" ORRERY_REGEX_CLASS
#define ORRERY_REGEX_PLACE "[|^$]|\\\\[bB]"
#define ORRERY_REGEX_0 "(?:(?:" ORRERY_REGEX_ATOM ")" ORRERY_REGEX_TIMES "|" ORRERY_REGEX_PLACE ")*"
#define ORRERY_REGEX_GROUP(inner) \
  "(?:(?:" ORRERY_REGEX_ATOM "|\\((?:\\?:)?" inner "\\))" ORRERY_REGEX_TIMES "|\\(\\?[=!]" inner "\\)|" ORRERY_REGEX_PLACE ")*"
#define ORRERY_REGEX_1 ORRERY_REGEX_GROUP(ORRERY_REGEX_0)
#define ORRERY_REGEX_2 ORRERY_REGEX_GROUP(ORRERY_REGEX_1)

constexpr std::pair<const char*, const char*> kFormats[] = {
    {"date", "^" ORRERY_DATE "$"},
    {"time", "^" ORRERY_TIME "$"},
    {"date-time", "^" ORRERY_DATE "[Tt]" ORRERY_TIME "$"},
    {"duration",
     "^P(?:[0-9]+W|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|[0-9]+M(?:[0-9]+D)?"
     "(?:T(?:"
     "[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|[0-9]+D(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-"
     "9]+S))?"
     "|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))$"},
    {"email", "^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" ORRERY_LABEL "(?:\\." ORRERY_LABEL ")*$"},
    {"hostname", "^[A-Za-z0-9](?:[A-Za-z0-9]|-[A-Za-z0-9]){0,30}(?:\\.[A-Za-z0-9](?:[A-Za-z0-9]|-[A-Za-z0-9]){0,30}){0,3}$"},
    {"ipv4", "^" ORRERY_IPV4 "$"},
    {"ipv6", "^(?:(?:" ORRERY_HEX4 ":){7}" ORRERY_HEX4 "|(?:" ORRERY_HEX4 ":){1,7}:|(?:" ORRERY_HEX4 ":){1,6}:" ORRERY_HEX4
             "|(?:" ORRERY_HEX4 ":){1,5}(?::" ORRERY_HEX4 "){2}|(?:" ORRERY_HEX4 ":){1,4}(?::" ORRERY_HEX4 "){3}|(?:" ORRERY_HEX4
             ":){1,3}(?::" ORRERY_HEX4 "){4}|(?:" ORRERY_HEX4 ":){1,2}(?::" ORRERY_HEX4 "){5}|" ORRERY_HEX4 ":(?::" ORRERY_HEX4
             "){6}|:(?:(?::" ORRERY_HEX4 "){1,7}|:)|(?:" ORRERY_HEX4 ":){6}" ORRERY_IPV4 "|::(?:" ORRERY_HEX4 ":){0,5}" ORRERY_IPV4 ")$"},
    {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    {"uri", "^" ORRERY_URI("") "$"},
    {"uri-reference", "^(?:" ORRERY_URI("") "|" ORRERY_RELATIVE("") ")$"},
    {"iri", "^" ORRERY_URI(ORRERY_UNICODE) "$"},
    {"iri-reference", "^(?:" ORRERY_URI(ORRERY_UNICODE) "|" ORRERY_RELATIVE(ORRERY_UNICODE) ")$"},
    {"uri-template",
     "^(?:[!#$&(-;=?-\\[\\]_a-z~" ORRERY_UNICODE "]|%[0-9A-Fa-f]{2}|\\{[+#./;?&]?" ORRERY_VARIABLE "(?:," ORRERY_VARIABLE ")*\\})*$"},
    {"json-pointer", "^" ORRERY_POINTER "$"},
    {"relative-json-pointer", "^(?:0|[1-9][0-9]{0,8})(?:#|" ORRERY_POINTER ")$"},
    {"regex", "^" ORRERY_REGEX_2 "$"}};

}  // namespace

const char* format_expression(std::string_view name) {
  for (const auto& format : kFormats)
    if (name == format.first) return format.second;
  return nullptr;
}

}  // namespace orrery::text::grammar

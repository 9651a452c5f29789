// Arguments of a call that are not one JSON object: each has a key and a value of its own, with texts around them, as chat templates write
// them: <parameter=K>V</parameter>, K="V". Index 0 is of strings, which stand raw; 1 of other values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace orrery::text::grammar {

class Tree;

struct TaggedFormat {
  std::string open;              // before the first key
  std::string to_value[2];       // from a key to its value
  std::string close[2];          // what ends a value
  std::string next_key;          // from there to the next key
  std::string end;               // after the last value's close
  std::string none;              // instead of all this, without arguments
  std::string string_end;        // begins what follows a string, and no string contains it
  bool sorted = false;           // keys come in alphabetical order
  std::string words[3];          // how true, false and null are written
  bool nested = false;           // lists and objects are written as JSON
};

// How a schema's root object becomes rules for tagged arguments.
struct TaggedOptions {
  const TaggedFormat* format = nullptr;
  std::function<uint32_t(Tree*, std::string_view)> literal;   // a node of a text of the format
  std::map<std::string, bool, std::less<>>* is_string = nullptr;   // filled in: of each key, whether its value is a raw string
};

}  // namespace orrery::text::grammar

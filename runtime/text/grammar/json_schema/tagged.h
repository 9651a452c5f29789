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

// How a list or an object is written as a value, with all that lies in it.
enum class Notation : uint8_t {
  none,  // not at all
  json,
  bare,    // strings stand raw between marks, keys stand without marks: {key:<|"|>text<|"|>,other:[1,2]}
  python,  // ['text', True, {'key': None}]
};
// Of `bare`; words and the order of keys are the tagged format's.
struct BareMarks {
  std::string open, close;  // around a string, which has no `close`
  std::string comma, colon;
};
enum class KeyOrder : uint8_t { given, bytes, letters };  // letters: upper and lower case alike

struct TaggedFormat {
  std::string open;         // before the first key
  std::string to_value[2];  // from a key to its value
  std::string close[2];     // what ends a value
  std::string next_key;     // from there to the next key
  std::string end;          // after the last value's close
  std::string none;         // instead of all this, without arguments
  std::string string_end;   // begins what follows a string, and no string contains it
  KeyOrder order = KeyOrder::given;
  std::string words[3];  // how true, false and null are written
  Notation lists = Notation::none, objects = Notation::none;
  BareMarks bare;

  bool before(std::string_view a, std::string_view b) const;  // of two keys, by `order`, which is not `given`
  // What a key ends with: it stands before every value.
  std::string_view key_end() const;
};
// Keys of a bare object consist of these.
inline bool is_bare_key_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// How a schema's root object becomes rules for tagged arguments.
struct TaggedOptions {
  const TaggedFormat* format = nullptr;
  std::function<uint32_t(Tree*, std::string_view)> literal;       // a node of a text of the format
  std::map<std::string, bool, std::less<>>* is_string = nullptr;  // filled in: of each key, whether its value is a raw string
};

}  // namespace orrery::text::grammar

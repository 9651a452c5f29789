// Dynamic values of chat templates and JSON: null, booleans, integers, floats, strings, lists, tuples, and maps that
// keep insertion order. A Value has sixteen bytes and is immutable, but for growing_list(). Copies share one reference-counted body, so
// passing a conversation to a template copies no text, and several threads may read it at once. Bodies are freed in a
// loop, so nesting of any depth takes no stack.
//
// Strings are UTF-8 bytes. Positions and lengths count code points, as templates expect. Each byte that is not valid
// UTF-8 counts as one position, so no operation fails on such bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/origin_text.h"

namespace orrery::text {

class Value;
class Map;

enum class Kind : uint8_t {
  undefined,  // a name or member that does not exist; may hold a hint for messages
  none,
  boolean,
  integer,      // fits int64
  big_integer,  // an integer beyond int64, kept as its decimal digits; can only be compared and printed
  floating,
  string,
  list,
  tuple,
  view,  // the result of range(), dict.keys() and similar calls: list-like, not a list
  map,
  object,  // macros, namespaces, bound methods, generators; exist only while a template renders
};

namespace detail {

class DeadList;

// The body of every value that is not a scalar.
class Node {
 public:
  virtual ~Node() = default;
  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

 private:
  // Moves the references that this body owns to `dead`, so freeing them needs no recursion.
  virtual void surrender(DeadList& dead) { (void)dead; }

  friend class DeadList;
  friend class orrery::text::Value;
  std::atomic<uint32_t> refs_{1};
  Node* next_dead_ = nullptr;
};

struct StringNode;
struct ListNode;
struct MapNode;

}  // namespace detail

class Value {
 public:
  Value() = default;  // undefined, without a hint
  Value(const Value& other) noexcept : kind_(other.kind_), data_(other.data_) { retain(); }
  Value(Value&& other) noexcept : kind_(other.kind_), data_(other.data_) {
    other.kind_ = Kind::undefined;
    other.data_.node = nullptr;
  }
  Value& operator=(const Value& other) noexcept {
    Value copy(other);
    swap(copy);
    return *this;
  }
  Value& operator=(Value&& other) noexcept {
    Value moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Value() { release(); }
  void swap(Value& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
  }

  // `hint` completes "... is undefined" in messages.
  static Value undefined(std::string hint);
  static Value none();
  static Value boolean(bool v);
  static Value integer(int64_t v);
  static Value floating(double v);
  static Value string(std::string v);   // data; see origin_text.h
  static Value literal(std::string v);  // of the chat template
  static Value text(Text v);
  static Value markup(Text v);                   // text marked as already escaped; otherwise as a string
  static Value big_integer(std::string digits);  // "-" and digits, canonical, outside int64
  static Value list(std::vector<Value> items);
  static Value growing_list(std::vector<Value> items);  // that a template makes: the one value that can change
  static Value tuple(std::vector<Value> items);
  static Value map(Map items);
  static Value object(detail::Node* node);  // takes ownership of the caller's reference

  enum class ViewType : uint8_t { none, range, keys, values, items, group };
  static Value view(ViewType type, std::vector<Value> items, int64_t start = 0, int64_t stop = 0, int64_t step = 1);

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::undefined; }
  bool is_none() const { return kind_ == Kind::none; }
  bool is_bool() const { return kind_ == Kind::boolean; }
  bool is_int() const { return kind_ == Kind::integer; }  // false for booleans
  bool is_float() const { return kind_ == Kind::floating; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_list() const { return kind_ == Kind::list; }
  bool is_tuple() const { return kind_ == Kind::tuple; }
  bool is_sequence() const { return kind_ == Kind::list || kind_ == Kind::tuple || kind_ == Kind::view; }
  bool is_map() const { return kind_ == Kind::map; }
  bool is_object() const { return kind_ == Kind::object; }
  bool is_intlike() const { return is_bool() || is_int(); }
  bool is_number() const { return is_intlike() || is_float(); }  // false for big integers

  // Accessors. Each one is valid only for its own kind.
  bool as_bool() const { return data_.boolean; }
  int64_t as_int() const { return kind_ == Kind::boolean ? data_.boolean : data_.integer; }
  double as_float() const { return kind_ == Kind::floating ? data_.floating : static_cast<double>(as_int()); }
  std::string_view as_string() const;  // UTF-8; for a big integer its digits; for an undefined value its hint
  TextView as_text() const;            // of a string, with the origins of its bytes
  bool is_markup() const;
  bool is_growing() const;
  // Of a growing list; all copies of the Value see it. A list may then hold itself: whoever appends clears the list at last.
  void append(Value item) const;
  void clear() const;
  const std::vector<Value>& as_items() const;  // list, tuple, view
  const Map& as_map() const;
  ViewType view_type() const;
  const int64_t* range_bounds() const;                  // start, stop, step of a range view
  detail::Node* as_node() const { return data_.node; }  // identity of a value that is not a scalar; null for scalars

  // An element of groupby's result: a pair whose items also have the names `grouper` and `list`.
  static Value group(Value grouper, Value list);
  bool is_group() const;

  // Strings: the number of code points, and the byte offset of code point `index` (0 .. length, inclusive).
  size_t string_length() const;
  size_t string_offset(size_t index) const;

  // Look-up for readers of JSON: null if this is no map or has no such key.
  const Value* find(std::string_view key) const;

  // Python's == for every kind. Objects compare by identity. Nesting is followed to a fixed depth; deeper values
  // compare unequal. Comparing lists that share parts can take exponential time. `work` therefore bounds the number
  // of compared values: the call subtracts that number, and returns false at zero.
  bool equals(const Value& other, uint64_t* work) const;
  bool equals(const Value& other) const {
    uint64_t work = 1ull << 26;
    return equals(other, &work);
  }

 private:
  bool counted() const {
    return (kind_ >= Kind::string || kind_ == Kind::undefined || kind_ == Kind::big_integer) && data_.node != nullptr;
  }
  void retain() const noexcept {
    if (counted()) data_.node->refs_.fetch_add(1, std::memory_order_relaxed);
  }
  void release() noexcept;
  Value(Kind kind, detail::Node* node) : kind_(kind) { data_.node = node; }

  friend class detail::DeadList;
  Kind kind_ = Kind::undefined;
  union Data {
    detail::Node* node;
    bool boolean;
    int64_t integer;
    double floating;
  } data_{nullptr};
};

namespace detail {
// Bodies without references that wait to be freed in a loop.
class DeadList {
 public:
  void take(Value& value) noexcept {
    if (!value.counted()) return;
    Node* node = value.data_.node;
    value.kind_ = Kind::undefined;
    value.data_.node = nullptr;
    if (node->refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    node->next_dead_ = head_;
    head_ = node;
  }
  void drain() noexcept {
    while (Node* node = head_) {
      head_ = node->next_dead_;
      node->surrender(*this);
      delete node;
    }
  }

 private:
  Node* head_ = nullptr;
};
}  // namespace detail

// Pairs in insertion order, with look-up by key. Keys compare as in Python: 1, 1.0 and true are one key.
class Map {
 public:
  using Entry = std::pair<Value, Value>;

  Map();
  Map(Map&&) noexcept;
  Map& operator=(Map&&) noexcept;
  Map(const Map& other);
  ~Map();

  void set(Value key, Value value);  // an existing key keeps its place
  void set(std::string_view key, Value value) { set(Value::string(std::string(key)), std::move(value)); }
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  void surrender(detail::DeadList& dead);  // moves every reference out; called by bodies that hold a map

 private:
  struct KeyLess {
    bool operator()(const Value& a, const Value& b) const;
  };
  size_t position(const Value& key) const;  // entries_.size() if absent

  std::vector<Entry> entries_;
  // Only for larger maps. A tree and not a hash table, because keys are hostile input, and no choice of keys makes a
  // tree slow.
  std::unique_ptr<std::map<Value, size_t, KeyLess>> index_;
};

// Whether `key` may be a map's key (Python's hashable): scalars, strings, objects, and tuples of such values. A tuple
// may have up to 1,000 values and 32 levels, which keeps look-ups cheap.
bool is_hashable(const Value& key);
// What comparing a hashable key takes at most: its values, and a part of their bytes.
size_t key_cost(const Value& key);

// The order of two numbers (is_number), exact also between integers and floats: -1, 0 or 1. 2 if one is not a number.
int compare_numbers(const Value& a, const Value& b);

}  // namespace orrery::text

// Bodies of values: strings with their code point positions, lists, maps; equality and key order. A long non-ASCII
// string gets a mark at every 256th code point, made once. Marks make slices of a prompt cheap.
#include "runtime/text/json/value.h"

#include <algorithm>
#include <cmath>

#include "runtime/text/unicode/python_characters.h"

namespace orrery::text {

namespace detail {

constexpr size_t kMarkEvery = 256;
constexpr size_t kMaxCompareDepth = 200;
constexpr size_t kMaxKeyValues = 1000;
constexpr size_t kMaxKeyDepth = 32;  // of tuples inside tuples; bounds the stack that a comparison of keys uses

struct StringNode : Node {
  Text text;
  size_t length = 0;            // code points
  std::vector<uint32_t> marks;  // byte offset of code points 256, 512, ...
  bool markup = false;
};

struct ListNode : Node {
  std::vector<Value> items;
  Value::ViewType type = Value::ViewType::none;
  int64_t range[3] = {0, 0, 1};
  bool growing = false;
  void surrender(DeadList& dead) override {
    for (Value& v : items) dead.take(v);
  }
};

struct MapNode : Node {
  Map map;
  void surrender(DeadList& dead) override { map.surrender(dead); }
};

}  // namespace detail

using detail::ListNode;
using detail::MapNode;
using detail::StringNode;

namespace {

StringNode* make_string(Text from) {
  auto node = std::make_unique<StringNode>();
  const std::string& v = from.bytes();
  size_t ascii = 0;
  while (ascii < v.size() && static_cast<unsigned char>(v[ascii]) < 0x80) ++ascii;
  if (ascii == v.size()) {
    node->length = v.size();
  } else {
    size_t count = 0;
    for (size_t pos = 0; pos < v.size();) {
      if (count != 0 && count % detail::kMarkEvery == 0) node->marks.push_back(static_cast<uint32_t>(pos));
      pos += unicode::sequence_length(v, pos);
      ++count;
    }
    node->length = count;
  }
  node->text = std::move(from);
  return node.release();
}

// The result of comparing two values without their contents.
enum class Likeness : uint8_t { unequal, equal, by_items, by_entries };

// Views of keys and items compare as sets if their elements can be keys.
Likeness compare_views(const Value& a, const Value& b) {
  if (a.view_type() != b.view_type() || a.view_type() == Value::ViewType::values) return Likeness::unequal;
  if (a.view_type() == Value::ViewType::range) return Likeness::by_items;
  if (a.as_items().size() != b.as_items().size()) return Likeness::unequal;
  Map keys;
  for (const Value& v : a.as_items()) {
    if (!is_hashable(v)) return Likeness::by_items;
    keys.set(v, Value::none());
  }
  for (const Value& v : b.as_items())
    if (!is_hashable(v) || !keys.find(v)) return Likeness::unequal;
  return Likeness::equal;
}

Likeness compare_outside(const Value& a, const Value& b, uint64_t* work) {
  const auto verdict = [](bool equal) { return equal ? Likeness::equal : Likeness::unequal; };
  if (a.is_number() && b.is_number()) return verdict(compare_numbers(a, b) == 0);
  if (a.kind() != b.kind()) return Likeness::unequal;
  switch (a.kind()) {
    case Kind::string:
    case Kind::big_integer:
      if (a.as_string().size() != b.as_string().size()) return Likeness::unequal;
      *work -= std::min<uint64_t>(*work, a.as_string().size() / 16);
      return verdict(a.as_string() == b.as_string());
    case Kind::list:
    case Kind::tuple:
    case Kind::view:
    case Kind::map: break;
    case Kind::object: return verdict(a.as_node() == b.as_node());
    default: return Likeness::equal;  // none, undefined
  }
  if (a.as_node() == b.as_node()) return Likeness::equal;
  if (a.is_map()) return a.as_map().size() == b.as_map().size() ? Likeness::by_entries : Likeness::unequal;
  if (a.kind() == Kind::view) {
    *work -= std::min<uint64_t>(*work, 16 * (a.as_items().size() + b.as_items().size()));
    const Likeness views = compare_views(a, b);
    if (views != Likeness::by_items) return views;
  }
  return a.as_items().size() == b.as_items().size() ? Likeness::by_items : Likeness::unequal;
}

// Walks both values in parallel without recursion: a level of nesting is a frame of this stack.
bool equal_values(const Value& left, const Value& right, uint64_t* work) {
  struct Frame {
    const Value *a, *b;
    size_t next;
  };
  Frame frames[detail::kMaxCompareDepth];
  size_t depth = 0;
  const Value *a = &left, *b = &right;
  for (;;) {
    if (*work == 0) return false;
    --*work;
    switch (compare_outside(*a, *b, work)) {
      case Likeness::unequal: return false;
      case Likeness::equal: break;
      default:
        if (depth >= detail::kMaxCompareDepth) return false;
        frames[depth++] = {a, b, 0};
    }
    for (;; --depth) {  // the next pair
      if (depth == 0) return true;
      Frame& f = frames[depth - 1];
      if (f.a->is_map()) {
        const auto& entries = f.a->as_map().entries();
        if (f.next == entries.size()) continue;
        const Map::Entry& e = entries[f.next++];
        *work -= std::min<uint64_t>(*work, 4 * key_cost(e.first));
        a = &e.second;
        b = f.b->as_map().find(e.first);
        if (b == nullptr) return false;
      } else {
        if (f.next == f.a->as_items().size()) continue;
        a = &f.a->as_items()[f.next];
        b = &f.b->as_items()[f.next++];
      }
      break;
    }
  }
}

// Keys of different ranks are never equal.
int key_rank(const Value& v) {
  switch (v.kind()) {
    case Kind::none: return 0;
    case Kind::boolean:
    case Kind::integer:
    case Kind::floating: return 1;
    case Kind::big_integer: return 2;
    case Kind::string: return 3;
    case Kind::tuple: return 4;
    case Kind::undefined: return 5;
    default: return 6;
  }
}

int compare_keys(const Value& a, const Value& b, size_t depth) {
  const int rank_a = key_rank(a), rank_b = key_rank(b);
  if (rank_a != rank_b) return rank_a < rank_b ? -1 : 1;
  switch (rank_a) {
    case 1: {
      const int order = compare_numbers(a, b);
      if (order != 2) return order;
      const bool nan_a = a.is_float() && std::isnan(a.as_float()), nan_b = b.is_float() && std::isnan(b.as_float());
      return nan_a == nan_b ? 0 : (nan_a ? 1 : -1);
    }
    case 2:
    case 3: {
      const int order = a.as_string().compare(b.as_string());
      return order < 0 ? -1 : (order > 0 ? 1 : 0);
    }
    case 4: {
      if (depth >= detail::kMaxKeyValues) return 0;
      const auto &x = a.as_items(), &y = b.as_items();
      for (size_t i = 0; i < x.size() && i < y.size(); ++i)
        if (const int order = compare_keys(x[i], y[i], depth + 1); order != 0) return order;
      return x.size() == y.size() ? 0 : (x.size() < y.size() ? -1 : 1);
    }
    case 6: return a.as_node() == b.as_node() ? 0 : (std::less<>()(a.as_node(), b.as_node()) ? -1 : 1);
    default: return 0;
  }
}

bool hashable(const Value& key, size_t depth, size_t* left) {
  if (*left == 0 || depth > detail::kMaxKeyDepth) return false;
  --*left;
  if (key.is_tuple()) {
    for (const Value& v : key.as_items())
      if (!hashable(v, depth + 1, left)) return false;
    return true;
  }
  return key.kind() != Kind::list && key.kind() != Kind::map && key.kind() != Kind::view;
}

}  // namespace

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_intlike() && b.is_intlike()) {
    const int64_t x = a.as_int(), y = b.as_int();
    return x < y ? -1 : (x > y ? 1 : 0);
  }
  if (a.is_float() && b.is_float()) {
    const double x = a.as_float(), y = b.as_float();
    return x < y ? -1 : (x > y ? 1 : (x == y ? 0 : 2));
  }
  if (a.is_float()) {
    const int order = compare_numbers(b, a);
    return order == 2 ? 2 : -order;
  }
  // An integer and a float compare as integers if the float fits, so no bit is lost.
  const int64_t x = a.as_int();
  const double y = b.as_float();
  if (std::isnan(y)) return 2;
  if (y >= 9223372036854775808.0) return -1;
  if (y < -9223372036854775808.0) return 1;
  const double whole = std::trunc(y);
  const int64_t whole_int = static_cast<int64_t>(whole);
  if (x != whole_int) return x < whole_int ? -1 : 1;
  return y > whole ? -1 : (y < whole ? 1 : 0);
}

bool is_hashable(const Value& key) {
  size_t left = detail::kMaxKeyValues;
  return hashable(key, 0, &left);
}

size_t key_cost(const Value& key) {
  if (key.is_string()) return 1 + key.as_string().size() / 64;
  size_t cost = 1;
  if (key.is_tuple())
    for (const Value& v : key.as_items()) cost += key_cost(v);
  return cost;
}

void Value::release() noexcept {
  if (!counted()) return;
  detail::DeadList dead;
  dead.take(*this);
  dead.drain();
}

Value Value::undefined(std::string hint) { return Value(Kind::undefined, make_string(Text::data(std::move(hint)))); }
Value Value::none() {
  Value v;
  v.kind_ = Kind::none;
  return v;
}
Value Value::boolean(bool b) {
  Value v;
  v.kind_ = Kind::boolean;
  v.data_.boolean = b;
  return v;
}
Value Value::integer(int64_t i) {
  Value v;
  v.kind_ = Kind::integer;
  v.data_.integer = i;
  return v;
}
Value Value::floating(double d) {
  Value v;
  v.kind_ = Kind::floating;
  v.data_.floating = d;
  return v;
}
Value Value::text(Text s) { return Value(Kind::string, make_string(std::move(s))); }
Value Value::string(std::string s) { return text(Text::data(std::move(s))); }
Value Value::literal(std::string s) { return text(Text(std::move(s), Origin::chat_template)); }
Value Value::markup(Text s) {
  StringNode* node = make_string(std::move(s));
  node->markup = true;
  return Value(Kind::string, node);
}
Value Value::big_integer(std::string digits) { return Value(Kind::big_integer, make_string(Text::data(std::move(digits)))); }
Value Value::list(std::vector<Value> items) {
  auto* node = new ListNode;
  node->items = std::move(items);
  return Value(Kind::list, node);
}
Value Value::growing_list(std::vector<Value> items) {
  Value v = list(std::move(items));
  static_cast<ListNode*>(v.data_.node)->growing = true;
  return v;
}
Value Value::tuple(std::vector<Value> items) {
  auto* node = new ListNode;
  node->items = std::move(items);
  return Value(Kind::tuple, node);
}
Value Value::view(ViewType type, std::vector<Value> items, int64_t start, int64_t stop, int64_t step) {
  auto* node = new ListNode;
  node->items = std::move(items);
  node->type = type;
  node->range[0] = start;
  node->range[1] = stop;
  node->range[2] = step;
  return Value(Kind::view, node);
}
Value Value::map(Map items) {
  auto* node = new MapNode;
  node->map = std::move(items);
  return Value(Kind::map, node);
}
Value Value::object(detail::Node* node) { return Value(Kind::object, node); }

Value Value::group(Value grouper, Value items) {
  Value v = tuple({std::move(grouper), std::move(items)});
  static_cast<ListNode*>(v.data_.node)->type = ViewType::group;
  return v;
}
bool Value::is_group() const { return kind_ == Kind::tuple && static_cast<const ListNode*>(data_.node)->type == ViewType::group; }

std::string_view Value::as_string() const {
  if (data_.node == nullptr) return {};
  return static_cast<const StringNode*>(data_.node)->text.bytes();
}
TextView Value::as_text() const {
  if (data_.node == nullptr) return {};
  return static_cast<const StringNode*>(data_.node)->text;
}
bool Value::is_markup() const { return is_string() && static_cast<const StringNode*>(data_.node)->markup; }
bool Value::is_growing() const { return is_list() && static_cast<const ListNode*>(data_.node)->growing; }
void Value::append(Value item) const { static_cast<ListNode*>(data_.node)->items.push_back(std::move(item)); }
void Value::clear() const {
  detail::DeadList dead;
  for (Value& v : static_cast<ListNode*>(data_.node)->items) dead.take(v);
  static_cast<ListNode*>(data_.node)->items.clear();
  dead.drain();
}
const std::vector<Value>& Value::as_items() const { return static_cast<const ListNode*>(data_.node)->items; }
const Map& Value::as_map() const { return static_cast<const MapNode*>(data_.node)->map; }
Value::ViewType Value::view_type() const { return kind_ == Kind::view ? static_cast<const ListNode*>(data_.node)->type : ViewType::none; }
const int64_t* Value::range_bounds() const { return static_cast<const ListNode*>(data_.node)->range; }

size_t Value::string_length() const { return static_cast<const StringNode*>(data_.node)->length; }

size_t Value::string_offset(size_t index) const {
  const auto* s = static_cast<const StringNode*>(data_.node);
  if (s->length == s->text.size()) return index;
  if (index >= s->length) return s->text.size();
  const size_t mark = index / detail::kMarkEvery;
  size_t pos = mark == 0 ? 0 : s->marks[mark - 1];
  for (size_t left = index % detail::kMarkEvery; left > 0; --left) pos += unicode::sequence_length(s->text.bytes(), pos);
  return pos;
}

const Value* Value::find(std::string_view key) const { return is_map() ? as_map().find(key) : nullptr; }

bool Value::equals(const Value& other, uint64_t* work) const { return equal_values(*this, other, work); }

namespace {
constexpr size_t kIndexFrom = 12;  // entries; a linear search is faster below this number
}

Map::Map() = default;
Map::Map(Map&&) noexcept = default;
Map& Map::operator=(Map&&) noexcept = default;
Map::Map(const Map& other) : entries_(other.entries_) {
  if (other.index_) index_ = std::make_unique<std::map<Value, size_t, KeyLess>>(*other.index_);
}
Map::~Map() = default;

bool Map::KeyLess::operator()(const Value& a, const Value& b) const { return compare_keys(a, b, 0) < 0; }

size_t Map::position(const Value& key) const {
  if (index_) {
    const auto it = index_->find(key);
    return it == index_->end() ? entries_.size() : it->second;
  }
  size_t i = 0;
  while (i < entries_.size() && compare_keys(entries_[i].first, key, 0) != 0) ++i;
  return i;
}

void Map::set(Value key, Value value) {
  const size_t at = position(key);
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (index_) {
    index_->emplace(entries_.back().first, at);
  } else if (entries_.size() >= kIndexFrom) {
    index_ = std::make_unique<std::map<Value, size_t, KeyLess>>();
    for (size_t i = 0; i < entries_.size(); ++i) index_->emplace(entries_[i].first, i);
  }
}

void Map::surrender(detail::DeadList& dead) {
  index_.reset();  // the index's keys are copies of the entries' keys
  for (Entry& e : entries_) {
    dead.take(e.first);
    dead.take(e.second);
  }
  entries_.clear();
}

const Value* Map::find(const Value& key) const {
  const size_t at = position(key);
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

const Value* Map::find(std::string_view key) const {
  if (index_) return find(Value::string(std::string(key)));
  for (const Entry& e : entries_)
    if (e.first.is_string() && e.first.as_string() == key) return &e.second;
  return nullptr;
}

}  // namespace orrery::text

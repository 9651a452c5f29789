// Text whose bytes know where they come from: the chat template, or data (messages, tools, variables, numbers).
//
// A template prints its own control tokens ("<|im_end|>") and the users' text into one prompt. The tokenizer makes control tokens of the
// template's bytes alone, so no text of a user can begin a turn, whichever operations of the template join, cut or change it. The origin is
// kept by the places where it changes: most texts have none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orrery::text {

enum class Origin : uint8_t { data, chat_template };

inline Origin other(Origin origin) { return origin == Origin::data ? Origin::chat_template : Origin::data; }

// Bytes and their origins. Valid as long as the text that they are a part of.
class TextView {
 public:
  TextView() = default;
  TextView(std::string_view bytes, Origin origin) : bytes_(bytes), start_(origin) {}
  // changes: (n_changes) ascending offsets, more than 0 and less than bytes.size(), from which the origin is the other one
  TextView(std::string_view bytes, Origin start, const uint32_t* changes, size_t n_changes)
      : bytes_(bytes), start_(start), changes_(changes), n_changes_(n_changes) {}

  std::string_view bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  size_t n_changes() const { return n_changes_; }

  // `inside` is a part of bytes().
  TextView part(std::string_view inside) const {
    if (n_changes_ == 0 || inside.empty()) return TextView(inside, start_);
    const size_t at = static_cast<size_t>(inside.data() - bytes_.data()) + base_;
    const uint32_t* end = changes_ + n_changes_;
    const uint32_t* first = std::upper_bound(changes_, end, at);
    const uint32_t* last = std::lower_bound(first, end, at + inside.size());
    TextView v(inside, (first - changes_) % 2 == 0 ? start_ : other(start_), first, static_cast<size_t>(last - first));
    v.base_ = at;
    return v;
  }
  TextView substr(size_t at, size_t n = std::string_view::npos) const { return part(bytes_.substr(at, n)); }

  // Calls visit(std::string_view, Origin) for each stretch of one origin, in order, until it returns false.
  template <class F>
  bool each_run(const F& visit) const {
    size_t from = 0;
    Origin origin = start_;
    for (size_t i = 0; i < n_changes_; ++i) {
      const size_t to = changes_[i] - base_;
      if (!visit(bytes_.substr(from, to - from), origin)) return false;
      from = to;
      origin = other(origin);
    }
    return from == bytes_.size() || visit(bytes_.substr(from), origin);
  }

 private:
  friend class OriginMap;
  std::string_view bytes_;
  Origin start_ = Origin::data;
  const uint32_t* changes_ = nullptr;
  size_t n_changes_ = 0;
  size_t base_ = 0;  // offset of bytes_ in the text that `changes_` counts from
};

// The origins of a text that grows.
class Origins {
 public:
  // The bytes from the end so far to `end` have this origin.
  void reach(size_t end, Origin origin) {
    if (end == end_) return;
    if (end_ == 0) start_ = origin;
    else if (origin != last_) changes_.push_back(static_cast<uint32_t>(end_));
    last_ = origin;
    end_ = end;
  }
  TextView view(std::string_view bytes) const { return TextView(bytes, start_, changes_.data(), changes_.size()); }
  size_t end() const { return end_; }
  size_t n_changes() const { return changes_.size(); }

 private:
  Origin start_ = Origin::data, last_ = Origin::data;
  size_t end_ = 0;
  std::vector<uint32_t> changes_;
};

// A text of its own. Less than 4 GiB.
class Text {
 public:
  Text() = default;
  Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) { origins_.reach(bytes_.size(), origin); }
  // origins: of all of `bytes`
  Text(std::string bytes, Origins origins) : bytes_(std::move(bytes)), origins_(std::move(origins)) {}
  explicit Text(TextView v) { append(v); }
  static Text data(std::string bytes) { return Text(std::move(bytes), Origin::data); }

  TextView view() const { return origins_.view(bytes_); }
  operator TextView() const { return view(); }
  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  size_t n_changes() const { return origins_.n_changes(); }

  void reserve(size_t bytes) { bytes_.reserve(bytes); }
  Text& append(std::string_view bytes, Origin origin) {
    bytes_.append(bytes);
    origins_.reach(bytes_.size(), origin);
    return *this;
  }
  Text& append(TextView v) {
    v.each_run([&](std::string_view bytes, Origin origin) { return append(bytes, origin), true; });
    return *this;
  }
  // Appends data: numbers, brackets, fillings.
  Text& operator+=(std::string_view bytes) { return append(bytes, Origin::data); }
  Text& operator+=(char c) { return append(std::string_view(&c, 1), Origin::data); }

 private:
  std::string bytes_;
  Origins origins_;
};

// Carries origins over a conversion that reads a text from its start and writes another one: pass() comes after each character that was
// read, with the bytes that have been written for it and all before it.
class OriginMap {
 public:
  explicit OriginMap(TextView from) : from_(from), origin_(from.start_) {}
  void pass(size_t read, size_t written) {
    while (next_ < from_.n_changes_ && from_.changes_[next_] - from_.base_ < read) {
      origin_ = other(origin_);
      ++next_;
    }
    to_.reach(written, origin_);
  }
  Text take(std::string written) { return Text(std::move(written), std::move(to_)); }

 private:
  TextView from_;
  Origin origin_;
  size_t next_ = 0;
  Origins to_;
};

}  // namespace orrery::text

// The fields of one JSON object of a request. Each field is read by its name and checked; finish() refuses the fields that nobody has read,
// by name: a field that is silently ignored would change what the client believes about the answer. A field that is null is absent.
#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>

#include "base/refusal.h"

namespace orrery::server {

// Parses a body: at most 64 levels deep, 4,096 members in an object. Throws a Refusal.
Json parse_body(const std::string& body);

class Fields {
 public:
  // `path`: the place of the object, "messages[2]"; empty: the body.
  Fields(const Json& object, std::string path);

  std::string place(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }
  // The value, or nullptr: absent, or null.
  const Json* take(const char* name);
  std::optional<double> number(const char* name, double least, double most);
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most);
  std::optional<bool> boolean(const char* name);
  std::optional<std::string> text(const char* name);  // without NUL characters
  // Fields that do not change the answer.
  void accept(std::initializer_list<const char*> names);
  // A field that may have one value alone.
  void only(const char* name, const Json& value, const char* why);
  void finish() const;

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string> known_;
};

}  // namespace orrery::server

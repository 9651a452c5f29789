// The interpreter of one rendering: scopes, budgets, and the operations that expressions, filters and methods share.
// In this folder: exec.cpp (statements), eval.cpp (expressions), operators.cpp (operators, text of values),
// access.cpp (members, items, slices). In ../builtins: methods, format, filters, tests, globals.
//
// Every operation that can fail calls fail() and returns false; the first failure ends the rendering. Work is charged
// before it is done: step() for time, charge() for memory. No template can therefore exceed its limits.
#pragma once

#include <ctime>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/os/stack_room.h"
#include "runtime/base/status.h"
#include "runtime/text/pace.h"
#include "runtime/text/jinja/interpreter/limits.h"
#include "runtime/text/jinja/syntax/ast.h"
#include "runtime/text/jinja/syntax/functions.h"
#include "runtime/text/json/value.h"

namespace orrery::text::jinja {

class Interp;

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

struct Env {
  Env* parent = nullptr;
  std::vector<std::pair<NameId, Value>> vars;
  bool captured = false;  // by a macro: the scope lives until the rendering ends
  Env* next_free = nullptr;
};

enum class ObjectType : uint8_t { name_space, macro, method, builtin, loop, generator, cycler, joiner };

struct Object : detail::Node {
  explicit Object(ObjectType t) : type(t) {}
  const ObjectType type;
};

struct NamespaceObject : Object {
  NamespaceObject() : Object(ObjectType::name_space) {}
  Map attributes;
  void surrender(detail::DeadList& dead) override { attributes.surrender(dead); }
};

// Macros and the bodies of call blocks.  `closure` belongs to the interpreter.
struct MacroObject : Object {
  MacroObject(const Stmt* s, Env* e) : Object(ObjectType::macro), definition(s), closure(e) {}
  const Stmt* definition;
  Env* closure;
};

using MethodFunction = bool (*)(Interp&, const Value& self, Args& args, Value* out);
struct Method {
  const char* name;
  MethodFunction function;  // null: exists, but would change its object
};
template <size_t N>
const Method* find_in(const Method (&table)[N], std::string_view name) {
  for (const Method& m : table)
    if (name == m.name) return &m;
  return nullptr;
}
struct MethodObject : Object {
  MethodObject(Value s, const Method* m) : Object(ObjectType::method), self(std::move(s)), method(m) {}
  Value self;
  const Method* method;
  void surrender(detail::DeadList& dead) override { dead.take(self); }
};

using BuiltinFunction = bool (*)(Interp&, Args& args, Value* out);
struct BuiltinObject : Object {
  BuiltinObject(const char* n, BuiltinFunction f) : Object(ObjectType::builtin), name(n), function(f) {}
  const char* name;
  BuiltinFunction function;
};

// The result of map, select and similar filters; it can be iterated once.
struct GeneratorObject : Object {
  GeneratorObject() : Object(ObjectType::generator) {}
  std::vector<Value> items;
  size_t next = 0;
  Status failure;  // the reason why the items end, reported to an iteration that reaches the end
  void surrender(detail::DeadList& dead) override {
    for (Value& v : items) dead.take(v);
  }
};

struct CyclerObject : Object {
  CyclerObject() : Object(ObjectType::cycler) {}
  std::vector<Value> items;
  size_t position = 0;
  void surrender(detail::DeadList& dead) override {
    for (Value& v : items) dead.take(v);
  }
};

struct JoinerObject : Object {
  JoinerObject() : Object(ObjectType::joiner) {}
  Value separator;
  bool used = false;
  void surrender(detail::DeadList& dead) override { dead.take(separator); }
};

// A running for loop. If the loop has a filter, its items are chosen one by one, when the loop or a look-ahead asks
// for them.
struct LoopObject : Object {
  LoopObject() : Object(ObjectType::loop) {}
  std::vector<Value> items;  // candidates from `source` on are still to be filtered
  size_t source = 0;
  std::vector<Value> chosen;  // the chosen items, if the loop has a filter
  const Stmt* statement = nullptr;
  Env* outer = nullptr;  // scope of the loop statement
  size_t index = 0;      // of the current item
  uint32_t depth = 0;
  bool running = true;
  Value changed;  // the last arguments of loop.changed; undefined before
  bool filtered() const { return statement->condition != nullptr; }
  void surrender(detail::DeadList& dead) override {
    for (Value& v : items) dead.take(v);
    for (Value& v : chosen) dead.take(v);
    dead.take(changed);
  }
};

class Interp {
 public:
  Interp(const Program& program, const Value& context, const TemplateLimits& limits, const std::tm* now);
  ~Interp();

  Result<Text> run();

  // --- failure and budgets ---
  bool fail(const char* fmt, ...) ORRERY_PRINTF(2, 3);  // at the current expression
  bool raise(std::string message);                      // the template's own raise_exception
  bool stop(Status status);                             // a limit or the caller ends the rendering; `status` becomes the failure
  bool step(uint64_t count = 1);
  bool charge(uint64_t bytes);  // announces `bytes` of new values
  bool charge_items(uint64_t count) { return step(count / 16 + 1) && charge(count * sizeof(Value)); }
  // Continues on a new stack if this one is nearly full.
  template <class F>
  __attribute__((noinline)) bool elsewhere(const F& level) {
    bool done = false;
    const auto body = [&] { done = level(); };
    Status status = stack_.on_new_stack(body);
    return status.ok() ? done : stop(std::move(status));
  }
  // Adds one level of nested evaluation during its lifetime.
  struct Deeper {
    explicit Deeper(Interp* i) : interp(i) { ++interp->depth_; }
    ~Deeper() { --interp->depth_; }
    Deeper(const Deeper&) = delete;
    bool ok() const { return interp->depth_ <= interp->limits_.max_depth || interp->too_deep(); }
    Interp* interp;
  };

  // --- values (jinja/interpreter/operators.cpp) ---
  static bool truth(const Value& v);
  bool text_of(const Value& v, Text* out);  // appends str(v)
  bool repr_of(const Value& v, Text* out);  // appends repr(v)
  bool string_value(Text s, Value* out);    // charges and creates a string
  bool string_value(TextView s, Value* out);
  bool list_value(std::vector<Value> items, Value* out);
  bool items_of(const Value& v, std::vector<Value>* out);  // iterates over v; uses up a generator
  bool length_of(const Value& v, int64_t* out);
  bool binary(Op op, const Value& a, const Value& b, Value* out);
  bool compare(Op op, const Value& a, const Value& b, bool* out);
  bool same(const Value& a, const Value& b, bool* out);
  bool less(const Value& a, const Value& b, bool* out);
  bool contains(const Value& container, const Value& item, bool* out);
  bool hash_check(const Value& key);  // fails unless hashable; pays for looking it up
  bool pay_for_key(const Value& key);
  // For reading the texts that a function is given; what it does with them it pays itself.
  bool pay_for(const Value& self, const Args& args);
  bool not_undefined(const Value& v);  // fails with v's hint
  static const char* type_name(const Value& v);

  // --- members (jinja/interpreter/access.cpp) ---
  bool attribute(const Value& object, const std::string& name, Value* out);  // object.name
  bool item(const Value& object, const Value& key, Value* out);              // object[key]
  bool slice(const Value& object, const Value& start, const Value& stop, const Value& step, Value* out);
  bool path(const Value& object, const Value& attribute_path, const Value* fallback, Value* out);  // "a.b.0"
  const Method* find_method(const Value& object, std::string_view name);

  // --- calls ---
  bool call(const Value& callee, Args& args, Value* out);
  bool call_filter(uint16_t index, const Value& v, Args& args, Value* out);
  bool call_test(uint16_t index, const Value& v, Args& args, bool* out);
  // Assigns `args` to `names`; missing arguments become null. The first `positional_only` parameters cannot be passed
  // by name.
  bool bind(const Args& args, const char* what, std::initializer_list<const char*> names, size_t required, const Value** out,
            size_t positional_only = 0);
  bool want_int(const Value& v, const char* what, int64_t* out);
  bool want_string(const Value& v, const char* what);
  bool make_generator(std::vector<Value> items, Value* out);
  bool generator_end(GeneratorObject& generator);  // fails if the generator's own computation failed

  // --- formatting (jinja/builtins/format.cpp) ---
  bool percent_format(const Value& format, const Value& args, Value* out);  // format % args
  bool brace_format(TextView format, const Args& args, Value* out);         // format.format(*args)
  bool format_value(const Value& v, TextView spec, Text* out);

  // --- loops (jinja/interpreter/exec.cpp) ---
  bool loop_has(LoopObject& loop, size_t index, bool* out);  // whether item `index` exists
  static const Value& loop_item(const LoopObject& loop, size_t index) { return loop.filtered() ? loop.chosen[index] : loop.items[index]; }
  bool loop_length(LoopObject& loop, int64_t* out);

  const std::tm* now() const { return now_; }
  const TemplateLimits& limits() const { return limits_; }
  uint64_t steps() const { return steps_; }
  // A namespace may hold itself, and a list that grows, so both are cleared when the rendering ends.
  void track(const Value& may_hold_itself) { tracked_.push_back(may_hold_itself); }

 private:
  friend struct Deeper;
  enum class Flow : uint8_t { normal, break_loop, continue_loop };

  bool too_deep();

  // jinja/interpreter/exec.cpp
  bool run_body(const Body& body, Flow* flow);
  bool run_statement(const Stmt& s, Flow* flow);
  bool run_for(const Stmt& s, const Value& iterable, Env* outer, uint32_t depth);
  bool run_with(const Stmt& s, Flow* flow);
  bool run_call_block(const Stmt& s);
  bool capture(const Stmt& s, Text* text, Flow* flow);  // runs in its own scope
  bool assign(const Target& target, const Value& v);
  bool emit(TextView text);
  bool call_macro(const MacroObject& macro, Args& args, Value* out);
  bool call_loop(const Value& loop, Args& args, Value* out);
  void make_macro(const Stmt& s, Value* out);
  // Makes a new scope current during its lifetime.
  class Scope {
   public:
    Scope(Interp* interp, Env* parent, const std::vector<NameId>& hidden);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    Interp* interp_;
    Env* saved_;
    Env* env_;
  };
  void set_variable(NameId id, Value v);

  // jinja/interpreter/eval.cpp
  bool eval(const Expr& e, Value* out);
  bool eval_args(const CallSyntax& syntax, Args* out);
  bool eval_chain(const Expr& e, Value* out);
  bool eval_compare(const Expr& e, Value* out);
  bool eval_filter(const Expr& e, Value* out);
  bool eval_dict(const Expr& e, Value* out);
  void lookup(NameId id, Value* out);

  // jinja/interpreter/operators.cpp
  bool text_of_nested(const Value& v, Text* out, uint32_t depth);
  bool pay_for_text(TextView s);
  bool less_nested(const Value& a, const Value& b, bool* out, uint32_t depth);
  bool repeat(const Value& v, int64_t count, Value* out);
  bool arithmetic(Op op, const Value& a, const Value& b, Value* out);

  StackRoom stack_;
  const Program& program_;
  const TemplateLimits& limits_;
  const std::tm* now_;
  std::vector<Value> base_;  // by NameId: from the context, otherwise a global function
  Env* env_ = nullptr;
  std::vector<std::unique_ptr<Env>> envs_;  // all scopes ever created
  Env* free_ = nullptr;                     // scopes that are unused and that no macro captured
  std::vector<Value> tracked_;
  Text* out_ = nullptr;
  Text output_;
  const Value* block_input_ = nullptr;  // the input of a block's filters
  Position at_;
  uint32_t depth_ = 0;
  uint64_t steps_ = 0, work_bytes_ = 0;
  bool exhausted_ = false;  // a limit was reached; this failure must not be deferred
  Status status_;
};

// All that templates can name, for tests: filters, tests, functions, and methods as "string.strip".
std::vector<std::string> filter_names();
std::vector<std::string> test_names();
std::vector<std::string> global_names();
std::vector<std::string> method_names();

// The value of a global name: range, namespace, dict, ...; undefined if no global has the name.
Value global_function(std::string_view name);

const Method* string_method(std::string_view name);
const Method* container_method(const Value& object,
                               std::string_view name);  // of lists, tuples, views, maps, numbers

inline const Object* as_object(const Value& v) { return static_cast<const Object*>(v.as_node()); }
inline Object* as_mutable_object(const Value& v) { return static_cast<Object*>(v.as_node()); }
inline bool is_object(const Value& v, ObjectType type) { return v.is_object() && as_object(v)->type == type; }

}  // namespace orrery::text::jinja

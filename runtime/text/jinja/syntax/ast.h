// The syntax tree of a template. It has two node types with many members each; a comment beside each kind names the
// members that the kind uses. Names are interned to numbers. Chains of one operator are flat. Parsing bounds
// `height`, and freeing a tree takes no stack.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/text/jinja/syntax/lexer.h"
#include "runtime/text/json/value.h"

namespace orrery::text::jinja {

#define ORRERY_JINJA_TRY(expr) \
  do {                         \
    if (!(expr)) return false; \
  } while (0)

struct Expr;
struct ExprDeleter {
  void operator()(Expr* root) const noexcept;
};
using ExprPtr = std::unique_ptr<Expr, ExprDeleter>;
using NameId = uint32_t;

struct CallSyntax {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star, double_star;  // *list, **map
};

enum class ExprKind : uint8_t {
  constant,   // value
  name,       // name
  list,       // items
  tuple,      // items
  dict,       // items: key, value, key, value, ...
  attribute,  // a . text
  item,       // a [ b ]
  slice,      // a [ items[0] : items[1] : items[2] ], each may be null
  negate,     // - a
  plus,       // + a
  not_,       // not a
  binary,     // items[0] ops[0] items[1] ops[1] ...: arithmetic of one precedence, from the left
  concat,     // items joined by ~
  compare,    // items[0] ops[0] items[1] ...: chained comparison
  and_,
  or_,        // items
  condition,  // b if a else c; c may be null
  call,       // a ( call )
  filter,     // a | text ( call ); a is null for the body of a block
  test,       // a is text ( call )
};

enum class Op : uint8_t { add, sub, mul, div, floordiv, mod, pow, eq, ne, lt, le, gt, ge, in, not_in };

struct Expr {
  ExprKind kind;
  Position at;
  uint32_t height = 1;
  uint16_t function = 0;  // filter and test: index in its table
  NameId name = 0;
  Value value;
  std::string text;
  ExprPtr a, b, c;
  std::vector<ExprPtr> items;
  std::vector<Op> ops;
  CallSyntax call;
  Expr* next_dead = nullptr;
};

struct Stmt;
struct StmtDeleter {
  void operator()(Stmt* root) const noexcept;
};
using StmtPtr = std::unique_ptr<Stmt, StmtDeleter>;
using Body = std::vector<StmtPtr>;

// The target of an assignment: a name, ns.attribute, or a tuple of targets.
struct Target {
  enum Kind : uint8_t { name, attribute, tuple } kind = name;
  NameId id = 0;  // the name, or the namespace's name
  std::string attribute_name;
  std::vector<Target> items;
  Position at;
};

enum class StmtKind : uint8_t {
  data,          // text
  output,        // expr
  if_,           // branches: (condition or null for else, body)
  for_,          // target in expr (if condition) (recursive): body, else_body
  set,           // target = expr
  set_block,     // target = body | expr (a filter chain, may be null)
  macro,         // name, params, body
  call_block,    // expr is the call; params, body are the caller's
  filter_block,  // body | expr
  with,          // params: (target, value), body
  generation,    // body, in a scope of its own
  break_,
  continue_,
};

struct Param {
  NameId id = 0;
  ExprPtr fallback;  // null: none
};

struct Stmt {
  StmtKind kind;
  Position at;
  std::string text;
  ExprPtr expr, condition;
  Target target;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<Target, ExprPtr>> bindings;  // of with
  Body body, else_body;
  std::vector<NameId> hidden,
      else_hidden;  // names undefined when the body's scope opens (jinja/syntax/scopes.h)
  bool recursive = false;
  NameId name = 0;  // of a macro
  std::vector<Param> params;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
  Stmt* next_dead = nullptr;
};

// Names that the interpreter looks up itself.
enum WellKnown : NameId { kLoop, kCaller, kVarargs, kKwargs, kWellKnownCount };

struct Program {
  Body body;
  std::vector<NameId> hidden;
  std::vector<std::string> names;  // by NameId
};

}  // namespace orrery::text::jinja

// Finds the names that a scope hides from its start. Jinja2 decides statically where a name lives. If a scope assigns
// a name, does not read it before, and finds it in no outer scope, the name belongs to the scope and is undefined
// until the assignment, even if the context has the name. The effect shows when an inner scope (a loop's body, a
// macro) reads the name before the assignment.
#pragma once

#include "runtime/text/jinja/syntax/ast.h"

namespace orrery::text::jinja {

// Fills in `hidden` of the program and of every statement that opens a scope. Returns false if that would take too
// long: the work grows with the number of names times the number of `if`s.
bool find_hidden_names(Program* program);

}  // namespace orrery::text::jinja

// Which names a scope hides from the start.  Jinja2 decides statically where a name lives: one that a scope
// assigns, and neither reads itself before nor finds in a scope around, is the scope's own and undefined
// until then, even where the context knows it.  That shows when an inner scope (a loop's body, a macro) reads
// it before the assignment.
#pragma once

#include "runtime/text/jinja/syntax/ast.h"

namespace orrery::text::jinja {

// Fills in `hidden` of the program and of every statement that opens a scope.  False when that would take too
// long: the work grows with the number of names times that of `if`s.
bool find_hidden_names(Program* program);

}  // namespace orrery::text::jinja

// Tokens -> syntax tree, by recursive descent with the grammar's own precedences.
#pragma once

#include <memory>

#include "runtime/base/status.h"
#include "runtime/text/jinja/syntax/ast.h"

namespace orrery::text::jinja {

// Errors: unsupported_template with line and column.
Result<std::shared_ptr<const Program>> parse(std::string_view source);

}  // namespace orrery::text::jinja

// orrery plan --card: what a token would take on a card that this machine need not have, for three divisions of its memory between a mixture's
// experts and the rest (measure/division.h).
#pragma once

#include <string>

#include "api.h"
#include "args.h"
#include "terminal/output.h"

namespace orrery::tool {

// plan: of the model at `path`, with room for everything. Prints a table, or JSON with --json. Returns the exit code.
int plan_card(const Args& args, const std::string& path, const orrery_plan_result& plan, Output& out);

}  // namespace orrery::tool

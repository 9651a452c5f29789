// Filters on sequences, for the table in filters.cpp.
#pragma once

#include "runtime/text/jinja/interpreter/interpreter.h"

namespace orrery::text::jinja {

using FilterFunction = bool (*)(Interp& in, const Value& v, Args& args, Value* out);
struct Filter {
  const char* name;
  FilterFunction function;
  bool lazy = false;  // the result is a generator; a failure shows only when it is iterated
};

namespace filters {

bool length(Interp& in, const Value& v, Args& args, Value* out);
bool join(Interp& in, const Value& v, Args& args, Value* out);
bool first(Interp& in, const Value& v, Args& args, Value* out);
bool last(Interp& in, const Value& v, Args& args, Value* out);
bool fallback(Interp& in, const Value& v, Args& args, Value* out);  // default
bool list(Interp& in, const Value& v, Args& args, Value* out);
bool dictsort(Interp& in, const Value& v, Args& args, Value* out);
bool items(Interp& in, const Value& v, Args& args, Value* out);
bool map(Interp& in, const Value& v, Args& args, Value* out);
bool select(Interp& in, const Value& v, Args& args, Value* out);
bool reject(Interp& in, const Value& v, Args& args, Value* out);
bool selectattr(Interp& in, const Value& v, Args& args, Value* out);
bool rejectattr(Interp& in, const Value& v, Args& args, Value* out);
bool unique(Interp& in, const Value& v, Args& args, Value* out);
bool sort(Interp& in, const Value& v, Args& args, Value* out);
bool reverse(Interp& in, const Value& v, Args& args, Value* out);
bool sum(Interp& in, const Value& v, Args& args, Value* out);
bool min(Interp& in, const Value& v, Args& args, Value* out);
bool max(Interp& in, const Value& v, Args& args, Value* out);
bool batch(Interp& in, const Value& v, Args& args, Value* out);
bool slice(Interp& in, const Value& v, Args& args, Value* out);
bool groupby(Interp& in, const Value& v, Args& args, Value* out);
bool attr(Interp& in, const Value& v, Args& args, Value* out);

}  // namespace filters

}  // namespace orrery::text::jinja

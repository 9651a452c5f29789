// Plain schemas: those whose keywords are so simple that compiling them is never refused. Tools have them most of the time, and tools'
// schemas are compiled when they are needed (run/deferred.h).
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/text/grammar/json_schema/tagged.h"
#include "runtime/text/json/value.h"

namespace orrery::text::grammar {

// The bytes of a value of the schema, as the schema's rules write it with spaces; there may be shorter values. None: the schema is not
// plain.
std::optional<uint32_t> plain_bytes(const Value& schema);

// The same of an object's schema whose values are written as tagged arguments. is_string: as TaggedOptions has it.
std::optional<uint32_t> plain_tagged_bytes(const Value& schema, const TaggedFormat& format,
                                           std::map<std::string, bool, std::less<>>* is_string);

}  // namespace orrery::text::grammar
